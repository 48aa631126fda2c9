"""Sliding windows over H and W: the padding, stride and extent rules that conv2d and pool2d share (ONNX's)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.core import GraphError, ceil_div

F64 = npt.NDArray[np.float64]

# Sums and differences of two places along an axis are within the 32 bits that shaders count with.
MOST_EXTENT = 1 << 30
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
    attrs: Mapping[str, Any], extent: tuple[int, int], kernel: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Padding as (top, left, bottom, right), from ``padding`` or computed from ``auto_pad``.

    ``padding`` may have one value, two (h, w) or four. ``same_*`` pads to ceil(in / stride) outputs and puts an
    odd one at the end (upper) or the start (lower). GraphError on a bad count, a negative value, or both given.
    """
    values = tuple(int(v) for v in attrs["padding"])
    if len(values) not in (1, 2, 4) or min(values) < 0:
        raise GraphError(f"padding is {values}; it takes 1, 2 (h, w) or 4 (top, left, bottom, right) values >= 0")
    t, left, b, r = (values * (4 // len(values)))[:4]
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
        span = dilation[i] * (kernel[i] - 1) + 1
        total = max(0, (ceil_div(extent[i], stride[i]) - 1) * stride[i] + span - extent[i])
        less, more = total // 2, total - total // 2
        begin.append(less if mode == "same_upper" else more)
        end.append(more if mode == "same_upper" else less)
    return begin[0], begin[1], end[0], end[1]


def check_extent(what: str, axis: str, extent: int) -> None:
    """GraphError where an axis is longer than MOST_EXTENT."""
    if extent > MOST_EXTENT:
        raise GraphError(f"along {axis} {what} has {extent} elements; shaders count to {MOST_EXTENT}")


def out_extent(
    axis: str, extent: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool = False
) -> int:
    """Number of windows along one axis: floor((extent + pads - span) / stride) + 1.

    With ``ceil_mode`` the division rounds up and a last window that starts beyond the input and the padding
    before it is dropped. GraphError when no window fits, or the padded input is longer than MOST_EXTENT.
    """
    span = dilation * (kernel - 1) + 1
    check_extent(f"the padded input ({extent} + {pads[0]} + {pads[1]})", axis, extent + sum(pads))
    room = extent + sum(pads) - span
    if room < 0:
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
