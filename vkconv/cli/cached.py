"""--bound: models whose caches grow from run to run on the device, and are run row by row."""

import dataclasses
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vkconv.cli.inputs import make_inputs
from vkconv.cli.options import bound_shapes, parse_shapes
from vkconv.cli.output import show, show_json
from vkconv.cli.outputs import output_table, parse_outputs, save_outputs
from vkconv.core import Array, shape_str
from vkconv.table import Column, Table

if TYPE_CHECKING:
    from vkconv.graph import Graph, TensorSpec
    from vkconv.plan.caches import CachePair, Grown
    from vkconv.plan.planner import Options


def grown_model(
    graph: "Graph", texts: Iterable[str] | None, bounds: Mapping[str, int], options: "Options"
) -> "tuple[Grown, Options]":
    """What is planned of a model for all lengths, of --shape and --dim as the first run has them, and the options with
    the types of its caches."""
    from vkconv.ops import OPS
    from vkconv.plan.caches import find_pairs, with_cache_types
    from vkconv.plan.growth import grown_graph

    pairs = find_pairs(graph, OPS, bounds)
    others, own, dims = _of_first_run(graph, pairs, bounds, texts)
    shapes = bound_shapes(others, own)
    known = {name: spec.dims for name, spec in others.items() if spec.is_static} | shapes
    return grown_graph(graph, OPS, pairs, bounds, known, dims), with_cache_types(options, graph, pairs)


def run_at_the_bound(
    graph: "Graph",
    inputs: Iterable[str] | None,
    shapes: Iterable[str] | None,
    bounds: Mapping[str, int],
    options: "Options",
) -> "tuple[Graph, dict[str, Array], dict[str, str], Options]":
    """The run that fills the caches of a model, as a model by itself: its graph, all that it takes, caches and what the
    host says of the length among it, texts of the inputs, and the options with the types of its caches. Rows that are
    there are normal random numbers."""
    from vkconv.ops import OPS
    from vkconv.plan.caches import cut, find_pairs, padded
    from vkconv.plan.precision import input_specs

    grown, options = grown_model(graph, shapes, bounds, options)
    pairs = find_pairs(graph, OPS, bounds)
    others, own, _ = _of_first_run(graph, pairs, bounds, shapes)
    specs = input_specs(grown.graph, OPS, options.io_dtype)
    texts_of = {name: specs[name] if others[name].is_static else _with(others[name], specs[name]) for name in others}
    arrays, texts = make_inputs(texts_of, inputs, own)
    found = {
        name: padded(array, specs[name].dims) for name, array in _behind(arrays, others, bounds, grown.most).items()
    }
    pasts, _ = make_inputs({pair.past: specs[pair.past] for pair in pairs}, None)
    for pair in pairs:
        rows = cut(pasts[pair.past], {pair.axis: 0} if pair.appends else {}, grown.most)
        found[pair.past] = padded(rows, specs[pair.past].dims)
    found |= {name: array.astype(specs[name].dtype.numpy) for name, array in grown.host_inputs(grown.most, OPS).items()}
    return grown.graph, found, texts, options


def _with(spec: "TensorSpec", typed: "TensorSpec") -> "TensorSpec":
    return dataclasses.replace(spec, dtype=typed.dtype)


def _behind(
    arrays: Mapping[str, Array], specs: "Mapping[str, TensorSpec]", bounds: Mapping[str, int], length: int
) -> dict[str, Array]:
    """Inputs of a first run as those of one behind so many rows: what grows repeats its first row in front."""
    from vkconv.plan.caches import grows

    return {
        name: np.pad(array, [(length if grows(dim, bounds) else 0, 0) for dim in specs[name].shape], mode="edge")
        for name, array in arrays.items()
    }


def _of_first_run(
    graph: "Graph", pairs: "Iterable[CachePair]", bounds: Mapping[str, int], texts: Iterable[str] | None
) -> "tuple[dict[str, TensorSpec], list[str], dict[str, int]]":
    """The inputs that are no caches, texts of their shapes and dimensions while the past is empty, and dimensions that
    caches alone have."""
    from vkconv.plan.caches import grows, when_empty

    pasts = {pair.past for pair in pairs}
    others = {name: spec for name, spec in graph.inputs.items() if name not in pasts}
    symbols = dict.fromkeys(dim for spec in others.values() for dim in spec.shape if isinstance(dim, str))
    given = parse_shapes(texts)
    of_caches = {dim for name in pasts for dim in graph.inputs[name].shape if isinstance(dim, str)} - symbols.keys()
    dims = {name: shape[0] for name, shape in given.items() if name in of_caches and len(shape) == 1}
    sizes = {name: shape[0] for name, shape in given.items() if name in symbols and len(shape) == 1}
    for name in given.keys() & others.keys():
        named = zip(others[name].shape, given[name], strict=False)
        sizes |= {dim: n for dim, n in named if isinstance(dim, str)}
    own = [f"{name}={shape_str(shape)}" for name, shape in given.items() if name not in dims]
    for dim in symbols:
        if dim not in sizes and grows(dim, bounds) and (size := when_empty(dim, bounds, sizes)) is not None:
            own.append(f"{dim}={size}")
    return others, own, dims


def run_cached(
    model: Path,
    graph: "Graph",
    inputs: list[str] | None,
    shapes: list[str] | None,
    bounds: Mapping[str, int],
    outputs: list[str] | None,
    device: str,
    options: "Options",
    runs: int,
    warmup: int,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Run a model again and again, each run behind the rows of those before it, and from none on again at the bound;
    show its caches, times and outputs. Inputs that grow repeat their first row in front."""
    from vkconv.cached import CachedSession
    from vkconv.ops import OPS
    from vkconv.plan.caches import find_pairs
    from vkconv.plan.precision import input_specs
    from vkconv.settings import Settings

    others, own, dims = _of_first_run(graph, find_pairs(graph, OPS, bounds), bounds, shapes)
    specs = {name: spec for name, spec in input_specs(graph, OPS, options.io_dtype).items() if name in others}
    arrays, texts = make_inputs(specs, inputs, own)

    with CachedSession(graph, device, Settings(options=options, bounds=bounds, dims=dims)) as session:
        targets = parse_outputs(outputs, session.outputs)
        walls_us, hosts_us = list[float](), list[float]()
        for _ in range(1 + warmup + runs):
            if session.is_full:
                session.rewind()
            given = _behind(arrays, others, bounds, session.length)
            started = time.perf_counter_ns()
            results = session.run(given, timeout_s=timeout_s)
            walls_us.append((time.perf_counter_ns() - started) / 1e3)
            hosts_us.append(session.host_us)
        table, timings, name = session.caches_table(), session.timings, session.device.name
        length = session.length
    steady, hosts = statistics.median(walls_us[1 + warmup :]), statistics.median(hosts_us[1 + warmup :])
    (written, problem), stats = save_outputs(targets, results), output_table(results)
    if as_json:
        show_json(
            {
                "schema": "vkconv.run.cached/1",
                "model": str(model),
                "device": name,
                "bounds": dict(bounds),
                "inputs": texts,
                "caches": table.rows,
                "length": length,
                "load_us": timings.load_us,
                "compile_us": timings.compile_us,
                "first_run_us": timings.first_run_us,
                "steady_us": walls_us[1 + warmup :],
                "steady_median_us": steady,
                "host_median_us": hosts,
                "outputs": stats.rows,
                "written": written,
            }
        )
    else:
        rows = [
            ("compile", timings.compile_us / 1e3, "shaders and pipelines"),
            ("first run", walls_us[0] / 1e3, "planned in it"),
            ("steady", steady / 1e3, f"median of {runs}, rows and all"),
            ("of that the host", hosts / 1e3, "what follows from the length, before the device"),
        ]
        times = Table("", (Column("stage"), Column("time", unit="ms"), Column("what")), rows)
        show(
            f"{model} on {name}",
            *(f"input {name} = {text}" for name, text in texts.items()),
            times,
            table,
            stats,
            *(f"wrote {path}: {what}" for path, what in written.items()),
        )
    if problem:
        raise problem
