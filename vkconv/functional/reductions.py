"""Reductions as functions."""

from __future__ import annotations  # help() shows npt.ArrayLike, not what it stands for

from typing import SupportsIndex

import numpy.typing as npt

from vkconv.backend.given import flag
from vkconv.core import Array, DType, UsageError
from vkconv.functional.arguments import Sizes, array, ints, one_int
from vkconv.functional.cache import run
from vkconv.graph.ir import AttrValue


def reduce(
    x: npt.ArrayLike,
    op: str = "sum",
    axes: Sizes | None = None,
    keepdims: bool = False,
    *,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """One function over ``axes`` of x, floats or i32: the result has the type of x.

    ``op`` is "sum", "mean", "max", "min", "prod", "l1" (the sum of |x|), "l2" (the root of the sum of squares),
    "sum_square", "log_sum" or "log_sum_exp"; integers have the first six and "sum_square" ("mean" rounds towards 0).
    ``axes`` is one axis or several, None for all of them. NaN goes through as in numpy; the maximum of nothing is -inf.
    With the route "atomic" floats are not added in a fixed order. Raises what `conv2d` raises.
    """
    attrs: dict[str, AttrValue] = {"op": op, "keepdims": flag("keepdims", keepdims)}
    given = array("reduce", "x", x)
    if axes is not None:
        attrs["axes"] = ints("axes", axes)
        if not attrs["axes"]:
            raise UsageError("axes is empty; name the axes to reduce, or None for all of them")
    return run("reduce", {"x": given}, attrs, route, device, out=out)


def argmax(
    x: npt.ArrayLike,
    axis: SupportsIndex | None = None,
    keepdims: bool = False,
    *,
    select_last: bool = False,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The index of the largest element of x, floats or i32, along ``axis``, or with None of x as one row, in i64.

    NaN counts as the largest. Of equal elements it is the first, with ``select_last`` the last. Raises what `conv2d`
    raises; GraphError for an axis without elements.
    """
    return _arg_reduce("max", x, axis, keepdims, select_last, route, device, out)


def argmin(
    x: npt.ArrayLike,
    axis: SupportsIndex | None = None,
    keepdims: bool = False,
    *,
    select_last: bool = False,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The index of the smallest element, as `argmax`; NaN counts as the smallest."""
    return _arg_reduce("min", x, axis, keepdims, select_last, route, device, out)


def _arg_reduce(
    op: str,
    x: npt.ArrayLike,
    axis: SupportsIndex | None,
    keepdims: bool,
    select_last: bool,
    route: str | None,
    device: str | int | None,
    out: str,
) -> Array:
    given = array("arg_reduce", "x", x)
    attrs: dict[str, AttrValue] = {
        "op": op,
        "keepdims": flag("keepdims", keepdims),
        "select_last": flag("select_last", select_last),
    }
    attrs |= {"axis": 0 if axis is None else one_int("axis", axis), "dtype": str(DType.I64)}
    if axis is not None:
        return run("arg_reduce", {"x": given}, attrs, route, device, out=out)
    found = run("arg_reduce", {"x": given.reshape(-1)}, attrs, route, device, out=out)
    return found.reshape((1,) * given.ndim if keepdims else ())
