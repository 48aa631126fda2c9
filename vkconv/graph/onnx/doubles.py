"""Models of 64-bit floats read as ones of 32 bits, where the user asks for it: no kernel has the former."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx

from vkconv.core import Array, DType
from vkconv.graph.onnx.proto import read_external

_T = onnx.TensorProto
_ATTRIBUTE = onnx.AttributeProto
# Attributes that are an element type.
_TYPES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "precision", "softmax_precision"})
# Its bits are another number's.
_OF_BITS = "BitCast"
_LARGEST = float(np.finfo(np.float32).max)


def in_f32(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """A copy of the model in which all that is f64 is f32, rounded to the nearest. Numbers beyond f32, as masks have
    them, become its largest ones. Raises ModelError for damaged external data."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    _graph(made.graph, folder)
    return made


def _graph(graph: onnx.GraphProto, folder: Path) -> None:
    for tensor in graph.initializer:
        _tensor(tensor, folder)
    for info in (*graph.input, *graph.output, *graph.value_info):
        _type(info.type)
    for node in graph.node:
        if node.op_type != _OF_BITS:
            _attributes(node.attribute, folder)


def _attributes(attributes: Iterable[onnx.AttributeProto], folder: Path) -> None:
    for attribute in attributes:
        if attribute.type == _ATTRIBUTE.INT and attribute.name in _TYPES and attribute.i == _T.DOUBLE:
            attribute.i = _T.FLOAT
        elif attribute.type == _ATTRIBUTE.TENSOR:
            _tensor(attribute.t, folder)
        elif attribute.type == _ATTRIBUTE.GRAPH:
            _graph(attribute.g, folder)
        elif attribute.type == _ATTRIBUTE.TYPE_PROTO:
            _type(attribute.tp)


def _type(held: onnx.TypeProto) -> None:
    kind = held.WhichOneof("value")
    if kind == "tensor_type" and held.tensor_type.elem_type == _T.DOUBLE:
        held.tensor_type.elem_type = _T.FLOAT
    elif kind in ("sequence_type", "optional_type"):
        _type(getattr(held, kind).elem_type)


def _tensor(tensor: onnx.TensorProto, folder: Path) -> None:
    """One that does not hold what it declares is left as it is: who reads it says what is wrong."""
    if tensor.data_type != _T.DOUBLE or any(d < 0 for d in tensor.dims):
        return
    if tensor.data_location == _T.EXTERNAL:
        shape = (*tensor.dims, np.dtype(np.float64).itemsize)
        held = read_external(tensor, folder, DType.U8, shape, f"tensor {tensor.name!r}")
        wide: Array = held.reshape(-1).view("<f8").reshape(tuple(tensor.dims))
    else:
        try:
            wide = onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError):
            return
    bounded = np.where(np.isfinite(wide), np.clip(wide, -_LARGEST, _LARGEST), wide)
    made = onnx.numpy_helper.from_array(np.ascontiguousarray(bounded.astype(np.float32)), tensor.name)
    tensor.CopyFrom(made)
