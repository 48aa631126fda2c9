"""A whole device held to the references: every case of every op, on every route that may take it."""

import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from vkconv.backend.runtime import select_device
from vkconv.call import Call
from vkconv.check.calls import Expected, expect, hold, on_route, run_call
from vkconv.check.inputs import Kind, draw
from vkconv.core import DType, LimitError, UsageError, VkconvError, did_you_mean
from vkconv.device import Device
from vkconv.device.emulate import emulated
from vkconv.ops import OPS
from vkconv.ops.core.base import Op
from vkconv.ops.core.calls import parse_call
from vkconv.route import Params, Route, judge
from vkconv.table import Column, Table

SCHEMA = "vkconv.conformance/1"
Status = Literal["ok", "FAILED", "refused", "error"]
Case = tuple[str, str]
"""A call and one of its op's routes, as texts."""
_KINDS: tuple[Kind, ...] = ("normals", "specials")
_SEED = 7
_MOST_OUTPUTS = 1 << 15
_MOST_WORKGROUPS = 65_535
# Routes that say of themselves that an input that is not finite reaches more of the output than it should.
_SPREADS_NON_FINITE = ("winograd", "flipped_winograd")


@dataclasses.dataclass(frozen=True)
class Conformed:
    """One case of an op on one route: whether it is right, for normal numbers and for NaN, infinities and zeros."""

    op: str
    call: str
    route: str
    dtypes: tuple[str, ...]
    status: Status
    why: str = ""
    pattern: str = ""
    max_rel: float | None = None
    allowed: float | None = None
    seconds: float = 0.0
    params: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def command(self) -> str:
        """What to type to see it alone."""
        given = ",".join(f"{name}:{value}" for name, value in self.params.items())
        chosen = f" --param {self.op}:{self.route}={given}" if given else ""
        return f"vkconv check {self.call} --route {self.op}={self.route}{chosen}"


@dataclasses.dataclass(frozen=True)
class Conformance:
    """All of them on one device, which ``facts`` describes; ``seconds`` is what it took."""

    facts: Device
    rows: tuple[Conformed, ...]
    seconds: float

    @property
    def failed(self) -> tuple[Conformed, ...]:
        return tuple(row for row in self.rows if row.status in ("FAILED", "error"))

    def ops(self) -> Table:
        """One row per op: cases, routes, checks and how they ended, element types."""
        cells = []
        for op in dict.fromkeys(row.op for row in self.rows):
            mine = [row for row in self.rows if row.op == op]
            ran = [row for row in mine if row.status != "refused"]
            cells.append(
                (
                    op,
                    len({row.call for row in mine}),
                    f"{len({row.route for row in ran})} of {len({row.route for row in mine})}",
                    len(ran),
                    sum(row.status == "ok" for row in mine),
                    sum(row in self.failed for row in mine),
                    len(mine) - len(ran),
                    " ".join(sorted({dtype for row in ran for dtype in row.dtypes})),
                    max((row.max_rel / row.allowed for row in ran if row.max_rel and row.allowed), default=None),
                )
            )
        columns = [
            Column(name) for name in ("op", "cases", "routes run", "checks", "ok", "failed", "refused", "dtypes")
        ]
        return Table("", [*columns, Column("worst of allowed", digits=2)], cells)

    def failures(self) -> Table:
        """Every check that failed, with what is wrong, where, and the command that repeats it."""
        cells = [(row.call, row.route, row.status, row.why, row.pattern) for row in self.failed]
        return Table("", [Column(name) for name in ("call", "route", "status", "what", "where")], cells)

    def refusals(self) -> Table:
        """Routes that the device may not be given, by the need that refuses them: how many cases."""
        counts: dict[tuple[str, str, str], int] = {}
        for row in self.rows:
            if row.status == "refused":
                counts[row.op, row.route, row.why] = counts.get((row.op, row.route, row.why), 0) + 1
        cells = [(op, route, count, why) for (op, route, why), count in counts.items()]
        return Table("", [Column(name) for name in ("op", "route", "cases", "refused by")], cells)

    def summary(self) -> str:
        """The result in a line."""
        ran = sum(row.status != "refused" for row in self.rows)
        verdict = f"{len(self.failed)} FAILED" if self.failed else "all right"
        return f"{ran} checks of {len({row.op for row in self.rows})} ops in {self.seconds:.0f} s: {verdict}"

    def data(self) -> dict[str, Any]:
        """All of it as JSON data."""
        return {
            "schema": SCHEMA,
            "device": {
                "name": self.facts.name,
                "driver": self.facts.driver,
                "vulkan": self.facts.api_version,
                "key": self.facts.key,
                "quirks": [quirk.id for quirk in self.facts.quirks],
            },
            "seconds": self.seconds,
            "failed": len(self.failed),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }


def conformance(
    *,
    device: str | int = "auto",
    limits: Device | None = None,
    ops: Sequence[str] = (),
    dtypes: Sequence[DType] = (DType.F32,),
    seen: Callable[[Conformed, int, int], None] = lambda row, done, count: None,
) -> Conformance:
    """Check every case of every op (or of ``ops``), in each of these types of floats, on every route that the device
    may be given, or that ``limits``, another device, would be. ``seen`` is called after each with how many are done
    and how many there are.

    Raises UsageError for an op that does not exist, DeviceError where there is no device or it is lost.
    """
    work = cases(ops, dtypes)
    real = select_device(device)[1]
    started = time.perf_counter()
    rows = []
    for done, (text, route) in enumerate(work, 1):
        rows.append(conform(text, route, device, limits))
        seen(rows[-1], done, len(work))
    return Conformance(planned_for(real, limits), tuple(rows), time.perf_counter() - started)


def cases(ops: Sequence[str] = (), dtypes: Sequence[DType] = (DType.F32,)) -> list[Case]:
    """Every case of these ops (all, without any) with each of their routes, all routes of a case together; of f32 as
    they are written, of f16 and bf16 those that have floats and go with them. Raises UsageError for an op that does not
    exist."""
    for name in ops:
        if name not in OPS:
            raise UsageError(f"there is no op {name!r}{did_you_mean(name, OPS)}; vkconv ops lists them")
    return [
        (text, route.name)
        for op in OPS.values()
        if not ops or op.name in ops
        for dtype in dtypes
        for text in (op.cases if dtype is DType.F32 else _in_halves(op, dtype))
        if not parse_call(text, OPS).is_empty
        for route in op.routes
    ]


def _in_halves(op: Op, dtype: DType) -> Iterator[str]:
    """The op's cases in a 16-bit type of floats."""
    for text in op.cases:
        # Types that a case writes out may not go with this one, or be all it has.
        with contextlib.suppress(VkconvError):
            if parse_call(f"{text},dtype={dtype}", OPS).half is dtype:
                yield f"{text},dtype={dtype}"


def planned_for(real: Device, limits: Device | None) -> Device:
    """The device whose routes and limits are used on a real one."""
    return real if limits is None else emulated(limits, real)


def conform(text: str, route_name: str, device: str | int = "auto", limits: Device | None = None) -> Conformed:
    """Check one case on one of its routes. Raises DeviceError where there is no device."""
    call = parse_call(text, OPS)
    (route,) = (route for route in OPS[call.op].routes if route.name == route_name)
    dtypes = tuple(dict.fromkeys(str(spec.dtype) for spec in call.operands.values() if spec is not None))
    row = Conformed(call.op, text, route.name, dtypes, "refused")
    facts = planned_for(select_device(device)[1], limits)
    verdict = judge(route, call, facts)
    if not verdict.allowed:
        return dataclasses.replace(row, why=verdict.refused_by)
    if not any(call.operands.values()):
        return dataclasses.replace(row, why="it is computed when a graph is planned")
    started = time.perf_counter()
    try:
        # Workgroups beyond a 65,535th are there to be counted right, and take seconds on a CPU.
        once = sum(math.prod(step.groups) for step in route.build(call, facts).steps) > _MOST_WORKGROUPS
        for kind, params in itertools.islice(_ways(text, route, facts), 1 if once else None):
            row = _checked(row, call, kind, params, once, device, limits)
            if row.status == "FAILED":
                break
    except LimitError as error:
        row = dataclasses.replace(row, status="refused", why=" ".join(str(error).split()))
    except VkconvError as error:
        row = dataclasses.replace(row, status="error", why=" ".join(str(error).split()))
    return dataclasses.replace(row, seconds=time.perf_counter() - started)


def _checked(
    row: Conformed, call: Call, kind: Kind, params: Params, once: bool, device: str | int, limits: Device | None
) -> Conformed:
    """The row after one more check of its call, of two replays or of one."""
    wanted, replays = on_route(call, _expected(row.call, kind), row.route), 1 if once or kind == "specials" else 2
    where: Mapping[str, Any] = {"device": device, "limits": limits}
    try:
        ran = run_call(call, wanted.arrays, route=row.route, params=params, replays=replays, **where)
    except LimitError:
        if params:  # one value of one parameter: the route itself fits
            return row
        raise
    checked = hold(call, ran, wanted)
    if row.max_rel is None:
        row = dataclasses.replace(row, max_rel=checked.max_rel, allowed=checked.allowed)
    if checked.ok:
        return dataclasses.replace(row, status="ok")
    told = "with NaN, infinities and zeros: " if kind == "specials" else ""
    told += "".join(f"with {name} = {value}: " for name, value in params.items())
    return dataclasses.replace(
        row, status="FAILED", why=told + checked.problem, pattern=checked.pattern, params=dict(params)
    )


def _ways(text: str, route: Route, facts: Device) -> Iterator[tuple[Kind, Params]]:
    """How a case is checked on a route: as it is planned, with both kinds of inputs; and, for one case of each route,
    with the least and the largest value of each parameter, since other devices and tables choose others; in f32 only,
    whose forms have the same loops, but of routes for f16 alone."""
    call = parse_call(text, OPS)
    yield "normals", {}
    if route.name not in _SPREADS_NON_FINITE:
        yield "specials", {}
    if text != _case_of_extremes(route, call.op, facts):
        return
    planned = route.resolve(call, facts, {})
    for name, values in route.legal(call, facts).items():
        for value in sorted({min(values), max(values)} - {planned[name]}):
            yield "normals", {name: value}


def _case_of_extremes(route: Route, op: str, facts: Device) -> str:
    """The case of a route that has the most outputs, but not so many that it takes long; of routes for f16 alone one in
    that type."""
    for texts in (OPS[op].cases, tuple(_in_halves(OPS[op], DType.F16))):
        calls = {text: parse_call(text, OPS) for text in texts}
        sizes = {text: sum(spec.size for spec in call.outputs.values()) for text, call in calls.items()}
        fitting = [text for text in calls if judge(route, calls[text], facts).allowed]
        if fitting:
            return max(fitting, key=lambda text: sizes[text] * (sizes[text] <= _MOST_OUTPUTS))
    return ""


@functools.lru_cache(maxsize=len(_KINDS))
def _expected(text: str, kind: Kind) -> Expected:
    """The inputs of a case and its reference, which all its routes share."""
    call = parse_call(text, OPS)
    return expect(call, draw(call, _SEED, kind))
