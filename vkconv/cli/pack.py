"""``vkconv pack``: models, calls, suites and all ops as a folder for a device that vkconv itself does not run on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vkconv.cli.benched import read_entries
from vkconv.cli.cached import run_at_the_bound
from vkconv.cli.conform import extent_of, parse_storages
from vkconv.cli.inputs import make_inputs
from vkconv.cli.models import CALL, find_device
from vkconv.cli.options import (
    BoundAtOption,
    DTypeOption,
    FewOption,
    FixedPushOption,
    HalfSumsOption,
    IODTypeOption,
    NoPassOption,
    NoQuirksOption,
    ParamOption,
    PassDumpOption,
    PolicyOption,
    ShapeOption,
    SuitesOption,
    parse_bounds,
    parse_dtypes,
    parse_floats,
    parse_io_dtype,
    parse_params,
    parse_passes,
    parse_routes,
)
from vkconv.cli.output import file_errors, say, show
from vkconv.cli.passes import passes_lines, save_passes
from vkconv.core import FLOAT_TYPES, DType, UsageError, bytes_str, counted
from vkconv.device import Device

if TYPE_CHECKING:
    from vkconv.check.conformance import Extent
    from vkconv.phone.calls import PackedRow
    from vkconv.plan.pack import PackFolder
    from vkconv.plan.planner import Options

PackRouteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--route",
        metavar="all|ROUTE|OP=ROUTE|node:NAME=ROUTE",
        help="Of calls: the routes to pack, all of them with all. Of models: force a route for an op or a node.",
    ),
]


def pack(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL|CALL...", help="Models, calls (matmul:a=4x8,b=8x4) and lines of other tools."),
    ] = None,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to write; a pack that is in it is replaced.")
    ] = Path(),
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="FILE|NAME|INDEX",
            envvar="VKCONV_DEVICE",
            help="What to plan for: a device file, the name of a shipped one, or a device of this machine.",
        ),
    ] = "auto",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="NAME=SPEC", help="Inputs of the model: as vkconv run has them; random without."
        ),
    ] = None,
    shapes: ShapeOption = None,
    bounds: BoundAtOption = None,
    suites: SuitesOption = None,
    all_ops: Annotated[
        bool, typer.Option("--all-ops", help="Every case of every op on every route, as vkconv check has it.")
    ] = False,
    ops: Annotated[
        list[str] | None, typer.Option("--op", metavar="OP", help="With --all-ops: only this op; repeatable.")
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="With --all-ops: leave out other values of parameters than the planned.")
    ] = False,
    few: FewOption = False,
    storage: Annotated[
        str, typer.Option("--storage", metavar="native|packed", help="With --all-ops: how 16-bit floats lie.")
    ] = "",
    routes: PackRouteOption = None,
    sweep: Annotated[
        str,
        typer.Option(metavar="WHAT,...", help="Of calls: every legal value of these parameters, or of route."),
    ] = "",
    params: ParamOption = None,
    policy: PolicyOption = "",
    dtypes: DTypeOption = None,
    io_dtype: IODTypeOption = "",
    half_sums: HalfSumsOption = False,
    fixed_push: FixedPushOption = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the inputs of calls.")] = 0,
    no_pass: NoPassOption = None,
    pass_dump: PassDumpOption = None,
    no_quirks: NoQuirksOption = False,
) -> None:
    """Write SPIR-V, commands, weights, inputs and what every node must give, for one device.

    What is there is all that the player (native/player, vkconv phone) needs to run it, and to name the first node that
    is wrong: docs/format.md states the format.

    Examples: vkconv pack m.onnx FOLDER --device mali-g57, vkconv pack --suite resnet50 --route all FOLDER -d a.json,
    vkconv pack --all-ops --dtype f16 --short FOLDER -d adreno-750
    """
    from vkconv.graph import SUFFIXES
    from vkconv.plan.pack import PackFolder
    from vkconv.plan.planner import Options

    only = None if targets else str(folder)
    if folder == Path() or (only and (CALL.match(only) or Path(only).suffix in SUFFIXES)):
        raise UsageError(f"name the folder to write: vkconv pack {only if folder != Path() else 'MODEL|CALL...'} DIR")
    folder = folder.expanduser()
    models = [Path(text) for text in targets or () if not CALL.match(text) and Path(text).suffix in SUFFIXES]
    calls = [text for text in targets or () if Path(text) not in models]
    facts = find_device(device)
    dtype, of_nodes, auto = parse_dtypes(dtypes) if not all_ops else (None, {}, False)
    if auto:
        raise UsageError("--dtype auto runs the model to find out: say which types the pack is to have")
    with file_errors(folder):
        to = PackFolder(folder)
        if all_ops:
            of_others = targets, suites, routes, sweep, params, policy, inputs, shapes, bounds
            if any(of_others):
                raise UsageError(
                    "--all-ops goes with --op, --short, --few, --dtype, --storage, --fixed-push and --device only"
                )
            floats = parse_floats(dtypes) if dtypes else list(FLOAT_TYPES)
            said = _all_ops(to, facts, ops or [], floats, storage, extent_of(short, few), fixed_push)
        else:
            if ops or short or few or storage:
                raise UsageError("--op, --short, --few and --storage go with --all-ops")
            options = Options(
                routes=parse_routes(routes) if models else {},
                params=parse_params(params),
                policy=policy,
                quirks=not no_quirks,
                skip_passes=parse_passes(no_pass),
                dtype=dtype,
                dtypes=of_nodes,
                io_dtype=parse_io_dtype(io_dtype),
                half_sums=half_sums,
                fixed_push=fixed_push,
            )
            said = []
            rows = parse_bounds(bounds)
            for model in models:
                said += _model(to, model, facts, options, inputs or [], shapes or [], rows, pass_dump)
            if calls or suites:
                if models:
                    raise UsageError("a folder holds models, or calls and suites: their options differ")
                of_models = half_sums, io_dtype, of_nodes, params, policy, no_pass, pass_dump, inputs, shapes, rows
                if any(of_models):
                    raise UsageError(
                        "--half-sums, --io-dtype, --param, --policy, --input, --shape, --bound and options about "
                        "passes are for models; of calls, --route names the routes that sum in f16"
                    )
                said = _calls(to, facts, calls, suites or [], routes or [], sweep, dtype, seed, fixed_push)
        if not len(to):
            raise UsageError(
                "\n".join(["nothing to pack", *said])
                if said
                else "nothing to pack: give models, calls, --suite or --all-ops"
            )
        to.close()
        nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    plural = "s" * (len(to) != 1)
    show(f"wrote {folder}: {len(to)} pack{plural} for {facts.name}, {bytes_str(nbytes)}", *said)


def _model(
    folder: "PackFolder",
    path: Path,
    facts: Device,
    options: "Options",
    inputs: Sequence[str],
    shapes: Sequence[str],
    bounds: Mapping[str, int],
    pass_dump: Path | None,
) -> list[str]:
    from vkconv.graph import load_model
    from vkconv.ops import OPS
    from vkconv.phone.packs import model_plan
    from vkconv.plan.bound import steered
    from vkconv.plan.precision import input_specs

    graph = load_model(path)
    if bounds:
        graph, arrays, texts, options = run_at_the_bound(graph, inputs, shapes, bounds, options)
    else:
        arrays, texts = make_inputs(input_specs(graph, OPS, options.io_dtype), inputs, shapes, lambda: facts)
    graph, arrays = steered(graph, OPS, arrays)
    bound = {name: array.shape for name, array in arrays.items()}
    written = save_passes(pass_dump, graph, facts, options, bound)
    packed = model_plan(folder, graph, arrays, facts, options, str(path))
    folder.add(packed.plan, str(path))
    return [
        f"{path}: {counted(packed.dispatches, 'dispatch', 'es')}, {counted(len(packed.nodes), 'node')} to check",
        *(f"input {name} = {text}" for name, text in texts.items()),
        *(f"{node.node}: {node.refused}" for node in packed.nodes if node.refused),
        *passes_lines(options, written),
    ]


def _calls(
    folder: "PackFolder",
    facts: Device,
    calls: Sequence[str],
    suites: Sequence[str],
    routes: Sequence[str],
    sweep: str,
    dtype: DType | None,
    seed: int,
    fixed_push: bool | None,
) -> list[str]:
    return _left_out(pack_calls(folder, facts, calls, suites, routes, sweep, dtype, seed, (), fixed_push))


def pack_calls(
    folder: "PackFolder",
    facts: Device,
    calls: Sequence[str],
    suites: Sequence[str],
    routes: Sequence[str],
    sweep: str,
    dtype: DType | None,
    seed: int,
    shapes: Sequence[str] = (),
    fixed_push: bool | None = None,
) -> "list[PackedRow]":
    """Write calls, those of models with these ``shapes`` of inputs, and suites on the routes that are asked for,
    planned with ``fixed_push`` (`Options`); their rows."""
    from vkconv.bench.runner import Routes, make_tasks
    from vkconv.bench.suites import merge_alike
    from vkconv.phone.calls import pack_tasks

    entries = merge_alike(read_entries(calls, suites, dtype, facts, shapes))
    swept = list(filter(None, sweep.split(",")))
    wanted = Routes.parse([*routes, *(["all"] if "route" in swept else [])], entries)
    tasks = make_tasks(entries, wanted, facts, sweep=[name for name in swept if name != "route"])
    return list(pack_tasks(folder, tasks, facts, seed, fixed_push))


def _left_out(rows: "Sequence[PackedRow]") -> list[str]:
    """What was not packed, with the reasons that came most often."""
    out = [row.row for row in rows if row.place is None]
    lines = [f"{row.call} {row.route}: {row.check}, {row.why}" for row in out]
    return (
        [f"not in it, {counted(len(out), 'row')}:", *lines[:8], *([f"and {len(out) - 8} more"] if len(out) > 8 else [])]
        if out
        else []
    )


def _all_ops(
    folder: "PackFolder",
    facts: Device,
    ops: Sequence[str],
    floats: Sequence[DType],
    storage: str,
    extent: "Extent",
    fixed_push: bool | None,
) -> list[str]:
    from vkconv.check.conformance import checks
    from vkconv.phone.calls import pack_checks

    work = checks(facts, ops, floats, parse_storages(storage), extent, fixed_push)
    say(f"{len(work):,} checks for {facts.name}")
    packed = list(pack_checks(folder, work, facts))
    refused = sum(not check.places for check in packed)
    return [f"{len(work) - refused:,} checks; {refused:,} more are refused there"]
