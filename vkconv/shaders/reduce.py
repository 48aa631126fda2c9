"""The kernels of shaders/reduce."""

from vkconv.kernel import Kernel, constants, fields, reads, updates, writes

REDUCE_PUSH = (
    *fields("uint", "outputs"),
    *fields("uint", "count"),  # elements reduced into one output
    *fields("uint", "lines run run_stride"),
    *fields("uint", "part_lines"),  # lines of a part, and elements of each of them
    *fields("uint", "part_run"),
    *fields("uint", "line_splits"),  # parts that a line is cut into
    *fields("uint", "parts"),
    *fields("uint", "kept_n[4]"),
    *fields("uint", "kept_stride[4]"),
    *fields("uint", "line_n[3]"),
    *fields("uint", "line_stride[3]"),
)

REDUCE_CONSTANTS = (
    *constants("uint", FUNCTION=0),  # rows of FUNCTIONS in vkconv/ops/reduce/problem.py
    *constants("uint", KEPT_RANK=1, LINE_RANK=1),
)

TO_PARTS = (*constants("bool", TO_PARTS=False),)  # combined terms as they are, [part][output]; else finished

# LOG_SUM_EXP, which there is of floats alone: the maxima are in a buffer.
GIVEN_PEAK = (*constants("bool", when="!DTYPE_i32", GIVEN_PEAK=False),)

ARG_REDUCE = Kernel(
    "arg_reduce",
    subgroups=("REDUCTION_SUBGROUP",),
    bindings=(
        reads("ELEM x", when="!FROM_PARTS"),
        reads("uvec2 x", when="FROM_PARTS"),
        writes("uint y"),
    ),
    push=(
        *fields("uint", "outputs"),  # of every part
        *fields("uint", "n"),  # elements of the axis
        *fields("uint", "inner"),  # their distance
        *fields("uint", "parts part_n", when="!DTYPE_i64"),  # of the axis, and elements of each
    ),
    constants=(
        *constants("bool", when="!FROM_PARTS", MINIMUM=False),
        *constants("bool", LAST=False),  # of equals, the last one and not the first
        *constants("bool", WIDE=False),  # 64-bit indices, written as two words
        *constants("bool", when="!DTYPE_i64", TO_PARTS=False),
        *constants("uint", when="!DTYPE_i64", LOADS=4),
        *constants("uint", when="REDUCTION_TREE", ACROSS=1),
        *constants("uint", when="REDUCTION_SUBGROUP", ACROSS=1),
    ),
)

CUMULATIVE = Kernel(
    "cumulative",
    bindings=(
        reads("ELEM x"),
        writes("ELEM y"),
    ),
    push=(*fields("uint", "lines length inner"),),
    constants=(
        *constants("uint", KIND=0),  # 0 sum, 1 product
        *constants("bool", EXCLUSIVE=False, REVERSE=False),
    ),
)

REDUCE = Kernel(
    "reduce",
    bindings=(
        reads("X_ELEM x"),
        writes("Y_ELEM y"),
    ),
    push=(*REDUCE_PUSH,),
    constants=(*REDUCE_CONSTANTS,),
)

REDUCE_ATOMIC = Kernel(
    "reduce_atomic",
    bindings=(
        reads("ELEM x"),
        reads("VALUE peaks", when="!DTYPE_i32"),
        updates("int y", when="DTYPE_i32", qualifiers="coherent restrict"),
        updates("uint y", when="!DTYPE_i32 !ATOMIC_FLOAT", qualifiers="coherent restrict"),
        updates("uint y", "float y_float", when="!DTYPE_i32 ATOMIC_FLOAT", qualifiers="coherent"),
    ),
    push=(*REDUCE_PUSH,),
    constants=(
        *REDUCE_CONSTANTS,
        *constants("uint", ITEMS=1),
    ),
)

REDUCE_CLUSTERS = Kernel(
    "reduce_clusters",
    subgroups=(),
    bindings=(
        reads("X_ELEM x"),
        writes("Y_ELEM y"),
    ),
    push=(*REDUCE_PUSH,),
    constants=(
        *REDUCE_CONSTANTS,
        *constants("uint", SUBGROUP=32, CLUSTER=8),  # lanes of a subgroup, and of an output
    ),
)

REDUCE_COLUMNS = Kernel(
    "reduce_columns",
    bindings=(
        reads("X_ELEM x", when="!VEC4"),
        reads("X_ELEM4 x", when="VEC4"),
        reads("VALUE peaks", when="!VEC4 !DTYPE_i32"),
        reads("VALUE4 peaks", when="VEC4 !DTYPE_i32"),
        writes("Y_ELEM y", when="!VEC4"),
        writes("Y_ELEM4 y", when="VEC4"),
    ),
    push=(*REDUCE_PUSH,),
    constants=(
        *REDUCE_CONSTANTS,
        *TO_PARTS,
        *GIVEN_PEAK,
        *constants("uint", ACROSS=64, LOADS=8, SPAN=1, RUN_SLABS=1),
    ),
)

REDUCE_COMBINE = Kernel(
    "reduce_combine",
    bindings=(
        reads("VALUE part", "uint part_keys", when="!DTYPE_i32"),
        reads("VALUE part", when="DTYPE_i32"),
        reads("VALUE peaks", when="!DTYPE_i32"),
        writes("Y_ELEM y", "uint y_keys", when="!DTYPE_i32"),
        writes("Y_ELEM y", when="DTYPE_i32"),
    ),
    push=(*REDUCE_PUSH,),
    constants=(
        *REDUCE_CONSTANTS,
        *TO_PARTS,
        *constants("uint", LANES=1),
        *constants("uint", ELEMENTS=64),  # of a workgroup, neighbours in neighbouring lanes
        *constants("bool", when="!DTYPE_i32", KEYS=False),  # maxima or minima as integers of the same order
    ),
)

REDUCE_ROWS = Kernel(
    "reduce_rows",
    subgroups=("REDUCTION_SUBGROUP",),
    bindings=(
        reads("X_ELEM x", "X_ELEM4 x4"),
        reads("VALUE peaks", when="!DTYPE_i32"),
        writes("Y_ELEM y"),
    ),
    push=(*REDUCE_PUSH,),
    constants=(
        *REDUCE_CONSTANTS,
        *TO_PARTS,
        *GIVEN_PEAK,
        *constants("uint", ACROSS=64, LOADS=8),
        *constants("bool", WHOLE=False),  # every part of a line begins at a vec4 and is whole ones
    ),
)

TOPK = Kernel(
    "topk",
    bindings=(
        reads("ELEM x"),
        writes("ELEM values"),
        writes("uvec2 indices"),
    ),
    push=(*fields("uint", "total length inner k"),),
    constants=(*constants("bool", LARGEST=True),),
)

TOPK_KEYS = Kernel(
    "topk_keys",
    bindings=(
        reads("ELEM x"),
        writes("uvec2 pairs"),
    ),
    push=(*fields("uint", "total length padded inner"),),
    constants=(*constants("bool", LARGEST=True),),
)

TOPK_SORT = Kernel(
    "topk_sort",
    bindings=(updates("uvec2 pairs"),),
    push=(*fields("uint", "exchanges apart block"),),
)

TOPK_TAKE = Kernel(
    "topk_take",
    bindings=(
        reads("ELEM x"),
        reads("uvec2 pairs"),
        writes("ELEM values"),
        writes("uvec2 indices"),
    ),
    push=(*fields("uint", "total length padded inner k"),),
)
