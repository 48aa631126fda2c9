"""Import rules for 8-bit integers with scales and zero points."""

from functools import partial

import numpy as np

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.casts import decode, encode
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.narrow import NARROW
from vkconv.graph.onnx.proto import dtype_of
from vkconv.graph.onnx.view import NodeView
from vkconv.graph.onnx.windows import window


def _scales_in_f32(n: NodeView, *inputs: int) -> None:
    for i in inputs:
        if n.dtype(i) is not DType.F32:
            n.refuse(f"input {i} is {n.dtype(i)}; vkconv has scales, and what they scale, in f32")


# Kernels quantize to bytes and dequantize from bytes and i32, by a scale for the tensor or for each index of an axis.
_BY_KERNEL = (DType.I8, DType.U8)


def _quantize(n: NodeView) -> None:
    precision = n.attr_int("precision", 0)
    if precision and dtype_of(precision, "computes in") is not DType.F32:
        n.refuse("a precision other than f32")
    output = n.attr_int("output_dtype", 0)
    narrow = NARROW.get(output) or n.narrow(2)
    to = n.dtype(2) if n.has(2) else DType.U8
    if output and not narrow:
        to = dtype_of(output, "quantizes to")
    saturate = n.attr_flag("saturate", True)
    if narrow is None and to in _BY_KERNEL and not n.attr_int("block_size", 0):
        _scales_in_f32(n, 0, 1)
        attrs: dict[str, AttrValue] = {"axis": n.attr_int("axis", 1)}
        if output:
            attrs["to"] = str(to)
        n.finish("quantize_linear", *(n.input(i) for i in range(2 + n.has(2))), **attrs)
        return
    x, scale = (_in_f32(n, i) for i in (0, 1))
    value = n.emit("div", x, _along(n, scale))
    if narrow is not None and narrow.is_float:
        n.finish("identity", encode(n, value, narrow, saturate))
        return
    stored = narrow.stored if narrow else to
    if stored.is_float or stored not in (*_BY_KERNEL, DType.I16, DType.U16):
        n.refuse(f"it quantizes to {stored}; vkconv has integers of 16 bits and fewer")
    bits = narrow.bits if narrow else 8 * stored.nbytes
    low = narrow.low if narrow else -(1 << (bits - 1)) * (stored in (DType.I8, DType.I16))
    high = low + (1 << bits) - 1
    whole = n.emit("round", value)
    if n.has(2):
        whole = n.emit("add", whole, _along(n, _in_f32(n, 2)))
    bounded = n.emit("clip", whole, a=float(low), b=float(high))
    n.finish("cast", n.emit("cast", bounded, to="i32"), to=str(stored))


def _dequantize(n: NodeView) -> None:
    output, narrow = n.attr_int("output_dtype", 0), n.narrow(0)
    to = dtype_of(output, "makes") if output else n.dtype(1)
    if narrow is None and to is n.dtype(1) is DType.F32 and not n.attr_int("block_size", 0):
        operands = [n.input(i) for i in range(2 + n.has(2))]
        if n.dtype(0) in (DType.I16, DType.U16):
            operands[0::2] = [n.emit("cast", value, to="i32") for value in operands[0::2]]
        n.finish("dequantize_linear", *operands, axis=n.attr_int("axis", 1))
        return
    if not (n.dtype(1).is_float and to.is_float):
        n.refuse(f"input 1 is {n.dtype(1)}, and it makes {to}; vkconv scales by floats, and makes such")
    value = _in_f32(n, 0)
    if n.has(2) and not (narrow and narrow.is_float):  # the zero of a float is its own
        value = n.emit("sub", value, _along(n, _in_f32(n, 2)))
    n.finish("cast", n.emit("mul", value, _along(n, _in_f32(n, 1))), to=str(to))


def _in_f32(n: NodeView, i: int) -> str:
    """An operand's numbers as f32."""
    narrow, dtype = n.narrow(i), n.dtype(i)
    if dtype is DType.BOOL:
        n.refuse(f"input {i} is bool; vkconv scales numbers")
    if narrow is not None:
        return decode(n, n.input(i), narrow)
    return n.input(i) if dtype is DType.F32 else n.emit("cast", n.input(i), to="f32")


def _along(n: NodeView, value: str) -> str:
    """A scale or zero point as it broadcasts with input 0: of all of it, of an index of the axis, or of each block of
    indices."""
    rank, block, given = n.need_rank(0), n.attr_int("block_size", 0), n.need_rank(1)
    axis = n.attr_int("axis", 1)
    if not block:
        if given != 1 or rank < 2 or n.dims(1) == (1,):
            return value
        if not -rank <= axis < rank:
            n.refuse(f"axis {axis} of an input of {rank} dimensions")
        return n.emit("unsqueeze", value, axes=tuple(range(1, rank - axis % rank)))
    if given != rank or not -rank <= axis < rank:
        n.refuse(f"scales of blocks along axis {axis} have {given} dimensions, and the input {rank}; they have as many")
    size, parts = n.dims(0)[axis], n.dims(1)[axis]
    if size is None or parts is None:
        n.refuse("scales of blocks along an axis of open size; export the model with a fixed one")
    if -(-size // block) != parts:
        n.refuse(f"{parts} scales along axis {axis}, {size} elements in blocks of {block} have {-(-size // block)}")
    return n.emit("gather", value, n.number(np.arange(size) // block, DType.I64), axis=axis)


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
    inputs = [n.input(i) for i in range(len(n.inputs))]
    if op == "qlinear_matmul":
        for i in (1, 4, 6):
            inputs[i] = _in_f32(n, i)
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
