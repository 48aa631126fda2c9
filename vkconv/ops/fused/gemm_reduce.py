"""A matrix product of which only a reduction is kept.

a, b and bias as in matmul; p = act(alpha a b + beta bias + residual + residual2) is (..., M, N) and is never stored.
Both residuals broadcast to p as numpy has it: (M, 1), (N), (M, N) for all batches, or (1). With axis n, y (..., M) is
the sum, mean, maximum, minimum, sum of squares or root of that (l2) of each row of p; with axis m, y (..., N) is that
of each column; with axis mn, y (...) is that of each matrix. A b in front (b, bn, bm, bmn) reduces over all batches
too. With keepdims reduced dimensions stay as 1. NaN in what is compared makes NaN. ``also`` names a second reduction
over the same axes, an output of its own; with ``product`` p is an output too.
"""

from vkconv.core import GraphError, did_you_mean
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import Attr, Attrs, Op, Resolved, Specs
from vkconv.ops.fused.addends import SECOND, check_residuals, product_call
from vkconv.ops.fused.definition import OUTPUTS, REDUCE_ATTRS, Fused, check_functions, made
from vkconv.ops.fused.gemm_reduce_routes import AXES, ROUTES, axes_named, axes_of, product_of
from vkconv.ops.matmul.op import MATMUL

_PRODUCT_ATTRS = tuple(attr.name for attr in MATMUL.attrs)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    check_functions("gemm_reduce", attrs)
    axis = str(attrs["axis"])
    if axis not in AXES:
        raise GraphError(
            f"gemm_reduce: axis is {axis!r}{did_you_mean(axis, AXES)}; it is m (down the rows), n (along them) or mn, "
            "or one of these behind b (over the batches), or b"
        )
    product = product_call(MATMUL, specs, {name: attrs[name] for name in _PRODUCT_ATTRS})
    full = product.outputs["y"]
    check_residuals("gemm_reduce", specs, full, len(full.dims) - 2)
    if axis.startswith("b") and len(full.dims) < 3:
        raise GraphError(f"gemm_reduce: axis is {axis}, and the product, {full}, has no batches to reduce over")
    axes = axes_named(axis, len(full.dims))
    if any(full.dims[i] == 0 for i in axes):
        raise GraphError(f"gemm_reduce: the product is {full}: there is nothing along {axis} to reduce")
    kept = tuple(1 if i in axes else n for i, n in enumerate(full.dims) if attrs["keepdims"] or i not in axes)
    return {**attrs, **product.attrs}, made(attrs, TensorSpec(kept, full.dtype), full)


_FUSED = Fused(MATMUL, product_of, axes_of)

GEMM_REDUCE = Op(
    "gemm_reduce",
    operands=(*MATMUL.operands, SECOND),
    resolve=_resolve,
    reference=_FUSED.reference,
    outputs=OUTPUTS,
    attrs=(*MATMUL.attrs, Attr("axis", "axis", str, "n"), *REDUCE_ATTRS),
    routes=ROUTES,
    terms=_FUSED.terms,
    magnitude=_FUSED.magnitude,
    magnitudes=_FUSED.magnitudes,
    flops=_FUSED.flops,
    cases=(
        "gemm_reduce:a=1x128x64,b=1x64x256,axis=n",
        "gemm_reduce:a=1x128x64,b=1x64x256,axis=m,op=max",
        "gemm_reduce:a=65x33,b=33x130,bias=130,act=relu,axis=n,op=mean",
        "gemm_reduce:a=70x129,b=67x129,tb=1,alpha=0.5,beta=2,bias=67,axis=m,op=min,keep=1",
        "gemm_reduce:a=19x37,b=19x83,ta=1,axis=m",
        "gemm_reduce:a=3x17x5,b=3x21x17,ta=1,tb=1,act=sigmoid,axis=n,op=max,keep=1",
        "gemm_reduce:a=1x257,b=257x1,bias=1,axis=m",
        "gemm_reduce:a=301x7,b=7x2,bias=2,act=leaky_relu,act_a=0.25,axis=m,op=mean",
        "gemm_reduce:a=2x1x3x4x5,b=7x1x5x6,axis=m,op=max",
        "gemm_reduce:a=4x6x5,b=5x9,axis=m,op=mean",
        "gemm_reduce:a=4x6x5,b=5x9,axis=n,op=min",
        "gemm_reduce:a=3x35x20,b=20x44,bias=44,act=relu,axis=n",
        "gemm_reduce:a=2x67x9,b=9x300,bias=300,act=tanh,axis=m",
        "gemm_reduce:a=70x1x2,b=70x2x1,axis=n",
        "gemm_reduce:a=256x512,b=512x256,axis=m",
        "gemm_reduce:a=1x128x64,b=1x64x256,residual=1x128x256,axis=n",
        "gemm_reduce:a=3x35x20,b=20x44,residual=3x35x44,act=relu,axis=m,op=mean",
        "gemm_reduce:a=2x37x9,b=2x9x301,residual=2x37x301,bias=301,axis=n,op=max,keep=1",
        "gemm_reduce:a=301x7,b=7x2,residual=301x2,axis=m,op=l2",
        "gemm_reduce:a=19x37,b=19x83,ta=1,axis=m,op=l2",
        "gemm_reduce:a=65x33,b=33x130,bias=130,act=relu,axis=n,op=sum_square",
        "gemm_reduce:a=3x17x5,b=3x21x17,ta=1,tb=1,axis=n,op=l2,keep=1",
        "gemm_reduce:a=65x33,b=33x130,bias=130,act=relu,axis=mn,op=mean",
        "gemm_reduce:a=3x35x20,b=20x44,residual=3x35x44,axis=mn,op=max,keep=1",
        "gemm_reduce:a=4x19x7,b=4x7x61,axis=bn",
        "gemm_reduce:a=2x3x19x7,b=3x7x61,axis=bm,op=l2",
        "gemm_reduce:a=3x35x20,b=20x44,bias=44,act=relu,axis=bmn,op=sum_square",
        "gemm_reduce:a=5x9x6,b=5x6x11,act=relu,axis=b,op=mean",
        "gemm_reduce:a=7x19x35,b=7x19x41,ta=1,bias=41,beta=0.5,axis=b",
        "gemm_reduce:a=2x3x19x7,b=2x3x35x7,tb=1,bias=35,alpha=-2,axis=b,op=mean,keep=1",
        "gemm_reduce:a=65x33,b=33x130,bias=130,act=relu,axis=n,op=mean,also=sum_square",
        "gemm_reduce:a=3x35x20,b=20x44,residual=3x35x44,axis=m,op=max,also=min,keep=1,product=1",
        "gemm_reduce:a=2x67x9,b=2x9x301,axis=n,op=l2,product=1",
        "gemm_reduce:a=19x37,b=19x83,ta=1,axis=m,product=1",
        "gemm_reduce:a=4x19x7,b=4x7x61,axis=bn,op=mean,also=max,product=1",
        "gemm_reduce:a=33x21,b=21x45,bias=45,axis=n,op=max,also=sum,product=1",
        "gemm_reduce:a=37x24,b=24x51,residual=37x51,axis=n,op=min,also=mean",
        "gemm_reduce:a=41x17,b=17x35,residual=41x35,axis=m,op=sum,product=1",
        "gemm_reduce:a=1x128x64,b=1x64x256,residual=1x1x256,axis=n",
        "gemm_reduce:a=41x17,b=17x35,residual=35,axis=n,op=sum,product=1",
        "gemm_reduce:a=3x37x24,b=3x24x51,residual=37x1,axis=n,op=min,also=mean",
        "gemm_reduce:a=67x5,b=5x131,bias=131,residual=67x1,act=relu,axis=n,op=max",
        "gemm_reduce:a=3x35x20,b=20x44,residual=35x44,residual2=3x1x44,axis=m,op=mean",
        "gemm_reduce:a=2x3x19x7,b=3x7x61,residual=3x19x1,residual2=2x1x1x61,act=tanh,axis=n,op=min",
        "gemm_reduce:a=301x7,b=7x2,residual=1,residual2=301x2,axis=m,op=l2",
        "gemm_reduce:a=4x19x7,b=4x7x61,residual=4x1x1,residual2=19x61,axis=bmn",
        "gemm_reduce:a=37x24,b=24x51,residual=37x51,residual2=51,axis=n,op=min,also=mean,product=1",
        "gemm_reduce:a=5x9x6,b=5x6x11,residual=9x11,axis=b,op=max",
    ),
    doc="Matrix product, bias, two residuals that broadcast and activation, of which only the sum, mean, maximum, "
    "minimum, sum of squares or l2 norm along m or n, over both or over the batches is kept.",
)
