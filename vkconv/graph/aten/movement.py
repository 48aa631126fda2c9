"""Import rules for ops that move values, tensors that are made of nothing, and reductions."""

import math
from functools import partial
from typing import Any

import numpy as np

from vkconv.core import DType
from vkconv.graph.aten.view import CallView, Rule

_BEHIND_ALL = (1 << 31) - 1
MOST_MADE = 1 << 24
"""Elements of a constant that a rule makes of numbers."""


def _view(n: CallView) -> None:
    shape = n.dims(n.made.shape)
    n.finish(n.emit("reshape", n.x(0), shape=shape, allowzero=0 in shape))


def _as_strided(n: CallView) -> None:
    """Of all elements in their order, which is a reshape."""
    x, made = n.meta(0), n.made
    whole = x.in_order and made.in_order and math.prod(x.shape) == math.prod(made.shape) and not n.arg(3, 0)
    if not whole:
        n.refuse("it addresses memory that is not all of its input in order")
    _view(n)


def _any(n: CallView) -> None:
    """Along one dimension, of bools."""
    if n.dtype(0) is not DType.BOOL or not n.rank(0):
        n.refuse(f"it is of {n.dtype(0)}, or of a scalar")
    whole = n.emit("cast", n.x(0), to="i32")
    axes = (n.axis(n.arg(1), n.rank(0)),)
    n.finish(n.emit("cast", n.emit("reduce", whole, op="max", axes=axes, keepdims=bool(n.arg(2, False))), to="bool"))


def _permute(n: CallView) -> None:
    n.finish(n.emit("transpose", n.x(0), perm=tuple(n.axis(d, n.rank(0)) for d in n.ints(1))))


def _swap(n: CallView) -> None:
    """transpose of two dimensions, and t of a matrix."""
    perm, two = list(range(n.rank(0))), "transpose" in n.operator
    if n.rank(0) >= 2:
        a, b = (n.axis(n.arg(i), n.rank(0)) for i in (1, 2)) if two else (0, 1)
        perm[a], perm[b] = perm[b], perm[a]
    n.finish(n.emit("transpose", n.x(0), perm=tuple(perm)))


def _unsqueeze(n: CallView) -> None:
    n.finish(n.emit("unsqueeze", n.x(0), axes=(n.axis(n.arg(1), n.rank(0) + 1),)))


def _expand(n: CallView) -> None:
    shape = tuple(d if type(d) is int else 1 for d in n.made.shape)  # 1 keeps a size that is open
    n.finish(n.emit("expand", n.x(0), shape=shape))


def _cat(n: CallView) -> None:
    """Promotes types; an empty vector counts as nothing."""
    given = [(part, n.type_of(part)) for part in n.arg(0)]
    to = n.made.dtype
    values = [n.cast(n.value(part), kind.dtype, to) for part, kind in given if kind.shape != (0,)]
    n.finish(n.emit("concat", *values, axis=n.axis(n.arg(1, 0), n.made.rank)))


def _slice(n: CallView) -> None:
    """Arguments: x, axis, start, end, step."""
    axis, step = n.axis(n.arg(1, 0), n.rank(0)), n.int_of(n.arg(4, 1))
    start, end = n.arg(2), n.arg(3)
    starts = 0 if start is None else n.int_of(start)
    ends = _BEHIND_ALL if end is None or (type(end) is int and end > _BEHIND_ALL) else n.int_of(end)
    n.finish(n.emit("slice", n.x(0), starts=(starts,), ends=(ends,), axes=(axis,), steps=(step,)))


def _slice_scatter(n: CallView) -> None:
    """x with a part of it replaced. Arguments: x, part, axis, start, end, step."""
    axis = n.axis(n.arg(2, 0), n.rank(0))
    size, part = n.int_of(n.meta(0).shape[axis]), n.int_of(n.meta(1).shape[axis])
    if n.arg(5, 1) != 1:
        n.refuse(f"a step of {n.arg(5)}; vkconv has 1")
    given = n.arg(3)
    start = 0 if given is None else n.int_of(given)
    start = min(max(start + size if start < 0 else start, 0), size)
    pieces = [n.cast(n.x(1), n.dtype(1), n.dtype(0))]
    if start:
        pieces.insert(0, n.emit("slice", n.x(0), starts=(0,), ends=(start,), axes=(axis,)))
    if start + part < size:
        pieces.append(n.emit("slice", n.x(0), starts=(start + part,), ends=(size,), axes=(axis,)))
    n.finish(n.emit("concat", *pieces, axis=axis))


def _copy(n: CallView) -> None:
    """The second argument in the type and shape of the first."""
    shape = tuple(d if type(d) is int else 1 for d in n.made.shape)
    n.finish(n.emit("expand", n.cast(n.x(1), n.dtype(1), n.dtype(0)), shape=shape))


def _index(n: CallView) -> None:
    """By one tensor of integers, along one dimension."""
    given = [(axis, index) for axis, index in enumerate(n.arg(1)) if index is not None]
    kind = n.tensor_type(given[0][1]) if len(given) == 1 else None
    if kind is None or kind.dtype not in (DType.I64, DType.I32):
        n.refuse("it indexes by bools, or along several dimensions")
    ((axis, index),) = given
    # Kernels that gather have no bools.
    stored = DType.I32 if n.dtype(0) is DType.BOOL else n.dtype(0)
    found = n.emit("gather", n.cast(n.x(0), n.dtype(0), stored), n.value(index), axis=axis)
    n.finish(n.cast(found, stored, n.dtype(0)))


def _index_put(n: CallView) -> None:
    """x with slices of it replaced, or added to, along the one dimension that has an index. Arguments: x, indices,
    values, accumulate."""
    given = [(axis, index) for axis, index in enumerate(n.arg(1)) if index is not None]
    kind = n.tensor_type(given[0][1]) if len(given) == 1 else None
    if kind is None or kind.dtype not in (DType.I64, DType.I32):
        n.refuse("it indexes by bools, or along several dimensions")
    ((axis, index),) = given
    shape, at = n.dims(n.meta(0).shape), n.dims(kind.shape)
    if -1 in (*shape, *at):
        n.refuse("a size that it takes is open; export the program with that size fixed")
    before, behind, count = shape[:axis], shape[axis + 1 :], math.prod(at)
    values = n.cast(n.x(2), n.dtype(2), n.dtype(0))
    values = n.emit("expand", values, shape=(*before, *at, *behind))
    values = n.emit("reshape", values, shape=(*before, count, *behind), allowzero=True)
    column = n.emit("reshape", n.value(index), shape=(count, *(1 for _ in behind)), allowzero=True)
    places = n.emit("expand", column, shape=(*before, count, *behind))
    reduction = "add" if n.arg(3, False) else "none"
    n.finish(n.emit("scatter_elements", n.x(0), places, values, axis=axis, reduction=reduction))


def _select(n: CallView) -> None:
    axis, index = n.axis(n.arg(1), n.rank(0)), n.int_of(n.arg(2))
    end = index + 1 if index != -1 else _BEHIND_ALL
    part = n.emit("slice", n.x(0), starts=(index,), ends=(end,), axes=(axis,))
    n.finish(n.emit("squeeze", part, axes=(axis,)))


def _split(n: CallView) -> None:
    axis = n.axis(n.arg(2, 0), n.rank(0))
    sizes = tuple(n.int_of(part.shape[axis]) for part in n.made)
    n.finish(n.emit_many("split", len(sizes), n.x(0), axis=axis, sizes=sizes, num_outputs=len(sizes)))


def _flip(n: CallView) -> None:
    axes = tuple(n.axis(a, n.rank(0)) for a in n.ints(1))
    ends = (-_BEHIND_ALL - 1,) * len(axes)
    n.finish(n.emit("slice", n.x(0), starts=(_BEHIND_ALL,) * len(axes), ends=ends, axes=axes, steps=(-1,) * len(axes)))


def _pad(n: CallView) -> None:
    """Pairs from the last dimension to the first."""
    pairs, rank, value = n.ints(1), n.rank(0), n.arg(2, 0)
    begin, end = [0] * rank, [0] * rank
    for i in range(len(pairs) // 2):
        begin[rank - 1 - i], end[rank - 1 - i] = pairs[2 * i], pairs[2 * i + 1]
    n.finish(n.emit("pad", n.x(0), pads=(*begin, *end), value=float(value)))


def _repeat(n: CallView) -> None:
    repeats = n.ints(1)
    shape = (1,) * (len(repeats) - n.rank(0)) + n.dims(n.meta(0).shape)
    x = n.x(0) if len(shape) == n.rank(0) else n.emit("reshape", n.x(0), shape=shape)
    n.finish(n.emit("tile", x, repeats=repeats))


def _embedding(n: CallView) -> None:
    n.finish(n.emit("gather", n.x(0), n.x(1), axis=0))


def _index_select(n: CallView) -> None:
    n.finish(n.emit("gather", n.x(0), n.x(2), axis=n.axis(n.arg(1), n.rank(0))))


def _gather(n: CallView) -> None:
    n.finish(n.emit("gather_elements", n.x(0), n.x(2), axis=n.axis(n.arg(1), n.rank(0))))


def _made(n: CallView, fill: Any) -> None:
    """A tensor of one number, which the graph holds as that."""
    shape = tuple(n.int_of(d) for d in n.made.shape)
    if not isinstance(fill, int | float):
        n.refuse("the number that it fills with is computed")
    one = n.number(fill, n.made.dtype)
    n.finish(n.emit("expand", one, shape=shape) if shape else one)


def _full(n: CallView) -> None:
    _made(n, n.arg(1))


def _ones(n: CallView) -> None:
    _made(n, 1)


def _zeros(n: CallView) -> None:
    _made(n, 0)


def _scalar(n: CallView) -> None:
    _made(n, n.arg(0))


def _arange(n: CallView) -> None:
    start, end, step = n.arg(0), n.arg(1), n.arg(2, 1)
    count = n.int_of(n.made.shape[0])
    if not all(type(v) in (int, float) for v in (start, end, step)) or count > MOST_MADE:
        n.refuse("its bounds are open, or too far apart")
    n.finish(n.number(start + step * np.arange(count), n.made.dtype))


def _reduce(op: str, n: CallView) -> None:
    """Arguments: x, axes (none: all), keepdims."""
    rank, to = n.rank(0), n.made.dtype
    given = n.arg(1)
    listed = given if isinstance(given, list | tuple) else [] if given is None else [given]
    axes = tuple(sorted(n.axis(a, rank) for a in listed)) or tuple(range(rank))
    if not rank or n.dtype(0) is DType.BOOL or not (to.is_float or op in ("max", "min")):
        n.refuse("it is of a scalar or of bools, or sums integers")
    x = n.cast(n.x(0), n.dtype(0), to)
    n.finish(n.emit("reduce", x, op=op, axes=axes, keepdims=bool(n.arg(2, False))))


def _arg_reduce(op: str, n: CallView) -> None:
    if n.arg(1) is None or not n.rank(0):
        n.refuse("it is over all dimensions; give it one")
    axis = n.axis(n.arg(1), n.rank(0))
    keep, to = bool(n.arg(2, False)), str(n.made.dtype)
    n.finish(n.emit("arg_reduce", n.x(0), op=op, axis=axis, keepdims=keep, dtype=to))


def _cumsum(n: CallView) -> None:
    if not n.dtype(0).is_float:
        n.refuse(f"it is of {n.dtype(0)}; vkconv has it for floats")
    n.finish(n.emit("cumulative", n.x(0), axis=n.axis(n.arg(1), n.rank(0)), op="sum"))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("view.default", "_unsafe_view.default", "reshape.default", "_reshape_copy.default"), _view),
    **dict.fromkeys(("squeeze.dim", "squeeze.dims", "squeeze.default"), _view),
    **dict.fromkeys(("sum.dim_IntList", "sum.default"), partial(_reduce, "sum")),
    **dict.fromkeys(("mean.dim", "mean.default"), partial(_reduce, "mean")),
    **dict.fromkeys(("t.default", "transpose.int"), _swap),
    **dict.fromkeys(("ones.default", "ones_like.default"), _ones),
    **dict.fromkeys(("zeros.default", "zeros_like.default"), _zeros),
    "any.dim": _any,
    "as_strided.default": _as_strided,
    "amax.default": partial(_reduce, "max"),
    "amin.default": partial(_reduce, "min"),
    "arange.start_step": _arange,
    "argmax.default": partial(_arg_reduce, "max"),
    "argmin.default": partial(_arg_reduce, "min"),
    "cat.default": _cat,
    "constant_pad_nd.default": _pad,
    "copy.default": _copy,
    "cumsum.default": _cumsum,
    "embedding.default": _embedding,
    "expand.default": _expand,
    "flip.default": _flip,
    "full.default": _full,
    "full_like.default": _full,
    "gather.default": _gather,
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "index_select.default": _index_select,
    "permute.default": _permute,
    "repeat.default": _repeat,
    "scalar_tensor.default": _scalar,
    "select.int": _select,
    "slice.Tensor": _slice,
    "slice_scatter.default": _slice_scatter,
    "split_with_sizes.default": _split,
    "unsqueeze.default": _unsqueeze,
}
