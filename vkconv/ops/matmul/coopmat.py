"""The route of matmul by cooperative matrices, for calls of 16-bit floats."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.base import first
from vkconv.ops.core.requirements import INT32, ON_GPU, loop_iterations
from vkconv.ops.kernels.coopmat import EIGHT, NEEDS, TILES, split_by_rule
from vkconv.ops.kernels.coopmat_gemm import PRODUCT, PRODUCT_TO_F32, cooperative_params, cooperative_product
from vkconv.ops.kernels.epilogue import SPLITS, SUM_SPLITS, sum_splits
from vkconv.ops.kernels.gemm import MAX_BATCH_GROUPS, Epilogue, GemmProblem, epilogue_of, operand_buffers
from vkconv.program import Program
from vkconv.route import Params, Requirement, Route


def _splits(g: GemmProblem) -> tuple[int, ...]:
    """The split-K factors that make equal slices of whole vectors where k is whole vectors."""
    width = EIGHT if g.k % EIGHT == 0 else 1
    room = len(g.batch) < MAX_BATCH_GROUPS
    return tuple(s for s in SPLITS if s == 1 or (room and g.k and g.k % (s * width) == 0))


def _split_k(g: GemmProblem, splits: int) -> GemmProblem:
    """The products of equal slices of k, as that many batches of all."""
    k = g.k // splits
    return dataclasses.replace(g, k=k, batch=((splits, k * g.a[1], k * g.b[0]), *g.batch))


def _params(call: Call, device: Device) -> Mapping[str, tuple[Any, ...]]:
    g = GemmProblem.of(call)
    tiles, splits = cooperative_params(g, device)["tile"], _splits(g)
    tile, count = split_by_rule(splits, g.m, g.n, g.batches, device, tiles, depth=g.k)
    return {"tile": first(tile, tiles), "splits": first(count, splits)}


def _build(call: Call, device: Device, params: Params) -> Program:
    tile, splits, g, e = TILES[params["tile"]], params["splits"], GemmProblem.of(call), epilogue_of(call)
    if splits == 1:
        return Program((cooperative_product(g, e, operand_buffers(call), tile, device),))
    buffers = {"a": "a", "b": "b", "per_channel": None, "y": "parts"}
    parts = cooperative_product(_split_k(g, splits), Epilogue(alpha=e.alpha), buffers, tile, device, PRODUCT_TO_F32)
    bound, last = "bias" if e.has_bias else None, len(call.shape("y")) - 1
    add = sum_splits(call, "parts", splits, bound, e.has_bias, device, axis=last, beta=e.beta)
    return Program((parts, add), scratch={"parts": 4 * splits * call.outputs["y"].size})


_LEAST_SIDE, _LEAST_DEPTH = 32, 16
_MOST_DEPTH = max(tile.depth for tile in TILES.values())
FILLS_MATRICES = Requirement(
    f"at least {_LEAST_SIDE} rows and columns, each a sum of {_LEAST_DEPTH} products",
    lambda call, device: GemmProblem.of(call).least_side >= _LEAST_SIDE and GemmProblem.of(call).k >= _LEAST_DEPTH,
    lambda call, device: str(GemmProblem.of(call)),
)

COOPERATIVE = Route(
    "cooperative",
    _build,
    (PRODUCT, PRODUCT_TO_F32, SUM_SPLITS),
    why="the GPU's matrix units multiply 16-bit floats many times as fast as its lanes do f32, and sum in f32",
    must=(
        *NEEDS,
        INT32,
        loop_iterations(lambda call, device: GemmProblem.of(call).k + _MOST_DEPTH),
    ),
    prefer=(ON_GPU, FILLS_MATRICES),
    source="llama.cpp#10597",
    params=_params,
)
