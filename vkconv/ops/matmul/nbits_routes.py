"""The routes of products with weights of few bits, in the order in which they are tried."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import DType, bytes_str, ceil_div
from vkconv.cost import scaled
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import (
    first,
    holds_workgroup,
    local_sizes,
    most_invocations,
    over_invocations,
    over_workgroups,
)
from vkconv.ops.core.requirements import (
    INT32,
    ON_GPU,
    invocations,
    loop_iterations,
    operands_in,
    shared_bytes,
    within_scratch,
)
from vkconv.ops.core.workgroups import WORKGROUPS, alone, alone_by_default
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import Sizes
from vkconv.ops.kernels.skinny import LANES_PER_UNIT
from vkconv.ops.matmul.nbits_problem import NbitsProblem, matmul_of
from vkconv.ops.matmul.routes import ROUTES as MATMUL_ROUTES
from vkconv.policy import Policy
from vkconv.program import Argument, Composite, Dispatch, Inner, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub
from vkconv.shaders import matmul

REGISTER, SHARED, SKINNY, UNPACK = (
    Shader(kernel) for kernel in (matmul.NBITS_REGISTER, matmul.NBITS_SHARED, matmul.NBITS_SKINNY, matmul.NBITS_UNPACK)
)
_FLOATS = operands_in("a", DType.F32)
_VEC4 = 4


def _weights(p: NbitsProblem, call: Call) -> tuple[dict[str, str | None], dict[str, Argument], dict[str, Word]]:
    """Buffers, push constants and specialization constants of every kernel that reads such weights."""
    zero = "zero" if call.has("zero") else None
    zero_bytes = ceil_div(p.blocks * p.bits, 8)
    return (
        {"b": "b", "scale": "scale", "zero": zero},
        {"m": p.m, "n": p.n, "k": p.k, "row_words": p.row_words, "zero_bytes": zero_bytes},
        {"BITS": p.bits, "BLOCK_SHIFT": p.block_words.bit_length() - 1, "HAS_ZERO": zero is not None},
    )


def _product(
    call: Call,
    device: Device,
    shader: Shader,
    grid: tuple[tuple[int, int, int], tuple[int, int, int]],
    constants: Mapping[str, Word],
    shared: int,
    iterations: int,
) -> Program:
    """The program by one launch."""
    p, e = NbitsProblem.of(call), Epilogue.of(call, device, "bias")
    buffers, push, of_weights = _weights(p, call)
    step = Dispatch(
        shader,
        {"a": "a", **buffers, "y": e.target, **e.buffers},
        *grid,
        {**push, **e.push},
        {**e.constants, **of_weights, "A_VEC4": p.k % _VEC4 == 0, **constants},
        shared,
        iterations,
    )
    return e.complete(Program((step,)), call.shape("y"), device)


# ---- few rows

_ROWS, _COLUMNS, _ALONG_K = Sizes((8, 4, 2, 1)), (4, 2, 1), (32, 16, 8, 64, 128)


@dataclasses.dataclass(frozen=True, slots=True)
class SharedSums:
    """Rows up to which lanes share sums, and lanes of a sum, at the least and at the most by rule."""

    rows: int
    least_lanes: int
    most_lanes: int


_SHARED_SUMS = Policy("matmul.nbits_skinny", SharedSums)


def _words(p: NbitsProblem) -> int:
    """That a lane reads at once: a uvec4 where blocks are whole ones."""
    return 4 if p.block_words % 4 == 0 else 1


def _skinny_params(call: Call, device: Device) -> Legal:
    p = NbitsProblem.of(call)
    turns = max(p.row_words // _words(p), 1)
    # No power of two more along k than have words to read.
    rule = _SHARED_SUMS.of(device)
    along_k = max(rule.least_lanes, min(rule.most_lanes, 1 << (turns - 1).bit_length()))
    sizes = WORKGROUPS.of(device).sharing
    local = min(sizes[0], 1 << (most_invocations(device).bit_length() - 1))
    wanted = scaled(LANES_PER_UNIT.of(device), device)
    enough = [c for c in _COLUMNS if ceil_div(p.n, c) * along_k * ceil_div(p.m, _ROWS.rule[0]) >= wanted]
    return {
        "rows": _ROWS.values(p.m, device),
        "columns": first((enough or _COLUMNS[-1:])[0], _COLUMNS),
        "lanes": first(along_k, (lanes for lanes in _ALONG_K if lanes <= min(sizes) or lanes <= local)),
        "local": local_sizes(device, local, *(size for size in sizes if size != local)),
    }


def _build_skinny(call: Call, device: Device, params: Params) -> Program:
    p, words = NbitsProblem.of(call), _words(NbitsProblem.of(call))
    local = params["local"]
    along_k = min(params["lanes"], local)
    # As many rows and columns as shared memory holds the sums of.
    most = int(device.limit("maxComputeSharedMemorySize")) // (4 * local)
    rows = min(params["rows"], 1 << (most.bit_length() - 1))
    columns = min(params["columns"], 1 << ((most // rows).bit_length() - 1))
    along_n = local // along_k
    workgroups = ceil_div(p.m, rows) * ceil_div(p.n, columns * along_n)
    return _product(
        call,
        device,
        SKINNY,
        over_workgroups(workgroups, local, device),
        {"TM": rows, "TN": columns, "WORDS": words, "LANES_N": along_n, "LANES_K": along_k},
        4 * rows * columns * local,
        _skinny_iterations(p, words, along_k) + ceil_div(rows * columns, along_k),
    )


def _skinny_iterations(p: NbitsProblem, words: int, along_k: int) -> int:
    return ceil_div(p.row_words, words * along_k)


def _most_skinny_iterations(call: Call, device: Device) -> int:
    p = NbitsProblem.of(call)
    return _skinny_iterations(p, _words(p), min(_ALONG_K)) + _ROWS.rule[0] * _COLUMNS[0]


# ---- tiles in shared memory

_TILES = ("64x64", "32x32", "32x64", "16x64", "64x32")
_DEPTH = 16
_LEAST = "32x32"


def _tile(name: str) -> tuple[int, int]:
    rows, columns = name.split("x")
    return int(rows), int(columns)


def _tile_local(name: str) -> int:
    return math.prod(_tile(name)) // 16


def _tile_bytes(name: str) -> int:
    """Both k-tiles, rows padded by a vec4."""
    return sum(4 * _DEPTH * (side + _VEC4) for side in _tile(name))


def _tile_params(call: Call, device: Device) -> Legal:
    p = NbitsProblem.of(call)
    fitting = [name for name in _TILES if holds_workgroup(device, _tile_local(name), _tile_bytes(name))]
    wanted = scaled(LANES_PER_UNIT.of(device), device)

    def lanes(name: str) -> int:
        rows, columns = _tile(name)
        return ceil_div(p.m, rows) * ceil_div(p.n, columns) * _tile_local(name)

    wide = [name for name in fitting if _tile(name)[0] < 2 * p.m and lanes(name) >= wanted]
    return {"tile": first((wide or [_LEAST])[0], fitting)}


def _build_shared(call: Call, device: Device, params: Params) -> Program:
    p, (rows, columns), local = NbitsProblem.of(call), _tile(params["tile"]), _tile_local(params["tile"])
    workgroups = ceil_div(p.m, rows) * ceil_div(p.n, columns)
    grid, constants = over_workgroups(workgroups, local, device), {"BM": rows, "BN": columns}
    return _product(call, device, SHARED, grid, constants, _tile_bytes(params["tile"]), _tile_iterations(p))


def _tile_iterations(p: NbitsProblem) -> int:
    """Of all loops: along k, with at most four loads of each k-tile in each."""
    return 9 * ceil_div(p.k, _DEPTH)


# ---- unpacked first

_PRODUCTS = tuple(route for route in MATMUL_ROUTES if route.rounds_as_f32)


def _inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    return {"matmul": Sub(matmul_of(call), _PRODUCTS)}


def _weight_bytes(call: Call) -> int:
    p = NbitsProblem.of(call)
    return 4 * p.n * p.k


def _build_unpacked(call: Call, device: Device, params: Params) -> Composite:
    p = NbitsProblem.of(call)
    buffers, push, constants = _weights(p, call)
    quads = p.n * p.row_words * 8 // p.bits
    unpack = Dispatch(
        UNPACK,
        {**buffers, "w": "weights"},
        *over_invocations(quads, alone_by_default(device), device),
        push,
        {**constants, "W_VEC4": p.k % _VEC4 == 0},
    )
    scratch = {"weights": _weight_bytes(call)}
    return Composite((unpack, Inner("matmul", {"b": "weights"})), scratch=scratch, elements=frozenset(scratch))


# ---- in registers

_REGISTER_ROWS = Sizes((8, 4, 2, 1), (16,))


def _register_params(call: Call, device: Device) -> Legal:
    return {"rows": _REGISTER_ROWS.values(NbitsProblem.of(call).m, device), "local": alone(device)}


def _build_register(call: Call, device: Device, params: Params) -> Program:
    p, rows, local = NbitsProblem.of(call), params["rows"], params["local"]
    grid = over_workgroups(ceil_div(p.m, rows) * ceil_div(p.n, local), local, device)
    return _product(call, device, REGISTER, grid, {"TM": rows}, 0, p.row_words)


_UNPACKED_ROWS = Policy("matmul.nbits_unpacked_rows", int)
FEW_ROWS = Requirement(
    "as few rows as lanes share sums of on such devices",
    lambda call, device: NbitsProblem.of(call).m <= _SHARED_SUMS.of(device).rows,
    lambda call, device: f"{NbitsProblem.of(call).m} rows, at most {_SHARED_SUMS.of(device).rows}",
)
MANY_ROWS = Requirement(
    "as many rows as pay for unpacking the weights",
    lambda call, device: NbitsProblem.of(call).m >= _UNPACKED_ROWS.of(device),
    lambda call, device: f"{NbitsProblem.of(call).m} rows, {_UNPACKED_ROWS.of(device)} are enough",
)

ROUTES: tuple[Route, ...] = (
    Route(
        "unpacked",
        _build_unpacked,
        (
            UNPACK,
            *dict.fromkeys(shader for route in MATMUL_ROUTES if route.rounds_as_f32 for shader in route.shaders),
        ),
        why="many rows: the weights become elements in scratch once, and whatever is best of matmul multiplies them, "
        "also the matrix units",
        must=(_FLOATS, INT32, within_scratch(lambda call, device: _weight_bytes(call), "unpacked weights")),
        prefer=(MANY_ROWS,),
        inner=_inner,
        note=lambda call, device, params: f"{bytes_str(_weight_bytes(call))} of scratch in f32 for the weights",
    ),
    Route(
        "skinny",
        _build_skinny,
        finishing(SKINNY),
        why="few rows: the packed weights are read once, by all lanes of many workgroups, and unpacked in registers",
        must=(_FLOATS, INT32, loop_iterations(_most_skinny_iterations)),
        prefer=(ON_GPU, FEW_ROWS),
        params=_skinny_params,
    ),
    Route(
        "shared",
        _build_shared,
        finishing(SHARED),
        why="tiles in shared memory, into which the weights are unpacked: each serves all rows of a tile",
        must=(
            _FLOATS,
            INT32,
            shared_bytes(_tile_bytes(_LEAST)),
            invocations(_tile_local(_LEAST)),
            loop_iterations(lambda call, device: _tile_iterations(NbitsProblem.of(call))),
        ),
        prefer=(ON_GPU,),
        params=_tile_params,
    ),
    Route(
        "register",
        _build_register,
        finishing(REGISTER),
        why="a column per invocation, no shared memory or barrier: what is read of a has one address in all lanes, "
        "which a CPU driver loads once; takes every call of floats",
        must=(_FLOATS, INT32, loop_iterations(lambda call, device: NbitsProblem.of(call).row_words)),
        params=_register_params,
    ),
)
