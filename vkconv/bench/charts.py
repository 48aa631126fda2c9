"""Charts of a benchmark result as inline SVG: a roofline plot, and the routes of each call as bars."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vkconv.bench.rows import Floors, Row, params_str
from vkconv.pages import LogAxis, render
from vkconv.table import format_number

COLOURS = 8
"""How many routes have a colour of their own, the classes c0 to c7; the others share c8."""

_WIDTH, _HEIGHT = 1280, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 20, 16, 48
_SLOPE_LABEL = 150  # the least length of a line with the copy bandwidth written on it
_MIN_BAR_PERCENT = 0.4


def route_colours(rows: Sequence[Row]) -> dict[str, int]:
    """A colour class for each route, the most frequent routes first."""
    counts: dict[str, int] = {}
    for row in rows:
        if row.route:
            counts[row.route] = counts.get(row.route, 0) + 1
    ordered = sorted(counts, key=lambda route: -counts[route])
    return {route: min(i, COLOURS) for i, route in enumerate(ordered)}


def roofline(rows: Sequence[Row], floors: Floors | None) -> str:
    """GFLOP/s over FLOP per compulsory byte, both logarithmic, below the measured roofs; "" where no row has both.

    A point is a right row, links to the table's row ``#r<index>`` and says all about it in a tooltip. A wrong row
    is no point, however fast it was.
    """
    points = [
        (i, row, row.intensity, row.gflops)
        for i, row in enumerate(rows)
        if row.ok and row.intensity and row.gflops and row.us_median
    ]
    if not points:
        return ""
    xs = [x for _, _, x, _ in points] + ([floors.fma_gflops / floors.copy_gbps] if floors else [])
    ys = [y for _, _, _, y in points] + ([floors.fma_gflops] if floors else [])
    across = LogAxis(min(xs) / 1.8, max(xs) * 1.8, _LEFT, _WIDTH - _RIGHT)
    up = LogAxis(min(ys) / 1.8, max(ys) * 1.8, _HEIGHT - _BOTTOM, _TOP)
    colours = route_colours([row for _, row, _, _ in points])
    marks = [
        {
            "row": i,
            "colour": colours.get(row.route, COLOURS),
            "best": row.best,
            "x": f"{across(x):.1f}",
            "y": f"{up(y):.1f}",
            "tip": _tip(row, x),
        }
        for i, row, x, y in points
    ]
    return render(
        "roofline.svg.j2",
        width=_WIDTH,
        height=_HEIGHT,
        across=across,
        up=up,
        middle=((across.start + across.end) / 2, (up.start + up.end) / 2),
        roofs=_roofs(across, up, floors) if floors else None,
        marks=marks,
        legend=_legend(colours),
    )


def _tip(row: Row, intensity: float) -> str:
    parts = [
        _call_name(row),
        f"{row.route} {params_str(row.params)}".strip() + (" (best)" if row.best else ""),
        f"{format_number(row.us_median or 0)} µs, {format_number(row.gflops or 0)} GFLOP/s, "
        f"{format_number(row.gbps or 0)} GB/s, {format_number(intensity)} FLOP/byte",
        f"{format_number(row.percent_of_floor, 3)} % of the floor" if row.percent_of_floor is not None else "",
    ]
    return "\n".join(filter(None, parts))


def _roofs(across: LogAxis, up: LogAxis, floors: Floors) -> dict[str, str]:
    """Copy bandwidth up to the ridge, then the multiply-add rate; what the device was measured to reach at most."""
    ridge = floors.fma_gflops / floors.copy_gbps
    slope_start = max(across.low, up.low / floors.copy_gbps)
    corners = [
        (across(slope_start), up(slope_start * floors.copy_gbps)),
        (across(ridge), up(floors.fma_gflops)),
        (across.end, up(floors.fma_gflops)),
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    (x0, y0), (x1, y1), _ = corners
    degrees = math.degrees(math.atan2(y1 - y0, x1 - x0))
    steep = math.hypot(x1 - x0, y1 - y0)
    return {
        "points": path,
        "transform": f"translate({(x0 + x1) / 2:.1f} {(y0 + y1) / 2:.1f}) rotate({degrees:.1f})",
        "slope": f"copy {format_number(floors.copy_gbps, 3)} GB/s" if steep > _SLOPE_LABEL else "",
        "fma": f"f32 FMA {format_number(floors.fma_gflops, 3)} GFLOP/s",
        "x": f"{across.end - 4:.1f}",
        "y": f"{y1 - 7:.1f}",
    }


def _legend(colours: Mapping[str, int]) -> list[tuple[str, int]]:
    named = [(route, colour) for route, colour in colours.items() if colour < COLOURS]
    rest = len(colours) - len(named)
    return [*named, *([(f"{rest} more", COLOURS)] if rest else [])]


def bars(rows: Sequence[Row]) -> str:
    """Times as bars: for each call with several rows one scale of its own, for the other calls one for all of them."""
    by_call = itertools.groupby(sorted(enumerate(rows), key=_first_seen(rows)), key=lambda item: item[1].call)
    groups = [(call, list(members)) for call, members in by_call]
    singles = [member for _, members in groups if len(members) == 1 for member in members]
    several = [(call, members) for call, members in groups if len(members) > 1]
    parts = [_bar_group(call, members, _route_name) for call, members in several]
    if singles:
        title = "calls with one row" if several else ""
        parts.append(_bar_group(title, singles, _call_name))
    return render("bars.html.j2", groups=parts) if parts else ""


def _first_seen(rows: Sequence[Row]) -> Callable[[tuple[int, Row]], int]:
    order: dict[str, int] = {}
    for row in rows:
        order.setdefault(row.call, len(order))
    return lambda item: order[item[1].call]


def _call_name(row: Row) -> str:
    return f"{row.device}: {row.call}" if row.device else row.call


def _route_name(row: Row) -> str:
    chosen = "(the planner's choice)" if row.chosen else ""
    device = f"{row.device}:" if row.device else ""
    return " ".join(filter(None, (device, row.route or "-", params_str(row.params), chosen)))


def _bar_group(title: str, members: Sequence[tuple[int, Row]], name: Callable[[Row], str]) -> dict[str, Any]:
    longest_us = max((row.us_p90 or row.us_median or 0.0 for _, row in members if row.ok), default=0.0)
    lines = [
        {
            "row": i,
            "name": name(row),
            "best": row.best,
            "failed": row.check == "FAILED",
            "outcome": _outcome(row),
            **_bar(row, longest_us),
        }
        for i, row in members
    ]
    return {"title": title, "bars": lines}


def _bar(row: Row, longest_us: float) -> dict[str, Any]:
    """The median, with a line from the least to the 90th percentile; nothing for a row that is not right."""
    if not row.ok or row.us_median is None:
        return {"width": "", "span": ()}
    span: tuple[str, ...] = ()
    if row.us_min is not None and row.us_p90 is not None:
        span = (f"{100 * row.us_min / longest_us:.2f}", f"{100 * row.us_p90 / longest_us:.2f}")
    return {"width": f"{max(_MIN_BAR_PERCENT, 100 * row.us_median / longest_us):.2f}", "span": span}


def _outcome(row: Row) -> str:
    if row.check != "ok":
        return f"{row.check}: {row.why}" if row.why else row.check
    if row.us_median is None:
        return "not measured"
    rate = f" · {format_number(row.gflops, 3)} GFLOP/s" if row.gflops else ""
    return f"{format_number(row.us_median)} µs{rate}"
