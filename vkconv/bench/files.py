"""Files of benchmark results: JSON, CSV, Markdown, HTML and JUnit's XML by their suffix, of which JSON is read back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from vkconv.bench.html import html
from vkconv.bench.rows import SCHEMA, Result, Row, header_lines, params_str, result_table
from vkconv.cases import Case, Outcome, to_junit
from vkconv.core import ModelError, UsageError, atomic_write, did_you_mean, is_stream
from vkconv.files import read_result_bytes
from vkconv.route import label
from vkconv.table import Column, Table, markdown


def check_targets(paths: Iterable[Path]) -> None:
    """UsageError for a file whose suffix names no format, or that is there twice. Streams without one get JSON."""
    seen: set[Path] = set()
    for path in paths:
        if path.suffix not in _FORMATS and not is_stream(path):
            known = ", ".join(_FORMATS)
            raise UsageError(f"-o {path}: no format for {path.suffix!r}{did_you_mean(path.suffix, _FORMATS)}; {known}")
        if path in seen:
            raise UsageError(f"-o {path}: the file is there twice")
        seen.add(path)


def write_result(result: Result, paths: Sequence[Path]) -> None:
    """Write a result to files of the formats their suffixes name, each whole or not at all."""
    check_targets(paths)
    for path in paths:
        text = _FORMATS.get(path.suffix, _json)(result)
        with atomic_write(path) as file:
            file.write(text.encode())


def read_result(path: Path) -> Result:
    """A result from its JSON file. Raises ModelError naming the file and the place in it."""
    data = read_result_bytes(path)
    try:
        return msgspec.json.decode(data, type=Result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path} is no result of vkconv bench ({SCHEMA}): {error}") from None


def _json(result: Result) -> str:
    return msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n"


def _csv(result: Result) -> str:
    """A line for each row: the conditions that it was measured in, then its fields under their own names."""
    head = result.header
    boards = {board.label: (board.device, board.driver) for board in head.boards}
    names = [name for name in Row.__struct_fields__ if name not in ("device", "us_samples")]
    columns = [Column(name) for name in ("device", "driver", "vkconv", "date", *(["board"] if boards else []), *names)]
    cells = []
    for row in result.rows:
        device, driver = boards.get(row.device, (head.device, head.driver))
        where = (device, driver, head.versions.get("vkconv", ""), head.date, *([row.device] if boards else []))
        cells.append((*where, *(_plain(getattr(row, name)) for name in names)))
    return Table("", columns, cells).to_csv()


def _plain(value: object) -> object:
    """A field as one cell."""
    if isinstance(value, dict):
        return params_str(value)
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return int(value) if isinstance(value, bool) else value


def _markdown(result: Result) -> str:
    lines = "\n".join(f"- {markdown(line)}" for line in header_lines(result.header))
    return f"{lines}\n\n{result_table(result).to_markdown()}\n"


def _junit(result: Result) -> str:
    """A case for each row: its check, and the seconds of all its timed executions."""
    boards = any(row.device for row in result.rows)
    cases = [
        Case(
            f"{row.device}, {row.op}" if boards else row.op,
            f"{row.call} by {label(row.route, row.given)}",
            _OUTCOMES.get(row.check, "error"),
            row.why,
            (row.us_median or 0.0) * row.runs / 1e6,
            row.max_rel,
            row.allowed,
        )
        for row in result.rows
    ]
    return to_junit(f"vkconv bench: {result.header.calls}", cases)


_OUTCOMES: Mapping[str, Outcome] = {
    "ok": "ok",
    "FAILED": "FAILED",
    "refused": "skipped",
    "skipped": "skipped",
    "no op": "skipped",
}
_FORMATS: Mapping[str, Callable[[Result], str]] = {
    ".json": _json,
    ".csv": _csv,
    ".md": _markdown,
    ".html": html,
    ".xml": _junit,
}
