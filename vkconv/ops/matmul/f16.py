"""Routes of matmul with products in f16."""

from vkconv.call import Call
from vkconv.ops.kernels.epilogue import finishing
from vkconv.ops.kernels.f16_accumulation import ACCUMULATION_DEPTH, F16, in_f16
from vkconv.ops.kernels.gemm import REGISTER, SHARED, GemmProblem
from vkconv.ops.matmul.simt import REGISTER_ROUTE, SHARED_ROUTE, build_register, build_shared


def _depth(call: Call) -> int:
    return min(GemmProblem.of(call).k, ACCUMULATION_DEPTH)


SHARED_F16 = in_f16(SHARED_ROUTE, build_shared, finishing(F16.variant(SHARED)), _depth)
REGISTER_F16 = in_f16(REGISTER_ROUTE, build_register, finishing(F16.variant(REGISTER)), _depth, whole=("columns", 2))
