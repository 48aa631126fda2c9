"""Split-K of matrix products on lanes: how many slices a device takes by rule, and a matmul in equal slices of k."""

from collections.abc import Callable

from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.cost import launch_cycles, scaled
from vkconv.device import Device
from vkconv.ops.core.base import first
from vkconv.ops.kernels.epilogue import SPLIT_K_SLICES, Epilogue
from vkconv.ops.kernels.gemm import MAX_BATCH_GROUPS, VEC4, GemmProblem, in_one_launch
from vkconv.ops.kernels.gemm_tile import ENOUGH, GemmTile
from vkconv.program import Dispatch, Program


def fills(blocks: int, device: Device) -> bool:
    """Whether so many workgroups keep the device busy."""
    return blocks >= scaled(ENOUGH.of(device).implicit_gemm, device)


def split_k_by_rule(blocks: int, steps: int, device: Device) -> tuple[int, ...]:
    """Split-K factors, the heuristic's pick for so many workgroups of so many k-tiles each first: as many as keep the
    device busy."""
    return _by_rule(blocks, steps, device, SPLIT_K_SLICES, fills(blocks, device))


def slices_by_rule(g: GemmProblem, tile: GemmTile, device: Device) -> tuple[int, ...]:
    """The same of a product by such tiles in shared memory, of those that make equal slices."""
    blocks, steps = g.blocks(tile.rows, tile.columns), ceil_div(g.k, tile.depth)
    busy = blocks >= scaled(ENOUGH.of(device).products, device)
    return _by_rule(blocks, steps, device, equal_slices(g, VEC4), busy)


def _by_rule(blocks: int, steps: int, device: Device, slices: tuple[int, ...], busy: bool) -> tuple[int, ...]:
    enough, most = ENOUGH.of(device), scaled(ENOUGH.of(device).split_k_most, device)
    few = not busy and steps >= round(enough.launch_k_tiles * launch_cycles(device) / 1000)
    best = max(s for s in slices if s == 1 or (few and s * blocks <= most and s * enough.least_k_tiles <= steps))
    return first(best, slices)


def equal_slices(g: GemmProblem, width: int) -> tuple[int, ...]:
    """The split-K factors that make equal slices, of whole vectors of ``width`` where k is whole vectors."""
    width = width if g.k % width == 0 else 1
    room = len(g.batch) < MAX_BATCH_GROUPS
    return tuple(s for s in SPLIT_K_SLICES if s == 1 or (room and g.k and g.k % (s * width) == 0))


def in_slices(call: Call, device: Device, slices: int, launch: Callable[[GemmProblem, Epilogue], Dispatch]) -> Program:
    """The program of a matmul by one launch, which takes the epilogue of the call, or in equal slices of k, as that
    many batches of all, and the launch that adds them up in a fixed order."""
    g = GemmProblem.of(call)
    if slices == 1:
        return in_one_launch(call, device, lambda e: launch(g, e))
    e, y = Epilogue.of(call, device, "bias"), call.outputs["y"]
    part = launch(g.in_slices(slices), Epilogue(target="slices"))
    add = e.sum("slices", slices, y.dims, device, axis=len(y.dims) - 1, beta=g.beta)
    made = Program((part, add), scratch={"slices": 4 * slices * y.size})
    return e.complete(made, y.dims, device)
