"""Tuning: which route with which parameters is fastest for a call on a device, and what the rules lose against that."""

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vkconv.bench.rows import Row
from vkconv.call import Call
from vkconv.combinations import every_setting
from vkconv.core import UsageError, VkconvError
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.plan.measured import (
    EFFORTS,
    Effort,
    Ignored,
    Measured,
    MeasuredCall,
    MeasuredTable,
    ignored_summary,
    kernels_of,
    kernels_of_op,
    usable,
)
from vkconv.program import Program
from vkconv.route import Candidate, Choice, Params, Route, choose, may_take
from vkconv.table import Column, Table
from vkconv.version import VERSION

# Rows of a call on routes with parameters, in order.
Measure = Callable[[Call, Sequence[tuple[str, Params]]], Iterable[Row]]

# With default parameters a route so many times slower than the best one is not tuned further, unless with full effort.
_HOPELESS = 4.0


def tune_call(
    call: Call, device: Device, measure: Measure, effort: Effort = "default", half_sums: bool = False
) -> list[Candidate]:
    """Measure the routes that may take a call, with their parameters: the candidates that were right, fastest first.

    ``measure(call, asked)`` gives the rows of pairs of a route and its parameters; those that are not ok are left out.
    Routes that sum in f16 are tried with ``half_sums`` only.
    """
    able = (r for r in OPS[call.op].routes if may_take(r, call, device))
    routes = {route.name: route for route in able if half_sums or route.f16_depth is None}
    found: list[Candidate] = []

    def attempt(asked: Sequence[tuple[Route, Params]]) -> None:
        named = [(route.name, params) for route, params in asked]
        for (name, params), row in zip(named, measure(call, named), strict=True):
            if row.ok and row.us_median is not None:
                spread_us = row.us_median * (row.us_spread_percent or 0.0) / 100
                found.append(Candidate(name, dict(params), row.us_median, spread_us, kernels_of(call.op, name)))

    attempt([(route, route.resolve(call, device, {})) for route in routes.values()])
    if effort == "quick":
        return _fastest_first(found)
    most_us = math.inf if effort == "full" else _HOPELESS * min((c.us_median for c in found), default=math.inf)
    firsts = {c.route: c for c in found if c.us_median <= most_us}
    tried = {name: settings(routes[name], call, device, full=effort == "full") for name in firsts}
    attempt([(routes[name], params) for name, several in tried.items() for params in several[1:]])
    if effort != "full":
        attempt(
            [
                (routes[name], together)
                for name, first in firsts.items()
                for best in [best_together(first, [c for c in found if c.route == name])]
                for together in [routes[name].changed(call, device, best, {})]
                if _distinct(routes[name], call, device, [*tried[name], together])[len(tried[name]) :]
            ]
        )
    return _fastest_first(found)


def _fastest_first(found: Iterable[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda candidate: candidate.us_median)


def settings(route: Route, call: Call, device: Device, full: bool = False) -> list[dict[str, Any]]:
    """The parameters to try for a route that may take the call, its defaults first: those that differ from them in
    one, or with ``full`` every combination. None makes the same program as another."""
    legal = route.legal(call, device)
    default = route.resolve(call, device, {})
    if full:
        tried = [dict(params) for params in every_setting(route, call, device)]
    else:
        others = [{name: value} for name, values in legal.items() for value in values[1:]]
        tried = [default, *(route.changed(call, device, default, other) for other in others)]
    return _distinct(route, call, device, tried)


def _distinct(route: Route, call: Call, device: Device, tried: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    programs: list[Program] = []
    kept = []
    for params in tried:
        program = route.build(call, device, params)
        if program not in programs:
            programs.append(program)
            kept.append(params)
    return kept


def best_together(default: Candidate, measured: Iterable[Candidate]) -> dict[str, Any]:
    """The value of each parameter that was fastest while the others had their default."""
    best = dict.fromkeys(default.params, default)
    for candidate in measured:
        if candidate.params.keys() != default.params.keys():
            continue  # of another route inside
        differs = [name for name, value in candidate.params.items() if value != default.params[name]]
        if len(differs) == 1 and candidate.us_median < best[differs[0]].us_median:
            best[differs[0]] = candidate
    return {name: candidate.params[name] for name, candidate in best.items()}


def make_table(
    device: Device, measured: Mapping[str, Sequence[Candidate]], effort: Effort = "default", half_sums: bool = False
) -> MeasuredTable:
    """A table of what was measured just now, by call string; calls without a candidate are left out."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return MeasuredTable(
        device_key=device.key,
        device=device.name,
        driver=device.driver,
        vkconv=VERSION,
        date=date,
        rows={
            call: MeasuredCall(
                date, tuple(candidates), effort, half_sums, kernels_of_op(call.partition(":")[0]), VERSION
            )
            for call, candidates in measured.items()
            if candidates
        },
    )


def is_tuned(
    measured: Measured, text: str, call: Call, device: Device, effort: Effort = "default", half_sums: bool = False
) -> bool:
    """Whether a table has a call with at least this effort, all of it with the kernels and parameters of today."""
    row = measured.table.rows.get(text)
    if row is None or row.effort is None or row.half_sums < half_sums:
        return False
    if EFFORTS.index(row.effort) < EFFORTS.index(effort) or row.kernels != kernels_of_op(call.op):
        return False
    return usable(measured, text, call, device)[1].count == 0


@dataclasses.dataclass(frozen=True)
class Change:
    """What tuning a call changes: the choice before, the fastest candidate, and the time of the former if measured."""

    call: str
    before: Choice
    before_us: float | None
    best: Candidate | None

    @property
    def ratio(self) -> float | None:
        """Time before over the best time: 1 where the choice was the fastest already."""
        return self.before_us / self.best.us_median if self.before_us and self.best else None


def change(
    call: Call, device: Device, known: Sequence[Candidate], found: Sequence[Candidate], half_sums: bool = False
) -> Change:
    """The difference between a plan that knew ``known`` of the call, and one that knows what was found now."""
    before = choose(
        OPS[call.op].routes, call, device, measured=lambda one: known if one == call else (), half_sums=half_sums
    )
    return Change(format_call(call, OPS), before, _time_of(before, found), found[0] if found else None)


def _time_of(choice: Choice, candidates: Iterable[Candidate]) -> float | None:
    wanted = (choice.route.name, dict(choice.params))
    return next((c.us_median for c in candidates if (c.route, c.params) == wanted), None)


def changes_table(changes: Sequence[Change]) -> Table:
    """One row per tuned call: how it was planned until now, and the fastest candidate."""
    columns = [
        Column("call"),
        Column("planned until now"),
        Column("by"),
        Column("its time", unit="us"),
        Column("fastest"),
        Column("best time", unit="us"),
        Column("ratio"),
    ]
    rows = [
        (
            c.call,
            str(c.before),
            c.before.by,
            c.before_us,
            str(c.best) if c.best else "none was measured",
            c.best.us_median if c.best else None,
            c.ratio,
        )
        for c in changes
    ]
    return Table("", columns, rows)


@dataclasses.dataclass(frozen=True)
class Regret:
    """What the rules cost for one call of a table: their choice, its time if it was measured, and the best one. With
    ``why`` the call cannot be judged; what is ``ignored`` of its row is not looked at."""

    call: str
    best: Candidate | None = None
    rule: str = ""
    rule_us: float | None = None
    why: str = ""
    ignored: Ignored = dataclasses.field(default_factory=Ignored)

    @property
    def ratio(self) -> float | None:
        """Time of the rule's choice over the best time, 1 or more; None where one of them was not measured."""
        return self.rule_us / self.best.us_median if self.rule_us and self.best else None


def regrets(table: MeasuredTable, device: Device) -> list[Regret]:
    """What each call of a table costs when its route is chosen by the rules alone, the worst first.

    Raises UsageError when the table is of another device than ``device``, whose facts the rules look at.
    """
    if table.device != device.name:
        raise UsageError(
            f"the table is of {table.device}, and the device is {device.name}: give --device with that device or "
            "its device file (vkconv devices --dump writes one)"
        )
    measured = Measured(table)
    rows = [_regret(text, measured, device) for text in table.rows]
    return sorted(rows, key=lambda row: -(row.ratio or 0.0))


def _regret(text: str, measured: Measured, device: Device) -> Regret:
    try:
        call = parse_call(text, OPS)
        candidates, ignored = usable(measured, text, call, device)
        if not candidates:
            return Regret(text, why=f"no row is left: {ignored}", ignored=ignored)
        best = min(candidates, key=lambda candidate: candidate.us_median)
        routes = OPS[call.op].routes
        in_f16 = {route.name for route in routes if route.f16_depth is not None}
        choice = choose(routes, call, device, half_sums=best.route in in_f16)
    except VkconvError as error:
        return Regret(text, why=str(error))
    rule_us = _time_of(choice, candidates)
    return Regret(text, best, str(choice), rule_us, "" if rule_us else "the rule's choice was not measured", ignored)


def geometric_mean(rows: Iterable[Regret]) -> float | None:
    """Of the ratios; None where there is none."""
    logs = [math.log(row.ratio) for row in rows if row.ratio]
    return math.exp(sum(logs) / len(logs)) if logs else None


def regret_report(table: MeasuredTable, device: Device) -> tuple[Table, dict[str, Any]]:
    """`regrets` as a table for people, with the geometric mean, the worst one and what is ignored in its title, and as
    JSON data."""
    rows = regrets(table, device)
    ignored = {row.call: row.ignored for row in rows if row.ignored.count}
    judged, mean = [row for row in rows if row.ratio], geometric_mean(rows)
    summary = f"{len(judged)} of {len(rows)} calls judged"
    if mean is not None:
        summary += f": rules take {mean:.3f}x the best time (geometric mean), at worst {judged[0].ratio:.3f}x"
    summary = "; ".join(filter(None, (summary, ignored_summary(ignored))))
    columns = [
        Column("call"),
        Column("rule"),
        Column("rule's time", unit="us"),
        Column("best"),
        Column("best time", unit="us"),
        Column("ratio"),
        Column("note"),
    ]
    cells = [
        (r.call, r.rule, r.rule_us, str(r.best or ""), r.best.us_median if r.best else None, r.ratio, _note(r))
        for r in rows
    ]
    data = {
        "schema": "vkconv.regret/1",
        "device": table.device,
        "driver": table.driver,
        "calls": len(rows),
        "judged": len(judged),
        "geometric_mean": mean,
        "worst": judged[0].ratio if judged else None,
        "ignored": sum(one.count for one in ignored.values()),
        "rows": [
            {
                "call": r.call,
                "rule": r.rule,
                "rule_us": r.rule_us,
                "best": str(r.best) if r.best else None,
                "best_us": r.best.us_median if r.best else None,
                "ratio": r.ratio,
                "why": r.why,
                "ignored": dataclasses.asdict(r.ignored) if r.ignored.count else None,
            }
            for r in rows
        ],
    }
    return Table(f"{table.device}, driver {table.driver}: {summary}", columns, cells), data


def _note(row: Regret) -> str:
    ignored = f"ignored: {row.ignored}" if row.ignored.count and row.best else ""
    return "; ".join(filter(None, (row.why, ignored)))
