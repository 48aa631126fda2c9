"""The kernels of shaders/norm."""

from vkconv.kernel import Kernel, constants, fields, reads, writes

ROW_SET_PUSH = (
    *fields("uint", "rows"),
    *fields("uint", "count"),
    *fields("uint", "period"),
    *fields("uint", "outer_step"),
    *fields("uint", "inner_step"),
    *fields("uint", "run"),
    *fields("uint", "run_step"),
    *fields("uint", "parts chunk", when="PARTS"),  # of a row; elements of each but the last
)

ROW_SET_CONSTANTS = (
    *constants("bool", VEC4=False),
    *constants("uint", WALK=0),  # rows of WALKS in vkconv/ops/norm/row_sets.py
    *constants("uint", LANES=1),  # of a row
    *constants("uint", when="REGISTERS", ITEMS=1),  # of a lane
)

BATCH_NORM = Kernel(
    "batch_norm",
    bindings=(
        reads("ELEM x"),
        reads("ELEM scale"),
        reads("ELEM bias"),
        reads("ELEM mean"),
        reads("ELEM var"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "chunk"),
        *fields("uint", "channels"),
        *fields("uint", "inner"),  # elements of one channel of one image
        *fields("float", "eps"),
    ),
    constants=(*constants("uint", ITEMS=1),),
)

HARDMAX = Kernel(
    "hardmax",
    bindings=(
        reads("ELEM x"),
        writes("ELEM y"),
    ),
    push=(*fields("uint", "lines length inner"),),
)

NORMALIZE = Kernel(
    "normalize",
    subgroups=("REDUCTION_SUBGROUP",),
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        writes("float made", when="PART"),
        reads("ELEM scale", "ELEM4 scale4", when="!PART"),
        reads("ELEM bias", "ELEM4 bias4", when="!PART"),
        reads("ELEM old_mean", when="!PART STATISTICS"),
        reads("ELEM old_variance", when="!PART STATISTICS"),
        writes("ELEM y", "ELEM4 y4", when="!PART"),
        writes("ELEM mean_made", when="!PART STATISTICS"),
        writes("ELEM deviation_made", when="!PART STATISTICS"),
        reads("float made", when="APPLY"),
    ),
    push=(
        *ROW_SET_PUSH,
        *fields("uint", "parameter_period", when="!PART"),  # rows after which scale and bias begin anew
        *fields("uint", "parameter_step", when="!PART"),  # of theirs from row to row
        *fields("uint", "parameter_run", when="!PART"),  # elements that share one of theirs
        *fields("float", "eps"),
        *fields("float", "momentum", when="STATISTICS"),
    ),
    constants=(
        *ROW_SET_CONSTANTS,
        *constants("bool", CENTRED=True),  # else mean is 0
        *constants("bool", when="!PART", HAS_SCALE=False, HAS_BIAS=False),
        *constants("uint", when="!PART", PARAMETERS=0),  # rows of PARAMETERS in vkconv/ops/norm/rows.py
        # Moved towards the row's statistics, else its mean and 1 / deviation.
        *constants("bool", when="STATISTICS", RUNNING=False),
    ),
)

SOFTMAX = Kernel(
    "softmax",
    subgroups=("REDUCTION_SUBGROUP",),
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        writes("vec2 made", when="PART"),
        writes("ELEM y", "ELEM4 y4", when="!PART"),
        reads("vec2 made", when="APPLY"),
    ),
    push=(*ROW_SET_PUSH,),
    constants=(
        *ROW_SET_CONSTANTS,
        *constants("bool", ZERO_ROWS=False),  # else a row of nothing but -inf becomes NaN
        *constants("bool", when="!PART", LOG=False),
    ),
)
