"""2-D transposed convolution: every input element adds its product with the kernel to the outputs it touches.

x is (N, C_in, H, W), w is (C_in, C_out / groups, KH, KW), b is (C_out), y is (N, C_out, OH, OW) with
OH = (H - 1) stride - padding + dilation (KH - 1) + output_padding + 1. Output that no tap reaches is bias alone.
With ``act=prelu`` there is a slope (C_out). A 1-D one comes as H = 1. It is the gradient of conv2d by its input.
"""

import math

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.by_images import with_by_images
from vkconv.ops.conv.transpose.phases import check_operands, most_products
from vkconv.ops.conv.transpose.routes import ROUTES
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.published import Published
from vkconv.ops.kernels import epilogue
from vkconv.ops.kernels.windows import AUTO_PADS, check_extent, explicit_padding, pair, spanned


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    lie = ("(N, C, H, W)", "(C_in, C_out/groups, KH, KW)")
    x, w, c_out = check_operands("conv_transpose2d", "x", specs, attrs, lie, ("input", "output"))
    (n, _, height, width), (kh, kw) = x.dims, w.dims[2:]
    if min(height, width) < 1:
        raise GraphError(f"x is {height}x{width}; both sides are at least 1")
    stride, dilation = pair(attrs, "stride"), pair(attrs, "dilation")
    padding, more = _explicit(attrs, (height, width), (kh, kw))
    out = []
    for i, (axis, extent, kernel) in enumerate((("h", height, kh), ("w", width, kw))):
        reach = spanned(extent, stride[i], kernel, dilation[i]) + more[i]
        pads = padding[i], padding[i + 2]
        check_extent("the output before it is cropped", axis, reach)
        if reach - sum(pads) < 1:
            raise GraphError(
                f"along {axis} {extent} inputs reach {reach} outputs, and the padding takes {sum(pads)} of them "
                f"({pads[0]} + {pads[1]}); the output would be empty"
            )
        out.append(reach - sum(pads))
    canonical: Attrs = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": more}
    canonical |= {"auto_pad": "explicit", "output_shape": ()}
    return {**attrs, **canonical}, (TensorSpec((n, c_out, *out), x.dtype),)


def _explicit(
    attrs: Attrs, extent: tuple[int, int], kernel: tuple[int, int]
) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """Padding as (top, left, bottom, right) and output padding as (h, w), as given or from ``output_shape`` or
    ``auto_pad`` by the formula of ONNX ConvTranspose; ``same_*`` without a shape makes extent * stride outputs."""
    stride, dilation, more = pair(attrs, "stride"), pair(attrs, "dilation"), _output_padding(attrs)
    shape, mode = attrs["output_shape"], str(attrs["auto_pad"])
    assert isinstance(shape, tuple)
    if mode not in AUTO_PADS:
        raise GraphError(f"auto_pad is {mode!r}; it is one of {', '.join(AUTO_PADS)}")
    if not shape and mode in ("explicit", "valid"):
        return explicit_padding(attrs, extent, kernel), more
    if len(shape) not in (0, 2) or any(int(v) < 1 for v in shape):
        raise GraphError(f"output_shape is {shape}; it takes two values of at least 1 (h, w)")
    if mode == "explicit":
        attrs = {**attrs, "padding": (0,)}  # ONNX: where an output shape is given, the pads follow from it
    explicit_padding({**attrs, "auto_pad": mode}, extent, kernel)  # refuses padding beside auto_pad
    begin, end, padded = [0, 0], [0, 0], list(more)
    for i, axis in enumerate("hw"):
        target = int(shape[i]) if shape else extent[i] * stride[i]
        total = spanned(extent[i], stride[i], kernel[i], dilation[i]) + more[i] - target
        if total < 0:  # the output is larger than what the input reaches, as with output padding
            padded[i] -= total
        total = max(total, 0)
        begin[i] = total // 2 if mode == "same_upper" else total - total // 2
        end[i] = total - begin[i]
        if padded[i] >= max(stride[i], dilation[i]) and padded[i] > more[i]:
            raise GraphError(
                f"along {axis} the output is to have {target} elements, but the input reaches only "
                f"{target - padded[i] + more[i]}; beyond that there may be fewer than the stride or the dilation"
            )
    return (begin[0], begin[1], end[0], end[1]), (padded[0], padded[1])


def _output_padding(attrs: Attrs) -> tuple[int, int]:
    stride, dilation, given = pair(attrs, "stride"), pair(attrs, "dilation"), attrs["output_padding"]
    assert isinstance(given, tuple)
    values = [int(v) for v in given] * (2 if len(given) == 1 else 1)
    if len(values) != 2 or any(not 0 <= v < max(s, d) for v, s, d in zip(values, stride, dilation, strict=True)):
        raise GraphError(
            f"output_padding is {given}; it takes one or two values (h, w), not negative and smaller than the stride "
            f"{stride} or the dilation {dilation}"
        )
    return values[0], values[1]


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, w = (np.asarray(arrays[name], np.float64) for name in "xw")
    n, c_in, h, width = x.shape
    _, c_out, oh, ow = call.shape("y")
    g, (sh, sw), (dh, dw) = call["groups"], call["stride"], call["dilation"]
    t, left, _, _ = call["padding"]
    # As large as the input reaches and the output extends, whichever is more; then the output is cut out.
    rows, columns = max(t + oh, spanned(h, sh, w.shape[2], dh)), max(left + ow, spanned(width, sw, w.shape[3], dw))
    full = np.zeros((n, g, c_out // g, rows, columns))
    grouped = x.reshape(n, g, c_in // g, h * width)
    for ky, kx in np.ndindex(w.shape[2:]):
        tap = w[:, :, ky, kx].reshape(g, c_in // g, c_out // g)
        product = np.matmul(tap.transpose(0, 2, 1), grouped).reshape(n, g, c_out // g, h, width)
        y0, x0 = ky * dh, kx * dw
        full[..., y0 : y0 + (h - 1) * sh + 1 : sh, x0 : x0 + (width - 1) * sw + 1 : sw] += product
    y = full[..., t : t + oh, left : left + ow].reshape(call.shape("y"))
    return [epilogue.finished(call, arrays, y)]


def _terms(call: Call) -> int:
    return most_products(call) + call.has("b")


CONV_TRANSPOSE2D = Op(
    "conv_transpose2d",
    operands=(Operand("x"), Operand("w"), epilogue.BIAS, epilogue.SLOPE),
    resolve=_resolve,
    reference=_reference,
    attrs=(
        Attr("stride", "s", tuple[int, ...], (1, 1)),
        Attr("padding", "p", tuple[int, ...], (0, 0, 0, 0)),
        Attr("output_padding", "op", tuple[int, ...], (0, 0)),
        Attr("output_shape", "out", tuple[int, ...], ()),
        Attr("auto_pad", "auto", str, "explicit"),
        Attr("dilation", "d", tuple[int, ...], (1, 1)),
        Attr("groups", "g", int, 1),
        *epilogue.EPILOGUE_ATTRS,
    ),
    routes=with_by_images(ROUTES, ("x", "y")),
    published={"executorch": lambda call, device: Published(("transposed_direct",), "transposed")},
    terms=_terms,
    magnitude=epilogue.magnitude_of_products(_reference, _terms),
    # Every input meets every tap of its group, also where padding cuts the product off.
    flops=lambda call: 2 * math.prod(call.shape("x")) * math.prod(call.shape("w")[1:]),
    cases=(
        "conv_transpose2d:x=3x8x4x4,w=8x4x2x2,s=2",
        "conv_transpose2d:x=1x5x7x9,w=5x6x4x4,b=6,s=2,p=1,act=relu",
        "conv_transpose2d:x=2x6x5x6,w=6x3x3x3,b=9,g=3,s=2,p=1,op=1,act=hard_swish",
        "conv_transpose2d:x=1x3x4x5,w=3x19x3x2,s=3x2,p=1x0x2x1,op=2x0",
        "conv_transpose2d:x=1x4x6x5,w=4x5x1x1,b=5,s=2,op=1,act=sigmoid",
        "conv_transpose2d:x=1x3x7x4,w=3x4x3x4,d=2x3,p=2",
        "conv_transpose2d:x=2x3x5x5,w=3x4x3x3,b=4,s=4x6,d=2x4,op=1x5",
        "conv_transpose2d:x=1x2x1x23,w=2x7x1x5,b=7,s=1x3,p=0x2,op=0x1",
        "conv_transpose2d:x=1x6x9x8,w=6x1x5x5,g=6,s=2,p=2,op=1",
        "conv_transpose2d:x=1x3x3x3,w=3x2x3x3,s=3x2,out=10x8",
        "conv_transpose2d:x=1x3x6x5,w=3x2x3x4,s=2,auto=same_upper,act=clip,act_a=-1,act_b=2",
        "conv_transpose2d:x=1x24x6x20,w=24x1x2x2,b=1,s=2,act=sigmoid",
        "conv_transpose2d:x=1x6x5x7,w=6x5x3x3,s=2,b=5,act=silu,out_scale=2,out_shift=-1",
        "conv_transpose2d:x=1x16x5x37,w=16x24x3x3,p=1,b=24,act=tanh",
        "conv_transpose2d:x=1x6x40x50,w=6x8x3x3,b=8,s=1x2,p=2x3,op=0x1",
        "conv_transpose2d:x=1x2x4x3,w=2x3x2x2,p=1,s=1x9,d=7x1",
        "conv_transpose2d:x=2x6x5x4,w=6x9x3x3,b=18,g=2,s=2,p=1,act=prelu,slope=18",
        "conv_transpose2d:x=1x5x6x7,w=5x3x3x2,s=2x3,d=2x1,act=prelu,slope=3",
    ),
    doc="2-D transposed convolution with groups, output padding, dilation, bias and a fused activation, prelu by "
    "channel too.",
)
