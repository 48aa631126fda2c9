"""Rules of passes that spell what only moves elements in fewer launches: gathers, concats of slices, transposes."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.call import Call
from vkconv.core import DType, GraphError, Shape
from vkconv.device import Device
from vkconv.graph.ir import AttrValue
from vkconv.ops.core.base import Op
from vkconv.ops.kernels.strided import MAX_RANK
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.inside import ALIGNMENT_BYTES
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
    if (
        math.prod(steps) != len(parts)
        or len(shape) + len(phased) > MAX_RANK
        or any((part.of, part.steps, part.counts) != (of, steps, parts[0].counts) for part in parts)
    ):
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
    apart = rewriter.before("reshape", {"x": of}, {"shape": tuple(blocks)}, rewriter.name(f"{node.name}/blocks"))
    moved = rewriter.before("transpose", {"x": apart}, {"perm": tuple(perm)}, node.name)
    return _reshaped(rewriter, node, moved)


def join_transposes(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A permutation of a permutation, or of that in another shape, is one; where the second takes the first back there
    is none."""
    chain = _movers(rewriter, node.reads["x"]) if node.call.op == "transpose" else []
    first = next((i for i, made in enumerate(chain) if made.call.op == "transpose"), None)
    if first is None:
        return None
    before = chain[first]
    if first == 0:
        perm = tuple(before.call["perm"][p] for p in node.call["perm"])
        if perm == tuple(range(len(perm))):
            rewriter.same(node.writes["y"], before.reads["x"])
            return None
        return rewriter.node(node, "transpose", {"x": before.reads["x"]}, {"perm": perm})
    order = _Order(rewriter, before.reads["x"])
    if not all(order.follow(made.call) for made in (*reversed(chain[: first + 1]), node)):
        return None
    return _ordered(rewriter, node, order)


class SliceTurning:
    """Transposes once what slices take apart and transposes turn alike, as queries, keys and values are that one
    product makes. ``run`` gives the graph after the pass."""

    def __init__(self) -> None:
        # The parts that there are, by what makes them at once.
        self._parts: dict[_Whole, set[int]] = {}
        self._made: dict[_Whole, str] = {}

    def run(self, graph: BoundGraph, ops: Mapping[str, Op], device: Device | None) -> BoundGraph:
        Rewriter(graph, ops, device).run(self._look_at)
        return Rewriter(graph, ops, device).run(self._rule)

    def _look_at(self, rewriter: Rewriter, node: BoundNode) -> None:
        found = _turned_part(rewriter, node)
        if found is not None:
            self._parts.setdefault(found[0], set()).add(found[1])

    def _rule(self, rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
        found = _turned_part(rewriter, node)
        if found is None:
            return None
        whole, i = found
        if len(self._parts.get(whole, ())) < whole.count or not _lies_in_place(rewriter, whole):
            return None
        name = node.name
        if whole not in self._made:
            x, shape = whole.of, (whole.count, whole.size)
            if rewriter.specs[x].dims != whole.dims:
                x = rewriter.before("reshape", {"x": x}, {"shape": whole.dims}, rewriter.name(f"{name}/blocks"))
            if whole.perm != tuple(range(len(whole.perm))):
                x = rewriter.before("transpose", {"x": x}, {"perm": whole.perm}, name)
                name = rewriter.name(f"{node.name}/part")
            parts = rewriter.name(f"{node.name}/parts")
            self._made[whole] = rewriter.before("reshape", {"x": x}, {"shape": shape}, parts)
        bounds: Mapping[str, AttrValue] = {"starts": (i,), "ends": (i + 1,), "axes": (0,), "steps": (1,)}
        return _reshaped(rewriter, node, rewriter.before("slice", {"x": self._made[whole]}, bounds, name))


@dataclasses.dataclass(frozen=True)
class _Whole:
    """What holds ``count`` parts of ``size`` elements one behind the other: a permutation of a value under a shape."""

    of: str
    dims: Shape
    perm: Shape
    count: int
    size: int


def _turned_part(rewriter: Rewriter, node: BoundNode) -> tuple[_Whole, int] | None:
    """What holds the result of a transpose of one of the equal parts that a slice or split takes, and which it is."""
    chain = _movers(rewriter, node.reads["x"]) if node.call.op == "transpose" else []
    value = chain[-1].reads["x"] if chain else node.reads.get("x", "")
    taker = rewriter.maker(value, "slice", "split") if node.call.op == "transpose" else None
    taken = _equal_part(taker, value) if taker else None
    if taker is None or taken is None:
        return None
    axis, count, i = taken
    source = taker.reads["x"]
    above = _movers(rewriter, source)
    # From above the transposes in front of the parts too, or from right in front of them.
    for before in (above, []) if above else ([],):
        order = _Order(rewriter, before[-1].reads["x"] if before else source)
        if not all(order.follow(made.call) for made in reversed(before)):
            continue
        which = order.take(axis, count)
        if which is None or not all(order.follow(made.call) for made in (*reversed(chain), node)):
            continue
        dims, perm = order.spelled(which)
        if len(perm) <= MAX_RANK:
            parts = taker.call.shape("x")[axis] // count
            return _Whole(order.of, dims, perm, parts, math.prod(order.shape)), i
    return None


def _equal_part(taker: BoundNode, value: str) -> tuple[int, int, int] | None:
    """The axis of parts of one size that a slice or split takes one of, their size, and the number of this one."""
    call = taker.call
    if call.op == "split":
        outputs = list(taker.writes.values())
        sizes = call["sizes"]
        return (call["axis"], sizes[0], outputs.index(value)) if len({*sizes}) == 1 and len(sizes) > 1 else None
    x, y = call.shape("x"), call.shape("y")
    cut = [axis for axis in range(len(x)) if x[axis] != y[axis]]
    if len(cut) != 1 or any(step != 1 for step in call["steps"]) or 0 in y:
        return None
    (axis,) = cut
    start = call["starts"][call["axes"].index(axis)]
    return None if x[axis] % y[axis] or start % y[axis] else (axis, y[axis], start // y[axis])


def _lies_in_place(rewriter: Rewriter, whole: _Whole) -> bool:
    """Whether each part begins where a device binds it, also where floats are stored in 16 bits: else it is copied."""
    dtype = rewriter.specs[whole.of].dtype
    nbytes = whole.size * (2 if dtype.is_float else dtype.nbytes)
    device = rewriter.device
    offset = device.limit("minStorageBufferOffsetAlignment") if device else _MOST_ALIGNMENT
    return nbytes % math.lcm(offset, ALIGNMENT_BYTES) == 0


# The most that Vulkan lets a device ask for.
_MOST_ALIGNMENT = 256
# Ops that leave all elements in their order.
ALIASES = ("reshape", "squeeze", "unsqueeze", "flatten", "merge", "identity")


def _movers(rewriter: Rewriter, value: str) -> list[BoundNode]:
    """The transposes and changes of shape in a row that make a value, the last first."""
    found: list[BoundNode] = []
    while (made := rewriter.maker(value, "transpose", *ALIASES)) is not None:
        found.append(made)
        value = made.reads["x"]
    return found


class _Order:
    """The elements of a value as those of another one, ``of``, with its dimensions in factors and these in an order."""

    def __init__(self, rewriter: Rewriter, of: str) -> None:
        dims = rewriter.specs[of].dims
        self.of = of
        self.shape = dims
        self._sizes = dict(enumerate(dims))
        self._lie = [i for i, n in enumerate(dims) if n != 1]
        self._now = list(self._lie)

    def follow(self, call: Call) -> bool:
        """Go on to what a transpose or a change of shape makes; False where it cuts a dimension in unequal parts."""
        if call.op == "transpose":
            axes = self.axes(self.shape)
            if axes is None:
                return False
            self._now = [factor for p in call["perm"] for factor in axes[p]]
        self.shape = call.shape("y")
        return True

    def take(self, axis: int, count: int) -> list[int] | None:
        """Go on to one of the parts of ``count`` along an axis; the factors that tell which, None where they are not
        apart."""
        n = self.shape[axis] // count
        axes = self.axes((*self.shape[:axis], n, count, *self.shape[axis + 1 :]))
        if axes is None:
            return None
        self.shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        self._now = [factor for i, factors in enumerate(axes) if i != axis for factor in factors]
        return axes[axis]

    def axes(self, shape: Shape) -> list[list[int]] | None:
        """The factors of each dimension of a shape, cut where it cuts them."""
        left, axes = list(self._now), list[list[int]]()
        for n in shape:
            factors: list[int] = []
            while n > 1:
                if not left or (n % self._sizes[left[0]] and self._sizes[left[0]] % n):
                    return None
                factor = left.pop(0)
                if self._sizes[factor] > n:
                    left.insert(0, self._cut(factor, n))
                factors.append(factor)
                n //= self._sizes[factor]
            axes.append(factors)
        return axes if not left and 0 not in shape else None

    def _cut(self, factor: int, n: int) -> int:
        """Make a factor one of n, and another one behind it, which is returned."""
        rest = len(self._sizes)
        self._sizes[rest], self._sizes[factor] = self._sizes[factor] // n, n
        for order in (self._lie, self._now):
            if factor in order:
                order.insert(order.index(factor) + 1, rest)
        return rest

    def spelled(self, before: Sequence[int] = ()) -> tuple[Shape, Shape]:
        """The shape of ``of`` and the permutation that make it, with factors that stay together as one; with others in
        front of those that it has."""
        runs: list[list[int]] = []
        for factor in (*before, *self._now):
            place = self._lie.index(factor)
            if runs and place and runs[-1][-1] == self._lie[place - 1]:
                runs[-1].append(factor)
            else:
                runs.append([factor])
        lie = sorted(runs, key=lambda run: self._lie.index(run[0]))
        dims = tuple(math.prod(self._sizes[factor] for factor in run) for run in lie)
        return dims, tuple(lie.index(run) for run in runs)

    def spelled_out(self) -> tuple[Shape, Shape] | None:
        """As `spelled`, so that the permutation has every dimension of the shape; None where one is of several runs."""
        axes = self.axes(self.shape)
        if axes is None:
            return None
        places = [[self._lie.index(factor) for factor in factors] for factors in axes]
        if any(run != list(range(run[0], run[0] + len(run))) for run in places if run):
            return None
        # Dimensions of 1 lie in front.
        lie = sorted(range(len(axes)), key=lambda axis: places[axis][:1])
        return tuple(self.shape[axis] for axis in lie), tuple(lie.index(axis) for axis in range(len(axes)))


def _ordered(rewriter: Rewriter, node: BoundNode, order: _Order) -> BoundNode | None:
    """The node that makes an order of elements in place of a transpose."""
    dims, perm = order.spelled()
    if perm == tuple(range(len(perm))):
        if rewriter.specs[order.of].dims == order.shape:
            rewriter.same(node.writes["y"], order.of)
            return None
        return _reshaped(rewriter, node, order.of, node.name)
    dims, perm = order.spelled_out() or (dims, perm)
    if len(perm) > MAX_RANK:
        return None
    x = order.of
    if rewriter.specs[x].dims != dims:
        x = rewriter.before("reshape", {"x": x}, {"shape": dims}, rewriter.name(f"{node.name}/blocks"))
    if tuple(dims[p] for p in perm) == order.shape:
        return rewriter.node(node, "transpose", {"x": x}, {"perm": perm})
    return _reshaped(rewriter, node, rewriter.before("transpose", {"x": x}, {"perm": perm}, node.name))


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


def _reshaped(rewriter: Rewriter, node: BoundNode, value: str, name: str = "") -> BoundNode:
    """What makes the output of a node of a value with the same elements, whose maker has the node's name unless there
    is a ``name``."""
    shape = next(iter(node.call.outputs.values())).dims
    attrs: Mapping[str, AttrValue] = {"shape": shape, "allowzero": True}
    return rewriter.node(node, "reshape", {"x": value}, attrs, name or rewriter.name(f"{node.name}/shape"))
