"""Cost model of the gradient: which tile, and how many split-K slices, take the least time on a device."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from vkconv.core import ceil_div
from vkconv.cost import Waves, compute_units, launch_us, spills
from vkconv.device import Device, target_of
from vkconv.ops.conv.wgrad import images
from vkconv.ops.conv.wgrad.kernels import Gemm, Rows, Skinny, Tile
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import FEWER_REGISTERS, GEMM_TILES, TILES
from vkconv.ops.core.base import first
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.kernels.gemm_tile import Compilers, instead_of
from vkconv.ops.kernels.tile_costs import TileCosts, Work
from vkconv.policy import Policy
from vkconv.shaders.wgrad import BACKWARD_WEIGHT_GEMM

# Numbers of split-K slices that are worth a try, whatever the device.
SLICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_LEAST_REGISTERS = 28  # of an invocation, beside its accumulators: operands and addresses, before occupancy is counted


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """What tiles cost ``by`` cores, one workgroup after the other on each: workgroups that each core should have, and
    the cost from which on a second launch is worth it. ``by`` compute units that hold several: multiply-adds of an
    element of a slice, stored and read back, and of one of `Tile.reloads`; the second pass, in launches; cycles of a
    k-tile's loads, and of those whose places are computed; registers of a lane beside its accumulators; the share of a
    unit's lanes that it can use, and workgroups at most; output channels of a group up to which the skinny kernel is
    taken; the first launch as well, in launches; subgroups of so many that wait for what they load as keep the unit at
    half its rate, and those of the skinny kernel. Of both, the least k-tiles of a slice. Tiles that are legal ``by``
    cores: of fewer lanes than ``few_lanes``, of the GEMM kernel of at most ``gemm_rows``."""

    by: Literal["cores", "units"]
    least_k_tiles: int = 8
    workgroups: int = 0
    worth_splitting: float = 0.0
    slice_element: float = 0.0
    reload: float = 0.0
    second_pass_launches: float = 0.0
    k_tile_wait: float = 0.0
    gathered_wait: float = 0.0
    more_registers: int = 0
    share_of_lanes: float = 1.0
    most_resident: int = 1
    skinny_rows: int = 0
    first_launches: float = 0.0
    half_busy: float = 1.0
    skinny_half_busy: float = 1.0
    few_lanes: int = 0
    gemm_rows: int = 0


_COSTS = Policy("wgrad.cost", Costs)
Timed = Policy[TileCosts]
"""Times of tiles, on devices that have some."""
GEMM_COSTS: Timed = Policy("wgrad.gemm_costs", TileCosts)
GATHERED = "gathered"
"""The form of the GEMM kernel whose lanes compute where each element lies."""


def tiles_by_cost(
    p: WeightGradient, device: Device, slices: int | None = None, timed: Timed = GEMM_COSTS
) -> tuple[str, ...]:
    """Tiles that may take the gradient, the cheapest for so many slices first (None: for as many as cost least)."""
    costs = _COSTS.of(device)
    best = cheapest(p, device, slices, timed)[0]
    return first(best, [name for name in _fitting(p, device) if _SUITS[costs.by](TILES[name], costs)])


def cheapest(
    p: WeightGradient, device: Device, slices: int | None = None, timed: Timed = GEMM_COSTS
) -> tuple[str, int]:
    """The tile that costs least, and the number of slices: the given one, or that which costs least."""
    return _cheapest(p, device, slices, timed)


@functools.lru_cache(maxsize=256)
def _cheapest(p: WeightGradient, device: Device, slices: int | None, timed: Timed) -> tuple[str, int]:
    return _CHEAPEST[_COSTS.of(device).by](p, device, slices, timed)


def slice_counts(workgroups: int, depths: Iterable[int], most: int, device: Device) -> list[int]:
    """Numbers of slices that may be worth it, up to ``most``, where each makes so many workgroups: those of a table,
    and those that give each compute unit as many workgroups as one of the ``depths``."""
    even = (compute_units(device) * deep // workgroups for deep in depths)
    return sorted(count for count in {*SLICES, *even} if 1 <= count <= most)


def most_in_scratch(p: WeightGradient, device: Device) -> int:
    """Slices that the scratch budget holds; each launch over some of the images may round them up by one."""
    return max(1, scratch_budget(device) // (4 * p.size) - images.parts(p, device) + 1)


@functools.lru_cache(maxsize=256)
def _fitting(p: WeightGradient, device: Device, *kinds: type[Tile]) -> tuple[str, ...]:
    wanted = {name: tile for name, tile in TILES.items() if not kinds or isinstance(tile, kinds)}
    return tuple(name for name, tile in wanted.items() if tile.fits(device) and tile.takes(p))


def _small(tile: Tile, costs: Costs) -> bool:
    """A CPU driver emulates shared memory slowly, and compiles large tiles for seconds."""
    small = tile.local < costs.few_lanes and not (isinstance(tile, Gemm) and tile.rows > costs.gemm_rows)
    return isinstance(tile, Rows) or small


def _lanes_along_pixels(tile: Tile, costs: Costs) -> bool:
    """Neighbouring lanes of a GPU want neighbouring pixels."""
    return not isinstance(tile, Rows)


def _cheapest_on_cores(p: WeightGradient, device: Device, slices: int | None, timed: Timed) -> tuple[str, int]:
    """Workgroups run one after the other: as many slices as give each core some."""
    best = min(_fitting(p, device, Rows), key=lambda name: TILES[name].cost(p, device))
    tile = TILES[best]
    if slices is not None:
        return best, slices
    if tile.cost(p, device) < _COSTS.of(device).worth_splitting:
        return best, 1
    busy = ceil_div(compute_units(device) * _COSTS.of(device).workgroups, tile.blocks(p))
    return best, max(1, min(busy, tile.k_tiles(p) // _COSTS.of(device).least_k_tiles))


def _cheapest_on_units(p: WeightGradient, device: Device, slices: int | None, timed: Timed) -> tuple[str, int]:
    costs = dict[tuple[str, int], float]()
    known = timed.of(device)
    most_timed = known.most_slices if known.costs else SLICES[-1]
    names = _fitting(p, device, *((Gemm, Skinny) if p.rows <= _COSTS.of(device).skinny_rows else (Gemm,)))
    fitting = _in_registers(names, p, device)
    for name in fitting or [min(names, key=lambda name: _least_registers(TILES[name], p))]:
        tile = TILES[name]
        most = min(most_timed, tile.k_tiles(p) // _COSTS.of(device).least_k_tiles, most_in_scratch(p, device))
        depths = range(1, 2 * _resident(tile, p, device) + 1)
        counts = slice_counts(tile.blocks(p), depths, max(1, most), device) if slices is None else [slices]
        us = _us(name, p, device, timed)
        costs |= {(name, count): us(count) for count in counts}
    # Where k-tiles are waited for, tiles cost the same: the one that computes least is taken.
    least = min(costs.values())
    return min((pick for pick in costs if costs[pick] == least), key=lambda pick: TILES[pick[0]].cost(p, device))


# The tiles that are worth a try, and the rule.
_SUITS: Mapping[str, Callable[[Tile, Costs], bool]] = {"cores": _small, "units": _lanes_along_pixels}
_CHEAPEST: Mapping[str, Callable[[WeightGradient, Device, int | None, Timed], tuple[str, int]]] = {
    "cores": _cheapest_on_cores,
    "units": _cheapest_on_units,
}


def _in_registers(names: Sequence[str], p: WeightGradient, device: Device) -> list[str]:
    """Those of the tiles that do not spill, and for each that does the first of them that stands for it."""
    compilers, found = Compilers(BACKWARD_WEIGHT_GEMM, device, p.element), dict[str, None]()
    fewer = {name: FEWER_REGISTERS[name] for name in names if name in FEWER_REGISTERS}
    for name in names:
        tile = TILES[name]
        if name in fewer:
            continue
        if isinstance(tile, Gemm):
            several = {name: tile, **instead_of(tile, fewer)}
            found |= dict.fromkeys([n for n, other in several.items() if compilers.keep(other)][:1])
        elif not spills(_least_registers(tile, p), device):
            found[name] = None
    return list(found)


def _least_registers(tile: Tile, p: WeightGradient) -> int:
    """An estimate of the registers without which an invocation spills."""
    return tile.registers if isinstance(tile, Gemm) else tile.sums(p) + _LEAST_REGISTERS


def gemm_work(p: WeightGradient, name: str) -> Work:
    """What a tile of the GEMM kernel makes of the gradient."""
    tile = GEMM_TILES[name]
    nbytes = 4 * (p.n * (p.c_in * math.prod(p.extent) + p.c_out * math.prod(p.out)) + p.size)
    return Work(tile.blocks(p), tile.k_tiles(p), p.size, GATHERED if tile.gathers(p) else "", tile.products, nbytes)


def _us(name: str, p: WeightGradient, device: Device, timed: Timed) -> Callable[[int], float]:
    """Microseconds by a tile and the number of slices, launches included."""
    costs, target = timed.of(device), target_of(device)
    if name in costs.costs:
        times = costs.times(name, gemm_work(p, name), target)
        return lambda slices: times(slices)[0]
    first, us = _COSTS.of(device).first_launches * target.value("launch_us"), by_slices(TILES[name], p, device)
    return lambda slices: first + us(slices)


def estimated_us(name: str, p: WeightGradient, device: Device, slices: int, timed: Timed = GEMM_COSTS) -> float | None:
    """What its cost model says of a tile and so many slices, microseconds, launches included; None of devices whose
    costs are not in microseconds."""
    return _us(name, p, device, timed)(slices) if _COSTS.of(device).by == "units" else None


def registers(tile: Tile, p: WeightGradient, device: Device) -> int:
    """An estimate of the registers of an invocation."""
    return tile.sums(p) + _COSTS.of(device).more_registers


def _resident(tile: Tile, p: WeightGradient, device: Device) -> int:
    """Workgroups that a compute unit holds at a time, by registers: it has several times the shared memory that a
    workgroup may take."""
    target, costs = target_of(device), _COSTS.of(device)
    most = target.value("lanes_per_unit") * costs.share_of_lanes
    lanes = min(target.value("registers_per_unit") // registers(tile, p, device), most)
    return max(1, int(min(lanes // tile.local, target.value("workgroups_per_unit"), costs.most_resident)))


def by_slices(tile: Tile, p: WeightGradient, device: Device, costs: Costs | None = None) -> Callable[[int], float]:
    """Microseconds by a tile and the number of slices, beyond those of any launch, by the device's costs or others."""
    target, costs = target_of(device), costs or _COSTS.of(device)
    fma, blocks, k_tiles = target.value("fma_per_unit"), tile.blocks(p), tile.k_tiles(p)
    cycles, resident = tile.cost(p, device) + costs.reload * tile.reloads(p), _resident(tile, p, device)
    idle = (costs.skinny_half_busy if isinstance(tile, Skinny) else costs.half_busy) * device.subgroup_size / tile.local
    wait = costs.gathered_wait if tile.gathers(p) else costs.k_tile_wait

    def us(slices: int) -> float:
        workgroups, of_slice = blocks * slices, ceil_div(k_tiles, slices)
        taken = launch_us(Waves(cycles / workgroups / fma, resident, idle, wait), workgroups, of_slice, target)
        if slices == 1:
            return taken
        second = slices * p.size * costs.slice_element / target.compute_units / fma / target.value("clock_mhz")
        return taken + second + costs.second_pass_launches * target.value("launch_us")

    return us
