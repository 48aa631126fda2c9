"""The routes of matrix products of 8-bit integers. Zero points and scales lie in a table of rows and columns, which is
made first. Bytes are written by words: where the rows of y are not whole words, the last route takes the call."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import local_sizes, over_invocations
from vkconv.ops.core.requirements import INT32, ON_CPU, SHUFFLE, loop_iterations
from vkconv.ops.kernels.gemm import MAX_BATCH_GROUPS, GemmProblem
from vkconv.ops.kernels.gemm_tile import Compilers
from vkconv.ops.kernels.prepack import Sizes
from vkconv.ops.kernels.strided import dispatch_each, local_params, walk_defaults
from vkconv.ops.quant.integer import TILES, IntegerTile, is_signed, result_of, routes_by_tiles, tiles_by_rule
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route
from vkconv.shaders import quant

DIRECT, GEMM, SUBGROUP = (
    Shader(kernel, DType.U32)
    for kernel in (quant.INTEGER_MATMUL_DIRECT, quant.INTEGER_MATMUL_GEMM, quant.INTEGER_MATMUL_SUBGROUP)
)
AXES = Shader(quant.INTEGER_AXES, DType.U32)


def matrices(call: Call, *, merge: bool = True) -> GemmProblem:
    """Strides of a call, as matmul has them."""
    return GemmProblem.of(dataclasses.replace(call, attrs={"trans_a": False, "trans_b": False}), merge=merge)


def _count(call: Call, name: str) -> int:
    """0 where an operand is absent, 1 where it is one number, 2 where it has one for each row or column."""
    spec = call.operands.get(name)
    return 0 if spec is None else 1 + (spec.size > 1)


def _scales_of_both(call: Call) -> bool:
    """Whether rows and columns have scales of their own, so that every element has a factor of its own."""
    return _count(call, "a_scale") == 2 == _count(call, "b_scale")


def _axes(call: Call, device: Device) -> tuple[Dispatch, int]:
    """The launch that makes the table of rows and columns, and its bytes."""
    m, n = call.shape("y")[-2:]
    names = ("a_zero", "b_zero", "a_scale", "b_scale", "y_scale", "y_zero")
    constants = {f"{name.upper()}S": _count(call, name) for name in names[:4]}
    constants |= {f"{name.upper()}_SIGNED": is_signed(call, name) for name in "aby"}
    buffers = {name: name if call.has(name) else None for name in names}
    made = dispatch_each(AXES, m + n + 1, device, walk_defaults(device), {"m": m, "n": n}, constants, buffers)
    return made, 8 * (m + n + 1)


def _program(
    call: Call,
    device: Device,
    shader: Shader,
    invocations: int,
    local: int,
    constants: Mapping[str, Word],
    shared_bytes: int = 0,
    loop_iterations: int = 0,
) -> Program:
    g = matrices(call)
    batch, a_batch, b_batch = zip(*((1, 0, 0),) * (MAX_BATCH_GROUPS - len(g.batch)), *g.batch, strict=True)
    table, table_bytes = _axes(call, device)
    step = Dispatch(
        shader,
        {name: name for name in ("a", "b", "axes", "y")},
        *over_invocations(invocations, local, device),
        {
            **{"m": g.m, "n": g.n, "k": g.k, "own_rows": call.shape("y")[-2]},
            **{"batch": batch, "a_batch": a_batch, "b_batch": b_batch},
        },
        {"A_SIGNED": is_signed(call, "a"), "B_SIGNED": is_signed(call, "b"), "RESULT": result_of(call), **constants},
        shared_bytes,
        loop_iterations,
    )
    return Program((step,), (table,), {"axes": table_bytes})


def _build_direct(call: Call, device: Device, params: Params) -> Program:
    each, constants = 4 if result_of(call) else 1, {"BOTH": _scales_of_both(call)}
    invocations = ceil_div(math.prod(call.shape("y")), each)
    iterations = each * matrices(call).k
    return _program(call, device, DIRECT, invocations, params["local"], constants, loop_iterations=iterations)


def _blocks(call: Call, tile: IntegerTile) -> int:
    g = matrices(call)
    return g.batches * tile.blocks(g.m, g.n)


def _gemm_params(call: Call, compilers: Compilers) -> Legal:
    return {"tile": tiles_by_rule(matrices(call).m, lambda tile: _blocks(call, tile), compilers)}


def _build_gemm(call: Call, device: Device, params: Params, shader: Shader) -> Program:
    k, tile = matrices(call).k, TILES[params["tile"]]
    constants = {**tile.constants, "WHOLE_ROWS": k % 4 == 0}
    invocations, iterations = _blocks(call, tile) * tile.local, tile.iterations(ceil_div(k, 4))
    return _program(call, device, shader, invocations, tile.local, constants, tile.shared_bytes, iterations)


@dataclasses.dataclass(frozen=True, slots=True)
class _Tiles:
    """Rows of a subgroup, and columns of each of its lanes."""

    rows: Sizes
    columns: Sizes


_TILES = Policy("quant.subgroup_tiles", _Tiles)


def _subgroup_params(call: Call, device: Device) -> Legal:
    g, t, lanes = matrices(call), _TILES.of(device), device.subgroup_size
    return {
        "rows": t.rows.values(g.m, device),
        "columns": t.columns.values(ceil_div(g.n, lanes), device),
        "local": local_sizes(device, lanes, 2 * lanes, 4 * lanes),
    }


def _build_subgroup(call: Call, device: Device, params: Params) -> Program:
    g, rows, columns, local = matrices(call), params["rows"], params["columns"], params["local"]
    workgroups = g.blocks(rows, local * columns)
    constants = {"TM": rows, "TN": columns, "SUBGROUP": device.subgroup_size}
    constants |= {"A_WORDS": g.k % 4 == 0, "B_WORDS": g.n % 4 == 0}
    return _program(call, device, SUBGROUP, workgroups * local, local, constants, loop_iterations=ceil_div(g.k, 4))


WORDS_OR_SUMS = Requirement(
    "rows of whole words, where y is of bytes",
    lambda call, device: not result_of(call) or call.shape("y")[-1] % 4 == 0,
    lambda call, device: f"{call.shape('y')[-1]} columns",
)
SCALES_OF_ONE = Requirement.of(
    "scales of rows or of columns, not of both", _scales_of_both, lambda both: not both, lambda both: "of both"
)
_LEAST_SIDE = Policy("quant.shared_least_side", int)
SOME_ROWS = Requirement(
    "as many rows and columns as tiles in shared memory are taken for on such devices",
    lambda call, device: matrices(call).least_side >= _LEAST_SIDE.of(device),
    lambda call, device: f"{matrices(call)}, at least {_LEAST_SIDE.of(device)} of each",
)
_K_IN_ONE_LOOP = loop_iterations(lambda call, device: ceil_div(matrices(call).k, 4))

ROUTES: tuple[Route, ...] = (
    *routes_by_tiles(
        "shared",
        _build_gemm,
        _gemm_params,
        (GEMM, AXES),
        "tiles in shared memory, four along k to a word",
        must=(WORDS_OR_SUMS, SCALES_OF_ONE),
        prefer=(SOME_ROWS,),
    ),
    Route(
        "subgroup",
        _build_subgroup,
        (SUBGROUP, AXES),
        "where every load goes lane by lane: one load brings four of k in as many rows as a subgroup has lanes, and "
        "shuffles hand them out; products are of floats, and exact",
        must=(INT32, WORDS_OR_SUMS, SCALES_OF_ONE, SHUFFLE, _K_IN_ONE_LOOP),
        prefer=(ON_CPU,),
        params=_subgroup_params,
    ),
    Route(
        "direct",
        _build_direct,
        (DIRECT, AXES),
        "by definition, one sum or one word of bytes per invocation: takes every call",
        must=(INT32,),
        params=local_params,
    ),
)
