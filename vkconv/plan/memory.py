"""Where every buffer region lies: activations share memory by lifetime.

The problem is the dynamic storage allocation problem. The heuristics are greedy (Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020): one block after the other, in the gap between the blocks alive at the
same time. Which order is best depends on the graph: they are tried in turn until one reaches the lower bound.
"""

import dataclasses
from collections.abc import Sequence

from vkconv.core import LimitError, align, exact_bytes
from vkconv.plan.spans import ListedSpans, TimedSpans


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A region that must exist from step ``first`` to step ``last``, both included."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a block lies: which chunk (one allocation) and the byte offset in it."""

    chunk: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """Places of all blocks, chunk sizes, and the lower bound: the largest set of bytes alive at one step."""

    places: dict[str, Place]
    chunk_bytes: tuple[int, ...]
    lower_bound_bytes: int

    @property
    def peak_bytes(self) -> int:
        return sum(self.chunk_bytes)


def lay_out(blocks: Sequence[Block], alignment: int, chunk_limit_bytes: int) -> Layout:
    """Place blocks so that no two alive at the same step overlap; a chunk never exceeds ``chunk_limit_bytes``.

    Raises LimitError when a single block is larger than a chunk may be.
    """
    for block in blocks:
        if block.nbytes > chunk_limit_bytes:
            raise LimitError(
                f"{block.name!r} takes {exact_bytes(block.nbytes)}, more than the largest allocation of this "
                f"device, {exact_bytes(chunk_limit_bytes)}"
            )
    bound = lower_bound(blocks, alignment)
    best: Layout | None = None
    for order in (_by_size, _by_breadth, _by_area, _by_start):
        for smallest in (False, True):
            ordered = order(blocks)
            for _ in range(_PROMOTIONS):
                made = _placed(ordered, alignment, chunk_limit_bytes, bound, smallest)
                if best is None or made.peak_bytes < best.peak_bytes:
                    best = made
                if best.peak_bytes == bound or len(blocks) > _MOST_BLOCKS:
                    return best
                ordered = _promoted(ordered, made)
    assert best is not None
    return best


# Networks have some hundred, of which a list is looked through; with thousands one order has to do, and comes near the
# bound too.
_MOST_BLOCKS = 1000
# How often an order is tried again with the blocks that reached the top placed first.
_PROMOTIONS = 8


def _promoted(blocks: Sequence[Block], made: Layout) -> list[Block]:
    """The order with the blocks that lie highest in their chunk in front of all others."""
    top: dict[int, int] = {}
    for block in blocks:
        place = made.places[block.name]
        top[place.chunk] = max(top.get(place.chunk, 0), place.offset + block.nbytes)
    ends = {b.name: made.places[b.name].offset + b.nbytes == top[made.places[b.name].chunk] for b in blocks}
    return sorted(blocks, key=lambda block: not ends[block.name])


def _by_size(blocks: Sequence[Block]) -> list[Block]:
    return sorted(blocks, key=lambda b: (-b.nbytes, b.first, b.name))


def _by_area(blocks: Sequence[Block]) -> list[Block]:
    """Those first that take most bytes for most steps."""
    return sorted(blocks, key=lambda b: (-b.nbytes * (b.last - b.first + 1), b.first, b.name))


def _by_start(blocks: Sequence[Block]) -> list[Block]:
    return sorted(blocks, key=lambda b: (b.first, -b.nbytes, b.name))


def _by_breadth(blocks: Sequence[Block]) -> list[Block]:
    """Those first that are alive where most bytes are, so that the fullest step is packed without a gap."""
    steps = sorted({block.first for block in blocks})
    alive = {step: [b for b in blocks if b.first <= step <= b.last] for step in steps}
    fullest = sorted(steps, key=lambda step: (-sum(b.nbytes for b in alive[step]), step))
    return list(dict.fromkeys(block for step in fullest for block in _by_size(alive[step])))


def _placed(blocks: Sequence[Block], alignment: int, chunk_limit_bytes: int, bound: int, smallest: bool) -> Layout:
    """The blocks in this order, each in the lowest or the smallest gap of the first chunk that has room."""
    places: dict[str, Place] = {}
    steps = {step: i for i, step in enumerate(sorted({s for block in blocks for s in (block.first, block.last)}))}
    kept = ListedSpans if len(blocks) <= _MOST_BLOCKS else TimedSpans
    chunks: list[ListedSpans | TimedSpans] = []
    chunk_bytes: list[int] = []
    for block in blocks:
        size, first, last = align(block.nbytes, alignment), steps[block.first], steps[block.last]
        for index in range(len(chunks) + 1):
            if index == len(chunks):
                chunks.append(kept(len(steps)))
                chunk_bytes.append(0)
            offset = _gap(chunks[index].taken(first, last), size, smallest)
            if offset + block.nbytes <= chunk_limit_bytes:
                chunks[index].add(first, last, offset, offset + size)
                chunk_bytes[index] = max(chunk_bytes[index], offset + size)
                places[block.name] = Place(index, offset)
                break
    return Layout(places, tuple(chunk_bytes), bound)


def lower_bound(blocks: Sequence[Block], alignment: int) -> int:
    """Bytes of the largest set of blocks that are alive at the same step: no layout can take less."""
    changes: dict[int, int] = {}
    for block in blocks:
        size = align(block.nbytes, alignment)
        changes[block.first] = changes.get(block.first, 0) + size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - size
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


def _gap(busy: Sequence[tuple[int, int]], size: int, smallest: bool) -> int:
    """The offset of the lowest gap between busy ranges that a block fits in, or of the smallest; that behind all of
    them where none does."""
    offset = 0
    gaps: list[tuple[int, int]] = []  # size, offset
    for begin, end in busy:
        if offset + size <= begin:
            gaps.append((begin - offset, offset))
            if not smallest:
                break
        offset = max(offset, end)
    return min(gaps)[1] if gaps else offset
