"""Which calls, on which routes, a command compiles: ``vkconv compile`` and ``vkconv estimate``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vkconv.cli.options import refuse_shapes_of_call
from vkconv.cli.output import say
from vkconv.core import UsageError

if TYPE_CHECKING:
    from vkconv.bench.suites import Entry
    from vkconv.compilers.pipelines import Asked
    from vkconv.device import Device
    from vkconv.route import Params


def entries_of(
    targets: Sequence[str], suites: Sequence[str], all_ops: bool, dtype: str, device: "Device", shapes: Sequence[str]
) -> "list[Entry]":
    """Calls from a command line: texts, files, suites, or the cases of all ops. UsageError for both. Those of suites,
    models and all ops that cannot have the type are told and left out."""
    entries = []
    for entry in _entries(targets, suites, all_ops, dtype, device, shapes):
        if entry.why:
            say(f"left out: {entry.text}: {entry.why}")
        else:
            entries.append(entry)
    return entries


def _entries(
    targets: Sequence[str], suites: Sequence[str], all_ops: bool, dtype: str, device: "Device", shapes: Sequence[str]
) -> "list[Entry]":
    from vkconv.bench.suites import entries_in, merge
    from vkconv.cli.bench import parse_dtype
    from vkconv.cli.benched import read_entries
    from vkconv.ops import OPS

    given = parse_dtype(dtype)
    if not all_ops:
        return read_entries(targets, suites, given, device, shapes)
    if targets or suites:
        raise UsageError("--all-ops has calls of its own: it goes without CALL, MODEL and --suite")
    refuse_shapes_of_call(shapes)
    cases = [case for op in OPS.values() if op.routes for case in op.cases]
    return merge(entry for case in cases for entry in entries_in(case, given))


def asked_of(
    entries: "Sequence[Entry]",
    routes: Sequence[str],
    sweep: str,
    device: "Device",
    given: "Mapping[str, Params] | None" = None,
) -> "list[Asked]":
    """Calls with routes and parameters, as bench has them; ``given`` are parameters by ``OP`` or ``OP:ROUTE``."""
    from vkconv.bench.runner import Routes, make_tasks
    from vkconv.compilers.pipelines import Asked
    from vkconv.ops import OPS
    from vkconv.route import may_take

    words = [word.strip() for text in routes for word in text.split(",")]
    if "chosen" in words and len(words) > 1:
        raise UsageError(f"--route {','.join(words)}: chosen is the planner's own, and goes alone")
    parsed = Routes.parse([word for word in words if word != "chosen"], entries)
    tasks = make_tasks(entries, parsed, device, sweep=[name for name in sweep.split(",") if name], params=given)
    asked = []
    for task in tasks:
        call = task.entry.call
        if call is None or call.is_empty or not OPS[call.op].routes:
            continue
        if parsed.every and task.route is not None:
            # All routes are those that may take the call there; a route that was named says why it may not.
            (route,) = (route for route in OPS[call.op].routes if route.name == task.route)
            if not may_take(route, call, device):
                continue
        asked.append(Asked(call, task.entry.text, task.entry.count, task.route, task.params))
    return asked
