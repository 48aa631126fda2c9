"""Implicit GEMM of convolutions: tiles, and which of them a device takes for a product; split-K."""

from collections.abc import Callable

from vkconv.call import Call
from vkconv.core import align
from vkconv.device import Device
from vkconv.ops.core.requirements import invocations, shared_bytes
from vkconv.ops.kernels.epilogue import SPLITS, Epilogue
from vkconv.ops.kernels.gemm_tile import GemmTile
from vkconv.program import Dispatch

# By number: the parameter ``tile`` of the route. Every one keeps local a multiple of its columns, as the shader loads.
TILES: tuple[GemmTile, ...] = (
    GemmTile(128, 128, 8, 8, 8),
    GemmTile(128, 64, 8, 8, 8),
    GemmTile(64, 128, 8, 8, 8),
    GemmTile(64, 64, 16, 8, 8),
    GemmTile(64, 64, 16, 4, 4),
    GemmTile(32, 64, 16, 4, 4),
    GemmTile(64, 32, 16, 4, 4),
    GemmTile(32, 32, 16, 4, 4),
    GemmTile(128, 128, 16, 8, 8),
    GemmTile(64, 64, 16, 8, 4),
    GemmTile(128, 64, 16, 8, 4),
    GemmTile(32, 128, 16, 4, 8),
    GemmTile(64, 32, 16, 4, 4, 2),
    GemmTile(64, 128, 16, 8, 8),
)


# H200 (driver 580.159), us. Many blocks: 9 or within 5 % of the best (32x64x56x56 3x3: 9 202, 2 202, 4 241, 0 352;
# 32x512x7x7 1x1 to 2048: 9 113, 1 116, 4 132); very many that are deep: 1 (32x1024x25x25 1x1 to 1024: 1 1003, 8 1027,
# 13 1070, 9 1086; 2048 to 32x1024x25x25: 1 2348, 9 2515) or 13 (10x448x118x182 from 896: 13 1309, 2 1352, 9 1359;
# 32x256x28x28 1x1 to 512: 13 185, 1 187, 9 191), but not 32x64x56x56 1x1 to 256 (9 128, 13 140, 1 162) or the many
# groups of winograd (32x128x28x28 3x3: 9 110, 1 121). Few blocks: small tiles, cut along
# K until they are many (1x64x56x56 3x3: 7 in 4 parts 19.7, uncut 26, 9 in 8 parts 21.6; 1x256x14x14 1x1 to 1024: 12
# 17.5, 6 18.4, 7 19.2; 1x256x56x56 1x1 to 64: 12 14.5, 6 15.3, 7 16.4). A second buffer makes large tiles 5 to 15 %
# slower.
_RULE = (9, 12, 6, 7)


_RULE_FEW_ROWS = (11, 5, 7)  # at most 32 output channels in a group


_RULE_DEEP = ((1, 1024), (13, 256))  # and from what depth, where a group has so many blocks and wastes few rows


_VERY_MANY, _WASTE = 700, 1.1


_SMALLEST = 7


# Cutting costs a launch and a pass over the parts: 16 steps uncut take 14.3, in 2 parts 14.5 (1x256x56x56 1x1 to 64).
ENOUGH, _MOST, _LEAST_STEPS, _WORTH_STEPS = 300, 800, 8, 24


def tiles_by_rule(
    rows: int, depth: int, groups: int, blocks: Callable[[GemmTile], int], device: Device
) -> tuple[int, ...]:
    """Numbers of the tiles that a device can hold, first the one for a product of so many rows (output channels of a
    group), each a sum of ``depth`` products: the first that makes enough ``blocks`` to keep the device busy, or a
    large one where a group has very many that are deep."""
    fitting = [i for i, tile in enumerate(TILES) if tile.fits(device)]
    rule = [i for i in (_RULE_FEW_ROWS if rows <= TILES[_SMALLEST].rows else _RULE) if i in fitting]
    best = next((i for i in rule if blocks(TILES[i]) >= ENOUGH), rule[-1])
    large = (i for i, least in _RULE_DEEP if i in fitting and depth >= least)
    many = (i for i in large if blocks(TILES[i]) >= groups * _VERY_MANY)
    best = next((i for i in many if align(rows, TILES[i].rows) <= _WASTE * rows), best)
    return (best, *(i for i in fitting if i != best))


def splits_by_rule(blocks: int, steps: int) -> tuple[int, ...]:
    """In how many parts to cut K, first for so many blocks that take so many steps each: as many as keep the device
    busy."""
    few = blocks < ENOUGH and steps >= _WORTH_STEPS
    best = max(s for s in SPLITS if s == 1 or (few and s * blocks <= _MOST and s * _LEAST_STEPS <= steps))
    return (best, *(s for s in SPLITS if s != best))


def split_k(
    call: Call, e: Epilogue, splits: int, device: Device, product: Callable[[Epilogue], Dispatch]
) -> tuple[tuple[Dispatch, ...], dict[str, int]]:
    """The launches of a product split along K, and the bytes of its scratch: ``product`` ends in the epilogue that it
    is given."""
    if splits == 1:
        return (product(e),), {}
    add = e.sum("parts", splits, call.shape("y"), device)
    return (product(e.storing("parts")), add), {"parts": 4 * call.outputs["y"].size * splits}


FITS_SMALLEST = invocations(TILES[_SMALLEST].local), shared_bytes(TILES[_SMALLEST].shared_bytes)
