"""Matrix products of 8-bit integers with zero points: to 32-bit sums (ONNX's MatMulInteger), or on to bytes
(QLinearMatMul).

a is (..., M, K), b is (..., K, N), each i8 or u8, with numpy's broadcasting over batches. The sum of
(a - a_zero)(b - b_zero) wraps at 32 bits. qlinear_matmul gives y = saturate(round(sum factor) + y_zero), halves to
even, where factor = a_scale b_scale / y_scale, of f32, as in ONNX's reference implementation. Zero points and scales
of a are one number or one for each row, those of b one for each column.
"""

import math

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import DType, GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.kernels.gemm import MAX_BATCH_GROUPS
from vkconv.ops.quant.integer_conv import check_bytes, check_one, check_scale, less_zero, requantized
from vkconv.ops.quant.integer_matmul_routes import ROUTES, matrices


def _resolve_matmul(op: str, specs: Specs) -> tuple[int, ...]:
    """The shape of y."""
    a, b = shapes.operand(specs, "a", op), shapes.operand(specs, "b", op)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise GraphError(f"{op} takes operands of rank 2 or more, not {a} and {b}; reshape a vector to a matrix")
    check_bytes(op, "a", a, specs.get("a_zero"))
    check_bytes(op, "b", b, specs.get("b_zero"))
    m, k = a.dims[-2:]
    if b.dims[-2] != k:
        raise GraphError(f"{op}: a ({a}) sums over {k} elements, but b ({b}) has {b.dims[-2]}")
    n = b.dims[-1]
    for name, extent, last, what in (("a", m, (m, 1), "row"), ("b", n, (1, n), "column")):
        for spec in (specs.get(f"{name}_zero"), specs.get(f"{name}_scale")):
            # One for each row of each batch is not there.
            if spec is not None and spec.size != 1 and (spec.size != extent or spec.dims[-2:] not in (last, (extent,))):
                raise GraphError(
                    f"{op}: a zero point or scale of {name} is {shape_str(spec.shape)}; it is one number or {extent}, "
                    f"one per {what}"
                )
    return *shapes.broadcast_shape(op, a.dims[:-2], b.dims[:-2]), m, n


def _checked(op: str, specs: Specs, attrs: Attrs, y: TensorSpec) -> Resolved:
    groups = len(matrices(Call(op, specs, {"y": y}, attrs)).batch)
    if groups > MAX_BATCH_GROUPS:
        raise GraphError(
            f"{op}: the batches of a and b broadcast in {groups} separate groups of dimensions, of which there may be "
            f"{MAX_BATCH_GROUPS}; expand one operand first"
        )
    return attrs, (y,)


def _resolve_integer(specs: Specs, attrs: Attrs) -> Resolved:
    op = "matmul_integer"
    return _checked(op, specs, attrs, TensorSpec(_resolve_matmul(op, specs), DType.I32))


def _resolve_quantized(specs: Specs, attrs: Attrs) -> Resolved:
    op = "qlinear_matmul"
    shape, zero = _resolve_matmul(op, specs), shapes.operand(specs, "y_zero", op)
    for name in ("a_scale", "b_scale", "y_scale"):
        check_scale(op, name, shapes.operand(specs, name, op))
    check_one(op, "y_scale", specs.get("y_scale"))
    check_one(op, "y_zero", zero)
    check_bytes(op, "y", zero, None)
    return _checked(op, specs, attrs, TensorSpec(shape, zero.dtype))


def _sums(arrays: Arrays) -> npt.NDArray[np.int64]:
    a = less_zero(arrays["a"], arrays.get("a_zero"), (-1, 1)).astype(np.float64)  # exact: far below 2^53
    b = less_zero(arrays["b"], arrays.get("b_zero"), (1, -1)).astype(np.float64)
    sums: npt.NDArray[np.int64] = np.matmul(a, b).astype(np.int64)
    return sums


def _reference_quantized(call: Call, arrays: Arrays) -> Outputs:
    a_scale, b_scale = (shapes.given(arrays, name).astype(np.float32) for name in ("a_scale", "b_scale"))
    scale = a_scale.reshape(() if a_scale.size == 1 else (-1, 1)) * b_scale.reshape(() if b_scale.size == 1 else (-1,))
    return [requantized(_sums(arrays), scale, arrays["y_scale"], arrays["y_zero"], call.outputs["y"].dtype)]


def _flops(call: Call) -> int:
    return 2 * math.prod(call.shape("y")) * call.shape("a")[-1]


_SHAPES = (("65x33", "33x132"), ("5x7", "7x3"), ("3x17x8", "3x8x9"), ("2x1x3x4x5", "7x1x5x8"))
_SCALES = "a_scale={m},a_zero={m}:{a},b_scale={n},b_zero={n}:{b},y_scale=scalar,y_zero=scalar:{y}"


MATMUL_INTEGER = Op(
    "matmul_integer",
    operands=(Operand("a"), Operand("b"), Operand("a_zero", optional=True), Operand("b_zero", optional=True)),
    resolve=_resolve_integer,
    reference=lambda call, arrays: [_sums(arrays).astype(np.int32)],
    routes=ROUTES,
    flops=_flops,
    cases=(
        *(f"matmul_integer:a={a}:u8,b={b}:i8,a_zero=scalar:u8" for a, b in _SHAPES[1:3]),
        "matmul_integer:a=19x37:i8,b=37x83:u8,a_zero=19:i8,b_zero=83:u8",
        "matmul_integer:a=9x16:u8,b=16x20:u8",
    ),
    doc="Matrix product of i8 or u8 with zero points and broadcast batches, as 32-bit sums.",
)

QLINEAR_MATMUL = Op(
    "qlinear_matmul",
    operands=(
        Operand("a"),
        Operand("a_scale"),
        Operand("a_zero"),
        Operand("b"),
        Operand("b_scale"),
        Operand("b_zero"),
        Operand("y_scale"),
        Operand("y_zero"),
    ),
    resolve=_resolve_quantized,
    reference=_reference_quantized,
    routes=ROUTES,
    flops=_flops,
    cases=(
        *(
            f"qlinear_matmul:a={a}:u8,b={b}:i8,"
            + _SCALES.format(m="scalar", n=b.split("x")[-1], a="u8", b="i8", y="u8")
            for a, b in _SHAPES
        ),
        "qlinear_matmul:a=19x37:i8,b=37x84:u8," + _SCALES.format(m="19", n="scalar", a="i8", b="u8", y="i8"),
        "qlinear_matmul:a=19x37:u8,b=37x84:u8," + _SCALES.format(m="19", n="scalar", a="u8", b="u8", y="u8"),
        "qlinear_matmul:a=2x9x16:u8,b=16x20:u8," + _SCALES.format(m="9x1", n="1x20", a="u8", b="u8", y="u8"),
    ),
    doc="Matrix product of i8 or u8 with zero points and scales per tensor, row or column, to i8 or u8.",
)
