"""Where every buffer region lies: activations share memory by lifetime.

The problem is the dynamic storage allocation problem; the heuristic is greedy by size (Pisarchyk and Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020): largest block first, at the lowest offset
that no block alive at the same time occupies.
"""

import dataclasses
from collections.abc import Sequence

from vkconv.core import LimitError, align, bytes_str


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
    places: dict[str, Place] = {}
    chunks: list[list[tuple[Block, int, int]]] = []  # block, offset, aligned size
    for block in sorted(blocks, key=lambda b: (-b.nbytes, b.first, b.name)):
        size = align(block.nbytes, alignment)
        if block.nbytes > chunk_limit_bytes:
            raise LimitError(
                f"{block.name!r} takes {bytes_str(block.nbytes)} ({block.nbytes} bytes), more than the largest "
                f"allocation of this device, {bytes_str(chunk_limit_bytes)} ({chunk_limit_bytes} bytes)"
            )
        for index in range(len(chunks) + 1):
            if index == len(chunks):
                chunks.append([])
            offset = _lowest_gap(chunks[index], block, size)
            if offset + block.nbytes <= chunk_limit_bytes:
                chunks[index].append((block, offset, size))
                places[block.name] = Place(index, offset)
                break
    sizes = tuple(max(offset + size for _, offset, size in chunk) for chunk in chunks)
    return Layout(places, sizes, lower_bound(blocks, alignment))


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


def _lowest_gap(chunk: Sequence[tuple[Block, int, int]], block: Block, size: int) -> int:
    busy = sorted(
        (offset, offset + taken)
        for other, offset, taken in chunk
        if other.first <= block.last and block.first <= other.last
    )
    offset = 0
    for begin, end in busy:
        if offset + size <= begin:
            break
        offset = max(offset, end)
    return offset
