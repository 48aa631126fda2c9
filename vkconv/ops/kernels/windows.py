"""Sliding windows over H and W: the padding, stride and extent rules that convolutions and pool2d share (ONNX's), and
what a convolution in groups is."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import GraphError, Shape, ceil_div, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import Attr, Attrs
from vkconv.ops.core.shapes import groups_of, groups_str

F64 = npt.NDArray[np.float64]

# Sums and differences of two places along an axis are within the 32 bits that shaders count with.
MOST_EXTENT = 1 << 30
WINDOW_ATTRS = (
    Attr("stride", "s", tuple[int, ...], (1, 1)),
    Attr("padding", "p", tuple[int, ...], (0, 0, 0, 0)),
    Attr("auto_pad", "auto", str, "explicit"),
    Attr("dilation", "d", tuple[int, ...], (1, 1)),
)
CONVOLUTION_ATTRS = (*WINDOW_ATTRS, Attr("groups", "g", int, 1))
AUTO_PADS = ("explicit", "same_upper", "same_lower", "valid")


def pair(attrs: Mapping[str, Any], name: str) -> tuple[int, int]:
    """The attribute as (h, w): two values, or one for both. GraphError unless both are at least 1."""
    values = tuple(int(v) for v in attrs[name])
    if len(values) == 1:
        values *= 2
    if len(values) != 2 or min(values) < 1:
        raise GraphError(f"{name} is {values}; it takes one or two values of at least 1 (h, w)")
    return values[0], values[1]


def explicit_padding(
    attrs: Mapping[str, Any], extent: tuple[int, int], kernel: tuple[int, int], crops: bool = False
) -> tuple[int, int, int, int]:
    """Padding as (top, left, bottom, right), from ``padding`` or computed from ``auto_pad``.

    ``padding`` may have one value, two (h, w) or four. ``same_*`` pads to ceil(in / stride) outputs and puts an
    odd one at the end (upper) or the start (lower). A negative value is for ops that say so: ``crops``. GraphError on
    a bad count, a negative value otherwise, one that leaves nothing of the input, or both given.
    """
    values = tuple(int(v) for v in attrs["padding"])
    if len(values) not in (1, 2, 4) or (min(values) < 0 and not crops):
        least = "" if crops else " >= 0"
        raise GraphError(f"padding is {values}; it takes 1, 2 (h, w) or 4 (top, left, bottom, right) values{least}")
    t, left, b, r = (values * (4 // len(values)))[:4]
    for axis, has, first, last in (("h", extent[0], t, b), ("w", extent[1], left, r)):
        if 0 < has <= (cropped := -min(first, 0) - min(last, 0)):
            raise GraphError(
                f"along {axis} a padding of {first} and {last} crops {cropped} of {has} elements; one must stay"
            )
    mode = attrs["auto_pad"]
    if mode not in AUTO_PADS:
        raise GraphError(f"auto_pad is {mode!r}; it is one of {', '.join(AUTO_PADS)}")
    if mode == "explicit":
        return t, left, b, r
    if any(values):
        raise GraphError(f"auto_pad is {mode!r} and padding is {values}; give one of the two")
    if mode == "valid":
        return 0, 0, 0, 0
    stride, dilation = pair(attrs, "stride"), pair(attrs, "dilation")
    begin, end = [], []
    for i in range(2):
        outputs = ceil_div(extent[i], stride[i])
        total = max(0, spanned(outputs, stride[i], kernel[i], dilation[i]) - extent[i])
        less, more = total // 2, total - total // 2
        begin.append(less if mode == "same_upper" else more)
        end.append(more if mode == "same_upper" else less)
    return begin[0], begin[1], end[0], end[1]


def spanned(outputs: int, stride: int, taps: int, dilation: int) -> int:
    """Inputs along an axis from the first to the last that so many neighbouring outputs touch."""
    return (outputs - 1) * stride + (taps - 1) * dilation + 1


def check_extent(what: str, axis: str, extent: int) -> None:
    """GraphError where an axis is longer than MOST_EXTENT."""
    if extent > MOST_EXTENT:
        raise GraphError(f"along {axis} {what} has {extent} elements; shaders count to {MOST_EXTENT}")


def out_extent(
    axis: str, extent: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool = False
) -> int:
    """Number of windows along one axis: floor((extent + pads - span) / stride) + 1.

    With ``ceil_mode`` the division rounds up, so that even the first window may go beyond the end, and a last window
    that starts beyond the input and the padding before it is dropped. GraphError when no window is left, or the padded
    input is longer than MOST_EXTENT.
    """
    span = spanned(1, stride, kernel, dilation)
    check_extent(f"the padded input ({extent} + {pads[0]} + {pads[1]})", axis, extent + sum(pads))
    room = extent + sum(pads) - span
    if room < 0 and not (ceil_mode and room > -stride and extent):
        raise GraphError(
            f"along {axis} a kernel of {kernel} with dilation {dilation} spans {span}, but the padded input has "
            f"only {extent + sum(pads)} ({extent} + {pads[0]} + {pads[1]}); the output would be empty"
        )
    if not ceil_mode:
        return room // stride + 1
    count = ceil_div(room, stride) + 1
    return count - 1 if (count - 1) * stride >= extent + pads[0] else count


def windows(
    x: F64,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    out: tuple[int, int],
    fill: float,
) -> F64:
    """A view of x (N, C, H, W) padded with ``fill`` as (N, C, OH, OW, KH, KW)."""
    t, left, b, r = padding
    need = [(out[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    b = max(b, need[0] - x.shape[2] - t)
    r = max(r, need[1] - x.shape[3] - left)
    padded = np.pad(x, ((0, 0), (0, 0), (t, b), (left, r)), constant_values=fill)
    sn, sc, sy, sx = padded.strides
    return np.lib.stride_tricks.as_strided(
        padded,
        (*x.shape[:2], *out, *kernel),
        (sn, sc, sy * stride[0], sx * stride[1], sy * dilation[0], sx * dilation[1]),
        writeable=False,
    )


def resolve_convolution(op: str, x: TensorSpec, w: TensorSpec, attrs: Attrs) -> tuple[Attrs, Shape]:
    """The attributes of a convolution of x (N, C_in, H, W) by w (C_out, C_in / groups, KH, KW) with the canonical ones
    of `CONVOLUTION_ATTRS`, and the shape of y (N, C_out, OH, OW). GraphError where they do not fit."""
    if len(x.shape) != 4 or len(w.shape) != 4:
        raise GraphError(f"{op} takes x (N, C, H, W) and w (C_out, C_in/groups, KH, KW), not {x} and {w}")
    n, c_in, height, width = x.dims
    c_out, in_group, kh, kw = w.dims
    groups = groups_of(op, attrs)
    if c_in < 1:
        raise GraphError(f"{op}: x has {c_in} channels ({shape_str(x.shape)}); give it at least 1")
    if in_group * groups != c_in:
        raise GraphError(
            f"{op}: x has {c_in} channels, but w has {in_group} per group in {groups_str(groups)} = {in_group * groups}"
        )
    if c_out % groups:
        raise GraphError(f"{op}: {c_out} output channels do not divide into {groups} groups")
    if kh < 1 or kw < 1:
        raise GraphError(f"{op}: the kernel is {kh}x{kw}; both sides are at least 1")
    stride, dilation = pair(attrs, "stride"), pair(attrs, "dilation")
    padding = explicit_padding(attrs, (height, width), (kh, kw))
    oh = out_extent("h", height, kh, stride[0], (padding[0], padding[2]), dilation[0])
    ow = out_extent("w", width, kw, stride[1], (padding[1], padding[3]), dilation[1])
    canonical: Attrs = {"stride": stride, "padding": padding, "auto_pad": "explicit", "dilation": dilation}
    return {**attrs, **canonical}, (n, c_out, oh, ow)


def convolved(call: Call, x: F64, w: F64) -> F64:
    """The sums of a convolution's call by definition in float64, padded with 0."""
    _, c_out, oh, ow = call.shape("y")
    kernel, g = (w.shape[2], w.shape[3]), call["groups"]
    view = windows(x, kernel, call["stride"], call["padding"], call["dilation"], (oh, ow), 0.0)
    view = view.reshape(x.shape[0], g, x.shape[1] // g, oh, ow, *kernel)
    grouped = w.reshape(g, c_out // g, math.prod(w.shape[1:]))
    y = np.empty((x.shape[0], g, c_out // g, oh * ow))
    for image, group in np.ndindex(y.shape[:2]):  # one at a time: the windows of all images may not fit in memory
        patches = view[image, group].transpose(0, 3, 4, 1, 2).reshape(grouped.shape[2], oh * ow)
        np.matmul(grouped[group], patches, out=y[image, group])
    return y.reshape(call.shape("y"))
