"""A reduction in numbers: its functions, what is kept and what is reduced, and how a long one is split into parts."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import DType, align, ceil_div
from vkconv.ops.core import shapes
from vkconv.ops.kernels.split_rules import axes_bands
from vkconv.ops.kernels.strided import Walk, merge

Values = npt.NDArray[Any]
PART_RANK = 4  # kept and reduced dims of a rank-8 operand alternate: four of each after merging


def _log_sum_exp(x: Values, axes: tuple[int, ...]) -> Values:
    peak = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(peak), peak, 0.0)
    return np.asarray(np.log(np.sum(np.exp(x - shift), axis=axes)) + np.squeeze(shift, axes))


def _mean(x: Values, axes: tuple[int, ...]) -> Values:
    if x.dtype.kind == "f":
        return np.asarray(np.sum(x, axis=axes) / np.float64(math.prod(x.shape[a] for a in axes)))
    # Of narrow integers and unsigned ones, which are computed in wider ones, no sum wraps.
    summed = x.dtype if x.dtype.kind == "i" and x.dtype.itemsize >= 4 else np.int64
    total, count = np.sum(x, axis=axes, dtype=summed), max(1, math.prod(x.shape[a] for a in axes))
    return np.asarray(total // count + ((total < 0) & (total % count != 0)), x.dtype)


def _lowest(x: Values) -> float:
    return -np.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype).min)


def _highest(x: Values) -> float:
    return np.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype).max)


# name: (id in shaders/include/reduce.glsl, whether integers have it, definition)
FUNCTIONS: Mapping[str, tuple[int, bool, Callable[[Values, tuple[int, ...]], Values]]] = {
    "sum": (0, True, lambda x, axes: np.asarray(np.sum(x, axis=axes))),
    "mean": (1, True, _mean),
    "max": (2, True, lambda x, axes: np.asarray(np.max(x, axis=axes, initial=_lowest(x)))),
    "min": (3, True, lambda x, axes: np.asarray(np.min(x, axis=axes, initial=_highest(x)))),
    "prod": (4, True, lambda x, axes: np.asarray(np.prod(x, axis=axes))),
    "sum_square": (5, True, lambda x, axes: np.asarray(np.sum(x * x, axis=axes))),
    "l1": (6, True, lambda x, axes: np.asarray(np.sum(np.abs(x), axis=axes))),
    "l2": (7, False, lambda x, axes: np.asarray(np.sqrt(np.sum(x * x, axis=axes)))),
    "log_sum": (8, False, lambda x, axes: np.asarray(np.log(np.sum(x, axis=axes)))),
    "log_sum_exp": (9, False, _log_sum_exp),
}
# One of the elements comes out as it is.
PICKS = ("max", "min")
# What they combine is the result already.
NOTHING_TO_FINISH = (*PICKS, "sum", "prod", "sum_square", "l1")
LOG_SUM_EXP = "log_sum_exp"
L2 = "l2"


@dataclasses.dataclass(frozen=True)
class Problem:
    """``outputs`` of ``count`` elements each. ``kept`` and ``reduced`` are the merged dimensions of x of both kinds
    with their strides in x. The innermost of the reduced ones is a line's run; the others count lines. ``extents`` are
    the reduced dimensions as they are in x."""

    function: str
    dtype: DType
    outputs: int
    count: int
    kept: Walk
    reduced: Walk
    extents: tuple[int, ...]

    @classmethod
    def of(cls, call: Call) -> "Problem":
        x, axes = call.shape("x"), call["axes"]
        kept, reduced = parts_of(x, axes)
        y, extents = call.outputs["y"], tuple(x[axis] for axis in sorted(axes))
        return cls(call["op"], y.dtype, y.size, math.prod(extents), kept, reduced, extents)

    @property
    def columns(self) -> bool:
        """Whether the innermost dimension of x is kept; otherwise it is reduced."""
        return self.kept.strides[0][-1] == 1

    @property
    def width(self) -> int:
        """Outputs whose elements are neighbours in x."""
        return self.kept.dims[-1] if self.columns else 1

    @property
    def planes(self) -> int:
        return self.outputs // max(self.width, 1)

    @property
    def run(self) -> int:
        return self.reduced.dims[-1]

    @cached_property
    def lines(self) -> int:
        return math.prod(self.reduced.dims[:-1])

    @property
    def line_rank(self) -> int:
        return self.reduced.rank - 1

    @cached_property
    def by_vec4(self) -> bool:
        """Whether four neighbouring columns are always aligned in x and in y."""
        steps = (*self.reduced.strides[0], *self.kept.strides[0][:-1])
        return self.columns and all(n % 4 == 0 for n in (self.width, *steps))


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """Parts of a reduction: so many lines, and of each of them so many elements."""

    lines: int
    run: int

    def of_line(self, p: Problem) -> int:
        """Parts that a line is split into."""
        return max(1, ceil_div(p.run, self.run))

    def in_vec4(self, p: Problem) -> bool:
        """Whether every part of a line is whole vec4 of x."""
        steps = (p.run, *p.reduced.strides[0][:-1], *(p.kept.strides[0] if p.outputs > 1 else ()))
        return all(n % 4 == 0 for n in (*steps, *((self.run,) if self.of_line(p) > 1 else ())))

    def count(self, p: Problem) -> int:
        return max(1, ceil_div(p.lines, self.lines)) * self.of_line(p)


def whole(p: Problem) -> Split:
    return Split(max(p.lines, 1), max(p.run, 1))


def into(p: Problem, parts: int) -> Split:
    """About as many parts as are asked for: of whole lines, where there are enough."""
    if p.lines >= parts:
        return Split(ceil_div(p.lines, max(parts, 1)), max(p.run, 1))
    run = ceil_div(p.run, ceil_div(parts, max(p.lines, 1)))
    return Split(1, max(1, run if p.columns else align(run, 4)))


def by_bands(p: Problem) -> tuple[Split | None, str]:
    """The split by IREE's rule for sums over axes, or None, and why. Its tiles fill the inner dimensions first: what a
    part has lies in a row, or is whole lines."""
    tiles, why = axes_bands(p.extents)
    part = math.prod(tiles or ())
    return (None if tiles is None else Split(max(1, part // p.run), min(part, p.run))), why


def parts_of(dims: Sequence[int], axes: Sequence[int]) -> tuple[Walk, Walk]:
    """The kept and the reduced dimensions of x, each merged, with their strides in x."""
    strides = shapes.row_major(dims)
    kept, reduced = (
        [(d, s) for i, (d, s) in enumerate(zip(dims, strides, strict=True)) if (i in axes) is inside]
        for inside in (False, True)
    )
    return _walk(kept), _walk(reduced)


def _walk(pairs: Sequence[tuple[int, int]]) -> Walk:
    return merge([n for n, _ in pairs], [s for _, s in pairs])
