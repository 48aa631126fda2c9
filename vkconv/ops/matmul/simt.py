"""The routes of matmul on the lanes of a device: tiles in shared memory, in registers, shared by a subgroup."""

import dataclasses
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.core.base import local_sizes
from vkconv.ops.core.requirements import FLOATS, ON_CPU, ON_GPU, SHUFFLE, invocations, loop_iterations, shared_bytes
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.f16_accumulation import F32, Arithmetic
from vkconv.ops.kernels.gemm import (
    LEAST_TILE,
    REGISTER,
    SHARED,
    SHARED_TILES,
    SUBGROUP,
    GemmProblem,
    in_one_launch,
    oriented,
    padded_bytes,
    register_product,
    shared_params,
    shared_product,
    subgroup_params,
    subgroup_product,
)
from vkconv.ops.kernels.prepack import Sizes
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Requirement, Route


@dataclasses.dataclass(frozen=True, slots=True)
class RegisterTiles:
    """Lanes of a workgroup of the register route, the default first, and the tiles of one invocation to choose from."""

    local: tuple[int, ...]
    rows: Sizes
    columns: Sizes


# lavapipe: 8 lanes are one SIMD vector; each load costs about as much as 8 multiply-adds, so tiles are large until
# registers spill. CPU time of 1x40x120 @ 120x360: 16x8 352 us, 12x8 357, 8x16 405, 8x8 422 (2 cores, Mesa 22.3).
_TILES: Mapping[str, RegisterTiles] = {
    "cpu": RegisterTiles((8, 16, 32), Sizes((16, 8, 4, 1), (12,)), Sizes((8, 4, 1), (16,)))
}
_GPU_TILES = RegisterTiles((64, 32, 128), Sizes((8, 4, 1), (16, 2)), Sizes((4, 1), (8, 2)))


def _register_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    g, t = GemmProblem.of(call), _TILES.get(device.kind, _GPU_TILES)
    # Lanes lie along the columns: a tall skinny product is computed as its transpose.
    swap = g.n < t.local[0] < g.m
    g = g.transposed() if swap else g
    rows, columns = t.rows.values(g.m), t.columns.values(ceil_div(g.n, t.local[0]))
    swaps = (1, 0) if swap else (0, 1)
    return {"rows": rows, "columns": columns, "local": local_sizes(device, *t.local), "swap": swaps}


def build_register(call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program:
    """The program by tiles in registers."""
    (g, operands), shader = oriented(call, params), arithmetic.variant(REGISTER)

    def launch(e: Epilogue) -> Dispatch:
        return register_product(g, operands, e, params, device, shader, **arithmetic.constants(1))

    return in_one_launch(call, device, launch)


def _build_subgroup(call: Call, device: Device, params: Params) -> Program:
    return in_one_launch(call, device, lambda e: subgroup_product(*oriented(call, params), e, params, device))


def build_shared(call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program:
    """The program by tiles in shared memory."""
    g, tile = GemmProblem.of(call), SHARED_TILES[params["tile"]]
    return in_one_launch(call, device, lambda e: shared_product(g, ("a", "b"), e, tile, device, arithmetic))


AT_LEAST_32X32 = Requirement(
    "at least 32 rows and 32 columns",
    lambda call, device: GemmProblem.of(call).least_side >= 32,
    lambda call, device: str(GemmProblem.of(call)),
)

_K_IN_ONE_LOOP = loop_iterations(lambda call, device: GemmProblem.of(call).k)

SHARED_ROUTE = Route(
    "shared",
    build_shared,
    finishing(SHARED),
    why="tiles in shared memory: each element that is loaded serves all rows or columns of one",
    must=(FLOATS, shared_bytes(padded_bytes(LEAST_TILE)), invocations(LEAST_TILE.local)),
    prefer=(ON_GPU, AT_LEAST_32X32),
    params=lambda call, device: shared_params(GemmProblem.of(call), device),
)
SUBGROUP_ROUTE = Route(
    "subgroup",
    _build_subgroup,
    finishing(SUBGROUP),
    why="where every load goes lane by lane, also where all lanes have one address: one load brings as many rows "
    "as a subgroup has lanes, and shuffles hand them out",
    must=(FLOATS, SHUFFLE, _K_IN_ONE_LOOP),
    prefer=(ON_CPU,),
    params=subgroup_params,
)
REGISTER_ROUTE = Route(
    "register",
    build_register,
    finishing(REGISTER),
    why="a register tile per invocation, no shared memory or barrier, which a CPU driver emulates slowly; "
    "takes every call of floats",
    must=(FLOATS, _K_IN_ONE_LOOP),
    params=_register_params,
)
