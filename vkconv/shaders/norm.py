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
    *fields("uint", "parts"),
    *fields("uint", "chunk"),
)

ROW_SET_CONSTANTS = (
    *constants("bool", VEC4=False),
    *constants("uint", WALK=0),  # rows of WALKS in vkconv/ops/norm/row_sets.py
    *constants("uint", LANES=1),  # of a row
    *constants("uint", ITEMS=1),  # of a lane, where they stay in registers
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
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        writes("float made", when="PART"),
        reads("ELEM scale", "ELEM4 scale4", when="!PART"),
        reads("ELEM bias", "ELEM4 bias4", when="!PART"),
        reads("ELEM old_mean", when="!PART STATISTICS"),
        reads("ELEM old_variance", when="!PART STATISTICS"),
        writes("ELEM y", "ELEM4 y4", when="!PART"),
        writes("ELEM mean_made", when="!PART STATISTICS"),
        writes("ELEM spread_made", when="!PART STATISTICS"),
        reads("float made", when="APPLY"),
    ),
    push=(
        *ROW_SET_PUSH,
        *fields("uint", "parameter_period"),  # rows after which scale and bias begin anew
        *fields("uint", "parameter_step"),  # of theirs from row to row
        *fields("uint", "parameter_run"),  # elements that share one of theirs
        *fields("float", "eps"),
        *fields("float", "momentum"),
    ),
    constants=(
        *ROW_SET_CONSTANTS,
        *constants("bool", CENTRED=True),  # else mean is 0
        *constants("bool", HAS_SCALE=False, HAS_BIAS=False),
        *constants("uint", PARAMETERS=0),  # rows of PARAMETERS in vkconv/ops/norm/rows.py
        *constants("bool", RUNNING=False),  # statistics: moved towards the row's, not its mean and 1 / deviation
    ),
)

SOFTMAX = Kernel(
    "softmax",
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        writes("vec2 made", when="PART"),
        writes("ELEM y", "ELEM4 y4", when="!PART"),
        reads("vec2 made", when="APPLY"),
    ),
    push=(*ROW_SET_PUSH,),
    constants=(
        *ROW_SET_CONSTANTS,
        *constants("bool", LOG=False),
    ),
)
