"""``vkconv explain``: which route every node takes on a device and why, every route of one call, what speaks against
one, and how devices differ."""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkconv.cli.cached import grown_model
from vkconv.cli.models import CALL, FactsOption, as_call, find_device, load_graph
from vkconv.cli.options import (
    MODELS,
    BoundOption,
    DTypeOption,
    FixedPushOption,
    HalfSumsOption,
    IODTypeOption,
    JsonOption,
    MemoryOption,
    NoPassOption,
    NoQuirksOption,
    ParamOption,
    PassDumpOption,
    PiecesOption,
    PolicyOption,
    RouteOption,
    ShapeOption,
    StagingOption,
    bound_shapes,
    parse_bounds,
    parse_bytes,
    parse_dtypes,
    parse_io_dtype,
    parse_params,
    parse_passes,
    parse_routes,
    refuse_shapes_of_call,
)
from vkconv.cli.output import show, show_json
from vkconv.cli.passes import passes_lines, refuse_for_calls, save_passes
from vkconv.core import UsageError, counted
from vkconv.device import Device
from vkconv.table import Column, Table

if TYPE_CHECKING:
    from vkconv.call import Call
    from vkconv.plan.model import Plan
    from vkconv.plan.planner import Options

Parts = Sequence[Table | str]


def explain(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|CALL",
            help=f"A {MODELS} file, or a call: conv2d:x=1x64x56x56,w=128x64x3x3,p=1.",
        ),
    ],
    device: FactsOption = "auto",
    shapes: ShapeOption = None,
    bounds: BoundOption = None,
    routes: RouteOption = None,
    params: ParamOption = None,
    policy: PolicyOption = "",
    dtypes: DTypeOption = None,
    io_dtype: IODTypeOption = "",
    memory: MemoryOption = None,
    half_sums: HalfSumsOption = False,
    no_pass: NoPassOption = None,
    pass_dump: PassDumpOption = None,
    no_quirks: NoQuirksOption = False,
    staging: StagingOption = None,
    pieces: PiecesOption = None,
    fixed_push: FixedPushOption = None,
    why_not: Annotated[
        str,
        typer.Option(
            "--why-not",
            metavar="ROUTE",
            help="Show what speaks against one route of a call, with parameters by --param: each requirement, and what "
            "it read.",
        ),
    ] = "",
    compare: Annotated[
        str,
        typer.Option(
            "--compare",
            metavar="DEVICE,DEVICE",
            help="Show what each of these devices takes, and which facts, numbers and policies flip the choice.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show which route every node takes on a device and why, or every route of one call with what its rules read.

    Examples: vkconv explain conv2d:x=1x64x56x56,w=64x64x3x3,p=1 -d mali-g715 --why-not winograd,
    vkconv explain model.onnx --compare mali-g715,adreno-750
    """
    dtype, of_nodes, auto = parse_dtypes(dtypes)
    if auto:
        raise UsageError(f"--dtype auto needs inputs: vkconv check {target} --dtype auto says what to give here")
    if why_not and compare:
        raise UsageError("--why-not and --compare exclude each other")
    if compare:
        source = context.get_parameter_source("device")
        named = source is not None and source.name == "COMMANDLINE"  # VKCONV_DEVICE is for other commands too
        for option, given in (("--device", named), ("--pass-dump", pass_dump)):
            if given:
                raise UsageError(f"{option} is of one device, and --compare {compare} names several: leave one out")
    from vkconv.plan.planner import Options

    options = Options(
        routes=parse_routes(routes),
        params=parse_params(params),
        policy=policy,
        dtype=dtype,
        dtypes=of_nodes,
        io_dtype=parse_io_dtype(io_dtype),
        quirks=not no_quirks,
        staging=staging,
        pieces=pieces,
        fixed_push=fixed_push,
        memory_bytes=parse_bytes(memory, "--memory"),
        half_sums=half_sums,
        skip_passes=parse_passes(no_pass),
    )
    target = as_call(target)
    if CALL.match(target) and not Path(target).exists():
        if bounds:
            raise UsageError("--bound is for models; nothing of a call grows")
        refuse_shapes_of_call(shapes)
        if io_dtype:
            raise UsageError("--io-dtype is for models; write the call's element type in its text: dtype=f16")
        refuse_for_calls(no_pass, pass_dump)
        call = _call(target, options)
        options = dataclasses.replace(options, dtype=None, dtypes={})
        parts, data = _of_call(call, device, options, why_not, compare)
    else:
        if why_not:
            raise UsageError("--why-not is for a call: vkconv explain MODEL lists the calls of its nodes")
        parts, data = _of_model(Path(target), device, options, shapes, compare, pass_dump, parse_bounds(bounds))
    if as_json:
        show_json(data)
    else:
        show(*parts)


def _call(text: str, options: "Options") -> "Call":
    """The call of a text, in the type that the options have for it."""
    from vkconv.ops import OPS
    from vkconv.ops.core.calls import in_dtype, parse_call
    from vkconv.plan.precision import checked_types
    from vkconv.plan.single import CALL_NODE

    call = parse_call(text, OPS)
    for option, keys in (("--route", options.routes), ("--param", options.params)):
        others = [key for key in keys if re.split("[:/]", key)[0] != call.op]
        if others:
            raise UsageError(f"{option} {others[0]}={keys[others[0]]}: this call is {call.op}, not {others[0]}")
    dtype, dtypes = checked_types(options.dtype, options.dtypes, [f"node:{CALL_NODE}"], OPS)
    wanted = dtypes.get(f"node:{CALL_NODE}", dtypes.get(call.op, dtype))
    return parse_call(in_dtype(text, wanted), OPS) if wanted else call


def _of_call(call: "Call", device: str, options: "Options", why_not: str, compare: str) -> tuple[Parts, dict[str, Any]]:
    from vkconv.plan import decisions
    from vkconv.plan.explain import explain_call
    from vkconv.plan.measured import find_measured

    if compare:
        table, data = decisions.compare([call], _devices(compare), options)
        return (table,), data
    facts = find_device(device)
    options = dataclasses.replace(options, measured=find_measured(facts))
    if why_not:
        table, data = decisions.why_not(call, facts, options, why_not)
        return (table,), data
    table, data = explain_call(call, facts, options)
    return (table, *([decisions.reads_table(data["read"])] if data["read"] else [])), data


def _of_model(
    path: Path,
    device: str,
    options: "Options",
    shapes: list[str] | None,
    compare: str,
    pass_dump: Path | None,
    bounds: Mapping[str, int],
) -> tuple[Parts, dict[str, Any]]:
    from vkconv.ops import OPS
    from vkconv.plan import decisions
    from vkconv.plan.explain import explain_plan, explain_plan_data
    from vkconv.plan.measured import find_measured, ignored, ignored_summary
    from vkconv.plan.planner import plan
    from vkconv.plan.stages import cut_stages, stage_graph, stage_table

    whole = load_graph(path)
    grown = None
    if bounds:
        grown, options = grown_model(whole, shapes, bounds, options)
        whole = grown.graph
    caches = grown.caches if grown else ()
    bound = bound_shapes(whole.inputs, None if grown else shapes)
    # What comes after the first stage is planned once a run knows its sizes.
    stages = cut_stages(whole, OPS)
    if (first_node := stages[0].control) is not None:
        raise UsageError(
            f"{whole.name!r} begins with {first_node}, and what that runs depends on values: run it instead"
        )
    first = {name: whole.inputs[name] for name in stages[0].inputs}
    graph = whole if len(stages) == 1 else stage_graph(whole, stages[0], first)
    bound = {name: shape for name, shape in bound.items() if name in first or name not in whole.inputs}
    if compare:
        devices = _devices(compare)
        plans = [plan(graph, one, options, bound, caches=caches).plan for one in devices]
        # Passes may make other nodes for another device: calls that not every device has are compared all the same.
        calls = {node.text: node.call for made in plans for node in made.nodes if node.choice}
        table, data = decisions.compare(list(calls.values()), devices, options)
        return (table,), data
    facts = find_device(device)
    options = dataclasses.replace(options, measured=find_measured(facts))
    written = save_passes(pass_dump, graph, facts, options, bound)
    planned = plan(graph, facts, options, bound, caches=caches).plan
    rows = ignored(options.measured, {node.text: node.call for node in planned.nodes}, planned.device)
    data = explain_plan_data(planned)
    data["measured_ignored"] = {text: dataclasses.asdict(one) for text, one in rows.items()}
    if len(stages) > 1:
        data["stages"] = stage_table(whole.name, stages).rows
    title, nodes = _without_why(explain_plan(planned))
    if grown:
        data["caches"] = {"inputs": list(grown.caches), "rows": grown.rows, "bound": grown.most + grown.rows}
    said = [*([str(grown)] if grown else []), *passes_lines(options, written), *filter(None, [ignored_summary(rows)])]
    later = [stage_table(whole.name, stages, [sum(n.dispatches for n in planned.nodes)])] if len(stages) > 1 else []
    return (title, *said, nodes, _routes_taken(planned), *later), data


def _devices(text: str) -> list[Device]:
    names = [name for name in text.split(",") if name]
    if len(names) < 2:
        few = counted(len(names), "device")
        raise UsageError(f"--compare {text} names {few}; it takes two or more: --compare h200,mali-g715")
    if twice := [name for name, count in collections.Counter(names).items() if count > 1]:
        raise UsageError(f"--compare {text} names {twice[0]} twice; it takes devices that differ")
    return [find_device(name) for name in names]


def _without_why(table: Table) -> tuple[str, Table]:
    """The title and the nodes, without the sentence that says the same of every node of a route."""
    kept = [i for i, column in enumerate(table.columns) if column.name != "why"]
    return table.title, Table("", [table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.cells])


def _routes_taken(plan: "Plan") -> Table:
    """Each route of a plan once: how many nodes take it, and why it exists."""
    choices = [(node.call.op, node.choice.route) for node in plan.nodes if node.choice]
    counts = collections.Counter((op, route.name, route.why) for op, route in choices)
    rows = [(op, route, count, why) for (op, route, why), count in counts.most_common()]
    return Table("", [Column(name) for name in ("op", "route", "nodes", "why")], rows)
