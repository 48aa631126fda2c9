"""The routes of gemm_reduce: kernels of matmul that reduce their tiles before anything is stored, and the two steps in
turn."""

import dataclasses
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import align
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import first, most_shared_bytes
from vkconv.ops.core.requirements import (
    INT32,
    ON_CPU,
    ON_GPU,
    SHUFFLE,
    invocations,
    loop_iterations,
    shared_bytes,
)
from vkconv.ops.fused.addends import is_plain, product_call
from vkconv.ops.fused.definition import functions, is_single
from vkconv.ops.fused.in_turn import Steps, in_turn, reduce_calls, taken_alone
from vkconv.ops.fused.joined import JOINED
from vkconv.ops.fused.reduction import MATRICES_PAY, Ending, Fusion, Launch, Reduction, reducing
from vkconv.ops.fused.stages import Stage, begun, in_stages
from vkconv.ops.kernels import gemm
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.coopmat import NEEDS, TILES, CooperativeTile
from vkconv.ops.kernels.coopmat_gemm import PRODUCT, cooperative_params, cooperative_product
from vkconv.ops.kernels.epilogue import RESIDUAL_BOUND, Epilogue
from vkconv.ops.matmul.op import MATMUL
from vkconv.program import Dispatch
from vkconv.requirement import Requirement
from vkconv.route import Params, Route
from vkconv.storage import Y_F32

_PRODUCT_ATTRS = tuple(attr.name for attr in MATMUL.attrs)


def product_of(call: Call) -> Call:
    """The matmul whose result is reduced."""
    return product_call(MATMUL, call.operands, {name: call[name] for name in _PRODUCT_ATTRS})


# By the attribute: whether batches are reduced, and which of rows and columns, counted from the last.
AXES: Mapping[str, tuple[bool, tuple[int, ...]]] = {
    **{"n": (False, (1,)), "m": (False, (2,)), "mn": (False, (2, 1))},
    **{"b": (True, ()), "bn": (True, (1,)), "bm": (True, (2,)), "bmn": (True, (2, 1))},
}


def axes_of(call: Call) -> tuple[int, ...]:
    """The axes of that result that are reduced, from the front, ascending."""
    return axes_named(call["axis"], len(product_of(call).shape("y")))


def axes_named(name: str, rank: int) -> tuple[int, ...]:
    """The axes of a product of that rank by their name, a row of `AXES`."""
    batches, sides = AXES[name]
    return (*(range(rank - 2) if batches else ()), *(rank - side for side in sides))


def _first_stage(call: Call) -> Stage | None:
    """Rows or columns, whichever leaves less, where more is reduced."""
    full, axes = product_of(call).outputs["y"], axes_of(call)
    rank = len(full.dims)
    sides = [name for name in ("n", "m") if set(axes_named(name, rank)) < set(axes)]
    if not (sides and is_single(call)):
        return None
    most = max(sides, key=lambda name: full.dims[axes_named(name, rank)[0]])
    return begun(call, full, axes_named(most, rank), axis=most)


def steps(call: Call) -> Steps:
    """The product and what reduces it as calls of their own."""
    product = product_of(call)
    full: TensorSpec = product.outputs["y"]
    return product, reduce_calls(call, full, axes_of(call))


def _along_columns(call: Call) -> gemm.GemmProblem:
    """The product with the dimension that is reduced along its columns, as its transpose where that is m."""
    product = product_of(call)
    g = gemm.GemmProblem.of(product, merge=call["axis"] == "n" and is_plain(call, product))
    return g if call["axis"] == "n" else g.transposed()


def _sides(call: Call, transposed: bool) -> tuple[int, tuple[int, ...]]:
    """The dimensions of the product that are rows and columns of a kernel."""
    rank = len(product_of(call).shape("y"))
    return (rank - 1, (rank - 2,)) if transposed else (rank - 2, (rank - 1,))


def _sides_of_tiles(call: Call, params: Params) -> tuple[int, tuple[int, ...]]:
    return _sides(call, call["axis"] == "m")


# What takes the place of matmul's pick where tiles are reduced. H200, us, 4096x4096 outputs along n, m:
#   k     matmul  its own tile  the other
#   4096    3023    3109  3169  2924 2940
#   1024     771     785   796   744  746
#    256     219     207   210   198  200
_INSTEAD: Mapping[str, str] = {"128x128x16": "128x128x8"}


def _tile_params(call: Call, device: Device) -> Mapping[str, tuple[str, ...]]:
    params = gemm.shared_params(_along_columns(call), device, element_of(call))
    best = _INSTEAD.get(params["tile"][0], params["tile"][0])
    return {"tile": first(best, params["tile"])}


def _tile_reduction(call: Call, device: Device, params: Params) -> Reduction:
    g = _along_columns(call)
    return Reduction(g.batches, g.m, 1, align(g.n, 4), gemm.SHARED_TILES[params["tile"]].columns, g.n)


def _launch_tiles(call: Call, device: Device, params: Params) -> Launch:
    g, tile, e = _along_columns(call), gemm.SHARED_TILES[params["tile"]], Epilogue.of(product_of(call), device, "bias")
    operands = ("b", "a") if call["axis"] == "m" else ("a", "b")

    def launch(end: Ending) -> Dispatch:
        return reducing(gemm.shared_product(g, operands, e, tile, device), end)

    return launch


def _down_rows(call: Call, params: Params) -> bool:
    """Whether the kernel by subgroups reduces its rows to one, else its columns."""
    return bool(call["axis"] == "m") is not bool(params["swap"])


def _lane_problem(call: Call, params: Params) -> tuple[gemm.GemmProblem, gemm.Operands]:
    product = product_of(call)
    g, operands = gemm.oriented(product, params, merge=call["axis"] == "n" and is_plain(call, product))
    # The output has no such rows: vec4 depend on b alone, unless a residual or the product itself lies as that would.
    return (g if call.has("residual") or call["product"] else dataclasses.replace(g, y=(g.n, 1))), operands


def _lane_reduction(call: Call, device: Device, params: Params) -> Reduction:
    g, columns = _lane_problem(call, params)[0], params["columns"]
    if _down_rows(call, params):
        return Reduction(g.batches, g.n, 1, g.m, params["rows"], g.m)
    covered = align(g.n, columns * params["local"])
    return Reduction(g.batches, g.m, 1, covered, columns * device.subgroup_size, g.n)


def _launch_lanes(call: Call, device: Device, params: Params) -> Launch:
    (g, operands), e = _lane_problem(call, params), Epilogue.of(product_of(call), device, "bias")
    down = {"ALONG_COLUMNS": _down_rows(call, params)}

    def launch(end: Ending) -> Dispatch:
        return reducing(gemm.subgroup_product(g, operands, e, params, device), end, constants=down)

    return launch


# Where matmul itself takes the kernel, fusing saves writing and reading the product and costs next to nothing.
# lavapipe, least us, along m, n:      fused_lanes    unfused
#   512x512 by 512x512                 6412 6355      6707 6684
#   512x64 by 64x512                   1113 1090      1423 1371
#   1024x16 by 16x1024                 1441 1267      2502 2392
#   64x512 by 512x64                    166  220       180  214
#   eight 40x32 by 32x40                152   97       172  204
#   4096x64 by 64x1                     279  266       294  311
_takes = taken_alone(MATMUL, "product", product_of)

ONE_SIDE = Requirement.of(
    "a reduction along rows or columns alone", lambda call: call["axis"], lambda axis: axis in ("m", "n"), str
)

_TILES = Fusion(
    gemm.SHARED,
    product_of,
    _sides_of_tiles,
    _tile_params,
    _tile_reduction,
    _launch_tiles,
    (ONE_SIDE, shared_bytes(gemm.padded_bytes(gemm.LEAST_TILE)), invocations(gemm.LEAST_TILE.local), RESIDUAL_BOUND),
)
_LANES: Fusion = Fusion(
    gemm.SUBGROUP,
    product_of,
    lambda call, params: _sides(call, bool(params["swap"])),
    lambda call, device: gemm.subgroup_params(product_of(call), device),
    _lane_reduction,
    _launch_lanes,
    (
        ONE_SIDE,
        SHUFFLE,
        loop_iterations(lambda call, device: max(_along_columns(call).k, _LANES.default(call, device).most_parts)),
        RESIDUAL_BOUND,
    ),
)


def _matrix_params(call: Call, device: Device) -> Mapping[str, tuple[str, ...]]:
    return cooperative_params(_along_columns(call), device, lambda tile: _has_room(call, tile, device))


def _has_room(call: Call, tile: CooperativeTile, device: Device) -> bool:
    """For what the rows of a tile come to, in shared memory beside the tile."""
    return tile.shared_bytes + _totals_bytes(call, tile, device) <= most_shared_bytes(device)


def _totals_bytes(call: Call, tile: CooperativeTile, device: Device) -> int:
    return len(functions(call)) * tile.totals_bytes(device)


def _matrix_reduction(call: Call, device: Device, params: Params) -> Reduction:
    g = _along_columns(call)
    return Reduction(g.batches, g.m, 1, g.n, TILES[params["tile"]].columns, g.n)


def _launch_matrices(call: Call, device: Device, params: Params) -> Launch:
    g, tile, e = _along_columns(call), TILES[params["tile"]], Epilogue.of(product_of(call), device, "bias")
    operands = ("b", "a") if call["axis"] == "m" else ("a", "b")

    def launch(end: Ending) -> Dispatch:
        made = cooperative_product(g, operands, e, tile, device)
        return reducing(
            dataclasses.replace(made, shared_bytes=tile.shared_bytes + _totals_bytes(call, tile, device)), end
        )

    return launch


_MATRICES = Fusion(
    PRODUCT,
    product_of,
    _sides_of_tiles,
    _matrix_params,
    _matrix_reduction,
    _launch_matrices,
    (
        *NEEDS,
        ONE_SIDE,
        INT32,
        Requirement(
            "a tile of matrices, and what its rows come to, in the shared memory of a workgroup",
            lambda call, device: any(tile.fits(device) and _has_room(call, tile, device) for tile in TILES.values()),
            lambda call, device: f"{most_shared_bytes(device)} bytes",
        ),
        loop_iterations(lambda call, device: _along_columns(call).k + max(tile.depth for tile in TILES.values())),
    ),
    to_parts=(Y_F32,),
)
_BY_TILES: tuple[Route, ...] = (
    _MATRICES.in_order(
        "fused_cooperative",
        "the tiles of matmul's route cooperative, for 16-bit floats: the sums in f32 that the matrix units make go by "
        "way of shared memory, as they do to be stored, and are reduced there",
        (ON_GPU, _takes("cooperative"), MATRICES_PAY),
        "rocMLIR reduction-fusion RFC, stage 2",
    ),
    _TILES.in_order(
        "fused_partials",
        "the tiles of matmul's route shared, reduced in registers, then in shared memory: one number of a row and "
        "tile is stored instead of the whole product, and a second launch combines them in a fixed order",
        (ON_GPU, _takes("shared")),
        "rocMLIR reduction-fusion RFC, stage 2",
    ),
    _LANES.in_order(
        "fused_lanes",
        "the tiles of matmul's route subgroup, reduced in registers and by shuffles: no shared memory, which a CPU "
        "driver emulates slowly",
        (ON_CPU, _takes("subgroup")),
    ),
    _TILES.atomic(
        "fused_atomic",
        "as fused_partials, but each workgroup adds its number to the output by an atomic operation: no scratch, "
        "but sums change in their last bits from run to run",
        (ON_GPU, _takes("shared")),
        "rocMLIR reduction-fusion RFC, stage 1 and 2",
    ),
)

ROUTES: tuple[Route, ...] = (
    *_BY_TILES,
    JOINED,
    in_stages(
        "gemm_reduce",
        _first_stage,
        axes_of,
        _BY_TILES,
        "tiles reduced along rows or columns, whichever leaves less, then what is left of the axes over their few "
        "results",
    ),
    in_turn(
        MATMUL,
        steps,
        "the product by its own best route into scratch, then its reduction by its own best route: what fusing must "
        "beat",
    ),
)
