"""``vkconv run``: one model on one device, timed, its outputs looked at and saved."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkconv.cli.cached import run_cached
from vkconv.cli.fallback import run_delegated
from vkconv.cli.in_flight import measure_in_flight
from vkconv.cli.inputs import make_inputs
from vkconv.cli.options import (
    MODELS,
    BoundOption,
    DeviceOption,
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
    parse_bounds,
    parse_bytes,
    parse_dtypes,
    parse_io_dtype,
    parse_params,
    parse_passes,
    parse_routes,
)
from vkconv.cli.output import refuse_to_replace, save_each, show, show_json
from vkconv.cli.outputs import output_table, parse_outputs, save_outputs
from vkconv.cli.passes import passes_lines, save_passes
from vkconv.cli.types import found_types, types_lines
from vkconv.core import Array, UsageError, atomic_write
from vkconv.device import Device
from vkconv.table import Column, Table

if TYPE_CHECKING:
    from vkconv.plan.timing import Span
    from vkconv.session import Session
    from vkconv.staged import StagedSession


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=f"A {MODELS} file.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=SPEC",
            help="What to feed an input: @FILE.npy, or [SHAPE:]FILL with FILL one of zeros, ones, randn[:SEED], or "
            "just SHAPE (1x3x48x320). Without one: randn, its seed printed; integers are drawn from 0 to 9. SHAPE is "
            "needed where the model leaves dimensions open. NAME= may be left out when there is one input.",
        ),
    ] = None,
    shapes: ShapeOption = None,
    bounds: BoundOption = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="[NAME=]FILE.npy",
            help="Save an output of the last run; NAME= may be left out when there is one output.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    routes: RouteOption = None,
    params: ParamOption = None,
    policy: PolicyOption = "",
    no_pass: NoPassOption = None,
    pass_dump: PassDumpOption = None,
    no_quirks: NoQuirksOption = False,
    staging: StagingOption = None,
    pieces: PiecesOption = None,
    fixed_push: FixedPushOption = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Timed runs; their median is the steady row.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, metavar="N", help="Untimed runs after the first one.")] = 2,
    in_flight: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Also submit N of the runs at a time, and show throughput and percentiles of latency; 0: do not.",
        ),
    ] = 0,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Also show where the time goes, by node and by op: the median of N more runs."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Save loading and profiled runs as a Chrome trace, for Perfetto."),
    ] = None,
    node_data: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Save the nodes' times as node data for Model Explorer."),
    ] = None,
    fallback: Annotated[
        str,
        typer.Option(
            "--fallback",
            metavar="onnxruntime",
            help="Run the nodes that vkconv does not take on the host, by this. A table says which, and why.",
        ),
    ] = "",
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Give up when one run takes longer; default: never.")
    ] = None,
    dtypes: DTypeOption = None,
    io_dtype: IODTypeOption = "",
    half_sums: HalfSumsOption = False,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a model and show timings and outputs.

    Examples: vkconv run m.onnx --input x=1x3x48x320 --profile,
    vkconv run m.vkc --input x=@cat.npy -o y.npy --device nvidia
    """
    from vkconv.backend.runtime import select_device
    from vkconv.bench.node_data import node_data as model_explorer_data
    from vkconv.bench.trace import trace as chrome_trace
    from vkconv.check.found import device_data
    from vkconv.graph import load_model
    from vkconv.loading import load
    from vkconv.ops import OPS
    from vkconv.plan.bound import steered
    from vkconv.plan.planner import Options
    from vkconv.plan.precision import input_specs
    from vkconv.plan.stages import cut_stages, is_staged
    from vkconv.plan.timing import spanning
    from vkconv.session import planning
    from vkconv.staged import StagedSession

    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        raise UsageError(f"--timeout {timeout:g} is no positive number of seconds")
    forced, chosen = parse_routes(routes), parse_params(params)
    memory_bytes = parse_bytes(memory, "--memory")
    if fallback:
        given: dict[str, object] = {
            "--profile": profile,
            "--trace": trace,
            "--node-data": node_data,
            "--timeout": timeout,
            "--in-flight": in_flight,
        }
        given |= {"--memory": memory}
        others = [name for name, value in given.items() if value]
        others += ["--route"] * bool(forced) + ["--param"] * bool(chosen) + ["--policy"] * bool(policy)
        others += ["--no-quirks"] * no_quirks + ["--staging"] * (staging is not None)
        others += ["--pieces"] * (pieces is not None)
        others += ["--fixed-push"] * (fixed_push is not None)
        others += ["--dtype"] * bool(dtypes) + ["--io-dtype"] * bool(io_dtype)
        others += (
            ["--bound"] * bool(bounds)
            + ["--half-sums"] * half_sums
            + ["--no-pass"] * bool(no_pass)
            + ["--pass-dump"] * bool(pass_dump)
        )
        if others:
            raise UsageError(f"--fallback runs a model in regions, and {', '.join(others)} cannot follow; leave it out")
        run_delegated(model, inputs, shapes, outputs, device, fallback, runs, warmup, as_json)
        return
    in_flight = min(in_flight, runs)  # more are never there
    spans: list[Span] = []
    with spanning(spans, "load model", file=str(model)):
        graph = load_model(model)
    if bounds:
        unlike: dict[str, object] = {"--profile": profile, "--trace": trace, "--node-data": node_data}
        unlike |= {"--in-flight": in_flight, "--pass-dump": pass_dump, "--dtype auto": parse_dtypes(dtypes)[2]}
        others = [name for name, value in unlike.items() if value]
        if others:
            raise UsageError(
                f"--bound runs a model whose caches grow, and {', '.join(others)} cannot follow; leave it out"
            )
    elif is_staged(cut_stages(graph, OPS)):
        of_one: dict[str, object] = {"--profile": profile, "--trace": trace, "--node-data": node_data}
        of_one |= {"--io-dtype": io_dtype, "--pass-dump": pass_dump}
        others = [name for name, value in of_one.items() if value]
        others += ["--dtype auto"] if parse_dtypes(dtypes)[2] else []
        if others:
            raise UsageError(
                f"{model}: sizes in it depend on values, so that it runs in stages, and {', '.join(others)} cannot "
                "follow; leave it out"
            )
    dtype, of_nodes, auto = parse_dtypes(dtypes)
    wanted = parse_io_dtype(io_dtype)
    options = Options(
        routes=forced,
        params=chosen,
        policy=policy,
        quirks=not no_quirks,
        staging=staging,
        pieces=pieces,
        fixed_push=fixed_push,
        memory_bytes=memory_bytes,
        dtype=dtype,
        dtypes=of_nodes,
        io_dtype=wanted,
        half_sums=half_sums,
        skip_passes=parse_passes(no_pass),
    )
    if bounds:
        run_cached(
            model, graph, inputs, shapes, parse_bounds(bounds), outputs, device, options, runs, warmup, timeout, as_json
        )
        return
    targets = parse_outputs(outputs, graph.outputs)
    files = [*targets, *(path for path in (trace, node_data) if path)]
    refuse_to_replace([model], *files)
    if len(set(files)) < len(files):
        raise UsageError("--trace, --node-data and -o cannot go to the same file; give each its own")
    arrays, texts = make_inputs(input_specs(graph, OPS, wanted), inputs, shapes, lambda: select_device(device)[1])
    bound = {name: array.shape for name, array in arrays.items()}
    if auto:
        options = found_types(graph, arrays, device, options, None)
    dumped = {}
    if pass_dump:
        steady, free = steered(graph, OPS, arrays)
        facts, known = planning(select_device(device)[1], options)
        dumped = save_passes(pass_dump, steady, facts, known, {name: array.shape for name, array in free.items()})
    with load(graph, device, shapes=bound, options=options, in_flight=max(1, in_flight)) as session:
        # The session now holds what it needs of the graph, and drops it when it can.
        del graph
        results, run_spans = measure(session, arrays, runs, warmup, timeout)
        flown = measure_in_flight(session, arrays, runs, warmup, in_flight, timeout) if in_flight else None
        profiled = staged = None
        if isinstance(session, StagedSession):
            staged = session.explain()
        else:
            profiled = session.profile(arrays, runs) if profile or trace or node_data else None
        load_us = session.timings.load_us + spans[0].us
        spans += [*session.spans, *run_spans]
        steady_us = [span.us for span in run_spans if span.name == "run"]
        stages = stage_table(load_us, session.timings.compile_us, session.timings.first_run_us, steady_us)
    written, problem = save_outputs(targets, results)
    pages: dict[Path, tuple[str, Mapping[str, Any]]] = {}
    if profiled and trace:
        pages[trace] = "trace for Perfetto", chrome_trace(profiled, spans)
    if profiled and node_data:
        pages[node_data] = "node data for Model Explorer", model_explorer_data(profiled)
    saved, problem_of_pages = save_each(pages, lambda path: save_json(path, pages[path][1]))
    written |= {str(path): pages[path][0] for path in saved}
    stats = output_table(results)
    if as_json:
        show_json(
            {
                "schema": "vkconv.run/1",
                "model": str(model),
                "device": device_data(session.device),
                "routes_forced": forced,
                "dtype": options.dtype,
                "dtypes": dict(options.dtypes),
                "io_dtype": options.io_dtype,
                "params": chosen,
                "inputs": texts,
                "load_us": load_us,
                "compile_us": session.timings.compile_us,
                "first_run_us": session.timings.first_run_us,
                "steady_us": steady_us,
                "steady_median_us": statistics.median(steady_us),
                "outputs": stats.rows,
                "no_pass": options.skip_passes,
                "written": written | dumped,
                "in_flight": flown.data() if flown else None,
                "profile": profiled.data() if profiled else None,
                "stages": staged.rows if staged else None,
            }
        )
    else:
        head = [f"{model} on {device_str(session.device)}"]
        head += [f"input {name} = {text}" for name, text in texts.items()]
        head += [f"forced {key} = {route}" for key, route in forced.items()]
        head += [f"set {key}: {', '.join(f'{n} = {v}' for n, v in given.items())}" for key, given in chosen.items()]
        tables: list[Table | str] = []
        if profiled and profile:
            tables = [profiled.nodes, profiled.ops, *profiled.note.split("\n")]
        show(
            *head,
            *types_lines(options),
            *passes_lines(options, dumped),
            stages,
            *([staged] if staged else []),
            *([flown.table] if flown else []),
            stats,
            *tables,
            *(f"wrote {path}: {what}" for path, what in written.items()),
        )
    if problem := problem or problem_of_pages:
        raise problem


def measure(
    session: "Session | StagedSession", arrays: Mapping[str, Array], runs: int, warmup: int, timeout_s: float | None
) -> tuple[dict[str, Array], "list[Span]"]:
    """The first run, ``warmup`` more and ``runs`` timed ones: the last outputs, and a span for each run."""
    from vkconv.plan.timing import spanning

    spans: list[Span] = []
    for name in ("first run", *("warm-up run",) * warmup, *("run",) * runs):
        with spanning(spans, name):
            results = session.run(arrays, timeout_s=timeout_s)
    return results, spans


def save_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON to a file, whole or not at all. Raises OSError where that cannot be."""
    with atomic_write(path) as file:
        file.write(json.dumps(data, ensure_ascii=False, allow_nan=False).encode())


def stage_table(load_us: float, compile_us: float, first_run_us: float, steady_us: Sequence[float]) -> Table:
    """What it took to get going and what a run takes then, in milliseconds."""
    spread = f"median of {len(steady_us)}, {min(steady_us) / 1e3:.4g} to {max(steady_us) / 1e3:.4g}"
    rows = [
        ("load", load_us / 1e3, "read, plan, weights to the device"),
        ("compile", compile_us / 1e3, "shaders and pipelines"),
        ("first run", first_run_us / 1e3, ""),
        ("steady", statistics.median(steady_us) / 1e3, spread),
    ]
    return Table("", (Column("stage"), Column("time", unit="ms"), Column("what")), rows)


def device_str(device: Device) -> str:
    """A device in one line, as the head of every result."""
    return f"{device.name}, driver {device.driver}, Vulkan {device.api_version}"
