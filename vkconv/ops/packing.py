"""The one prepack that conv2d and matmul share: matrix rows as tiles whose elements lie side by side."""

from vkconv.core import align
from vkconv.device import Device
from vkconv.ops.base import linear_groups
from vkconv.shader import Dispatch, Shader, read, write

PACK_TILES = Shader("pack_tiles")


def pack_tiles(
    source: str, target: str, rows: int, k: int, strides: tuple[int, int], tile: int, device: Device
) -> Dispatch:
    """Write a (rows, k) matrix with element ``strides`` as [ceil(rows / tile)][k][tile], the last tile padded with 0.

    The target needs ``align(rows, tile) * k`` elements.
    """
    groups = linear_groups(align(rows, tile) * k, 64, device)
    binds = (*read(source), *write(target))
    return Dispatch(PACK_TILES, binds, groups, (64, 1, 1), (rows, k, *strides), (tile,))
