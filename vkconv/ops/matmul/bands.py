"""How many slices IREE cuts the sums of a matrix product into (SetSplitReductionSizes)."""

from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.kernels.gemm import GemmProblem
from vkconv.ops.kernels.split_k import able_slices, has_low_parallelism
from vkconv.ops.kernels.split_rules import matmul_bands


def by_bands(call: Call, device: Device, width: int) -> tuple[int, str]:
    """Slices of k by its bands, and why; no more than the scratch holds."""
    g = GemmProblem.of(call)
    tiles, why = matmul_bands(g.m, g.n, (g.k,), g.batches, has_low_parallelism(device))
    wanted = ceil_div(g.k, tiles[0]) if tiles else 1
    most = scratch_budget(device) // max(4 * call.outputs["y"].size, 1)
    slices = next((s for s in range(min(wanted, most), 1, -1) if s in able_slices(g, width, (s,))), 1)
    return slices, why if slices == wanted else f"{why}; {slices} fit the scratch"


def with_bands(call: Call, device: Device, width: int, slices: tuple[int, ...]) -> tuple[int, ...]:
    """Legal numbers of slices, and that of the bands."""
    return tuple(sorted({*slices, by_bands(call, device, width)[0]}))
