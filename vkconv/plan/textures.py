"""Textures of a plan: which images the backend makes, and which launches of scratch take the same one.

An image cannot begin anywhere in a buffer, as values do, and what a driver pads it to only a driver knows. So each is
an allocation of its own, and those of equal extent and format that are never alive together are one.
"""

from collections.abc import Iterable, Mapping, Sequence

from vkconv.plan.bound import BoundNode
from vkconv.plan.commands import Region
from vkconv.plan.memory import Block
from vkconv.program import Program
from vkconv.texture import PlannedTexture

Textures = Mapping[str, PlannedTexture]


def block_textures(steps: Iterable[tuple[BoundNode, Program]]) -> dict[str, PlannedTexture]:
    """By the names of their blocks, as scratch and as packed, the textures of programs."""
    found = {}
    for node, program in steps:
        for name, texture in program.textures.items():
            nbytes = program.packed.get(name) or program.scratch[name]
            planned = PlannedTexture(texture, texture.format(nbytes), nbytes)
            found[f"packed:{node.name}:{name}"] = found[f"scratch:{node.name}:{name}"] = planned
    return found


def without(blocks: Iterable[Block], textures: Textures) -> list[Block]:
    """The blocks that are bytes of buffers."""
    return [block for block in blocks if block.name not in textures]


class PlacedTextures:
    """Textures of some blocks, counted from ``first``, and their blocks as regions, whole ones, of those names."""

    def __init__(self, prefix: str, blocks: Sequence[Block], textures: Textures, first: int = 0) -> None:
        self.textures: dict[str, PlannedTexture] = {}
        self.regions: dict[str, Region] = {}
        lives: dict[str, list[Block]] = {}
        for block in blocks:
            if block.name not in textures:
                continue
            wanted = textures[block.name]
            free = (name for name, made in self.textures.items() if made == wanted and _apart(block, lives[name]))
            name = next(free, None) or f"{prefix}:{first + len(self.textures)}"
            self.textures[name] = wanted
            lives.setdefault(name, []).append(block)
            self.regions[block.name] = Region(name, 0, wanted.nbytes)

    @property
    def nbytes(self) -> int:
        return sum(texture.nbytes for texture in self.textures.values())


def _apart(block: Block, others: Iterable[Block]) -> bool:
    return all(block.last < other.first or other.last < block.first for other in others)
