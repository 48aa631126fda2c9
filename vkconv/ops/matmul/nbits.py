"""A matrix product whose weights are 2, 4 or 8 bits by groups, unpacked in the kernel: com.microsoft's MatMulNBits.

a is (..., M, K). b is (N, blocks, bytes) of u8: row j has the weights of column j of y, the lowest bits of a byte
first, in blocks of a power of two of them, 16 or more. scale is (N, blocks). zero is (N, bytes) of u8, the zero points
of a row packed as weights are, up to a whole byte; without it they are half of what the bits count to. A weight is
(b - zero) scale. bias is (N); y = act(a w^T + bias) out_scale + out_shift is (..., M, N).
"""

import dataclasses
import math

import numpy as np

from vkconv.call import HALVES, Call
from vkconv.core import Array, DType, GraphError, ceil_div, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.activation import check_numbers
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.tolerance import largest, of_error
from vkconv.ops.kernels import epilogue
from vkconv.ops.matmul.nbits_problem import BITS, LEAST_BLOCK, NbitsProblem, matmul_of
from vkconv.ops.matmul.nbits_routes import ROUTES
from vkconv.ops.matmul.op import MATMUL

_OP = "matmul_nbits"
# Roundings of a weight before it is multiplied.
_BEFORE = 2


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    a, b, scale, zero = (specs.get(name) for name in ("a", "b", "scale", "zero"))
    assert a is not None and b is not None and scale is not None
    bits = int(shapes.ints(attrs["bits"])[0])
    if bits not in BITS:
        raise GraphError(f"{_OP}: bits={bits}; it is one of {', '.join(map(str, BITS))}")
    if len(a.dims) < 2:
        raise GraphError(f"{_OP} takes an a of rank 2 or more, not {a}; reshape a vector to a matrix")
    shapes.one_float_dtype(_OP, a, scale, specs.get("bias"))
    if b.dtype is not DType.U8 or len(b.dims) != 3:
        raise GraphError(f"{_OP}: b is {b}; it is u8, columns x blocks x bytes of a block")
    n, blocks, nbytes = b.dims
    block, k = nbytes * 8 // bits, a.dims[-1]
    if block < LEAST_BLOCK or block & (block - 1):
        raise GraphError(
            f"{_OP}: b ({b}) has {block} weights of {bits} bits in a block; blocks are of a power of two, "
            f"{LEAST_BLOCK} or more"
        )
    if blocks != ceil_div(k, block):
        raise GraphError(
            f"{_OP}: a ({shape_str(a.shape)}) sums over {k} elements, {ceil_div(k, block)} blocks of {block}, but b "
            f"({shape_str(b.shape)}) has {blocks}"
        )
    if scale.dims != (n, blocks):
        raise GraphError(
            f"{_OP}: the scale is {shape_str(scale.shape)}; for b of {shape_str(b.shape)} it is {n}x{blocks}"
        )
    packed = n, ceil_div(blocks * bits, 8)
    if zero is not None and (zero.dtype is not DType.U8 or zero.dims != packed):
        raise GraphError(
            f"{_OP}: the zero points are {zero}; for b of {shape_str(b.shape)} they are {shape_str(packed)}:u8"
        )
    bias = specs.get("bias")
    if bias is not None and bias.dims != (n,):
        raise GraphError(f"{_OP}: the bias is {shape_str(bias.shape)}; with {n} columns it is {n}")
    check_numbers(str(attrs["act"]), attrs["act_a"], attrs["act_b"])
    epilogue.check_rescaling(attrs)
    return attrs, (TensorSpec((*a.dims[:-1], n), a.dtype),)


def _numbers(packed: Array, bits: int) -> F64:
    """The numbers in bytes, along the last axis."""
    parts = packed[..., None].astype(np.int64) >> np.arange(0, 8, bits)
    return np.asarray((parts & ((1 << bits) - 1)).reshape(*packed.shape[:-1], -1), np.float64)


def weights(call: Call, arrays: Arrays) -> F64:
    """N x K, by definition in float64."""
    p = NbitsProblem.of(call)
    b, scale, zero = arrays["b"], arrays["scale"], arrays.get("zero")
    assert b is not None and scale is not None
    middle = np.full((p.n, p.blocks), 1 << (p.bits - 1), np.float64)
    if zero is not None:
        middle = _numbers(zero, p.bits)[:, : p.blocks]
    with np.errstate(all="ignore"):
        scaled = (_numbers(b, p.bits) - middle[..., None]) * np.asarray(scale, np.float64)[..., None]
    return np.asarray(scaled.reshape(p.n, -1)[:, : p.k])


def _product(call: Call, arrays: Arrays) -> tuple[Call, Arrays]:
    """The matmul that it is, and its operands."""
    return matmul_of(call), {"a": arrays["a"], "b": weights(call, arrays), "bias": arrays.get("bias")}


def _reference(call: Call, arrays: Arrays) -> Outputs:
    return MATMUL.reference(*_product(call, arrays))


def _terms(call: Call) -> int:
    return call.shape("a")[-1] + call.has("bias") + _BEFORE


def _magnitude(call: Call, arrays: Arrays, result: F64) -> F64:
    """What the rounding of an output is relative to: that of the product. In calls of 16-bit floats the weights may be
    stored as such on the way: each product is off by half a unit of its weight's."""
    product, operands = _product(call, arrays)
    product = dataclasses.replace(product, outputs=call.outputs)
    if call.outputs["y"].dtype not in HALVES:
        return _of_products(product, operands, result)
    terms, most = _terms(call), largest(result) + abs(float(call["out_shift"]))
    error = epilogue.rounding_of_products(MATMUL.reference, terms, product, operands, call.outputs["y"].dtype)
    return np.asarray(np.fmax(most, of_error(call, result, error, terms)))


_of_products = epilogue.magnitude_of_products(MATMUL.reference, _terms)


def _case(m: str, k: int, n: int, block: int = 32, bits: int = 4, zero: bool = False, more: str = "") -> str:
    blocks = ceil_div(k, block)
    packed = f",zero={n}x{ceil_div(blocks * bits, 8)}:u8" if zero else ""
    shown = f",bits={bits}" if bits != 4 else ""
    return f"{_OP}:a={m}x{k},b={n}x{blocks}x{block * bits // 8}:u8,scale={n}x{blocks}{packed}{more}{shown}"


MATMUL_NBITS = Op(
    _OP,
    operands=(
        Operand("a"),
        Operand("b"),
        Operand("scale"),
        Operand("zero", optional=True),
        Operand("bias", optional=True),
    ),
    resolve=_resolve,
    reference=_reference,
    attrs=(Attr("bits", "bits", int, 4), *epilogue.EPILOGUE_ATTRS),
    routes=ROUTES,
    terms=_terms,
    magnitude=_magnitude,
    flops=lambda call: 2 * math.prod(call.shape("y")) * call.shape("a")[-1],
    cases=(
        _case("1", 256, 130),
        _case("1", 301, 37, zero=True, more=",bias=37"),
        _case("2x3", 129, 67, block=16, zero=True, more=",bias=67,act=relu"),
        _case("5", 200, 66, block=128),
        _case("1", 96, 33, bits=8, zero=True),
        _case("7", 75, 19, block=16, bits=2, zero=True),
        _case("1", 33, 5, bits=2),
        _case("65", 140, 35, zero=True, more=",bias=35,act=silu"),
        _case("33", 64, 71, block=16, bits=8),
        _case("1x35", 40, 64, block=64, zero=True, more=",act=gelu,out_scale=-0.75,out_shift=3"),
        _case("3", 1, 1, block=16, zero=True),
        _case("9", 514, 258, block=256, zero=True),
    ),
    doc="Matrix product with weights of 2, 4 or 8 bits by groups, each with a scale and zero point, unpacked in the "
    "kernel; a bias per column, a fused activation, scale and shift.",
)
