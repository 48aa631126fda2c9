"""Import rule for Einsum: transposes, sums over labels that one operand has alone, and a product of matrices for each
pair of operands."""

import string
from collections.abc import Sequence

from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView

# A value and what each of its dimensions is called.
_Term = tuple[str, str]


def _einsum(n: NodeView) -> None:
    given = n.attr_str("equation", "").replace(" ", "")
    left, arrow, out = given.partition("->")
    texts = left.split(",")
    if len(texts) != len(n.inputs):
        n.refuse(f"the equation {given!r} has {len(texts)} operands, the node {len(n.inputs)}")
    ranks = [n.need_rank(i) for i in range(len(n.inputs))]
    labels = _without_ellipsis(n, given, [*texts, *([out] if arrow else [])], ranks)
    terms = [(n.input(i), text) for i, text in enumerate(labels[: len(texts)])]
    for (_, text), rank in zip(terms, ranks, strict=True):
        if len(text) != rank:
            n.refuse(f"the equation {given!r} calls {len(text)} dimensions {text!r} of an operand of rank {rank}")
    whole = "".join(text for _, text in terms)
    hidden = "".join(label for label in _added(ranks, texts))
    implicit = hidden + "".join(sorted(label for label in set(whole) - set(hidden) if whole.count(label) == 1))
    result = labels[-1] if arrow else implicit
    if len(set(result)) != len(result) or not set(result) <= set(whole):
        n.refuse(f"the equation {given!r} has an output label twice, or one that no operand has")
    value, have = _product(n, [_diagonal(n, term) for term in terms], result)
    _finish(n, value, have, result)


def _added(ranks: Sequence[int], texts: Sequence[str]) -> str:
    """Labels of the dimensions that ``...`` stands for, as many as the operand has that takes most of them."""
    most = max((rank - len(text) + 3 for rank, text in zip(ranks, texts, strict=True) if "..." in text), default=0)
    return "".join(map(chr, range(0x100, 0x100 + most)))


def _without_ellipsis(n: NodeView, given: str, texts: Sequence[str], ranks: Sequence[int]) -> list[str]:
    """Each text with a label for every dimension; ``...`` are the last ones of those that are added."""
    added = _added(ranks, texts[: len(ranks)])
    made = []
    for i, text in enumerate(texts):
        before, dots, after = text.partition("...")
        if set(before + after) - set(string.ascii_letters):
            n.refuse(f"the equation {given!r}: {text!r} is not made of letters and one ellipsis")
        count = ranks[i] - len(before + after) if i < len(ranks) else len(added)
        made.append(before + (added[len(added) - count :] if count > 0 else "") + after if dots else text)
    return made


def _diagonal(n: NodeView, term: _Term) -> _Term:
    """Without a label twice: what lies where both are the same."""
    value, labels = term
    while twice := next((label for label in labels if labels.count(label) > 1), ""):
        i, j = labels.index(twice), labels.rindex(twice)
        rest = [d for d in range(len(labels)) if d not in (i, j)]
        value = n.emit("transpose", value, perm=(*rest, i, j))
        side = n.emit("shape", value, start=len(rest), end=len(rest) + 1)
        joined = n.emit("concat", n.emit("shape", value, start=0, end=len(rest)), n.ints(-1), axis=0)
        flat = n.emit("reshape", value, joined)
        ends, steps = n.ints((1 << 63) - 1), n.emit("add", side, n.ints(1))
        value = n.emit("slice", flat, n.ints(0), ends, n.ints(len(rest)), steps)
        labels = "".join(labels[d] for d in rest) + twice
    return value, labels


def _summed(n: NodeView, term: _Term, kept: str) -> _Term:
    """Without the labels that nobody else has."""
    value, labels = term
    gone = tuple(d for d, label in enumerate(labels) if label not in kept)
    if not gone:
        return term
    return n.emit("reduce", value, op="sum", axes=gone, keepdims=False), "".join(x for x in labels if x in kept)


def _product(n: NodeView, terms: list[_Term], result: str) -> _Term:
    """All operands, multiplied from left to right."""
    made = terms[0]
    for i, term in enumerate(terms[1:], 1):
        later = result + "".join(labels for _, labels in terms[i + 1 :])
        made = _pair(n, _summed(n, made, later + term[1]), _summed(n, term, later + made[1]), later)
    return _summed(n, made, result)


def _pair(n: NodeView, a: _Term, b: _Term, later: str) -> _Term:
    """The product of two operands, summed over the labels of both that are not wanted ``later``."""
    shared = [label for label in a[1] if label in b[1]]
    batch = "".join(label for label in shared if label in later)
    inner = "".join(label for label in shared if label not in later)
    rows, columns = ("".join(label for label in labels if label not in shared) for labels in (a[1], b[1]))
    if not inner or not n.dtype(0).is_float:
        whole = batch + inner + rows + columns
        made = n.emit("mul", _spread(n, a, whole), _spread(n, b, whole))
        return _summed(n, (made, whole), later)
    left, right = _ordered(n, a, batch + rows + inner), _ordered(n, b, batch + inner + columns)
    first, last = (len(batch), len(batch) + len(rows)), (len(batch) + len(inner), len(right[1]))
    y = n.emit(
        "matmul",
        _matrix(n, left, len(batch), len(rows), len(inner)),
        _matrix(n, right, len(batch), len(inner), len(columns)),
    )
    if len(rows) != 1 or len(columns) != 1:
        parts = [n.emit("shape", y, start=0, end=len(batch))]
        parts += [n.emit("shape", left[0], start=first[0], end=first[1])] if rows else []
        parts += [n.emit("shape", right[0], start=last[0], end=last[1])] if columns else []
        y = n.emit("reshape", y, n.emit("concat", *parts, axis=0))
    return y, batch + rows + columns


def _matrix(n: NodeView, term: _Term, batch: int, rows: int, columns: int) -> str:
    """A value whose dimensions behind the batch are two: rows and columns in one each, 1 where there are none."""
    value = term[0]
    if rows == columns == 1:
        return value
    parts = [n.emit("shape", value, start=0, end=batch)]
    for start, count in ((batch, rows), (batch + rows, columns)):
        if count:
            sizes = n.emit("shape", value, start=start, end=start + count)
            parts.append(n.emit("reduce", sizes, op="prod", axes=(0,), keepdims=True))
        else:
            parts.append(n.ints(1))
    return n.emit("reshape", value, n.emit("concat", *parts, axis=0))


def _ordered(n: NodeView, term: _Term, labels: str) -> _Term:
    value, have = term
    if have == labels:
        return term
    return n.emit("transpose", value, perm=tuple(have.index(label) for label in labels)), labels


def _spread(n: NodeView, term: _Term, whole: str) -> str:
    """A value with all labels, in that order: 1 along those that it does not have."""
    have = "".join(label for label in whole if label in term[1])
    value = _ordered(n, term, have)[0]
    missing = tuple(d for d, label in enumerate(whole) if label not in have)
    return n.emit("unsqueeze", value, axes=missing) if missing else value


def _finish(n: NodeView, value: str, have: str, result: str) -> None:
    if have == result:
        n.finish("identity", value)
    else:
        n.finish("transpose", value, perm=tuple(have.index(label) for label in result))


RULES: dict[str, Rule] = {"Einsum": _einsum}
