"""Products of which only a reduction is kept, as functions."""

from __future__ import annotations  # help() shows npt.ArrayLike, not what it stands for

from typing import Any

import numpy.typing as npt

from vkconv.backend.given import flag
from vkconv.core import Array, UsageError
from vkconv.functional.arguments import (
    Activation,
    Sizes,
    activation_attrs,
    arrays,
    check_layout,
    check_rank,
    ints,
    laid_out,
    number,
    window,
)
from vkconv.functional.cache import run_all
from vkconv.graph.ir import AttrValue

_LAYOUTS = ("NCHW", "NHWC")


def gemm_reduce(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    residual: npt.ArrayLike | None = None,
    residual2: npt.ArrayLike | None = None,
    op: str = "sum",
    also: str | None = None,
    product: bool = False,
    axis: str = "n",
    keepdims: bool = False,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: Activation | None = None,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Any:
    """A reduction of a matrix product, which itself is not stored.

    a is (..., M, K) or, with ``trans_a``, (..., K, M); b is (..., K, N) or (..., N, K); bias is (N); batches broadcast
    as numpy's do. Of p = activation(alpha a b + beta bias + residual + residual2), (..., M, N), to which both residuals
    broadcast, the result is the ``op`` ("sum", "mean", "max", "min", "sum_square" or its root, "l2") of each row with
    ``axis="n"``, (..., M), of each column with ``axis="m"``, (..., N), or of each matrix with ``axis="mn"``, (...);
    "b", "bn", "bm" and "bmn" reduce over all batches too. With ``keepdims`` reduced dimensions stay as 1. NaN in a row
    makes its maximum and minimum NaN. With ``also``, another of these functions, or ``product`` it is a tuple of that
    result, the one of ``also`` and p, as far as they are asked for. ``activation`` and errors are as in `conv2d`; a sum
    by the route ``fused_atomic`` may change in its last bits from run to run.
    """
    operands = arrays("gemm_reduce", a=a, b=b, bias=bias, residual=residual, residual2=residual2)
    attrs: dict[str, AttrValue] = {"op": op, "axis": axis, "keepdims": flag("keepdims", keepdims)}
    attrs |= {"trans_a": flag("trans_a", trans_a), "trans_b": flag("trans_b", trans_b)}
    attrs |= {"alpha": number("alpha", alpha), "beta": number("beta", beta)}
    if activation is not None:
        attrs |= activation_attrs(activation)
    return _run("gemm_reduce", operands, attrs, also, product, route, device, out)


def conv_reduce(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    residual: npt.ArrayLike | None = None,
    residual2: npt.ArrayLike | None = None,
    op: str = "mean",
    also: str | None = None,
    product: bool = False,
    axes: Sizes = (2, 3),
    keepdims: bool = False,
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
) -> Any:
    """A 2-D convolution, plus residuals, reduced over all its pixels, which are not stored: with ``op="mean"``
    convolution and global average pooling in one.

    The operands are those of `conv2d`, and two residuals of the four dimensions of its result, of which any may be 1;
    the result is (N, C_out), the ``op`` ("sum", "mean", "max", "min", "sum_square"
    or its root, "l2") of each channel of each image. Other ``axes`` of (N, C_out, OH, OW), which count so in every
    ``layout``, reduce others. With ``keepdims`` reduced dimensions stay as 1, and with ``layout="NHWC"`` the channels
    are then the last. NaN makes maximum and minimum NaN. ``also`` and ``product`` are as in `gemm_reduce`, all else as
    in `conv2d`; a sum by the route ``fused_atomic`` may change in its last bits from run to run.
    """
    attrs = window(stride, padding, dilation, groups, activation)
    attrs |= {"op": op, "axes": ints("axes", axes), "keepdims": flag("keepdims", keepdims)}
    operands = arrays("conv_reduce", x=x, w=w, b=b, slope=slope, residual=residual, residual2=residual2)
    check_layout("conv_reduce", layout, _LAYOUTS)
    check_rank("conv_reduce", "x", operands["x"], layout)
    return _run("conv_reduce", operands, attrs | laid_out(layout), also, product, route, device, out)


def _run(
    op: str,
    operands: dict[str, Array],
    attrs: dict[str, AttrValue],
    also: str | None,
    product: bool,
    route: str | None,
    device: str | int | None,
    out: str,
) -> Any:
    """The one output, or a tuple of several."""
    more: dict[str, AttrValue] = {"product": flag("product", product)}
    if also is not None:
        more["also"] = also
    made = run_all(op, operands, _named(attrs | more), route, device, out=out)
    return made[0] if len(made) == 1 else made


def _named(attrs: dict[str, AttrValue]) -> dict[str, AttrValue]:
    """UsageError where what names a function or an axis is no name."""
    for name in ("op", "also", "axis"):
        if not isinstance(attrs.get(name, ""), str):
            raise UsageError(f"{name} is {attrs[name]!r}; it is a name")
    return attrs
