"""Floats as 8-bit integers with a scale and a zero point, and back: ONNX's QuantizeLinear, DequantizeLinear and
DynamicQuantizeLinear.

q = saturate(round(x / scale) + zero), with halves rounded to even; x = (q - zero) scale. Division and product are those
of f32, as in ONNX's reference implementation. Scale and zero point are one for the tensor (scalar, or one element) or
one for each index along ``axis``. NaN becomes the zero point.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import Array, DType, GraphError, ceil_div, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.route import Params, Route
from vkconv.shaders import quant

BYTES = (DType.I8, DType.U8)
# Blocked quantization has a scale for every block along an axis, so that its scale has the rank of x.
_BLOCKED = "one scale for the tensor or one for each index along an axis; scales of blocks are not there"

QUANTIZE, DEQUANTIZE, RANGE, SCALE = (
    Shader(kernel, DType.U32)
    for kernel in (quant.QUANTIZE_LINEAR, quant.DEQUANTIZE_LINEAR, quant.DYNAMIC_RANGE, quant.DYNAMIC_SCALE)
)


@dataclasses.dataclass(frozen=True, slots=True)
class Ranges:
    """Invocations at most that each find the range of some elements, of so many at the least, and those of the one
    workgroup behind them."""

    lanes: int
    least_elements: int
    meeting: int


_RANGES = Policy("quant.ranges", Ranges)


def rounded(v: npt.NDArray[Any], zero: npt.NDArray[Any] | int, dtype: DType) -> Array:
    """saturate(round(v) + zero) as ``dtype``, halves to even; NaN is the zero point."""
    info = np.iinfo(dtype.numpy.name)
    whole = np.nan_to_num(np.clip(np.rint(v), -1000, 1000), nan=0.0).astype(np.int64)
    made: Array = np.clip(whole + zero, int(info.min), int(info.max)).astype(dtype.numpy)
    return made


def is_per_tensor(spec: TensorSpec) -> bool:
    """Whether scale or zero point is one number."""
    return spec.shape in ((), (1,))


def _check(op: str, x: TensorSpec, scale: TensorSpec, zero: TensorSpec | None, axis: int) -> int:
    """The axis, counted from the front (0 where one scale is for all); GraphError for operands that do not fit."""
    if scale.dtype is not DType.F32:
        raise GraphError(f"{op}: the scale is {scale.dtype}; it must be f32")
    if zero is not None and zero.dims != scale.dims and not (is_per_tensor(zero) and is_per_tensor(scale)):
        raise GraphError(
            f"{op}: the zero point is {shape_str(zero.shape)}, the scale {shape_str(scale.shape)}; they have one shape"
        )
    if is_per_tensor(scale):
        return 0
    if len(scale.shape) != 1:
        raise GraphError(f"{op}: the scale is {shape_str(scale.shape)}, and vkconv has {_BLOCKED}")
    front = shapes.axis_of(op, axis, len(x.shape))
    if scale.dims[0] != x.dims[front]:
        raise GraphError(f"{op}: there are {scale.dims[0]} scales for {x.dims[front]} indices along axis {front}")
    return front


def _along(array: npt.NDArray[Any], call: Call, x: str) -> npt.NDArray[Any]:
    """Scale or zero point, shaped to broadcast over x."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape((-1, *(1,) * (len(call.shape(x)) - call["axis"] - 1)))


def _resolve_quantize(specs: Specs, attrs: Attrs) -> Resolved:
    op = "quantize_linear"
    x, scale, zero = shapes.operand(specs, "x", op), shapes.operand(specs, "y_scale", op), specs.get("y_zero")
    if x.dtype is not DType.F32:
        raise GraphError(f"{op}: x is {x.dtype}; it must be f32")
    to = shapes.element_type(op, attrs, "to", BYTES)
    dtype = to if zero is None else zero.dtype
    if dtype not in BYTES:
        raise GraphError(f"{op}: y would be {dtype}; it is i8 or u8")
    axis = _check(op, x, scale, zero, shapes.ints(attrs["axis"])[0])
    return {"axis": axis, "to": str(dtype)}, (TensorSpec(x.shape, dtype),)


def _quantized(x: npt.NDArray[Any], scale: npt.NDArray[Any], zero: npt.NDArray[Any] | int, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return rounded(x.astype(np.float32) / scale.astype(np.float32), zero, dtype)


def _reference_quantize(call: Call, arrays: Arrays) -> Outputs:
    zero = arrays.get("y_zero")
    middle = 0 if zero is None else _along(np.asarray(zero, np.int64), call, "x")
    scale = _along(shapes.given(arrays, "y_scale"), call, "x")
    return [_quantized(shapes.given(arrays, "x"), scale, middle, call.outputs["y"].dtype)]


def _linear(
    call: Call,
    device: Device,
    params: Params,
    shader: Shader,
    scale: str,
    zero: str | None,
    constants: Mapping[str, Word],
    by_axis: bool = True,
) -> Dispatch:
    """The launch of one of the two formulas, a word of four bytes per invocation."""
    count, channels, inner = call.outputs["y"].size, 1, 1
    if by_axis:
        channels, inner = call.specs[scale].size, math.prod(call.shape("x")[call["axis"] + 1 :])
    return dispatch_each(
        shader,
        ceil_div(count, 4),
        device,
        params,
        {"count": count, "channels": channels, "inner": inner},
        {**constants, "HAS_ZERO": zero is not None, "PER_AXIS": channels > 1, "VEC4": count % 4 == 0},
        {"scale": scale, "zero": zero},
    )


def _quantize(call: Call, device: Device, params: Params, zero: str | None, by_axis: bool = True) -> Dispatch:
    is_signed = {"SIGNED": call.outputs["y"].dtype is DType.I8}
    return _linear(call, device, params, QUANTIZE, "y_scale", zero, is_signed, by_axis)


def _program_quantize(call: Call, device: Device, params: Params) -> Program:
    return Program((_quantize(call, device, params, "y_zero" if call.has("y_zero") else None),))


def _resolve_dequantize(specs: Specs, attrs: Attrs) -> Resolved:
    op = "dequantize_linear"
    x, scale, zero = shapes.operand(specs, "x", op), shapes.operand(specs, "x_scale", op), specs.get("x_zero")
    if x.dtype not in (*BYTES, DType.I32):
        raise GraphError(f"{op}: x is {x.dtype}; it is i8, u8 or i32")
    if zero is not None and zero.dtype is not x.dtype:
        raise GraphError(f"{op}: x is {x.dtype} and its zero point {zero.dtype}; they are of one type")
    axis = _check(op, x, scale, zero, shapes.ints(attrs["axis"])[0])
    return {"axis": axis}, (TensorSpec(x.shape, DType.F32),)


def _reference_dequantize(call: Call, arrays: Arrays) -> Outputs:
    zero = arrays.get("x_zero")
    middle = 0 if zero is None else _along(np.asarray(zero, np.int64), call, "x")
    difference = shapes.given(arrays, "x").astype(np.int64) - middle
    wrapped = difference.astype(np.int32)  # as the device subtracts, where x is i32
    return [wrapped.astype(np.float64) * _along(shapes.given(arrays, "x_scale"), call, "x")]


def _program_dequantize(call: Call, device: Device, params: Params) -> Program:
    dtype, zero = call.specs["x"].dtype, "x_zero" if call.has("x_zero") else None
    kinds = {"BYTES": dtype in BYTES, "SIGNED": dtype is DType.I8}
    return Program((_linear(call, device, params, DEQUANTIZE, "x_scale", zero, kinds),))


def _resolve_dynamic(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "dynamic_quantize_linear")
    if x.dtype is not DType.F32:
        raise GraphError(f"dynamic_quantize_linear: x is {x.dtype}; it must be f32")
    return {}, (TensorSpec(x.shape, DType.U8), TensorSpec((), DType.F32), TensorSpec((), DType.U8))


def _reference_dynamic(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x").astype(np.float32)
    low, high = (f.reduce(x, axis=None, initial=np.float32(0.0)) for f in (np.fmin, np.fmax))
    with np.errstate(all="ignore"):
        width = np.float32(1.0) if low == high else np.float32(high - low)
        scale = np.asarray(width / np.float32(255.0), np.float32)
        zero = rounded(np.asarray(-(np.float32(low) / scale), np.float32), 0, DType.U8)
    return [_quantized(x, scale, zero.astype(np.int64), DType.U8), scale, zero]


def _program_dynamic(call: Call, device: Device, params: Params) -> Program:
    count, ranges = call.outputs["y"].size, _RANGES.of(device)
    lanes, local = max(1, min(ranges.lanes, ceil_div(count, ranges.least_elements))), ranges.meeting
    ends = dispatch_each(
        RANGE, lanes, device, params, {"count": count, "lanes": lanes}, loop_iterations=ceil_div(count, lanes)
    )
    scale = Dispatch(
        SCALE,
        {"ends": "ends", "scale": "y_scale", "zero": "y_zero"},
        (1, 1, 1),
        (local, 1, 1),
        {"lanes": lanes},
        shared_bytes=8 * local,
        loop_iterations=ceil_div(lanes, local) + local + 27,
    )
    return Program((ends, scale, _quantize(call, device, params, "y_zero", by_axis=False)), scratch={"ends": 8 * lanes})


_WORDS = "one pass, four elements per invocation: one word of bytes"

QUANTIZE_LINEAR = Op(
    "quantize_linear",
    (Operand("x"), Operand("y_scale"), Operand("y_zero", optional=True)),
    _resolve_quantize,
    _reference_quantize,
    attrs=(Attr("axis", "axis", int, 1), Attr("to", "to", str, "u8")),
    routes=(Route("words", _program_quantize, (QUANTIZE,), _WORDS, params=local_params),),
    cases=(
        "quantize_linear:x=3x67,y_scale=scalar,y_zero=scalar:u8",
        "quantize_linear:x=3x67,y_scale=scalar,to=i8",
        "quantize_linear:x=3x68,y_scale=scalar,y_zero=scalar:i8",
        "quantize_linear:x=2x5x3x7,y_scale=5,y_zero=5:i8",
        "quantize_linear:x=2x5x7,y_scale=7,axis=-1",
        "quantize_linear:x=5x1x3,y_scale=1,y_zero=scalar:u8",
    ),
    doc="y = saturate(round(x / y_scale) + y_zero) in i8 or u8, halves to even; per tensor or along axis.",
)

DEQUANTIZE_LINEAR = Op(
    "dequantize_linear",
    (Operand("x"), Operand("x_scale"), Operand("x_zero", optional=True)),
    _resolve_dequantize,
    _reference_dequantize,
    attrs=(Attr("axis", "axis", int, 1),),
    routes=(Route("words", _program_dequantize, (DEQUANTIZE,), _WORDS, params=local_params),),
    cases=(
        "dequantize_linear:x=3x67:u8,x_scale=scalar,x_zero=scalar:u8",
        "dequantize_linear:x=3x68:i8,x_scale=3,x_zero=3:i8,axis=0",
        "dequantize_linear:x=2x5x3x7:i8,x_scale=5,x_zero=5:i8",
        "dequantize_linear:x=2x5x7:u8,x_scale=7,axis=-1",
        "dequantize_linear:x=3x67:i32,x_scale=3,axis=0",
        "dequantize_linear:x=13:i32,x_scale=scalar,x_zero=1:i32",
    ),
    doc="y = (x - x_zero) x_scale of i8, u8 or i32; per tensor or along axis.",
)

DYNAMIC_QUANTIZE_LINEAR = Op(
    "dynamic_quantize_linear",
    (Operand("x"),),
    _resolve_dynamic,
    _reference_dynamic,
    outputs=("y", "y_scale", "y_zero"),
    routes=(
        Route(
            "three_passes",
            _program_dynamic,
            (RANGE, SCALE, QUANTIZE),
            "partial ranges, scale and zero point from them on the device, then quantize_linear",
            params=local_params,
        ),
    ),
    cases=(
        "dynamic_quantize_linear:x=3x67",
        "dynamic_quantize_linear:x=2x5x31x131",
        "dynamic_quantize_linear:x=scalar",
    ),
    doc="y = quantize_linear(x) in u8 with the scale and zero point of the range of x and 0, which are outputs too.",
)
