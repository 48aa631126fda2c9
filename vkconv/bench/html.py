"""A benchmark result as one HTML file that needs nothing else: conditions, roofline, bars and a sortable table."""

import base64
import collections
import hashlib
from collections.abc import Iterator
from pathlib import Path

from vkconv.bench.charts import bars, breakable, roofline
from vkconv.bench.rows import SCHEMA, Header, Result, Row, board_line, floors_str, result_table
from vkconv.table import escape_html, format_cell, format_number
from vkconv.version import VERSION

_ASSETS = Path(__file__).parent / "assets"


def html(result: Result) -> str:
    """The page of a result: no request to anywhere, and no script but its own, by content security policy."""
    style, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = f"vkconv bench: {escape_html(result.header.device)}"
    plot = roofline(result.rows, result.header.floors)
    roofs = _ROOFLINE if result.header.floors else _MANY_ROOFS if result.header.boards else _NO_ROOFS
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style></head>
<body>
<header><h1>{escape_html(result.header.device)}</h1>
{"".join(_notices(result))}<dl>{"".join(_conditions(result.header))}</dl></header>
<main>
{_section("Roofline", roofs, plot) if plot else ""}
{_section("Times", _BARS, bars(result.rows)) if result.rows else ""}
{_section("Rows", _ROWS, _table(result))}
</main>
<footer>vkconv {escape_html(VERSION)}, {escape_html(SCHEMA)}</footer>
<script>{script}</script>
</body></html>
"""


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


def _section(title: str, text: str, content: str) -> str:
    return f'<section id="{title.lower()}"><h2>{title}</h2><p class="help">{text}</p>{content}</section>'


def _notices(result: Result) -> Iterator[str]:
    counts = collections.Counter(row.check for row in result.rows)
    calls = len({row.call for row in result.rows})
    if result.header.incomplete:
        yield '<p class="notice bad">Incomplete: interrupted before all rows were measured.</p>'
    if counts["FAILED"]:
        failed = f"{counts['FAILED']} of {len(result.rows)} rows"
        yield f'<p class="notice bad">{failed} FAILED against the float64 reference.</p>'
    others = ", ".join(f"{count} {check}" for check, count in counts.most_common())
    yield f'<p class="notice">{len(result.rows)} rows of {calls} calls: {others or "nothing measured"}.</p>'


def _conditions(header: Header) -> Iterator[str]:
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
    for name, value in conditions.items():
        if value:
            yield f"<div><dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd></div>"


def _table(result: Result) -> str:
    """The columns are those of every other form of the result; each row has an id, its index."""
    table = result_table(result)
    classes = [
        "".join(("n " * (align == "right"), "k " * (column.name in KEY_COLUMNS), "s " * (column.name in SPEED_COLUMNS)))
        for column, align in zip(table.columns, table.aligns, strict=True)
    ]
    heads = "".join(
        f'<th scope="col"{_class(c)}><button type="button">{breakable(column.heading)}</button></th>'
        for column, c in zip(table.columns, classes, strict=True)
    )
    lines = []
    for i, (row, cells) in enumerate(zip(result.rows, table.cells, strict=True)):
        texts = (format_cell(value, column.digits) for value, column in zip(cells, table.columns, strict=True))
        data = "".join(f"<td{_class(c)}>{breakable(text)}</td>" for text, c in zip(texts, classes, strict=True))
        lines.append(f'<tr id="r{i}"{_class(_standing(row))}>{data}</tr>')
    body = "\n".join(lines)
    return (
        '<p class="filter"><label>Filter <input type="search" placeholder="conv2d 3x3 …"></label> <output></output></p>'
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _standing(row: Row) -> str:
    if row.check == "FAILED":
        return "failed"
    if not row.ok:
        return "unmeasured"
    return "best" if row.best else ""


def _class(names: str) -> str:
    return f' class="{names.strip()}"' if names else ""
