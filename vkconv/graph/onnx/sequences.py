"""Import rules for sequences of tensors: lists that are known when the model is read, so that the graph has none."""

from vkconv.core import DType
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView, Sequence

_END = (1 << 63) - 1


def _store(n: NodeView, sequence: Sequence) -> None:
    if n.outputs[0] in n.builder.results:
        n.refuse("a sequence is an output of the model; vkconv makes tensors only")
    n.builder.sequences[n.outputs[0]] = sequence


def _sequence(n: NodeView) -> Sequence:
    found = n.builder.sequences.get(n.input(0))
    if found is None:
        n.refuse(f"nothing that vkconv reads makes the sequence {n.input(0)!r}")
    return found


def _items(n: NodeView) -> tuple[str, ...]:
    sequence = _sequence(n)
    if sequence.split is not None:
        n.refuse("it changes or joins the parts of SplitToSequence; vkconv picks one of them, or counts them")
    return sequence.items


def _position(n: NodeView, i: int, count: int) -> int:
    """The position that input i holds, counted from the front of ``count`` items."""
    found = n.const_scalar(i)
    if found is None:
        n.refuse("its position is computed at run time; vkconv needs a constant one")
    position = int(found)
    if not -count <= position < count:
        n.refuse(f"its position is {position}, and the sequence has {count} items")
    return position % count


def _construct(n: NodeView) -> None:
    _store(n, Sequence(tuple(n.input(i) for i in range(len(n.inputs)))))


def _empty(n: NodeView) -> None:
    n.ignore("dtype")
    _store(n, Sequence(()))


def _insert(n: NodeView) -> None:
    items = _items(n)
    # A position is that of an item there is, or the one behind the last; -1 is the last item's.
    at = len(items)
    if n.has(2) and n.const_scalar(2) != at:
        at = _position(n, 2, at)
    _store(n, Sequence((*items[:at], n.input(1), *items[at:])))


def _erase(n: NodeView) -> None:
    items = _items(n)
    if not items:
        n.refuse("the sequence is empty, and has nothing to erase")
    at = _position(n, 1, len(items)) if n.has(1) else len(items) - 1
    _store(n, Sequence((*items[:at], *items[at + 1 :])))


def _split(n: NodeView) -> None:
    keepdims = n.attr_flag("keepdims", True) or n.has(1)
    _store(n, Sequence((), split=n.input(0), sizes=n.input(1), axis=n.attr_int("axis", 0), keepdims=keepdims))


def _at(n: NodeView) -> None:
    sequence = _sequence(n)
    if sequence.split is None:
        n.finish("identity", sequence.items[_position(n, 1, len(sequence.items))])
        return
    if sequence.sizes:
        n.refuse("it picks from parts of sizes that are given; vkconv picks from parts of one each")
    found = n.const_scalar(1)
    if found is None:
        n.refuse("its position is computed at run time; vkconv needs a constant one")
    first = int(found)
    bounds = {"starts": (first,), "ends": (first + 1 or _END,), "axes": (sequence.axis,)}
    if sequence.keepdims:
        n.finish("slice", sequence.split, **bounds)
    else:
        n.finish("squeeze", n.emit("slice", sequence.split, **bounds), axes=(sequence.axis,))


def _length(n: NodeView) -> None:
    sequence = _sequence(n)
    if sequence.split is None:
        n.finish("identity", n.number(len(sequence.items), DType.I64))
    elif sequence.sizes:
        n.finish("size", sequence.sizes)
    else:
        shape = n.emit("shape", sequence.split)
        n.finish("gather", shape, n.number(sequence.axis, DType.I64), axis=0)


def _concat(n: NodeView) -> None:
    sequence, axis = _sequence(n), n.attr_int("axis", 0)
    if sequence.split is not None:
        _concat_parts(n, sequence, sequence.split, axis)
        return
    items = list(sequence.items)
    if not items:
        n.refuse("the sequence is empty, and has nothing to join")
    if n.attr_flag("new_axis"):
        items = [n.emit("unsqueeze", item, axes=(axis,)) for item in items]
    n.finish("concat", *items, axis=axis)


def _concat_parts(n: NodeView, sequence: Sequence, split: str, axis: int) -> None:
    """Parts joined where they were cut are what was cut; those of one each become another axis, or lie along it."""
    known = n.builder.types.get(split)
    rank = known.rank if known else None
    if rank is None:
        n.refuse(f"it joins parts of {split!r}, whose rank cannot be told from the model")
    cut, new = sequence.axis % max(rank, 1), n.attr_flag("new_axis")
    ranks = (rank if sequence.keepdims else rank - 1) + new
    if not -ranks <= axis < ranks:
        n.refuse(f"its axis is {axis}, and what it makes has rank {ranks}")
    axis %= ranks
    if sequence.keepdims and not new and axis == cut:
        n.finish("identity", split)
        return
    if sequence.sizes:
        n.refuse("it joins parts of sizes that are given, along another axis than that of SplitToSequence")
    # The axis that was cut goes before the one that the parts lie along; it is that axis, or merges with it.
    others = [d for d in range(rank) if d != cut]
    if sequence.keepdims:
        x = n.emit("unsqueeze", split, axes=(cut,))  # of one each, before those that are counted
        others = [d + (d >= cut) if d != cut else cut for d in range(rank)]
        cut += 1
    else:
        x = split
    turned = n.emit("transpose", x, perm=(*others[:axis], cut, *others[axis:]))
    if new:
        n.finish("identity", turned)
    else:
        n.finish("merge", turned, first=axis, last=axis + 1)


def _has_element(n: NodeView) -> None:
    """A tensor is there; what is left out is not."""
    n.finish("identity", n.number(n.has(0), DType.BOOL))


def _get_element(n: NodeView) -> None:
    n.finish("identity", n.input(0))


RULES: dict[str, Rule] = {
    "ConcatFromSequence": _concat,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
