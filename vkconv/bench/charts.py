"""Charts of a benchmark result as inline SVG: a roofline plot, and the routes of each call as bars."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence

from vkconv.bench.rows import Floors, Row, params_str
from vkconv.table import escape_html, format_number

COLOURS = 8
"""How many routes have a colour of their own, the classes c0 to c7; the others share c8."""

_WIDTH, _HEIGHT = 1280, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 20, 16, 48
_SLOPE_LABEL = 150  # the least length of a line with the copy bandwidth written on it
_MIN_BAR_PERCENT = 0.4
_BREAKS = re.compile("[,:_](?=.)")


@dataclasses.dataclass(frozen=True)
class _LogAxis:
    """Values from ``low`` to ``high`` on pixels from ``start`` to ``end``, logarithmically."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Powers of ten inside, with 2 and 5 times them where there are few."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if len(powers) <= 4 else (1,)
        values = (step * 10.0**power for power in powers for step in steps)
        return [v for v in values if self.low <= v <= self.high]


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
    across = _LogAxis(min(xs) / 1.8, max(xs) * 1.8, _LEFT, _WIDTH - _RIGHT)
    up = _LogAxis(min(ys) / 1.8, max(ys) * 1.8, _HEIGHT - _BOTTOM, _TOP)
    colours = route_colours([row for _, row, _, _ in points])
    marks = [
        f'<a href="#r{i}"><circle class="point c{colours.get(row.route, COLOURS)}{" best" if row.best else ""}" '
        f'cx="{across(x):.1f}" cy="{up(y):.1f}" r="{6 if row.best else 4.5}"><title>{_tip(row, x)}</title></circle></a>'
        for i, row, x, y in points
    ]
    roofs = _roofs(across, up, floors) if floors else ""
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Roofline plot"'
    drawn = f'<svg class="roofline" {box}>{_grid(across, up)}{roofs}{"".join(marks)}</svg>'
    return f'<div class="plot">{drawn}</div>{_legend(colours)}'


def _tip(row: Row, intensity: float) -> str:
    parts = [
        _call_name(row),
        f"{row.route} {params_str(row.params)}".strip() + (" (best)" if row.best else ""),
        f"{format_number(row.us_median or 0)} µs, {format_number(row.gflops or 0)} GFLOP/s, "
        f"{format_number(row.gbps or 0)} GB/s, {format_number(intensity)} FLOP/byte",
        f"{format_number(row.percent_of_floor, 3)} % of the floor" if row.percent_of_floor is not None else "",
    ]
    return escape_html("\n".join(filter(None, parts)))


def _grid(across: _LogAxis, up: _LogAxis) -> str:
    lines = []
    for value in across.ticks():
        x = f"{across(value):.1f}"
        lines.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{up.start}" y2="{up.end}"/>')
        lines.append(f'<text class="tick" x="{x}" y="{up.start + 17}" text-anchor="middle">{value:,g}</text>')
    for value in up.ticks():
        y = f"{up(value):.1f}"
        lines.append(f'<line class="grid" x1="{across.start}" x2="{across.end}" y1="{y}" y2="{y}"/>')
        lines.append(
            f'<text class="tick" x="{across.start - 8}" y="{y}" dy=".35em" text-anchor="end">{value:,g}</text>'
        )
    middle_x, middle_y = (across.start + across.end) / 2, (up.start + up.end) / 2
    lines.append(
        f'<text class="label" x="{middle_x}" y="{_HEIGHT - 8}" text-anchor="middle">intensity [FLOP/byte]</text>'
        f'<text class="label" transform="translate(18 {middle_y}) rotate(-90)" text-anchor="middle">GFLOP/s</text>'
    )
    return "".join(lines)


def _roofs(across: _LogAxis, up: _LogAxis, floors: Floors) -> str:
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
    middle = f"translate({(x0 + x1) / 2:.1f} {(y0 + y1) / 2:.1f}) rotate({degrees:.1f})"
    copy = f"copy {format_number(floors.copy_gbps, 3)} GB/s"
    fma = f"f32 FMA {format_number(floors.fma_gflops, 3)} GFLOP/s"
    slope_label = f'<text class="roofname" transform="{middle}" dy="-7" text-anchor="middle">{copy}</text>'
    return (
        f'<polyline class="roof" points="{path}"/>'
        f"{slope_label if math.hypot(x1 - x0, y1 - y0) > _SLOPE_LABEL else ''}"
        f'<text class="roofname" x="{across.end - 4:.1f}" y="{y1 - 7:.1f}" text-anchor="end">{fma}</text>'
    )


def _legend(colours: Mapping[str, int]) -> str:
    named = [(route, colour) for route, colour in colours.items() if colour < COLOURS]
    rest = len(colours) - len(named)
    entries = [*named, *([(f"{rest} more", COLOURS)] if rest else [])]
    keys = (
        f'<li><svg class="key"><circle class="c{c}" cx="6" cy="6" r="5"/></svg>{escape_html(r)}</li>'
        for r, c in entries
    )
    return f'<ul class="legend">{"".join(keys)}</ul>'


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
    return "".join(parts)


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


def _bar_group(title: str, members: Sequence[tuple[int, Row]], name: Callable[[Row], str]) -> str:
    longest_us = max((row.us_p90 or row.us_median or 0.0 for _, row in members if row.ok), default=0.0)
    lines = []
    for i, row in members:
        classes = "bar" + " best" * row.best + " failed" * (row.check == "FAILED")
        lines.append(
            f'<div class="{classes}"><a href="#r{i}">{breakable(name(row))}</a>'
            f"{_bar(row, longest_us)}<span>{_outcome(row)}</span></div>"
        )
    heading = f"<h3>{breakable(title)}</h3>" if title else ""
    return f'<div class="bars">{heading}{"".join(lines)}</div>'


def _bar(row: Row, longest_us: float) -> str:
    """The median, with a line from the least to the 90th percentile; nothing for a row that is not right."""
    if not row.ok or row.us_median is None:
        return "<i></i>"
    width = max(_MIN_BAR_PERCENT, 100 * row.us_median / longest_us)
    span = ""
    if row.us_min is not None and row.us_p90 is not None:
        low, high = 100 * row.us_min / longest_us, 100 * row.us_p90 / longest_us
        span = f'<line x1="{low:.2f}%" x2="{high:.2f}%" y1="7" y2="7"/>'
    return f'<svg><rect width="{width:.2f}%" height="14" rx="2"/>{span}</svg>'


def _outcome(row: Row) -> str:
    if row.check != "ok":
        return escape_html(f"{row.check}: {row.why}" if row.why else row.check)
    if row.us_median is None:
        return "not measured"
    rate = f" · {format_number(row.gflops, 3)} GFLOP/s" if row.gflops else ""
    return f"{format_number(row.us_median)} µs{rate}"


def breakable(text: str) -> str:
    """Escaped text that may break after a comma, a colon or an underscore."""
    return _BREAKS.sub(r"\g<0><wbr>", escape_html(text))
