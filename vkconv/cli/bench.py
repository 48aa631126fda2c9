"""``vkconv bench``: calls, models and suites timed on a device."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vkconv.cli.benched import Wanted, collect
from vkconv.cli.boards import bench_boards
from vkconv.cli.options import (
    MODELS,
    CallsDTypeOption,
    DeviceOption,
    FixedPushOption,
    JsonOption,
    NoPassOption,
    ParamOption,
    PassDumpOption,
    PolicyOption,
    ShapeOption,
    SuitesOption,
    WorkersOption,
    parse_params,
    parse_passes,
)
from vkconv.cli.output import duration, refuse_to_replace, save_each, say, show, show_json
from vkconv.core import DType, UsageError, counted, did_you_mean, expand_user
from vkconv.ops.core.calls import parse_shape

if TYPE_CHECKING:
    from vkconv.bench.rows import Header, Row


def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CALL|MODEL...",
            help="Calls (conv2d:x=1x64x56x56,w=64x64x3x3,p=1), lines of other tools in quotes ('conv -n 1 -c 64 ...'), "
            f"and {MODELS} files, which stand for the distinct calls of their plan.",
        ),
    ] = None,
    suites: SuitesOption = None,
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
    params: ParamOption = None,
    dtype: CallsDTypeOption = "",
    shapes: ShapeOption = None,
    no_pass: NoPassOption = None,
    pass_dump: PassDumpOption = None,
    policy: PolicyOption = "",
    fixed_push: FixedPushOption = None,
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
    workers: WorkersOption = "",
    outputs: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", metavar="FILE", help="Save as .json, .csv, .md, .html or .xml (JUnit); repeat."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure single calls: each is checked against its float64 reference first, then timed on the GPU's own clock.

    Ctrl-C and SIGTERM keep what was measured and end with exit code 130 and 143; 1 means that a row failed its check,
    or that a worker was lost.

    Examples: vkconv bench conv2d:x=1x64x56x56,w=64x64x3x3,p=1 --route all,
    vkconv bench --suite peers --sweep route,local,
    vkconv bench matmul:a=512x512,b=512x512 --route shared --param matmul=tile:64x64x16,
    vkconv bench --suite resnet50 -o before.json -o before.html, vkconv bench 'conv -n 16 -c 16 ... -F 1' --dtype f16
    """
    import msgspec

    from vkconv.bench.files import check_targets, write_result
    from vkconv.bench.rows import Result, header_lines, mark_best, screen_tables
    from vkconv.bench.sampling import BenchOptions

    for name, seconds, least in (("--min-time", min_time, 1e-4), ("--cooldown", cooldown, 0.0)):
        if not math.isfinite(seconds) or seconds < least:
            raise UsageError(f"{name} {seconds:g} is no number of seconds from {least:g} on")
    paths = [expand_user(path, "-o") for path in outputs or ()]
    check_targets(paths)
    refuse_to_replace(targets or (), *paths)
    options = BenchOptions(min_time, runs, warmup, cooldown, seed, fixed_push)
    wanted = Wanted(
        targets or [],
        suites or [],
        routes or [],
        sweep,
        parse_local(local),
        parse_dtype(dtype),
        shapes or [],
        device,
        options,
        parse_passes(no_pass),
        pass_dump,
        policy,
        parse_params(params),
    )
    if workers and pass_dump:
        raise UsageError("--pass-dump is of the plan for one device, and --workers plans for many")
    header, rows, code = bench_boards(workers, wanted) if workers else _bench_here(wanted)
    mark_best(rows)
    result = Result(header=header, rows=rows)
    written, problem = save_each(paths, lambda path: write_result(result, [path]))
    if as_json:
        show_json(msgspec.to_builtins(result), stamp=False)
    else:
        show(*header_lines(header), *screen_tables(result), *_legend(rows))
        show(*(f"wrote {path}" for path in written))
    if problem:
        raise problem
    if code:
        raise typer.Exit(code)
    if any(row.check in ("FAILED", "lost") for row in rows):
        raise typer.Exit(1)


def _bench_here(wanted: Wanted) -> "tuple[Header, list[Row], int]":
    from vkconv.backend.runtime import open_device
    from vkconv.bench.api import describe
    from vkconv.bench.calibrate import floors as measure_floors
    from vkconv.bench.runner import expected_s, probe, run_tasks

    live = open_device(wanted.device)
    facts = live.device
    tasks, routes = wanted.tasks(facts)
    floors = measure_floors(live)
    seconds_each = expected_s(tasks, facts, wanted.options, probe(wanted.device, floors))
    header = wanted.header(routes, sum(seconds_each))
    describe(header, facts)
    header.floors = floors
    say(f"{counted(len(tasks), 'row')} on {facts.name}, about {duration(sum(seconds_each))}")
    measured = run_tasks(tasks, device=wanted.device, options=wanted.options, floors=floors)
    rows, code = collect(measured, seconds_each, header)
    live.save_pipeline_cache()
    return header, rows, code


def parse_dtype(text: str) -> DType | None:
    """``f16`` as an element type; None for nothing. Raises UsageError."""
    if text and text not in list(DType):
        raise UsageError(
            f"--dtype {text!r} is no element type{did_you_mean(text, map(str, DType))}; {', '.join(DType)}"
        )
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


def _legend(rows: "Sequence[Row]") -> list[str]:
    failed = sum(row.check == "FAILED" for row in rows)
    best = any(row.best for row in rows)
    return [
        *(["* the fastest right route of its call"] if best else []),
        *([f"{failed} FAILED: wrong results, not timed"] if failed else []),
        *(f"{row.device} LOST: {row.why}" for row in rows if row.check == "lost"),
    ]
