"""Implicit GEMM for conv2d: matrix tiles in shared memory, for GPUs."""

import dataclasses
import math
from collections.abc import Callable, Mapping

from vkconv.core import align, ceil_div
from vkconv.device import Device
from vkconv.ops.base import linear_groups
from vkconv.ops.conv2d_parts import binds, constants, push
from vkconv.ops.epilogue import SPLITS, SUM_SPLITS, per_channel, sum_splits
from vkconv.ops.gemm_tile import GemmTile
from vkconv.ops.needs import FLOATS, ON_GPU, invocations, shared_bytes
from vkconv.ops.packing import PACK_TILES, PACKED_WEIGHTS, Packing
from vkconv.route import Call, Params, Route
from vkconv.shader import Dispatch, Program, Shader

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
_MOST_PADDING = 1.15
# Cutting costs a launch and a pass over the parts: 16 steps uncut take 14.3, in 2 parts 14.5 (1x256x56x56 1x1 to 64).
ENOUGH, _MOST, _LEAST_STEPS, _WORTH_STEPS = 300, 800, 8, 24

GEMM = Shader("conv2d_gemm")


def _blocks(call: Call, tile: GemmTile) -> int:
    n, c_out, oh, ow = call.shape("y")
    groups: int = call["groups"]
    return groups * ceil_div(c_out // groups, tile.rows) * ceil_div(n * oh * ow, tile.columns)


def steps_of(call: Call, tile: GemmTile, linear: bool) -> int:
    """Slices that a workgroup multiplies."""
    c_in, kh, kw = call.shape("w")[1:]
    return ceil_div(c_in * kh * kw, tile.depth) if linear else kh * kw * ceil_div(c_in, tile.depth)


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


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    groups: int = call["groups"]
    rows, depth = call.shape("y")[1] // groups, math.prod(call.shape("w")[1:])
    tiles = tiles_by_rule(rows, depth, groups, lambda tile: _blocks(call, tile), device)
    tile = TILES[tiles[0]]
    linear = pads_much(call, tile.depth)
    return {
        "tile": tiles,
        "linear": (int(linear), int(not linear)),
        "splits": splits_by_rule(_blocks(call, tile), steps_of(call, tile, linear)),
    }


def pads_much(call: Call, depth: int) -> bool:
    """Whether slices of so many channels would be so much of padding that taps and channels go in one row instead."""
    c_in = call.shape("w")[1]
    return align(c_in, depth) >= _MOST_PADDING * c_in


def in_slices(call: Call, rows: int, depth: int, linear: bool) -> Packing:
    """Weights for tiles of so many rows, in slices of so many products: [group][tile][taps][channels up to the depth of
    a slice][rows], or with ``linear`` all taps of all channels in one row."""
    c_in, kh, kw = call.shape("w")[1:]
    taps = kh * kw
    inner = Packing(
        call.shape("y")[1] // call["groups"], c_in * taps, rows, c_in * taps, 1, inner_step=depth, groups=call["groups"]
    )
    return inner if linear else dataclasses.replace(inner, inner=c_in, inner_stride=taps, outer=taps, outer_stride=1)


def packing(call: Call, params: Params) -> Packing:
    """How the weights lie."""
    tile = TILES[params["tile"]]
    return in_slices(call, tile.rows, tile.depth, bool(params["linear"]))


def _build(call: Call, device: Device, params: Params) -> Program:
    tile, linear, splits = TILES[params["tile"]], bool(params["linear"]), params["splits"]
    kh, kw = call.shape("w")[2:]
    pack = packing(call, params)
    grid = linear_groups(splits * _blocks(call, tile) * tile.local, tile.local, device)
    target = "y" if splits == 1 else "parts"
    gemm = Dispatch(
        GEMM,
        binds(call, "packed", target),
        grid,
        (tile.local, 1, 1),
        push(call),
        (*constants(call), *tile.sizes, splits, linear, kh, kw),
        tile.shared_bytes,
        steps_of(call, tile, linear) + 1,
    )
    prepack, packed = (pack.dispatch("w", "packed", device),), {"packed": 4 * pack.size}
    if splits == 1:
        return Program((gemm,), prepack, packed, elements=PACKED_WEIGHTS)
    add, parts = sum_parts(call, splits, device)
    return Program((gemm, add), prepack, packed, parts, PACKED_WEIGHTS)


def sum_parts(call: Call, splits: int, device: Device) -> tuple[Dispatch, dict[str, int]]:
    """The launch that sums ``parts`` of all outputs into y, with bias and activation, and the bytes of that scratch."""
    step = sum_splits(call, "parts", splits, per_channel(call, "parts"), call.has("b"), device)
    return step, {"parts": call.outputs["y"].nbytes * splits}


FITS_SMALLEST = invocations(TILES[_SMALLEST].local), shared_bytes(TILES[_SMALLEST].shared_bytes)

IMPLICIT_GEMM = Route(
    "implicit_gemm",
    _build,
    (GEMM, SUM_SPLITS, PACK_TILES),
    why="tiles of a matrix product in shared memory, the input gathered as they need it: each element that is loaded "
    "serves a tile of outputs, without an im2col buffer",
    must=(FLOATS, *FITS_SMALLEST),
    prefer=(ON_GPU,),
    params=_params,
)
