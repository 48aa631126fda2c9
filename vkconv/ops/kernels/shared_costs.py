"""What matrix products by tiles in shared memory take, by times of these tiles."""

from vkconv.core import ceil_div
from vkconv.device import Device, target_of
from vkconv.ops.kernels.gemm import SHARED_TILES, GemmProblem
from vkconv.ops.kernels.tile_costs import TileCosts, Work
from vkconv.policy import Policy

SHARED_COSTS = Policy("matmul.shared_costs", TileCosts)


def shared_work(g: GemmProblem, name: str, nbytes: int) -> Work:
    """What the tile of that name makes of a product that reads and writes so many bytes."""
    tile = SHARED_TILES[name]
    workgroups, k_tiles = g.blocks(tile.rows, tile.columns), ceil_div(g.k, tile.depth)
    return Work(workgroups, k_tiles, g.batches * g.m * g.n, products=tile.products, nbytes=nbytes)


def shared_us(g: GemmProblem, name: str, nbytes: int, device: Device, slices: int = 1) -> float | None:
    """Microseconds of the product by that tile in so many slices, launches included; None where the tile has no
    times."""
    costs = SHARED_COSTS.of(device)
    return costs.us(name, shared_work(g, name, nbytes), slices, target_of(device)) if name in costs.costs else None
