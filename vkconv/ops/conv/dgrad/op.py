"""The gradient of conv2d by its input: every element of dy adds its product with the kernel to what its window covered.

dy is (N, C_out, OH, OW), w is (C_out, C_in / groups, KH, KW), dx is (N, C_in, H, W), whose shape ``x_shape`` gives: a
stride leaves it open. With groups 1, dx[n, ci, y, x] is the sum of dy[n, co, oy, ox] w[co, ci, ky, kx] over all terms
with oy stride + ky dilation - padding = y, and so for x; elsewhere it is 0. As in conv_transpose2d, b is (C_in) and
an activation may follow, prelu with a slope (C_in). A 1-D one comes as H = 1.

A negative padding crops x before the convolution, as torch.nn.functional.pad does: nothing reaches what was cropped.
"""

import math

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.by_images import published_by_images, with_by_images
from vkconv.ops.conv.dgrad.as_transposed import as_transposed
from vkconv.ops.conv.dgrad.published import PUBLISHED
from vkconv.ops.conv.dgrad.routes import ROUTES
from vkconv.ops.conv.transpose.phases import check_operands, most_products
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.shapes import ints
from vkconv.ops.kernels import epilogue
from vkconv.ops.kernels.windows import CONVOLUTION_ATTRS, explicit_padding, out_extent, pair


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    lie = ("(N, C_out, OH, OW)", "(C_out, C_in/groups, KH, KW)")
    dy, w, c_in = check_operands("conv2d_backward_data", "dy", specs, attrs, lie, ("output", "input"))
    (n, _, *extents), kernel = dy.dims, w.dims[2:]
    height, width = _x_extent(attrs, n, c_in)
    stride, dilation = pair(attrs, "stride"), pair(attrs, "dilation")
    padding = explicit_padding(attrs, (height, width), (kernel[0], kernel[1]), crops=True)
    for i, (axis, extent) in enumerate((("h", height), ("w", width))):
        k, s, d, (begin, end) = kernel[i], stride[i], dilation[i], (padding[i], padding[i + 2])
        made = out_extent(axis, extent, k, s, (begin, end), d)
        if made != extents[i]:
            raise GraphError(
                f"along {axis} dy has {extents[i]}, but a convolution of x_shape's {extent} makes {made}: "
                f"floor(({extent} + {begin} + {end} - {d} ({k} - 1) - 1) / {s}) + 1"
            )
    x_shape = (n, c_in, height, width)
    canonical: Attrs = {"stride": stride, "padding": padding, "auto_pad": "explicit", "dilation": dilation}
    return {**attrs, **canonical, "x_shape": x_shape}, (TensorSpec(x_shape, dy.dtype),)


def _x_extent(attrs: Attrs, n: int, c_in: int) -> tuple[int, int]:
    """Height and width of x_shape, which is (h, w) or the whole of (n, c_in, h, w)."""
    given = ints(attrs["x_shape"])
    if len(given) not in (2, 4) or min(given[-2:]) < 1:
        raise GraphError(f"x_shape is {given}; it takes (h, w) or (n, c_in, h, w), h and w of at least 1")
    if given[:-2] not in ((), (n, c_in)):
        raise GraphError(f"x_shape is {shape_str(given)}, but dy has {n} images and w {c_in} input channels")
    return given[-2], given[-1]


def _reference(call: Call, arrays: Arrays) -> Outputs:
    dy, w = (np.asarray(arrays[name], np.float64) for name in ("dy", "w"))
    n, c_out, oh, ow = dy.shape
    _, c_in, height, width = call.shape("dx")
    g, (sh, sw), (dh, dw) = call["groups"], call["stride"], call["dilation"]
    top, left, bottom, right = call["padding"]
    begin, end = (max(-top, 0), max(-left, 0)), (max(-bottom, 0), max(-right, 0))  # cropped: zeros around the sums
    rows_left, columns_left = height - begin[0] - end[0], width - begin[1] - end[1]
    top, left, bottom, right = (max(pad, 0) for pad in (top, left, bottom, right))
    padded = np.zeros((n, g, c_in // g, top + rows_left + bottom, left + columns_left + right))
    grouped = dy.reshape(n, g, c_out // g, oh * ow)
    for ky, kx in np.ndindex(w.shape[2:]):
        # What this tap read, forward, of every window.
        rows = slice(ky * dh, ky * dh + (oh - 1) * sh + 1, sh)
        columns = slice(kx * dw, kx * dw + (ow - 1) * sw + 1, sw)
        tap = w[:, :, ky, kx].reshape(g, c_out // g, c_in // g).swapaxes(1, 2)
        padded[..., rows, columns] += (tap @ grouped).reshape(n, g, c_in // g, oh, ow)
    dx = np.zeros((n, g, c_in // g, height, width))
    dx[..., begin[0] : height - end[0], begin[1] : width - end[1]] = padded[
        ..., top : top + rows_left, left : left + columns_left
    ]
    dx = dx.reshape(call.shape("dx"))
    return [epilogue.finished(call, arrays, dx)]


def _terms(call: Call) -> int:
    return most_products(as_transposed(call)) + call.has("b")


CONV2D_BACKWARD_DATA = Op(
    "conv2d_backward_data",
    operands=(Operand("dy"), Operand("w"), epilogue.BIAS, epilogue.SLOPE),
    outputs=("dx",),
    resolve=_resolve,
    reference=_reference,
    attrs=(
        Attr("x_shape", "x_shape", tuple[int, ...]),
        *CONVOLUTION_ATTRS,
        *epilogue.EPILOGUE_ATTRS,
    ),
    routes=with_by_images(
        ROUTES, ("dy", "dx"), ("x_shape",), not_inside=("reached",)
    ),  # others take all of x, in one step
    published=published_by_images(PUBLISHED, ROUTES, ("dy", "dx"), ("x_shape",)),
    terms=_terms,
    magnitude=epilogue.magnitude_of_products(_reference, _terms),
    # As many as forward: every element of dy meets every tap of its group.
    flops=lambda call: 2 * math.prod(call.shape("dy")) * math.prod(call.shape("w")[1:]),
    cases=(
        "conv2d_backward_data:dy=2x8x5x5,w=8x4x3x3,x_shape=2x4x10x10,s=2,p=1",
        "conv2d_backward_data:dy=3x8x4x4,w=8x4x2x2,x_shape=8x8,s=2",
        "conv2d_backward_data:dy=3x8x4x4,w=8x8x3x3,x_shape=4x4,p=1",
        "conv2d_backward_data:dy=3x8x4x4,w=8x4x1x1,x_shape=8x8,s=2",
        "conv2d_backward_data:dy=3x8x4x4,w=8x8x1x1,x_shape=4x4",
        "conv2d_backward_data:dy=2x6x5x7,w=6x3x3x3,b=9,x_shape=10x13,g=3,s=2,p=1,act=hard_swish",
        "conv2d_backward_data:dy=1x5x9x11,w=5x7x3x3,x_shape=9x11,p=1",
        "conv2d_backward_data:dy=1x7x5x6,w=7x5x1x1,x_shape=10x11,s=2",
        "conv2d_backward_data:dy=32x20x1x1,w=20x33x1x1,x_shape=1x1,act=relu",
        "conv2d_backward_data:dy=2x7x5x6,w=7x19x1x1,b=19,x_shape=8x14,s=2x3,p=1,act=relu",
        "conv2d_backward_data:dy=1x8x4x6,w=8x3x1x1,x_shape=4x6,g=4,act=silu",
        "conv2d_backward_data:dy=1x6x3x4,w=6x3x3x2,x_shape=10x13,s=3x2,p=1x0x2x1,d=2x6",
        "conv2d_backward_data:dy=1x4x3x3,w=4x3x1x2,b=3,x_shape=9x13,s=4x5,act=sigmoid",
        "conv2d_backward_data:dy=1x2x1x23,w=2x7x1x5,b=7,x_shape=1x69,s=1x3,p=0x2",
        "conv2d_backward_data:dy=1x6x9x8,w=6x1x5x5,x_shape=18x16,g=6,s=2,p=2",
        "conv2d_backward_data:dy=1x8x5x6,w=8x1x3x3,x_shape=10x12,g=4,s=2,auto=same_upper",
        "conv2d_backward_data:dy=1x24x7x37,w=24x16x3x3,b=16,x_shape=7x37,p=4,d=4,act=tanh",
        "conv2d_backward_data:dy=1x16x9x20,w=16x16x3x3,x_shape=17x40,s=2,p=1,g=2",
        "conv2d_backward_data:dy=1x3x6x7,w=3x2x2x2,x_shape=3x4,p=2",
        "conv2d_backward_data:dy=1x8x6x16,w=8x16x3x3,x_shape=4x12,p=2x3",
        "conv2d_backward_data:dy=2x7x5x6,w=7x5x1x1,b=5,slope=5,x_shape=9x11,s=2,act=prelu",
        "conv2d_backward_data:dy=2x6x5x6,w=6x5x3x3,slope=10,x_shape=9x12,g=2,s=2,p=1,act=prelu",
        "conv2d_backward_data:dy=2x7x5x6,w=7x5x1x1,x_shape=9x11,s=2,act=relu,out_scale=3,out_shift=0.5",
        "conv2d_backward_data:dy=1x6x7x6,w=6x11x3x3,b=11,slope=11,x_shape=7x6,p=1,act=prelu",
        "conv2d_backward_data:dy=2x6x9x8,w=6x1x3x3,b=6,x_shape=9x8,g=6,p=1,act=relu",
        "conv2d_backward_data:dy=2x6x5x4,w=6x1x1x1,x_shape=10x8,g=6,s=2",
        "conv2d_backward_data:dy=2x5x3x5,w=5x7x3x3,b=7,x_shape=11x13,s=2,p=-1x-2x-3x1,act=sigmoid",
        "conv2d_backward_data:dy=2x6x5x6,w=6x5x3x3,x_shape=10x9,g=2,p=-3x1x0x-2",
        "conv2d_backward_data:dy=1x3x4x3,w=3x2x1x1,x_shape=9x9,s=2,p=-1x-3x-1x0,act=relu",
        "conv2d_backward_data:dy=2x6x5x6,w=6x11x3x3,x_shape=10x6,p=-2x1x-1x1",
        "conv2d_backward_data:dy=2x6x4x5,w=6x1x3x3,x_shape=10x9,g=6,s=2,p=-1x1x0x1",
        "conv2d_backward_data:dy=1x6x5x6,w=6x1x3x3,x_shape=10x6,g=6,p=-2x1x-1x1",
        "conv2d_backward_data:dy=1x6x4x5,w=6x5x1x1,x_shape=6x5,p=-1x0x-1x0",
        "conv2d_backward_data:dy=32x20x1x1,w=20x33x1x1,x_shape=3x1,p=-1x0x-1x0",
        "conv2d_backward_data:dy=1x6x3x4,w=6x1x1x1,x_shape=7x8,g=6,s=2,p=-1x0x0x-1",
        "conv2d_backward_data:dy=1x6x3x4,w=6x2x1x1,x_shape=7x8,g=3,s=2,p=-1x0x0x-1",
        "conv2d_backward_data:dy=2x7x7x5,w=7x5x3x3,x_shape=13x12,s=2x2,p=3x2x1x0,d=2x2",
        "conv2d_backward_data:dy=2x6x5x4,w=6x5x3x2,b=10,x_shape=17x14,g=2,s=4x3,p=1x2x5x0,d=2x6,act=sigmoid",
        "conv2d_backward_data:dy=1x6x4x6,w=6x2x3x3,x_shape=15x16,g=3,s=2x2,p=-1x2x1x-3,d=4x2,act=relu",
        "conv2d_backward_data:dy=1x5x5x4,w=5x19x1x3,x_shape=8x9,s=2x2,p=0x1x1x1,d=1x2",
    ),
    doc="The gradient of conv2d by its input, of shape x_shape, with groups, dilation, bias and a fused activation.",
)
