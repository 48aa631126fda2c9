"""Rules of passes that spell what only moves elements in fewer launches: of a gather, and of a concat of slices."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.core import DType, GraphError, Shape
from vkconv.graph.ir import AttrValue
from vkconv.plan.bound import BoundNode
from vkconv.plan.rewrite import Rewriter


def slice_for_gather(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A gather at constant indices that are evenly spaced, as one index is, takes a slice."""
    indices = rewriter.constants.get(node.reads["indices"]) if node.call.op == "gather" else None
    if indices is None or indices.size == 0:
        return None
    axis, shape = node.call["axis"], node.call.shape("x")
    at = indices.ravel().astype(np.int64)
    at[at < 0] += shape[axis]
    step = int(at[1] - at[0]) if at.size > 1 else 1
    if step == 0 or (np.diff(at) != step).any():
        return None
    part = _Part(node.reads["x"], *([0] * len(shape), [1] * len(shape)), list(shape))
    part.starts[axis], part.steps[axis], part.counts[axis] = int(at[0]), step, at.size
    if indices.ndim == 1:
        return rewriter.node(node, "slice", {"x": part.of}, part.bounds(shape))
    taken = rewriter.before("slice", {"x": part.of}, part.bounds(shape), node.name)
    return _reshaped(rewriter, node, taken)


def pad_for_roll(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """What joins the end of a value and all before it exchanges them, as torch.roll does: a pad that goes on at the
    other end by as much as it takes away, along as many axes as there are such."""
    if node.call.op != "concat" or len(node.reads) != 2:
        return None
    last, first = (_part(rewriter, value) for value in node.reads.values())
    axis, shape = node.call["axis"], node.call.shape("y")
    count = last.counts[axis]
    if last.of != first.of or rewriter.specs[last.of].dims != shape or rewriter.specs[last.of].dtype not in _PADDED:
        return None
    if not (last.is_run(axis, shape[axis] - count, shape) and first.is_run(axis, 0, shape)):
        return None
    of, pads = last.of, [0] * (2 * len(shape))
    before = rewriter.maker(of, "pad")
    if before is not None and _rolls(before) and before.call["pads"][axis] == 0:
        of, pads = before.reads["x"], list(before.call["pads"])
    pads[axis], pads[axis + len(shape)] = count, -count
    try:
        return rewriter.node(node, "pad", {"x": of}, {"pads": tuple(pads), "mode": "wrap"})
    except GraphError:  # more dimensions than a pad can have
        return None


def transpose_for_phases(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """What joins every second element from 0 on, and those from 1 on, along one axis or several, moves each block of
    neighbours to the axis that it joins along: it is a transpose."""
    if node.call.op != "concat" or len(node.reads) < 2:
        return None
    parts = [_part(rewriter, value) for value in node.reads.values()]
    of, steps = parts[0].of, parts[0].steps
    shape = rewriter.specs[of].dims
    phased = [axis for axis, step in enumerate(steps) if step > 1]
    if math.prod(steps) != len(parts) or any(part.of != of or part.steps != steps for part in parts):
        return None
    if any(count * step != n for count, step, n in zip(parts[0].counts, steps, shape, strict=True)):
        return None
    order = _order_of_phases([tuple(part.starts) for part in parts], steps, phased)
    if order is None:
        return None
    blocks: list[int] = []  # the dimensions of x, each with a step as two
    counts, phases = dict[int, int](), dict[int, int]()
    for axis, (n, step) in enumerate(zip(shape, steps, strict=True)):
        counts[axis] = len(blocks)
        blocks.append(n // step)
        if step > 1:
            phases[axis] = len(blocks)
            blocks.append(step)
    perm: list[int] = []
    for axis in range(len(shape)):
        perm += [phases[other] for other in order] if axis == node.call["axis"] else []
        perm.append(counts[axis])
    try:
        apart = rewriter.before("reshape", {"x": of}, {"shape": tuple(blocks)}, rewriter.name(f"{node.name}/blocks"))
        moved = rewriter.before("transpose", {"x": apart}, {"perm": tuple(perm)}, node.name)
    except GraphError:  # more dimensions than a transpose can have
        return None
    return _reshaped(rewriter, node, moved)


# The types of which the kernel of pad moves elements.
_PADDED = (DType.F32, DType.F16, DType.BF16, DType.I32, DType.U32)


@dataclasses.dataclass
class _Part:
    """A part of a value, by axis: where it begins, in which steps it goes on, and how many elements it has."""

    of: str
    starts: list[int]
    steps: list[int]
    counts: list[int]

    def is_run(self, axis: int, start: int, shape: Shape) -> bool:
        """Whether it has all of the value along the other axes, and elements in a row from ``start`` on along one."""
        if any(step != 1 for step in self.steps):
            return False
        whole = (n for i, n in enumerate(self.counts) if i != axis)
        return self.starts[axis] == start and all(
            n == size for n, size in zip(whole, (*shape[:axis], *shape[axis + 1 :]), strict=True)
        )

    def bounds(self, shape: Shape) -> Mapping[str, AttrValue]:
        """The attributes of a slice that takes it of a value of that shape."""
        ends = [start + step * n for start, step, n in zip(self.starts, self.steps, self.counts, strict=True)]
        # An end before the first element is no number that counts from the back.
        ends = [end if end >= 0 else -n - 1 for end, n in zip(ends, shape, strict=True)]
        return {
            "starts": tuple(self.starts),
            "ends": tuple(ends),
            "axes": tuple(range(len(shape))),
            "steps": tuple(self.steps),
        }


def _part(rewriter: Rewriter, value: str) -> _Part:
    """A value as the part of another one that slices in a row take; all of itself where none makes it."""
    slices: list[BoundNode] = []
    while (made := rewriter.maker(value, "slice")) is not None:
        slices.append(made)
        value = made.reads["x"]
    dims = rewriter.specs[value].dims
    part = _Part(value, [0] * len(dims), [1] * len(dims), list(dims))
    for made in reversed(slices):
        call = made.call
        for start, axis, step in zip(call["starts"], call["axes"], call["steps"], strict=True):
            part.starts[axis] += start * part.steps[axis]
            part.steps[axis] *= step
        part.counts = list(call.shape("y"))
    return part


def _rolls(pad: BoundNode) -> bool:
    """Whether a pad is one that `pad_for_roll` makes."""
    pads, rank = pad.call["pads"], len(pad.call.shape("x"))
    return pad.call["mode"] == "wrap" and all(pads[axis] == -pads[axis + rank] for axis in range(rank))


def _order_of_phases(starts: Sequence[Shape], steps: Sequence[int], phased: Sequence[int]) -> Sequence[int] | None:
    """The axes with steps, the slowest first, by which the starts of parts count through all phases; None where they
    do not."""
    # The later an axis first has another start than 0, the slower it is.
    first = {axis: next((i for i, at in enumerate(starts) if at[axis]), len(starts)) for axis in phased}
    order = sorted(phased, key=first.__getitem__, reverse=True)
    for i, at in enumerate(starts):
        left = i
        for axis in reversed(order):
            left, phase = divmod(left, steps[axis])
            if at[axis] != phase:
                return None
        if any(at[axis] for axis in range(len(steps)) if axis not in order):
            return None
    return order


def _reshaped(rewriter: Rewriter, node: BoundNode, value: str) -> BoundNode:
    """What makes the output of a node of a value with the same elements, whose maker has the node's name."""
    shape = next(iter(node.call.outputs.values())).dims
    attrs: Mapping[str, AttrValue] = {"shape": shape, "allowzero": True}
    return rewriter.node(node, "reshape", {"x": value}, attrs, rewriter.name(f"{node.name}/shape"))
