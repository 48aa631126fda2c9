"""The kernels of shaders/conv/wgrad."""

from vkconv.kernel import Kernel, constants, fields, reads, updates, writes
from vkconv.shaders.common import COOPERATIVE_TILE

BACKWARD_WEIGHT_SUM_PUSH = (
    *fields("int", "n c_in d h w"),
    *fields("int", "c_out od oh ow groups"),
    *fields("int", "kd kh kw sd sh sw dd dh dw"),
    *fields("int", "pf pt pl"),
    *fields("int", "tile_n tile_d tile_h tile_w"),  # the reduction dimensions, cut into boxes of this size
    *fields("int", "per_box"),  # equal slices of each box
)

# Atomics add scale * sum to dw.
_STORED = "!ATOMIC_CAS !ATOMIC_FLOAT"

BACKWARD_WEIGHT_PUSH = (
    *BACKWARD_WEIGHT_SUM_PUSH,
    *fields("float", "scale"),
    *fields("float", "beta", when=_STORED),
    *fields("int", "first_slice", when=_STORED),  # where this launch's slices begin in the scratch
)

BACKWARD_WEIGHT_CONSTANTS = (
    *constants("bool", when=_STORED, TO_SCRATCH=False),  # each slice as it is, [slice][dw]; else the finished dw
    *constants("bool", when=_STORED, HAS_ADD=False),
)

BACKWARD_WEIGHT_COMBINE = Kernel(
    "backward_weight_combine",
    bindings=(
        reads("float slices"),
        reads("ELEM add"),
        writes("Y_ELEM dw"),
    ),
    push=(
        *fields("int", "total slice_count"),
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
        writes("float slices", "vec4 slices4"),
    ),
    push=(*BACKWARD_WEIGHT_SUM_PUSH,),
    constants=(
        *constants("bool", PADDED=False),  # windows may reach beyond x
        *constants("bool", WHOLE=False),  # the channels of a group are whole 8-wide vectors, in and out
        *constants("bool", DEEP=False),  # three dimensions
        *COOPERATIVE_TILE,
        *constants("int", KD=1, KH=3, KW=3),
    ),
    matrices=True,
)

BACKWARD_WEIGHT_DEPTHWISE = Kernel(
    "backward_weight_depthwise",
    subgroups=("SUBGROUPS",),
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        reads("ELEM dy", "ELEM4 dy4"),
        reads("ELEM add"),
        writes("Y_ELEM result"),
    ),
    push=(
        *fields("int", "n c_in h w c_out oh ow"),
        *fields("int", "multiplier"),  # output channels of an input channel
        *fields("int", "pt strip slice_count"),  # a strip is so many rows of dy
        *fields("float", "scale beta"),
        *fields("int", "first_slice"),
    ),
    constants=(
        *constants("bool", TO_SCRATCH=False, HAS_ADD=False),
        *constants("int", KH=3, KW=3, SH=1, SW=1, DH=1, DW=1, PL=1),
        *constants("int", COLUMNS=4, TOGETHER=2),
        *constants("bool", VEC4_X=False, VEC4_DY=False, TAIL=True),
        *constants("int", LANES=128),  # a power of two
        *constants("int", when="!SUBGROUPS", MEET=16),  # sums that meet at a time, a power of two and at most LANES
        *constants("int", when="SUBGROUPS", SUBGROUP=32),
    ),
)

BACKWARD_WEIGHT_PLANES = Kernel(
    "backward_weight_planes",
    subgroups=("SUBGROUPS",),
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        reads("ELEM dy", "ELEM4 dy4"),
        reads("ELEM add"),
        writes("Y_ELEM result"),
    ),
    push=(
        *fields("int", "n c_in c_out"),
        *fields("int", "multiplier"),  # output channels of an input channel
        *fields("int", "slice_count"),
        *fields("float", "scale beta"),
        *fields("int", "first_slice"),
    ),
    constants=(
        *constants("bool", TO_SCRATCH=False, HAS_ADD=False),
        *constants("int", H=14, W=14, OH=14, OW=14),
        *constants("int", KH=3, KW=3, SH=1, SW=1, DH=1, DW=1, PT=1, PL=1),
        *constants("int", BAND=14, UNITS=1, RY=14, PX=1, STAGED=1),
        *constants("int", X_VEC4S=49, DY_VEC4S=49),  # of a unit
        *constants("int", X_STRIDE=196, DY_STRIDE=196),  # elements from one unit to the next in shared memory
        *constants("int", LANES=128),  # a power of two
        *constants("int", when="!SUBGROUPS", MEET=16),  # sums that meet at a time, a power of two and at most LANES
        *constants("int", when="SUBGROUPS", SUBGROUP=32),
    ),
)

BACKWARD_WEIGHT_GEMM = Kernel(
    "backward_weight_gemm",
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        reads("ELEM dy", "ELEM4 dy4"),
        reads("ELEM add", when=_STORED),
        updates("float result", when="ATOMIC_FLOAT"),
        updates("uint result", when="ATOMIC_CAS", qualifiers="coherent restrict"),
        writes("Y_ELEM result", "Y_ELEM4 result4", when=_STORED),
    ),
    push=(*BACKWARD_WEIGHT_PUSH,),
    constants=(
        *BACKWARD_WEIGHT_CONSTANTS,
        *constants("bool", DEEP=False),  # three dimensions
        *constants("bool", PADDED=False),  # windows may reach beyond x
        *constants("int", BM=64, BN=64, BK=8, TM=8, TN=8, BUFFERS=1, KD=1, KH=3, KW=3),
        *constants("bool", UNROLL=True, VEC4=False, Y_VEC4=False),
        *constants("bool", BY_CHANNEL=False),  # operands lie along the channels of a group
    ),
)

BACKWARD_WEIGHT_SKINNY = Kernel(
    "backward_weight_skinny",
    bindings=(
        reads("ELEM x"),
        reads("ELEM dy"),
        reads("ELEM add", when=_STORED),
        updates("float result", when="ATOMIC_FLOAT"),
        updates("uint result", when="ATOMIC_CAS", qualifiers="coherent restrict"),
        writes("Y_ELEM result", when=_STORED),
    ),
    push=(*BACKWARD_WEIGHT_PUSH,),
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
    subgroups=("SUBGROUPS",),
    bindings=(
        reads("ELEM x"),
        reads("ELEM dy"),
        reads("ELEM add", when=_STORED),
        updates("float result", when="ATOMIC_FLOAT"),
        updates("uint result", when="ATOMIC_CAS", qualifiers="coherent restrict"),
        writes("Y_ELEM result", when=_STORED),
    ),
    push=(*BACKWARD_WEIGHT_PUSH,),
    constants=(
        *BACKWARD_WEIGHT_CONSTANTS,
        *constants("bool", PADDED=False),  # windows may reach beyond x
        *constants("int", ROWS=8, RUNS=1, PX=8),
        *constants("bool", ACROSS_GROUPS=False),
        *constants("int", TAPS_X=3, SW=1, DW=1),
        *constants("int", when="SUBGROUPS", SUBGROUP=8),
    ),
)
