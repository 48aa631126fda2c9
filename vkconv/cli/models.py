"""Commands about models that run nothing: ``convert``, ``show``."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from vkconv.cli.cached import grown_model
from vkconv.cli.options import (
    MODELS,
    BoundOption,
    JsonOption,
    NoPassOption,
    PassDumpOption,
    ShapeOption,
    bound_shapes,
    parse_bounds,
    parse_passes,
)
from vkconv.cli.output import file_errors, given_as, refuse_to_replace, show, show_json
from vkconv.cli.passes import passes_lines, save_passes
from vkconv.core import DeviceError, UsageError, atomic_write, bytes_str, counted, did_you_mean, is_stream
from vkconv.device import Device, load_device, shipped_devices
from vkconv.graph.ir import AttrValue, Graph
from vkconv.table import Column, Table

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help=f"A {MODELS} file.")]

FactsOption = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        metavar="FILE|NAME|INDEX",
        envvar="VKCONV_DEVICE",
        help="A device file (vkconv devices --dump), the name of one that vkconv ships, or as elsewhere auto, "
        "an index or part of a name. Files and shipped names need no Vulkan.",
    ),
]
CALL = re.compile(r"[a-z]\w*:(?!:)")
_VALUE_CHARACTERS = 60


def as_call(target: str) -> str:
    """A line of another tool as the call that it stands for; any other text as it is. UsageError for several calls, and
    for what is neither a call nor named as a model is."""
    from vkconv.bench.lines import is_line, one_call

    if Path(target).exists():
        return target
    if is_line(target):
        return one_call(target)
    if not CALL.match(target) and not Path(target).suffix:
        from vkconv.ops import OPS

        hint = f"; vkconv ops {target} shows what its calls take" if target in OPS else did_you_mean(target, OPS)
        raise UsageError(f"{target!r} is no call (OP:KEY=VALUE,...) and no {MODELS} file{hint}")
    return target


def find_device(selector: str) -> Device:
    """The facts of a device file, of a shipped name, or of a device of this machine."""
    if selector in shipped_devices() or selector.endswith(".json") or "/" in selector or Path(selector).is_file():
        return load_device(selector)
    from vkconv.backend.runtime import select_device

    try:
        return select_device(selector)[1]
    except (UsageError, DeviceError) as error:
        hint = did_you_mean(selector, shipped_devices())
        need = ", which need no Vulkan" if isinstance(error, DeviceError) else ""
        raise type(error)(f"{error}; shipped device files{need}: {', '.join(shipped_devices())}{hint}") from None


def convert(
    source: Annotated[Path, typer.Argument(metavar="A", help=f"The model to read: a {MODELS} file.")],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="B", help="The file to write, .vkc or .onnx; replaced if it exists; - is stdout, as .vkc."
        ),
    ],
    newer_opset: Annotated[
        bool,
        typer.Option(
            "--newer-opset",
            help="Take an ONNX model of a later opset than vkconv knows, its nodes for what they were before; warns.",
        ),
    ] = False,
    f64_as_f32: Annotated[
        bool,
        typer.Option("--f64-as-f32", help="Take 64-bit floats of an ONNX model for 32-bit ones, rounded to nearest."),
    ] = False,
) -> None:
    """Convert a model to vkconv's own format, which loads without the onnx package, or to ONNX."""
    from vkconv.graph import load_model

    _check_target(target, source)
    _save(load_model(source, newer_opset=newer_opset, f64_as_f32=f64_as_f32), target)


def extract(
    source: ModelArgument,
    target: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write, .vkc or .onnx; replaced if it exists."),
    ],
    begins: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="TENSOR", help="Where the part begins; repeat it. Default: the model's inputs."),
    ] = None,
    ends: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="TENSOR", help="Where the part ends; repeat it. Default: the model's outputs."),
    ] = None,
    shapes: ShapeOption = None,
) -> None:
    """Save the part of a model between two tensors as a model; vkconv show lists its tensors.

    Example: vkconv extract m.onnx --from relu_3 --to pool_5 -o part.onnx
    """
    from vkconv.graph import load_model
    from vkconv.ops import OPS
    from vkconv.plan.extract import extract as part

    _check_target(target, source)
    if not begins and not ends:
        raise UsageError("extract takes a tensor where the part begins, --from, or where it ends, --to, or both")
    graph = load_model(source)
    made = {value for node in graph.nodes for value in node.outputs}
    inner = [name for name in begins or () if name in made]
    # Tensors in the middle have the shapes that follow from those of the inputs.
    bound = bound_shapes(graph.inputs, shapes) if inner or shapes else None
    _save(part(graph, OPS, begins or (), ends or (), bound), target)


def _check_target(target: Path, source: Path) -> None:
    """UsageError for a file that is no model, or that is the source."""
    if target.suffix not in (".vkc", ".onnx") and not is_stream(target):
        raise UsageError(f"cannot write {target}: vkconv writes .vkc and .onnx files only")
    refuse_to_replace([source], target)


def _save(graph: Graph, target: Path) -> None:
    """Write a model and say so."""
    from vkconv.graph.vkc import save_vkc

    if target.suffix != ".onnx":
        with file_errors(target):
            save_vkc(graph, target)
    else:
        from vkconv.onnx_export import to_onnx

        data = to_onnx(graph).SerializeToString()
        with file_errors(target), atomic_write(target) as file:
            file.write(data)
    size = "" if is_stream(target) else f", {bytes_str(target.stat().st_size)} in all"
    show(f"wrote {target}: {counted(len(graph.nodes), 'node')}, {_weights(graph)}{size}")


def show_model(
    model: ModelArgument,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show the memory that the model takes on a device instead.")
    ] = False,
    device: FactsOption = "auto",
    shapes: ShapeOption = None,
    bounds: BoundOption = None,
    no_pass: NoPassOption = None,
    pass_dump: PassDumpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model: inputs, outputs, nodes, weights and metadata; or what memory it takes on a device."""
    graph = load_graph(model)
    if memory:
        _show_memory(graph, device, shapes, parse_bounds(bounds), no_pass, pass_dump, as_json)
        return
    by = given_as(shapes[0], "--shape", "--dim") if shapes else ""
    for option, given in ((by, shapes), ("--bound", bounds), ("--no-pass", no_pass), ("--pass-dump", pass_dump)):
        if given:
            raise UsageError(f"{option} says how to plan a model for the memory it takes; write --memory too")
    if as_json:
        show_json(_graph_data(graph))
        return
    nodes = [(n.name, n.op, names_str(n.inputs), names_str(n.outputs), _attrs(n.attrs)) for n in graph.nodes]
    columns = [Column(name) for name in ("node", "op", "inputs", "outputs", "attributes")]
    show(
        f"{graph.name}: {counted(len(graph.nodes), 'node')}, {_weights(graph)}",
        *(f"input {name}: {spec}" for name, spec in graph.inputs.items()),
        *(f"output {name}" for name in graph.outputs),
        *(f"metadata {key}: {_shortened(value)}" for key, value in graph.metadata.items()),
        Table("", columns, nodes),
    )


def _show_memory(
    graph: Graph,
    device: str,
    shapes: list[str] | None,
    bounds: Mapping[str, int],
    no_pass: list[str] | None,
    pass_dump: Path | None,
    as_json: bool,
) -> None:
    """What a plan of the graph takes. LimitError where the device has less, before anything is allocated."""
    from vkconv.plan.explain import memory_data, memory_table
    from vkconv.plan.measured import find_measured
    from vkconv.plan.planner import Options, plan

    facts = find_device(device)
    options = Options(measured=find_measured(facts), skip_passes=parse_passes(no_pass))
    caches: tuple[str, ...] = ()
    if bounds:
        grown, options = grown_model(graph, shapes, bounds, options)
        graph, caches, shapes = grown.graph, grown.caches, None
    bound = bound_shapes(graph.inputs, shapes)
    written = save_passes(pass_dump, graph, facts, options, bound)
    planned = plan(graph, facts, options, bound, caches=caches).plan
    if as_json:
        show_json(memory_data(planned))
    else:
        show(*passes_lines(options, written), memory_table(planned))


def load_graph(path: Path) -> Graph:
    from vkconv.graph import load_model

    return load_model(path)


def _weights(graph: Graph) -> str:
    nbytes = sum(array.nbytes for array in graph.constants.values())
    return f"{counted(len(graph.constants), 'constant')} of {bytes_str(nbytes)}"


def names_str(names: Any) -> str:
    return " ".join(n or "-" for n in names)


def value_str(value: AttrValue) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _attrs(attrs: Mapping[str, AttrValue]) -> str:
    return " ".join(f"{key}={value_str(value)}" for key, value in attrs.items())


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    cut = line[:_VALUE_CHARACTERS]
    return line if cut == line else f"{cut}... ({len(text)} characters)"


def _graph_data(graph: Graph) -> dict[str, Any]:
    return {
        "schema": "vkconv.show/1",
        "name": graph.name,
        "inputs": {n: {"shape": list(s.shape), "dtype": s.dtype} for n, s in graph.inputs.items()},
        "outputs": list(graph.outputs),
        "constants": len(graph.constants),
        "constants_bytes": sum(array.nbytes for array in graph.constants.values()),
        "metadata": dict(graph.metadata),
        "nodes": [
            {"name": n.name, "op": n.op, "inputs": n.inputs, "outputs": n.outputs, "attrs": _attrs(n.attrs)}
            for n in graph.nodes
        ],
    }
