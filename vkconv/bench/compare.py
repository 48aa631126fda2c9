"""Two results side by side: which rows became faster or slower by more than their noise.

A row differs when the medians do so by more than three standard errors of their difference *and* by more than 3 %.
The standard error of a median of n samples with standard deviation s is sqrt(pi / 2) s / sqrt(n); s is taken as
1.4826 times the median absolute deviation, which holds for normal samples and is not moved by outliers. n is the
number of submissions, not of executions: those of one submission share what disturbs them.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from vkconv.bench.rows import Header, Result, Row, params_str
from vkconv.cases import Case
from vkconv.table import Column, Table, format_cell

STANDARD_ERRORS = 3.0
_MOST_ERRORS = 700.0  # beyond which no float holds the exponential
LEAST_RATIO = 1.03
_DEVIATION_PER_MAD = 1.4826

Verdict = Literal["faster", "same", "slower", "broken", "mended", "not measured", "only in A", "only in B"]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A row of either result; ``ratio`` is B over A, above 1 where B is slower, and None where one has no time."""

    call: str
    route: str
    a: Row | None
    b: Row | None
    ratio: float | None
    verdict: Verdict

    @property
    def same(self) -> bool:
        """Nothing to look at: no difference, or no time in either."""
        return self.verdict in ("same", "not measured")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All pairs, the geometric mean of the ratios (None without any), and what makes the two hard to compare."""

    pairs: Sequence[Pair]
    geometric_mean: float | None
    warnings: Sequence[str]

    def regressions(self, fail_over: float) -> list[Pair]:
        """Rows that are slower by more than that ratio beyond their noise, or not right any more."""
        return [
            p
            for p in self.pairs
            if p.verdict == "broken" or (p.verdict == "slower" and p.ratio is not None and p.ratio > fail_over)
        ]


def compare(a: Result, b: Result) -> Comparison:
    """Join two results by call, route and the parameters that were asked for."""
    rows_a, rows_b = ({row.key: row for row in result.rows} for result in (a, b))
    pairs = [_pair(rows_a.get(key), rows_b.get(key)) for key in dict.fromkeys((*rows_a, *rows_b))]
    ratios = [pair.ratio for pair in pairs if pair.ratio]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    return Comparison(pairs, mean, [*_differences(a.header, b.header), *_incomplete(a.header, b.header)])


def of_board(result: Result, label: str) -> Result | None:
    """What a result says of one of its boards, as a result of one device has it; None where it has no such board."""
    board = next((board for board in result.header.boards if board.label == label), None)
    if board is None:
        return None
    header = msgspec.structs.replace(
        result.header,
        **{name: getattr(board, name) for name in ("device", "device_key", "driver", "vulkan", "quirks", "floors")},
        boards=[],
    )
    rows = [msgspec.structs.replace(row, device="") for row in result.rows if row.device == label]
    return Result(header=header, rows=rows)


def comparison_table(comparison: Comparison) -> Table:
    """One row per pair, as they come in A."""
    columns = [Column(n) for n in ("call", "route", "us_a", "us_b", "ratio", "noise", "verdict")]
    rows = [
        (
            pair.call,
            pair.route,
            pair.a.us_median if pair.a else None,
            pair.b.us_median if pair.b else None,
            pair.ratio,
            threshold(pair.a, pair.b) if pair.a and pair.b and pair.ratio else None,
            pair.verdict,
        )
        for pair in comparison.pairs
    ]
    return Table("", columns, rows)


def comparison_cases(comparison: Comparison, fail_over: float | None) -> list[Case]:
    """A case for each pair: wrong where B is not right any more, or slower than the noise and ``fail_over`` allow."""
    failed = {id(pair) for pair in comparison.regressions(math.inf if fail_over is None else fail_over)}
    return [
        Case(
            pair.call,
            pair.route,
            "FAILED" if id(pair) in failed else "ok" if pair.a and pair.b else "skipped",
            "" if pair.same else f"{pair.verdict}: {format_cell(pair.ratio)}" if pair.ratio else pair.verdict,
            (pair.b.us_median or 0.0) / 1e6 if pair.b else 0.0,
        )
        for pair in comparison.pairs
    ]


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """The pairs as JSON data."""
    return {
        "warnings": list(comparison.warnings),
        "geometric_mean": comparison.geometric_mean,
        "pairs": [
            {
                "call": pair.call,
                "route": pair.route,
                "verdict": pair.verdict,
                "us_a": pair.a.us_median if pair.a else None,
                "us_b": pair.b.us_median if pair.b else None,
                "ratio": pair.ratio,
            }
            for pair in comparison.pairs
        ],
    }


def threshold(a: Row, b: Row) -> float:
    """The ratio beyond which two rows differ."""
    errors = STANDARD_ERRORS * math.hypot(_relative_error(a), _relative_error(b))
    return max(LEAST_RATIO, math.exp(min(errors, _MOST_ERRORS)))


def _relative_error(row: Row) -> float:
    deviation = _DEVIATION_PER_MAD * (row.us_spread_percent or 0.0) / 100
    return math.sqrt(math.pi / 2) * deviation / math.sqrt(max(row.submissions, 1))


def _pair(a: Row | None, b: Row | None) -> Pair:
    row = a or b
    assert row is not None
    route = f"{row.route} {params_str(row.given)}".strip()
    call = f"{row.device}: {row.call}" if row.device else row.call
    if a is None or b is None:
        return Pair(call, route, a, b, None, "only in B" if a is None else "only in A")
    if a.us_median is None or b.us_median is None:
        # A row that failed, or that an error ended, was measured where the other says ok.
        verdict: Verdict = "broken" if a.ok else "mended" if b.ok else "not measured"
        return Pair(call, route, a, b, None, verdict)
    ratio = b.us_median / a.us_median
    limit = threshold(a, b)
    return Pair(call, route, a, b, ratio, "slower" if ratio > limit else "faster" if ratio < 1 / limit else "same")


_CONDITIONS: Mapping[str, Callable[[Header], object]] = {
    "device": lambda h: h.device,
    "boards": lambda h: ", ".join(f"{b.label} = {b.device}, driver {b.driver}" for b in h.boards) or "none",
    "driver": lambda h: h.driver,
    "Vulkan": lambda h: h.vulkan,
    "quirks": lambda h: ", ".join(h.quirks) or "none",
    "forced routes": lambda h: ", ".join(f"{k}={v}" for k, v in h.forced.items()) or "none",
}


def _differences(a: Header, b: Header) -> list[str]:
    said = [
        f"{name} differs: {value(a)} in A, {value(b)} in B"
        for name, value in _CONDITIONS.items()
        if value(a) != value(b)
    ]
    for name in dict.fromkeys((*a.options, *b.options)):
        if a.options.get(name) != b.options.get(name):
            said.append(f"option {name} differs: {a.options.get(name)} in A, {b.options.get(name)} in B")
    return said


def _incomplete(a: Header, b: Header) -> list[str]:
    return [f"{name} is incomplete: it was interrupted" for name, h in (("A", a), ("B", b)) if h.incomplete]
