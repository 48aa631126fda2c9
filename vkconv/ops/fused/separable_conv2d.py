"""A depthwise separable convolution: a depthwise one, an activation, and a 1x1 one of its result (Howard et al. 2017).

x is (N, C_in, H, W), wd (C, 1, KH, KW) with C a multiple of C_in and groups of one channel, bd its bias (C); w is
(C_out, C, 1, 1), b its bias. Stride, padding and dilation are the depthwise convolution's, as conv2d has them;
``between`` is the activation behind it. What ends the 1x1 is as of conv2d: bias, residual, activation, scale.
"""

from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Attr, Attrs, Op, Operand, Resolved, Specs
from vkconv.ops.fused.convolutions import check_activation
from vkconv.ops.fused.separable_routes import IN_ROW, ROUTES
from vkconv.ops.kernels import epilogue
from vkconv.ops.kernels.windows import WINDOW_ATTRS, resolve_convolution

BETWEEN_ATTRS = (
    Attr("between", "between", str, "none"),
    Attr("between_a", "between_a", float, 0.0),
    Attr("between_b", "between_b", float, 0.0),
)


def resolve_separable(op: str, x: TensorSpec, specs: Specs, attrs: Attrs) -> Resolved:
    """The attributes and result of the depthwise convolution of x and the 1x1 behind it. GraphError where they do not
    fit."""
    wd, bd, w, b, slope = (specs.get(name) for name in ("wd", "bd", "w", "b", "slope"))
    assert wd is not None and w is not None
    shapes.one_float_dtype(op, x, wd, bd, w, b, slope)
    if len(wd.shape) != 4 or wd.dims[1] != 1:
        raise GraphError(f"{op}: the depthwise weights wd are {shape_str(wd.shape)}; they are (C, 1, KH, KW)")
    groups = {"groups": x.dims[1]} if len(x.shape) == 4 else {"groups": 1}
    canonical, middle = resolve_convolution(op, x, wd, {**attrs, **groups})
    epilogue.check_epilogue(bd, None, {**attrs, **epilogue.NO_EPILOGUE}, middle[1], "depthwise")
    check_activation(str(attrs["between"]), attrs, "between_a", "between_b")
    if len(w.shape) != 4 or w.dims[1:] != (middle[1], 1, 1):
        raise GraphError(
            f"{op}: the 1x1 weights w are {shape_str(w.shape)}; behind {middle[1]} channels they are (C_out, "
            f"{middle[1]}, 1, 1)"
        )
    epilogue.check_epilogue(b, slope, attrs, w.dims[0], "output")
    y = TensorSpec((middle[0], w.dims[0], *middle[2:]), x.dtype)
    epilogue.check_residual(specs.get("residual"), y)
    return {name: value for name, value in canonical.items() if name != "groups"}, (y,)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = specs["x"]
    assert x is not None
    return resolve_separable("separable_conv2d", x, specs, attrs)


SEPARABLE_CONV2D = Op(
    "separable_conv2d",
    operands=(
        Operand("x"),
        Operand("wd"),
        Operand("w"),
        Operand("bd", optional=True),
        epilogue.BIAS,
        epilogue.SLOPE,
        epilogue.RESIDUAL,
    ),
    resolve=_resolve,
    reference=IN_ROW.reference,
    attrs=(*WINDOW_ATTRS, *BETWEEN_ATTRS, *epilogue.EPILOGUE_ATTRS),
    routes=ROUTES,
    terms=IN_ROW.terms,
    magnitude=IN_ROW.magnitude,
    flops=IN_ROW.flops,
    cases=(
        "separable_conv2d:x=2x13x11x9,wd=13x1x3x3,bd=13,w=37x13x1x1,b=37,p=1,between=relu6,act=relu",
        "separable_conv2d:x=1x32x14x14,wd=32x1x3x3,bd=32,w=16x32x1x1,b=16,p=1,between=hard_swish",
        "separable_conv2d:x=3x18x7x7,wd=18x1x5x5,w=24x18x1x1,residual=3x24x7x7,p=2",
        "separable_conv2d:x=1x7x19x12,wd=7x1x3x3,bd=7,w=5x7x1x1,p=1,s=2,between=silu",
        "separable_conv2d:x=2x5x12x15,wd=10x1x3x2,bd=10,w=9x10x1x1,p=2x1x0x1,d=2x3,between=leaky_relu,between_a=0.1",
        "separable_conv2d:x=1x40x9x10,wd=40x1x5x5,w=67x40x1x1,b=67,slope=67,p=2,s=1x2,act=prelu",
        "separable_conv2d:x=1x3x30x9,wd=3x1x7x7,bd=3,w=163x3x1x1,p=3,between=clip,between_a=-1,between_b=2,out_scale=0.5",
        "separable_conv2d:x=1x24x3x3,wd=24x1x3x3,w=8x24x1x1,act=tanh",
        "separable_conv2d:x=2x9x8x7,wd=9x1x1x1,w=130x9x1x1,between=relu",
        "separable_conv2d:x=1x6x40x5,wd=6x1x9x9,w=4x6x1x1,p=20,d=2x5",
    ),
    doc="A depthwise convolution, an activation and a 1x1 convolution of the result, with what ends that one.",
)
