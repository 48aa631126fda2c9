"""A 2-D convolution of which only a reduction is kept, as that over its pixels before a classifier.

Operands and attributes as of conv2d, of whose result (N, C_out, OH, OW), with bias, residuals and activation, y is the
sum, mean, maximum, minimum, sum of squares or root of that (l2) over ``axes``: 2 and 3, its pixels, unless others are
given, which makes y (N, C_out). A residual and a second one, residual2, are added before the activation, and repeat
along dimensions of which they have 1. With keepdims reduced dimensions stay as 1. NaN in what is compared makes NaN.
``also`` names a second reduction over the same axes, an output of its own; with ``product`` the result of the
convolution is an output too, as where it is gated by its own mean.
"""

from vkconv.core import GraphError
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Attr, Attrs, Op, Resolved, Specs
from vkconv.ops.fused.addends import RESIDUALS, SECOND, check_residuals, product_call
from vkconv.ops.fused.conv_reduce_routes import PIXELS, ROUTES, convolution_of
from vkconv.ops.fused.definition import OUTPUTS, REDUCE_ATTRS, Fused, check_functions, made

_CONV_ATTRS = tuple(attr.name for attr in CONV2D.attrs)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    check_functions("conv_reduce", attrs)
    conv = product_call(CONV2D, specs, {name: attrs[name] for name in _CONV_ATTRS})
    full = conv.outputs["y"]
    check_residuals("conv_reduce", specs, full, 1)
    for name in RESIDUALS:
        spec = specs.get(name)
        if spec is not None and len(spec.dims) != len(full.dims):
            raise GraphError(f"conv_reduce: {name} is {spec}; give it four dimensions, those of {full} or 1")
    axes = shapes.axes_of("conv_reduce", attrs["axes"], len(full.dims))
    if not axes:
        raise GraphError("conv_reduce: axes is empty; name the dimensions of (N, C_out, OH, OW) to reduce")
    kept = tuple(1 if i in axes else n for i, n in enumerate(full.dims) if attrs["keepdims"] or i not in axes)
    return {**attrs, **conv.attrs, "axes": axes}, made(attrs, TensorSpec(kept, full.dtype), full)


_FUSED = Fused(CONV2D, convolution_of, lambda call: call["axes"])

CONV_REDUCE = Op(
    "conv_reduce",
    operands=(*CONV2D.operands, SECOND),
    resolve=_resolve,
    reference=_FUSED.reference,
    outputs=OUTPUTS,
    attrs=(*CONV2D.attrs, Attr("axes", "axes", tuple[int, ...], PIXELS), *REDUCE_ATTRS),
    routes=ROUTES,
    terms=_FUSED.terms,
    magnitude=_FUSED.magnitude,
    magnitudes=_FUSED.magnitudes,
    flops=_FUSED.flops,
    cases=(
        "conv_reduce:x=2x5x7x7,w=37x5x1x1,b=37,op=mean,keep=1",
        "conv_reduce:x=1x3x13x17,w=5x3x3x3,b=5,s=2,p=1,act=hard_swish,op=max",
        "conv_reduce:x=2x3x12x16,w=8x3x4x4,s=4,op=mean",
        "conv_reduce:x=2x3x12x16,w=8x3x4x4,s=4,axes=0x2x3,op=max",
        "conv_reduce:x=3x4x9x10,w=6x4x2x5,s=2x3,p=1x0x2x3,d=1x2",
        "conv_reduce:x=1x13x1x23,w=19x13x1x3,b=19,p=0x1,act=relu,op=min",
        "conv_reduce:x=2x6x8x9,w=9x2x3x3,b=9,g=3,p=1,s=1x2,op=mean",
        "conv_reduce:x=2x7x13x17,w=7x1x3x3,b=7,g=7,p=1,op=max,keep=1",
        "conv_reduce:x=7x9x3x3,w=33x9x1x1,b=33,slope=33,act=prelu",
        "conv_reduce:x=5x20x1x1,w=17x20x1x1,op=mean",
        "conv_reduce:x=32x20x1x1,w=64x20x1x1,axes=0x2x3,op=mean",
        "conv_reduce:x=1x16x40x41,w=24x16x3x3,p=1,b=24,act=tanh,op=mean",
        "conv_reduce:x=67x3x5x5,w=4x3x3x3,p=1,op=max",
        "conv_reduce:x=1x160x7x7,w=960x160x1x1,b=960,act=hard_swish,op=mean,keep=1",
        "conv_reduce:x=2x256x23x23,w=2048x256x1x1,op=mean",
        "conv_reduce:x=1x2x128x128,w=1x2x1x1,b=1",
        "conv_reduce:x=1x4x2x60,w=3x4x2x45,act=relu",
        "conv_reduce:x=2x5x7x7,w=37x5x1x1,b=37,op=l2,keep=1",
        "conv_reduce:x=1x13x13x17,w=19x13x3x3,p=1,op=sum_square",
        "conv_reduce:x=7x9x3x3,w=33x9x1x1,b=33,act=relu,op=l2",
        "conv_reduce:x=2x5x7x9,w=37x5x3x3,b=37,axes=1,act=relu,op=max",
        "conv_reduce:x=2x6x8x9,w=10x3x3x3,b=10,g=2,p=1,axes=1,op=mean,keep=1",
        "conv_reduce:x=2x16x9x8,w=139x16x1x1,axes=1,op=l2",
        "conv_reduce:x=3x5x7x11,w=37x5x3x3,b=37,p=1,axes=3,op=mean",
        "conv_reduce:x=2x6x5x64,w=10x3x1x3,g=2,p=0x1,axes=3,op=min,keep=1",
        "conv_reduce:x=2x5x3x138,w=7x5x1x3,axes=3",
        "conv_reduce:x=5x7x6x7,w=34x7x3x3,b=34,axes=0x2x3,op=mean",
        "conv_reduce:x=3x7x6x7,w=34x7x3x3,axes=0x1,op=max",
        "conv_reduce:x=2x7x6x7,w=34x7x3x3,b=34,axes=0x1x2x3,op=sum_square",
        "conv_reduce:x=2x7x6x7,w=34x7x3x3,b=34,axes=1x2x3,op=l2,keep=1",
        "conv_reduce:x=3x7x5x8,w=6x7x3x1,axes=0x3,op=min",
        "conv_reduce:x=2x7x6x7,w=9x7x3x3,axes=2",
        "conv_reduce:x=2x5x69x3,w=35x5x3x3,b=35,p=1,residual=2x35x69x3,axes=2,op=mean,product=1",
        "conv_reduce:x=3x5x9x7,w=37x5x3x3,b=37,residual=3x37x7x5,act=relu,op=mean",
        "conv_reduce:x=2x8x9x7,w=10x4x1x1,g=2,residual=2x10x9x7,axes=1,op=max",
        "conv_reduce:x=2x5x3x13,w=7x5x3x3,p=1,residual=2x7x3x13,act=tanh,axes=3",
        "conv_reduce:x=3x5x6x7,w=9x5x1x1,residual=3x9x6x7,axes=0x2x3,op=l2",
        "conv_reduce:x=2x5x7x9,w=37x5x3x3,b=37,p=1,act=relu,op=mean,keep=1,product=1",
        "conv_reduce:x=3x6x7x7,w=10x3x3x3,b=10,g=2,op=mean,also=sum_square",
        "conv_reduce:x=2x16x9x8,w=139x16x1x1,residual=2x139x9x8,axes=1,op=max,also=min,product=1",
        "conv_reduce:x=3x5x7x11,w=37x5x3x3,b=37,p=1,axes=3,op=l2,also=mean,product=1",
        "conv_reduce:x=5x7x6x7,w=34x7x3x3,b=34,axes=0x2x3,op=mean,also=max,product=1",
        "conv_reduce:x=2x6x7x9,w=11x6x3x3,b=11,p=1,op=mean,also=max,product=1",
        "conv_reduce:x=2x6x7x9,w=11x6x3x3,p=1,residual=2x11x7x9,op=mean,also=sum_square",
        "conv_reduce:x=2x6x7x9,w=11x6x3x3,p=1,residual=2x11x7x9,op=max,also=mean,product=1",
        "conv_reduce:x=2x6x7x9,w=11x6x3x3,p=1,residual=2x11x7x9,op=mean,product=1",
        "conv_reduce:x=4x5x6x8,w=8x5x3x3,b=8,p=1,act=relu,axes=0,op=mean",
        "conv_reduce:x=6x4x6x8,w=8x2x1x1,g=2,residual=6x8x6x8,axes=0,op=l2,keep=1",
        "conv_reduce:x=4x64x4x8,w=64x1x3x3,b=64,g=64,p=1,axes=0x2x3,op=mean",
        "conv_reduce:x=4x8x4x8,w=64x8x1x1,b=64,act=relu,axes=0x2x3,op=max",
        "conv_reduce:x=3x5x9x7,w=37x5x3x3,b=37,residual=1x37x1x1,act=relu,op=mean",
        "conv_reduce:x=2x6x7x9,w=11x6x3x3,p=1,residual=1x11x7x9,op=mean,also=max",
        "conv_reduce:x=2x6x7x9,w=11x6x3x3,p=1,residual=2x1x7x9,op=sum,product=1",
        "conv_reduce:x=3x5x9x7,w=37x5x3x3,residual=3x1x7x5,residual2=3x37x7x5,op=max",
        "conv_reduce:x=2x8x9x7,w=10x4x1x1,g=2,residual=1x1x9x7,residual2=2x10x1x1,axes=1,op=max",
        "conv_reduce:x=2x5x3x13,w=7x5x3x3,p=1,residual=1x1x1x13,residual2=1x7x3x1,act=tanh,axes=3",
        "conv_reduce:x=3x5x6x7,w=9x5x1x1,residual=1x1x1x1,residual2=3x9x6x7,axes=0x2x3,op=l2",
        "conv_reduce:x=2x6x7x9,w=11x6x3x3,p=1,b=11,slope=11,residual=2x11x7x9,residual2=2x11x1x1,act=prelu,op=mean,"
        "also=max,product=1",
        "conv_reduce:x=6x4x6x8,w=8x2x1x1,g=2,residual=1x8x6x8,axes=0,op=mean",
    ),
    doc="2-D convolution, bias, two residuals that broadcast and activation, of which only a sum, mean, maximum, "
    "minimum, sum of squares or l2 norm is kept: over the pixels, or over axes.",
)
