"""The route of matmul by cooperative matrices, for calls of 16-bit floats."""

import dataclasses
from collections.abc import Mapping

from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.ops.base import linear_groups
from vkconv.ops.cooperative import EIGHT, NEEDS, TILES, CooperativeTile, blocks, cut_by_rule, tiles_by_rule
from vkconv.ops.epilogue import SPLITS, SUM_SPLITS, sum_splits
from vkconv.ops.matmul_routes import (
    MAX_BATCH_GROUPS,
    Epilogue,
    Layout,
    constants,
    epilogue_of,
    layout,
    lies_in,
    operand_binds,
    push_block,
)
from vkconv.ops.needs import INT32, ON_GPU, loop_iterations
from vkconv.route import Call, Need, Params, Route
from vkconv.shader import Bind, Dispatch, Program, Shader, read, write
from vkconv.storage import Y_F32

PRODUCT = Shader("matmul_cooperative", DType.F16)
PRODUCT_TO_F32 = Shader("matmul_cooperative", DType.F16, (Y_F32,))


def cooperative_params(g: Layout, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The tiles that `cooperative_product` may take, the rule's pick first."""
    return {"tile": tiles_by_rule(g.m, g.n, g.batches, device, depth=g.k)}


def cooperative_product(
    g: Layout, e: Epilogue, binds: tuple[Bind, ...], tile: CooperativeTile, device: Device, shader: Shader = PRODUCT
) -> Dispatch:
    """A product of 16-bit floats by tiles of cooperative matrices; bindings are a, b, bias and y, which may be scratch
    of f32 (`PRODUCT_TO_F32`)."""
    local = tile.local(device)
    groups = linear_groups(blocks(tile, g.m, g.n, g.batches) * local, local, device)
    a_wide = lies_in(EIGHT, (g.m, g.k), g.a, g.base[0], [a for _, a, _ in g.batch])
    b_wide = lies_in(EIGHT, (g.k, g.n), g.b, g.base[1], [b for _, _, b in g.batch])
    y_wide = shader is PRODUCT and lies_in(EIGHT, (g.m, g.n), g.y, g.base[2], [g.m * g.n]) and g.y[1] == 1
    whole = g.k > 0 and g.k % tile.depth == 0
    runs = not a_wide and 1 in g.a, not b_wide and 1 in g.b
    wide = a_wide, b_wide, y_wide, whole
    spec = (*constants(g, e), *tile.constants(device, g.a[0] == 1, g.b[0] == 1), *wide, *runs)
    iterations = ceil_div(g.k, tile.depth) * tile.depth
    return Dispatch(shader, binds, groups, (local, 1, 1), push_block(g, e), spec, tile.shared_bytes, iterations)


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
    bound, last = "bias" if e.has_bias else "parts", len(call.shape("y")) - 1
    add = sum_splits(call, "parts", splits, bound, e.has_bias, device, axis=last, beta=e.beta)
    return Program((parts, add), scratch={"parts": 4 * splits * call.outputs["y"].size})


def _size(call: Call, device: Device) -> str:
    g = layout(call)
    return f"{g.m}x{g.n} over {g.k}"


_LEAST_SIDE, _LEAST_DEPTH = 32, 16
FILLS_MATRICES = Need(
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
