"""The route of matmul for skinny operands, a few rows or columns: all lanes of a workgroup share a few sums."""

import dataclasses
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import first, linear_groups, local_sizes, most_invocations
from vkconv.ops.core.occupancy import compute_units
from vkconv.ops.core.requirements import FLOATS, ON_GPU, loop_iterations
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.gemm import VEC4, GemmProblem, buffers, constants, in_one_launch, oriented, push
from vkconv.ops.kernels.prepack import Sizes
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Requirement, Route

NARROW = Shader(shaders.matmul.MATMUL_NARROW)
_ROWS = Sizes((4, 2, 1), (8,))
_LANES, _LOCAL = (16, 8, 4, 2, 1, 32), (256, 512, 128, 64)
# Lanes of a compute unit that the rule wants at work.
_LANES_PER_UNIT = 512


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """Lanes that a workgroup has, and the least along the columns, which are neighbours where b lies along them: 32
    bytes of it at the least."""

    local: int
    least: int


# H200, f16, us, lanes along the columns x along k, and the register route: 1x2048 to 1000 columns that lie along k
# 1x256 4.4, 2x128 4.6, 8x32 8.4, register 375; that lie along the columns 4x128 5.9, 4x64 6.1, 1x256 7.2, 8x32 8.7,
# 517; 1x4096 to 4096 8x64 10.8, 4x128 12.4, 1x256 32, 826; 1x512 to 30000 32x16 9.0, 16x16 9.2, 8x8 9.9, 4x64 21, 100;
# 16x1024 to 4096 in rows of 4 4x16 13.1, 8x32 15.5, 1x256 33, 290, by tiles in shared memory 34; 31 rows 22, 34.
_ALONG_K, _ALONG_COLUMNS = _Shape(256, 1), _Shape(512, 4)


def _along_k(g: GemmProblem) -> bool:
    """Whether b lies along k, not along the columns."""
    return g.b[0] == 1


def _blocks(g: GemmProblem, rows: int, lanes: int) -> int:
    return g.blocks(rows, VEC4 * lanes)


def _iterations(k: int, rows: int, lanes: int, local: int) -> int:
    """Of all loops of an invocation: along k, and twice over its outputs, since they have shares only where lanes are
    left for these."""
    return ceil_div(k, VEC4 * local // lanes) + 2 * ceil_div(VEC4 * rows * lanes, local)


def _most_iterations(call: Call, device: Device) -> int:
    """By whatever parameters."""
    return _iterations(GemmProblem.of(call).k, max(*_ROWS.rule, *_ROWS.more), max(_LANES), min(_LOCAL))


def _power_within(most: int) -> int:
    """The largest power of two that is no more, at least 1."""
    return 1 << max(most.bit_length() - 1, 0)


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    g = GemmProblem.of(call)
    swap = g.n < g.m
    g = g.transposed() if swap else g
    rows = _ROWS.values(g.m)
    shape = _ALONG_K if _along_k(g) else _ALONG_COLUMNS
    most = min(shape.local, _power_within(most_invocations(device)))
    # As many along k as bring all compute units to work, and no power of two more than have steps to make.
    wanted = compute_units(device) * _LANES_PER_UNIT // max(_blocks(g, rows[0], 1), 1)
    along_k = min(_power_within(wanted), _power_within(2 * ceil_div(g.k, VEC4) - 1), most // shape.least)
    lanes = min(_LANES[0], most // along_k)
    local = max(_LOCAL[-1], lanes * along_k)
    return {
        "rows": rows,
        "lanes": first(lanes, _LANES),
        "local": local_sizes(device, local, *(size for size in _LOCAL if size != local)),
        "swap": (1, 0) if swap else (0, 1),
    }


def _build(call: Call, device: Device, params: Params) -> Program:
    g, operands = oriented(call, params)
    lanes, local = params["lanes"], params["local"]
    # As many rows as shared memory holds the sums of.
    rows = min(params["rows"], _power_within(device.limit("maxComputeSharedMemorySize") // (4 * VEC4 * local)))
    tile = {"TM": rows, "LANES_N": lanes, "LANES_K": local // lanes}
    b_vec4 = g.b_in_vectors(VEC4)
    a_vec4 = _along_k(g) and b_vec4 and g.a[1] == 1 and g.a_in_vectors(VEC4)

    def launch(e: Epilogue) -> Dispatch:
        return Dispatch(
            e.variant(NARROW),
            buffers(operands, e),
            linear_groups(_blocks(g, rows, lanes) * local, local, device),
            (local, 1, 1),
            push(g, e),
            {**constants(g, e), **tile, "B_BY_ROW": _along_k(g), "A_VEC4": a_vec4, "B_VEC4": b_vec4},
            4 * VEC4 * rows * local,
            _iterations(g.k, rows, lanes, local),
        )

    return in_one_launch(call, device, launch)


_MOST_ROWS, _LEAST_DEPTH = 31, 64
FEW = Requirement(
    f"at most {_MOST_ROWS} rows or columns, each a sum of at least {_LEAST_DEPTH} products",
    lambda call, device: GemmProblem.of(call).least_side <= _MOST_ROWS and GemmProblem.of(call).k >= _LEAST_DEPTH,
    lambda call, device: str(GemmProblem.of(call)),
)

SKINNY_ROUTE = Route(
    "narrow",
    _build,
    finishing(NARROW),
    why="a product with a few vectors, for which the other operand is read once for every four of them, by all lanes "
    "of many workgroups",
    must=(FLOATS, loop_iterations(_most_iterations)),
    prefer=(ON_GPU, FEW),
    params=_params,
)
