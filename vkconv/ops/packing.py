"""Register tiles, as conv2d and matmul share them: which size, and rows packed so that a tile lies side by side."""

import dataclasses
from collections.abc import Sequence

from vkconv.core import align, ceil_div
from vkconv.device import Device
from vkconv.ops.base import linear_groups
from vkconv.shader import Dispatch, Shader, read, write

PACK_TILES = Shader("pack_tiles")


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a tile along one side: those that the rule picks from, best first, and those that only tuning tries."""

    rule: tuple[int, ...]
    more: tuple[int, ...] = ()

    def values(self, extent: int) -> tuple[int, ...]:
        """All of them, the rule's pick for ``extent`` first."""
        best = best_tile(extent, self.rule)
        return (best, *(size for size in (*self.rule, *self.more) if size != best))


def pack_tiles(
    source: str, target: str, rows: int, k: int, strides: tuple[int, int], tile: int, device: Device
) -> Dispatch:
    """Write a (rows, k) matrix with element ``strides`` as [ceil(rows / tile)][k][tile], the last tile padded with 0.

    The target needs ``align(rows, tile) * k`` elements.
    """
    groups = linear_groups(align(rows, tile) * k, 64, device)
    binds = (*read(source), *write(target))
    return Dispatch(PACK_TILES, binds, groups, (64, 1, 1), (rows, k, *strides), (tile,))


def best_tile(extent: int, sizes: Sequence[int]) -> int:
    """The size that covers ``extent`` at least cost: a tile costs its size and, for what is not per element, 4.

    The first of equals wins. 24 of (16, 12, 8) takes 12, 60 takes 16, 1 of (8, 4, 1) takes 1.
    """
    return min(sizes, key=lambda size: ceil_div(extent, size) * (size + 4))
