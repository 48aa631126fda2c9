"""Gradients of convolutions by their weights as functions."""

from __future__ import annotations  # help() shows npt.ArrayLike, not what it stands for

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy.typing as npt

from vkconv.core import Array, InputError, UsageError
from vkconv.functional.arguments import (
    Sizes,
    arrays,
    check_layout,
    check_rank,
    height_1,
    ints,
    laid_out,
    number,
    one_int,
    window,
    window_of_a_row,
    without_axis,
)
from vkconv.functional.cache import run
from vkconv.functional.gradients import LAYOUTS_1D, LAYOUTS_2D, LAYOUTS_3D, W_APART
from vkconv.graph.ir import AttrValue

Added = npt.ArrayLike | Sequence[npt.ArrayLike] | None
Factors = float | Sequence[float]


def conv2d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: Factors = 0.0,
    d: Added = None,
    *,
    dtype: str | None = None,
    layout: str = "NCHW",
    route: str | None = None,
    split: int | None = None,
    policy: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The gradient of conv2d by its weights, dw = scale * sum + beta * d.

    x is (N, C_in, H, W), dy is (N, C_out, OH, OW), the gradient by the output, ``w_shape`` that of the weights and of
    the result, (C_out, C_in / groups, KH, KW), as is that of the optional d. Where ``beta`` is a sequence of numbers, d
    is one of as many tensors, and all are added, each times its number. With ``layout="NHWC"`` x and dy have their
    channels last; with ``"NHWGC"`` x is (N, H, W, G, C_in / G) and dy (N, OH, OW, G, C_out / G), and w_shape, d and
    the result are (G, C_out / G, KH, KW, C_in / G). Errors call d by the op's names for it, ``add``, and ``term0`` and
    so on for what follows it.

    ``dtype="f32"`` makes an f32 result of float16 or bfloat16 x and dy, with d in f32; None makes one of their type.

    ``split`` is the number of split-K slices of the sum over images and pixels, ``policy`` the rule that chooses it
    otherwise: "auto", "bands" (IREE's) or "occupancy" (composable_kernel's). They are the parameters ``split_k`` and
    ``policy`` of the route, "two_stage" unless another one is asked for; what it cannot take is refused with what it
    can. ``policy="iree"`` or "ck" without a route takes the route too by the published rules of IREE or
    composable_kernel, as ``--policy`` does.

    NaN and infinities go where IEEE 754 says, but by the route ``winograd`` they make NaN of all taps that their tile
    meets: force another one where that matters. Raises what `conv2d` raises.
    """
    op, attrs = "conv2d_backward_weight", window(stride, ints("padding", padding), dilation, groups)
    check_layout(op, layout, LAYOUTS_2D)
    operands, more = _operands(op, x, dy, d, scale, beta, dtype)
    forced = _split_k(route, policy, split)
    return _backward_weight(op, operands, ints("w_shape", w_shape), layout, attrs | more, *forced, device, out)


def conv1d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    stride: SupportsIndex = 1,
    padding: Sizes = 0,
    dilation: SupportsIndex = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: Factors = 0.0,
    d: Added = None,
    *,
    dtype: str | None = None,
    layout: str = "NCW",
    route: str | None = None,
    split: int | None = None,
    policy: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The same in one dimension, as one of height 1: x is (N, C_in, W), dy is (N, C_out, OW), w_shape is (C_out, C_in /
    groups, KW), ``padding`` is one number or (left, right), the layouts are "NCW", "NWC" and "NWGC", with w_shape (G,
    C_out / G, KW, C_in / G). Everything else is as in `conv2d_backward_weight`."""
    op = "conv1d_backward_weight"
    attrs = window_of_a_row(op, stride, ints("padding", padding), dilation, groups)
    check_layout(op, layout, LAYOUTS_1D)
    operands, more = _operands(op, x, dy, d, scale, beta, dtype)
    weights, shape = "GKXC" if layout.endswith("GC") else "KCX", ints("w_shape", w_shape)
    if len(shape) != len(weights):
        raise UsageError(f"w_shape is {shape}; with the layout {layout} it is ({', '.join(weights)})")
    high = {name: height_1(op, name, a, layout if name in ("x", "dy") else weights) for name, a in operands.items()}
    layout_2d = LAYOUTS_2D[LAYOUTS_1D.index(layout)]
    forced = _split_k(route, policy, split)
    there = *shape[:2], 1, *shape[2:]
    dw = _backward_weight("conv2d_backward_weight", high, there, layout_2d, attrs | more, *forced, device, out)
    return without_axis(dw, 2)


def conv3d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: Factors = 0.0,
    d: Added = None,
    *,
    dtype: str | None = None,
    layout: str = "NCDHW",
    route: str | None = None,
    split: int | None = None,
    policy: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The same in three dimensions: x is (N, C_in, D, H, W), w_shape is (C_out, C_in / groups, KD, KH, KW), the layouts
    are "NCDHW", "NDHWC" and "NDHWGC". Everything else is as in `conv2d_backward_weight`."""
    op, attrs = "conv3d_backward_weight", window(stride, ints("padding", padding), dilation, groups)
    check_layout(op, layout, LAYOUTS_3D)
    operands, more = _operands(op, x, dy, d, scale, beta, dtype)
    forced = _split_k(route, policy, split)
    return _backward_weight(op, operands, ints("w_shape", w_shape), layout, attrs | more, *forced, device, out)


def conv_transpose2d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: Factors = 0.0,
    d: Added = None,
    *,
    dtype: str | None = None,
    layout: str = "NCHW",
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The gradient of conv_transpose2d by its weights, dw = scale * sum + beta * d.

    x is (N, C_in, H, W), dy is (N, C_out, OH, OW), the gradient by the output, ``w_shape`` that of the weights and of
    the result, (C_in, C_out / groups, KH, KW). An output padding is in dy's shape. It is `conv2d_backward_weight` with
    x and dy in each other's place, which has the rest.
    """
    more: Any = {"dtype": dtype, "layout": layout, "route": route, "device": device, "out": out}
    return conv2d_backward_weight(dy, x, w_shape, stride, padding, dilation, groups, scale, beta, d, **more)


def conv_transpose1d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    stride: SupportsIndex = 1,
    padding: Sizes = 0,
    dilation: SupportsIndex = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: Factors = 0.0,
    d: Added = None,
    *,
    dtype: str | None = None,
    layout: str = "NCW",
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The same in one dimension: x is (N, C_in, W), w_shape is (C_in, C_out / groups, KW)."""
    more: Any = {"dtype": dtype, "layout": layout, "route": route, "device": device, "out": out}
    return conv1d_backward_weight(dy, x, w_shape, stride, padding, dilation, groups, scale, beta, d, **more)


def conv_transpose3d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: Factors = 0.0,
    d: Added = None,
    *,
    dtype: str | None = None,
    layout: str = "NCDHW",
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The same in three dimensions: x is (N, C_in, D, H, W), w_shape is (C_in, C_out / groups, KD, KH, KW)."""
    more: Any = {"dtype": dtype, "layout": layout, "route": route, "device": device, "out": out}
    return conv3d_backward_weight(dy, x, w_shape, stride, padding, dilation, groups, scale, beta, d, **more)


def _operands(
    op: str, x: npt.ArrayLike, dy: npt.ArrayLike, d: Added, scale: float, beta: Factors, dtype: str | None
) -> tuple[dict[str, Array], dict[str, AttrValue]]:
    """The operands by their names, and the attributes of what is made of the sum."""
    given: Any = d
    factors, added = ((beta,), (given,)) if not isinstance(beta, Sequence) else (tuple(beta), given)
    if not isinstance(added, list | tuple) or len(added) != len(factors) or not factors:
        count = len(added) if isinstance(added, list | tuple) else "no sequence of"
        raise UsageError(
            f"beta has {len(factors)} numbers and d {count} tensors; there is one number for each, at least 1"
        )
    numbers = [number("beta", factor) for factor in factors]
    operands = arrays(op, x=x, dy=dy, add=added[0])
    for i, term in enumerate(added[1:]):
        operands[f"{_TERM}{i}"] = arrays(op, **{f"{_TERM}{i}": term})[f"{_TERM}{i}"]
    attrs: dict[str, AttrValue] = {"scale": number("scale", scale), "beta": numbers[0], "factors": tuple(numbers[1:])}
    return operands, attrs | ({"dw_dtype": dtype} if dtype is not None else {})


_TERM = "term"


_SYSTEMS = ("iree", "ck")


def _split_k(route: str | None, policy: str | None, split: int | None) -> tuple[str | None, dict[str, int | str], str]:
    """The route, its parameters, and the system whose rule chooses both: without any argument, what is chosen."""
    if policy is not None and not isinstance(policy, str):
        raise UsageError(f"policy is {policy!r}; it is the name of a rule, or None")
    system = policy if policy in _SYSTEMS and route is None else None
    params: dict[str, int | str] = {} if policy in (None, "auto", system) else {"policy": policy}
    if split is not None:
        params["split_k"] = one_int("split", split)
    if route is None and params and system is None:
        route = "two_stage"
    return route, params, system or ""


def _backward_weight(
    op: str,
    operands: dict[str, Array],
    shape: tuple[int, ...],
    layout: str,
    attrs: dict[str, AttrValue],
    route: str | None,
    params: dict[str, int | str],
    system: str,
    device: str | int | None,
    out: str,
) -> Array:
    given = {name: operands[name].shape for name in ("x", "dy")}
    for name in given:
        check_rank(op, name, operands[name], layout)
    if not layout.endswith("GC"):
        return run(op, operands, {**attrs, **laid_out(layout), "w_shape": shape}, route, device, params, out, system)
    added = [name for name in operands if name not in given]
    if len(shape) != len(layout) or any(operands[name].shape != shape for name in added):
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
    more = {**laid_out(layout, W_APART[layout]), "groups": shape[0], "w_shape": shape}
    return run(op, operands, attrs | more, route, device, params, out, system)
