"""How many parts the sum of a call is cut into: the kernel that makes them, the budget of scratch, and the cut of each
route."""

import functools
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import bytes_str, ceil_div
from vkconv.device import Device
from vkconv.ops.conv.wgrad.kernels import Gemm, Kernel, Narrow, Parts, Rows, whole
from vkconv.ops.conv.wgrad.problem import Problem
from vkconv.ops.core.occupancy import compute_units, occupancy_estimate
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.kernels.split_rules import (
    Sum,
    SumTile,
    bands,
    batch_only,
    into,
    occupancy,
)

# Output channels by units of an invocation of the register kernel. lavapipe, ms: 8x16x57x57 to 64 by 3x3 8x6 17.0,
# 24x2 17.7, 16x3 18.3, 16x1 24.4, 32x1 25.7.
_ROWS_BY_UNITS = (
    *((32, 4), (32, 2), (32, 1), (24, 2), (16, 8), (16, 4), (16, 3), (16, 1), (12, 4)),
    *((8, 8), (8, 6), (8, 3), (8, 1), (4, 8), (4, 3), (4, 1), (1, 8), (1, 3), (1, 1)),
)
# At most so many output channels of a group for which GPUs take the kernel of narrow groups: more than two of them to
# an invocation took twice as long (H200, 1x512x240x240 by 3x3 in 64 groups, us: two 170, four over 240, eight 340).
_NARROW = 8
# By number: the parameter ``tile``.
KERNELS: tuple[Kernel, ...] = (
    Gemm(128, 128, 16, 8, 8),
    Gemm(128, 64, 16, 8, 8),
    Gemm(64, 128, 16, 8, 8),
    Gemm(64, 64, 16, 8, 8),
    Gemm(128, 144, 8, 8, 12),
    Gemm(64, 144, 8, 8, 12, 2),
    Gemm(64, 144, 16, 8, 12),
    Gemm(64, 96, 16, 8, 8),
    Gemm(64, 96, 8, 8, 8, 2),
    Gemm(64, 48, 16, 8, 4),
    Gemm(64, 32, 16, 8, 4),
    Gemm(64, 64, 16, 4, 4),
    Gemm(32, 144, 8, 4, 12),
    Gemm(32, 64, 16, 4, 8),
    Gemm(32, 32, 16, 4, 4),
    Gemm(16, 32, 16, 4, 4),
    Gemm(128, 128, 16, 8, 8, 2),
    Gemm(64, 64, 16, 8, 8, 2),
    *(Narrow(rows, pixels, local) for rows in (1, 2) for pixels in (4, 8, 1) for local in (128, 32)),
    *(Rows(rows, units, px) for rows, units in _ROWS_BY_UNITS for px in (8, 7, 4, 1)),
    *(Rows(rows, units, px, across=True) for rows in (8, 4, 1) for units in (1, 3, 5) for px in (8, 4, 1)),
)
# Kinds of device that the bands take for ones of low parallelism.
_LOW_PARALLELISM = frozenset({"cpu", "integrated"})
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# ``auto``. CPUs: workgroups of a compute unit, and the cost from which a second launch, 0.1 ms, is worth it. GPUs,
# fitted to 520 times of 16 calls by kernels and parts (H200, driver 580.159; what it picks takes 1.04 times the best in
# the mean): multiply-adds that storing and reading back an element of a part cost, cycles of a second launch and of
# waiting for the loads of a slice; multiply-adds of a unit in a cycle; registers of a unit, and those that a lane takes
# beside its sums. No part is shorter than so many slices.
_CPU_WORKGROUPS, _CPU_WORTH = 2, 3e5
_PART_ELEMENT, _SECOND_LAUNCH, _SLICE = 200, 7000, 200
_UNIT_LANES, _SUBGROUP = 128, 32
_REGISTERS, _MORE_REGISTERS, _MOST_LANES, _MOST_RESIDENT = 65536, 50, 768, 16
_LEAST_SLICES = 8


def kernels_for(p: Problem, device: Device, parts: int) -> list[int]:
    """Numbers of the kernels that may take the problem, the rule's pick for a sum in so many parts first (0: in as many
    as the rule cuts it into)."""
    fitting = [i for i, kernel in enumerate(KERNELS) if kernel.fits(device) and kernel.takes(p)]
    suits = _SUITS.get(device.kind, _lanes_along_pixels)
    best = least_time(p, device, parts)[0]
    return [best, *(i for i in fitting if i != best and suits(KERNELS[i]))]


def _small(kernel: Kernel) -> bool:
    """A CPU driver emulates shared memory slowly, and compiles large tiles for seconds."""
    return isinstance(kernel, Rows) or (kernel.local < 128 and not (isinstance(kernel, Gemm) and kernel.rows > 32))


def _lanes_along_pixels(kernel: Kernel) -> bool:
    """Neighbouring lanes of a GPU want neighbouring pixels."""
    return not isinstance(kernel, Rows)


@functools.lru_cache(maxsize=256)
def least_time(p: Problem, device: Device, parts: int) -> tuple[int, int]:
    """The kernel that is estimated to take the least time for so many parts, or with 0, how many parts do as well."""
    return _LEAST_TIME.get(device.kind, _least_time_on_gpu)(p, device, parts)


def _least_time_on_cpu(p: Problem, device: Device, parts: int) -> tuple[int, int]:
    """Workgroups run one after the other: only so many that each core has some."""
    best = min(_of_kinds(p, device, Rows), key=lambda i: KERNELS[i].cost(p))
    kernel = KERNELS[best]
    busy = ceil_div(compute_units(device) * _CPU_WORKGROUPS, kernel.blocks(p))
    worth = kernel.cost(p) >= _CPU_WORTH
    return best, parts or (max(1, min(busy, kernel.slices(p) // _LEAST_SLICES)) if worth else 1)


def _least_time_on_gpu(p: Problem, device: Device, parts: int) -> tuple[int, int]:
    least = (float("inf"), 0, 1)
    units = compute_units(device)
    for i in _of_kinds(p, device, *((Gemm, Narrow) if p.rows <= _NARROW else (Gemm,))):
        kernel = KERNELS[i]
        most = min(SPLITS[-1], kernel.slices(p) // _LEAST_SLICES, most_in_scratch(p, device))
        even = (units * deep // kernel.blocks(p) for deep in range(1, 2 * _resident(kernel, p) + 1))
        counts = (parts,) if parts else [c for c in {*SPLITS, *even} if c == 1 or 1 < c <= most]
        least = min(least, *((_cycles(kernel, p, units, count), i, count) for count in counts))
    return least[1:]


def _of_kinds(p: Problem, device: Device, *kinds: type[Kernel]) -> list[int]:
    return [i for i, k in enumerate(KERNELS) if isinstance(k, kinds) and k.fits(device) and k.takes(p)]


# By kind of device, GPUs otherwise: the kernels that are worth a try, and the rule.
_SUITS: Mapping[str, Callable[[Kernel], bool]] = {"cpu": _small}
_LEAST_TIME: Mapping[str, Callable[[Problem, Device, int], tuple[int, int]]] = {"cpu": _least_time_on_cpu}


def _resident(kernel: Kernel, p: Problem) -> int:
    """An estimate of the workgroups that a unit of a GPU holds at a time, by registers: it has several times the shared
    memory that a workgroup may take."""
    lanes = min(_REGISTERS // (kernel.sums(p) + _MORE_REGISTERS), _MOST_LANES)
    return max(1, min(lanes // kernel.local, _MOST_RESIDENT))


def _cycles(kernel: Kernel, p: Problem, units: int, parts: int) -> float:
    """An estimate of the time on a GPU: that of the unit that has most workgroups, as many of them at a time as it
    holds, and fewer at the end."""
    workgroups, resident = kernel.blocks(p) * parts, _resident(kernel, p)
    full, rest = divmod(ceil_div(workgroups, units), resident)

    def at_a_time(count: int) -> float:
        return count + kernel.half_busy * _SUBGROUP / kernel.local if count else 0.0

    compute = kernel.cost(p) / workgroups / _UNIT_LANES * (full * at_a_time(resident) + at_a_time(rest))
    wait = (full + (rest > 0)) * ceil_div(kernel.slices(p), parts) * _SLICE
    added = parts * p.size * _PART_ELEMENT / units / _UNIT_LANES + _SECOND_LAUNCH if parts > 1 else 0
    return max(compute, wait) + added


def _reduction(p: Problem) -> SumTile:
    return p.reduction if p.deep else (p.n, *p.out[1:])


def _boxes(p: Problem, tile: SumTile) -> Parts:
    """Boxes of a tile of as many dimensions as `_reduction` has, or of the outermost alone."""
    n, *rest = tile
    d, h, w = (*p.out[: 3 - len(rest)], *rest)
    return Parts((max(n, 1), max(d, 1), max(h, 1), max(w, 1)))


def bands_of(p: Problem, device: Device) -> tuple[SumTile | None, str]:
    """The tile of policy bands, and why."""
    s = Sum(p.c_out * p.channels, p.size, _reduction(p))
    return bands(s, device.kind in _LOW_PARALLELISM, ragged=True) if p.pixels else (None, "nothing to sum")


def most_in_scratch(p: Problem, device: Device) -> int:
    """Partial results that the budget of scratch holds."""
    return max(1, scratch_budget(device) // (4 * p.size))


@functools.lru_cache(maxsize=256)
def _cuts(p: Problem, device: Device, policy: str, split: int) -> tuple[int, str]:
    """How many equal parts two_stage and one_stage cut the sum into, and why."""
    if split:
        return split, asked_for(split)
    best, parts = least_time(p, device, 0)
    kernel = KERNELS[best]
    grid, slices = kernel.blocks(p), kernel.slices(p)
    if policy == "occupancy":
        capacity = occupancy_estimate(device, kernel.local, kernel.shared_bytes)
        parts, why = occupancy(grid, slices, capacity)
    else:
        why = f"{grid} workgroups of {slices} slices, {compute_units(device)} compute units to keep busy"
    if device.max_loop_iterations is not None:
        least = ceil_div(kernel.iterations(p, whole(p)), device.max_loop_iterations - 64)
        if least > parts:
            parts, why = least, "the driver ends longer loops"
    most = most_in_scratch(p, device)
    return (parts, why) if parts <= most else (most, f"{why}; {most} fit the scratch")


def asked_for(parts: int) -> str:
    """Why a sum is cut into parts whose number is not the rule's: boxes may be fewer."""
    return f"{parts} asked for"


def all_of_it(call: Call, device: Device, splits: int) -> tuple[Parts, str]:
    """Not cut."""
    p, split = Problem.of(call), int(call["split"])
    if split > most_in_scratch(p, device):
        most = f"{bytes_str(4 * p.size * split)} of scratch, and {bytes_str(scratch_budget(device))} is the most"
        return whole(p), f"the whole sum: the {asked_for(split)} take {most}"
    return whole(p), f"the whole sum, {asked_for(split)}" if split > 1 else "the whole sum"


def equal(call: Call, device: Device, splits: int) -> tuple[Parts, str]:
    """Equal parts of all images and pixels in a row, wherever an image ends."""
    p = Problem.of(call)
    parts, why = _cuts(p, device, call["policy"], call["split"])
    return whole(p, splits), why if splits == parts else asked_for(splits)


def by_images(call: Call, device: Device, splits: int) -> tuple[Parts, str]:
    """Parts of some of the images each."""
    p = Problem.of(call)
    tile = (max(1, ceil_div(p.n, splits)),)
    by_rule = not call["split"] and splits == default_splits(by_images, call, device)
    return _boxes(p, (*tile, *_reduction(p)[1:])), _batch_only(p)[1] if by_rule else asked_for(splits)


def _batch_only(p: Problem) -> tuple[SumTile | None, str]:
    """The first rule, and where it would not cut at all, one image to a part."""
    tile, why = batch_only(p.c_out, p.channels, p.extent[0 if p.deep else 1 :], p.n)
    return tile or (ceil_div(p.n, 512),), why


def by_bands(call: Call, device: Device, splits: int) -> tuple[Parts, str]:
    """Boxes of several dimensions."""
    p = Problem.of(call)
    tile, why = bands_of(p, device)
    parts = _boxes(p, tile) if tile else whole(p)
    if call["split"] or splits != parts.count(p):
        return _boxes(p, into(_reduction(p), splits)), asked_for(splits)
    return parts, why


Cut = Callable[[Call, Device, int], tuple[Parts, str]]


def default_splits(cut: Cut, call: Call, device: Device) -> int:
    """The parameter ``splits`` of a route that cuts so, where it is not set."""
    p = Problem.of(call)
    if cut is all_of_it:
        return 1
    if call["split"]:
        return int(call["split"])
    if cut is equal:
        return _cuts(p, device, call["policy"], 0)[0]
    if cut is by_images:
        tile = _batch_only(p)[0]
        return ceil_div(p.n, tile[0]) if tile and p.n else 1
    tile = bands_of(p, device)[0]
    return _boxes(p, tile).count(p) if tile else 1


def default_tiles(cut: Cut, call: Call, device: Device) -> list[int]:
    """The parameter ``tile`` of a route that cuts so, its default first."""
    p, splits = Problem.of(call), default_splits(cut, call, device)
    by_rule = cut is equal and not call["split"]
    return kernels_for(p, device, 0 if by_rule else cut(call, device, splits)[0].count(p))
