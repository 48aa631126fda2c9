"""Split-K: how many slices a long sum is cut into, by the published rules, as pure functions.

``bands`` picks a tile for each dimension that is summed over, by bands of the output's size: IREE's
SetSplitReductionSizes (iree#22275, #22491 and what followed; the thresholds are theirs, measured on AMD GPUs).
``occupancy`` picks a number of slices that fills the device: composable_kernel's split-K (split_k_utils.hpp).
"""

import dataclasses
import math
from collections.abc import Sequence

from vkconv.core import ceil_div

POLICIES = ("auto", "bands", "occupancy")

# The size of a slice along each dimension that is summed over.
SumTile = tuple[int, ...]
_LARGEST_TILE = 32768
_ARG_SLICE = 1024
# composable_kernel#3656: more slices cost accuracy where they are added in a narrow type.
MOST_SLICES = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """What the rules for convolutions look at. ``parallel`` is output channels times input channels of a gradient by
    the weights, or times the pixels of an image where the batch comes first (``batch_first``); ``outputs`` the size of
    the result, ``reduction`` the dimensions summed over, from the outermost."""

    parallel: int
    outputs: int
    reduction: SumTile
    batch_first: bool = False

    @property
    def length(self) -> int:
        return math.prod(self.reduction)


def bands(s: Sum, low: bool = False, ragged: bool = False) -> tuple[SumTile | None, str]:
    """The tile of each dimension and why, or None and why it is not split; ``low`` is for devices of low parallelism.

    Upstream takes factors of a dimension only, so that a prime one stays whole: with ``ragged`` a tile need not
    divide it.
    """
    length = s.length
    if s.parallel >= 640000:
        return None, f"{s.parallel} outputs side by side are enough (640000)"
    ratio = int(length / math.sqrt(max(s.parallel, 1)))  # upstream's is an integer
    if ratio <= 64 and length < 8192:
        return None, f"a sum of {length} is short: {ratio} times the side of {s.parallel} outputs (64)"
    if s.outputs >= 2 * 1024**2 and length < 50000:
        return None, f"a sum of {length} is short for {s.outputs} outputs (50000)"
    first = s.reduction[-1 if s.batch_first else 0]
    most = _most_slices(s.outputs, length, first, low)
    return _walk(s.reduction, most, inner_first=s.batch_first, ragged=ragged, why=f"{s.outputs} outputs")


def _most_slices(outputs: int, length: int, first: int, low: bool) -> int:
    if outputs < 32**2:
        return 2048
    if outputs < 128**2:
        return 128
    if outputs < 256**2:
        if length >= 300000:
            return 64
        bounds = ((50000, 8, 16), (200000, 16, 32), (300000, 16, 64))
        return next(few if low else many for bound, few, many in bounds if length < bound)
    if outputs < 512**2:
        return 64 if length >= 800000 else 32 if low and length >= 200000 else 16
    if outputs >= 1024**2 and length >= 200000:
        return 16
    return min(8, first)


def batch_only(c_out: int, c_in: int, extent: Sequence[int], images: int) -> tuple[SumTile | None, str]:
    """The first form of the rule (iree#22275): the tile of the batch alone, at most 512 slices."""
    refused = _not_split(c_out, c_in, extent, images)
    if refused:
        return None, refused
    return (ceil_div(images, 512),), f"{images} images, at most 512 slices"


def _not_split(c_out: int, c_in: int, extent: Sequence[int], images: int) -> str:
    if c_out >= 512 and c_in >= 512:
        return f"{c_out} x {c_in} channels are enough (512 x 512)"
    if min(extent) < 32 and c_out > 128 and c_in > 128:
        return f"{c_out} x {c_in} channels (128 x 128) and a side of {min(extent)} (32) are not worth it"
    if images == 1:
        return "one image"
    return ""


def matmul_bands(m: int, n: int, reduction: SumTile, batches: int = 1, low: bool = False) -> tuple[SumTile | None, str]:
    """The rule for matrix products, of (m, k) by (k, n)."""
    k, outputs = math.prod(reduction), m * n * batches
    if outputs > 2048 * 4096:
        return None, f"{outputs} outputs are enough ({2048 * 4096})"
    ratio = k / math.sqrt(m * n) / batches
    if k < 18000 and ratio < 48:
        return None, f"a sum of {k} is short: {ratio:.0f} times the side of {m} x {n} (48)"
    if 1024**2 <= outputs < 1500 * 1024 and k < 200000:
        return None, f"a sum of {k} is short for {outputs} outputs (200000)"
    if outputs <= 16**2 or k > 10**7:
        most = 2048
    elif outputs <= 64**2:
        most = 128
    elif outputs <= 128**2:
        most = 128 if k > 10**6 else 8 if low and k < 50000 else 64
    elif k > 10**6:
        most = 8 if low else 128
    elif outputs <= 256**2:
        most = 8 if low and k < 150000 else 32
    elif outputs <= 512**2 or (outputs <= 900**2 and k >= 10**5):
        most = 16
    else:
        most = min(8, reduction[0])
    return _walk(reduction, most, why=f"{outputs} outputs")


def axes_bands(reduction: SumTile) -> tuple[SumTile | None, str]:
    """The rule for sums over axes: slices of about the square root, the inner dimensions first."""
    total = math.prod(reduction)
    if total < 1024:
        return None, f"a sum of {total} is short (1024)"
    left = target = min(1024, max(4, math.isqrt(total - 1) + 1))
    tiles = []
    for extent in reversed(reduction):
        tile = _factor(extent, left) or extent  # a large one without a factor stays whole
        tiles.append(tile)
        left = ceil_div(left, tile)
    if tuple(reversed(tiles)) == reduction:
        return None, f"no factor of {' x '.join(map(str, reduction))} from {target} to {_LARGEST_TILE}"
    return tuple(reversed(tiles)), f"a sum of {total}, slices of {target}"


def arg_bands(extent: int, outermost: bool) -> tuple[int | None, str]:
    """The rule for the place of an extreme along a dimension (iree#22154, #22466): the slice of it. Along the outermost
    one that is the slice of a sum; else the first factor from 1024 on."""
    if outermost:
        tiles, why = axes_bands((extent,))
        return (tiles[0] if tiles else None), why
    if extent < _ARG_SLICE:
        return None, f"an axis of {extent} is short ({_ARG_SLICE})"
    tile = _factor(extent, _ARG_SLICE)
    if tile in (None, extent):
        return None, f"no factor of {extent} from {_ARG_SLICE} to {_LARGEST_TILE}"
    return tile, f"an axis of {extent}, slices of at least {_ARG_SLICE}"


def _walk(
    reduction: SumTile, most: int, *, inner_first: bool = False, ragged: bool = False, why: str
) -> tuple[SumTile | None, str]:
    """Tiles that make about ``most`` slices: one dimension after the other is cut to single elements while slices are
    left, and the walk ends with the first whose tile is larger, since what lies further in would be torn apart."""
    tiles, left = list(reduction), most
    order = range(len(reduction))
    for i in reversed(order) if inner_first else order:
        least = ceil_div(reduction[i], max(left, 1))
        tile = _factor(reduction[i], least)
        if ragged and (tile is None or tile >= 2 * least):
            tile = least
        if tile is None:
            return None, f"{reduction[i]} has no factor from {least} to {_LARGEST_TILE}"
        tiles[i] = tile
        left //= max(ceil_div(reduction[i], max(tile, 1)), 1)
        if tile > 1:
            break
    if tiles == list(reduction):
        return None, f"{why}: at most {most} slices leave the sum whole"
    return tuple(tiles), f"{why}: at most {most} slices"


def into(reduction: SumTile, slices: int) -> SumTile:
    """Tiles for about as many slices as are asked for, from the outermost dimension on."""
    return _walk(reduction, slices, ragged=True, why="")[0] or reduction


def _factor(extent: int, least: int) -> int | None:
    """The smallest factor of ``extent`` that is not below ``least``; None where a large extent has none to be used."""
    if extent <= _LARGEST_TILE:
        return next((f for f in range(max(least, 1), extent + 1) if extent % f == 0), extent)
    return next((f for f in range(max(least, 1), _LARGEST_TILE + 1) if extent % f == 0), None)


def occupancy(grid: int, k_tiles: int, capacity: int, most: int = MOST_SLICES) -> tuple[int, str]:
    """Slices of a sum of ``k_tiles`` so that ``grid`` workgroups of each slice fill ``capacity`` of them."""
    slices = max(1, min(capacity // max(grid, 1), k_tiles, most))
    return slices, f"{grid} workgroups, an estimated capacity of {capacity}, {k_tiles} k-tiles, at most {most} slices"
