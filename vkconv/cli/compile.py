"""``vkconv compile``: what the compilers of GPUs that are not here make of calls, models and suites."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vkconv.cli.compiled import asked_of, entries_of
from vkconv.cli.options import (
    MODELS,
    CallsDTypeOption,
    FixedPushOption,
    JsonOption,
    ParamOption,
    ShapeOption,
    SuitesOption,
    parse_params,
)
from vkconv.cli.output import bar, refuse_to_replace, save_each, say, show, show_json
from vkconv.cli.stopping import stopped_by, terminable
from vkconv.core import UsageError, expand_user

if TYPE_CHECKING:
    from vkconv.compilers.gpus import Gpu
    from vkconv.compilers.pipelines import Asked, Pipeline
    from vkconv.compilers.rows import Result
    from vkconv.compilers.runner import Compiled
    from vkconv.device import Device

_EXIT_FAILED = 1
_MAX_SECONDS = 3600

WithOption = Annotated[
    str,
    typer.Option(
        "--with",
        metavar="GPU,...",
        help="The compilers of these GPUs, which need not be here: adreno-740,navi31; vkconv compilers lists them.",
    ),
]


def compile_(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CALL|MODEL...",
            help="Calls (conv2d:x=1x64x56x56,w=64x64x3x3,p=1), lines of other tools in quotes, and "
            f"{MODELS} files, which stand for the distinct calls of their plan.",
        ),
    ] = None,
    with_: WithOption = "",
    suites: SuitesOption = None,
    all_ops: Annotated[bool, typer.Option("--all-ops", help="Every case of every op.")] = False,
    routes: Annotated[
        list[str] | None,
        typer.Option(
            "--route",
            metavar="chosen|all|ROUTE|OP=ROUTE",
            help="Routes to compile, separated by commas; chosen, without it, is the one that the planner takes.",
        ),
    ] = None,
    sweep: Annotated[
        str,
        typer.Option(
            metavar="PARAM,...",
            help="Every legal value of these parameters of the routes, such as tile: --route all --sweep tile,local.",
        ),
    ] = "",
    params: ParamOption = None,
    dtype: CallsDTypeOption = "",
    shapes: ShapeOption = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="FILE|NAME|live",
            help="Plan with this device file in place of the GPU's own; live: with what its driver says of itself.",
        ),
    ] = "",
    subgroup_size: Annotated[
        int, typer.Option(min=0, metavar="N", help="Ask for subgroups of so many invocations; 0: as the plan does.")
    ] = 0,
    fixed_push: FixedPushOption = None,
    max_seconds: Annotated[
        float,
        typer.Option(
            "--max-seconds",
            metavar="SECONDS",
            help="End a compilation that takes more processor time; it has failed then.",
        ),
    ] = 60.0,
    isa: Annotated[
        Path | None,
        typer.Option(
            "--isa", metavar="DIR", help="Save there what the compilers made: intermediate code and assembly."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, metavar="N", help="Compile so many at once; default: a core each."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Compile what is known from an earlier run with the same driver, too.")
    ] = False,
    outputs: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", metavar="FILE", help="Save as .json, .md or .html; repeat for several."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile for GPUs that are not here, by their own drivers' compilers: registers, occupancy, spills, instructions.

    Nothing is executed. Exit code 1 when a route that the planner takes (marked *) spills, is refused, ends the
    compiler or takes longer than --max-seconds. docs/compilers.md tells what the columns are.

    Examples: vkconv compile conv2d:x=1x64x56x56,w=64x64x3x3,p=1 --with adreno-740,navi31 --route all,
    vkconv compile model.onnx --with adreno-740 -o page.html, vkconv compile --suite mobilenet --with ga102 --isa asm,
    vkconv compile matmul:a=512x512,b=512x512 --with apple-m1 --route shared --sweep tile
    """
    from vkconv.check.report import check_targets
    from vkconv.compilers.gpus import find_gpus
    from vkconv.compilers.live import planning_device
    from vkconv.compilers.rows import Result

    paths = [expand_user(path, "-o") for path in outputs or ()]
    check_targets(paths)
    refuse_to_replace([*(targets or ()), device], *paths)
    if not with_:
        raise UsageError("whose compiler? --with adreno-740, or several GPUs; vkconv compilers lists them")
    gpus = find_gpus(with_)
    if not 0 < max_seconds <= _MAX_SECONDS:
        raise UsageError(f"--max-seconds {max_seconds:g} is no number of seconds above 0, at most {_MAX_SECONDS}")
    folder = isa and expand_user(isa, "--isa")
    given = parse_params(params)
    options = {
        "route": ",".join(routes) if routes else None,
        "sweep": sweep or None,
        "param": " ".join(params) if params else None,
        "dtype": dtype or None,
        "device": device or None,
        "subgroup_size": subgroup_size or None,
        "fixed_push": fixed_push,
        "max_seconds": max_seconds,
    }
    calls = [
        *(targets or [])[:3],
        *(["..."] if len(targets or []) > 3 else []),
        *(f"suite {name}" for name in suites or []),
    ]
    result = Result(calls=", ".join([*calls, *(["all ops"] if all_ops else [])]), options=options, gpus=[], rows=[])
    stopped = 0
    try:
        with terminable():
            for gpu in gpus:
                facts, name = planning_device(gpu, device)
                entries = entries_of(targets or [], suites or [], all_ops, dtype, facts, shapes or [])
                wanted = asked_of(entries, routes or [], sweep, facts, given)
                compile_wanted(
                    gpu, wanted, facts, name, result, max_seconds, subgroup_size, jobs, folder, again, fixed_push
                )
    except KeyboardInterrupt as error:
        result.incomplete, stopped = stopped_by(error)
        say(f"{result.incomplete}; what was compiled is kept, so that the next run goes on from there")
    if folder and folder.is_dir() and not as_json:
        show(f"{sum(1 for _ in folder.iterdir())} files of code in {folder}")
    _tell(result, paths, as_json)
    raise typer.Exit(stopped or (_EXIT_FAILED if result.failed else 0))


def compile_wanted(
    gpu: "Gpu",
    wanted: "Sequence[Asked]",
    facts: "Device",
    planned_with: str,
    result: "Result",
    max_seconds: float,
    subgroup_size: int = 0,
    jobs: int | None = None,
    isa: Path | None = None,
    again: bool = False,
    fixed_push: bool | None = None,
) -> None:
    """Add to a result the rows of one GPU for calls, planned with ``facts``, which are called ``planned_with``; the
    other arguments are the command's options. UsageError where there is nothing to compile, or the compiler is not
    installed; DeviceError where its driver does not start."""
    from vkconv.compilers.gpus import driver_of
    from vkconv.compilers.installed import installed_for
    from vkconv.compilers.pipelines import collect
    from vkconv.compilers.rows import GpuHeader, make_rows
    from vkconv.compilers.runner import compile_all

    there, driver = installed_for(gpu), driver_of(gpu)
    made = list(collect(wanted, facts, subgroup_size, fixed_push))
    pipelines = [step.pipeline for one in made for step in one.steps]
    if not pipelines:
        why = next((f": {one.why}" for one in made if one.why), "; these calls launch nothing")
        raise UsageError(f"there is nothing to compile for {gpu.name}, planned with {planned_with}{why}")
    compiled: dict[Pipeline, Compiled] = {}
    result.gpus.append(
        GpuHeader(
            name=gpu.name,
            title=gpu.title,
            driver=driver.title,
            version=there.version,
            planned_with=planned_with,
            occupancy=driver.occupancy,
            differences=there.differences,
        )
    )
    try:
        with bar() as tell:
            compile_all(
                gpu,
                pipelines,
                max_seconds=max_seconds,
                jobs=jobs,
                isa=isa,
                fresh=again,
                found=compiled,
                done=lambda done, count: tell(gpu.name, done, count),
            )
    finally:  # with Ctrl-C, the routes that are compiled as a whole
        whole = (one for one in made if all(step.pipeline in compiled for step in one.steps))
        result.rows += [row for one in whole for row in make_rows(gpu, one, compiled)]


def _tell(result: "Result", paths: Sequence[Path], as_json: bool) -> None:
    import msgspec

    from vkconv.check.report import write_page
    from vkconv.compilers.rows import failures_table, header_lines, rows_table, screen_tables, summary

    data = msgspec.to_builtins(result)
    by_gpu = {gpu.name: [row for row in result.rows if row.gpu == gpu.name] for gpu in result.gpus}
    failures = failures_table(result.rows)
    lines = header_lines(result)
    ends = [summary(gpu, result.rows) for gpu in result.gpus]
    parts = [("Not fit", failures), *((name, rows_table(rows)) for name, rows in by_gpu.items())]
    page = f"vkconv compile: {result.calls}", lines, parts, data, (), ends, bool(result.failed)
    written, problem = save_each(paths, lambda path: write_page(path, *page))
    if as_json:
        show_json(data)
    else:
        tables = [*(table for name, rows in by_gpu.items() for table in screen_tables(name, rows))]
        tables += [failures] if failures.cells else []
        legend = "* the route and parameters that the planner takes there"
        show(*lines, *tables, legend, *ends, *(f"wrote {path}" for path in written))
    if problem:
        raise problem
