"""The kernels of shaders/conv/wgrad."""

from vkconv.kernel import Kernel, constants, fields, reads, updates, writes
from vkconv.shaders.common import COOPERATIVE_TILE

BACKWARD_WEIGHT_SUM_PUSH = (
    *fields("int", "n c_in d h w"),
    *fields("int", "c_out od oh ow groups"),
    *fields("int", "kd kh kw sd sh sw dd dh dw"),
    *fields("int", "pf pt pl"),
    *fields("int", "tile_n tile_d tile_h tile_w"),  # the reduction dimensions, cut into boxes of this size
    *fields("int", "cuts"),  # equal parts of each box
    *fields("int", "first_part"),  # where this launch's parts begin in the scratch
    *fields("float", "scale beta"),
)

BACKWARD_WEIGHT_CONSTANTS = (
    *constants("bool", TO_PARTS=False),  # each part as it is, [part][dw]; else the finished dw
    *constants("bool", HAS_ADD=False),
)

BACKWARD_WEIGHT_COMBINE = Kernel(
    "backward_weight_combine",
    bindings=(
        reads("float parts"),
        reads("ELEM add"),
        writes("ELEM dw"),
    ),
    push=(
        *fields("int", "total part_count"),
        *fields("int", "taps channels"),
        *fields("float", "scale beta"),
    ),
    constants=(
        *constants("bool", HAS_ADD=False),
        *constants("int", LANES=1),
        *constants("int", ELEMENTS=64),  # of a workgroup, neighbours in neighbouring invocations
        *constants("bool", BY_TAPS=False),
    ),
)

BACKWARD_WEIGHT_COOPERATIVE = Kernel(
    "backward_weight_cooperative",
    bindings=(
        reads("ELEM x"),
        reads("ELEM dy"),
        writes("float parts", "vec4 parts4"),
    ),
    push=(*BACKWARD_WEIGHT_SUM_PUSH,),
    constants=(
        *constants("bool", PADDED=False),  # windows may reach beyond x
        *constants("bool", WHOLE=False),  # the channels of a group are whole eights, in and out
        *constants("bool", DEEP=False),  # three dimensions
        *COOPERATIVE_TILE,
        *constants("int", KD=1, KH=3, KW=3),
    ),
    matrices=True,
)

BACKWARD_WEIGHT_GEMM = Kernel(
    "backward_weight_gemm",
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        reads("ELEM dy", "ELEM4 dy4"),
        reads("ELEM add"),
        updates("float result", when="ATOMIC_FLOAT"),
        updates("uint result", when="ATOMIC_CAS", qualifiers="coherent restrict"),
        writes("Y_ELEM result", when="!ATOMIC_CAS !ATOMIC_FLOAT"),
    ),
    push=(*BACKWARD_WEIGHT_SUM_PUSH,),
    constants=(
        *BACKWARD_WEIGHT_CONSTANTS,
        *constants("bool", DEEP=False),  # three dimensions
        *constants("bool", PADDED=False),  # windows may reach beyond x
        *constants("int", BM=64, BN=64, BK=8, TM=8, TN=8, BUFFERS=1, KD=1, KH=3, KW=3),
        *constants("bool", FOURS=False),
    ),
)

BACKWARD_WEIGHT_NARROW = Kernel(
    "backward_weight_narrow",
    bindings=(
        reads("ELEM x"),
        reads("ELEM dy"),
        reads("ELEM add"),
        updates("float result", when="ATOMIC_FLOAT"),
        updates("uint result", when="ATOMIC_CAS", qualifiers="coherent restrict"),
        writes("Y_ELEM result", when="!ATOMIC_CAS !ATOMIC_FLOAT"),
    ),
    push=(*BACKWARD_WEIGHT_SUM_PUSH,),
    constants=(
        *BACKWARD_WEIGHT_CONSTANTS,
        *constants("bool", DEEP=False),  # three dimensions
        *constants("bool", PADDED=False),  # windows may reach beyond x
        *constants("int", ROWS=1, PX=4, TAPS_Y=3, TAPS_X=3, SH=1, DH=1),
        *constants("int", LANES=128),  # a power of two
        *constants("int", MEET=16),  # sums that meet at a time, a power of two and at most LANES
    ),
)

BACKWARD_WEIGHT_ROWS = Kernel(
    "backward_weight_rows",
    bindings=(
        reads("ELEM x"),
        reads("ELEM dy"),
        reads("ELEM add"),
        updates("float result", when="ATOMIC_FLOAT"),
        updates("uint result", when="ATOMIC_CAS", qualifiers="coherent restrict"),
        writes("Y_ELEM result", when="!ATOMIC_CAS !ATOMIC_FLOAT"),
    ),
    push=(*BACKWARD_WEIGHT_SUM_PUSH,),
    constants=(
        *BACKWARD_WEIGHT_CONSTANTS,
        *constants("bool", DEEP=False),  # three dimensions
        *constants("bool", PADDED=False),  # windows may reach beyond x
        *constants("int", ROWS=8, UNITS=1, PX=8),
        *constants("bool", ACROSS_GROUPS=False),
        *constants("int", TAPS_X=3, SW=1, DW=1, SUBGROUP=8),
    ),
)
