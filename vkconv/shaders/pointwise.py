"""The kernels of shaders/pointwise."""

from vkconv.kernel import Form, Kernel, constants, fields, reads, writes
from vkconv.shaders.common import WALK

BINARY = Kernel(
    "binary",
    bindings=(
        reads("ELEM a"),
        reads("ELEM b"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "chunk"),
        *fields("uint", "n[8]"),
        *fields("int", "a_stride[8]"),
        *fields("int", "b_stride[8]"),
    ),
    constants=(
        *WALK,
        *constants("uint", FUNCTION=0),
    ),
)

CAST = Kernel(
    "cast",
    bindings=(
        reads("uint x"),
        writes("uint y"),
    ),
    push=(*fields("uint", "count"),),
    constants=(*constants("uint", SOURCE=0, TARGET=0),),
)

CHAIN = Kernel(
    "chain",
    bindings=(
        reads("ELEM x0", "ELEM4 x0_vec4"),
        reads("ELEM x1", "ELEM4 x1_vec4"),
        reads("ELEM x2", "ELEM4 x2_vec4"),
        writes("ELEM y", "ELEM4 y_vec4"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "chunk"),
        *fields("float", "number[12]"),
        *fields("uint", "n[4]"),
        *fields("int", "x0_stride[4]"),
        *fields("int", "x1_stride[4]"),
        *fields("int", "x2_stride[4]"),
    ),
    constants=(
        *WALK,
        *constants("bool", VEC4=False),  # rows are whole vec4, of every operand or of none
        *constants("uint", STEP_0=0, STEP_1=0),
        *constants("uint", when="!STEPS=2", STEP_2=0, STEP_3=0),
        *constants("uint", when="STEPS=8", STEP_4=0, STEP_5=0, STEP_6=0, STEP_7=0),
    ),
)

CLASSIFY = Kernel(
    "classify",
    bindings=(
        reads("ELEM x", form=Form.WORDS),
        writes("uint y"),
    ),
    push=(*fields("uint", "count"),),
    constants=(*constants("uint", FUNCTION=0),),
)

COMPARE = Kernel(
    "compare",
    bindings=(
        reads("ELEM a"),
        reads("ELEM b"),
        writes("uint y"),
    ),
    push=(
        *fields("uint", "count"),
        *fields("uint", "n[8]"),
        *fields("int", "a_stride[8]"),
        *fields("int", "b_stride[8]"),
    ),
    constants=(*constants("uint", RANK=1, FUNCTION=0),),
)

LOGIC = Kernel(
    "logic",
    bindings=(
        reads("ELEM a", form=Form.WORDS),
        reads("ELEM b", form=Form.WORDS),
        writes("ELEM y", form=Form.WORDS),
    ),
    push=(
        *fields("uint", "count"),
        *fields("uint", "n[8]"),
        *fields("int", "a_stride[8]"),
        *fields("int", "b_stride[8]"),
    ),
    constants=(*constants("uint", RANK=1, FUNCTION=0),),
)

UNARY = Kernel(
    "unary",
    bindings=(
        reads("ELEM x"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "count"),
        *fields("uint", "chunk"),
        *fields("float", "a b", when="!DTYPE_i32 !DTYPE_i64"),
    ),
    constants=(*constants("uint", FUNCTION=0, ITEMS=1),),
)

WHERE = Kernel(
    "where",
    bindings=(
        reads("uint condition"),
        reads("ELEM a"),
        reads("ELEM b"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "chunk"),
        *fields("uint", "n[6]"),
        *fields("int", "c_stride[6]"),
        *fields("int", "a_stride[6]"),
        *fields("int", "b_stride[6]"),
    ),
    constants=(*WALK,),
    moves=True,
)
