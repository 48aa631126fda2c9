"""A lower bound in microseconds for calls on a GPU that is not here.

Each launch takes no less than its busiest pipe on the compute unit that has most workgroups, than its traffic with
memory, and one launch after the other takes the target's launch time. What is left out makes it slower, but for the
last: `LEFT_OUT`.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from vkconv.compilers.counts import Counts, count
from vkconv.compilers.gpus import Gpu, driver_of
from vkconv.compilers.mix import Kind
from vkconv.compilers.pipelines import Asked, Made, Pipeline, collect, pipeline_of
from vkconv.compilers.rows import Code, GpuHeader, Verdict, code_of, verdict_of
from vkconv.compilers.runner import Compiled, compile_all
from vkconv.core import ShaderError, UsageError, ceil_div
from vkconv.device import Device, Target, target_of
from vkconv.device.numbers import Evidence
from vkconv.plan.commands import Launch

SCHEMA = "vkconv.estimate/1"
LEFT_OUT = (
    "waiting for memory and for other invocations (latency, barriers, occupancy)",
    "lanes that idle where those of a subgroup go different ways",
    "caches: what is read again is free but for its instruction, and so is what fits the last level",
    "bank conflicts, accesses that are not side by side, and addresses beyond one line of the cache",
    "branches that hang on data: the shorter way counts",
    "special functions and moves where the driver tells no pipe for them",
    "what is done once, when weights are loaded",
    "clocks that fall with heat",
    "constants in place of push constants, with which kernels run fewer instructions",
)

_DEFAULT_SUBGROUP = 32
_MEMORY, _LAUNCHES, _MULTIPLIES, _MATRICES = "bandwidth", "launches", "multiply-adds", "matrices"
_Us = Annotated[float, msgspec.Meta(ge=0)]


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of a kernel's statistics, what weighs it, and its factor."""

    column: str
    by: Kind
    times: float = 1.0


class Pipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pipe of a compute unit, as pipes.toml has it."""

    driver: str
    name: str
    terms: tuple[Term, ...]
    per_cycle: float
    evidence: Evidence
    source: str
    of: str = ""
    over: float = 1.0
    halves: bool = False
    without: str = ""

    def tells(self, code: Code) -> bool:
        """Whether a kernel's statistics have its columns, and not what it stands in for."""
        there = all(getattr(code, term.column) is not None for term in self.terms)
        return there and not (self.without and getattr(code, self.without) is not None)

    def cycles(self, code: Code, counts: Counts, target: Target) -> float:
        """Cycles of a compute unit for each invocation."""
        loops = _loops(code)
        units = sum(term.times * getattr(code, term.column) * counts.weight(term.by, loops) for term in self.terms)
        return float(units / self.rate(target))

    def rate(self, target: Target) -> float:
        """Units of the columns in a cycle of a compute unit."""
        return self.per_cycle * (target.value(self.of) if self.of else 1.0) / self.over


class _Data(msgspec.Struct, forbid_unknown_fields=True):
    pipes: tuple[Pipe, ...]


@functools.cache
def pipes_of(driver: str) -> tuple[Pipe, ...]:
    """The pipes that kernels of a driver are bounded by."""
    text = (Path(__file__).parent / "pipes.toml").read_bytes()
    return tuple(pipe for pipe in msgspec.toml.decode(text, type=_Data).pipes if pipe.driver == driver)


class LaunchBound(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The bound of one launch: microseconds of each pipe and of memory; ``us`` is the most of them, of ``limit``.
    ``weights`` are how often the code of each kind of work runs; an invocation does ``multiply_adds``. ``bytes`` go
    to and from memory. ``guesses`` branches of its kernel hang on data."""

    shader: str
    groups: tuple[int, ...]
    local: tuple[int, ...]
    verdict: Verdict
    why: str = ""
    us: _Us | None = None
    limit: str = ""
    pipes_us: dict[str, _Us] = {}
    weights: dict[str, float] = {}
    multiply_adds: float = 0.0
    bytes: float = 0.0
    guesses: int = 0


class Estimate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call on a route with a GPU: at least ``us`` microseconds, most of them for ``limit``. None where a kernel of it
    does not compile or cannot be counted, or where it cannot be planned: ``why``."""

    gpu: str
    call: str
    count: int = 1
    route: str = ""
    params: dict[str, int | str] = {}
    chosen: bool = False
    us: _Us | None = None
    limit: str = ""
    limits_us: dict[str, _Us] = {}
    launches: list[LaunchBound] = []
    spills: bool = False
    why: str = ""

    @property
    def failed(self) -> bool:
        """A first choice that has kernels but no bound."""
        return self.chosen and self.us is None


class Result(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What ``vkconv estimate -o FILE.json`` saves. ``target`` are the numbers that were used, with their evidence."""

    schema: Literal["vkconv.estimate/1"] = "vkconv.estimate/1"
    vkconv: str = ""  # with the date, written when it is saved
    date: str = ""
    incomplete: str = ""  # what stopped it
    calls: str
    options: dict[str, str | float | int | None]
    gpu: GpuHeader
    target: dict[str, dict[str, Any]]
    pipes: list[Pipe]
    left_out: tuple[str, ...] = LEFT_OUT
    rows: list[Estimate]

    @property
    def failed(self) -> list[Estimate]:
        return [row for row in self.rows if row.failed]


def estimate_all(
    gpu: Gpu,
    wanted: Iterable[Asked],
    device: Device,
    *,
    max_seconds: float,
    jobs: int | None = None,
    found: list[Estimate] | None = None,
    done: Callable[[str, int, int], None] = lambda what, done, count: None,
) -> list[Estimate]:
    """Bounds of calls that are planned with a device and compiled for a GPU, by launches that push; ``found``, which is
    returned, has those that are there if Ctrl-C comes. UsageError where nothing is launched, or the compiler is not
    installed; DeviceError where its driver does not start."""
    # A compiler that knows how often loops run has other loops than the SPIR-V by which its counts are weighed.
    made = list(collect(wanted, device, fixed_push=False))
    pipelines = [pipeline_of(launch) for one in made for launch in one.launches]
    if not pipelines:
        why = next((f": {one.why}" for one in made if one.why), "; these calls launch nothing")
        raise UsageError(f"there is nothing to estimate for {gpu.name}{why}")
    compiled: dict[Pipeline, Compiled] = {}
    rows = [] if found is None else found
    try:
        compile_all(
            gpu,
            pipelines,
            max_seconds=max_seconds,
            jobs=jobs,
            found=compiled,
            done=lambda n, count: done(gpu.name, n, count),
        )
    except KeyboardInterrupt:
        whole = (one for one in made if all(pipeline_of(launch) in compiled for launch in one.launches))
        rows += [estimate(gpu, one, compiled, device) for one in whole]
        raise
    for number, one in enumerate(made, 1):
        rows.append(estimate(gpu, one, compiled, device))
        done("counted", number, len(made))
    return rows


def estimate(
    gpu: Gpu, made: Made, compiled: Mapping[Pipeline, Compiled], device: Device, subgroup_size: int = 0
) -> Estimate:
    """The bound of a call that was planned with a device, of whose numbers it is, and compiled for a GPU."""
    asked = made.asked
    row = Estimate(
        gpu=gpu.name,
        call=asked.text,
        count=asked.count,
        route=made.route,
        params=dict(made.params),
        chosen=made.chosen,
        why=made.why,
    )
    if made.why:
        return row
    target = target_of(device)
    bounds = []
    for launch in made.launches:
        pipeline = pipeline_of(launch, subgroup_size)
        bound, code = _bound(gpu, launch, pipeline, compiled[pipeline], target)
        bounds.append(bound)
        row.spills |= code.spilled
    row.launches = bounds
    broken = next((bound for bound in bounds if bound.us is None), None)
    if broken:
        row.why = f"{broken.shader}: {broken.why}"
        return row
    limits: dict[str, float] = {_LAUNCHES: len(bounds) * target.value("launch_us")} if bounds else {}
    for bound in bounds:
        limits[bound.limit] = limits.get(bound.limit, 0.0) + (bound.us or 0.0)
    row.limits_us = dict(sorted(limits.items(), key=lambda item: -item[1]))
    row.us = sum(limits.values())
    row.limit = max(limits, key=lambda name: limits[name], default="")
    return row


def _bound(
    gpu: Gpu, launch: Launch, pipeline: Pipeline, compiled: Compiled, target: Target
) -> tuple[LaunchBound, Code]:
    code = code_of(compiled.executables, driver_of(gpu))
    verdict = verdict_of(compiled, code)
    about: dict[str, Any] = {
        "shader": pipeline.shader.key,
        "groups": launch.groups,
        "local": pipeline.local,
        "verdict": verdict,
    }
    if compiled.outcome != "compiled":
        return LaunchBound(**about, why=compiled.why), code
    size = max((one.subgroup_size for one in compiled.executables), default=0) or _DEFAULT_SUBGROUP
    try:
        counts = count(launch, pipeline, size)
    except ShaderError as error:
        return LaunchBound(**about, why=str(error)), code
    nbytes = traffic_bytes(launch, counts, math.prod(launch.groups) * math.prod(pipeline.local), target)
    pipes = {
        **pipes_us(gpu, launch, pipeline, code, counts, size, target),
        _MEMORY: nbytes / 1e3 / target.value("bandwidth_gbs"),
    }
    limit = max(pipes, key=lambda name: pipes[name])
    return (
        LaunchBound(
            **about,
            us=pipes[limit],
            limit=limit,
            pipes_us=pipes,
            weights={kind.value: counts.weight(kind, _loops(code)) for kind in Kind if counts.static().get(kind)},
            multiply_adds=counts.dynamic.get(Kind.MULTIPLY, 0.0),
            bytes=nbytes,
            guesses=counts.guesses,
        ),
        code,
    )


def _loops(code: Code) -> int | None:
    return None if code.loops is None else int(code.loops)


def pipes_us(
    gpu: Gpu, launch: Launch, pipeline: Pipeline, code: Code, counts: Counts, subgroup_size: int, target: Target
) -> dict[str, float]:
    """Microseconds of each pipe of the compute unit that has most workgroups: those of the driver, whose columns are
    weighed, and multiply-adds at the target's rate, which hold for any compiler."""
    invocations = ceil_div(math.prod(launch.groups), target.compute_units) * math.prod(pipeline.local)
    clock = target.value("clock_mhz")
    work = counts.dynamic
    half = work.get(Kind.HALF, 0.0) / work[Kind.ARITHMETIC] if work.get(Kind.ARITHMETIC) else 0.0
    # The share of 16-bit arithmetic takes its share of the time over the rate.
    faster = 1.0 - half + half / max(1.0, target.value("f16_rate"))
    found = {_MULTIPLIES: work.get(Kind.MULTIPLY, 0.0) * faster / target.value("fma_per_unit")}
    if matrix := work.get(Kind.MATRIX, 0.0):
        found[_MATRICES] = (
            matrix / subgroup_size / max(target.value("matrix_fma_per_unit"), target.value("fma_per_unit"))
        )
    for pipe in pipes_of(gpu.driver):
        if pipe.tells(code):
            found[pipe.name] = pipe.cycles(code, counts, target) * (faster if pipe.halves else 1.0)
    return {name: cycles * invocations / clock for name, cycles in found.items()}


def traffic_bytes(launch: Launch, counts: Counts, invocations: int, target: Target) -> float:
    """Bytes that a launch moves at least: each byte of its buffers once, of which the last-level cache may have held as
    many as it has room for; no more than its invocations ask for."""
    buffers: Sequence[tuple[Any, str]] = launch.binds
    regions = {(region.buffer, region.offset): region.nbytes for region, _ in buffers}
    asked = (counts.dynamic.get(Kind.LOAD_BYTES, 0.0) + counts.dynamic.get(Kind.STORE_BYTES, 0.0)) * invocations
    return max(0.0, min(float(sum(regions.values())), asked) - target.value("cache_bytes"))


_USED = ("compute_units", "clock_mhz", "fma_per_unit", "f16_rate", "bandwidth_gbs", "cache_bytes", "launch_us")


def numbers_used(device: Device) -> dict[str, dict[str, Any]]:
    """The numbers of a device's target that bounds are computed with."""
    numbers = target_of(device).numbers
    return {name: msgspec.to_builtins(numbers[name]) for name in _USED}
