"""The kernels of shaders/matmul."""

from vkconv.kernel import Kernel, constants, reads, writes
from vkconv.shaders.common import EPILOGUE, MATMUL_PUSH

MATMUL_SKINNY = Kernel(
    "matmul_skinny",
    bindings=(
        reads("ELEM a", "ELEM4 a4"),
        reads("ELEM b", "ELEM4 b4"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y"),
        reads("ELEM residual", when="RESIDUAL"),
    ),
    push=(*MATMUL_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("bool", BIAS_BY_ROW=False),
        *constants("int", TM=1, LANES_N=4, LANES_K=64),
        *constants("bool", B_BY_ROW=False),  # b lies along k, not n
        *constants("bool", A_VEC4=False),  # a lies along k in whole vec4
        *constants("bool", B_VEC4=False),
    ),
)
