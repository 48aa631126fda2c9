"""2-D convolution (cross-correlation, as networks define it) with groups, bias and a fused activation.

x is (N, C_in, H, W), w is (C_out, C_in / groups, KH, KW), b is (C_out), y is (N, C_out, OH, OW). With
``act=prelu`` there is a slope (C_out). A residual (N, C_out, OH, OW) is added before the activation. A 1-D convolution
comes as H = 1.
"""

import math

from vkconv.call import Call
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.by_images import published_by_images, with_by_images
from vkconv.ops.conv.conv2d.published import PUBLISHED
from vkconv.ops.conv.conv2d.routes import ROUTES
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Attrs, Op, Operand, Resolved, Specs, Sums
from vkconv.ops.kernels import epilogue
from vkconv.ops.kernels.windows import CONVOLUTION_ATTRS, convolved, resolve_convolution


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, w, b, slope = specs["x"], specs["w"], specs.get("b"), specs.get("slope")
    assert x is not None and w is not None
    shapes.one_float_dtype("conv2d", x, w, b, slope)
    canonical, shape = resolve_convolution("conv2d", x, w, attrs)
    epilogue.check_epilogue(b, slope, attrs, shape[1], "output")
    y = TensorSpec(shape, x.dtype)
    epilogue.check_residual(specs.get("residual"), y)
    return canonical, (y,)


def _terms(call: Call) -> int:
    return math.prod(call.shape("w")[1:]) + call.has("b") + call.has("residual")


_SUMS = Sums(("x", "w"), lambda call, factors: convolved(call, factors["x"], factors["w"]), epilogue.finished)

CONV2D = Op(
    "conv2d",
    operands=(Operand("x"), Operand("w"), epilogue.BIAS, epilogue.SLOPE, epilogue.RESIDUAL),
    resolve=_resolve,
    reference=_SUMS.reference,
    attrs=(
        *CONVOLUTION_ATTRS,
        *epilogue.EPILOGUE_ATTRS,
    ),
    routes=with_by_images(ROUTES, ("x", "residual", "y")),
    published=published_by_images(PUBLISHED, ROUTES, ("x", "residual", "y")),
    terms=_terms,
    magnitude=epilogue.magnitude_of_products(_SUMS.reference, _terms),
    flops=lambda call: 2 * math.prod(call.shape("y")) * math.prod(call.shape("w")[1:]),
    sums=_SUMS,
    cases=(
        "conv2d:x=1x3x13x17,w=5x3x3x3,b=5,s=2,p=1,act=hard_swish",
        "conv2d:x=3x8x4x4,w=16x8x3x3,b=16,residual=3x16x4x4,p=1",
        "conv2d:x=3x8x4x4,w=8x8x1x1",
        "conv2d:x=3x8x4x4,w=8x1x3x3,p=1,g=8,act=relu",
        "conv2d:x=3x8x4x4,w=8x4x3x3,p=1,g=2",
        "conv2d:x=2x5x11x9,w=7x5x3x3,p=1",
        "conv2d:x=1x7x6x23,w=19x7x1x3,b=19,p=0x1,act=relu",
        "conv2d:x=3x4x9x10,w=6x4x2x5,s=2x3,p=1x0x2x3,d=1x2",
        "conv2d:x=1x2x31x1,w=3x2x5x1,d=3x1,p=1",
        "conv2d:x=1x3x20x20,w=4x3x3x3,auto=same_upper,s=2,act=clip,act_a=-1,act_b=6",
        "conv2d:x=1x3x20x21,w=4x3x2x4,auto=same_lower,act=leaky_relu,act_a=0.1",
        "conv2d:x=1x1x40x40,w=1x1x11x11,d=3,auto=valid",
        "conv2d:x=2x13x7x11,w=37x13x1x1,b=37,act=silu",
        "conv2d:x=1x6x9x9,w=9x6x1x1,s=2x3",
        "conv2d:x=1x4x5x5,w=8x4x1x1,p=1,b=8",
        "conv2d:x=1x300x1x1,w=17x300x1x1,act=gelu",
        "conv2d:x=32x20x1x1,w=33x20x1x1,b=33,residual=32x33x1x1,act=relu",
        "conv2d:x=3x24x2x3,w=6x24x2x3,slope=6,act=prelu",
        "conv2d:x=2x7x13x17,w=7x1x3x3,b=7,g=7,p=1,act=hard_swish",
        "conv2d:x=1x5x12x19,w=5x1x5x5,g=5,p=2,s=2x1",
        "conv2d:x=1x3x11x14,w=6x1x3x2,g=3,p=2x1x0x1,d=2x3,act=relu6",
        "conv2d:x=1x3x30x9,w=3x1x9x9,g=3,p=20,d=2x5",
        "conv2d:x=1x6x8x9,w=9x2x3x3,b=9,g=3,p=1,s=1x2",
        "conv2d:x=1x8x5x6,w=4x4x1x1,g=2",
        "conv2d:x=1x3x3x3,w=2x3x3x3",
        "conv2d:x=1x16x7x160,w=24x16x3x3,p=1,b=24,act=tanh",
        "conv2d:x=1x40x5x6,w=9x40x5x5,p=1,b=9,act=relu",
        "conv2d:x=1x6x9x11,w=21x6x3x3,p=1,b=21,act=hard_swish,out_scale=-1.5,out_shift=0.25",
        "conv2d:x=2x13x7x11,w=37x13x1x1,b=37,act=relu,out_scale=0.5",
        "conv2d:x=1x5x12x19,w=5x1x3x3,g=5,p=1,slope=5,act=prelu,out_shift=-2",
        "conv2d:x=2x5x9x11,w=19x5x3x3,p=1,b=19,slope=19,act=prelu",
        "conv2d:x=1x33x6x10,w=13x33x3x3,p=1,slope=13,act=prelu",
        "conv2d:x=1x6x7x8,w=10x3x3x3,p=1,b=10,slope=10,g=2,act=prelu",
        "conv2d:x=1x5x9x10,w=5x1x3x3,p=1,s=2x1,slope=5,g=5,act=prelu",
        "conv2d:x=2x9x5x7,w=21x9x1x1,b=21,slope=21,act=prelu",
        "conv2d:x=2x5x9x11,w=19x5x3x3,b=19,residual=2x19x9x11,p=1,act=relu",
        "conv2d:x=2x9x4x7,w=21x9x1x1,residual=2x21x4x7",
        "conv2d:x=1x7x12x19,w=7x1x3x3,b=7,slope=7,residual=1x7x6x19,p=1,s=2x1,g=7,act=prelu",
        "conv2d:x=1x6x7x8,w=10x3x3x3,b=10,residual=1x10x7x8,p=1,g=2,act=tanh,out_scale=-1.5,out_shift=0.25",
        "conv2d:x=2x3x19x23,w=33x3x7x7,b=33,s=2,p=3,act=relu",
        "conv2d:x=2x3x12x16,w=8x3x4x4,residual=2x8x3x4,s=4",
        "conv2d:x=2x2x11x17,w=6x2x3x5,slope=6,s=2x3,p=1x0x2x4,act=prelu",
        "conv2d:x=1x300x3x3,w=17x300x3x3,residual=1x17x3x4,p=1x1x1x2,act=relu",
    ),
    doc="2-D convolution with groups, asymmetric padding, dilation, bias, a residual and a fused activation, prelu by "
    "channel too.",
)
