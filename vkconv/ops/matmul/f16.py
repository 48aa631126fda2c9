"""Routes of matmul with products in f16."""

from vkconv.call import Call
from vkconv.ops.kernels.f16_accumulation import LONGEST_CHAIN, in_half, links
from vkconv.ops.kernels.gemm import SHARED_TILES, GemmProblem
from vkconv.ops.matmul.simt import REGISTER_ROUTE, SHARED_ROUTE


def _depth(call: Call) -> int:
    return min(GemmProblem.of(call).k, LONGEST_CHAIN)


SHARED_F16 = in_half(
    SHARED_ROUTE, _depth, "matmul_shared", lambda call, params: links(SHARED_TILES[params["tile"]].depth)
)
REGISTER_F16 = in_half(REGISTER_ROUTE, _depth, "matmul_register", lambda call, params: links(1), whole=("columns", 2))
