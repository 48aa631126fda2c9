"""``vkconv estimate``: how long calls take at least on GPUs that are not here, by what their compilers make of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vkconv.cli.compiled import asked_of, entries_of
from vkconv.cli.options import (
    MODELS,
    CallsDTypeOption,
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
    from vkconv.compilers.estimate import Result
    from vkconv.compilers.gpus import Gpu
    from vkconv.device import Device

_EXIT_FAILED = 1
_MAX_SECONDS = 3600


def estimate(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CALL|MODEL...",
            help="Calls (conv2d:x=1x64x56x56,w=64x64x3x3,p=1), lines of other tools in quotes, and "
            f"{MODELS} files, which stand for the distinct calls of their plan.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="GPU|FILE|NAME",
            help="The GPU: one that vkconv compilers lists, or with --with any device file, whose numbers are taken.",
        ),
    ] = "",
    with_: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="GPU",
            help="Compile for this GPU, where the device has no compiler of its own: -d mali-g715 --with mali-g610.",
        ),
    ] = "",
    suites: SuitesOption = None,
    routes: Annotated[
        list[str] | None,
        typer.Option(
            "--route",
            metavar="chosen|all|ROUTE|OP=ROUTE",
            help="Routes, separated by commas; chosen, without it, is the one that the planner takes.",
        ),
    ] = None,
    params: ParamOption = None,
    sweep: Annotated[
        str,
        typer.Option(metavar="PARAM,...", help="Every legal value of these parameters of the routes, such as tile."),
    ] = "",
    dtype: CallsDTypeOption = "",
    shapes: ShapeOption = None,
    max_seconds: Annotated[
        float,
        typer.Option("--max-seconds", metavar="SECONDS", help="End a compilation that takes more processor time."),
    ] = 60.0,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, metavar="N", help="Compile so many at once; default: a core each."),
    ] = None,
    outputs: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", metavar="FILE", help="Save as .json, .md or .html; repeat for several."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate how long calls take at least on a GPU that is not here, and what holds each of them up.

    A lower bound in microseconds, not a forecast: the compiler's instructions or cycles, weighed by how often loops
    run, at the GPU's clock on its cores; memory traffic at its bandwidth; a launch each. What is left out stands below
    the table. It tells routes apart that differ much; docs/estimate.md holds it against published times. Exit code 1
    when a route that the planner takes (marked *) has no bound, since a kernel of it does not compile.

    Examples: vkconv estimate conv2d:x=1x64x56x56,w=64x64x3x3,p=1 --device adreno-740 --route all,
    vkconv estimate --suite mobilenet -d mali-g715 --with mali-g610, vkconv estimate model.onnx -d navi31 -o page.html,
    vkconv estimate conv2d:x=1x64x56x56,w=64x64x1x1 -d adreno-740 --route pointwise --param conv2d=local:64
    """
    from vkconv.check.report import check_targets
    from vkconv.compilers.estimate import estimate_all
    from vkconv.compilers.live import planning_device

    paths = [expand_user(path, "-o") for path in outputs or ()]
    check_targets(paths)
    refuse_to_replace([*(targets or ()), device], *paths)
    if not 0 < max_seconds <= _MAX_SECONDS:
        raise UsageError(f"--max-seconds {max_seconds:g} is no number of seconds above 0, at most {_MAX_SECONDS}")
    gpu = _gpu(device, with_)
    facts, name = planning_device(gpu, device if with_ else "")
    given = parse_params(params)
    entries = entries_of(targets or [], suites or [], False, dtype, facts, shapes or [])
    wanted = asked_of(entries, routes or [], sweep, facts, given)
    options: dict[str, str | float | int | None] = {
        "route": ",".join(routes) if routes else None,
        "param": " ".join(params) if params else None,
        "sweep": sweep or None,
        "dtype": dtype or None,
    }
    words = [*(targets or [])[:3], *(["..."] if len(targets or []) > 3 else []), *(f"suite {s}" for s in suites or [])]
    stopped = 0
    result = _result(gpu, facts, name, ", ".join(words), options)
    try:
        with terminable(), bar() as tell:
            estimate_all(gpu, wanted, facts, max_seconds=max_seconds, jobs=jobs, found=result.rows, done=tell)
    except KeyboardInterrupt as error:
        result.incomplete, stopped = stopped_by(error)
        say(f"{result.incomplete}; what was compiled is kept, so that the next run goes on from there")
    _tell(result, paths, as_json)
    raise typer.Exit(stopped or (_EXIT_FAILED if result.failed else 0))


def _gpu(device: str, with_: str) -> "Gpu":
    """Whose compiler: that of ``--with``, else of the device by the name of a GPU or of its device file."""
    from vkconv.compilers.gpus import data, find_gpu

    if not device:
        raise UsageError("which GPU? --device adreno-740; vkconv compilers lists those that can be compiled for")
    if with_:
        return find_gpu(with_)
    for gpu in data().gpus:
        if gpu.device == device:
            return gpu
    try:
        return find_gpu(device)
    except UsageError as error:
        raise UsageError(f"{error}; --with GPU compiles for another one, and takes the numbers of {device}") from None


def _result(
    gpu: "Gpu", facts: "Device", planned_with: str, calls: str, options: "dict[str, str | float | int | None]"
) -> "Result":
    """The conditions, without a row."""
    from vkconv.compilers.estimate import Result, numbers_used, pipes_of
    from vkconv.compilers.gpus import driver_of
    from vkconv.compilers.installed import installed_for
    from vkconv.compilers.rows import GpuHeader

    there, driver = installed_for(gpu), driver_of(gpu)
    header = GpuHeader(
        name=gpu.name,
        title=gpu.title,
        driver=driver.title,
        version=there.version,
        planned_with=planned_with,
        occupancy=driver.occupancy,
        differences=there.differences,
    )
    return Result(
        calls=calls,
        options=options,
        gpu=header,
        target=numbers_used(facts),
        pipes=list(pipes_of(gpu.driver)),
        rows=[],
    )


def _tell(result: "Result", paths: Sequence[Path], as_json: bool) -> None:
    import msgspec

    from vkconv.check.report import write_page
    from vkconv.compilers.estimated import header_lines, left_out_line, rows_table, screen_tables, summary, target_table

    data = msgspec.to_builtins(result)
    lines, ends = header_lines(result), [summary(result), left_out_line(result)]
    parts = [("At least", rows_table(result.rows)), ("Numbers of the target", target_table(result))]
    page = f"vkconv estimate: {result.calls}", lines, parts, data, (), ends, bool(result.failed)
    written, problem = save_each(paths, lambda path: write_page(path, *page))
    if as_json:
        show_json(data)
    else:
        show(
            *header_lines(result),
            *screen_tables(result),
            "* the route and parameters that the planner takes there",
            left_out_line(result),
            summary(result),
            *(f"wrote {path}" for path in written),
        )
    if problem:
        raise problem
