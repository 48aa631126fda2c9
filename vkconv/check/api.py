"""`run`: a model or a call held to its references, from Python."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from vkconv.backend.given import Given, checked_count, checked_list, flag
from vkconv.backend.runtime import select_device
from vkconv.check.found import CheckResult
from vkconv.check.inputs import checked_call, draw, filled, held
from vkconv.check.model import check_model
from vkconv.check.repeat import repeat_model
from vkconv.check.sweep import sweep_nodes
from vkconv.core import Array, InputError, Shape, UsageError, did_you_mean, given_array, how_to_convert, shape_str
from vkconv.device import Device, load_device
from vkconv.graph import Graph, load_model
from vkconv.ops import OPS
from vkconv.plan.bound import named_shapes, steered
from vkconv.plan.planner import Options
from vkconv.plan.precision import input_specs
from vkconv.plan.single import call_graph
from vkconv.settings import Settings


def run(
    target: object,
    inputs: Mapping[str, Given] | None = None,
    *,
    shapes: Mapping[str, Shape] | None = None,
    dims: Mapping[str, int] | None = None,
    device: str | int = "auto",
    options: Options | None = None,
    limits: Device | str | Path | None = None,
    repeat: int = 0,
    sweep: Sequence[str] = (),
    stop_at_first: bool = False,
    seed: int = 0,
) -> CheckResult:
    """Hold what a device computes to float64 references, node by node: ``vkconv check`` from Python.

    ``target`` is a call (``"conv2d:x=1x16x28x28,w=32x16x3x3,p=1"``) or whatever `vkconv.load` takes. ``inputs`` are
    arrays by name; those that are missing are drawn, normal floats, from ``seed``. ``shapes`` and ``dims`` say
    what a model leaves open, ``limits`` is another device to plan for, ``repeat`` a number of replays to compare byte
    by byte, ``sweep`` the parameters of routes, or "route", to try every legal value of.

    Raises what `vkconv.load` and a run raise, UsageError for a call that does not read, or where nothing of it runs,
    and InputError for inputs that do not fit. What is wrong on the device is in the result.
    """
    if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 0 or repeat == 1:
        raise UsageError(f"repeat is {repeat!r}; it is a number of runs from 2 on, or 0 for none")
    checked_list("sweep", sweep, "['route', 'local']")
    checked_count("seed", seed, "it is a whole number, 0 or more", 0)
    stop_at_first = flag("stop_at_first", stop_at_first)
    Settings(shapes=shapes, dims=dims, options=options, limits=limits)
    options = options or Options()
    inputs = {} if inputs is None else inputs
    other = limits if limits is None or isinstance(limits, Device) else load_device(limits)
    call = checked_call(target) if isinstance(target, str) and _names_an_op(target) else None
    name = target if isinstance(target, str) else str(target) if isinstance(target, Path) else "graph"
    graph: Graph
    if call is not None:
        if options.io_dtype:
            raise UsageError("io_dtype is for models; write the call's element type in its text: dtype=f16")
        options = dataclasses.replace(options, passes=False)
        every = draw(call, seed) | _fitting(call_graph(call), inputs)
        graph, arrays = held(call, every)
    else:
        graph = load_model(target)
        name = name if name != "graph" else graph.name
        every = arrays = _drawn(graph, _fitting(graph, inputs), shapes or {}, dims or {}, options, seed)
        graph, arrays = steered(graph, OPS, arrays)
    where = select_device(device)[0]
    result = CheckResult(
        name, check_model(graph, arrays, device=where, options=options, limits=other, stop_at_first=stop_at_first)
    )
    if repeat:
        result.repeated = repeat_model(graph, arrays, repeat, device=where, options=options, limits=other)
    if sweep:
        result.swept += sweep_nodes(
            result.model.nodes,
            sweep,
            arrays=every if call else None,
            device=where,
            facts=result.model.device,
            runs=repeat or 2,
            options=options,
            limits=other,
            seed=seed,
        )
    return result


def _names_an_op(text: str) -> bool:
    return ":" in text and text.partition(":")[0].isidentifier() and not Path(text).exists()


def _fitting(graph: Graph, inputs: Mapping[str, Given]) -> dict[str, Array]:
    """The arrays that are given; InputError for those that no input takes."""
    if not isinstance(inputs, Mapping):
        raise InputError(f"inputs are a dict from names to arrays, not a {type(inputs).__name__}")
    for name in inputs:
        if name not in graph.inputs:
            known = ", ".join(graph.inputs)
            raise InputError(
                f"{graph.name!r} has no input {name!r}{did_you_mean(name, graph.inputs)}; it takes {known}"
            )
    given = {name: given_array(array, f"input {name!r}") for name, array in inputs.items()}
    for name, array in given.items():
        spec = graph.inputs[name]
        if len(spec.shape) != array.ndim or any(
            isinstance(want, int) and want != got for want, got in zip(spec.shape, array.shape, strict=True)
        ):
            raise InputError(f"input {name!r} is {spec}, the array has shape {shape_str(array.shape)}")
        if array.dtype != spec.dtype.numpy:
            how = how_to_convert(inputs[name], spec.dtype.numpy.name)
            raise InputError(f"input {name!r} is {spec.dtype}, the array is {array.dtype}; {how}")
    return given


def _drawn(
    graph: Graph,
    given: Mapping[str, Array],
    shapes: Mapping[str, Shape],
    dims: Mapping[str, int],
    options: Options,
    seed: int,
) -> dict[str, Array]:
    """An array for every input, in the order of the graph's."""
    specs = input_specs(graph, OPS, options.io_dtype)
    bound = named_shapes(specs, {**shapes, **{name: array.shape for name, array in given.items()}}, dims)
    arrays: dict[str, Array] = {}
    for index, (name, spec) in enumerate(specs.items()):
        if name not in bound and not spec.is_static:
            raise InputError(f"input {name!r} is {spec}: say how large it is by inputs, shapes or dims")
        # Not bound.get(name, spec.dims): that raises for a symbolic spec even where the shape is given.
        shape = bound[name] if name in bound else spec.dims  # noqa: SIM401
        arrays[name] = given[name] if name in given else filled(name, "randn", seed + index, shape, spec.dtype)
    return arrays
