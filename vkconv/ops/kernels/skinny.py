"""Products of few rows: all lanes of a workgroup share a few sums, so that many of them read the other operand once."""

import dataclasses
from collections.abc import Mapping

from vkconv import shaders
from vkconv.core import ceil_div
from vkconv.cost import scaled
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import first, local_sizes, most_invocations, over_workgroups
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.gemm import VEC4, GemmProblem, Operands, buffers, constants, push
from vkconv.ops.kernels.prepack import Sizes
from vkconv.policy import Policy
from vkconv.program import Dispatch
from vkconv.route import Params

SKINNY = Shader(shaders.kernels.MATMUL_SKINNY)
_ROWS = Sizes((4, 2, 1), (8,))
_LANES, _LOCAL = (16, 8, 4, 2, 1, 32), (256, 512, 128, 64)
LANES_PER_UNIT = Policy("kernels.skinny_lanes_per_unit", int)


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Lanes that a workgroup has at most, and along the columns at the least: where b lies along these, neighbours read
    it together."""

    local: int
    least: int


@dataclasses.dataclass(frozen=True, slots=True)
class Shapes:
    """Of workgroups, where b lies along k and along the columns; lanes along the columns at most, of both."""

    along_k: Shape
    along_columns: Shape
    most_columns: int


_SHAPES = Policy("kernels.skinny_shapes", Shapes)


def _along_k(g: GemmProblem) -> bool:
    """Whether b lies along k, not along the columns."""
    return g.b[0] == 1


def _blocks(g: GemmProblem, rows: int, lanes: int) -> int:
    return g.blocks(rows, VEC4 * lanes)


def _iterations(k: int, rows: int, lanes: int, local: int) -> int:
    """Of all loops of an invocation: along k, and twice over its outputs, since they have shares only where lanes are
    left for these."""
    return ceil_div(k, VEC4 * local // lanes) + 2 * ceil_div(VEC4 * rows * lanes, local)


def most_iterations(k: int) -> int:
    """Loop iterations of an invocation for sums of so many products, by whatever parameters."""
    return _iterations(k, max(*_ROWS.rule, *_ROWS.more), max(_LANES), min(_LOCAL))


def _power_within(most: int) -> int:
    """The largest power of two that is no more, at least 1."""
    return 1 << max(most.bit_length() - 1, 0)


def skinny_params(g: GemmProblem, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The parameters that `skinny_product` may take, with ``swap`` for the problem transposed, the rule's pick
    first."""
    swap = g.n < g.m
    g = g.transposed() if swap else g
    rows = _ROWS.values(g.m, device)
    shapes = _SHAPES.of(device)
    shape = shapes.along_k if _along_k(g) else shapes.along_columns
    most = min(shape.local, _power_within(most_invocations(device)))
    # As many along k as bring all compute units to work, and no power of two more than have steps to make.
    wanted = scaled(LANES_PER_UNIT.of(device), device) // max(_blocks(g, rows[0], 1), 1)
    along_k = min(_power_within(wanted), _power_within(2 * ceil_div(g.k, VEC4) - 1), most // shape.least)
    lanes = min(shapes.most_columns, most // along_k)
    local = max(min(_LOCAL), lanes * along_k)
    return {
        "rows": rows,
        "lanes": first(lanes, _LANES),
        "local": local_sizes(device, local, *(size for size in _LOCAL if size != local)),
        "swap": (1, 0) if swap else (0, 1),
    }


def skinny_product(g: GemmProblem, operands: Operands, e: Epilogue, params: Params, device: Device) -> Dispatch:
    """A product, already transposed where ``swap`` says so, by workgroups of ``rows`` x 4 ``lanes`` outputs."""
    lanes, local = params["lanes"], params["local"]
    # As many rows as shared memory holds the sums of.
    rows = min(params["rows"], _power_within(device.limit("maxComputeSharedMemorySize") // (4 * VEC4 * local)))
    tile = {"TM": rows, "LANES_N": lanes, "LANES_K": local // lanes}
    b_vec4 = g.b_in_vectors(VEC4)
    a_vec4 = _along_k(g) and b_vec4 and g.a[1] == 1 and g.a_in_vectors(VEC4)
    return Dispatch(
        e.variant(SKINNY),
        buffers(operands, e),
        *over_workgroups(_blocks(g, rows, lanes), local, device),
        push(g, e),
        {**constants(g, e), **tile, "B_BY_ROW": _along_k(g), "A_VEC4": a_vec4, "B_VEC4": b_vec4},
        4 * VEC4 * rows * local,
        _iterations(g.k, rows, lanes, local),
    )
