"""Measuring calls on routes: right first, then fast. Every refusal and failure is a row, not an exception."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from vkconv.backend.executable import Executable
from vkconv.backend.runtime import LiveDevice, open_device
from vkconv.bench.reference import expected
from vkconv.bench.rows import Check, Floors, Row
from vkconv.bench.sampling import FEW_RUNS, BenchOptions, Clock, Samples, sample, summarise
from vkconv.call import Call
from vkconv.check import Expected, compare, on_route
from vkconv.check.inputs import HOST_COPIES, refuse_beyond_memory
from vkconv.core import Array, DeviceError, LimitError, RouteError, UsageError, VkconvError, exact_bytes, on_a_line
from vkconv.device import Device
from vkconv.files import available_bytes
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.plan.commands import Launch, PipelineKey
from vkconv.plan.planner import Planned, plan
from vkconv.plan.single import forcing, graph_of_shapes, held_constant, node_of
from vkconv.plan.transfers import Staging, as_if_large
from vkconv.policy import Policy
from vkconv.route import Params, choose

# The part of a heap, and of the host's free memory, that the rows take which are prepared together.
_GROUP_SHARE = 0.25


@dataclasses.dataclass(frozen=True)
class Trial:
    """A call to measure on a route (None: the one that the planner takes). ``params`` are values for some parameters
    of the route; the others have their default."""

    call: Call
    route: str | None = None
    params: Params = dataclasses.field(default_factory=dict)


class _Ahead(msgspec.Struct, frozen=True):
    """A row of the policy: rows that are compiled and checked before the first of them is timed, and threads that
    compute and compare their references."""

    rows: int
    threads: int


_AHEAD = Policy("bench.ahead", _Ahead)


def measure(
    call: Call,
    route: str | None = None,
    *,
    params: Params | None = None,
    device: str | int = "auto",
    options: BenchOptions | None = None,
    floors: Floors | None = None,
) -> Row:
    """Check a call on a route (None: the one that the planner takes) and time it: a row, whatever happens.

    ``params`` are values for some parameters of the route; the others have their default.

    Raises DeviceError when there is no device.
    """
    (row,) = measure_all([Trial(call, route, params or {})], device=device, options=options, floors=floors)
    return row


def measure_all(
    trials: Iterable[Trial],
    *,
    device: str | int = "auto",
    options: BenchOptions | None = None,
    floors: Floors | None = None,
) -> Iterator[Row]:
    """Check and time each trial: its row, in order, whatever happens. Where that pays on the device, groups of trials
    are compiled and checked first, and then timed one after the other; Ctrl-C gives the rows that were timed.

    Raises DeviceError when there is no device.
    """
    live = open_device(device)
    clock, ahead = Clock(live.device), _AHEAD.of(live.device)
    planned = (_Measurement(trial, live, options or BenchOptions()) for trial in trials)
    for group in _groups(planned, ahead.rows, live.device):
        yield from _measure_group(group, live, clock, ahead.threads, floors)


def _groups(planned: Iterable["_Measurement"], most: int, device: Device) -> Iterator[list["_Measurement"]]:
    """Groups of so many that run at most, and of as many as memory holds together."""
    group: list[_Measurement] = []
    device_bytes, host_bytes = 0, 0
    for one in planned:
        if not group and not one.runs:
            yield [one]
            continue
        device_bytes, host_bytes = device_bytes + one.device_bytes, host_bytes + one.host_bytes
        free = available_bytes()
        large = device_bytes > _GROUP_SHARE * device.heap_bytes or host_bytes > _GROUP_SHARE * (free or math.inf)
        if group and large:
            yield group
            group, device_bytes, host_bytes = [], one.device_bytes, one.host_bytes
        group.append(one)
        if sum(member.runs for member in group) == most:
            yield group
            group, device_bytes, host_bytes = [], 0, 0
    if group:
        yield group


def _measure_group(
    group: Sequence["_Measurement"], live: LiveDevice, clock: Clock, threads: int, floors: Floors | None
) -> Iterator[Row]:
    stopped: KeyboardInterrupt | None = None
    pool = ThreadPoolExecutor(threads, thread_name_prefix="vkconv-bench") if threads > 1 else None

    def begun(step: Callable[[], None]) -> Callable[[], None]:
        """What ends a step that other threads do; alone, a thread does it then, and Ctrl-C ends it at once."""
        return pool.submit(step).result if pool else step

    try:
        try:
            references = [begun(one.expect) for one in group]
            compiled_us = live.compile_together([launch for one in group for launch in one.launches], [])
            for one, referred in zip(group, references, strict=True):
                referred()
                one.run(compiled_us)
            for checked in [begun(one.check) for one in group]:
                checked()
            for one in group:
                one.time(clock)
        except KeyboardInterrupt as error:
            stopped = error
        for one in group:
            if not stopped or one.is_timed:
                yield one.end(floors)
        if stopped:
            raise stopped
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
        for one in group:
            one.close()


class _Measurement:
    """A trial on its way to a row: planned, loaded and run, checked, timed, ended. What goes wrong is in its row, and
    the steps behind it do nothing."""

    def __init__(self, trial: Trial, live: LiveDevice, options: BenchOptions) -> None:
        self.row = row_of(trial.call, trial.route, trial.params)
        self._call, self._live, self._options = trial.call, live, options
        self._planned: Planned | None = None
        self._wanted: Expected | None = None
        self._executable: Executable | None = None
        self._outputs: Sequence[Array] = ()
        self._samples: Samples | None = None
        self._goes_on = True
        self._step(lambda: self._plan(trial.route))

    def _step(self, step: Callable[[], bool]) -> None:
        """Do a step: one that raises, or is False, is the last."""
        if self._goes_on:
            self._goes_on = False
            with failures(self.row):
                self._goes_on = step()

    def _plan(self, route: str | None) -> bool:
        device = self._live.device
        self._planned = plan_row(self.row, self._call, route, device, as_if_large(device), self._options.fixed_push)
        return self._planned is not None

    @property
    def device_bytes(self) -> int:
        """Device memory that it takes once it is loaded."""
        return _device_bytes(self._planned) if self._planned else 0

    @property
    def host_bytes(self) -> int:
        """Host memory that it takes until it is ended."""
        return HOST_COPIES * self.row.bytes if self._planned else 0

    @property
    def launches(self) -> list[Launch]:
        """What it launches on the device."""
        plan = self._planned.plan if self._planned else None
        return [c for c in (*plan.load, *plan.run) if isinstance(c, Launch)] if plan else []

    @property
    def runs(self) -> bool:
        """Whether there is something to run, and nothing has gone wrong so far."""
        return self._goes_on

    @property
    def is_timed(self) -> bool:
        """Whether it has its times."""
        return self._samples is not None

    def expect(self) -> None:
        """Draw inputs and compute their reference; may run in any thread."""
        self._step(self._expect)

    def _expect(self) -> bool:
        assert self._planned is not None
        self._wanted = on_route(self._call, expected(self._call, self._options.seed), node_of(self._planned.plan).route)
        return True

    def run(self, compiled_us: Mapping[PipelineKey, float]) -> None:
        """Load it and run it once; ``compiled_us`` is what compiling took before."""
        self._step(lambda: self._run(compiled_us))

    def _run(self, compiled_us: Mapping[PipelineKey, float]) -> bool:
        assert self._planned is not None and self._wanted is not None
        plan, arrays = self._planned.plan, self._wanted.arrays
        executable = Executable(plan, self._live, held_constant(arrays), poison=True, timed_load=True)
        self._executable = executable
        outputs = executable.run({name: arrays[name] for name in plan.inputs})
        self._outputs = [outputs[name] for name in self._call.outputs]
        keys = {launch.pipeline for launch in self.launches}
        self.row.us_compile = executable.compile_us + sum(compiled_us.get(key, 0.0) for key in keys)
        self.row.us_prepack = executable.prepack_us if node_of(plan).prepack_dispatches else None
        return True

    def check(self) -> None:
        """Compare the first run's outputs; may run in any thread."""
        self._step(self._check)

    def _check(self) -> bool:
        assert self._wanted is not None
        checked, self._outputs = compare(self._call, self._outputs, self._wanted), ()
        self.row.max_abs, self.row.max_rel, self.row.allowed = checked.max_abs, checked.max_rel, checked.allowed
        if not checked.ok:
            self.row.check, self.row.why = "FAILED", checked.problem
        return checked.ok

    def time(self, clock: Clock) -> None:
        """Time it."""
        self._step(lambda: self._time(clock))

    def _time(self, clock: Clock) -> bool:
        assert self._executable is not None
        time.sleep(self._options.cooldown_s)
        self._samples = sample(self._executable, self.row.dispatches, self._options, clock.wanted_s)
        clock.worked()
        return True

    def end(self, floors: Floors | None) -> Row:
        """Compare the outputs as the last repeat left them: what only the first run over its inputs gets right is
        wrong. The row, with its numbers where all is right."""
        self._step(lambda: self._end(floors))
        self.close()
        return self.row

    def _end(self, floors: Floors | None) -> bool:
        executable, samples, planned = self._executable, self._samples, self._planned
        assert executable is not None and samples is not None and planned is not None
        self._outputs = [executable.peek(name) for name in self._call.outputs]
        if not self._check():
            self.row.why = f"right at first, wrong when it was repeated: {self.row.why}"
            return False
        summarise(self.row, samples, self._live.device.timestamp_period_ns)
        self.row.notes += _reordering(executable, self._call, planned)
        rate(self.row, floors)
        return True

    def close(self) -> None:
        """Release what it has on the device."""
        if self._executable is not None:
            self._executable.close()
            self._executable = None


def row_of(call: Call, route: str | None, params: Params | None) -> Row:
    """The row of a call on a route before anything is planned."""
    op = OPS[call.op]
    row = Row(call=format_call(call, OPS), op=op.name, route=route or "", given=dict(params or {}))
    row.flops, row.bytes = op.flops(call), op.compulsory_bytes(call)
    return row


def plan_row(
    row: Row, call: Call, route: str | None, device: Device, staging: Staging, fixed_push: bool | None
) -> Planned | None:
    """The plan of a call, made without its weights, with such ``staging`` and ``fixed_push`` (`Options`); None, and the
    row says why, where there is nothing to run."""
    op = OPS[call.op]
    if not op.routes or all(spec.size == 0 for spec in call.outputs.values()):
        row.check = "skipped"
        row.why = "no output element" if op.routes else "nothing runs: the output is the input's bytes, or a constant"
        return None
    choice = choose(op.routes, call, device)
    row.route, row.chosen = route or choice.route.name, route in (None, choice.route.name)
    if route:
        verdict = next((v for v in choice.verdicts if v.route.name == route), None)
        if verdict is None or not verdict.allowed:
            row.check = "refused"
            names = ", ".join(r.name for r in op.routes)
            row.why = (
                f"it needs {verdict.refused_by}, and here it is {verdict.actual}"
                if verdict
                else f"{op.name} has no route {route!r}; it has {names}"
            )
            return None
    _check_memory(row.bytes, device)
    options = dataclasses.replace(forcing(route, row.given), staging=staging, fixed_push=fixed_push)
    planned = plan(graph_of_shapes(call), device, options)
    _check_memory(_device_bytes(planned), device)
    node = node_of(planned.plan)
    row.dispatches, row.params = node.dispatches, dict(node.params)
    return planned


def _reordering(executable: Executable, call: Call, planned: Planned) -> list[str]:
    """What of a call's time brings its tensors into another order: launches, and their time by themselves."""
    (node,) = planned.plan.nodes
    assert node.choice is not None
    before, behind = node.choice.route.reorders(call)
    if not before + behind:
        return []
    runs = [executable.launches_us()[-node.dispatches :] for _ in range(FEW_RUNS)]
    spans = np.median(np.array(runs), axis=0)
    reordering_us = float(spans[:before].sum() + spans[node.dispatches - behind :].sum())
    said = f"{before + behind} of {node.dispatches} launches, {reordering_us:.1f} of {spans.sum():.1f} us"
    return [f"reordering: {said} where each is timed by itself"]


def rate(row: Row, floors: Floors | None) -> None:
    """Give a row that was measured its rates, and how near they come to what the device can do."""
    assert row.us_median is not None
    row.gflops = row.flops / row.us_median / 1e3
    row.gbps = row.bytes / row.us_median / 1e3
    if floors:
        parts: Mapping[str, float] = {"fma": row.gflops / floors.fma_gflops, "copy": row.gbps / floors.copy_gbps}
        row.bound = "fma" if parts["fma"] > parts["copy"] else "copy"
        row.percent_of_floor = 100 * parts[row.bound]


def _device_bytes(planned: Planned) -> int:
    memory = planned.plan.memory
    return memory.device_bytes + memory.load_bytes + memory.upload_bytes + memory.download_bytes


def is_beyond_heap(nbytes: int, device: Device) -> bool:
    """Whether a call that takes so many bytes is skipped, as the device cannot hold it."""
    return nbytes > device.heap_bytes


def _check_memory(nbytes: int, device: Device) -> None:
    """Raise LimitError where a call that takes so many bytes cannot be held, by the device or by the host."""
    if is_beyond_heap(nbytes, device):
        heap = device.heap_bytes
        raise LimitError(f"it takes {exact_bytes(nbytes)}, the largest heap of {device.name} has {exact_bytes(heap)}")
    refuse_beyond_memory("checking it", HOST_COPIES * nbytes)


@contextlib.contextmanager
def failures(row: Row) -> Iterator[None]:
    """Write what went wrong into the row instead of raising it."""

    def failed(check: Check, error: BaseException) -> None:
        row.check, row.why = check, on_a_line(error)

    try:
        yield
    except (RouteError, UsageError) as error:  # the second for a parameter
        failed("refused", error)
    except (LimitError, MemoryError) as error:
        failed("skipped", error)
    except DeviceError as error:
        failed("skipped" if hasattr(error.__cause__, "requested_bytes") else "error", error)
    except (VkconvError, IndexError, ValueError) as error:  # the last two: inputs that a reference refuses
        failed("error", error)
