"""``vkconv check``: what a device computes, held to float64 references, node by node, run by run, or all of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from vkconv.cli.checked import Report, Result, Work
from vkconv.cli.conform import conform_here, extent_of, parse_storages, stored_as
from vkconv.cli.models import find_device
from vkconv.cli.options import (
    MODELS,
    BoundAtOption,
    DeviceOption,
    DTypeOption,
    FewOption,
    FixedPushOption,
    HalfSumsOption,
    IODTypeOption,
    JsonOption,
    NoPassOption,
    NoQuirksOption,
    ParamOption,
    PassDumpOption,
    PolicyOption,
    RouteOption,
    ShapeOption,
    WorkersOption,
    parse_bounds,
    parse_dtypes,
    parse_floats,
    parse_io_dtype,
    parse_params,
    parse_passes,
    parse_routes,
)
from vkconv.cli.output import bar, refuse_to_replace
from vkconv.cli.passes import refuse_for_calls
from vkconv.cli.stopping import stopped_by, terminable
from vkconv.core import FLOAT_TYPES, UsageError

_EXIT_FAILED = 1


def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|CALL",
            help=f"A {MODELS} file, or a call: conv2d:x=1x64x56x56,w=128x64x3x3,p=1.",
        ),
    ] = None,
    all_ops: Annotated[
        bool, typer.Option("--all-ops", help="Check the device: every case of every op on every route it may take.")
    ] = False,
    ops: Annotated[
        list[str] | None, typer.Option("--op", metavar="OP", help="With --all-ops: only this op; repeat for several.")
    ] = None,
    short: Annotated[
        bool,
        typer.Option(
            "--short", help="With --all-ops: leave out the values of routes' parameters that are not planned here."
        ),
    ] = False,
    few: FewOption = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=SPEC",
            help="What to feed an input, or an operand of a call, as vkconv run has it: @FILE.npy or [SHAPE:]FILL. "
            "Without one: normal random numbers.",
        ),
    ] = None,
    shapes: ShapeOption = None,
    bounds: BoundAtOption = None,
    device: DeviceOption = "auto",
    limits: Annotated[
        str,
        typer.Option(
            metavar="FILE|NAME",
            help="Plan with the limits and routes of another device, by the name of a shipped device file (vkconv "
            "devices files) or a path, and run that here.",
        ),
    ] = "",
    storage: Annotated[
        str,
        typer.Option(
            "--storage",
            metavar="native|packed",
            help="How 16-bit floats lie in buffers: packed plans as on a device that cannot address 16 bits, two to a "
            "word. With --all-ops both are checked, without this.",
        ),
    ] = "",
    routes: RouteOption = None,
    params: ParamOption = None,
    policy: PolicyOption = "",
    no_passes: Annotated[
        bool, typer.Option("--no-passes", help="Keep every node as the model has it: fold and fuse nothing.")
    ] = False,
    no_pass: NoPassOption = None,
    pass_dump: PassDumpOption = None,
    dtypes: DTypeOption = None,
    io_dtype: IODTypeOption = "",
    half_sums: HalfSumsOption = False,
    no_quirks: NoQuirksOption = False,
    fixed_push: FixedPushOption = None,
    stop_at_first: Annotated[
        bool, typer.Option("--stop-at-first", help="End with the first node that is wrong.")
    ] = False,
    dump: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Save each node that is wrong there: a model of it alone, its inputs, what it must give, the command.",
        ),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Also run it N times and compare every value byte by byte.")
    ] = None,
    sweep: Annotated[
        str,
        typer.Option(
            metavar="WHAT,...",
            help="Also check each distinct call with every legal value of these parameters of its route, such as "
            "local, or on every route: --sweep route,local. With --repeat, each so many times.",
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the inputs of calls.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            metavar="N",
            help="With --all-ops: check in so many processes, each with the device open; default: one for each core. "
            "1 is this process alone, which a driver that crashes ends.",
        ),
    ] = None,
    workers: WorkersOption = "",
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Save as .json, .csv, .md, .html or .xml (JUnit); repeat for several.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find what a device computes wrongly: the first node of a model, or any op on any route.

    Each node is checked alone, from reference inputs, and in the whole run; tolerances come from element type and
    number of terms. Exit code 1 when anything is wrong, or a worker was lost. What is done is kept when it is stopped:
    exit code 130 for Ctrl-C, 143 for SIGTERM.

    Examples: vkconv check m.onnx --stop-at-first --dump wrong,
    vkconv check m.vkc --limits mali-g57, vkconv check m.vkc --repeat 50,
    vkconv check conv2d:x=1x64x56x56,w=64x64x3x3,p=1 --sweep route,local --repeat 20,
    vkconv check --all-ops -o page.html, vkconv check --all-ops --dtype f16 --storage packed
    """
    from vkconv.check.report import CASE_SUFFIXES, SUFFIXES, check_targets
    from vkconv.plan.planner import Options

    if workers:
        from vkconv.cli.boards import check_boards, conform_boards

    paths = [path.expanduser() for path in outputs or ()]
    check_targets(paths, (*SUFFIXES, *CASE_SUFFIXES))
    refuse_to_replace([target, limits], *paths)
    other = find_device(limits) if limits else None
    if all_ops:
        of_models = inputs, shapes, bounds, io_dtype, half_sums, no_pass, pass_dump
        given = (sweep, repeat, dump, routes, params, policy, *of_models)
        if target is not None or any(given):
            raise UsageError(
                "--all-ops checks the device by itself: it goes with --op, --short, --few, --dtype, --storage, "
                "--fixed-push, --device, --limits, --jobs, --workers and -o only"
            )
        floats, storages = parse_floats(dtypes) if dtypes else list(FLOAT_TYPES), parse_storages(storage)
        extent = extent_of(short, few)
        if workers:
            if jobs:
                raise UsageError("--jobs is for this machine: with --workers, each board checks in one process")
            with bar() as tell:
                report = conform_boards(workers, ops or [], floats, storages, extent, device, other, tell, fixed_push)
            _end(report, 0, paths, as_json)
        _end(
            *conform_here(ops or [], floats, storages, device, other, jobs, extent, paths, fixed_push),
            paths,
            as_json,
        )
    for name, unfit in (("--op", ops), ("--short", short), ("--few", few), ("--jobs", jobs)):
        if unfit:
            raise UsageError(f"{name} goes with --all-ops")
    if target is None:
        raise UsageError("nothing to check: name a model or a call, or give --all-ops")
    dtype, of_nodes, auto = parse_dtypes(dtypes)
    options = Options(
        routes=parse_routes(routes),
        params=parse_params(params),
        policy=policy,
        passes=not no_passes,
        quirks=not no_quirks,
        dtype=dtype,
        dtypes=of_nodes,
        io_dtype=parse_io_dtype(io_dtype),
        half_sums=half_sums,
        skip_passes=parse_passes(no_pass),
        fixed_push=fixed_push,
    )
    if storage:
        if workers:
            raise UsageError("--storage is for a device of this machine, and for --all-ops")
        other = stored_as(storage, device, other)
    work = Work(target, inputs or [], seed, device, other, limits, options, storage, shapes or [], parse_bounds(bounds))
    if work.is_call:
        refuse_for_calls(no_pass, pass_dump)
    if auto:
        if workers or work.is_call:
            raise UsageError("--dtype auto is for a model on one device: it is found there, node by node")
        work.find_types()
    swept = [name for name in sweep.split(",") if name]
    if workers:
        if dump or pass_dump:
            option = "--dump" if dump else "--pass-dump"
            raise UsageError(
                f"{option} writes files here, and --workers checks elsewhere: give {option} on the board itself"
            )
        with bar() as tell:
            report = check_boards(workers, work, stop_at_first, repeat or 0, swept, seed, tell)
        _end(report, 0, paths, as_json)
    if pass_dump:
        work.dump_passes(pass_dump)
    result, code = Result(work), 0
    try:
        with terminable(), bar() as tell:
            result.check(stop_at_first, tell)
            if repeat:
                result.stopped = "before its replays were compared"
                result.repeat(repeat)
            if swept:
                result.stopped = "before all that was to be swept"
                result.sweep(swept, repeat or 2, seed, tell)
            result.stopped = ""
    except KeyboardInterrupt as error:
        told, code = stopped_by(error)
        if result.model is None:
            raise typer.Exit(code) from None
        result.stopped = f"{told} {result.stopped}"
    _end(result.report(result.dump(dump) if dump else []), code, paths, as_json)


def _end(report: Report, code: int, paths: Sequence[Path], as_json: bool) -> NoReturn:
    report.tell(paths, as_json)
    raise typer.Exit(code or (_EXIT_FAILED if report.failed else 0))
