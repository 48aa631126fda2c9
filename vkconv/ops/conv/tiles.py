"""Implicit GEMM of convolutions: tiles, and which of them a device takes for a product; split-K."""

import dataclasses
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import align
from vkconv.cost import scaled
from vkconv.device import Device
from vkconv.ops.core.base import first
from vkconv.ops.core.requirements import invocations, shared_bytes
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.gemm_tile import ENOUGH, Compilers, GemmTile, by_name, tile_by_rule
from vkconv.policy import Policy
from vkconv.program import Dispatch

# The parameter ``tile`` of the routes. Every one keeps local a multiple of its columns, and the k-tile of the columns a
# multiple of local, as the shader loads.
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
    GemmTile(96, 64, 24, 8, 4),
    GemmTile(48, 64, 24, 4, 4),
    GemmTile(64, 64, 8, 4, 4),
    GemmTile(64, 32, 8, 4, 4),
    GemmTile(32, 64, 4, 4, 4),
    GemmTile(32, 32, 4, 4, 4),
    GemmTile(64, 64, 16, 4, 4, unroll=False),
    GemmTile(64, 32, 16, 4, 4, unroll=False),
    GemmTile(32, 64, 16, 4, 4, unroll=False),
    GemmTile(32, 32, 16, 4, 4, unroll=False),
)

# Those of several teams, for products of few tiles and deep sums; the kernel of conv2d alone has them.
SLICED_TILES: Mapping[str, GemmTile] = by_name(
    GemmTile(32, 32, 64, 4, 4, teams=4),
    GemmTile(16, 32, 64, 4, 4, teams=4),
)

SMALLEST = "32x32x16"  # of the rule
# The first that makes enough workgroups is the default.
_RULE = ("64x64x16_8x4", "64x64x16_4x4", "64x32x16b2", "64x32x16", SMALLEST)
_RULE_FEW_ROWS = ("32x128x16", "32x64x16", SMALLEST)  # at most 32 output channels in a group


@dataclasses.dataclass(frozen=True, slots=True)
class Deep:
    """Large tiles of groups with very many workgroups, each with the depth of a sum from which on it is taken, the
    first that holds; rows that they compute at most, padding included, in times of the product's."""

    tiles: tuple[tuple[str, int], ...]
    waste: float


_DEEP = Policy("conv2d.deep_tiles", Deep)


def tiles_by_rule(
    rows: int, depth: int, groups: int, blocks: Callable[[GemmTile], int], compilers: Compilers
) -> tuple[str, ...]:
    """The tiles that a device can hold, first the one for a product of so many rows (output channels of a group), each
    a sum of ``depth`` products: the first that makes enough ``blocks`` to keep the device busy, or a large one where a
    group has very many that are deep."""
    device = compilers.device
    fitting = {name: tile for name, tile in TILES.items() if tile.fits(device)}
    rule, enough = _RULE_FEW_ROWS if rows <= TILES[SMALLEST].rows else _RULE, ENOUGH.of(device).implicit_gemm
    best = tile_by_rule(rule, fitting, rows, lambda name: blocks(TILES[name]), enough, compilers)
    very_many, deep = scaled(ENOUGH.of(device).very_many, device), _DEEP.of(device)
    large = (name for name, least in deep.tiles if name in fitting and depth >= least)
    many = (name for name in large if compilers.suit(TILES[name]) and blocks(TILES[name]) >= groups * very_many)
    return first(next((name for name in many if align(rows, TILES[name].rows) <= deep.waste * rows), best), fitting)


def split_k(
    call: Call, e: Epilogue, slices: int, device: Device, product: Callable[[Epilogue], Dispatch]
) -> tuple[tuple[Dispatch, ...], dict[str, int]]:
    """The launches of a product split along K, and the bytes of its scratch: ``product`` ends in the epilogue that it
    is given."""
    if slices == 1:
        return (product(e),), {}
    add = e.sum("slices", slices, call.shape("y"), device)
    return (product(e.storing("slices")), add), {"slices": 4 * call.outputs["y"].size * slices}


FITS_SMALLEST = invocations(TILES[SMALLEST].local), shared_bytes(TILES[SMALLEST].shared_bytes)
