"""Why a plan is as it is: routes of a whole graph, or every route of one call, as tables and as JSON data."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from vkconv.call import HALVES, Call
from vkconv.core import DType, bytes_str, counted
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.plan.commands import Barrier
from vkconv.plan.decisions import decide, reads_data
from vkconv.plan.fixing import fixed_launches, fixed_str
from vkconv.plan.measured import usable
from vkconv.plan.model import Memory, Plan, PlannedNode
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import graph_of_shapes, node_of
from vkconv.program import Program
from vkconv.route import Choice, Sub, Verdict, judge
from vkconv.storage import HALF_MATH, PACKED
from vkconv.table import Column, Table

_BY = {"rule": "first whose needs hold", "forced": "forced", "last resort": "no preferred one can"}
_NO_ROUTE = {
    "alias": "nothing runs: the output is the input's bytes",
    "empty": "nothing runs: no output has an element",
    "constant": "nothing runs: it is computed when the graph is planned",
}
_ALTERNATIVES = 3  # of what a measured table knows of a call


def explain_plan(plan: Plan) -> Table:
    """One row per node of a plan: call, route, how it was chosen and what its parameters come to, and why that route
    exists."""
    rows = [
        (
            node.name,
            node.text,
            str(node.choice or node.route),
            "; ".join(filter(None, (_by(node.choice, {}), _note(node, plan.device)))) if node.choice else "",
            node.dispatches,
            node.choice.route.why if node.choice else "",
        )
        for node in plan.nodes
    ]
    columns = (
        Column("node"),
        Column("call"),
        Column("route"),
        Column("by"),
        Column("dispatches"),
        Column("why"),
    )
    barriers = sum(isinstance(c, Barrier) for c in plan.run)
    title = (
        f"{plan.graph} on {plan.device.name}: {counted(len(plan.nodes), 'node')}, "
        f"{counted(sum(n.dispatches for n in plan.nodes), 'dispatch', 'es')}, {counted(barriers, 'barrier')}; "
        f"{memory_str(plan.memory)}; {plan.transfers}"
    )
    if plan.early:
        title += f"; {plan.early}"
    if fixed := fixed_str(plan):
        title += f"; {fixed}"
    if plan.imported:
        title += f"; {', '.join(plan.imported)} read in the caller's own pages"
    return Table(title, columns, rows)


def memory_str(memory: Memory) -> str:
    """Activations beside their lower bound, and weights: one line."""
    bound = memory.lower_bound_bytes
    ratio = f" = {memory.activations_bytes / bound:.2f}x the lower bound {bytes_str(bound)}" if bound else ""
    return f"activations {bytes_str(memory.activations_bytes)}{ratio}, weights {bytes_str(memory.weights_bytes)}"


def explain_call(call: Call, device: Device, options: Options | None = None) -> tuple[Table, dict[str, Any]]:
    """Every route of one call on a device: taken or not, its parameters, the need that refused it with its actual
    value, source.

    Returns the table for people and the same as JSON data, whose key ``route`` is the route that runs, or ``alias``,
    ``empty`` or ``constant`` where none does (then ``by`` is null). Plans the graph that is this call alone, and
    raises what `vkconv.plan.planner.plan` raises.
    """
    text = format_call(call, OPS)
    options = dataclasses.replace(options or Options(), passes=False)
    device = device if options.quirks else dataclasses.replace(device, own_quirks=())
    planned = plan(graph_of_shapes(call), device, options).plan
    node = node_of(planned) if planned.nodes else None
    route, choice = (node.route, node.choice) if node else ("constant", None)
    call = node.call if node else call  # in wider integers, where no kernel has its own
    program = choice.route.build(call, device, choice.params) if choice else Program(())
    verdicts = choice.verdicts if choice else [judge(r, call, device) for r in OPS[call.op].routes]
    rows = [*_rows(verdicts, choice, call, device), *(_rows_inside(choice, call, device) if choice else ())]
    columns = (
        Column("route"),
        Column("taken"),
        Column("refused by"),
        Column("actual"),
        Column("parameters"),
        Column("why"),
        Column("source"),
    )
    taken = f"{choice} ({_by(choice, _BY)})" if choice else f"{route} ({_NO_ROUTE[route]})"
    note = _note(node, device) if node else ""
    shaders = list(dict.fromkeys(step.shader.key for step in (*program.prepack, *program.steps)))
    ignored = usable(options.measured, text, call, device)[1]
    in_table = f"ignored in the measured table: {ignored}" if ignored.count else ""
    said = [taken, note, _storage_note(program), fixed_str(planned), in_table]
    table = Table(f"{text} on {device.name}: {'; '.join(filter(None, said))}", columns, rows)
    reads = decide(call, device, options)[1] if choice else ()
    data = {
        "schema": "vkconv.explain/1",
        "call": text,
        "device": device.name,
        "route": route,
        "params": dict(choice.params) if choice else {},
        "by": choice.by if choice else None,
        "note": note,
        "measured": _measured(choice) if choice else [],
        "measured_ignored": dataclasses.asdict(ignored) if ignored.count else None,
        "dispatches": len(program.steps),
        "prepack_dispatches": len(program.prepack),
        "shaders": shaders,
        "fixed_push": fixed_launches(planned),
        "packed_bytes": sum(program.packed.values()),
        "scratch_bytes": sum(program.scratch.values()),
        "routes": [_verdict_data(v, call, device) for v in verdicts],
        "inner": _inner_data(choice, call, device) if choice else {},
        "read": reads_data(reads),
    }
    return table, data


def _rows(
    verdicts: Sequence[Verdict], choice: Choice | None, call: Call, device: Device, path: str = ""
) -> Iterator[tuple[str, ...]]:
    """A row for each route of a call; ``path`` is where in an outer one the call is."""
    for v in verdicts:
        legal = _values(v.route.legal(call, device)) if v.allowed else ""
        state = _state(v, choice)
        yield f"{path}{v.route.name}", state, v.refused_by, v.actual, legal, v.route.why, v.route.source


def _subs(choice: Choice, call: Call, device: Device) -> Mapping[str, Sub]:
    """The calls inside the route that was chosen."""
    return choice.route.subs(call, device, choice.route.own(choice.params, call, device)) if choice.inner else {}


def _rows_inside(choice: Choice, call: Call, device: Device, path: str = "") -> Iterator[tuple[str, ...]]:
    """The rows of the calls inside the chosen route, and inside theirs."""
    for name, sub in _subs(choice, call, device).items():
        below, inner = f"{path}{name}/", choice.inner[name]
        yield from _rows(inner.verdicts, inner, sub.call, device, below)
        yield from _rows_inside(inner, sub.call, device, below)


def _verdict_data(v: Verdict, call: Call, device: Device) -> dict[str, Any]:
    legal = v.route.legal(call, device) if v.allowed else {}
    return {
        "route": v.route.name,
        "allowed": v.allowed,
        "preferred": v.preferred,
        "refused_by": v.refused_by,
        "actual": v.actual,
        "params": {name: list(values) for name, values in legal.items()},
        "deterministic": v.route.deterministic,
        "why": v.route.why,
        "source": v.route.source,
    }


def _inner_data(choice: Choice, call: Call, device: Device) -> dict[str, Any]:
    """The calls inside the chosen route as JSON data, each as the outer one has it."""
    return {
        name: {
            "call": format_call(sub.call, OPS),
            "route": choice.inner[name].route.name,
            "by": choice.inner[name].by,
            "params": dict(choice.inner[name].params),
            "routes": [_verdict_data(v, sub.call, device) for v in choice.inner[name].verdicts],
            "inner": _inner_data(choice.inner[name], sub.call, device),
        }
        for name, sub in _subs(choice, call, device).items()
    }


def _storage_note(program: Program) -> str:
    """How 16-bit floats lie in the buffers of a program; empty where it has none."""
    shaders = [step.shader for step in (*program.prepack, *program.steps)]
    if not any(shader.dtype in (*HALVES, DType.U16) for shader in shaders):
        return ""
    sums = "sums in f16 and f32" if any(HALF_MATH in shader.defines for shader in shaders) else "sums in f32"
    if any(PACKED in shader.defines for shader in shaders):
        return f"elements of 16 bits as two to a word, since the device has no 16-bit storage; {sums}"
    return f"elements of 16 bits, {sums}"


def explain_plan_data(plan: Plan) -> dict[str, Any]:
    """`explain_plan` as JSON data, with the memory report in bytes."""
    memory = plan.memory
    return {
        "schema": "vkconv.explain/1",
        "graph": plan.graph,
        "device": plan.device.name,
        "nodes": [
            {
                "node": node.name,
                "call": node.text,
                "route": node.route,
                "params": dict(node.params),
                "by": node.choice.by if node.choice else None,
                "note": _note(node, plan.device),
                "measured": _measured(node.choice) if node.choice else [],
                "dispatches": node.dispatches,
                "why": node.choice.route.why if node.choice else None,
            }
            for node in plan.nodes
        ],
        "barriers": sum(isinstance(c, Barrier) for c in plan.run),
        "transfers": msgspec.to_builtins(plan.transfers),
        "pieces": len(plan.early.ends) + 1 if plan.early else 1,
        "fixed_push": fixed_launches(plan),
        "memory": {
            "activations_bytes": memory.activations_bytes,
            "lower_bound_bytes": memory.lower_bound_bytes,
            "weights_bytes": memory.weights_bytes,
            "load_bytes": memory.load_bytes,
            "upload_bytes": memory.upload_bytes,
            "download_bytes": memory.download_bytes,
            "caches_bytes": memory.caches_bytes,
        },
    }


def _by(choice: Choice, words: Mapping[str, str]) -> str:
    """How a route was chosen; from a measured table with its time and those of the next best."""
    taken = choice.taken
    if taken is None:
        return words.get(choice.by, choice.by)
    if not taken.params.items() <= choice.params.items():
        return "measured table, other parameters set"
    others = [f"{c} {c.us_median:.4g}" for c in choice.measured if c is not taken]
    shown = others[:_ALTERNATIVES] + [f"{len(others) - _ALTERNATIVES} more"] * (len(others) > _ALTERNATIVES)
    return "; ".join([f"measured table: {taken.us_median:.4g} us", *([", ".join(shown)] if shown else [])])


def _note(node: PlannedNode, device: Device) -> str:
    """What the parameters of a node's route come to, where the route says so, and what a pass says of the node."""
    note = node.choice.route.note(node.call, device, node.params) if node.choice else ""
    return "; ".join(filter(None, (note, node.remark)))


def _measured(choice: Choice) -> list[dict[str, Any]]:
    """What a measured table knows of the call, the fastest first, as JSON data."""
    return [msgspec.to_builtins(candidate) for candidate in choice.measured]


def _state(verdict: Verdict, choice: Choice | None) -> str:
    if choice and verdict.route is choice.route:
        return "yes"
    return "could" if verdict.allowed else "no"


def _values(legal: Mapping[str, Sequence[int]]) -> str:
    """``channels=8|4 local=64|32``: the legal values of every parameter, its default first."""
    return " ".join(f"{name}={'|'.join(map(str, values))}" for name, values in legal.items())


def memory_table(plan: Plan) -> Table:
    """What a plan takes, each kind of memory on a line."""
    memory, heap_bytes = plan.memory, plan.device.heap_bytes
    rows = (
        ("activations and scratch, as planned", memory.activations_bytes, "shared by lifetime"),
        ("the most of them alive at one step", memory.lower_bound_bytes, f"planned {_over(memory):.3f} of it"),
        ("weights", memory.weights_bytes, "for the session's life"),
        *([("caches", memory.caches_bytes, "updated in place")] if memory.caches_bytes else []),
        ("on the device", memory.device_bytes, f"{100 * memory.device_bytes / heap_bytes:.3g} % of its memory"),
        ("memory of the device", heap_bytes, ""),
        ("weights to load", memory.load_bytes, "host-visible, while loading"),
        ("inputs", memory.upload_bytes, _where(plan.transfers.inputs, plan.transfers.streamed)),
        ("outputs", memory.download_bytes, _where(plan.transfers.outputs, plan.transfers.streamed_outputs)),
    )
    cells = [(what, bytes_str(nbytes), nbytes, note) for what, nbytes, note in rows]
    columns = [Column("what"), Column("size"), Column("bytes"), Column("note")]
    return Table(f"{plan.graph} on {plan.device.name}", columns, cells)


def _where(shared: bool, streamed: bool) -> str:
    if streamed:
        return "staging and memory of the device"
    return "host-visible, where kernels use them" if shared else "host-visible, staging"


def memory_data(plan: Plan) -> dict[str, object]:
    """The same as plain data."""
    return {
        "schema": "vkconv.memory/1",
        "graph": plan.graph,
        "device": plan.device.name,
        **dataclasses.asdict(plan.memory),
        "heap_bytes": plan.device.heap_bytes,
        "over_lower_bound": _over(plan.memory),
    }


def _over(memory: Memory) -> float:
    return memory.activations_bytes / max(1, memory.lower_bound_bytes) if memory.activations_bytes else 1.0
