"""The pass that makes one attention of the product, mask, softmax and product that exporters spell it as, where that
pays.

What pays is the op's own rule: the pass asks which route it would take, and leaves the nodes where that is the one that
runs them in turn.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from vkconv.call import HALVES, Call
from vkconv.core import Array, DType, GraphError, RouteError
from vkconv.graph.ir import TensorSpec
from vkconv.ops.fused.in_turn import UNFUSED
from vkconv.ops.kernels.epilogue import NO_EPILOGUE
from vkconv.plan.bound import BoundNode, widen
from vkconv.plan.fusion import Chooser, Fusion, is_given
from vkconv.plan.rewrite import Rewriter

_OP = "attention"
_BETWEEN = ("add", "div", "mul", "reshape")
# Nodes between the scores and their softmax: a scale, two masks, a reshape before and behind one of them.
_MOST_BETWEEN = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Scores:
    """The product under a softmax, what it is multiplied by, the masks on it in the shape of scores, and the nodes that
    the attention takes the place of."""

    product: BoundNode
    scale: float
    masks: tuple[str | Array, ...]
    nodes: tuple[BoundNode, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Weights:
    """The softmax of scores, whether rows of nothing but -inf become 0, and the nodes that make it."""

    softmax: BoundNode
    zero_rows: bool
    nodes: tuple[BoundNode, ...]


class AttentionFusion(Fusion):
    """The pass: the last product's node stands for all. Where the caller sets something of a node the others stay with
    it. ``dtype`` is what floats will be stored as, for which the route is
    asked: masks and scales lie between the products no more once types are set.
    """

    def __init__(self, choose: Chooser, given: Mapping[str, str | None], dtype: DType | str | None = None) -> None:
        super().__init__(choose, given)
        self._half = next((half for half in HALVES if half == dtype), None)

    def _rule(self, rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
        if not _is_plain_product(node) or float(node.call["alpha"]) != 1:
            return None
        if node.call["trans_a"] or node.call["trans_b"]:
            return None
        weights = _weights(rewriter, node.reads["a"])
        scores = _scores(rewriter, weights.softmax.reads["x"]) if weights else None
        if weights is None or scores is None:
            return None
        asked = self._is_asked(node, rewriter.ops[_OP])
        taken = (*scores.nodes, *weights.nodes, *(() if asked else (node,)))
        if any(is_given(self._given, other) for other in taken):
            return None
        return self._made(rewriter, node, weights, scores, asked)

    def _made(
        self, rewriter: Rewriter, node: BoundNode, weights: _Weights, scores: _Scores, asked: bool
    ) -> BoundNode | None:
        product = scores.product
        reads = {"q": product.reads["a"], "k": product.reads["b"], "v": node.reads["b"]}
        attrs = {
            "scale": scores.scale,
            "trans_k": not product.call["trans_b"],
            "zero_rows": weights.zero_rows,
        }
        mask = _one_mask(rewriter, node, scores.masks)
        if mask is None:
            return None
        try:
            made = rewriter.node(node, _OP, {**reads, **mask}, attrs)
            choice = self._choose(self._as_stored(rewriter, made.call), made.name)
        except (GraphError, RouteError):
            return None
        if not asked and choice.route.name == UNFUSED:
            return None
        parts = [other for other in (*scores.nodes, *weights.nodes) if other.call.op != "reshape"]
        self.remarks[made.name] = f"{', '.join(f'{n.call.op} {n.name!r}' for n in parts)} are part of it"
        return made

    def _as_stored(self, rewriter: Rewriter, call: Call) -> Call:
        """The call in the type that its floats will have."""
        if self._half is None:
            return call
        specs = {name: spec and TensorSpec(spec.shape, self._half) for name, spec in call.operands.items()}
        return rewriter.ops[_OP].call(specs, call.attrs)


def _is_plain_product(node: BoundNode) -> bool:
    """A matmul with nothing behind its sums."""
    if node.call.op != "matmul" or node.call.has("bias") or node.call.has("residual"):
        return False
    return all(node.call[name] == value for name, value in NO_EPILOGUE.items() if name in node.call.attrs)


def _weights(rewriter: Rewriter, value: str) -> _Weights | None:
    """What a value is as weights: a softmax along the last axis, or one whose NaN are replaced by 0. Exporters write so
    torch's safe softmax, which makes 0 of rows of nothing but -inf and NaN of NaN."""
    if not rewriter.only_reader(value):
        return None
    softmax = rewriter.maker(value, "softmax")
    if softmax is not None:
        return _Weights(softmax, bool(softmax.call["zero_rows"]), (softmax,)) if _is_of_rows(softmax) else None
    chosen = rewriter.maker(value, "where")
    if chosen is None or rewriter.scalar(chosen.reads["a"]) != 0:
        return None
    asked, softmax = rewriter.maker(chosen.reads["cond"], "is_nan"), rewriter.maker(chosen.reads["b"], "softmax")
    if asked is None or softmax is None or not _is_of_rows(softmax):
        return None
    of_both = asked.reads["x"] == chosen.reads["b"] and rewriter.readers(chosen.reads["b"]) == 2
    if not of_both or not rewriter.only_reader(chosen.reads["cond"]):
        return None
    return _Weights(softmax, True, (softmax, asked, chosen))


def _is_of_rows(softmax: BoundNode) -> bool:
    return bool(softmax.call["axis"] == len(softmax.call.shape("x")) - 1 and not softmax.call["log"])


def _scores(rewriter: Rewriter, value: str) -> _Scores | None:
    """What a value is as scores of attention, or None. Each node on the way is read by the next one alone."""
    dims = rewriter.specs[value].dims
    scale, masks, nodes = 1.0, list[str | Array](), list[BoundNode]()
    todo = [value]
    for _ in range(_MOST_BETWEEN):
        value = todo.pop()
        if not rewriter.only_reader(value):
            return None
        product = rewriter.maker(value, "matmul")
        if product is not None:
            return _of_product(rewriter, product, scale, masks, nodes, dims)
        maker = rewriter.maker(value, *_BETWEEN)
        if maker is None:
            return None
        nodes.append(maker)
        if maker.call.op == "reshape":
            if _windows(rewriter.specs[maker.reads["x"]].dims, dims) is None:
                return None
            todo.append(maker.reads["x"])
            continue
        below = _scaled(rewriter, maker)
        if below is not None:
            scale, following = scale * below[1], below[0]
        elif maker.call.op == "add" and scale == 1 and (masked := _masked(rewriter, maker, dims)) is not None:
            following = masked[0]
            masks.append(masked[1])
        else:
            return None
        todo.append(following)
    return None


def _of_product(
    rewriter: Rewriter,
    product: BoundNode,
    scale: float,
    masks: list[str | Array],
    nodes: list[BoundNode],
    dims: tuple[int, ...],
) -> _Scores | None:
    """Scores by their product, whose bias is a mask of keys."""
    call = product.call
    bare = dataclasses.replace(product, call=dataclasses.replace(call, operands={**call.operands, "bias": None}))
    if not _is_plain_product(bare) or call["trans_a"] or rewriter.specs[product.writes["y"]].dims != dims:
        return None
    if call.has("bias"):
        if call["beta"] != 1 or scale != 1:
            return None
        masks = [*masks, product.reads["bias"]]
    scale *= float(call["alpha"])
    if not (scale and math.isfinite(scale)):
        return None
    return _Scores(product, scale, tuple(masks), (*nodes, product))


def _scaled(rewriter: Rewriter, node: BoundNode) -> tuple[str, float] | None:
    """A product or quotient with a number as the value and the factor."""
    if node.call.op not in ("mul", "div"):
        return None
    a, b = node.reads["a"], node.reads["b"]
    for value, other in ((a, b), (b, a))[: 1 if node.call.op == "div" else 2]:
        number = rewriter.scalar(other)
        if number and math.isfinite(number) and rewriter.specs[value] == rewriter.specs[node.writes["y"]]:
            return value, number if node.call.op == "mul" else 1 / number
    return None


def _masked(rewriter: Rewriter, node: BoundNode, dims: tuple[int, ...]) -> tuple[str, str | Array] | None:
    """A sum as what leads to a product and what is added to that, in a shape that broadcasts to ``dims``."""
    a, b = node.reads["a"], node.reads["b"]
    written = rewriter.specs[node.writes["y"]]
    for value, other in ((a, b), (b, a)):
        if rewriter.maker(value, "matmul", *_BETWEEN) is None or rewriter.specs[value] != written:
            continue
        if other in rewriter.constants or rewriter.maker(other, "matmul") is None:
            mask = _in_shape(rewriter, other, written.dims, dims)
            if mask is not None:
                return value, mask
    return None


def _windows(apart: tuple[int, ...], dims: tuple[int, ...]) -> int | None:
    """How many windows of an image the scores have, where their first dimension stands as images x windows in another
    shape of them; 1 where the shape is theirs."""
    if apart == dims:
        return 1
    if len(apart) == len(dims) + 1 and apart[2:] == dims[1:] and apart[0] * apart[1] == dims[0]:
        return apart[1]
    return None


def _in_shape(rewriter: Rewriter, mask: str, written: tuple[int, ...], dims: tuple[int, ...]) -> str | Array | None:
    """A mask of scores whose windows may stand apart as one of scores that have them in their first dimension: by name
    where it stays as it is."""
    if written == dims:
        return mask
    array = rewriter.constants.get(mask)
    if _windows(written, dims) is None or array is None:
        return None
    shape = (1,) * (len(written) - array.ndim) + array.shape
    return array.reshape(shape[1:]) if shape[0] == 1 else None


def _one_mask(rewriter: Rewriter, node: BoundNode, masks: tuple[str | Array, ...]) -> Mapping[str, str] | None:
    """The operand that several masks come to, which must be constants then; None where they are not."""
    if not masks:
        return {}
    if len(masks) == 1 and isinstance(masks[0], str):
        return {"mask": masks[0]}
    arrays = [rewriter.constants.get(mask) if isinstance(mask, str) else mask for mask in masks]
    total: Array | None = None
    for array in arrays:
        if array is None:
            return None
        try:
            total = widen(array) if total is None else np.add(total, widen(array))
        except ValueError:  # of other windows
            return None
    assert total is not None
    return {"mask": rewriter.constant(f"{node.name}.mask", total)}
