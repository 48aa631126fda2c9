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
from vkconv.ops.kernels.epilogue import SPLIT_K_SLICES, Epilogue, finishing
from vkconv.ops.kernels.gemm import MAX_BATCH_GROUPS, GemmProblem, in_one_launch
from vkconv.program import Program
from vkconv.route import Params, Requirement, Route


def _slice_counts(g: GemmProblem) -> tuple[int, ...]:
    """The split-K factors that make equal slices of whole vectors where k is whole vectors."""
    width = EIGHT if g.k % EIGHT == 0 else 1
    room = len(g.batch) < MAX_BATCH_GROUPS
    return tuple(s for s in SPLIT_K_SLICES if s == 1 or (room and g.k and g.k % (s * width) == 0))


def _split_k(g: GemmProblem, slices: int) -> GemmProblem:
    """The products of equal slices of k, as that many batches of all."""
    k = g.k // slices
    return dataclasses.replace(g, k=k, batch=((slices, k * g.a[1], k * g.b[0]), *g.batch), beta=1.0)


def _params(call: Call, device: Device) -> Mapping[str, tuple[Any, ...]]:
    g = GemmProblem.of(call)
    tiles, slices = cooperative_params(g, device)["tile"], _slice_counts(g)
    tile, count = split_by_rule(slices, g.m, g.n, g.batches, device, tiles, depth=g.k)
    return {"tile": first(tile, tiles), "split_k": first(count, slices)}


def _build(call: Call, device: Device, params: Params) -> Program:
    tile, slices, g, operands = TILES[params["tile"]], params["split_k"], GemmProblem.of(call), ("a", "b")
    if slices == 1:
        return in_one_launch(call, device, lambda e: cooperative_product(g, operands, e, tile, device))
    e, y = Epilogue.of(call, device, "bias"), call.outputs["y"]
    parts = cooperative_product(_split_k(g, slices), operands, Epilogue(target="slices"), tile, device, PRODUCT_TO_F32)
    add = e.sum("slices", slices, y.dims, device, axis=len(y.dims) - 1, beta=g.beta)
    return e.complete(Program((parts, add), scratch={"slices": 4 * slices * y.size}), y.dims, device)


_LEAST_SIDE, _LEAST_DEPTH = 32, 16
_MOST_DEPTH = max(tile.depth for tile in TILES.values())
FILLS_MATRICES = Requirement.of(
    f"at least {_LEAST_SIDE} rows and columns, each a sum of {_LEAST_DEPTH} products",
    GemmProblem.of,
    lambda g: g.least_side >= _LEAST_SIDE and g.k >= _LEAST_DEPTH,
)

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
)
