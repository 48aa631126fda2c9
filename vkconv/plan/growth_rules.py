"""What each op becomes in a graph for all lengths of a dimension that grows (`vkconv.plan.growth`): a rule for each,
which refuses, and says why, what is not right for all of them."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkconv.graph.ir import AttrValue, Node
from vkconv.ops.pointwise.binary import BINARY_OPS
from vkconv.ops.pointwise.logic import LOGIC_OPS
from vkconv.ops.pointwise.select import COMPARE_OPS
from vkconv.ops.pointwise.unary import UNARY_OPS
from vkconv.plan.bound import BoundNode
from vkconv.plan.caches import Counted, FromEnd
from vkconv.plan.growing import Growing, NoRuleError, Offsets

_ELEMENTWISE = {op.name for op in (*UNARY_OPS, *BINARY_OPS, *LOGIC_OPS, *COMPARE_OPS)} | {"cast", "where", "trilu"}
_RESHAPES = {"reshape", "squeeze", "unsqueeze", "flatten", "merge"}
# Nodes that do with each row what they do with it alone, as long as their own axis is another one.
_BY_AXIS = {"gather_elements", "hardmax", "topk", "split", "dequantize_linear", "quantize_linear"}
_NORMS = {"layer_norm", "rms_norm"}
# What does not change a reduction, by its op.
_NEUTRAL = {"sum": 0.0, "l1": 0.0, "l2": 0.0, "sum_square": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_EXTREMES = {"max": -math.inf, "min": math.inf}


def _masked_scores(g: Growing, node: BoundNode, axis: int) -> str:
    """Scores of an attention with -inf behind their end, where the mask that is added to them can have it: so that
    they stay what the pass `fuse_attention` knows. Empty where they are no such scores.

    What is behind the end of scores is a product with zeros: 0, or NaN where those of the whole row are NaN too.
    """
    x = node.reads["x"]
    last = g.makers.get(x)
    if last is None or axis != len(g.full.specs[x].dims) - 1:
        return ""
    if last.call.op == "add":
        for scores, mask in (("a", "b"), ("b", "a")):
            value = last.reads[mask]
            own = len(g.full.specs[value].dims) - 1
            if _is_product(g, last.reads[scores]) and own in g.offsets(value):
                return g.emit(node, "add", last.reads[scores], g.masked(node, value, own, -math.inf))
    return g.emit(node, "add", x, g.row_mask(node, x, axis)) if _is_product(g, x) else ""


def _is_product(g: Growing, value: str) -> bool:
    """Whether a value is a product, scaled or not, with zeros behind the end of its last axis."""
    maker = g.makers.get(value)
    if maker is None:
        return False
    if maker.call.op in ("mul", "div"):
        by = g.full.constants.get(maker.reads["b"])
        return by is not None and by.size == 1 and bool(np.isfinite(by).all()) and _is_product(g, maker.reads["a"])
    if maker.call.op != "matmul" or set(maker.reads) != {"a", "b"}:
        return False
    b = maker.reads["b"]
    columns = len(maker.call.shape("b")) - (2 if maker.call["trans_b"] else 1)
    return columns in g.zero.get(b, frozenset())


def _append(g: Growing, node: BoundNode) -> None:
    """The concat that appends rows to a cache: they are written behind those that are there."""
    pair, y = g.appends[node.name], node.writes["y"]
    if g.offsets(node.reads["x1"]):
        raise NoRuleError(f"what it appends, {node.reads['x1']!r}, grows")
    place = g.from_host(Counted(0, 1), "rows/past")
    attrs: dict[str, AttrValue] = {"axis": pair.axis, "in_place": True}
    g.nodes.append(Node(node.name, "tensor_scatter", (pair.past, node.reads["x1"], place), (y,), attrs))
    g.zero[y] = frozenset({pair.axis})


def _reshape(g: Growing, node: BoundNode) -> None:
    x, y = node.reads["x"], node.writes["y"]
    before, after = g.offsets(x), g.offsets(y)
    places = [
        [(offsets[axis], math.prod(g.full.specs[value].dims[axis + 1 :])) for axis in sorted(offsets)]
        for value, offsets in ((x, before), (y, after))
    ]
    if places[0] != places[1]:
        raise NoRuleError(f"it takes apart or joins a dimension of {x!r} that grows")
    g.add(node)
    axes = dict(zip(sorted(before), sorted(after), strict=True))
    g.zero[y] = frozenset(axes[axis] for axis in g.zero.get(x, frozenset()))


def _transpose(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    g.add(node)
    zero, perm = g.zero.get(node.reads["x"], frozenset()), node.call["perm"]
    g.zero[node.writes["y"]] = frozenset(to for to, axis in enumerate(perm) if axis in zero)


def _matmul(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    reads = {}
    for name, summed in (("a", -2 if node.call["trans_a"] else -1), ("b", -1 if node.call["trans_b"] else -2)):
        rank = len(node.call.shape(name))
        axis = rank + summed if rank > 1 else 0
        if axis in growing.get(name, {}):
            reads[name] = g.masked(node, node.reads[name], axis, 0.0)
    g.add(node, reads)


def _softmax(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    axis = node.call["axis"]
    if axis not in growing["x"]:
        g.add(node)
        return
    masked = _masked_scores(g, node, axis) or g.masked(node, node.reads["x"], axis, -math.inf)
    g.add(node, {"x": masked})
    if not node.call["log"]:
        g.zero[node.writes["y"]] = frozenset({axis})


def _reduce(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    rank = len(node.call.shape("x"))
    axes = [axis for axis in node.call["axes"] or range(rank) if axis in growing["x"]]
    _folded(g, node, axes, _NEUTRAL)


def _arg_reduce(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    _folded(g, node, [axis for axis in growing["x"] if axis == node.call["axis"]], _EXTREMES)


def _folded(g: Growing, node: BoundNode, axes: Sequence[int], neutral: Mapping[str, float]) -> None:
    """A node that makes one of many along some axes that grow."""
    if not axes:
        g.add(node)
        return
    op = node.call["op"]
    if op not in neutral or len(axes) > 1:
        raise NoRuleError(f"it takes the {op} of rows that grow" + " along two axes" * (len(axes) > 1))
    g.add(node, {"x": g.masked(node, node.reads["x"], axes[0], neutral[op])})


def _cumulative(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    if node.call["axis"] in growing["x"] and node.call["reverse"]:
        raise NoRuleError("it adds rows up from the end")
    g.add(node)


def _normalize(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    if set(growing) != {"x"} or max(growing["x"]) >= node.call["axis"]:
        raise NoRuleError("it normalizes over rows that grow")
    g.add(node)


def _not_along(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    axis = node.call["axis"]
    if any(axis in offsets for offsets in growing.values()):
        raise NoRuleError("it works along the axis that grows")


def _pad(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    _same_offsets(g, node, growing["x"])


def _tile(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    _same_offsets(g, node, growing["x"])


def _same_offsets(g: Growing, node: BoundNode, before: Offsets) -> None:
    if g.offsets(node.writes["y"]) != before:
        raise NoRuleError("it makes more rows of those that grow")
    g.add(node)


def _concat(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    axis, values = node.call["axis"], list(node.reads)
    along = [name for name, offsets in growing.items() if axis in offsets]
    if along and along != values[-1:]:
        raise NoRuleError("it puts something behind rows that grow, which is no cache of the graph")
    g.add(node)


def _gather(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    axis, indices = node.call["axis"], node.reads["indices"]
    offset = growing.get("x", {}).get(axis)
    if offset is None:
        g.add(node)
        return
    known = g.full.constants.get(indices)
    if known is None:
        raise NoRuleError(f"it picks rows that grow by {indices!r}, which may count from the end")
    if g.is_steady(indices, known):
        if known.size and int(known.max()) >= offset:
            raise NoRuleError(f"it picks row {known.max()}, which is not there where the past is empty")
        if known.size and int(known.min()) < 0:
            g.add(node, {"indices": g.from_host(FromEnd(known, offset), "rows/from_end")})
            return
    g.add(node)


def _attention(g: Growing, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
    if node.call["causal"]:
        raise NoRuleError("it is causal, which counts queries from the first key on")
    rank, keys = len(node.call.shape("k")), -1 if node.call["trans_k"] else -2
    reads = {}
    for name, axis in (("k", rank + keys), ("v", rank - 2)):
        if growing.get(name, {}) not in ({}, {axis: growing.get(name, {}).get(axis)}):
            raise NoRuleError(f"its {name} grows in more than its keys")
        if axis in growing.get(name, {}):
            reads[name] = g.masked(node, node.reads[name], axis, 0.0)
    if set(reads) != {"k", "v"} or "q" in growing:
        raise NoRuleError("keys and values alone can grow")
    if "mask" in node.reads:
        last = len(node.call.shape("mask")) - 1
        if last not in growing.get("mask", {}):
            raise NoRuleError("its mask does not grow with its keys")
        reads["mask"] = g.masked(node, node.reads["mask"], last, -math.inf)
    else:
        row = g.row_mask(node, node.reads["k"], rank + keys)
        reads["mask"] = g.emit(node, "unsqueeze", row, axes=(0,))
    g.add(node, reads)


def _slice(g: Growing, node: BoundNode, others: Sequence[BoundNode], growing: Offsets, differing: set[str]) -> None:
    x, y, lengths = node.reads["x"], node.writes["y"], list(g.others)
    after = g.offsets(y)
    attrs = {name: list(node.call[name]) for name in ("starts", "ends", "axes", "steps")}
    moved: list[tuple[int, int, int]] = []  # axis, first row behind the past, rows
    if differing - {"starts", "ends"}:
        raise NoRuleError(f"its {', '.join(sorted(differing))} depends on the length")
    for i, axis in enumerate(node.call["axes"]):
        starts = [node.call["starts"][i], *(other.call["starts"][i] for other in others)]
        behind = [start - length for start, length in zip(starts, (g.most, *lengths), strict=True)]
        rows = g.full.specs[y].dims[axis]
        if len(set(starts)) == 1:
            fixed = axis in growing and axis not in after
            if node.call["steps"][i] < 0 and axis in growing:
                raise NoRuleError("it takes rows that grow from the end on")
            if fixed and starts[0] + (rows - 1) * node.call["steps"][i] >= growing[axis]:
                raise NoRuleError(f"it takes {rows} rows, which are not all there where the past is empty")
        elif len(set(behind)) == 1 and axis not in after and node.call["steps"][i] == 1:
            moved.append((axis, behind[0], rows))
        else:
            raise NoRuleError("where it starts depends on the length, and what it takes too")
    if not moved:
        g.add(node)
        if all(starts == 0 for starts in attrs["starts"]) and growing == after:
            g.zero[y] = g.zero.get(x, frozenset())
        return
    axes = [axis for axis, _, _ in moved]
    kept = [i for i, axis in enumerate(attrs["axes"]) if axis not in axes]
    value = x
    if kept:
        value = g.emit(node, "slice", x, **{name: tuple(row[i] for i in kept) for name, row in attrs.items()})
    for place, (axis, first, rows) in enumerate(moved):
        indices = g.from_host(Counted(first, rows), "rows/places")
        if place < len(moved) - 1:
            value = g.emit(node, "gather", value, indices, axis=axis)
        else:
            g.nodes.append(Node(node.name, "gather", (value, indices), (y,), {"axis": axis}))


_RULES: dict[str, Callable[[Growing, BoundNode, Mapping[str, Offsets]], None]] = {
    "arg_reduce": _arg_reduce,
    "attention": _attention,
    "concat": _concat,
    "cumulative": _cumulative,
    "gather": _gather,
    "matmul": _matmul,
    "pad": _pad,
    "reduce": _reduce,
    "softmax": _softmax,
    "tile": _tile,
    "transpose": _transpose,
}


def rewrite(g: Growing, node: BoundNode, others: Sequence[BoundNode]) -> None:
    """Add what a node becomes."""
    op = node.call.op
    growing = {name: found for name, value in node.reads.items() if (found := g.offsets(value))}
    made = {value: g.offsets(value) for value in node.writes.values()}
    differing = {name for other in others for name, value in node.call.attrs.items() if other.call.attrs[name] != value}
    if node.name in g.appends:
        _append(g, node)
    elif op == "slice":
        _slice(g, node, others, growing.get("x", {}), differing)
    elif differing - {"shape"} or (differing and op not in ("reshape", "expand")):
        raise NoRuleError(f"its {', '.join(sorted(differing))} depends on the length")
    elif node.name in g.pairs:
        g.add(node, attrs={**node.call.attrs, "in_place": True})
        if g.pairs[node.name].joins:  # it writes rows that are meant, and leaves those behind the end as they are
            g.zero[node.writes["y"]] = g.zero[node.reads["x"]]
    elif not growing and not any(made.values()):
        g.add(node)
    elif op in _ELEMENTWISE or op == "expand":
        g.add(node)
        if op in ("cast", "expand"):
            more = len(node.call.shape("y")) - len(node.call.shape("x"))
            g.zero[node.writes["y"]] = frozenset(a + more for a in g.zero.get(node.reads["x"], frozenset()))
    elif op in _RESHAPES or op == "identity":
        _reshape(g, node)
    elif op in _RULES:
        _RULES[op](g, node, growing)
    elif op in _BY_AXIS:
        _not_along(g, node, growing)
        g.add(node)
    elif op in _NORMS:
        _normalize(g, node, growing)
    else:
        raise NoRuleError(f"its operand {next(iter(growing), 'y')} grows, and there is no rule for {op}")
