"""The kernels of shaders/conv/transpose."""

from vkconv.kernel import Kernel, constants, fields, reads, writes
from vkconv.shaders.common import EPILOGUE
from vkconv.shaders.conv import CONV2D_PUSH, GEMM_TILE

CONV_TRANSPOSE2D_BLOCKS = Kernel(
    "conv_transpose2d_blocks",
    subgroups=("SHARED_LOADS",),
    bindings=(
        reads("ELEM x"),
        reads("ELEM4 weight"),
        reads("ELEM per_channel"),
        writes("ELEM4 y", when="WRITTEN=4"),
        writes("ELEM2 y", when="WRITTEN=2"),
        writes("ELEM y", when="WRITTEN=1"),
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", CO=8, PX=2, KH=3, KW=3, SH=1, SW=1, DH=1, DW=1, PT=0, PL=0),
        *constants("int", when="SHARED_LOADS", SUBGROUP=8),
        *constants("int", when="SHARED_MEMORY", IN_GROUP=1),
    ),
)

CONV_TRANSPOSE2D_COL2IM = Kernel(
    "conv_transpose2d_col2im",
    bindings=(
        reads("float x"),
        reads("ELEM per_channel"),
        writes("ELEM y"),
    ),
    push=(
        *CONV2D_PUSH,
        *fields("int", "first_image images first_row rows first_output outputs"),
    ),
    constants=(
        *EPILOGUE,
        *constants("int", SH=1, SW=1, DH=1, DW=1, GCD_H=1, GCD_W=1, INVERSE_H=0, INVERSE_W=0),
    ),
)

CONV_TRANSPOSE2D_DIRECT = Kernel(
    "conv_transpose2d_direct",
    bindings=(
        reads("ELEM x"),
        reads("ELEM weight"),
        reads("ELEM per_channel"),
        writes("ELEM y"),
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", SH=1, SW=1, DH=1, DW=1, GCD_H=1, GCD_W=1, INVERSE_H=0, INVERSE_W=0),
        *constants("bool", ONLY_EMPTY=False),  # the outputs that are in no phase
    ),
)

CONV_TRANSPOSE2D_PHASES = Kernel(
    "conv_transpose2d_phases",
    bindings=(
        reads("ELEM x"),
        reads("ELEM4 weight"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y"),
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *GEMM_TILE,
        *constants("bool", TOGETHER=True),
        *constants("int", SPLIT_K=1, GCD_H=1, GCD_W=1, INVERSE_H=0, INVERSE_W=0),
    ),
)

CONV_TRANSPOSE2D_TILE = Kernel(
    "conv_transpose2d_tile",
    bindings=(
        reads("ELEM x"),
        reads("ELEM weight"),
        reads("ELEM per_channel"),
        writes("ELEM y"),
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", CO=8, PX=8, TAPS=2),
        *constants("int", FIRST=0),  # k0 of the first phase along x
        *constants("int", PHASES=1),  # phases along x
        *constants("int", TAP_STEP_H=1, TAP_STEP_W=1, STEP_H=1, STEP_W=1),
    ),
)
