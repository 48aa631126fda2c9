"""Measuring many calls: which routes each takes, how long it will take, one row after the other until interrupted."""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from vkconv.bench.engine import Trial, is_beyond_heap, measure, measure_all
from vkconv.bench.reference import expected
from vkconv.bench.rows import Floors, Row
from vkconv.bench.sampling import ALONE_RUNS, BATCH_US, FEW_RUNS, BenchOptions
from vkconv.bench.suites import Entry
from vkconv.core import RouteError, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.planner import by_published_rule
from vkconv.route import Legal, Params, choose, judge

# What a row costs is not known before it is measured: the estimate is raised by this, to be kept rather than exact.
_MARGIN = 1.5
# A call that every device has memory for and that says how fast quick and slow routes are.
_PROBE = "conv2d:x=1x64x28x28,w=64x64x3x3,p=1"


@dataclasses.dataclass(frozen=True)
class Routes:
    """The routes asked for: ``every`` one, those in ``names`` for every op, and by op; else what the planner takes."""

    every: bool = False
    names: tuple[str, ...] = ()
    by_op: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Iterable[str], entries: Sequence[Entry]) -> "Routes":
        """From ``["all"]``, ``["direct"]`` or ``["conv2d=direct,matmul=shared"]``.

        Raises UsageError with a suggestion for a route or op that none of the entries has.
        """
        every, names, by_op = False, [], {}
        ops = {entry.call.op: OPS[entry.call.op] for entry in entries if entry.call}
        for word in filter(None, (part.strip() for text in texts for part in text.split(","))):
            op, equals, name = word.rpartition("=")
            if word == "all":
                every = True
                continue
            if equals and op not in ops:
                raise UsageError(f"--route {word}: no call here is {op!r}{did_you_mean(op, ops)}; {', '.join(ops)}")
            known = [r.name for o in ([ops[op]] if equals else ops.values()) for r in o.routes]
            if name not in known:
                raise UsageError(
                    f"--route {word}: there is no route {name!r}{did_you_mean(name, [*known, 'all'])}; "
                    f"the calls here have {', '.join(dict.fromkeys(known))}, or all of them: all"
                )
            if equals:
                by_op[op] = name
            else:
                names.append(name)
        return cls(every, tuple(dict.fromkeys(names)), by_op)

    def of(self, op: str) -> list[str | None]:
        """The routes of an op to measure; None is the one that the planner takes."""
        if self.every:
            return [route.name for route in OPS[op].routes] or [None]
        return [self.by_op[op]] if op in self.by_op else list(self.names) or [None]


@dataclasses.dataclass(frozen=True)
class Task:
    """One row to be: an entry on a route (None: the one that the planner takes) with these parameters; ``note`` is what
    the row says of that choice."""

    entry: Entry
    route: str | None = None
    params: Params = dataclasses.field(default_factory=dict)
    note: str = ""


def make_tasks(
    entries: Sequence[Entry],
    routes: Routes,
    device: Device,
    *,
    sweep: Sequence[str] = (),
    local: Sequence[int] = (),
    policy: str = "",
    params: Mapping[str, Params] | None = None,
) -> list[Task]:
    """A task for every entry and each of its routes, all routes of a call together.

    ``sweep`` names parameters of routes: each route that has them is measured with every combination of their legal
    values. ``local`` gives the values of the parameter of that name. ``policy`` is a system whose published rules
    choose the route of a call for which none is asked. ``params`` sets parameters by OP, of the routes that have them,
    or by OP:ROUTE. Raises UsageError for a parameter that no route here has or that has two values, for what is no
    OP or OP:ROUTE here, and for a system of which no rules are known.
    """
    tasks: list[Task] = []
    setting = _Setting(params or {}, {entry.call.op for entry in entries if entry.call})
    setting.refuse_twice([*sweep, *(["local"] if local else [])])
    known: dict[str, None] = {}
    refused: dict[str, str] = {}
    for entry in entries:
        if entry.call is None:
            tasks.append(Task(entry))
            continue
        for asked in routes.of(entry.call.op):
            taken = by_published_rule(policy, entry.call, device) if asked is None else None
            name, by_rule, note = (taken.route, taken.params, taken.why) if taken else (asked, {}, "")
            given: Params = {}
            try:
                route = choose(OPS[entry.call.op].routes, entry.call, device, forced=name).route
                legal = route.legal(entry.call, device)
                given = setting.of(entry.call.op, route.name, legal)
            except (RouteError, UsageError) as error:
                legal = {}  # its row says why
                refused.setdefault(name or entry.call.op, str(error))
            known |= dict.fromkeys(legal)
            values = {param: legal[param] for param in sweep if param in legal}
            if local and "local" in legal:
                values["local"] = tuple(local)
            tasks += [
                Task(entry, name, {**by_rule, **given, **dict(zip(values, chosen, strict=True))}, note)
                for chosen in itertools.product(*values.values())
            ]
    for param in (*sweep, *(["local"] if local else [])):
        if param not in known:
            has = f"they have {', '.join(known)}" if known else "they have none"
            why = f"; {', '.join(refused)} cannot run here" if refused else ""
            why += f": {next(iter(refused.values()))}" if refused and not known else ""
            raise UsageError(f"no route here has a parameter {param!r}{did_you_mean(param, known)}; {has}{why}")
    setting.refuse_unused(known, refused)
    return tasks


def spell_params(params: Mapping[str, Params]) -> str:
    """Parameters by key, as ``--param`` has them."""
    settings = ((key, ",".join(f"{name}:{value}" for name, value in given.items())) for key, given in params.items())
    return ",".join(f"{key}={given}" for key, given in settings)


class _Setting:
    """Parameters that are set by OP or OP:ROUTE, which of them some route had, and which routes there were."""

    def __init__(self, params: Mapping[str, Params], ops: Collection[str]) -> None:
        self._params = params
        self._used: set[tuple[str, str]] = set()
        self._met: set[str] = set()
        for key in params:
            op, colon, route = key.partition(":")
            if op not in ops:
                raise UsageError(f"--param {key}=...: no call here is {op!r}{did_you_mean(op, ops)}; {', '.join(ops)}")
            names = [one.name for one in OPS[op].routes]
            if colon and route not in names:
                raise UsageError(
                    f"--param {key}=...: {op} has no route {route!r}{did_you_mean(route, names)}; {', '.join(names)}"
                )

    def of(self, op: str, route: str, legal: Legal) -> Params:
        """Those of a route, by its own name before those of its op."""
        found: dict[str, int | str] = {}
        self._met.add(f"{op}:{route}")
        for key in (op, f"{op}:{route}"):
            for name, value in self._params.get(key, {}).items():
                if name in legal:
                    found[name] = value
                    self._used.add((key, name))
        return found

    def refuse_twice(self, swept: Iterable[str]) -> None:
        for name in swept:
            key = next((key for key, given in self._params.items() if name in given), None)
            if key is not None:
                raise UsageError(f"{name} is set by --param {key}={name}:{self._params[key][name]} and swept: give one")

    def refuse_unused(self, known: Collection[str], refused: Mapping[str, str]) -> None:
        for key, given in self._params.items():
            route = key.partition(":")[2]
            for name in given:
                if (key, name) not in self._used:
                    what = f"--param {key}={name}: no route here has that"
                    if route and key not in self._met:
                        why = refused.get(route, f"{route} is not measured; add --route {route}")
                        raise UsageError(f"{what}: {why}")
                    has = f"they have {', '.join(known)}" if known else "they have none"
                    raise UsageError(f"{what}{did_you_mean(name, known)}; {has}")


def run_tasks(
    tasks: Iterable[Task], *, device: str | int, options: BenchOptions, floors: Floors | None
) -> Iterator[Row]:
    """The row of each task, in order. What goes wrong with one is in its row."""
    pending: deque[Task] = deque()

    def trials() -> Iterator[Trial]:
        for task in tasks:
            pending.append(task)
            if task.entry.call is not None:
                yield Trial(task.entry.call, task.route, task.params)

    for row in measure_all(trials(), device=device, options=options, floors=floors):
        yield from _without_calls(pending)
        yield _described(row, pending.popleft())
    yield from _without_calls(pending)


def _without_calls(pending: deque[Task]) -> Iterator[Row]:
    """Rows of the tasks that come next and have no call."""
    while pending and pending[0].entry.call is None:
        task = pending.popleft()
        text, op = task.entry.text, task.entry.op
        row = Row(call=text, op=op, check="skipped" if op in OPS else "no op", why=task.entry.why)
        yield _described(row, task)


def _described(row: Row, task: Task) -> Row:
    row.count, row.nodes = task.entry.count, list(task.entry.nodes)
    row.notes += filter(None, (task.entry.note, task.note))
    return row


@dataclasses.dataclass(frozen=True)
class Speeds:
    """What a probe found, for the estimate: GFLOP/s of the planner's routes, of last resorts and of references, GB/s
    of the device, and seconds that a row takes beside its runs."""

    quick_gflops: float
    slow_gflops: float
    reference_gflops: float
    gbps: float
    row_s: float


def probe(device: str | int, floors: Floors) -> Speeds:
    """Measure one small call on its best and its last route. Takes a second or so on lavapipe."""
    call = parse_call(_PROBE, OPS)
    options = BenchOptions(min_time_s=0.01, runs=1, warmup=0)
    started = time.perf_counter()
    made = expected(call, options.seed)
    reference_s = time.perf_counter() - started
    quick = measure(call, device=device, options=options)
    started = time.perf_counter()
    slow = measure(call, OPS[call.op].routes[-1].name, device=device, options=options)
    spent_s = time.perf_counter() - started - (FEW_RUNS + 2) * (slow.us_median or 0.0) / 1e6
    gflop = OPS[call.op].flops(call) / 1e9
    del made
    return Speeds(
        quick_gflops=quick.gflops or floors.fma_gflops / 20,
        slow_gflops=slow.gflops or floors.fma_gflops / 100,
        reference_gflops=gflop / reference_s,
        gbps=floors.copy_gbps,
        row_s=max(spent_s, 0.05),
    )


def expected_s(tasks: Sequence[Task], device: Device, options: BenchOptions, speeds: Speeds) -> list[float]:
    """Seconds that each task will take, about: its reference where it comes first, set-up, and the runs; 0 for rows
    that nothing runs for."""
    seconds: list[float] = []
    seen: set[str] = set()
    for task in tasks:
        call = task.entry.call
        verdicts = [judge(r, call, device) for r in OPS[call.op].routes] if call else []
        verdict = next((v for v in verdicts if v.allowed and task.route in (None, v.route.name)), None)
        if call is None or verdict is None or is_beyond_heap(OPS[call.op].compulsory_bytes(call), device):
            seconds.append(0.0)
            continue
        op = OPS[call.op]
        flops, nbytes = op.flops(call), op.compulsory_bytes(call)
        # Forced, a route that the rules would not take here, or only as the last resort, may be as slow as can be.
        slow = task.route is not None and len(verdicts) > 1 and (not verdict.preferred or verdict is verdicts[-1])
        kernel_s = flops / 1e9 / (speeds.slow_gflops / 2 if slow else speeds.quick_gflops / 2)
        kernel_s = max(kernel_s, nbytes / 1e9 / (speeds.gbps / 4))
        # The check and two single runs come before the warm-up and the runs that count, a few alone after them.
        runs_s = 3 * kernel_s + max(options.min_time_s, kernel_s) + max(options.min_time_s, FEW_RUNS * kernel_s)
        runs_s += ALONE_RUNS * min(kernel_s, BATCH_US / 2e6)
        host_s = nbytes / 2e8 + (0.0 if task.entry.text in seen else flops / 1e9 / speeds.reference_gflops)
        seen.add(task.entry.text)
        seconds.append(_MARGIN * (speeds.row_s + host_s + runs_s + options.cooldown_s))
    return seconds
