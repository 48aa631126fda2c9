"""2-D convolution of 8-bit integers with zero points: to 32-bit sums (ONNX's ConvInteger), or on to bytes
(QLinearConv).

x is (N, C_in, H, W), w is (C_out, C_in / groups, KH, KW), each i8 or u8. The sum of (x - x_zero)(w - w_zero) wraps at
32 bits; padding is x_zero. qlinear_conv adds an i32 bias (C_out) and gives
y = saturate(round(sum factor) + y_zero), halves to even, where factor = x_scale w_scale / y_scale. Products and
quotient are those of f32, as in ONNX's reference implementation. w_scale and w_zero are one number or one for each
output channel.
"""

import math

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import Array, DType, GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.kernels.windows import CONVOLUTION_ATTRS, convolved, resolve_convolution
from vkconv.ops.quant.integer_conv_routes import ROUTES
from vkconv.ops.quant.quantize import BYTES, is_per_tensor, rounded


def check_bytes(op: str, name: str, spec: TensorSpec, zero: TensorSpec | None) -> None:
    """GraphError unless an operand is of bytes, and its zero point of the same type."""
    if spec.dtype not in BYTES:
        raise GraphError(f"{op}: {name} is {spec.dtype}; it is i8 or u8")
    if zero is not None and zero.dtype is not spec.dtype:
        raise GraphError(f"{op}: {name} is {spec.dtype} and its zero point {zero.dtype}; they are of one type")


def check_one(op: str, name: str, spec: TensorSpec | None) -> None:
    """GraphError unless a scale or zero point is one number."""
    if spec is not None and not is_per_tensor(spec):
        raise GraphError(f"{op}: {name} is {shape_str(spec.shape)}; it is one number")


def check_scale(op: str, name: str, spec: TensorSpec) -> None:
    if spec.dtype is not DType.F32:
        raise GraphError(f"{op}: {name} is {spec.dtype}; it must be f32")


def _resolve_conv(op: str, specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[int, ...]]:
    """Canonical attributes and the shape of y."""
    x, w = shapes.operand(specs, "x", op), shapes.operand(specs, "w", op)
    check_bytes(op, "x", x, specs.get("x_zero"))
    check_bytes(op, "w", w, specs.get("w_zero"))
    check_one(op, "x_zero", specs.get("x_zero"))
    canonical, y = resolve_convolution(op, x, w, attrs)
    for name in ("w_zero", "w_scale"):
        spec = specs.get(name)
        if spec is not None and not is_per_tensor(spec) and spec.dims != y[1:2]:
            raise GraphError(f"{op}: {name} is {shape_str(spec.shape)}; it is one number or {y[1]}, one per channel")
    return canonical, y


def _resolve_integer(specs: Specs, attrs: Attrs) -> Resolved:
    canonical, y = _resolve_conv("conv_integer", specs, attrs)
    return canonical, (TensorSpec(y, DType.I32),)


def _resolve_quantized(specs: Specs, attrs: Attrs) -> Resolved:
    op = "qlinear_conv"
    canonical, y = _resolve_conv(op, specs, attrs)
    for name in ("x_scale", "w_scale", "y_scale"):
        check_scale(op, name, shapes.operand(specs, name, op))
    for name in ("x_scale", "y_scale", "y_zero"):
        check_one(op, name, specs.get(name))
    zero, b = shapes.operand(specs, "y_zero", op), specs.get("b")
    check_bytes(op, "y", zero, None)
    if b is not None and (b.dtype is not DType.I32 or b.dims != y[1:2]):
        raise GraphError(f"{op}: the bias is {b}; with {y[1]} output channels it is {y[1]}:i32")
    return canonical, (TensorSpec(y, zero.dtype),)


def less_zero(array: Array | None, zero: Array | None, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Bytes less their zero point, which ``shape`` makes broadcast unless it is one number."""
    values = np.asarray(array, np.int64)
    if zero is None:
        return values
    return values - (np.asarray(zero, np.int64).reshape(() if zero.size == 1 else shape))


def _sums(call: Call, arrays: Arrays) -> npt.NDArray[np.int64]:
    x = less_zero(arrays["x"], arrays.get("x_zero"), ()).astype(np.float64)  # exact: sums are far below 2^53
    w = less_zero(arrays["w"], arrays.get("w_zero"), (-1, 1, 1, 1)).astype(np.float64)
    return convolved(call, x, w).astype(np.int64)


def requantized(
    sums: npt.NDArray[np.int64],
    scale: npt.NDArray[np.float32],
    y_scale: Array | None,
    y_zero: Array | None,
    dtype: DType,
) -> Array:
    """saturate(round(sums scale / y_scale) + y_zero), as f32 has it; the sums wrap at 32 bits."""
    with np.errstate(all="ignore"):
        factor = scale / np.asarray(y_scale, np.float32).reshape(())
        scaled = sums.astype(np.int32).astype(np.float32) * factor
    return rounded(scaled, np.asarray(y_zero, np.int64).reshape(()), dtype)


def _reference_quantized(call: Call, arrays: Arrays) -> Outputs:
    sums = _sums(call, arrays)
    if arrays.get("b") is not None:
        sums = sums + np.asarray(arrays["b"], np.int64)[:, None, None]
    x_scale, w_scale = (shapes.given(arrays, name).astype(np.float32) for name in ("x_scale", "w_scale"))
    scale = x_scale.reshape(()) * w_scale.reshape(() if w_scale.size == 1 else (-1, 1, 1))
    return [requantized(sums, scale, arrays["y_scale"], arrays["y_zero"], call.outputs["y"].dtype)]


def _flops(call: Call) -> int:
    return 2 * math.prod(call.shape("y")) * math.prod(call.shape("w")[1:])


# x, w and attributes: tails, strides, groups of every kind.
_SHAPES = (
    "2x5x11x9 7x5x3x3 p=1",
    "1x16x8x20 20x16x3x3 p=1,s=2",
    "3x4x9x10 6x4x2x5 s=2x3,p=1x0x2x3,d=1x2",
    "2x7x13x16 7x1x3x3 g=7,p=1",
    "1x64x5x8 40x32x1x1 g=2",
    "1x1x32x44 1x1x11x11 d=3,auto=valid",
    "2x13x7x11 37x13x1x1 ",
    "1x3x13x17 5x3x3x3 s=2,p=1",
)


def _case(text: str, op: str, x: str, w: str, *more: str) -> str:
    shape, weights, attrs = text.split(" ")
    words = [f"x={shape}:{x}", f"w={weights}:{w}", *(part.format(c_out=weights.split("x")[0]) for part in more)]
    return f"{op}:{','.join([*words, attrs] if attrs else words)}"


_SCALES = ("x_scale=scalar", "y_scale=scalar")
CONV_INTEGER = Op(
    "conv_integer",
    operands=(Operand("x"), Operand("w"), Operand("x_zero", optional=True), Operand("w_zero", optional=True)),
    resolve=_resolve_integer,
    reference=lambda call, arrays: [_sums(call, arrays).astype(np.int32)],
    attrs=CONVOLUTION_ATTRS,
    routes=ROUTES,
    flops=_flops,
    cases=(
        _case(_SHAPES[0], "conv_integer", "u8", "i8", "x_zero=scalar:u8"),
        _case(_SHAPES[7], "conv_integer", "i8", "u8", "w_zero={c_out}:u8"),
        _case(_SHAPES[6], "conv_integer", "u8", "u8", "x_zero=1:u8", "w_zero=scalar:u8"),
        _case(_SHAPES[3], "conv_integer", "i8", "i8"),
    ),
    doc="2-D convolution of i8 or u8 with zero points, as 32-bit sums.",
)

QLINEAR_CONV = Op(
    "qlinear_conv",
    operands=(
        Operand("x"),
        Operand("x_scale"),
        Operand("x_zero"),
        Operand("w"),
        Operand("w_scale"),
        Operand("w_zero"),
        Operand("y_scale"),
        Operand("y_zero"),
        Operand("b", optional=True),
    ),
    resolve=_resolve_quantized,
    reference=_reference_quantized,
    attrs=CONVOLUTION_ATTRS,
    routes=ROUTES,
    flops=_flops,
    cases=(
        *(
            _case(
                text,
                "qlinear_conv",
                *("u8", "i8", *_SCALES, "x_zero=scalar:u8", "w_scale={c_out}", "w_zero={c_out}:i8"),
                *("y_zero=scalar:u8", "b={c_out}:i32"),
            )
            for text in _SHAPES[:6]
        ),
        *(
            _case(
                text,
                "qlinear_conv",
                *("i8", "u8", *_SCALES, "x_zero=1:i8", "w_scale=scalar", "w_zero=scalar:u8", "y_zero=scalar:i8"),
            )
            for text in _SHAPES[6:]
        ),
    ),
    doc="2-D convolution of i8 or u8 with zero points, scales per tensor or channel and an i32 bias, to i8 or u8.",
)
