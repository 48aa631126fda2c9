"""What the checks of a device come to: tables, which routes ran in which element forms, and why others did not."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from vkconv.cases import stamped
from vkconv.check.conformance import (
    AT_PLANNING,
    PACKED,
    Check,
    Conformed,
    Path,
    call_of,
    refusal,
    steps,
    with_packed_storage,
)
from vkconv.core import FLOAT_TYPES
from vkconv.device import Device, load_device
from vkconv.device.files import shipped_devices
from vkconv.table import Column, Standing, Table

SCHEMA = "vkconv.conformance/1"
Reason = Literal["not run here", "no case reaches it", "computed when a graph is planned", "not checked"]


@dataclasses.dataclass(frozen=True)
class Missed:
    """A route that did not run in one element form, why, the requirement that most often refused it, and how many of
    its cases there are."""

    op: str
    route: str
    form: str
    reason: Reason
    requirement: str
    cases: int


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The (op, route) and (op, route, element form) that ran, and those that did not."""

    ran: tuple[tuple[str, str, str], ...]
    missed: tuple[Missed, ...]

    @property
    def routes(self) -> tuple[int, int]:
        """How many routes ran in any element form, of how many."""
        ran = {(op, route) for op, route, _ in self.ran}
        return len(ran), len(ran | {(missed.op, missed.route) for missed in self.missed})

    @property
    def forms(self) -> tuple[int, int]:
        """How many routes times element forms ran, of how many."""
        return len(self.ran), len(self.ran) + len(self.missed)

    @property
    def _told(self) -> list[Missed]:
        """Those that more time would not change: a run that was stopped leaves too many to list."""
        return [missed for missed in self.missed if missed.reason != "not checked"]

    def grouped(self) -> list[tuple[Reason, str, dict[str, list[Missed]]]]:
        """What did not run, by reason and requirement, then by ``op:route``."""
        groups: dict[tuple[Reason, str], dict[str, list[Missed]]] = {}
        for missed in self._told:
            routes = groups.setdefault((missed.reason, missed.requirement), {})
            routes.setdefault(f"{missed.op}:{missed.route}", []).append(missed)
        return [(reason, requirement, routes) for (reason, requirement), routes in groups.items()]

    def summary(self) -> str:
        """Both counts, and which routes did not run in any form, by why not."""
        (routes, of_routes), (forms, of_forms) = self.routes, self.forms
        said = [f"routes: {routes:,} of {of_routes:,} run, in {forms:,} of {of_forms:,} element forms"]
        ran = {f"{op}:{route}" for op, route, _ in self.ran}
        by_reason: dict[str, dict[str, None]] = {}
        for missed in self._told:
            name = f"{missed.op}:{missed.route}"
            told = f"{name} in {missed.form}" if name in ran else name
            by_reason.setdefault(missed.reason, {})[told] = None
        return "; ".join(said + [f"{reason}: {', '.join(names)}" for reason, names in by_reason.items()])

    def table(self) -> Table:
        """One row for each route and requirement."""
        cells = [
            (name, ", ".join(m.form for m in missed), reason, requirement, sum(m.cases for m in missed))
            for reason, requirement, routes in self.grouped()
            for name, missed in routes.items()
        ]
        return Table("", [Column(n) for n in ("route", "element forms", "why", "requirement", "cases")], cells)

    def data(self) -> dict[str, Any]:
        """All of it as JSON data."""
        (routes, of_routes), (forms, of_forms) = self.routes, self.forms
        return {
            "routes": of_routes,
            "routes_run": routes,
            "forms": of_forms,
            "forms_run": forms,
            "not_run": [dataclasses.asdict(missed) for missed in self.missed],
        }


@dataclasses.dataclass(frozen=True)
class Conformance:
    """The checks of one device, planned for as ``facts``, in their order; rows of those that were done; ``seconds`` is
    what it took, ``stopped`` says why there are no more rows where some are missing."""

    facts: Device
    checks: Sequence[Check]
    rows: Sequence[Conformed]
    seconds: float
    stopped: str = ""

    @functools.cached_property
    def failed(self) -> tuple[Conformed, ...]:
        return tuple(row for row in self.rows if row.status in ("FAILED", "error"))

    @property
    def float_forms(self) -> list[str]:
        """The element forms of floats alone among the checks."""
        forms = dict.fromkeys(check.form for check in self.checks)
        return [form for form in forms if form.removesuffix(PACKED) in FLOAT_TYPES]

    @property
    def values(self) -> int:
        """How many values of parameters are checked that are not planned for their calls."""
        return sum(bool(check.params) for check in self.checks)

    @functools.cached_property
    def coverage(self) -> Coverage:
        """Which routes ran in which element forms. A form that a route is not made for is not counted."""
        rows = {(row.call, row.route, row.form): row for row in self.rows if not row.params}
        groups: dict[tuple[str, str, str], list[tuple[Check, Conformed | None]]] = {}
        for check in self.checks:
            row = rows.get((check.text, check.route, check.form))
            for route in check.covers or (check.route,):
                groups.setdefault((check.op, route, check.form), []).append((check, row))
        ran = {key for key, group in groups.items() if any(row and row.status != "refused" for _, row in group)}
        missed = (_missed(key, group) for key, group in groups.items() if key not in ran)
        return Coverage(tuple(key for key in groups if key in ran), tuple(filter(None, missed)))

    def ops(self) -> Table:
        """One row per op: cases, routes, checks and how they ended, element forms."""
        by_op: dict[str, list[Conformed]] = {}
        for row in self.rows:
            by_op.setdefault(row.op, []).append(row)
        cells = []
        for op, mine in by_op.items():
            ran = [row for row in mine if row.status != "refused"]
            cells.append(
                (
                    op,
                    len({row.call for row in mine}),
                    f"{len({row.route for row in ran})} of {len({row.route for row in mine})}",
                    len(ran),
                    sum(row.status == "ok" for row in mine),
                    sum(row.status in ("FAILED", "error") for row in mine),
                    len(mine) - len(ran),
                    ", ".join(dict.fromkeys(row.form for row in ran)),
                    max((row.max_rel / row.allowed for row in ran if row.max_rel and row.allowed), default=None),
                )
            )
        columns = [
            Column(name) for name in ("op", "cases", "routes run", "checks", "ok", "failed", "refused", "element forms")
        ]
        standings: list[Standing] = ["failed" if cell[5] else "" for cell in cells]
        return Table("", [*columns, Column("worst of allowed", digits=2)], cells, standings)

    def failures(self) -> Table:
        """Every check that failed, with what is wrong, where, and the command that repeats it."""
        cells = [(row.call, row.route, row.form, row.status, row.why, row.pattern) for row in self.failed]
        names = ("call", "route", "element form", "status", "what", "where")
        return Table("", [Column(name) for name in names], cells, ["failed"] * len(cells))

    def refusals(self) -> Table:
        """Routes that the device may not be given, by the need that refuses them: how many cases."""
        refused = (row for row in self.rows if row.status == "refused" and not row.params)
        counts = Counter((row.op, row.route, row.why) for row in refused)
        cells = [(op, route, count, why) for (op, route, why), count in counts.items()]
        return Table("", [Column(name) for name in ("op", "route", "cases", "refused by")], cells)

    def summary(self) -> str:
        """The result in a line."""
        count = sum(row.status != "refused" for row in self.rows)
        ran = f"{count:,}"
        verdict = f"{len(self.failed)} FAILED" if self.failed else "all right" if count else "nothing was checked"
        of = f"of {len({row.op for row in self.rows})} ops in {self.seconds:.0f} s: {verdict}"
        if not self.stopped:
            return f"{ran} checks {of}"
        return f"INCOMPLETE, {self.stopped} after {len(self.rows):,} of {len(self.checks):,} checks; {ran} ran, {of}"

    def data(self) -> dict[str, Any]:
        """All of it as JSON data."""
        data = {
            "schema": SCHEMA,
            "device": {
                "name": self.facts.name,
                "driver": self.facts.driver,
                "vulkan": self.facts.api_version,
                "key": self.facts.key,
                "quirks": [quirk.id for quirk in self.facts.quirks],
            },
            "seconds": self.seconds,
            "incomplete": bool(self.stopped),
            "stopped": self.stopped,
            "checks": len(self.checks),
            "failed": len(self.failed),
            "coverage": self.coverage.data(),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }
        return stamped(data)


# ---- why a route did not run


def _missed(key: tuple[str, str, str], group: Sequence[tuple[Check, Conformed | None]]) -> Missed | None:
    """Why none of these checks of one route in one element form ran; None where the route is not made for it."""
    op, route, form = key
    made_for = [(check, row) for check, row in group if not _refused_by_type(check.path, check.text)]

    def missed(reason: Reason, of: Sequence[Conformed]) -> Missed:
        requirement = Counter(row.why for row in of).most_common(1)[0][0] if of else ""
        return Missed(op, route, form, reason, requirement, len(made_for))

    here = [row for _, row in made_for if row is not None]
    if not made_for:
        return None
    if len(here) < len(made_for):
        return missed("not checked", [])
    if any(row.why == AT_PLANNING for row in here):
        return missed("computed when a graph is planned", [])
    packed = PACKED in form
    if elsewhere := [row for check, row in made_for if row and _is_taken_elsewhere(check.path, check.text, packed)]:
        return missed("not run here", elsewhere)
    # What no device takes in packed storage is told of native storage, or needs that.
    return None if packed else missed("no case reaches it", here)


# Results that are saved while there are more to come ask again.
@functools.lru_cache(maxsize=1 << 14)
def _refused_by_type(path: Path, text: str) -> bool:
    """Whether what a route is made for leaves out the call's floats: a need that speaks of 16-bit floats refuses."""
    device = _shipped()[0][0]
    return any(
        need.halves is not None and not need.test(one, device)
        for route, one in steps(path, call_of(text), device)
        for need in route.must
    )


@functools.lru_cache(maxsize=1 << 14)
def _is_taken_elsewhere(path: Path, text: str, packed: bool) -> bool:
    """Whether a shipped device may be given it."""
    return any(not refusal(path, call_of(text), pair[packed]) for pair in _shipped())


@functools.cache
def _shipped() -> tuple[tuple[Device, Device], ...]:
    """Every shipped device, as it is and with packed storage."""
    return tuple((device, with_packed_storage(device)) for device in map(load_device, shipped_devices()))
