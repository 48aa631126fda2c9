"""Split-K of matrix products: how many slices a device takes by rule, and a matmul in slices of k."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.cost import compute_units, launch_cycles, scaled
from vkconv.device import Device
from vkconv.ops.core.base import first
from vkconv.ops.core.bindings import offset_step
from vkconv.ops.kernels.epilogue import SPLIT_K_SLICES, Epilogue
from vkconv.ops.kernels.gemm import MAX_BATCH_GROUPS, VEC4, GemmProblem, in_one_launch
from vkconv.ops.kernels.gemm_tile import ENOUGH, GemmTile
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Range

_LOW_PARALLELISM_UNITS = Policy("wgrad.low_parallelism_units", int)


def has_low_parallelism(device: Device) -> bool:
    """Whether IREE's bands take a device for one of few compute units."""
    return compute_units(device) <= _LOW_PARALLELISM_UNITS.of(device)


def fills(blocks: int, device: Device) -> bool:
    """Whether so many workgroups keep the device busy."""
    return blocks >= scaled(ENOUGH.of(device).implicit_gemm, device)


def split_k_by_rule(blocks: int, steps: int, device: Device) -> tuple[int, ...]:
    """Split-K factors, the heuristic's pick for so many workgroups of so many k-tiles each first: as many as keep the
    device busy."""
    return _by_rule(blocks, steps, device, SPLIT_K_SLICES, fills(blocks, device))


def slices_by_rule(g: GemmProblem, tile: GemmTile, device: Device) -> tuple[int, ...]:
    """The same of a product by such tiles in shared memory."""
    return first(
        rather_equal(g, VEC4, lambda slices: (tile, by_rule(g, tile, device, slices)))[1], able_slices(g, VEC4)
    )


def by_rule(g: GemmProblem, tile: GemmTile, device: Device, slices: tuple[int, ...]) -> int:
    """The heuristic's pick of these split-K factors for a product by such tiles."""
    blocks, steps = g.blocks(tile.rows, tile.columns), ceil_div(g.k, tile.depth)
    return _by_rule(blocks, steps, device, slices, blocks >= scaled(ENOUGH.of(device).products, device))[0]


def _by_rule(blocks: int, steps: int, device: Device, slices: tuple[int, ...], busy: bool) -> tuple[int, ...]:
    enough, most = ENOUGH.of(device), scaled(ENOUGH.of(device).split_k_most, device)
    few = not busy and steps >= round(enough.launch_k_tiles * launch_cycles(device) / 1000)
    best = max(s for s in slices if s == 1 or (few and s * blocks <= most and s * enough.least_k_tiles <= steps))
    return first(best, slices)


def able_slices(g: GemmProblem, width: int, of: Sequence[int] = SPLIT_K_SLICES) -> tuple[int, ...]:
    """The split-K factors that leave something to each slice. Equal slices are of whole vectors of ``width``, where k
    is whole vectors."""
    room = len(g.batch) < MAX_BATCH_GROUPS
    return tuple(s for s in of if s == 1 or (room and (s - 1) * g.slice_length(s, width) < g.k))


_Tile = TypeVar("_Tile")


def rather_equal(
    g: GemmProblem, width: int, choose: Callable[[tuple[int, ...]], tuple[_Tile, int]]
) -> tuple[_Tile, int]:
    """What ``choose`` takes, a tile and how many slices: of the split-K factors that make equal slices, which are one
    launch, or of all where those leave it less than half as many."""
    able = able_slices(g, width)
    equal = tuple(s for s in able if s * g.slice_length(s, width) == g.k)
    best = choose(equal)
    every = best if equal == able else choose(able)
    return every if every[1] >= 2 * best[1] else best


def launches(
    g: GemmProblem, slices: int, width: int, device: Device, launch: Callable[[GemmProblem], Dispatch]
) -> tuple[Dispatch, ...]:
    """The launch of a product in slices of k, and that of a last slice that is shorter. They bind parts of what they
    write, where a binding may begin there, so that nothing lies between them."""
    each = g.in_slices(slices, width)
    if len(each) == 1:
        return (launch(each[0]),)
    equal, last = each
    begin, nbytes = 4 * last.base[2], 4 * g.m * g.n * g.batches
    if begin % offset_step(device) or g.base[2]:
        return launch(equal), launch(last)
    parts = (equal, Range(0, begin)), (dataclasses.replace(last, base=(*last.base[:2], 0)), Range(begin, nbytes))
    return tuple(dataclasses.replace(launch(part), ranges={"y": bound}) for part, bound in parts)


def in_slices(
    call: Call, device: Device, slices: int, width: int, launch: Callable[[GemmProblem, Epilogue], Dispatch]
) -> Program:
    """The program of a matmul by one launch, which takes the epilogue of the call, or in slices of k, as that many
    batches of all, and the launch that adds them up in a fixed order."""
    g = GemmProblem.of(call)
    if slices == 1:
        return in_one_launch(call, device, lambda e: launch(g, e))
    e, y = Epilogue.of(call, device, "bias"), call.outputs["y"]
    parts = launches(g, slices, width, device, lambda part: launch(part, Epilogue(target="slices")))
    add = e.sum("slices", slices, y.dims, device, axis=len(y.dims) - 1, beta=g.beta)
    made = Program((*parts, add), scratch={"slices": 4 * slices * y.size})
    return e.complete(made, y.dims, device)
