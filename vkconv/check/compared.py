"""Two results of checks side by side, of two devices or two drivers: what fails in one of them, whose errors moved.

A result is that of `vkconv check` or `vkconv phone check`: of a model, of a call, or of all ops, on one device or many.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from vkconv.cases import Case, Outcome
from vkconv.core import ModelError, did_you_mean
from vkconv.files import read_result_as
from vkconv.route import label
from vkconv.table import Column, Table

SCHEMAS = ("vkconv.check/1", "vkconv.conformance/1", "vkconv.boards/1")
MOVED = 0.1
"""Two errors differ that are apart by more than this share of the allowed one."""

Verdict = Literal[
    "fails in B",
    "fails in A",
    "fails in both",
    "error moved",
    "refused in A",
    "refused in B",
    "only in A",
    "only in B",
    "same",
]


@dataclasses.dataclass(frozen=True)
class Judged:
    """One thing that a result judged: ``name`` is what both results call it, whatever route it took."""

    name: str
    route: str
    outcome: Outcome
    why: str = ""
    max_rel: float | None = None
    allowed: float | None = None

    @property
    def bad(self) -> bool:
        return self.outcome in ("FAILED", "error")

    @property
    def share(self) -> float | None:
        """The error over the allowed one."""
        return self.max_rel / self.allowed if self.max_rel is not None and self.allowed else None


@dataclasses.dataclass(frozen=True)
class Checks:
    """What a file says: the device, or the devices, and everything judged, by name. ``incomplete`` says why more is
    missing."""

    device: str
    driver: str
    judged: Mapping[str, Judged]
    incomplete: str = ""


@dataclasses.dataclass(frozen=True)
class Pair:
    """The same thing in both results; None where one of them lacks it."""

    name: str
    a: Judged | None
    b: Judged | None
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class Compared:
    """All pairs, in the order of A, and what makes the two hard to compare."""

    a: Checks
    b: Checks
    pairs: Sequence[Pair]
    warnings: Sequence[str]

    @property
    def failed(self) -> list[Pair]:
        """What fails in B and does not fail in A."""
        return [pair for pair in self.pairs if pair.verdict == "fails in B"]

    @property
    def counts(self) -> dict[str, int]:
        """How many pairs have each verdict."""
        return dict(Counter(pair.verdict for pair in self.pairs))


# ---- files


class _Device(msgspec.Struct):
    name: str = ""
    driver: str = ""


class _Row(msgspec.Struct):
    call: str
    route: str
    form: str
    status: Literal["ok", "FAILED", "refused", "error"]
    why: str = ""
    max_rel: float | None = None
    allowed: float | None = None
    params: dict[str, int | str] = {}


class _Error(msgspec.Struct):
    max_rel: float | None = None
    allowed: float | None = None
    ok: bool = True
    problem: str = ""


class _Node(msgspec.Struct):
    node: str
    call: str
    route: str
    alone: _Error
    cause: str = ""
    problem: str = ""
    params: dict[str, int | str] = {}


class _Model(msgspec.Struct):
    nodes: list[_Node]
    complete: bool = True


class _Again(msgspec.Struct):
    node: str
    call: str
    route: str
    runs: int = 0  # results of 0.1.0 do not say it of each node
    problem: str = ""


class _Repeat(msgspec.Struct):
    nodes: list[_Again]


class _Swept(msgspec.Struct):
    call: str
    route: str
    check: _Error
    params: dict[str, int | str] = {}
    refused: str = ""
    problem: str = ""


class _Report(msgspec.Struct):
    """A result of one device; with ``board`` one of several."""

    schema: str = ""
    board: str = ""
    problem: str = ""
    device: _Device = msgspec.field(default_factory=_Device)
    rows: list[_Row] = []
    stopped: str = ""
    check: _Model | None = None
    repeat: _Repeat | None = None
    sweep: list[_Swept] = []
    problems: list[str] = []
    boards: list["_Report"] = []


def read_checks(path: Path, board: str = "") -> Checks:
    """What a result's JSON file says; of one of its boards alone where that is named. Raises ModelError."""
    report = read_result_as(_Report, path, "result of vkconv check")
    if report.schema not in SCHEMAS:
        raise ModelError(f"{path} is no result of vkconv check: its schema is {report.schema!r}; {', '.join(SCHEMAS)}")
    if board:
        found = next((each for each in report.boards if each.board == board), None)
        if found is None:
            raise ModelError(no_board(path, board, [each.board for each in report.boards]))
        return _checks([found], "")
    if report.schema == "vkconv.boards/1":
        return _checks(report.boards, f"{len(report.boards)} boards")
    return _checks([report], "")


def no_board(path: Path, board: str, known: Sequence[str]) -> str:
    """Says that a result has no such board, and which it has."""
    if not known:
        return f"{path} is of one device: it has no board {board!r}; name the file alone"
    return f"{path} has no board {board!r}{did_you_mean(board, known)}; it has {', '.join(known)}"


def _checks(reports: Sequence[_Report], boards: str) -> Checks:
    judged: dict[str, Judged] = {}
    for report in reports:
        for one in _judged(report):
            name = f"{report.board}: {one.name}" if boards else one.name
            judged[name] = dataclasses.replace(one, name=name)
    devices = dict.fromkeys(report.device.name for report in reports)
    drivers = dict.fromkeys(report.device.driver for report in reports)
    stopped = [report.stopped or report.problem or "it was stopped" for report in reports if _is_incomplete(report)]
    return Checks(boards or ", ".join(devices), ", ".join(drivers), judged, "; ".join(stopped))


def _is_incomplete(report: _Report) -> bool:
    return bool(report.stopped or report.problem or (report.check and not report.check.complete))


def _judged(report: _Report) -> Iterator[Judged]:
    outcomes: Mapping[str, Outcome] = {"ok": "ok", "FAILED": "FAILED", "error": "error", "refused": "skipped"}
    if report.problem:
        yield Judged("the device", "", "error", report.problem)
    for row in report.rows:
        name = f"{row.call} by {label(row.route, row.params)} in {row.form}"
        yield Judged(name, row.route, outcomes[row.status], row.why, row.max_rel, row.allowed)
    nodes = report.check.nodes if report.check else []
    for node in nodes:
        route = label(node.route, node.params)
        outcome: Outcome = "FAILED" if node.cause else "error" if node.problem else "ok"
        told = node.alone.max_rel, node.alone.allowed
        yield Judged(f"{node.node}: {node.call}", route, outcome, node.problem, *told)
    for again in report.repeat.nodes if report.repeat else ():
        name = f"{again.node}: {again.call}, the same bytes in {again.runs} runs"
        yield Judged(name, again.route, "FAILED" if again.problem else "ok", again.problem)
    for way in report.sweep:
        outcome = "skipped" if way.refused else "ok" if way.check.ok and not way.problem else "FAILED"
        name = f"{way.call} by {label(way.route, way.params)}, swept"
        yield Judged(name, way.route, outcome, way.refused or way.problem, way.check.max_rel, way.check.allowed)
    if report.check is not None:
        known = any(node.cause or node.problem for node in nodes)
        whole: Outcome = "FAILED" if report.problems and not known else "ok"
        yield Judged("the model as a whole", "", whole, "; ".join(report.problems))


# ---- comparison


def compare_checks(a: Checks, b: Checks) -> Compared:
    """Join two results by the names of what they judged."""
    names = dict.fromkeys((*a.judged, *b.judged))
    pairs = [_pair(name, a.judged.get(name), b.judged.get(name)) for name in names]
    warnings = [
        f"{what} differs: {one} in A, {other} in B"
        for what, one, other in (("device", a.device, b.device), ("driver", a.driver, b.driver))
        if one != other
    ]
    warnings += [f"{name} is incomplete: {c.incomplete}" for name, c in (("A", a), ("B", b)) if c.incomplete]
    return Compared(a, b, pairs, warnings)


def _pair(name: str, a: Judged | None, b: Judged | None) -> Pair:
    return Pair(name, a, b, _verdict(a, b))


def _verdict(a: Judged | None, b: Judged | None) -> Verdict:
    if a is None or b is None:
        return "only in B" if a is None else "only in A"
    if a.bad or b.bad:
        return "fails in both" if a.bad and b.bad else "fails in A" if a.bad else "fails in B"
    if "skipped" in (a.outcome, b.outcome):
        return "same" if a.outcome == b.outcome else "refused in A" if a.outcome == "skipped" else "refused in B"
    if a.share is not None and b.share is not None and abs(a.share - b.share) > MOVED:
        return "error moved"
    return "same"


def compared_table(compared: Compared, changed: bool = True) -> Table:
    """A row for each pair that is not the same, or for every pair; errors are shares of the allowed one."""
    columns = [Column(name) for name in ("check", "route A", "route B", "A", "B")]
    columns += [Column("error A", digits=2), Column("error B", digits=2), Column("verdict"), Column("why")]
    shown = [pair for pair in compared.pairs if not (changed and pair.verdict == "same")]
    cells = [
        (
            pair.name,
            pair.a.route if pair.a else "",
            pair.b.route if pair.b else "",
            pair.a.outcome if pair.a else "",
            pair.b.outcome if pair.b else "",
            pair.a.share if pair.a else None,
            pair.b.share if pair.b else None,
            pair.verdict,
            _why(pair),
        )
        for pair in shown
    ]
    return Table("", columns, cells, ["failed" if pair.verdict == "fails in B" else "" for pair in shown])


def _why(pair: Pair) -> str:
    told = [one.why for one in (pair.b, pair.a) if one is not None and one.outcome != "ok"]
    return told[0] if told else ""


def compared_cases(compared: Compared) -> list[Case]:
    """A case for each pair: wrong where B fails and A does not, skipped where there is nothing to compare."""

    def outcome(pair: Pair) -> Outcome:
        if pair.verdict == "fails in B":
            return "FAILED"
        return "skipped" if pair.verdict.startswith(("only", "refused")) else "ok"

    return [
        Case(
            "compared",
            pair.name,
            outcome(pair),
            f"{pair.verdict}: {_why(pair)}" if pair.verdict != "same" else "",
            max_rel=pair.b.max_rel if pair.b else None,
            allowed=pair.b.allowed if pair.b else None,
        )
        for pair in compared.pairs
    ]


def compared_data(compared: Compared) -> dict[str, Any]:
    """The pairs that are not the same as JSON data, and how many of each verdict there are."""
    return {
        "warnings": list(compared.warnings),
        "counts": compared.counts,
        "pairs": [
            {
                "name": pair.name,
                "verdict": pair.verdict,
                **{key: one and dataclasses.asdict(one) for key, one in (("a", pair.a), ("b", pair.b))},
            }
            for pair in compared.pairs
            if pair.verdict != "same"
        ],
    }
