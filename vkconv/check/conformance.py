"""A whole device held to the references: every case of every op, on every route that may take it."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from vkconv.backend.runtime import select_device
from vkconv.check.calls import Expected, expect, hold, run_call
from vkconv.check.inputs import Kind, draw
from vkconv.core import LimitError, UsageError, VkconvError, did_you_mean
from vkconv.device import Device
from vkconv.device.emulate import emulated
from vkconv.ops import OPS
from vkconv.ops.calls import parse_call
from vkconv.route import judge
from vkconv.table import Column, Table

SCHEMA = "vkconv.conformance/1"
Status = Literal["ok", "FAILED", "refused", "error"]
Case = tuple[str, str]
"""A call and one of its op's routes, as texts."""
_KINDS: tuple[Kind, ...] = ("normals", "specials")
_SEED = 7
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

    def command(self, more: str = "") -> str:
        """What to type to see it alone."""
        return f"vkconv check {self.call} --route {self.op}={self.route}{more}"


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
    seen: Callable[[Conformed, int, int], None] = lambda row, done, count: None,
) -> Conformance:
    """Check every case of every op (or of ``ops``) on every route that the device may be given, or that ``limits``,
    another device, would be. ``seen`` is called after each with how many are done and how many there are.

    Raises UsageError for an op that does not exist, DeviceError where there is no device or it is lost.
    """
    work = cases(ops)
    real = select_device(device)[1]
    started = time.perf_counter()
    rows = []
    for done, (text, route) in enumerate(work, 1):
        rows.append(conform(text, route, device, limits))
        seen(rows[-1], done, len(work))
    return Conformance(planned_for(real, limits), tuple(rows), time.perf_counter() - started)


def cases(ops: Sequence[str] = ()) -> list[Case]:
    """Every case of these ops (all, without any) with each of their routes, all routes of a case together. Raises
    UsageError for an op that does not exist."""
    for name in ops:
        if name not in OPS:
            raise UsageError(f"there is no op {name!r}{did_you_mean(name, OPS)}; vkconv ops lists them")
    return [
        (text, route.name)
        for op in OPS.values()
        if not ops or op.name in ops
        for text in op.cases
        if not parse_call(text, OPS).is_empty
        for route in op.routes
    ]


def planned_for(real: Device, limits: Device | None) -> Device:
    """The device whose routes and limits are used on a real one."""
    return real if limits is None else emulated(limits, real)


def conform(text: str, route_name: str, device: str | int = "auto", limits: Device | None = None) -> Conformed:
    """Check one case on one of its routes. Raises DeviceError where there is no device."""
    call = parse_call(text, OPS)
    (route,) = (route for route in OPS[call.op].routes if route.name == route_name)
    dtypes = tuple(dict.fromkeys(str(spec.dtype) for spec in call.operands.values() if spec is not None))
    row = Conformed(call.op, text, route.name, dtypes, "refused")
    verdict = judge(route, call, planned_for(select_device(device)[1], limits))
    if not verdict.allowed:
        return dataclasses.replace(row, why=verdict.refused_by)
    started = time.perf_counter()
    try:
        for kind in _KINDS:
            if kind == "specials" and route.name in _SPREADS_NON_FINITE:
                continue
            wanted = _expected(text, kind)
            replays = 2 if kind == "normals" else 1
            ran = run_call(call, wanted.arrays, device=device, route=route.name, limits=limits, replays=replays)
            checked = hold(call, ran, wanted)
            if row.max_rel is None:
                row = dataclasses.replace(row, max_rel=checked.max_rel, allowed=checked.allowed)
            row = dataclasses.replace(row, status="ok")
            if not checked.ok:
                why = checked.problem if kind == "normals" else f"with NaN, infinities and zeros: {checked.problem}"
                row = dataclasses.replace(row, status="FAILED", why=why, pattern=checked.pattern)
                break
    except LimitError as error:
        row = dataclasses.replace(row, status="refused", why=" ".join(str(error).split()))
    except VkconvError as error:
        row = dataclasses.replace(row, status="error", why=" ".join(str(error).split()))
    return dataclasses.replace(row, seconds=time.perf_counter() - started)


@functools.lru_cache(maxsize=len(_KINDS))
def _expected(text: str, kind: Kind) -> Expected:
    """The inputs of a case and its reference, which all its routes share."""
    call = parse_call(text, OPS)
    return expect(call, draw(call, _SEED, kind))
