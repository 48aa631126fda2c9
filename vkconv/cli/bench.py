"""``vkconv bench`` and ``vkconv compare``: calls, models and suites timed on a device, and two results side by side."""

import contextlib
import datetime
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vkconv.cli.options import DeviceOption, parse_shapes, require_shapes
from vkconv.cli.output import file_errors, show
from vkconv.core import DType, UsageError, did_you_mean, expand_user
from vkconv.ops.calls import parse_shape
from vkconv.table import format_cell

if TYPE_CHECKING:
    from vkconv.backend.runtime import LiveDevice
    from vkconv.bench.engine import BenchOptions
    from vkconv.bench.rows import Floors, Header, Row
    from vkconv.bench.runner import Routes, Task
    from vkconv.bench.suites import Entry

_EXIT_INTERRUPTED = 130


def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CALL|MODEL...",
            help="Calls (conv2d:x=1x64x56x56,w=64x64x3x3,p=1), MIOpenDriver lines in quotes ('conv -n 1 -c 64 ...'), "
            "and .vkc or .onnx files, which stand for the distinct calls of their plan.",
        ),
    ] = None,
    suites: Annotated[
        list[str] | None,
        typer.Option(
            "--suite", metavar="FILE|NAME", help="A shipped suite, a .txt of calls, a .csv of conv shapes; repeatable."
        ),
    ] = None,
    routes: Annotated[
        list[str] | None,
        typer.Option(
            "--route",
            metavar="all|ROUTE|OP=ROUTE",
            help="Routes to measure, separated by commas; without it the one that the planner takes.",
        ),
    ] = None,
    sweep: Annotated[
        str,
        typer.Option(
            metavar="WHAT,...",
            help="Measure every route (route, as --route all does), and every legal value of the named parameters of "
            "routes, such as local: --sweep route,local.",
        ),
    ] = "",
    local: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Workgroup sizes to measure routes with: 64,128 or 64x1x1.")
    ] = "",
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Replace the element type of every call: f32, f16, ...")
    ] = "",
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME=SHAPE", help="Shape of an input where a model leaves it open; repeat."),
    ] = None,
    device: DeviceOption = "auto",
    min_time: Annotated[
        float, typer.Option("--min-time", metavar="SECONDS", help="Least time to measure each row for.")
    ] = 0.2,
    warmup: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Untimed executions first; default: until the time is stable."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Least number of timed executions of a row.")] = 10,
    cooldown: Annotated[float, typer.Option(metavar="SECONDS", help="Pause before each row is timed.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the inputs.")] = 0,
    outputs: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", metavar="FILE", help="Save as .json, .csv, .md or .html; repeat for several."),
    ] = None,
) -> None:
    """Measure single calls: each is checked against its float64 reference first, then timed on the GPU's own clock.

    Ctrl-C keeps what was measured and ends with exit code 130; 1 means that a row failed its check.

    Examples: vkconv bench conv2d:x=1x64x56x56,w=64x64x3x3,p=1 --route all,
    vkconv bench --suite peers --sweep route,local,
    vkconv bench --suite resnet50 -o before.json -o before.html, vkconv bench 'conv -n 16 -c 16 ... -F 1' --dtype f16
    """
    from vkconv.backend.runtime import open_device
    from vkconv.bench.calibrate import floors as measure_floors
    from vkconv.bench.engine import BenchOptions
    from vkconv.bench.rows import Result, check_targets, header_lines, mark_best, screen_tables, write_result
    from vkconv.bench.runner import Routes, expected_s, make_tasks, probe, run_tasks

    for name, seconds, least in (("--min-time", min_time, 1e-4), ("--cooldown", cooldown, 0.0)):
        if not math.isfinite(seconds) or seconds < least:
            raise UsageError(f"{name} {seconds:g} is no number of seconds from {least:g} on")
    paths = [expand_user(path, "-o") for path in outputs or ()]
    check_targets(paths)
    sizes = parse_local(local)
    options = BenchOptions(min_time, runs, warmup, cooldown, seed)
    live = open_device(device)
    entries = read_entries(targets or [], suites or [], _dtype(dtype), live, shapes or [])
    swept = list(filter(None, sweep.split(",")))
    wanted = Routes.parse([*(routes or []), *(["all"] if "route" in swept else [])], entries)
    params = [name for name in swept if name != "route"]
    tasks = make_tasks(entries, wanted, live.device, sweep=params, local=sizes)
    floors = measure_floors(live)
    seconds_each = expected_s(tasks, live.device, options, probe(device, floors))
    header = _header(live, targets or [], suites or [], wanted, options, floors)
    header.options |= {"dtype": dtype or None, "sweep": sweep or None, "local": local or None}
    header.expected_s = round(sum(seconds_each), 1)
    rows: list[Row] = []
    _say(f"{len(tasks)} rows on {live.device.name}, about {_duration(sum(seconds_each))}")
    started = time.perf_counter()
    with _progress(tasks, seconds_each) as advance:
        try:
            for row in run_tasks(tasks, device=device, options=options, floors=floors):
                rows.append(row)
                advance(row)
        except KeyboardInterrupt:
            header.incomplete = True
    header.elapsed_s = round(time.perf_counter() - started, 1)
    mark_best(rows)
    live.save_pipeline_cache()
    result = Result(header=header, rows=rows)
    show(*header_lines(header), *screen_tables(result), *_legend(rows))
    for path in paths:
        with file_errors(path):
            write_result(result, [path])
        show(f"wrote {path}")
    if header.incomplete:
        raise typer.Exit(_EXIT_INTERRUPTED)
    if any(row.check == "FAILED" for row in rows):
        raise typer.Exit(1)


def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="The result to compare with.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="The result to judge.")],
    fail_over: Annotated[
        float | None,
        typer.Option("--fail-over", metavar="RATIO", help="Exit code 1 when a row is slower than this, say 1.05."),
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Leave out the rows that are the same.")] = False,
) -> None:
    """Compare two results of vkconv bench -o FILE.json row by row: B over A, so that above 1 is slower.

    A row differs when its medians do by more than three standard errors, as the spread of both gives them, and by
    more than 3 %. With --fail-over, a row that is not right any more fails too.
    """
    from vkconv.bench.compare import compare as compare_results
    from vkconv.bench.compare import comparison_table
    from vkconv.bench.rows import read_result
    from vkconv.table import Table

    if fail_over is not None and not (math.isfinite(fail_over) and fail_over >= 1):
        raise UsageError(f"--fail-over {fail_over:g} is no ratio from 1 on, such as 1.05")
    comparison = compare_results(read_result(a), read_result(b))
    table = comparison_table(comparison)
    if changed:
        table = Table("", table.columns, [c for c, p in zip(table.cells, comparison.pairs, strict=True) if not p.same])
    counts = {
        v: sum(p.verdict == v for p in comparison.pairs) for v in dict.fromkeys(p.verdict for p in comparison.pairs)
    }
    show(
        *(f"warning: {text}" for text in comparison.warnings),
        table,
        ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "no rows",
        *([f"geometric mean B/A {comparison.geometric_mean:.3f}"] if comparison.geometric_mean else []),
    )
    failed = comparison.regressions(fail_over) if fail_over is not None else []
    if failed:
        worst = ", ".join(f"{p.call} {p.route}: {p.verdict} {format_cell(p.ratio)}" for p in failed[:3])
        print(f"{len(failed)} of {len(comparison.pairs)} rows fail: {worst}", file=sys.stderr)
        raise typer.Exit(1)


def read_entries(
    targets: Sequence[str], suites: Sequence[str], dtype: DType | None, live: "LiveDevice", shapes: Sequence[str]
) -> "list[Entry]":
    """The calls that targets (calls, MIOpenDriver lines, models) and suites stand for, each once.

    Raises UsageError for what is none of them, and for a suite with a line that is wrong.
    """
    from vkconv.bench.miopen import is_miopen
    from vkconv.bench.suites import is_call, merge, model_entries, parse_entries, read_suite, shipped_suites
    from vkconv.graph import load_model

    bound = parse_shapes(shapes)
    entries: list[Entry] = []
    for text in targets:
        if is_miopen(text) or is_call(text):
            entries += parse_entries(text, dtype, must_exist=True)
        elif Path(text).suffix in (".vkc", ".onnx") or Path(text).is_file():
            graph = load_model(Path(text))
            require_shapes(graph.inputs, bound, "--shape")
            entries += model_entries(graph, live.device, bound)
        else:
            hint = did_you_mean(text, shipped_suites())
            raise UsageError(f"{text!r} is no call, no MIOpenDriver line and no model; suites go by --suite{hint}")
    for name in suites:
        entries += read_suite(name, dtype)
    if not entries:
        raise UsageError(f"nothing to measure: give calls, models or --suite {'|'.join(shipped_suites())}")
    return merge(entries)


def _dtype(text: str) -> DType | None:
    if text and text not in list(DType):
        raise UsageError(f"--dtype {text!r} is no element type{did_you_mean(text, list(DType))}; {', '.join(DType)}")
    return DType(text) if text else None


def parse_local(text: str) -> list[int]:
    """``"64,128x1x1"`` as the sizes along x; UsageError for others, workgroups of routes are lines."""
    sizes: list[int] = []
    for part in filter(None, text.split(",")):
        size = parse_shape(part)
        if not size or len(size) > 3 or size[0] < 1 or any(side != 1 for side in size[1:]):
            raise UsageError(f"--local {part}: workgroups of routes are lines; write 64 or 64x1x1")
        sizes.append(size[0])
    return list(dict.fromkeys(sizes))


def _header(
    live: "LiveDevice",
    targets: Sequence[str],
    suites: Sequence[str],
    routes: "Routes",
    options: "BenchOptions",
    floors: "Floors",
) -> "Header":
    from importlib.metadata import version

    from vkconv import __version__
    from vkconv.bench.rows import Header

    forced = dict(routes.by_op)
    if routes.every or routes.names:
        forced["*"] = "all" if routes.every else ",".join(routes.names)
    versions = {"vkconv": __version__, "kp": version("kp"), "python": platform.python_version()}
    return Header(
        device=live.device.name,
        device_key=live.device.key,
        driver=live.device.driver,
        vulkan=live.device.api_version,
        versions=versions,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        calls=", ".join([*targets[:3], *(["..."] if len(targets) > 3 else []), *(f"suite {name}" for name in suites)]),
        options={
            "min_time_s": options.min_time_s,
            "runs": options.runs,
            "warmup": options.warmup,
            "cooldown_s": options.cooldown_s,
            "seed": options.seed,
        },
        forced=forced,
        quirks=[quirk.id for quirk in live.device.quirks],
        floors=floors,
    )


def _legend(rows: "Iterable[Row]") -> list[str]:
    failed = sum(row.check == "FAILED" for row in rows)
    best = any(row.best for row in rows)
    return [
        *(["* the fastest right route of its call"] if best else []),
        *([f"{failed} FAILED: wrong results, not timed"] if failed else []),
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(1, math.ceil(seconds)), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


@contextlib.contextmanager
def _progress(tasks: "Sequence[Task]", seconds_each: Sequence[float]) -> "Iterator[Callable[[Row], None]]":
    """A function to tell of each row: a bar with the remaining time on a terminal, else a line on stderr."""
    from vkconv.bench.rows import params_str

    done = 0

    def line(row: "Row") -> None:
        nonlocal done
        done += 1
        took = f"{format_cell(row.us_median)} us" if row.us_median else row.why
        name = f"{row.route} {params_str(row.given)}".strip()
        _say(f"[{done}/{len(tasks)}] {row.call} {name or '-'}: {row.check}, {took}")

    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        # The bar moves by expected seconds, so that what remains is not guessed from the number of rows.
        work = bar.add_task("", total=sum(seconds_each) or 1.0)

        def advance(row: "Row") -> None:
            nonlocal done
            bar.update(work, advance=seconds_each[done], description=row.call[:40])
            done += 1

        yield advance
