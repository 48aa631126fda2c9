"""Blocks of memory as regions of named buffers."""

import dataclasses
from collections.abc import Iterable, Mapping

from vkconv.core import align
from vkconv.graph.ir import TensorSpec
from vkconv.plan.commands import BufferKind, Region
from vkconv.plan.memory import Block, Layout
from vkconv.plan.weights import WeightKey
from vkconv.program import Bind
from vkconv.texture import PlannedTexture

# Bindings are whole words, and no binding may be empty.
WORD_BYTES = 4


class Placed:
    """A layout with its blocks as regions of named buffers, counted from ``first_chunk``."""

    def __init__(self, prefix: str, layout: Layout, blocks: Iterable[Block], first_chunk: int) -> None:
        names = [f"{prefix}:{first_chunk + index}" for index in range(len(layout.chunk_bytes))]
        self.layout = layout
        self.buffers: dict[str, tuple[int, BufferKind]] = {
            name: (nbytes, "device") for name, nbytes in zip(names, layout.chunk_bytes, strict=True)
        }
        self.regions = {
            block.name: Region(names[place.chunk], place.offset, block.nbytes)
            for block in blocks
            for place in (layout.places[block.name],)
        }


@dataclasses.dataclass(frozen=True)
class PlacedWeights:
    """Regions of all constants that stay, by block name; the ones this plan places, by key; the blocks that
    loading must fill; the buffers and textures to allocate; bytes of all that the plan uses."""

    regions: Mapping[str, Region]
    placed: Mapping[WeightKey, Region]
    fresh: set[str]
    buffers: Mapping[str, tuple[int, BufferKind]]
    textures: Mapping[str, PlannedTexture]
    nbytes: int


def bound_part(region: Region, bind: Bind) -> Region:
    """The part of a buffer's region that is bound."""
    if bind.range is None:
        return region
    return Region(region.buffer, region.offset + bind.range.offset, words(bind.range.nbytes))


def words(nbytes: int) -> int:
    """Bytes of the whole words that hold so many, one word at least."""
    return max(WORD_BYTES, align(nbytes, WORD_BYTES))


def extent(regions: Iterable[Region]) -> int:
    """Where the last of some regions of one buffer ends."""
    return max((region.offset + region.nbytes for region in regions), default=0)


def exact(region: Region, spec: TensorSpec) -> Region:
    """The part of a region that a copy moves: whole words of the value."""
    return Region(region.buffer, region.offset, words(spec.nbytes))
