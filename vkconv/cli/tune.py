"""``vkconv tune``: measure which routes and parameters are fastest, keep them in a table, and report on tables."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkconv.cli.benched import read_entries
from vkconv.cli.models import find_device
from vkconv.cli.options import MODELS, HalfSumsOption, JsonOption, ShapeOption, SuitesOption
from vkconv.cli.output import file_errors, refuse_to_replace, say, show, show_json
from vkconv.cli.progress import progress
from vkconv.cli.stopping import stopped_by, terminable
from vkconv.core import ModelError, UsageError, VkconvError, counted, expand_user
from vkconv.route import label

if TYPE_CHECKING:
    from vkconv.backend.runtime import LiveDevice
    from vkconv.bench.rows import Row
    from vkconv.bench.tune import Change
    from vkconv.bench.unfinished import Unfinished
    from vkconv.call import Call
    from vkconv.plan.measured import Effort, MeasuredTable
    from vkconv.route import Params


def tune(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CALL|MODEL|TABLE]...",
            help="Calls (conv2d:x=1x64x56x56,w=64x64x3x3,p=1), lines of other tools in quotes, and "
            f"{MODELS} files, for the distinct calls of their plan. With --report and --merge: measured tables.",
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
    shapes: ShapeOption = None,
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
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Measure also the calls that the table has already, with today's kernels and at least this effort.",
        ),
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="SECONDS", help="Begin no candidate after so long; what is done is kept."),
    ] = None,
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

    Each candidate is checked against the float64 reference before it is timed. A call is in the table once it is done;
    candidates of the call under way are kept beside it. After Ctrl-C (exit code 130), SIGTERM (143) or --budget (0),
    the same command goes on from there. 1 means that a candidate failed its check, which deserves a bug report.

    Examples: vkconv tune model.onnx, vkconv tune --suite resnet50 --budget 600, vkconv tune --report,
    vkconv tune --merge mine.json yours.json -o both.json
    """
    texts, target = targets or [], expand_user(output, "--output") if output else None
    if sum((report, merge)) == 2 or sum((quick, full)) == 2:
        raise UsageError("--report and --merge, and --quick and --full, exclude each other")
    if (report or merge) and (suites or shapes or quick or full or half_sums or again or budget is not None):
        raise UsageError("--report and --merge measure nothing: they take tables, not suites, shapes or an effort")
    if merge and as_json:
        raise UsageError("--merge writes its table as JSON, to -o; leave out --json")
    if budget is not None and not (math.isfinite(budget) and budget > 0):
        raise UsageError(f"--budget {budget:g} is no number of seconds above 0")
    if merge:
        _merge([expand_user(text, "the table") for text in texts], target)
    elif report:
        _report(texts, device, target, as_json)
    else:
        if not math.isfinite(min_time) or min_time < 1e-4:
            raise UsageError(f"--min-time {min_time:g} is no number of seconds from 0.0001 on")
        refuse_to_replace(texts, target)
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
            again,
            budget,
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
    show(f"wrote {target}: {counted(len(merged.rows), 'call')} of {merged.device}, driver {merged.driver}")


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


class _BudgetSpentError(Exception):
    """The time is used up that --budget gives."""


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
    again: bool,
    budget_s: float | None,
) -> None:
    from vkconv.backend.runtime import open_device
    from vkconv.bench.engine import Trial, measure_all
    from vkconv.bench.sampling import BenchOptions
    from vkconv.bench.tune import change, changes_table, is_tuned, make_table, tune_call
    from vkconv.bench.unfinished import Unfinished
    from vkconv.ops import OPS
    from vkconv.ops.core.calls import format_call
    from vkconv.plan.measured import Measured, find_measured, merge_tables, read_table, table_path

    started = time.monotonic()
    live = open_device(selector)
    path = target or table_path(live.device)
    # Before anything is measured: a file that cannot take the rows would lose them.
    unfinished = Unfinished(path, live.device, min_time_s)
    table = _Table(path, read_table(path) if path.exists() else make_table(live.device, {}), unfinished)
    merge_tables(table.now, make_table(live.device, {}))
    calls = _calls(texts, suites, shapes, live)
    if not calls:
        raise UsageError("none of these calls can be tuned here: nothing runs, or no route can")
    had = Measured(table.now)
    todo = {
        text: call
        for text, call in calls.items()
        if again or not is_tuned(had, text, call, live.device, effort, half_sums)
    }
    known = find_measured(live.device)
    options = BenchOptions(min_time_s=min_time_s)
    changes: list[Change] = []
    failed: list[Row] = []
    whys: dict[str, str] = {}  # of each call's first candidate, why it was not measured
    candidates, stopped, code = 0, "", 0
    try:
        with terminable(), progress(len(todo), "calls", budget_s) as tell:

            def tried() -> str:
                return counted(candidates, "candidate")

            def measured(call: "Call", asked: "Sequence[tuple[str, Params]]") -> "Iterator[Row]":
                def trials() -> "Iterator[Trial]":
                    for route, params in asked:
                        if budget_s is not None and time.monotonic() - started > budget_s:
                            raise _BudgetSpentError
                        yield Trial(call, route, params)

                return measure_all(trials(), device=selector, options=options)

            def attempt(call: "Call", asked: "Sequence[tuple[str, Params]]") -> "Iterator[Row]":
                nonlocal candidates
                text = format_call(call, OPS)
                before = [unfinished.find(text, route, params) for route, params in asked]
                left = [one for one, row in zip(asked, before, strict=True) if row is None]
                rows = measured(call, left) if left else iter(())
                for (route, params), known in zip(asked, before, strict=True):
                    row = known or next(rows)
                    if known is None:
                        table.tried(text, route, params, row)
                    failed.extend([row] if row.check == "FAILED" else [])
                    whys.setdefault(text, row.why)
                    candidates += 1
                    tell(0, tried(), f"{row.call[:40]} {label(row.route, row.params)}")
                    yield row

            for text, call in todo.items():
                unfinished.begin(text)
                found = tune_call(call, live.device, attempt, effort, half_sums)
                table.add(text, make_table(live.device, {text: found}, effort, half_sums))
                changes.append(change(call, live.device, known.get(text, ()), found, half_sums))
                tell(1, tried())
    except KeyboardInterrupt as error:
        stopped, code = stopped_by(error)
    except _BudgetSpentError:
        stopped = f"the budget of {budget_s:g} s is used up"
    table.save()
    skipped = len(calls) - len(todo)
    if as_json:
        show_json(_data(path, changes, skipped, len(todo) - len(changes), stopped, unfinished))
    else:
        said = [f"{len(changes)} of {len(calls)} calls measured"]
        said += [f"{skipped} in the table already (--again measures them)"] if skipped else []
        said += [f"{len(todo) - len(changes)} left: {stopped}"] if stopped else []
        use = f"; VKCONV_MEASURED={path} makes plans use it" if target and table.now.rows else ""
        said[-1] += "; ".join(["", f"{table.place}{use}", *_kept(unfinished)])
        show(*([changes_table(changes)] if changes else []), ", ".join(said))
    wrong = {row.call for row in failed}
    for text in (c.call for c in changes if not c.best and c.call not in wrong):
        say(f"not tuned: {text}: {whys.get(text) or 'no candidate was measured'}")
    for row in failed:
        say(f"FAILED: {row.call} {label(row.route, row.params)}: {row.why}")
    if code or failed:
        raise typer.Exit(code or 1)


class _Table:
    """The table that is tuned for, and its unfinished calls: what is measured goes into their files as it comes, beside
    that of others who tune. A file that cannot be written is told of the first time; later there is `save` in the
    end."""

    def __init__(self, path: Path, now: "MeasuredTable", unfinished: "Unfinished") -> None:
        self.path, self.now = path, now
        self._unfinished = unfinished
        self._unsaved: list[tuple[str, MeasuredTable]] = []
        self._written = self._has_tried = False

    @property
    def place(self) -> str:
        """Where the table is, in words."""
        if not self.now.rows:
            return "no table is written"
        where = f"wrote {self.path}, which" if self._written else self.path
        return f"{where} has {counted(len(self.now.rows), 'call')}"

    def tried(self, text: str, route: str, params: "Params", row: "Row") -> None:
        """Keep a candidate of the call under way."""
        with contextlib.suppress(*[VkconvError] * self._has_tried), file_errors(self._unfinished.path):
            self._unfinished.add(text, route, params, row)
        self._has_tried = True

    def add(self, text: str, rows: "MeasuredTable") -> None:
        """Keep what a call came to: its row, or none."""
        self._unsaved.append((text, rows))
        with contextlib.suppress(*[VkconvError] * self._written):
            self._save_rows()

    def _save_rows(self) -> None:
        from vkconv.plan.measured import add_to_table

        while self._unsaved:
            text, rows = self._unsaved[0]
            with file_errors(self.path):
                if rows.rows:
                    self.now = add_to_table(rows, self.path)
                    self._written = True
            # only now: were the row lost, its candidates would be too
            with file_errors(self._unfinished.path):
                self._unfinished.finish(text)
            del self._unsaved[0]

    def save(self) -> None:
        """Write what is not written yet."""
        self._save_rows()
        with file_errors(self._unfinished.path):
            self._unfinished.save()


def _kept(unfinished: "Unfinished") -> Iterator[str]:
    """What became of candidates of unfinished calls, in words."""
    if unfinished.taken:
        yield f"{counted(unfinished.taken, 'candidate')} measured before"
    if unfinished.ignored:
        yield f"{counted(unfinished.ignored, 'candidate')} ignored, of other kernels or a shorter --min-time"
    calls, candidates = unfinished.counts
    if calls:
        kept = f"{counted(candidates, 'candidate')} of {counted(calls, 'unfinished call')}"
        yield f"{kept} kept in {unfinished.path}, from where the same command goes on"


def _calls(texts: Sequence[str], suites: Sequence[str], shapes: Sequence[str], live: "LiveDevice") -> "dict[str, Call]":
    """The calls to tune by their strings; those that no route can run are told and left out."""
    from vkconv.ops import OPS
    from vkconv.ops.core.calls import format_call
    from vkconv.route import may_take

    calls: dict[str, Call] = {}
    for entry in read_entries(texts, suites, None, live.device, shapes):
        call = entry.call
        if call is None:
            say(f"not tuned: {entry.text}: {entry.why}")
        elif not any(may_take(route, call, live.device) for route in OPS[call.op].routes):
            say(f"not tuned: {entry.text}: no route of {call.op} can run it on {live.device.name}")
        elif not call.is_empty:
            calls[format_call(call, OPS)] = call
    return calls


def _data(
    path: Path, changes: "Sequence[Change]", skipped: int, left: int, stopped: str, unfinished: "Unfinished"
) -> dict[str, Any]:
    of_calls, candidates = unfinished.counts
    return {
        "schema": "vkconv.tune/1",
        "table": str(path),
        "incomplete": bool(stopped),
        "stopped": stopped,
        "in_table_already": skipped,
        "left": left,
        "unfinished": {
            "file": str(unfinished.path),
            "calls": of_calls,
            "candidates": candidates,
            "measured_before": unfinished.taken,
            "ignored": unfinished.ignored,
        },
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
