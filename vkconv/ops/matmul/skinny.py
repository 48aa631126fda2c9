"""The route of matmul for skinny operands, a few rows or columns: all lanes of a workgroup share a few sums."""

import dataclasses

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.requirements import FLOATS, ON_GPU, loop_iterations
from vkconv.ops.kernels.epilogue import finishing
from vkconv.ops.kernels.gemm import GemmProblem, in_one_launch, oriented
from vkconv.ops.kernels.skinny import SKINNY, most_iterations, skinny_params, skinny_product
from vkconv.policy import Policy
from vkconv.program import Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route


def _build(call: Call, device: Device, params: Params) -> Program:
    g, operands = oriented(call, params)
    return in_one_launch(call, device, lambda e: skinny_product(g, operands, e, params, device))


@dataclasses.dataclass(frozen=True, slots=True)
class Few:
    """Rows or columns up to which, and products of a sum from which on, lanes share sums."""

    side: int
    depth: int


_FEW = Policy("matmul.skinny", Few)


def _is_few(call: Call, device: Device) -> bool:
    g, few = GemmProblem.of(call), _FEW.of(device)
    return g.least_side <= few.side and g.k >= few.depth


FEW = Requirement(
    "as few rows or columns, and sums as long, as lanes share on such devices",
    _is_few,
    lambda call, device: (
        f"{GemmProblem.of(call)}, at most {_FEW.of(device).side} rows or columns, sums of at least "
        f"{_FEW.of(device).depth}"
    ),
)

SKINNY_ROUTE = Route(
    "skinny",
    _build,
    finishing(SKINNY),
    why="a product with a few vectors, for which the other operand is read once for every four of them, by all lanes "
    "of many workgroups",
    must=(FLOATS, loop_iterations(lambda call, device: most_iterations(GemmProblem.of(call).k))),
    prefer=(ON_GPU, FEW),
    params=lambda call, device: skinny_params(GemmProblem.of(call), device),
)
