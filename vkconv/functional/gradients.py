"""Gradients of convolutions as functions, and the scatter that one of them is made of."""

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from vkconv.core import Array, GraphError, InputError, UsageError
from vkconv.functional.arguments import (
    Sizes,
    array,
    arrays,
    as_given,
    channels_first,
    check_layout,
    ints,
    number,
    one_int,
    weights_first,
    window,
)
from vkconv.functional.cache import run
from vkconv.graph.ir import AttrValue

_LAYOUTS_2D, _LAYOUTS_3D = ("NCHW", "NHWC", "NHWGC"), ("NCDHW", "NDHWC", "NDHWGC")


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
) -> Array:
    """The gradient of conv2d by its input: of a loss by x, where dy is that by the output.

    dy is (N, C_out, OH, OW), w is (C_out, C_in / groups, KH, KW) as it was forward, and so are ``stride``, ``padding``,
    ``dilation`` and ``groups``. The result has the shape of x, ``x_shape``: (N, C_in, H, W), or only (H, W). It is what
    ``torch.nn.grad.conv2d_input(x_shape, w, dy, ...)`` gives.

    With ``layout="NHWC"`` dy, a whole ``x_shape`` and the result have their channels last; w stays as it is. With
    ``layout="NHWGC"`` they have their groups apart, (N, OH, OW, groups, C_out / groups), and w is "GKYXC", (groups,
    C_out / groups, KH, KW, C_in / groups); ``groups`` may be left out. Everything else is as in `conv2d`.
    """
    op, shape = "conv2d_backward_data", ints("x_shape", x_shape)
    operands = arrays(op, dy=dy, w=w)
    check_layout(op, layout, _LAYOUTS_2D)
    operands["dy"], given = channels_first(op, "dy", operands["dy"], layout), operands["dy"].shape
    if len(shape) not in (2, len(layout)):
        raise UsageError(f"x_shape is {shape}; with the layout {layout} it is (H, W) or ({', '.join(layout)})")
    if layout.endswith("GC"):
        groups = _groups_of_dy(given[-2], operands["w"], groups, shape)
        operands["w"] = weights_first(operands["w"])
        shape = shape if len(shape) == 2 else (shape[0], shape[3] * shape[4], *shape[1:3])
    elif layout.endswith("C") and len(shape) > 2:
        shape = (shape[0], shape[3], *shape[1:3])
    attrs = window(stride, padding, dilation, groups) | {"x_shape": shape}
    return as_given(run(op, operands, attrs, route, device), layout, groups)


def _groups_of_dy(has: int, w: Array, groups: int, x_shape: tuple[int, ...]) -> int:
    """The groups that dy has, which w (G, K, Y, X, C), ``groups`` and a whole ``x_shape`` must have too."""
    if w.ndim != 5 or w.shape[0] != has:
        raise InputError(
            f"with the layout NHWGC w is (G, K, Y, X, C) of {has} groups as dy has, not of shape {w.shape}"
        )
    if groups not in (1, has) or (len(x_shape) == 5 and x_shape[3] != has):
        whole = f", and in x_shape {x_shape[3]}" if len(x_shape) == 5 else ""
        raise GraphError(f"dy and w have {has} groups, but groups is {groups}{whole}")
    return has


def conv2d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: float = 0.0,
    d: npt.ArrayLike | None = None,
    *,
    layout: str = "NCHW",
    route: str | None = None,
    split: int | None = None,
    policy: str | None = None,
    device: str | int | None = None,
) -> Array:
    """The gradient of conv2d by its weights, dw = scale * sum + beta * d.

    x is (N, C_in, H, W), dy is (N, C_out, OH, OW), the gradient by the output, ``w_shape`` that of the weights and of
    the result, (C_out, C_in / groups, KH, KW), as is that of the optional d. With ``layout="NHWC"`` x and dy have their
    channels last; with ``"NHWGC"`` x is (N, H, W, G, C_in / G) and dy (N, OH, OW, G, C_out / G), and w_shape, d and
    the result are (G, C_out / G, KH, KW, C_in / G). Errors call d by the op's name for it, ``add``.

    ``split`` is the number of split-K slices of the sum over images and pixels, ``policy`` the rule that chooses it
    otherwise: "auto", "bands" (IREE's) or "occupancy" (composable_kernel's). They are the parameters ``split_k`` and
    ``policy`` of the route, "two_stage" unless another one is asked for; what it cannot take is refused with what it
    can. NaN and infinities go where IEEE 754
    says, but by the route ``winograd`` they make NaN of all taps that their tile meets: force another one where that
    matters. Raises what `conv2d` raises.
    """
    attrs, forced = _weight_attrs(stride, padding, dilation, groups, scale, beta), _split_k(route, policy, split)
    return _backward_weight("conv2d_backward_weight", _LAYOUTS_2D, x, dy, d, w_shape, layout, attrs, *forced, device)


def conv3d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: float = 0.0,
    d: npt.ArrayLike | None = None,
    *,
    layout: str = "NCDHW",
    route: str | None = None,
    split: int | None = None,
    policy: str | None = None,
    device: str | int | None = None,
) -> Array:
    """The same in three dimensions: x is (N, C_in, D, H, W), w_shape is (C_out, C_in / groups, KD, KH, KW), the layouts
    are "NCDHW", "NDHWC" and "NDHWGC". Everything else is as in `conv2d_backward_weight`."""
    attrs, forced = _weight_attrs(stride, padding, dilation, groups, scale, beta), _split_k(route, policy, split)
    return _backward_weight("conv3d_backward_weight", _LAYOUTS_3D, x, dy, d, w_shape, layout, attrs, *forced, device)


def conv2d_bias_gradient(dy: npt.ArrayLike, *, layout: str = "NCHW", device: str | int | None = None) -> Array:
    """The gradient of conv2d by its bias, (C_out): the sum of dy (N, C_out, OH, OW), or with ``layout="NHWC"``
    (N, OH, OW, C_out) or "NHWGC" (N, OH, OW, G, C_out / G), over images and pixels: a `reduce`, whose route is
    the chosen one. Raises what `conv2d` raises."""
    op = "conv2d_bias_gradient"
    check_layout(op, layout, _LAYOUTS_2D)
    first = channels_first(op, "dy", array(op, "dy", dy), layout)
    return run("reduce", {"x": first}, {"op": "sum", "axes": (0, 2, 3), "keepdims": False}, None, device)


def scatter_strided(
    x: npt.ArrayLike,
    shape: Sequence[SupportsIndex],
    offset: Sizes = 0,
    stride: Sizes = 1,
    route: str | None = None,
    device: str | int | None = None,
) -> Array:
    """Zeros of ``shape`` with element i of x at ``offset`` + i ``stride`` along each dimension.

    x has 1 to 5 dimensions, floats, i32 or u32; ``shape`` has as many. ``offset`` and ``stride`` are one number or one
    per dimension; a stride is at least 1, and what an offset, which may be negative, moves out of the shape is dropped.
    Raises as `conv2d` does.
    """
    attrs = {"shape": ints("shape", shape), "offset": ints("offset", offset), "stride": ints("stride", stride)}
    return np.ascontiguousarray(run("scatter_strided", arrays("scatter_strided", x=x), attrs, route, device))


def _weight_attrs(
    stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, scale: float, beta: float
) -> dict[str, AttrValue]:
    attrs = window(stride, ints("padding", padding), dilation, groups)
    return attrs | {"scale": number("scale", scale), "beta": number("beta", beta)}


def _split_k(route: str | None, policy: str | None, split: int | None) -> tuple[str | None, dict[str, int | str]]:
    """The route and its parameters: without either argument, what is chosen."""
    params: dict[str, int | str] = {} if policy in (None, "auto") else {"policy": str(policy)}
    if split is not None:
        params["split_k"] = one_int("split", split)
    return route or ("two_stage" if params else None), params


def _backward_weight(
    op: str,
    known: tuple[str, ...],
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    d: npt.ArrayLike | None,
    w_shape: Sequence[SupportsIndex],
    layout: str,
    attrs: dict[str, AttrValue],
    route: str | None,
    params: dict[str, int | str],
    device: str | int | None,
) -> Array:
    operands, shape = arrays(op, x=x, dy=dy, add=d), ints("w_shape", w_shape)
    check_layout(op, layout, known)
    given = {name: operands[name].shape for name in ("x", "dy")}
    operands |= {name: channels_first(op, name, operands[name], layout) for name in ("x", "dy")}
    if not layout.endswith("GC"):
        return np.ascontiguousarray(run(op, operands, {**attrs, "w_shape": shape}, route, device, params))
    if len(shape) != len(layout) or ("add" in operands and operands["add"].shape != shape):
        kernel = "KD, KH, KW" if len(layout) == 6 else "KH, KW"
        raise InputError(
            f"{op}: with {layout} w_shape, here {shape}, is (G, C_out/G, {kernel}, C_in/G), and d has it too"
        )
    has = {name: dims[-2] for name, dims in given.items()} | {"w_shape": shape[0]}
    if len(set(has.values())) > 1 or attrs["groups"] not in (1, shape[0]):
        raise InputError(
            f"{op}: x has {has['x']} groups, dy {has['dy']}, w_shape {has['w_shape']}, and groups is "
            f"{attrs['groups']}; with {layout} they are one number"
        )
    if "add" in operands:
        operands["add"] = weights_first(operands["add"])
    there = shape[0] * shape[1], shape[-1], *shape[2:-1]
    dw = run(op, operands, {**attrs, "groups": shape[0], "w_shape": there}, route, device, params)
    return np.ascontiguousarray(np.moveaxis(dw.reshape(*shape[:2], *there[1:]), 2, -1))
