"""``vkconv tune``: measure which routes and parameters are fastest, keep them in a table, and report on tables."""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkconv.cli.benched import read_entries
from vkconv.cli.models import find_device
from vkconv.cli.options import HalfSumsOption, JsonOption, SuitesOption
from vkconv.cli.output import EXIT_INTERRUPTED, file_errors, show, show_json
from vkconv.core import ModelError, UsageError, expand_user
from vkconv.route import label

if TYPE_CHECKING:
    from vkconv.backend.runtime import LiveDevice
    from vkconv.bench.rows import Row
    from vkconv.bench.tune import Change, Effort
    from vkconv.call import Call
    from vkconv.route import Candidate, Params


def tune(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CALL|MODEL|TABLE]...",
            help="Calls (conv2d:x=1x64x56x56,w=64x64x3x3,p=1), MIOpenDriver lines in quotes, and .vkc or .onnx files, "
            "which stand for the distinct calls of their plan. With --report and --merge: measured tables.",
        ),
    ] = None,
    suites: SuitesOption = None,
    report: Annotated[
        bool,
        typer.Option("--report", help="Measure nothing: show what the routes' rules cost against a measured table."),
    ] = False,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Measure nothing: merge tables of one device and driver into -o; newer rows win."),
    ] = False,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME=SHAPE", help="Shape of an input where a model leaves it open; repeat."),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="SEL",
            envvar="VKCONV_DEVICE",
            help="auto (discrete before integrated before CPU), an index of vkconv devices, or part of a name; with "
            "--report also a device file or the name of a shipped one.",
        ),
    ] = "auto",
    min_time: Annotated[
        float, typer.Option("--min-time", metavar="SECONDS", help="Least time to measure each candidate for.")
    ] = 0.1,
    quick: Annotated[bool, typer.Option("--quick", help="Try every route with its default parameters only.")] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Try every combination of parameters; without it, one parameter at a time, of routes that are not "
            "hopeless with their defaults, and then the best value of each together.",
        ),
    ] = False,
    half_sums: HalfSumsOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The table to write, or to add to; default: the user's table of the device, which plans then use.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest route and parameters of each call on this device, for every later plan to use.

    Each candidate is checked against the float64 reference before it is timed. Ctrl-C keeps the calls that are done
    and ends with exit code 130; 1 means that a candidate failed its check, which deserves a bug report.

    Examples: vkconv tune model.onnx, vkconv tune --suite resnet50 --quick, vkconv tune --report,
    vkconv tune --merge mine.json yours.json -o both.json
    """
    texts, target = targets or [], expand_user(output, "--output") if output else None
    if sum((report, merge)) == 2 or sum((quick, full)) == 2:
        raise UsageError("--report and --merge, and --quick and --full, exclude each other")
    if (report or merge) and (suites or shapes or quick or full):
        raise UsageError("--report and --merge measure nothing: they take tables, not suites, shapes or an effort")
    if merge:
        _merge([expand_user(text, "the table") for text in texts], target)
    elif report:
        _report(texts, device, target, as_json)
    else:
        if not math.isfinite(min_time) or min_time < 1e-4:
            raise UsageError(f"--min-time {min_time:g} is no number of seconds from 0.0001 on")
        _tune(
            texts,
            suites or [],
            shapes or [],
            device,
            min_time,
            "quick" if quick else "full" if full else "default",
            target,
            as_json,
            half_sums,
        )


def _merge(paths: Sequence[Path], target: Path | None) -> None:
    from vkconv.plan.measured import merge_tables, read_table, write_table

    if len(paths) < 2 or target is None:
        raise UsageError("--merge takes two tables or more and -o FILE: vkconv tune --merge A.json B.json -o C.json")
    tables = [read_table(path) for path in paths]
    merged = tables[0]
    for table in tables[1:]:
        merged = merge_tables(merged, table)
    with file_errors(target):
        write_table(merged, target)
    show(f"wrote {target}: {len(merged.rows)} calls of {merged.device}, driver {merged.driver}")


def _report(texts: Sequence[str], selector: str, target: Path | None, as_json: bool) -> None:
    from vkconv.bench.tune import regret_report
    from vkconv.plan.measured import measured_path, read_table

    if len(texts) > 1 or target is not None:
        raise UsageError("--report takes one table, and writes no file: vkconv tune --report [TABLE]")
    facts = find_device(selector)
    path = expand_user(texts[0], "the table") if texts else measured_path(facts)
    if path is None:
        raise UsageError(f"there is no measured table of {facts.name} with its driver: name one, or run vkconv tune")
    try:
        table, data = regret_report(read_table(path), facts)
    except ModelError as error:
        raise UsageError(str(error)) from None
    if as_json:
        show_json(data)
    else:
        show(table)


def _tune(
    texts: Sequence[str],
    suites: Sequence[str],
    shapes: Sequence[str],
    selector: str,
    min_time_s: float,
    effort: "Effort",
    target: Path | None,
    as_json: bool,
    half_sums: bool,
) -> None:
    from vkconv.backend.runtime import open_device
    from vkconv.bench.engine import BenchOptions, measure
    from vkconv.bench.tune import change, changes_table, make_table, tune_call
    from vkconv.plan.measured import find_measured, merge_tables, read_table, table_path, write_table

    live = open_device(selector)
    path = target or table_path(live.device)
    # Before anything is measured: a file that cannot take the rows would lose them.
    before = read_table(path) if path.exists() else make_table(live.device, {})
    merge_tables(before, make_table(live.device, {}))
    calls = _calls(texts, suites, shapes, live)
    if not calls:
        raise UsageError("none of these calls can be tuned here: nothing runs, or no route can")
    known = find_measured(live.device)
    options = BenchOptions(min_time_s=min_time_s)
    found: dict[str, list[Candidate]] = {}
    changes: list[Change] = []
    failed: list[Row] = []
    interrupted = False
    with _progress(len(calls)) as say:

        def attempt(call: "Call", route: str, params: "Params") -> "Row":
            row = measure(call, route, params=params, device=selector, options=options)
            failed.extend([row] if row.check == "FAILED" else [])
            say(row, None)
            return row

        try:
            for text, call in calls.items():
                found[text] = tune_call(call, live.device, attempt, effort, half_sums)
                changes.append(change(call, live.device, known.get(text, ()), found[text], half_sums))
                say(None, text)
        except KeyboardInterrupt:
            interrupted = True
    table = merge_tables(before, make_table(live.device, found))
    if table.rows:
        with file_errors(path):
            write_table(table, path)
    if as_json:
        show_json(_data(path, changes, interrupted))
    else:
        done = f"{len(changes)} of {len(calls)} calls measured" + " (interrupted)" * interrupted
        use = "" if target is None else f"; VKCONV_MEASURED={path} makes plans use it"
        show(changes_table(changes), f"{done}; wrote {path}, which has {len(table.rows)} calls{use}")
    for row in failed:
        _say(f"FAILED: {row.call} {label(row.route, row.params)}: {row.why}")
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if failed:
        raise typer.Exit(1)


def _calls(texts: Sequence[str], suites: Sequence[str], shapes: Sequence[str], live: "LiveDevice") -> "dict[str, Call]":
    """The calls to tune by their strings; those that no route can run are told and left out."""
    from vkconv.ops import OPS
    from vkconv.ops.core.calls import format_call
    from vkconv.route import judge

    calls: dict[str, Call] = {}
    for entry in read_entries(texts, suites, None, live.device, shapes):
        call = entry.call
        if call is None:
            _say(f"not tuned: {entry.text}: {entry.why}")
        elif not any(judge(route, call, live.device).allowed for route in OPS[call.op].routes):
            _say(f"not tuned: {entry.text}: no route of {call.op} can run it on {live.device.name}")
        elif not call.is_empty:
            calls[format_call(call, OPS)] = call
    return calls


def _data(path: Path, changes: "Sequence[Change]", incomplete: bool) -> dict[str, Any]:
    return {
        "schema": "vkconv.tune/1",
        "table": str(path),
        "incomplete": incomplete,
        "calls": [
            {
                "call": c.call,
                "before": {"route": c.before.route.name, "params": dict(c.before.params), "by": c.before.by},
                "before_us": c.before_us,
                "best": {"route": c.best.route, "params": c.best.params} if c.best else None,
                "best_us": c.best.us_median if c.best else None,
                "ratio": c.ratio,
            }
            for c in changes
        ],
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _progress(calls: int) -> "Iterator[Callable[[Row | None, str | None], None]]":
    """A function to tell of each candidate and each finished call: a bar on a terminal, else a line per call."""
    done = rows = 0

    def line(row: "Row | None", text: str | None) -> None:
        nonlocal done, rows
        rows += row is not None
        if text is not None:
            done += 1
            _say(f"[{done}/{calls}] {text}: {rows} candidates so far")

    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task("", total=calls)

        def advance(row: "Row | None", text: str | None) -> None:
            if row is not None:
                bar.update(work, description=f"{row.call[:40]} {label(row.route, row.params)}"[:70])
            if text is not None:
                bar.advance(work)

        yield advance
