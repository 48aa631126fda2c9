"""The route of matmul by cooperative matrices, for calls of 16-bit floats."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.base import first
from vkconv.ops.core.requirements import INT32, ON_GPU, loop_iterations
from vkconv.ops.kernels.coopmat import EIGHT, NEEDS, TILES, estimated_us, split_by_rule
from vkconv.ops.kernels.coopmat_gemm import PRODUCT, PRODUCT_TO_F32, cooperative_params, cooperative_product, product_of
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.gemm import GemmProblem
from vkconv.ops.kernels.split_k import able_slices, in_slices, rather_equal
from vkconv.ops.matmul.bands import with_bands
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route


def _params(call: Call, device: Device) -> Mapping[str, tuple[Any, ...]]:
    g = GemmProblem.of(call)
    tiles = cooperative_params(g, device)["tile"]
    tile, count = rather_equal(g, EIGHT, lambda slices: split_by_rule(product_of(g), slices, device, tiles))
    legal = with_bands(call, device, EIGHT, able_slices(g, EIGHT))
    return {"tile": first(tile, tiles), "split_k": first(count, legal)}


def _build(call: Call, device: Device, params: Params) -> Program:
    tile, slices = TILES[params["tile"]], params["split_k"]
    shader = PRODUCT if slices == 1 else PRODUCT_TO_F32

    def launch(g: GemmProblem, e: Epilogue) -> Dispatch:
        return cooperative_product(g, ("a", "b"), e, tile, device, shader)

    return in_slices(call, device, slices, EIGHT, launch)


@dataclasses.dataclass(frozen=True, slots=True)
class Least:
    """Rows and columns, and products of a sum, from which on matrix units are used."""

    side: int
    depth: int


_LEAST = Policy("matmul.cooperative_least", Least)
_MOST_DEPTH = max(tile.depth for tile in TILES.values())
FILLS_MATRICES = Requirement(
    "enough rows, columns and products of a sum for tiles of matrices",
    lambda call, device: _fills(GemmProblem.of(call), _LEAST.of(device)),
    lambda call, device: (
        f"{GemmProblem.of(call)}, at least {_LEAST.of(device).side} rows and columns, sums of {_LEAST.of(device).depth}"
    ),
)


def _fills(g: GemmProblem, least: Least) -> bool:
    return g.least_side >= least.side and g.k >= least.depth


COOPERATIVE = Route(
    "cooperative",
    _build,
    finishing(PRODUCT, PRODUCT_TO_F32),
    why="the GPU's matrix units multiply 16-bit floats many times as fast as its lanes do f32, and sum in f32",
    must=(
        *NEEDS,
        INT32,
        loop_iterations(lambda call, device: GemmProblem.of(call).k + _MOST_DEPTH),
    ),
    prefer=(ON_GPU, FILLS_MATRICES),
    source="llama.cpp#10597",
    params=_params,
    estimated_us=lambda call, device, params: estimated_us(
        product_of(GemmProblem.of(call)), params["tile"], params["split_k"], device
    ),
)
