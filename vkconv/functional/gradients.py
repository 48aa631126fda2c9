"""Gradients of convolutions by their input and bias as functions, and the scatter that one of them is made of."""

from __future__ import annotations  # help() shows npt.ArrayLike, not what it stands for

from collections.abc import Sequence
from typing import SupportsIndex

import numpy.typing as npt

from vkconv.core import Array, GraphError, InputError, UsageError
from vkconv.functional.arguments import (
    Sizes,
    array,
    arrays,
    check_layout,
    check_rank,
    height_1,
    in_a_row,
    ints,
    laid_out,
    window,
    window_of_a_row,
    without_axis,
)
from vkconv.functional.cache import run
from vkconv.graph.ir import AttrValue

W_APART = {"NHWGC": "GKYXC", "NDHWGC": "GKZYXC"}
"""The layouts of weights with groups apart, beside those of data."""
LAYOUTS_1D, LAYOUTS_2D, LAYOUTS_3D = ("NCW", "NWC", "NWGC"), ("NCHW", "NHWC", "NHWGC"), ("NCDHW", "NDHWC", "NDHWGC")


def conv2d_backward_data(
    dy: npt.ArrayLike,
    w: npt.ArrayLike,
    x_shape: Sequence[SupportsIndex],
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: str = "NCHW",
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The gradient of conv2d by its input: of a loss by x, where dy is that by the output.

    dy is (N, C_out, OH, OW), w is (C_out, C_in / groups, KH, KW) as it was forward, and so are ``stride``, ``padding``,
    ``dilation`` and ``groups``. The result has the shape of x, ``x_shape``: (N, C_in, H, W), or only (H, W). It is what
    ``torch.nn.grad.conv2d_input(x_shape, w, dy, ...)`` gives. A negative padding crops x.

    With ``layout="NHWC"`` dy, a whole ``x_shape`` and the result have their channels last; w stays as it is. With
    ``layout="NHWGC"`` they have their groups apart, (N, OH, OW, groups, C_out / groups), and w is "GKYXC", (groups,
    C_out / groups, KH, KW, C_in / groups); ``groups`` may be left out. Everything else is as in `conv2d`.
    """
    op, attrs = "conv2d_backward_data", window(stride, padding, dilation, groups)
    check_layout(op, layout, LAYOUTS_2D)
    return _backward_data(
        op, arrays(op, dy=dy, w=w), ints("x_shape", x_shape), layout, groups, attrs, route, device, out
    )


def conv1d_backward_data(
    dy: npt.ArrayLike,
    w: npt.ArrayLike,
    x_shape: Sizes,
    stride: SupportsIndex = 1,
    padding: Sizes | str = 0,
    dilation: SupportsIndex = 1,
    groups: int = 1,
    layout: str = "NCW",
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The same in one dimension, as one of height 1: dy is (N, C_out, OW), w is (C_out, C_in / groups, KW), ``x_shape``
    is (N, C_in, W) or W, ``padding`` is one number, (left, right) or a name, the layouts are "NCW", "NWC" and "NWGC",
    with w (groups, C_out / groups, KW, C_in / groups). Everything else is as in `conv2d_backward_data`."""
    op, attrs = "conv1d_backward_data", window_of_a_row("conv1d_backward_data", stride, padding, dilation, groups)
    check_layout(op, layout, LAYOUTS_1D)
    operands, shape = arrays(op, dy=dy, w=w), ints("x_shape", x_shape)
    if len(shape) not in (1, len(layout)):
        raise UsageError(f"x_shape is {shape}; with the layout {layout} it is W or ({', '.join(layout)})")
    operands |= {"dy": height_1(op, "dy", operands["dy"], layout), "w": height_1(op, "w", operands["w"], _W[layout])}
    at = layout.index("W")
    shape = (1, *shape) if len(shape) == 1 else (*shape[:at], 1, *shape[at:])
    layout_2d, op_2d = LAYOUTS_2D[LAYOUTS_1D.index(layout)], "conv2d_backward_data"
    return without_axis(_backward_data(op_2d, operands, shape, layout_2d, groups, attrs, route, device, out), at)


def conv3d_backward_data(
    dy: npt.ArrayLike,
    w: npt.ArrayLike,
    x_shape: Sequence[SupportsIndex],
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The same in three dimensions: dy is (N, C_out, OD, OH, OW), w is (C_out, C_in / groups, KD, KH, KW), ``x_shape``
    is (N, C_in, D, H, W) or (D, H, W), ``padding`` is one number, one for each axis or one for each side, the layouts
    are "NCDHW", "NDHWC" and "NDHWGC". Everything else is as in `conv2d_backward_data`."""
    op, attrs = "conv3d_backward_data", window(stride, ints("padding", padding), dilation, groups)
    check_layout(op, layout, LAYOUTS_3D)
    return _backward_data(
        op, arrays(op, dy=dy, w=w), ints("x_shape", x_shape), layout, groups, attrs, route, device, out
    )


_W = {"NCW": "KCX", "NWC": "KCX", "NWGC": "GKXC"}


def _backward_data(
    op: str,
    operands: dict[str, Array],
    shape: tuple[int, ...],
    layout: str,
    groups: int,
    attrs: dict[str, AttrValue],
    route: str | None,
    device: str | int | None,
    out: str,
) -> Array:
    check_rank(op, "dy", operands["dy"], layout)
    extents = layout.removesuffix("GC").strip("NC")
    if len(shape) not in (len(extents), len(layout)):
        whole = f"({', '.join(extents)}) or ({', '.join(layout)})"
        raise UsageError(f"x_shape is {shape}; with the layout {layout} it is {whole}")
    w_layout = ""
    if layout.endswith("GC"):
        attrs = attrs | {"groups": _groups_of_dy(operands["dy"].shape[-2], operands["w"], groups, shape, layout)}
        w_layout = W_APART[layout]
    return run(op, operands, attrs | laid_out(layout, w_layout) | {"x_shape": shape}, route, device, out=out)


def _groups_of_dy(has: int, w: Array, groups: int, x_shape: tuple[int, ...], layout: str) -> int:
    """The groups that dy has, which w (G, K, Y, X, C), ``groups`` and a whole ``x_shape`` must have too."""
    if w.ndim != len(layout) or w.shape[0] != has:
        kernel = "ZYX"[6 - len(layout) :]
        raise InputError(
            f"with the layout {layout} w is (G, K, {', '.join(kernel)}, C) of {has} groups as dy has, not of shape "
            f"{w.shape}"
        )
    if groups not in (1, has) or (len(x_shape) == len(layout) and x_shape[-2] != has):
        whole = f", and in x_shape {x_shape[-2]}" if len(x_shape) == len(layout) else ""
        raise GraphError(f"dy and w have {has} groups, but groups is {groups}{whole}")
    return has


def conv2d_bias_gradient(
    dy: npt.ArrayLike, *, layout: str = "NCHW", device: str | int | None = None, out: str = "host"
) -> Array:
    """The gradient of conv2d by its bias, (C_out): the sum of dy (N, C_out, OH, OW), or with ``layout="NHWC"``
    (N, OH, OW, C_out) or "NHWGC" (N, OH, OW, G, C_out / G), over images and pixels: a `reduce`, whose route is
    the chosen one. Raises what `conv2d` raises."""
    op = "conv2d_bias_gradient"
    check_layout(op, layout, LAYOUTS_2D)
    given = array(op, "dy", dy)
    check_rank(op, "dy", given, layout)
    axes = tuple(layout.index(letter) for letter in "NHW")
    db = run("reduce", {"x": given}, {"op": "sum", "axes": axes, "keepdims": False}, None, device, out=out)
    return db.reshape(db.size)


def scatter_strided(
    x: npt.ArrayLike,
    shape: Sequence[SupportsIndex],
    offset: Sizes = 0,
    stride: Sizes = 1,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """Zeros of ``shape`` with element i of x at ``offset`` + i ``stride`` along each dimension.

    x has 1 to 5 dimensions, floats, i32 or u32; ``shape`` has as many. ``offset`` and ``stride`` are one number or one
    per dimension; a stride is at least 1, and what an offset, which may be negative, moves out of the shape is dropped.
    Raises as `conv2d` does.
    """
    attrs = {"shape": ints("shape", shape), "offset": ints("offset", offset), "stride": ints("stride", stride)}
    return in_a_row(run("scatter_strided", arrays("scatter_strided", x=x), attrs, route, device, out=out))
