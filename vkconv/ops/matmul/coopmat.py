"""The route of matmul by cooperative matrices, for calls of 16-bit floats."""

import dataclasses
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.requirements import INT32, ON_GPU, loop_iterations
from vkconv.ops.kernels.coopmat import EIGHT, NEEDS, TILES, cut_by_rule
from vkconv.ops.kernels.coopmat_gemm import PRODUCT, PRODUCT_TO_F32, cooperative_params, cooperative_product
from vkconv.ops.kernels.epilogue import SPLITS, SUM_SPLITS, sum_splits
from vkconv.ops.kernels.gemm import MAX_BATCH_GROUPS, Epilogue, Layout, epilogue_of, layout, operand_binds
from vkconv.program import Program, read, write
from vkconv.route import Params, Requirement, Route


def _cuts(g: Layout) -> tuple[int, ...]:
    """In how many equal parts each sum may be cut, whose lines are whole words where those of the sums are."""
    word = EIGHT if g.k % EIGHT == 0 else 1
    room = len(g.batch) < MAX_BATCH_GROUPS
    return tuple(s for s in SPLITS if s == 1 or (room and g.k and g.k % (s * word) == 0))


def _in_parts(g: Layout, splits: int) -> Layout:
    """The products of equal parts of each sum, as that many batches of all."""
    k = g.k // splits
    return dataclasses.replace(g, k=k, batch=((splits, k * g.a[1], k * g.b[0]), *g.batch))


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    g, cuts = layout(call), _cuts(layout(call))
    tiles = cooperative_params(g, device)["tile"]
    best, splits = cut_by_rule(cuts, g.m, g.n, g.batches, device, tiles, depth=g.k)
    return {"tile": (best, *(i for i in tiles if i != best)), "splits": (splits, *(s for s in cuts if s != splits))}


def _build(call: Call, device: Device, params: Params) -> Program:
    tile, splits, g, e = TILES[params["tile"]], params["splits"], layout(call), epilogue_of(call)
    if splits == 1:
        return Program((cooperative_product(g, e, operand_binds(call, False), tile, device),))
    binds = (*read("a", "b", "b"), *write("parts"))
    parts = cooperative_product(_in_parts(g, splits), Epilogue(alpha=e.alpha), binds, tile, device, PRODUCT_TO_F32)
    bound, last = "bias" if e.has_bias else None, len(call.shape("y")) - 1
    add = sum_splits(call, "parts", splits, bound, e.has_bias, device, axis=last, beta=e.beta)
    return Program((parts, add), scratch={"parts": 4 * splits * call.outputs["y"].size})


def _size(call: Call, device: Device) -> str:
    g = layout(call)
    return f"{g.m}x{g.n} over {g.k}"


_LEAST_SIDE, _LEAST_DEPTH = 32, 16
FILLS_MATRICES = Requirement(
    f"at least {_LEAST_SIDE} rows and columns, each a sum of {_LEAST_DEPTH} products",
    lambda call, device: min(layout(call).m, layout(call).n) >= _LEAST_SIDE and layout(call).k >= _LEAST_DEPTH,
    _size,
)

COOPERATIVE = Route(
    "cooperative",
    _build,
    (PRODUCT, PRODUCT_TO_F32, SUM_SPLITS),
    why="the GPU's matrix units multiply 16-bit floats many times as fast as its lanes do f32, and sum in f32",
    must=(*NEEDS, INT32, loop_iterations(lambda call, device: layout(call).k + max(tile.depth for tile in TILES))),
    prefer=(ON_GPU, FILLS_MATRICES),
    source="llama.cpp#10597",
    params=_params,
)
