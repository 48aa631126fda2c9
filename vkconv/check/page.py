"""The page of a check: verdicts, what repeats a failure, errors as a chart, and every table what is wrong on top."""

import itertools
import math
import os
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vkconv.cases import Case
from vkconv.pages import LogAxis, Page, Section, render, whole
from vkconv.table import Table, format_number

_WIDTH, _HEIGHT = 1280, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 20, 22, 20
_LEAST, _MOST = 1e-6, 1e6
"""Shares of the allowed error that the chart tells apart at most."""
_MOST_POINTS = 400

_ERRORS = (
    "The largest error of each check over the one that its tolerance allows: what lies above the line is wrong. "
    "Errors of zero lie on the lower edge, those that are no number on the upper one."
)
_WORST = _ERRORS + " The worst of each group alone, for there are too many checks."


def page(
    title: str,
    lines: Sequence[str],
    verdicts: Sequence[str],
    failed: bool,
    commands: Sequence[str],
    parts: Sequence[tuple[str, Table]],
    cases: Sequence[Case],
    links: Mapping[str, str],
    schema: str,
) -> str:
    """The page of a result as `write_page` has it; ``links`` are addresses by the first cell of a row."""
    return whole(
        Page(
            title,
            title,
            [(text, failed) for text in verdicts],
            (),
            lines,
            commands,
            [*_charts(cases), *_tables(parts, links)],
            schema,
        )
    )


def address(target: Path, source: Path) -> str:
    """How a page at ``source`` links to a file or folder."""
    return urllib.parse.quote(os.path.relpath(target, source.parent))


def _tables(parts: Sequence[tuple[str, Table]], links: Mapping[str, str]) -> Iterator[Section]:
    for number, (name, table) in enumerate(parts):
        if table.cells:
            sheet = table.sheet(f"t{number}r", links=links, numbered=True)
            yield Section(name, "Sorted by a click on a heading, or Enter on it.", sheet=sheet)


def _charts(cases: Sequence[Case]) -> Iterator[Section]:
    shown = [case for case in cases if case.allowed and (case.max_rel is not None or case.outcome == "FAILED")]
    few = shown if len(shown) <= _MOST_POINTS else _worst(shown)
    if few:
        yield Section("Errors", _ERRORS if few is shown else _WORST, errors(few))


def errors(cases: Sequence[Case]) -> str:
    """A chart with a point for each case, in their order: its error over the allowed one, logarithmically."""
    shares = [_share(case) for case in cases]
    known = [share for share in shares if 0 < share < math.inf]
    low = max(_LEAST, min([*known, 0.1]) / 2)
    high = min(_MOST, max([*known, 1.0]) * 4)
    up = LogAxis(low, high, _HEIGHT - _BOTTOM, _TOP)
    step = (_WIDTH - _LEFT - _RIGHT) / len(cases)
    marks = [
        {
            "bad": case.outcome in ("FAILED", "error"),
            "x": f"{_LEFT + (i + 0.5) * step:.1f}",
            "y": f"{up(min(max(share, low), high)):.1f}",
            "tip": _tip(case, share),
        }
        for i, (case, share) in enumerate(zip(cases, shares, strict=True))
    ]
    return render(
        "errors.svg.j2",
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        up=up,
        limit=round(up(1.0), 1),
        marks=marks,
    )


def _share(case: Case) -> float:
    """The error over the allowed one; infinite where it is no number."""
    if case.max_rel is None or not case.allowed or not math.isfinite(case.max_rel):
        return math.inf
    return case.max_rel / case.allowed


def _tip(case: Case, share: float) -> str:
    error = f"{format_number(share, 3)} of the allowed error" if share < math.inf else "its error is no number"
    return "\n".join(filter(None, (case.name, f"{case.outcome}: {error}", case.why)))


def _worst(cases: Sequence[Case]) -> list[Case]:
    """Of each group the worst case, and every wrong one, as many as a chart has room for."""
    wrong = [case for case in cases if case.outcome in ("FAILED", "error")][:_MOST_POINTS]
    groups: dict[str, list[Case]] = {}
    for case in cases:
        if case.outcome == "ok":
            groups.setdefault(case.group, []).append(case)
    right = (max(mine, key=_share) for mine in groups.values())
    return [*wrong, *itertools.islice(right, _MOST_POINTS)]
