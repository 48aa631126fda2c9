"""The routes of matrix products of 8-bit integers. Zero points and scales lie in a table of rows and columns, which is
made first; bytes are written by words: where the rows of y are no whole words, the last route takes the call."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import local_sizes
from vkconv.ops.core.requirements import INT32, ON_CPU, ON_GPU, SHUFFLE, loop_iterations
from vkconv.ops.kernels.gemm import MAX_BATCH_GROUPS, GemmProblem
from vkconv.ops.kernels.prepack import Sizes
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.ops.quant.requirements import (
    DOT_PRODUCT,
    FITS_SMALLEST,
    TILES,
    IntegerTile,
    tile_blocks,
    tiles_by_rule,
)
from vkconv.program import Argument, Dispatch, Program, Word
from vkconv.route import Params, Requirement, Route

DIRECT, GEMM, SUBGROUP = (
    Shader(kernel, DType.U32)
    for kernel in (
        shaders.quant.INTEGER_MATMUL_DIRECT,
        shaders.quant.INTEGER_MATMUL_GEMM,
        shaders.quant.INTEGER_MATMUL_SUBGROUP,
    )
)
GEMM_DOT = GEMM.having(("DOT", ""))
AXES = Shader(shaders.quant.INTEGER_AXES, DType.U32)


def matrices(call: Call, *, merge: bool = True) -> GemmProblem:
    """Strides of a call, as matmul has them."""
    return GemmProblem.of(dataclasses.replace(call, attrs={"trans_a": False, "trans_b": False}), merge=merge)


def _signs(call: Call) -> dict[str, bool]:
    """Which factors have signs, as specialization constants."""
    specs = {name: call.operands[name] for name in "ab"}
    return {f"{name.upper()}_SIGNED": spec is not None and spec.dtype is DType.I8 for name, spec in specs.items()}


def _result(call: Call) -> int:
    """RESULT of integer_matmul.glsl."""
    return {DType.I32: 0, DType.U8: 1, DType.I8: 2}[call.outputs["y"].dtype]


def _count(call: Call, name: str) -> int:
    """0 where an operand is not there, 1 where it is one number, 2 where it has one for each row or column."""
    spec = call.operands.get(name)
    return 0 if spec is None else 1 + (spec.size > 1)


def _scales_of_both(call: Call) -> bool:
    """Whether rows and columns have scales of their own, so that every element has a factor of its own."""
    return _count(call, "a_scale") == 2 == _count(call, "b_scale")


def _axes(call: Call, device: Device) -> tuple[Dispatch, int]:
    """The launch that makes the table of rows and columns, and its bytes."""
    m, n = call.shape("y")[-2:]
    names = ("a_zero", "b_zero", "a_scale", "b_scale")
    buffers = {name: name if call.has(name) else None for name in (*names, "y_scale", "y_zero")}
    constants = {
        **_signs(call),
        "Y_SIGNED": call.outputs["y"].dtype is DType.I8,
        **{f"{name.upper()}S": _count(call, name) for name in names},
    }
    step = dispatch_each(AXES, m + n + 1, device, {"local": 64}, {"m": m, "n": n}, constants, buffers)
    return step, 8 * (m + n + 1)


def _push(call: Call) -> dict[str, Argument]:
    g = matrices(call)
    batch = zip(*((1, 0, 0),) * (MAX_BATCH_GROUPS - len(g.batch)), *g.batch, strict=True)
    groups = dict(zip(("batch", "a_batch", "b_batch"), batch, strict=True))
    return {"m": g.m, "n": g.n, "k": g.k, "own_rows": call.shape("y")[-2], **groups}


def _program(
    call: Call,
    device: Device,
    params: Params,
    shader: Shader,
    invocations: int,
    constants: Mapping[str, Word],
    iterations: int,
    shared_bytes: int = 0,
) -> Program:
    table, table_bytes = _axes(call, device)
    constants = {**_signs(call), "RESULT": _result(call), **constants}
    step = dispatch_each(shader, invocations, device, params, _push(call), constants, loop_iterations=iterations)
    return Program((dataclasses.replace(step, shared_bytes=shared_bytes),), (table,), {"axes": table_bytes})


def _build_direct(call: Call, device: Device, params: Params) -> Program:
    count, each = math.prod(call.shape("y")), 4 if _result(call) else 1
    iterations = each * matrices(call).k
    constants = {"BOTH": _scales_of_both(call)}
    return _program(call, device, params, DIRECT, ceil_div(count, each), constants, iterations)


def _blocks(call: Call, tile: IntegerTile) -> int:
    g = matrices(call)
    return g.batches * tile_blocks(tile, g.m, g.n)


def _gemm_params(call: Call, device: Device) -> Mapping[str, tuple[str, ...]]:
    return {"tile": tiles_by_rule(matrices(call).m, lambda tile: _blocks(call, tile), device)}


def _build_gemm(call: Call, device: Device, params: Params, shader: Shader) -> Program:
    g, tile = matrices(call), TILES[params["tile"]]
    constants, local = {**tile.constants, "WHOLE_ROWS": g.k % 4 == 0}, {"local": tile.local}
    iterations, invocations = ceil_div(g.k, 4 * tile.depth) * (1 + 3 * tile.depth), _blocks(call, tile) * tile.local
    return _program(call, device, local, shader, invocations, constants, iterations, tile.shared_bytes)


_ROWS, _COLUMNS = Sizes((16, 8, 4)), Sizes((8, 4), (16,))


def _subgroup_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    g, lanes = matrices(call), device.subgroup_size
    return {
        "rows": _ROWS.values(g.m),
        "columns": _COLUMNS.values(ceil_div(g.n, lanes)),
        "local": local_sizes(device, lanes, 2 * lanes, 4 * lanes),
    }


def _build_subgroup(call: Call, device: Device, params: Params) -> Program:
    g, rows, columns, local = matrices(call), params["rows"], params["columns"], params["local"]
    workgroups = g.batches * ceil_div(g.m, rows) * ceil_div(g.n, local * columns)
    sizes = {"TM": rows, "TN": columns, "SUBGROUP": device.subgroup_size}
    constants = {**sizes, "A_WORDS": g.k % 4 == 0, "B_WORDS": g.n % 4 == 0}
    return _program(call, device, params, SUBGROUP, workgroups * local, constants, ceil_div(g.k, 4))


WORDS_OR_SUMS = Requirement(
    "a whole number of words of columns, where y is of bytes",
    lambda call, device: not _result(call) or call.shape("y")[-1] % 4 == 0,
    lambda call, device: f"{call.shape('y')[-1]} columns",
)
SCALES_OF_ONE = Requirement(
    "scales of rows or of columns, not of both",
    lambda call, device: not _scales_of_both(call),
    lambda call, device: "of both",
)
SOME_ROWS = Requirement(
    "at least 8 rows and 8 columns",
    lambda call, device: matrices(call).m >= 8 and matrices(call).n >= 8,
    lambda call, device: f"{matrices(call).m}x{matrices(call).n}",
)
_K_IN_ONE_LOOP = loop_iterations(lambda call, device: ceil_div(matrices(call).k, 4))
_WHY = "tiles in shared memory, four along k to a word"

ROUTES: tuple[Route, ...] = (
    Route(
        "dot",
        lambda call, device, params: _build_gemm(call, device, params, GEMM_DOT),
        (GEMM_DOT, AXES),
        f"{_WHY}, which one instruction multiplies and sums",
        must=(INT32, WORDS_OR_SUMS, SCALES_OF_ONE, DOT_PRODUCT, *FITS_SMALLEST),
        prefer=(ON_GPU, SOME_ROWS),
        params=_gemm_params,
        source="SPV_KHR_integer_dot_product",
    ),
    Route(
        "shared",
        lambda call, device, params: _build_gemm(call, device, params, GEMM),
        (GEMM, AXES),
        _WHY,
        must=(INT32, WORDS_OR_SUMS, SCALES_OF_ONE, *FITS_SMALLEST),
        prefer=(ON_GPU, SOME_ROWS),
        params=_gemm_params,
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
