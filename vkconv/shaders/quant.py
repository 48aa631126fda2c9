"""The kernels of shaders/quant."""

from vkconv.kernel import Kernel, constants, fields, reads, writes

INTEGER_CONV_PUSH = (
    *fields("int", "n c_in h w c_out oh ow groups"),
    *fields("int", "kh kw sh sw dh dw pt pl"),
)

INTEGER_CONV_RESULT = (*constants("uint", RESULT=0),)  # sums, bytes without or with sign

INTEGER_CONV_CONSTANTS = (
    *constants("bool", X_SIGNED=False, HAS_X_ZERO=False),
    *INTEGER_CONV_RESULT,
)

INTEGER_MATMUL_PUSH = (
    *fields("int", "m n k"),
    *fields("int", "own_rows"),  # of which the axes tell; batches may have become more
    *fields("int", "batch[4] a_batch[4] b_batch[4]"),
)

INTEGER_MATMUL_CONSTANTS = (
    *constants("bool", A_SIGNED=False, B_SIGNED=False),
    *constants("uint", RESULT=0),  # sums, bytes without or with sign
)

DEQUANTIZE_LINEAR = Kernel(
    "dequantize_linear",
    bindings=(
        reads("uint x"),
        reads("float scale"),
        reads("uint zero"),
        writes("float y", "vec4 y4"),
    ),
    push=(*fields("uint", "count channels inner"),),
    constants=(
        *constants("bool", BYTES=True, SIGNED=False, HAS_ZERO=True, PER_AXIS=True),
        *constants("bool", VEC4=False),  # y is of whole vec4
    ),
)

DYNAMIC_RANGE = Kernel(
    "dynamic_range",
    bindings=(
        reads("float x"),
        writes("vec2 ends"),
    ),
    push=(*fields("uint", "count lanes"),),
)

DYNAMIC_SCALE = Kernel(
    "dynamic_scale",
    bindings=(
        reads("vec2 ends"),
        writes("float scale"),
        writes("uint zero"),
    ),
    push=(*fields("uint", "lanes"),),
)

INTEGER_AXES = Kernel(
    "integer_axes",
    bindings=(
        reads("uint a_zero"),
        reads("uint b_zero"),
        reads("float a_scale"),
        reads("float b_scale"),
        reads("float y_scale"),
        reads("uint y_zero"),
        writes("ivec2 axes"),
    ),
    push=(*fields("uint", "m n"),),
    constants=(
        *constants("bool", A_SIGNED=False, B_SIGNED=False, Y_SIGNED=False),
        *constants("uint", A_ZEROS=0, B_ZEROS=0, A_SCALES=0, B_SCALES=0),
    ),
)

INTEGER_CHANNELS = Kernel(
    "integer_channels",
    bindings=(
        reads("uint weight"),
        reads("uint w_zero"),
        reads("int bias"),
        reads("float x_scale"),
        reads("float w_scale"),
        reads("float y_scale"),
        reads("uint y_zero"),
        writes("ivec4 channels"),
    ),
    push=(*fields("uint", "c_out taps"),),
    constants=(
        *constants(
            "bool",
            W_SIGNED=False,
            Y_SIGNED=False,
            HAS_W_ZERO=False,
            HAS_BIAS=False,
            HAS_SCALES=False,
            ZERO_PER_CHANNEL=False,
            SCALE_PER_CHANNEL=False,
        ),
    ),
)

INTEGER_DIRECT = Kernel(
    "integer_direct",
    bindings=(
        reads("uint x"),
        reads("uint weight"),
        reads("uint x_zero_word"),
        reads("ivec4 channels"),
        writes("uint y"),
    ),
    push=(*INTEGER_CONV_PUSH,),
    constants=(
        *INTEGER_CONV_CONSTANTS,
        *constants("bool", W_SIGNED=False),
    ),
)

INTEGER_FINISH = Kernel(
    "integer_finish",
    bindings=(
        reads("uint x"),
        reads("ivec4 channels"),
        writes("uint y"),
    ),
    push=(*fields("int", "n c_out oh ow"),),
    constants=(*INTEGER_CONV_RESULT,),
)

INTEGER_GEMM = Kernel(
    "integer_gemm",
    bindings=(
        reads("uint x"),
        reads("uint weight"),
        reads("uint x_zero_word"),
        reads("ivec4 channels"),
        writes("uint y"),
    ),
    push=(*INTEGER_CONV_PUSH,),
    constants=(
        *INTEGER_CONV_CONSTANTS,
        *constants("int", ROWS=64, COLUMNS=64, DEPTH=8, TR=4),
    ),
)

INTEGER_MATMUL_DIRECT = Kernel(
    "integer_matmul_direct",
    bindings=(
        reads("uint a"),
        reads("uint b"),
        reads("ivec2 axes"),
        writes("uint y"),
    ),
    push=(*INTEGER_MATMUL_PUSH,),
    constants=(
        *INTEGER_MATMUL_CONSTANTS,
        *constants("bool", BOTH=False),  # rows and columns have scales
    ),
)

INTEGER_MATMUL_GEMM = Kernel(
    "integer_matmul_gemm",
    bindings=(
        reads("uint a"),
        reads("uint b"),
        reads("ivec2 axes"),
        writes("uint y"),
    ),
    push=(*INTEGER_MATMUL_PUSH,),
    constants=(
        *INTEGER_MATMUL_CONSTANTS,
        *constants("int", ROWS=64, COLUMNS=64, DEPTH=8, TR=4),
        *constants("bool", WHOLE_ROWS=False),  # rows of a are whole words
    ),
)

INTEGER_MATMUL_SUBGROUP = Kernel(
    "integer_matmul_subgroup",
    subgroups=(),
    bindings=(
        reads("uint a"),
        reads("uint b"),
        reads("ivec2 axes"),
        writes("uint y"),
    ),
    push=(*INTEGER_MATMUL_PUSH,),
    constants=(
        *INTEGER_MATMUL_CONSTANTS,
        *constants("int", TM=16, TN=8, SUBGROUP=8),
        *constants("bool", A_WORDS=False),  # rows of a are whole words
        *constants("bool", B_WORDS=False),
    ),
)

INTEGER_PACK = Kernel(
    "integer_pack",
    bindings=(
        reads("uint weight"),
        writes("uint packed"),
    ),
    push=(*fields("uint", "words rows in_group taps"),),
    constants=(
        *constants("bool", W_SIGNED=False, QUADS=False),
        *constants("uint", TILE=16),
    ),
)

INTEGER_TILE = Kernel(
    "integer_tile",
    subgroups=("SHUFFLE",),
    bindings=(
        reads("uint x"),
        reads("uvec4 weight", when="VEC4"),
        reads("uint weight", when="!VEC4"),
        reads("uint x_zero_word"),
        reads("ivec4 channels"),
        writes("uint y"),
    ),
    push=(*INTEGER_CONV_PUSH,),
    constants=(
        *INTEGER_CONV_CONSTANTS,
        *constants("int", CO=8, PX=8, KW=3, SW=1, DW=1),
        *constants("int", OFFSET=-1),  # of the first input in its word, where it is constant
        *constants("bool", PAST_ROWS=True),  # windows reach over the ends of rows
        *constants("bool", LONG=True),  # sums may come to 2^24
    ),
)

QUANTIZE_LINEAR = Kernel(
    "quantize_linear",
    bindings=(
        reads("float x", "vec4 x4"),
        reads("float scale"),
        reads("uint zero"),
        writes("uint y"),
    ),
    push=(*fields("uint", "count channels inner"),),
    constants=(
        *constants("bool", SIGNED=False, HAS_ZERO=True, PER_AXIS=True),
        *constants("bool", VEC4=False),  # x is of whole vec4
    ),
)
