"""Import rule for Unique: sorted, what differs from the one before it is kept. How much that is, a run finds out."""

import math

from vkconv.core import DType
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView

_END = (1 << 63) - 1
# Slices are compared in pairs, element by element: what that takes at most where the sizes are known.
_MAX_PAIRS = 1 << 26
# The outputs of the op, by their positions.
_FIRST, _INVERSE, _COUNTS = 1, 2, 3


def _unique(n: NodeView) -> None:
    """Outputs in the order of values, or, not ``sorted``, in that of first places."""
    if 0 in n.dims(0):
        n.refuse("its input is empty")
    by_slices = n.has_attr("axis")
    axis = _axis(n) if by_slices else 0
    x = n.input(0) if by_slices else n.emit("reshape", n.input(0), n.ints(-1))
    order, is_new, count = _sorted_slices(n, x, axis) if by_slices else _sorted_values(n, x)
    group = n.emit("sub", n.emit("cumulative", is_new, op="sum", axis=(0,)), n.number(1, DType.I32))
    places, found = n.emit_counted("nonzero", is_new)
    starts = n.emit("squeeze", n.emit("slice", places, n.ints(0), found, n.ints(1)), axes=(0,))
    first = n.emit("gather", order, starts, axis=0)
    inverse = _scattered(n, order, group, count)
    counts = n.emit("sub", n.emit("concat", _after_first(n, starts), count, axis=0), starts)
    if not n.attr_flag("sorted", True):
        size = n.emit("shape", first)
        first, back = _ordered(n, first, size)
        counts = n.emit("gather", counts, back, axis=0)
        end = n.emit("squeeze", size, axes=(0,))
        ranks = n.emit("range", n.number(0, DType.I64), end, n.number(1, DType.I64), dtype="i64")
        inverse = n.emit("gather", _scattered(n, back, ranks, size), inverse, axis=0)
    n.write(0, "gather", x, first, axis=axis)
    for i, value in ((_FIRST, first), (_INVERSE, inverse), (_COUNTS, counts)):
        n.write(i, "cast", value, to="i64")


def _axis(n: NodeView) -> int:
    rank, axis = n.need_rank(0), n.attr_int("axis", 0)
    if not -rank <= axis < rank:
        n.refuse(f"axis {axis} of an input of {rank} dimensions")
    dims = n.dims(0)
    pairs = math.prod(d or 1 for d in dims) * (dims[axis] or 1)
    if pairs > _MAX_PAIRS:
        n.refuse(f"it compares {pairs} pairs of elements of slices; vkconv compares {_MAX_PAIRS}")
    return axis % rank


def _sorted_values(n: NodeView, x: str) -> tuple[str, str, str]:
    """The places of the values in order, of equal ones the first one first; 1 for each that differs from the one before
    it; and how many there are, as a list of one."""
    count = n.emit("shape", x)
    values, order = n.emit_pair("topk", x, count, axis=0, largest=False)
    before = n.emit("slice", values, starts=(0,), ends=(-1,), axes=(0,))
    same = n.emit("equal", _after_first(n, values), before)
    return order, n.emit("concat", n.number([1], DType.I32), _inverted(n, same), axis=0), count


def _sorted_slices(n: NodeView, x: str, axis: int) -> tuple[str, str, str]:
    """The same of slices along an axis, the first element counting most: each is behind all that are less than it, and
    behind equal ones that come before it."""
    rank = n.need_rank(0)
    rows = n.emit("transpose", x, perm=(axis, *(i for i in range(rank) if i != axis)))
    rows = n.emit("flatten", rows, axis=1)
    ours, theirs = (n.emit("unsqueeze", rows, axes=(i,)) for i in (1, 0))
    differs = _inverted(n, n.emit("equal", ours, theirs))
    decides = n.emit("arg_reduce", differs, op="max", axis=2, keepdims=True, select_last=False, dtype="i64")
    less = n.emit("cast", n.emit("greater", ours, theirs), to="i32")  # theirs is less than ours
    less = n.emit("squeeze", n.emit("gather_elements", less, decides, axis=2), axes=(2,))
    equal = n.emit("sub", n.number(1, DType.I32), n.emit("reduce", differs, op="max", axes=(2,), keepdims=False))
    earlier = n.emit("reduce", n.emit("trilu", equal, k=(-1,), upper=False), op="sum", axes=(1,), keepdims=False)
    place = n.emit("add", n.emit("reduce", less, op="sum", axes=(1,), keepdims=False), earlier)
    count = n.emit("shape", place)
    order = n.emit_pair("topk", place, count, axis=0, largest=False)[1]
    is_new = n.emit("cast", n.emit("equal", earlier, n.number(0, DType.I32)), to="i32")
    return order, n.emit("gather", is_new, order, axis=0), count


def _ordered(n: NodeView, x: str, count: str) -> tuple[str, str]:
    return n.emit_pair("topk", x, count, axis=0, largest=False)


def _after_first(n: NodeView, x: str) -> str:
    return n.emit("slice", x, starts=(1,), ends=(_END,), axes=(0,))


def _inverted(n: NodeView, flags: str) -> str:
    return n.emit("cast", n.emit("logical_not", flags), to="i32")


def _scattered(n: NodeView, places: str, values: str, count: str) -> str:
    """The value of each place in the order of places, which are all there are."""
    blank = n.emit("constant_of_shape", count, value=0.0, dtype="i64")
    values = n.emit("cast", values, to="i64")
    return n.emit("scatter_elements", blank, places, values, axis=0, reduction="none")


RULES: dict[str, Rule] = {"Unique": _unique}
