"""The walk over a graph that makes ONNX nodes of vkconv's."""

from collections import defaultdict
from collections.abc import Mapping

import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from vkconv.core import DType, UnsupportedError, did_you_mean
from vkconv.graph.ir import Graph, TensorSpec
from vkconv.onnx_export.layouts import spelled
from vkconv.onnx_export.rules import RULES
from vkconv.onnx_export.view import CONTRIB, ELEMENT_TYPES, Export, RefusedError, View
from vkconv.ops import OPS
from vkconv.plan.bound import bind, value_inputs
from vkconv.version import VERSION

_IR_VERSION = 10
_NAMES_SHOWN = 8


def export(graph: Graph) -> onnx.ModelProto:
    """See `vkconv.onnx_export.to_onnx`; the model is not checked yet."""
    taken = {*graph.inputs, *graph.constants, *(value for node in graph.nodes for value in node.outputs)}
    dtypes = {name: spec.dtype for name, spec in graph.inputs.items()}
    dtypes |= {name: DType.of(array.dtype) for name, array in graph.constants.items()}
    specs = bind(graph, OPS).specs if graph.is_static and not value_inputs(graph, OPS) else {}
    made = Export(taken, dtypes, dict(graph.constants), specs)
    refused: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in graph.nodes:
        try:
            if node.op not in RULES:
                raise RefusedError(f"ONNX has no such op{did_you_mean(node.op, RULES) if node.op not in OPS else ''}")
            for part in spelled(node, made):
                view = View(made, part)
                dtypes |= {name: _dtype_of(view, i) for i, name in enumerate(part.outputs) if name}
                RULES[part.op](view)
        except RefusedError as error:
            refused[node.op, str(error)].append(node.name)
    outside = {name: dtype for name, dtype in dtypes.items() if dtype not in ELEMENT_TYPES}
    if outside:
        refused["values", "ONNX models of vkconv have no such element type"] = [
            f"{n} ({d})" for n, d in outside.items()
        ]
    if refused:
        lines = [f"graph {graph.name!r} cannot be written as ONNX:"]
        for (op, reason), names in refused.items():
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            lines.append(f"  {op} ({', '.join(names[:_NAMES_SHOWN])}{more}): {reason}")
        raise UnsupportedError("\n".join(lines))
    read = {name for node in made.nodes for name in node.input} | set(graph.outputs)
    proto = onnx.helper.make_graph(
        made.nodes,
        graph.name,
        [_info(name, spec) for name, spec in graph.inputs.items()],
        [onnx.helper.make_tensor_value_info(name, ELEMENT_TYPES[dtypes[name]], None) for name in graph.outputs],
        [onnx.numpy_helper.from_array(a, name) for name, a in made.constants.items() if name in read],
    )
    contrib = [onnx.helper.make_opsetid(CONTRIB, 1)] if any(node.domain for node in made.nodes) else []
    model = onnx.helper.make_model(
        proto,
        opset_imports=[onnx.helper.make_opsetid("", made.opset), *contrib],
        ir_version=_IR_VERSION,
        producer_name="vkconv",
        producer_version=VERSION,
    )
    onnx.helper.set_model_props(model, dict(graph.metadata))
    return _with_shapes_of_outputs(model, specs)


def _info(name: str, spec: TensorSpec) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, ELEMENT_TYPES[spec.dtype], spec.shape)


def _with_shapes_of_outputs(model: onnx.ModelProto, specs: Mapping[str, TensorSpec]) -> onnx.ModelProto:
    """The model with the shapes of its outputs, which the checker wants: as the graph has them, or as inferred."""
    inferred = onnx.shape_inference.infer_shapes(model)
    for mine, found in zip(model.graph.output, inferred.graph.output, strict=True):
        if mine.name in specs:
            mine.CopyFrom(_info(mine.name, specs[mine.name]))
        elif found.type.tensor_type.HasField("shape"):
            mine.CopyFrom(found)
        else:
            mine.type.tensor_type.shape.SetInParent()
            mine.type.tensor_type.ClearField("shape")
    return model


def _dtype_of(view: View, place: int) -> DType:
    """The element type of an output."""
    attrs, op = view.attrs, view.node.op
    if op in _BY_ZERO_POINT and view.input("y_zero"):
        return view.dtype(view.input("y_zero"))
    if op in _OWN_TYPES:
        return _OWN_TYPES[op][place]
    named = attrs.get("to") or attrs.get("dtype")
    if isinstance(named, str):
        return DType(named)
    if op in ("shape", "size") or (op == "topk" and place) or op == "pool2d_argmax":
        return DType.I64
    if op in _TO_BOOL:
        return DType.BOOL
    values = [view.inputs[1] if op in ("where", "one_hot") else view.inputs[0]] if view.inputs else []
    return view.dtype(values[0]) if values and values[0] else DType.F32


_BY_ZERO_POINT = ("qlinear_conv", "qlinear_matmul", "quantize_linear")
_OWN_TYPES: Mapping[str, tuple[DType, ...]] = {
    "conv_integer": (DType.I32,),
    "dequantize_linear": (DType.F32,),
    "dynamic_quantize_linear": (DType.U8, DType.F32, DType.U8),
    "matmul_integer": (DType.I32,),
}
_TO_BOOL = (
    *("equal", "greater", "greater_equal", "less", "less_equal", "is_inf", "is_nan", "is_negative_inf"),
    *("is_positive_inf", "logical_and", "logical_equal", "logical_not", "logical_or", "logical_xor"),
)
