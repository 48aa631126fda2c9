"""Import rules for 8-bit integers with scales and zero points."""

from functools import partial

import numpy as np

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.proto import dtype_of
from vkconv.graph.onnx.view import NodeView
from vkconv.graph.onnx.windows import window


def _scales_in_f32(n: NodeView, *inputs: int) -> None:
    for i in inputs:
        if n.dtype(i) is not DType.F32:
            n.refuse(f"input {i} is {n.dtype(i)}; vkconv has scales, and what they scale, in f32")


def _per_tensor_or_axis(n: NodeView) -> int:
    """The axis; refuses scales of blocks."""
    if n.attr_int("block_size", 0):
        n.refuse("scales of blocks (block_size); vkconv has one for the tensor, or one for each index along an axis")
    return n.attr_int("axis", 1)


def _quantize(n: NodeView) -> None:
    n.ignore("saturate")  # of 8-bit float targets
    attrs: dict[str, AttrValue] = {"axis": _per_tensor_or_axis(n)}
    _scales_in_f32(n, 0, 1)
    if n.attr_int("precision", 0) and dtype_of(n.attr_int("precision", 0), "computes in") is not DType.F32:
        n.refuse("a precision other than f32")
    to = n.dtype(2) if n.has(2) else DType.U8
    if n.attr_int("output_dtype", 0):
        to = dtype_of(n.attr_int("output_dtype", 0), "quantizes to")
        attrs["to"] = str(to)
    if to not in (DType.I8, DType.U8):
        n.refuse(f"it quantizes to {to}; vkconv has i8 and u8")
    n.finish("quantize_linear", *(n.input(i) for i in range(2 + n.has(2))), **attrs)


def _dequantize(n: NodeView) -> None:
    axis = _per_tensor_or_axis(n)
    _scales_in_f32(n, 1)
    if n.attr_int("output_dtype", 0) and dtype_of(n.attr_int("output_dtype", 0), "makes") is not DType.F32:
        n.refuse("an output_dtype other than f32")
    operands = [n.input(i) for i in range(2 + n.has(2))]
    if n.dtype(0) in (DType.I16, DType.U16):
        operands[0::2] = [n.emit("cast", value, to="i32") for value in operands[0::2]]
    n.finish("dequantize_linear", *operands, axis=axis)


def _dynamic(n: NodeView) -> None:
    n.finish("dynamic_quantize_linear", n.input(0))


def _conv(op: str, x: int, w: int, n: NodeView) -> None:
    """A convolution whose input and weights are operands x and w; all others are as vkconv has them."""
    if op == "qlinear_conv":
        _scales_in_f32(n, 1, 4, 6)
    rank = n.rank(w)
    kernel = n.attr_ints("kernel_shape")
    spatial = rank - 2 if rank is not None else len(kernel) or n.need_rank(x) - 2
    weights = n.const(w)
    if weights is not None and kernel and tuple(weights.shape[2:]) != kernel:
        n.refuse(f"kernel_shape={kernel} but the weights have shape {weights.shape}")
    attrs = window(n, spatial) | {"groups": n.attr_int("group", 1)}
    inputs = [n.input(i) for i in range(len(n.inputs))]
    if spatial == 2:
        n.finish(op, *inputs, **attrs)
        return
    inputs[x] = n.emit("unsqueeze", inputs[x], axes=(2,))
    if weights is None:
        inputs[w] = n.emit("unsqueeze", inputs[w], axes=(2,))
    else:
        inputs[w] = n.builder.constant(f"{inputs[w]}/2d", np.expand_dims(weights, 2))
    n.finish("squeeze", n.emit(op, *inputs, **attrs), axes=(2,))


def _matmul(op: str, a: int, b: int, n: NodeView) -> None:
    """Rank 1 operands are a row on the left, a column on the right, and the added dimension goes again."""
    if op == "qlinear_matmul":
        _scales_in_f32(n, 1, 4, 6)
    inputs = [n.input(i) for i in range(len(n.inputs))]
    gone: list[int] = []
    for i, axis, place in ((a, 0, -2), (b, 1, -1)):
        if n.rank(i) == 1:
            inputs[i] = n.emit("unsqueeze", inputs[i], axes=(axis,))
            gone.append(place)
    if not gone:
        n.finish(op, *inputs)
    else:
        n.finish("squeeze", n.emit(op, *inputs), axes=tuple(gone))


RULES: dict[str, Rule] = {
    "ConvInteger": partial(_conv, "conv_integer", 0, 1),
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": partial(_matmul, "matmul_integer", 0, 1),
    "QLinearConv": partial(_conv, "qlinear_conv", 0, 3),
    "QLinearMatMul": partial(_matmul, "qlinear_matmul", 0, 3),
    "QuantizeLinear": _quantize,
}
