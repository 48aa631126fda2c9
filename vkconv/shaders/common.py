"""What kernels of several families declare alike: the interfaces of shaders/include."""

from vkconv.kernel import constants, fields

WALK = (*constants("uint", RANK=1, ITEMS=1),)

EPILOGUE = (
    *constants("uint", ACT=0),
    *constants("uint", PER_CHANNEL=0),  # 1: a bias, 2: a slope, 4: a scale and shift for all
)

F16_DEPTH = (*constants("int", when="HALF_MATH", F16_DEPTH=32),)

PROLOGUE = (
    *constants("uint", when="PROLOGUE", BEFORE=0),
    *constants("bool", when="PROLOGUE", HAS_SHIFT=False),
    *constants("bool", when="PROLOGUE", EACH_IMAGE=False),  # scales of each image, else of all
)

REDUCED = (
    *constants("uint", when="REDUCE", FUNCTION=0),
    *constants("uint", when="REDUCE ALSO", SECOND=0),
    *constants("bool", when="REDUCE", TO_PARTS=False),  # to be combined, else one result for each output
)

# Where the numbers of an addend lie that repeats along dimensions of a product (shaders/include/addends.glsl).
ADDENDS = (
    *constants("int", when="REDUCE BROADCAST", FIRST_RUN=1, FIRST_COUNT=1, FIRST_OUTER=0, FIRST_ROW=0),
    *constants("int", when="REDUCE BROADCAST", FIRST_WIDTH=1, FIRST_LINE=0, FIRST_COLUMN=0),
    *constants("bool", when="REDUCE BROADCAST", HAS_SECOND=False),
    *constants("int", when="REDUCE BROADCAST", SECOND_RUN=1, SECOND_COUNT=1, SECOND_OUTER=0, SECOND_ROW=0),
    *constants("int", when="REDUCE BROADCAST", SECOND_WIDTH=1, SECOND_LINE=0, SECOND_COLUMN=0),
)
REDUCED_PUSH = (
    *fields("float", "divisor", when="REDUCE"),
    *fields("int", "also_at", when="REDUCE ALSO"),  # where parts of the second reduction begin
)

COOPERATIVE_TILE = (
    *constants("int", BM=32, BN=32, BK=16, SM=16, SN=16, TEAMS=1),
    *constants("int", when="!REDUCE", STAGED=1, STAGED_ROWS=1),
    *constants("int", MM=16, MN=16, MK=16),
    *constants("int", SUBGROUP=32, A_COL=0, B_ROW=0),
)

MATMUL_PUSH = (
    *fields("int", "m n k"),
    *fields("int", "a_row a_col b_row b_col"),
    *fields("int", "y_row y_col"),
    *fields("int", "batch[4] a_batch[4] b_batch[4]"),
    *fields("int", "a_base b_base y_base"),
    *fields("float", "alpha beta act_a act_b"),
)
