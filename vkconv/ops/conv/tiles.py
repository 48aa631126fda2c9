"""Implicit GEMM of convolutions: tiles, and which of them a device takes for a product; split-K."""

from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import align
from vkconv.device import Device
from vkconv.ops.core.base import first
from vkconv.ops.core.requirements import invocations, shared_bytes
from vkconv.ops.kernels.epilogue import SPLITS, Epilogue
from vkconv.ops.kernels.gemm_tile import GemmTile, by_name
from vkconv.program import Dispatch

# The parameter ``tile`` of the routes. Every one keeps local a multiple of its columns, as the shader loads.
TILES: Mapping[str, GemmTile] = by_name(
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

# The first that makes enough workgroups is the default. H200 (driver 580.159), us; a second buffer makes large tiles 5
# to 15 % slower.
#                                      64x64x16_8x4  64x128x8  128x64x8  64x64x16_4x4  128x128x8  128x128x16  64x128x16
#   32x64x56x56 3x3                             202       202                     241        352
#   32x512x7x7 1x1 to 2048                      113                 116           132
#   32x1024x25x25 1x1 to 1024                  1086                1003                                1027       1070
#   32x2048x25x25 1x1 to 1024                  2515                2348
#   10x896x118x182 1x1 to 448                  1359      1352                                                     1309
#   32x256x28x28 1x1 to 512                     191                 187                                            185
#   32x64x56x56 1x1 to 256                      128                 162                                            140
#   32x128x28x28 3x3 by winograd                110                 121
# Few workgroups: small tiles, split along K until they are many.
#                                     64x32x16b2  64x32x16  32x32x16
#   1x256x14x14 1x1 to 1024                 17.5      18.4      19.2
#   1x256x56x56 1x1 to 64                   14.5      15.3      16.4
#   1x64x56x56 3x3: 32x32x16 split in 4 19.7, whole 26, 64x64x16_8x4 split in 8 21.6
_RULE = ("64x64x16_8x4", "64x32x16b2", "64x32x16", "32x32x16")
_RULE_FEW_ROWS = ("32x128x16", "32x64x16", "32x32x16")  # at most 32 output channels in a group
# Of sums from this depth on, where a group has very many workgroups and wastes few rows.
_RULE_DEEP = (("128x64x8", 1024), ("64x128x16", 256))
_VERY_MANY, _WASTE = 700, 1.1
_SMALLEST = TILES["32x32x16"]

# Split-K costs a launch and a pass over the partial sums: 16 k-tiles take 14.3 whole, 14.5 in two splits (1x256x56x56
# 1x1 to 64).
ENOUGH, _MOST, _LEAST_STEPS, _WORTH_STEPS = 300, 800, 8, 24


def tiles_by_rule(
    rows: int, depth: int, groups: int, blocks: Callable[[GemmTile], int], device: Device
) -> tuple[str, ...]:
    """The tiles that a device can hold, first the one for a product of so many rows (output channels of a group), each
    a sum of ``depth`` products: the first that makes enough ``blocks`` to keep the device busy, or a large one where a
    group has very many that are deep."""
    fitting = [name for name, tile in TILES.items() if tile.fits(device)]
    rule = [name for name in (_RULE_FEW_ROWS if rows <= _SMALLEST.rows else _RULE) if name in fitting]
    best = next((name for name in rule if blocks(TILES[name]) >= ENOUGH), rule[-1])
    large = (name for name, least in _RULE_DEEP if name in fitting and depth >= least)
    many = (name for name in large if blocks(TILES[name]) >= groups * _VERY_MANY)
    return first(next((name for name in many if align(rows, TILES[name].rows) <= _WASTE * rows), best), fitting)


def splits_by_rule(blocks: int, steps: int) -> tuple[int, ...]:
    """Split-K factors, the heuristic's pick for so many workgroups of so many k-tiles each first: as many as keep the
    device busy."""
    few = blocks < ENOUGH and steps >= _WORTH_STEPS
    best = max(s for s in SPLITS if s == 1 or (few and s * blocks <= _MOST and s * _LEAST_STEPS <= steps))
    return first(best, SPLITS)


def split_k(
    call: Call, e: Epilogue, splits: int, device: Device, product: Callable[[Epilogue], Dispatch]
) -> tuple[tuple[Dispatch, ...], dict[str, int]]:
    """The launches of a product split along K, and the bytes of its scratch: ``product`` ends in the epilogue that it
    is given."""
    if splits == 1:
        return (product(e),), {}
    add = e.sum("parts", splits, call.shape("y"), device)
    return (product(e.storing("parts")), add), {"parts": 4 * call.outputs["y"].size * splits}


FITS_SMALLEST = invocations(_SMALLEST.local), shared_bytes(_SMALLEST.shared_bytes)
