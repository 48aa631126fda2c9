"""The routes of matmul on the lanes of a device: tiles in shared memory, in registers, shared by a subgroup."""

from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.core.base import first, local_sizes
from vkconv.ops.core.requirements import FLOATS, ON_GPU, SHUFFLE, UNROLLS, invocations, loop_iterations, shared_bytes
from vkconv.ops.kernels import gemm
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.f16_accumulation import ACCUMULATION_DEPTH, F16, F32, Arithmetic, in_f16
from vkconv.ops.kernels.prepack import InvocationTiles
from vkconv.ops.kernels.shared_costs import SHARED_COSTS, shared_us, shared_work
from vkconv.ops.kernels.split_k import able_slices, by_rule, in_slices, rather_equal
from vkconv.ops.kernels.tile_costs import least_time
from vkconv.ops.matmul.bands import with_bands
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

_TILES = Policy("matmul.register_tiles", InvocationTiles)


def _register_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    g, t = gemm.GemmProblem.of(call), _TILES.of(device)
    # Lanes lie along the columns: a tall skinny product is computed as its transpose.
    swap = g.n < t.local[0] < g.m
    g = g.transposed() if swap else g
    rows, columns = t.rows.values(g.m, device), t.columns.values(ceil_div(g.n, t.local[0]), device)
    swaps = (1, 0) if swap else (0, 1)
    return {"rows": rows, "columns": columns, "local": local_sizes(device, *t.local), "swap": swaps}


def _build_register(call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program:
    """The program by tiles in registers."""
    (g, operands), shader = gemm.oriented(call, params), arithmetic.variant(gemm.REGISTER)

    def launch(e: Epilogue) -> Dispatch:
        return gemm.register_product(g, operands, e, params, device, shader, **arithmetic.constants(1))

    return gemm.in_one_launch(call, device, launch)


def _build_shared(call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program:
    """The program by tiles in shared memory."""
    tile = gemm.SHARED_TILES[params["tile"]]

    def launch(g: gemm.GemmProblem, e: Epilogue) -> Dispatch:
        return gemm.shared_product(g, ("a", "b"), e, tile, device, arithmetic)

    return in_slices(call, device, params["split_k"], gemm.VEC4, launch)


def _shared_params(call: Call, device: Device) -> Legal:
    """The tile, and how many slices of k keep the device busy: those that should take the least time where tiles were
    measured."""
    g, element = gemm.GemmProblem.of(call), element_of(call)
    tiles, legal = gemm.shared_params(g, device, element)["tile"], able_slices(g, gemm.VEC4)
    keeps = gemm.compilers(device, element).keep
    kept = [name for name in tiles if keeps(gemm.SHARED_TILES[name])]
    costs = SHARED_COSTS.of(device)

    def best(of: tuple[int, ...]) -> tuple[str, int]:
        rule = tiles[0], by_rule(g, gemm.SHARED_TILES[tiles[0]], device, of)
        return least_time(costs, rule, kept, of, lambda name: shared_work(g, name, call.nbytes), device)

    tile, slices = rather_equal(g, gemm.VEC4, best)
    return {"tile": first(tile, tiles), "split_k": first(slices, with_bands(call, device, gemm.VEC4, legal))}


def _shared_us(call: Call, device: Device, params: Params) -> float | None:
    return shared_us(gemm.GemmProblem.of(call), params["tile"], call.nbytes, device, params["split_k"])


_LEAST_SIDE = Policy("matmul.shared_least_side", int)
FILLS_TILES = Requirement(
    "as many rows and columns as tiles in shared memory are taken for on such devices",
    lambda call, device: gemm.GemmProblem.of(call).least_side >= _LEAST_SIDE.of(device),
    lambda call, device: f"{gemm.GemmProblem.of(call)}, at least {_LEAST_SIDE.of(device)} of each",
)

_K_IN_ONE_LOOP = loop_iterations(lambda call, device: gemm.GemmProblem.of(call).k)

SHARED_ROUTE = Route(
    "shared",
    _build_shared,
    finishing(gemm.SHARED),
    why="tiles in shared memory: each element that is loaded serves all rows or columns of one; where tiles are few, "
    "long sums in slices, which a last launch adds up in a fixed order",
    must=(FLOATS, shared_bytes(gemm.padded_bytes(gemm.LEAST_TILE)), invocations(gemm.LEAST_TILE.local)),
    prefer=(ON_GPU, FILLS_TILES),
    params=_shared_params,
    estimated_us=_shared_us,
)
SUBGROUP_ROUTE = Route(
    "subgroup",
    lambda call, device, params: gemm.in_one_launch(
        call, device, lambda e: gemm.subgroup_product(*gemm.oriented(call, params), e, params, device)
    ),
    finishing(gemm.SUBGROUP),
    why="where every load goes lane by lane, also where all lanes have one address: one load brings as many rows "
    "as a subgroup has lanes, and shuffles hand them out",
    must=(FLOATS, SHUFFLE, _K_IN_ONE_LOOP),
    prefer=(UNROLLS,),
    params=gemm.subgroup_params,
)
REGISTER_ROUTE = Route(
    "register",
    _build_register,
    finishing(gemm.REGISTER),
    why="a register tile per invocation, no shared memory or barrier, which a CPU driver emulates slowly; "
    "takes every call of floats",
    must=(FLOATS, _K_IN_ONE_LOOP),
    params=_register_params,
)


def _f16_depth(call: Call) -> int:
    return min(gemm.GemmProblem.of(call).k, ACCUMULATION_DEPTH)


SHARED_F16 = in_f16(SHARED_ROUTE, _build_shared, finishing(F16.variant(gemm.SHARED)), _f16_depth)
REGISTER_F16 = in_f16(
    REGISTER_ROUTE, _build_register, finishing(F16.variant(gemm.REGISTER)), _f16_depth, whole=("columns", 2)
)
