"""Matrix product with numpy's broadcasting over batches; ONNX Gemm is the case with a bias and factors.

a is (..., M, K) or, with trans_a, (..., K, M); b is (..., K, N) or (..., N, K); bias is (N);
y = act(alpha a b + beta bias) out_scale + out_shift is (..., M, N). Operands have rank 2 or more: an
importer reshapes vectors. A residual (..., M, N) is added before the activation.
"""

import math
from collections.abc import Mapping

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.activation import check_numbers
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Resolved, Specs, Sums
from vkconv.ops.core.shapes import one_float_dtype
from vkconv.ops.kernels import epilogue
from vkconv.ops.kernels.gemm import MAX_BATCH_GROUPS, GemmProblem
from vkconv.ops.matmul.published import PUBLISHED
from vkconv.ops.matmul.routes import ROUTES


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    a, b, bias = specs["a"], specs["b"], specs.get("bias")
    assert a is not None and b is not None
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise GraphError(f"matmul takes operands of rank 2 or more, not {a} and {b}; reshape a vector to a matrix")
    one_float_dtype("matmul", a, b, bias)
    m, k = a.dims[-2:] if not attrs["trans_a"] else a.dims[:-3:-1]
    k_b, n = b.dims[-2:] if not attrs["trans_b"] else b.dims[:-3:-1]
    if k != k_b:
        raise GraphError(f"a ({shape_str(a.shape)}) sums over {k} elements, but b ({shape_str(b.shape)}) has {k_b}")
    try:
        lead = np.broadcast_shapes(a.dims[:-2], b.dims[:-2])
    except ValueError:
        raise GraphError(
            f"the batches of a ({shape_str(a.shape)}) and b ({shape_str(b.shape)}) do not broadcast"
        ) from None
    if bias is not None and bias.dims != (n,):
        raise GraphError(f"the bias is {shape_str(bias.shape)}; with {n} columns it is {n}")
    check_numbers(str(attrs["act"]), attrs["act_a"], attrs["act_b"])
    epilogue.check_rescaling(attrs)
    y = TensorSpec((*lead, m, n), a.dtype)
    groups = len(GemmProblem.of(Call("matmul", specs, {"y": y}, attrs)).batch)
    if groups > MAX_BATCH_GROUPS:
        raise GraphError(
            f"the batches of a ({shape_str(a.shape)}) and b ({shape_str(b.shape)}) broadcast in {groups} separate "
            f"groups of dimensions, of which there may be {MAX_BATCH_GROUPS}; expand one operand first"
        )
    epilogue.check_residual(specs.get("residual"), y)
    return attrs, (y,)


def _products(call: Call, factors: Mapping[str, F64]) -> F64:
    a, b = factors["a"], factors["b"]
    a = np.swapaxes(a, -1, -2) if call["trans_a"] else a
    b = np.swapaxes(b, -1, -2) if call["trans_b"] else b
    return np.asarray(np.matmul(a, b))


def _finished(call: Call, arrays: Arrays, sums: F64) -> F64:
    y = call["alpha"] * sums
    bias = arrays.get("bias")
    if bias is not None:
        y = y + call["beta"] * np.asarray(bias, np.float64)
    return epilogue.activated(call, epilogue.with_residual(arrays, y))


def _terms(call: Call) -> int:
    return call.shape("a")[-2 if call["trans_a"] else -1] + call.has("bias") + call.has("residual")


_SUMS = Sums(("a", "b"), _products, _finished)

MATMUL = Op(
    "matmul",
    operands=(Operand("a"), Operand("b"), Operand("bias", optional=True), epilogue.RESIDUAL),
    resolve=_resolve,
    reference=_SUMS.reference,
    attrs=(
        Attr("trans_a", "ta", bool, False),
        Attr("trans_b", "tb", bool, False),
        Attr("alpha", "alpha", float, 1.0),
        Attr("beta", "beta", float, 1.0),
        *epilogue.EPILOGUE_ATTRS,
    ),
    routes=ROUTES,
    published=PUBLISHED,
    terms=_terms,
    magnitude=epilogue.magnitude_of_products(_SUMS.reference, _terms),
    flops=lambda call: 2 * math.prod(call.shape("y")) * call.shape("a")[-2 if call["trans_a"] else -1],
    sums=_SUMS,
    cases=(
        "matmul:a=1x40x120,b=120x360,bias=360",
        "matmul:a=1x8x40x15,b=1x8x15x40",
        "matmul:a=65x33,b=33x130,bias=130,act=relu",
        "matmul:a=70x129,b=67x129,tb=1,alpha=0.5,beta=2,bias=67",
        "matmul:a=19x37,b=19x83,ta=1",
        "matmul:a=3x17x5,b=3x21x17,ta=1,tb=1,act=sigmoid",
        "matmul:a=5x7x1,b=1x3",
        "matmul:a=1x257,b=257x1,bias=1",
        "matmul:a=301x7,b=7x2,bias=2,act=leaky_relu,act_a=0.25",
        "matmul:a=35x9,b=9x34,bias=34,act=gelu,out_scale=-0.75,out_shift=3",
        "matmul:a=2x1x3x4x5,b=7x1x5x6",
        "matmul:a=1x2x1x3x2x5,b=4x1x2x1x5x3",
        "matmul:a=4x6x5,b=5x9,ta=0",
        "matmul:a=4x5x6,b=5x9,ta=1",
        "matmul:a=3x35x20,b=20x44,bias=44,act=relu",
        "matmul:a=70x1x2,b=70x2x1",
        "matmul:a=3x35x20,b=20x44,bias=44,residual=3x35x44,act=relu",
        "matmul:a=301x7,b=7x2,residual=301x2,alpha=0.5,act=gelu,out_scale=2",
        "matmul:a=2x1x33x5,b=7x5x35,residual=2x7x33x35",
    ),
    doc="Matrix product with broadcast batches, transposes, factors, a bias per column, a residual, a fused activation,"
    " scale and shift.",
)
