"""Convolutions as functions."""

from __future__ import annotations  # help() shows npt.ArrayLike, not what it stands for

from typing import SupportsIndex

import numpy.typing as npt

from vkconv.core import Array, InputError
from vkconv.functional.arguments import (
    Activation,
    Sizes,
    arrays,
    check_layout,
    check_rank,
    height_1,
    ints,
    laid_out,
    window,
    window_of_a_row,
    without_axis,
)
from vkconv.functional.cache import run
from vkconv.graph.ir import AttrValue

_LAYOUTS_2D, _LAYOUTS_1D = ("NCHW", "NHWC"), ("NCW", "NWC")


def conv2d(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    activation: Activation | None = None,
    slope: npt.ArrayLike | None = None,
    layout: str = "NCHW",
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """2-D convolution as networks define it (cross-correlation).

    x is (N, C_in, H, W), w is (C_out, C_in / groups, KH, KW), b is (C_out), the result (N, C_out, OH, OW) with
    OH = floor((H + padding - dilation (KH - 1) - 1) / stride) + 1. With ``layout="NHWC"`` x and the result have
    their channels last; w stays as it is. ``stride`` and ``dilation`` are one number or (h, w); ``padding`` is one,
    (h, w), (top, left, bottom, right) or one of "valid", "same_upper" and "same_lower"; ``activation`` is the name of
    a scalar function of ``vkconv ops``, a tuple of that and its parameters, or "prelu", to which belongs ``slope``
    (C_out): negative results are multiplied by that of their channel. NaN and infinities in x go where IEEE 754 says,
    but by the route ``winograd`` they make NaN of whole tiles: force another one where that matters.

    Raises InputError for what is no array or has the wrong rank, GraphError for shapes, dtypes and numbers that do not
    go together, UsageError for names that do not exist, RouteError for a forced route that cannot take the call,
    LimitError for what the device cannot hold, DeviceError for the device.
    """
    attrs = window(stride, padding, dilation, groups, activation)
    return _conv("conv2d", x, w, b, slope, attrs, layout, route, device, out)


def conv_transpose2d(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    activation: Activation | None = None,
    slope: npt.ArrayLike | None = None,
    layout: str = "NCHW",
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """2-D transposed convolution, the gradient of conv2d by its input.

    x is (N, C_in, H, W), w is (C_in, C_out / groups, KH, KW), b is (C_out), the result (N, C_out, OH, OW) with
    OH = (H - 1) stride - padding + dilation (KH - 1) + output_padding + 1. ``output_padding`` is one number or (h, w),
    smaller than the stride or the dilation. Everything else is as in `conv2d`.
    """
    attrs = window(stride, padding, dilation, groups, activation)
    attrs["output_padding"] = ints("output_padding", output_padding)
    return _conv("conv_transpose2d", x, w, b, slope, attrs, layout, route, device, out)


def conv1d(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    stride: SupportsIndex = 1,
    padding: Sizes | str = 0,
    dilation: SupportsIndex = 1,
    groups: int = 1,
    activation: Activation | None = None,
    slope: npt.ArrayLike | None = None,
    layout: str = "NCW",
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """1-D convolution, as a conv2d of height 1.

    x is (N, C_in, W), w is (C_out, C_in / groups, KW), b is (C_out), the result (N, C_out, OW). ``padding`` is one
    number, (left, right) or a name; with ``layout="NWC"`` x and the result have their channels last. Everything else
    is as in `conv2d`.
    """
    attrs = window_of_a_row("conv1d", stride, padding, dilation, groups, activation)
    operands = arrays("conv1d", x=x, w=w, b=b, slope=slope)
    check_layout("conv1d", layout, _LAYOUTS_1D)
    if operands["w"].ndim != 3:
        raise InputError(f"conv1d takes w (C_out, C_in/groups, KW), not an array of shape {operands['w'].shape}")
    operands |= {
        "x": height_1("conv1d", "x", operands["x"], layout),
        "w": height_1("conv1d", "w", operands["w"], "KCX"),
    }
    attrs |= laid_out(_LAYOUTS_2D[_LAYOUTS_1D.index(layout)])
    return without_axis(run("conv2d", operands, attrs, route, device, out=out), layout.index("W"))


def _conv(
    op: str,
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None,
    slope: npt.ArrayLike | None,
    attrs: dict[str, AttrValue],
    layout: str,
    route: str | None,
    device: str | int | None,
    out: str,
) -> Array:
    operands = arrays(op, x=x, w=w, b=b, slope=slope)
    check_layout(op, layout, _LAYOUTS_2D)
    check_rank(op, "x", operands["x"], layout)
    return run(op, operands, attrs | laid_out(layout), route, device, out=out)
