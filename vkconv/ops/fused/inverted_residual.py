"""An inverted residual block: a 1x1 convolution that expands, a depthwise one, and a 1x1 one that projects (Sandler et
al. 2018).

x is (N, C_in, H, W), we (C, C_in, 1, 1) with its bias be (C) and the activation ``expand``, then as separable_conv2d:
wd (C, 1, KH, KW), its bias bd and the activation ``between``, and w (C_out, C, 1, 1) with what ends it: the shortcut is
the residual. Stride, padding and dilation are the depthwise convolution's; what it pads with are zeros behind the
expansion.
"""

from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Attr, Attrs, Op, Operand, Resolved, Specs
from vkconv.ops.fused.convolutions import check_activation
from vkconv.ops.fused.inverted_residual_routes import IN_ROW, ROUTES
from vkconv.ops.fused.separable_conv2d import BETWEEN_ATTRS, resolve_separable
from vkconv.ops.kernels import epilogue
from vkconv.ops.kernels.windows import WINDOW_ATTRS

EXPAND_ATTRS = (
    Attr("expand", "expand", str, "none"),
    Attr("expand_a", "expand_a", float, 0.0),
    Attr("expand_b", "expand_b", float, 0.0),
)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, we, be = specs["x"], specs["we"], specs.get("be")
    assert x is not None and we is not None
    shapes.one_float_dtype("inverted_residual", x, we, be)
    if len(x.shape) != 4 or len(we.shape) != 4 or we.dims[1:] != (x.dims[1], 1, 1):
        raise GraphError(
            f"inverted_residual: x is {shape_str(x.shape)} and we {shape_str(we.shape)}; they are (N, C_in, H, W) and "
            "(C, C_in, 1, 1)"
        )
    if be is not None and be.dims != we.dims[:1]:
        raise GraphError(f"inverted_residual: be is {shape_str(be.shape)}; it is {we.dims[0]}, one for each channel")
    wd = specs["wd"]
    if wd is not None and wd.shape[:1] != we.shape[:1]:
        raise GraphError(
            f"inverted_residual: wd is {shape_str(wd.shape)}; it has a window for each of the {we.dims[0]} channels "
            "that we makes"
        )
    check_activation(str(attrs["expand"]), attrs, "expand_a", "expand_b")
    expanded = TensorSpec((x.dims[0], we.dims[0], *x.dims[2:]), x.dtype)
    return resolve_separable("inverted_residual", expanded, specs, attrs)


INVERTED_RESIDUAL = Op(
    "inverted_residual",
    operands=(
        Operand("x"),
        Operand("we"),
        Operand("wd"),
        Operand("w"),
        Operand("be", optional=True),
        Operand("bd", optional=True),
        epilogue.BIAS,
        epilogue.SLOPE,
        epilogue.RESIDUAL,
    ),
    resolve=_resolve,
    reference=IN_ROW.reference,
    attrs=(*WINDOW_ATTRS, *EXPAND_ATTRS, *BETWEEN_ATTRS, *epilogue.EPILOGUE_ATTRS),
    routes=ROUTES,
    terms=IN_ROW.terms,
    magnitude=IN_ROW.magnitude,
    flops=IN_ROW.flops,
    cases=(
        "inverted_residual:x=2x6x11x9,we=21x6x1x1,be=21,wd=21x1x3x3,bd=21,w=5x21x1x1,b=5,p=1,expand=relu6,between=relu6",
        "inverted_residual:x=3x20x1x1,we=24x20x1x1,be=24,wd=24x1x3x3,bd=24,w=17x24x1x1,b=17,p=1,expand=relu6,between=relu6",
        "inverted_residual:x=1x8x14x14,we=32x8x1x1,wd=32x1x3x3,w=8x32x1x1,residual=1x8x14x14,p=1,expand=silu,between=silu",
        "inverted_residual:x=3x5x7x8,we=18x5x1x1,be=18,wd=18x1x5x5,w=37x18x1x1,b=37,p=2,s=2,expand=hard_swish,act=relu",
        "inverted_residual:x=1x3x13x10,we=7x3x1x1,be=7,wd=7x1x2x3,bd=7,w=67x7x1x1,p=2x0x1x3,d=2x1,s=1x2,slope=67,act=prelu",
        "inverted_residual:x=2x9x5x4,we=16x9x1x1,be=16,wd=16x1x3x3,w=130x16x1x1,expand=sigmoid,between=tanh,out_scale=0.5",
        "inverted_residual:x=1x4x40x5,we=6x4x1x1,wd=6x1x9x9,w=4x6x1x1,p=20,d=2x5",
        "inverted_residual:x=1x6x7x8,we=12x6x1x1,wd=12x1x1x1,w=9x12x1x1,expand=relu",
    ),
    doc="A 1x1 convolution that expands, a depthwise one and a 1x1 one that projects, with what ends that one.",
)
