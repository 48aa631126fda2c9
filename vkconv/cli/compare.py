"""``vkconv compare``: two results side by side, of measurements or of checks."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vkconv.cli.checked import Report
from vkconv.cli.options import JsonOption
from vkconv.cli.output import refuse_to_replace, say
from vkconv.core import ModelError, UsageError, expand_user
from vkconv.table import Table, format_cell

if TYPE_CHECKING:
    from vkconv.bench.rows import Result

SCHEMA = "vkconv.compared/1"
_TITLE = "vkconv compare"


def compare(
    a: Annotated[str, typer.Argument(metavar="A.json[:BOARD]", help="The result to compare with.")],
    b: Annotated[str, typer.Argument(metavar="B.json[:BOARD]", help="The result to judge.")],
    fail_over: Annotated[
        float | None,
        typer.Option("--fail-over", metavar="RATIO", help="Exit code 1 when a row is slower than this, say 1.05."),
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Leave out the rows that are the same.")] = False,
    outputs: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", metavar="FILE", help="Save as .json, .csv, .md, .html or .xml (JUnit); repeat."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two results of vkconv bench, or two of vkconv check, of this machine or of phones and boards.

    Times: B over A, so that above 1 is slower. A row differs when its medians do by more than three standard errors, as
    the spread of both gives them, and by more than 3 %. With --fail-over, a row that is not right any more fails too.

    Checks: what fails in one result alone, what one device refuses, and errors that moved by more than a tenth of what
    is allowed; exit code 1 when something fails in B that does not fail in A. Nodes of models are joined by their
    names, whatever routes their devices take.

    FILE.json:BOARD is one board of a result of several: vkconv compare phones.json:1A2B phones.json:3C4D
    """
    from vkconv.check.compared import SCHEMAS
    from vkconv.check.report import CASE_SUFFIXES, SUFFIXES, check_targets

    if fail_over is not None and not (math.isfinite(fail_over) and fail_over >= 1):
        raise UsageError(f"--fail-over {fail_over:g} is no ratio from 1 on, such as 1.05")
    paths = [expand_user(path, "-o") for path in outputs or ()]
    check_targets(paths, (*SUFFIXES, *CASE_SUFFIXES))
    (path_a, board_a), (path_b, board_b) = _board(a), _board(b)
    refuse_to_replace([path_a, path_b], *paths)
    checks = [_schema(path) in SCHEMAS for path in (path_a, path_b)]
    if checks[0] != checks[1]:
        measured, checked = (path_b, path_a) if checks[0] else (path_a, path_b)
        raise UsageError(f"{measured} is of vkconv bench and {checked} of vkconv check: compare two of one kind")
    if checks[0]:
        if fail_over is not None:
            raise UsageError("--fail-over is for results of vkconv bench; checks have no times")
        report = _of_checks(path_a, board_a, path_b, board_b)
    else:
        report = _of_times(path_a, board_a, path_b, board_b, fail_over, changed)
    report.tell(paths, as_json)
    if report.failed:
        raise typer.Exit(1)


def _board(text: str) -> tuple[Path, str]:
    """A file, and the board that is asked for."""
    path = expand_user(Path(text), "result")
    name, colon, board = text.rpartition(":")
    if path.exists() or not colon:
        return path, ""
    # A serial of adb over TCP has a colon of its own.
    while not expand_user(Path(name), "result").exists() and ":" in name:
        name, _, more = name.rpartition(":")
        board = f"{more}:{board}"
    return expand_user(Path(name), "result"), board


def _schema(path: Path) -> str:
    """The name of a file's schema; empty where it has none, as a reader of it will say."""
    import msgspec

    from vkconv.files import read_result_as

    class Named(msgspec.Struct):
        schema: str = ""

    return read_result_as(Named, path, "result of vkconv bench or vkconv check").schema


def _of_checks(a: Path, board_a: str, b: Path, board_b: str) -> Report:
    from vkconv.check.compared import compare_checks, compared_cases, compared_data, compared_table, read_checks

    compared = compare_checks(read_checks(a, board_a), read_checks(b, board_b))
    counts = ", ".join(f"{count:,} {verdict}" for verdict, count in compared.counts.items())
    lines = [f"{name}: {c.device}, driver {c.driver}" for name, c in (("A", compared.a), ("B", compared.b))]
    return Report(
        _TITLE,
        [*lines, *(f"warning: {text}" for text in compared.warnings)],
        [("Checks", compared_table(compared))],
        ["Checks"],
        [counts or "no checks"],
        [],
        {"schema": SCHEMA, **compared_data(compared)},
        bool(compared.failed),
        compared_cases(compared),
    )


def _of_times(a: Path, board_a: str, b: Path, board_b: str, fail_over: float | None, changed: bool) -> Report:
    from vkconv.bench.compare import compare as compare_results
    from vkconv.bench.compare import comparison_cases, comparison_data, comparison_table

    comparison = compare_results(_measured(a, board_a), _measured(b, board_b))
    table = comparison_table(comparison)
    if changed:
        table = Table("", table.columns, [c for c, p in zip(table.cells, comparison.pairs, strict=True) if not p.same])
    counts = {
        v: sum(p.verdict == v for p in comparison.pairs) for v in dict.fromkeys(p.verdict for p in comparison.pairs)
    }
    failed = comparison.regressions(fail_over) if fail_over is not None else []
    if failed:
        worst = ", ".join(f"{p.call} {p.route}: {p.verdict} {format_cell(p.ratio)}" for p in failed[:3])
        say(f"{len(failed)} of {len(comparison.pairs)} rows fail: {worst}")
    mean = comparison.geometric_mean
    verdicts = [", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "no rows"]
    verdicts += [f"geometric mean B/A {mean:.3f}"] if mean else []
    return Report(
        _TITLE,
        [f"warning: {text}" for text in comparison.warnings],
        [("Times", table)],
        ["Times"],
        verdicts,
        [],
        {"schema": SCHEMA, "counts": counts, **comparison_data(comparison)},
        bool(failed),
        comparison_cases(comparison, fail_over),
    )


def _measured(path: Path, board: str) -> "Result":
    from vkconv.bench.compare import of_board
    from vkconv.bench.files import read_result
    from vkconv.check.compared import no_board

    result = read_result(path)
    if not board:
        return result
    found = of_board(result, board)
    if found is None:
        raise ModelError(no_board(path, board, [each.label for each in result.header.boards]))
    return found
