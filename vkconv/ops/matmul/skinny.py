"""The route of matmul for skinny operands, a few rows or columns: all lanes of a workgroup share a few sums."""

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.requirements import FLOATS, ON_GPU, loop_iterations
from vkconv.ops.kernels.epilogue import finishing
from vkconv.ops.kernels.gemm import GemmProblem, in_one_launch, oriented
from vkconv.ops.kernels.skinny import SKINNY, most_iterations, skinny_params, skinny_product
from vkconv.program import Program
from vkconv.route import Params, Requirement, Route


def _build(call: Call, device: Device, params: Params) -> Program:
    g, operands = oriented(call, params)
    return in_one_launch(call, device, lambda e: skinny_product(g, operands, e, params, device))


_MOST_ROWS, _LEAST_DEPTH = 31, 64
FEW = Requirement.of(
    f"at most {_MOST_ROWS} rows or columns, each a sum of at least {_LEAST_DEPTH} products",
    GemmProblem.of,
    lambda g: g.least_side <= _MOST_ROWS and g.k >= _LEAST_DEPTH,
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
