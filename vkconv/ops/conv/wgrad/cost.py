"""Cost model of the gradient: which tile, and how many split-K slices, take the least time on a device."""

import functools
from collections.abc import Callable, Mapping

from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.conv.wgrad.kernels import Gemm, Narrow, Rows, Tile
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import TILES
from vkconv.ops.core.base import first
from vkconv.ops.core.occupancy import compute_units
from vkconv.ops.core.requirements import scratch_budget

# Numbers of split-K slices that are worth a try.
SLICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_LEAST_K_TILES = 8  # of a slice

# CPU drivers: workgroups of a compute unit, and the cost from which a second launch, 0.1 ms, is worth it.
_CPU_WORKGROUPS, _CPU_WORTH = 2, 3e5

# GPUs. Fitted to 520 times of 16 calls by tiles and slices (H200, driver 580.159; the pick takes 1.04 times the best in
# the mean).
_SLICE_ELEMENT = 200  # multiply-adds: an element of a slice stored and read back
_SECOND_LAUNCH = 7000  # cycles
_K_TILE_WAIT = 200  # cycles: the loads of a k-tile
_UNIT_LANES, _SUBGROUP = 128, 32  # multiply-adds of a compute unit in a cycle; lanes of a subgroup
_REGISTERS, _MORE_REGISTERS = 65536, 50  # of a compute unit; of a lane beside its accumulators
_MOST_LANES, _MOST_RESIDENT = 768, 16  # of a compute unit
# Output channels of a group up to which GPUs take the narrow kernel, with two of them to an invocation at most. H200,
# us, 1x512x240x240 by 3x3 in 64 groups: two 170, four over 240, eight 340.
_NARROW_ROWS = 8


def tiles_by_cost(p: WeightGradient, device: Device, slices: int | None = None) -> tuple[str, ...]:
    """Tiles that may take the gradient, the cheapest for so many slices first (None: for as many as cost least)."""
    suits = _SUITS.get(device.kind, _lanes_along_pixels)
    best = cheapest(p, device, slices)[0]
    return first(best, [name for name in _fitting(p, device) if suits(TILES[name])])


@functools.lru_cache(maxsize=256)
def cheapest(p: WeightGradient, device: Device, slices: int | None = None) -> tuple[str, int]:
    """The tile that costs least, and the number of slices: the given one, or that which costs least."""
    return _CHEAPEST.get(device.kind, _cheapest_on_gpu)(p, device, slices)


def most_in_scratch(p: WeightGradient, device: Device) -> int:
    """Slices that the scratch budget holds."""
    return max(1, scratch_budget(device) // (4 * p.size))


def _fitting(p: WeightGradient, device: Device, *kinds: type[Tile]) -> list[str]:
    wanted = {name: tile for name, tile in TILES.items() if not kinds or isinstance(tile, kinds)}
    return [name for name, tile in wanted.items() if tile.fits(device) and tile.takes(p)]


def _small(tile: Tile) -> bool:
    """A CPU driver emulates shared memory slowly, and compiles large tiles for seconds."""
    return isinstance(tile, Rows) or (tile.local < 128 and not (isinstance(tile, Gemm) and tile.rows > 32))


def _lanes_along_pixels(tile: Tile) -> bool:
    """Neighbouring lanes of a GPU want neighbouring pixels."""
    return not isinstance(tile, Rows)


def _cheapest_on_cpu(p: WeightGradient, device: Device, slices: int | None) -> tuple[str, int]:
    """Workgroups run one after the other: as many slices as give each core some."""
    best = min(_fitting(p, device, Rows), key=lambda name: TILES[name].cost(p))
    tile = TILES[best]
    if slices is not None:
        return best, slices
    if tile.cost(p) < _CPU_WORTH:
        return best, 1
    busy = ceil_div(compute_units(device) * _CPU_WORKGROUPS, tile.blocks(p))
    return best, max(1, min(busy, tile.k_tiles(p) // _LEAST_K_TILES))


def _cheapest_on_gpu(p: WeightGradient, device: Device, slices: int | None) -> tuple[str, int]:
    units, costs = compute_units(device), dict[tuple[str, int], float]()
    for name in _fitting(p, device, *((Gemm, Narrow) if p.rows <= _NARROW_ROWS else (Gemm,))):
        tile = TILES[name]
        most = min(SLICES[-1], tile.k_tiles(p) // _LEAST_K_TILES, most_in_scratch(p, device))
        even = (units * deep // tile.blocks(p) for deep in range(1, 2 * _resident(tile, p) + 1))
        counts = sorted(c for c in {*SLICES, *even} if c == 1 or 1 < c <= most) if slices is None else [slices]
        costs |= {(name, count): _cycles(tile, p, units, count) for count in counts}
    return min(costs, key=lambda pick: costs[pick])


# By kind of device, else as a GPU: the tiles that are worth a try, and the rule.
_SUITS: Mapping[str, Callable[[Tile], bool]] = {"cpu": _small}
_CHEAPEST: Mapping[str, Callable[[WeightGradient, Device, int | None], tuple[str, int]]] = {"cpu": _cheapest_on_cpu}


def _resident(tile: Tile, p: WeightGradient) -> int:
    """Workgroups that a compute unit holds at a time, by registers: it has several times the shared memory that a
    workgroup may take."""
    lanes = min(_REGISTERS // (tile.sums(p) + _MORE_REGISTERS), _MOST_LANES)
    return max(1, min(lanes // tile.local, _MOST_RESIDENT))


def _cycles(tile: Tile, p: WeightGradient, units: int, slices: int) -> float:
    """Cycles of the compute unit with the most workgroups: as many at a time as it holds, fewer at the end."""
    workgroups, resident = tile.blocks(p) * slices, _resident(tile, p)
    full, rest = divmod(ceil_div(workgroups, units), resident)

    def at_a_time(count: int) -> float:
        return count + tile.half_busy * _SUBGROUP / tile.local if count else 0.0

    compute = tile.cost(p) / workgroups / _UNIT_LANES * (full * at_a_time(resident) + at_a_time(rest))
    wait = (full + (rest > 0)) * ceil_div(tile.k_tiles(p), slices) * _K_TILE_WAIT
    second_pass = slices * p.size * _SLICE_ELEMENT / units / _UNIT_LANES + _SECOND_LAUNCH if slices > 1 else 0
    return max(compute, wait) + second_pass
