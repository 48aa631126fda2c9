"""A benchmark result as one HTML file that needs nothing else: conditions, roofline, bars and a sortable table."""

import collections
from collections.abc import Iterator

from vkconv.bench.charts import bars, roofline
from vkconv.bench.rows import SCHEMA, Header, Result, board_line, floors_str, result_table
from vkconv.core import counted
from vkconv.pages import Page, Section, whole
from vkconv.table import Column, format_number


def html(result: Result) -> str:
    """The page of a result."""
    plot = roofline(result.rows, result.header.floors)
    roofs = _ROOFLINE if result.header.floors else _MANY_ROOFS if result.header.boards else _NO_ROOFS
    sections = [
        *([Section("Roofline", roofs, plot)] if plot else []),
        *([Section("Times", _BARS, bars(result.rows))] if result.rows else []),
        Section("Rows", _ROWS, sheet=result_table(result).sheet(classes=_classes)),
    ]
    return whole(
        Page(
            f"vkconv bench: {result.header.device}",
            result.header.device,
            tuple(_notices(result)),
            tuple(_conditions(result.header)),
            sections=sections,
            schema=SCHEMA,
        )
    )


_ROOFLINE = (
    "Arithmetic over the bytes that any way to compute the call must move, below what this device was measured to copy "
    "and to multiply-add in f32. Larger points are the best route of their call. Wrong rows are left out."
)
_NO_ROOFS = (
    "Arithmetic over the bytes that any way to compute the call must move. The device's floors were not measured."
)
_MANY_ROOFS = (
    "Arithmetic over the bytes that any way to compute the call must move. Each board has floors of its own, see above."
)
_BARS = "Median GPU time, with a line from the least to the 90th percentile. Each box has a scale of its own."
_ROWS = "Sorted by a click on a heading, or Enter on it. GPU time in microseconds unless a column says otherwise."


# Column names: bold in the best row of each call; no measure of speed in a row whose result is wrong.
KEY_COLUMNS = ("route", "us")
SPEED_COLUMNS = ("us", "us min", "us p90", "us wall", "GFLOP/s", "GB/s", "floor %")


def _notices(result: Result) -> Iterator[tuple[str, bool]]:
    counts = collections.Counter(row.check for row in result.rows)
    calls = len({row.call for row in result.rows})
    if result.header.incomplete:
        yield "Incomplete: interrupted before all rows were measured.", True
    if counts["FAILED"]:
        failed = f"{counts['FAILED']} of {len(result.rows)} rows"
        yield f"{failed} FAILED against the float64 reference.", True
    others = ", ".join(f"{count} {check}" for check, count in counts.most_common())
    yield f"{counted(len(result.rows), 'row')} of {counted(calls, 'call')}: {others or 'nothing measured'}.", False


def _conditions(header: Header) -> Iterator[tuple[str, str]]:
    boards = bool(header.boards)
    conditions = {
        **{board.label: board_line(board).removeprefix(f"{board.label}: ") for board in header.boards},
        "driver": "" if boards else f"{header.driver}, Vulkan {header.vulkan}",
        "versions": ", ".join(f"{name} {version}" for name, version in header.versions.items()),
        "date": header.date,
        "calls": header.calls,
        "options": ", ".join(f"{name} {value}" for name, value in header.options.items() if value is not None),
        "routes": ", ".join(f"{op}={route}" for op, route in header.forced.items()),
        "quirks": "" if boards else ", ".join(header.quirks) or "none",
        "floors": "" if boards else floors_str(header.floors) if header.floors else "not measured",
        "took": f"{format_number(header.elapsed_s, 3)} s" if header.elapsed_s else "",
    }
    yield from ((name, value) for name, value in conditions.items() if value)


def _classes(column: Column) -> str:
    return " ".join(("k " * (column.name in KEY_COLUMNS) + "s " * (column.name in SPEED_COLUMNS)).split())
