"""Control flow that values decide: its bodies as graphs of their own, which a session runs one after the other."""

from collections.abc import Callable, Iterable, Sequence

import onnx
import onnx.helper
import onnx.numpy_helper

from vkconv.core import DType, ModelError, UnsupportedError
from vkconv.graph.ir import AttrValue, Graph, Node
from vkconv.graph.onnx.proto import DTYPES, RefusedError
from vkconv.graph.onnx.signature import check_signature
from vkconv.graph.onnx.view import Builder

_GRAPHS = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}
CONTROL = frozenset(_GRAPHS)
_SCAN_SINCE = 9  # it had batches and lengths before
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_Dims = tuple[int | None, ...]
Convert = Callable[[onnx.ModelProto], Graph]


def import_control(builder: Builder, node: onnx.NodeProto, name: str, model: onnx.ModelProto, convert: Convert) -> None:
    """A node ``if``, ``loop`` or ``scan`` for one of ONNX. It reads its operands, then what each body reads from
    outside; a body is given them in the same order. ``convert`` makes a graph of a body.

    Raises RefusedError where a body cannot be taken, or nothing tells the rank of what it is given.
    """
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if node.op_type == "Scan" and opset < _SCAN_SINCE:
        raise RefusedError(f"the Scan of opset {opset}, with batches; export with {_SCAN_SINCE} or newer")
    check_signature(node, opset, f"{node.op_type} node {name!r}")
    given = {a.name: a for a in node.attribute}
    bodies = [given[key].g for key in _GRAPHS[node.op_type] if key in given]
    if any(output.type.WhichOneof("value") not in (None, "tensor_type") for body in bodies for output in body.output):
        raise RefusedError("a sequence or optional comes out of it; vkconv makes tensors only")
    if len(bodies) != len(_GRAPHS[node.op_type]):
        raise ModelError(f"{node.op_type} node {name!r} has a body that is no graph; export the model again")
    for key, body in zip(_GRAPHS[node.op_type], bodies, strict=True):
        _check_counts(node, key, body, int(given["num_scan_inputs"].i) if "num_scan_inputs" in given else 0)
    attrs: dict[str, AttrValue] = {}
    formal: list[onnx.ValueInfoProto] = []
    if node.op_type == "Loop":
        formal = _loop_inputs(builder, node, bodies[0])
        attrs["states"] = len(node.input) - 2
    elif node.op_type == "Scan":
        formal, attrs = _scan_inputs(builder, node, bodies[0])
    outside = [_read_outside(body) for body in bodies]
    graphs = []
    for key, body, read in zip(_GRAPHS[node.op_type], bodies, outside, strict=True):
        try:
            graphs.append(convert(_as_model(builder, model, body, formal, read)))
        except UnsupportedError as error:
            lines = str(error).splitlines()
            inner = "; ".join(line.strip() for line in lines[1:-2])
            raise RefusedError(f"its {key}: {inner}") from None
    constant = {value for read in outside for value in read if builder.alias.get(value, value) in builder.constants}
    read_values = [value for read in outside for value in read if value not in constant]
    inputs = tuple(builder.alias.get(value, value) for value in (*node.input, *read_values))
    builder.nodes.append(Node(name, node.op_type.lower(), inputs, tuple(node.output), attrs))
    builder.bodies[name] = tuple(graphs)


def _check_counts(node: onnx.NodeProto, key: str, body: onnx.GraphProto, scanned: int) -> None:
    """Raises RefusedError for a body that takes or makes another number of values than its node has for it."""
    takes = {"If": 0, "Loop": len(node.input), "Scan": len(node.input)}[node.op_type]
    makes = len(node.output) + (node.op_type == "Loop")
    states = {"If": 0, "Loop": len(node.input) - 2, "Scan": len(node.input) - scanned}[node.op_type]
    if (len(body.input), len(body.output)) != (takes, makes) or not 0 <= states <= len(node.output):
        raise RefusedError(
            f"its {key} takes {len(body.input)} values and makes {len(body.output)}, the node has {takes} and {makes}"
        )


def _as_model(
    builder: Builder,
    model: onnx.ModelProto,
    body: onnx.GraphProto,
    formal: Sequence[onnx.ValueInfoProto],
    read: Sequence[str],
) -> onnx.ModelProto:
    """A body as a model: what it is given as inputs, constants from outside as its own."""
    made = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    made.graph.CopyFrom(body)
    made.graph.name = body.name or "body"
    del made.graph.input[:]
    made.graph.input.extend(formal)
    for value in read:
        array = builder.constants.get(builder.alias.get(value, value))
        if array is not None:
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, value))
        else:
            made.graph.input.append(_info(builder, value, value))
    return made


def _info(
    builder: Builder, value: str, name: str, is_open: bool = False, without: int | None = None
) -> onnx.ValueInfoProto:
    """What is known of a value of the model, under another name; with open dimensions, without one of them."""
    array = builder.constants.get(builder.alias.get(value, value))
    if array is not None:
        dtype: DType | None = DType.of(array.dtype)
        dims: _Dims = array.shape
    else:
        known = builder.types.get(value)
        if known is None or known.rank is None or known.dtype is None or known.narrow is not None:
            raise RefusedError(f"a body reads {value!r}, whose type and rank cannot be told from the model")
        dtype, dims = known.dtype, known.dims
    if without is not None:
        if not -len(dims) <= without < len(dims):
            raise RefusedError(f"axis {without} of {value!r}, which has {len(dims)} dimensions")
        dims = tuple(d for i, d in enumerate(dims) if i != without % len(dims))
    assert dtype is not None
    return onnx.helper.make_tensor_value_info(name, _NUMBERS[dtype], [None] * len(dims) if is_open else dims)


def _loop_inputs(builder: Builder, node: onnx.NodeProto, body: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The number of the step, whether it goes on, and the states, whose sizes may change from step to step."""
    names = [info.name for info in body.input]
    step = onnx.helper.make_tensor_value_info(names[0], onnx.TensorProto.INT64, [])
    going = onnx.helper.make_tensor_value_info(names[1], onnx.TensorProto.BOOL, [])
    states = zip(node.input[2:], names[2:], strict=True)
    return [step, going, *(_info(builder, value, name, is_open=True) for value, name in states)]


def _scan_inputs(
    builder: Builder, node: onnx.NodeProto, body: onnx.GraphProto
) -> tuple[list[onnx.ValueInfoProto], dict[str, AttrValue]]:
    """The states and a slice of each value that is scanned, and how they are scanned."""
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    count = int(found["num_scan_inputs"])
    states = len(node.input) - count
    rows = len(node.output) - states
    attrs: dict[str, AttrValue] = {"states": states, "scanned": count}
    for key, length in (("input", count), ("output", rows)):
        for word, to in (("axes", "axes"), ("directions", "backwards")):
            numbers = tuple(int(v) for v in found.get(f"scan_{key}_{word}", [0] * length))
            if len(numbers) != length:
                raise RefusedError(f"scan_{key}_{word} has {len(numbers)} numbers for {length} values")
            attrs[f"{key}_{to}"] = numbers
    scanned = attrs["input_axes"]
    assert isinstance(scanned, tuple)
    axes = [*[None] * states, *map(int, scanned)]
    names = [info.name for info in body.input]
    infos = [
        _info(builder, value, name, is_open=axis is None, without=axis)
        for value, name, axis in zip(node.input, names, axes, strict=True)
    ]
    return infos, attrs


def _read_outside(body: onnx.GraphProto) -> list[str]:
    """What a body reads that is none of its own, in order, each once."""
    own = {info.name for info in body.input} | {tensor.name for tensor in body.initializer}
    own |= {value for node in body.node for value in node.output}
    read = (*(value for node in body.node for value in reads(node)), *(output.name for output in body.output))
    return list(dict.fromkeys(value for value in read if value and value not in own))


def reads(node: onnx.NodeProto) -> Iterable[str]:
    """What a node reads, what its bodies read from outside among it."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from _read_outside(graph)
