"""A 2-D convolution of which only a reduction over its pixels is kept, as before a classifier.

Operands and attributes as of conv2d, of whose result (N, C_out, OH, OW), with bias and activation, y (N, C_out) is the
sum, mean, maximum, minimum, sum of squares or root of that (l2) over OH and OW; with keepdims y is (N, C_out, 1, 1).
NaN in what is compared makes NaN.
"""

from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.core.base import Attrs, Op, Resolved, Specs
from vkconv.ops.fused.conv_reduce_routes import AXES, ROUTES, convolution_of
from vkconv.ops.fused.definition import REDUCE_ATTRS, Fused, check_function
from vkconv.ops.kernels.epilogue import RESIDUAL

_CONV_ATTRS = tuple(attr.name for attr in CONV2D.attrs)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    check_function("conv_reduce", str(attrs["op"]))
    conv = CONV2D.call(specs, {name: attrs[name] for name in _CONV_ATTRS})
    full = conv.outputs["y"]
    kept = (1, 1) if attrs["keepdims"] else ()
    return {**attrs, **conv.attrs}, (TensorSpec((*full.dims[:2], *kept), full.dtype),)


_FUSED = Fused(CONV2D, convolution_of, lambda call: AXES)

CONV_REDUCE = Op(
    "conv_reduce",
    operands=tuple(operand for operand in CONV2D.operands if operand is not RESIDUAL),
    resolve=_resolve,
    reference=_FUSED.reference,
    attrs=(*CONV2D.attrs, *REDUCE_ATTRS),
    routes=ROUTES,
    terms=_FUSED.terms,
    magnitude=_FUSED.magnitude,
    flops=_FUSED.flops,
    cases=(
        "conv_reduce:x=2x5x7x7,w=37x5x1x1,b=37,op=mean,keep=1",
        "conv_reduce:x=1x3x13x17,w=5x3x3x3,b=5,s=2,p=1,act=hard_swish,op=max",
        "conv_reduce:x=3x4x9x10,w=6x4x2x5,s=2x3,p=1x0x2x3,d=1x2",
        "conv_reduce:x=1x13x1x23,w=19x13x1x3,b=19,p=0x1,act=relu,op=min",
        "conv_reduce:x=2x6x8x9,w=9x2x3x3,b=9,g=3,p=1,s=1x2,op=mean",
        "conv_reduce:x=2x7x13x17,w=7x1x3x3,b=7,g=7,p=1,op=max,keep=1",
        "conv_reduce:x=7x9x3x3,w=33x9x1x1,b=33,slope=33,act=prelu",
        "conv_reduce:x=5x20x1x1,w=17x20x1x1,op=mean",
        "conv_reduce:x=1x16x40x41,w=24x16x3x3,p=1,b=24,act=tanh,op=mean",
        "conv_reduce:x=67x3x5x5,w=4x3x3x3,p=1,op=max",
        "conv_reduce:x=1x160x7x7,w=960x160x1x1,b=960,act=hard_swish,op=mean,keep=1",
        "conv_reduce:x=21x256x7x7,w=512x256x1x1,op=mean",
        "conv_reduce:x=1x2x128x128,w=1x2x1x1,b=1",
        "conv_reduce:x=1x4x2x60,w=3x4x2x45,act=relu",
        "conv_reduce:x=2x5x7x7,w=37x5x1x1,b=37,op=l2,keep=1",
        "conv_reduce:x=1x13x13x17,w=19x13x3x3,p=1,op=sum_square",
        "conv_reduce:x=7x9x3x3,w=33x9x1x1,b=33,act=relu,op=l2",
    ),
    doc="2-D convolution, bias and activation, of which only a sum, mean, maximum, minimum, sum of squares or l2 norm "
    "over the pixels is kept.",
)
