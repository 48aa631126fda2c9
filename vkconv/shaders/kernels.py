"""The kernels of shaders/kernels."""

from vkconv.kernel import Form, Kernel, constants, fields, reads, updates, writes
from vkconv.shaders.common import (
    ADDENDS,
    COOPERATIVE_TILE,
    EPILOGUE,
    F16_DEPTH,
    MATMUL_PUSH,
    REDUCED,
    REDUCED_PUSH,
    WALK,
)

FILL = Kernel(
    "fill",
    bindings=(writes("ELEM y"),),
    push=(*fields("uint", "total value"),),
    constants=(*constants("uint", ITEMS=1),),
)

FLOOR_COPY = Kernel(
    "floor_copy",
    bindings=(
        reads("vec4 x"),
        writes("vec4 y"),
    ),
    push=(*fields("uint", "chunk"),),
    constants=(*constants("uint", ITEMS=1),),
)

FLOOR_FMA = Kernel(
    "floor_fma",
    bindings=(writes("float y"),),
    push=(
        *fields("uint", "count"),
        *fields("uint", "iterations"),
        *fields("float", "a"),
        *fields("float", "b"),
    ),
)

MATMUL_COOPERATIVE = Kernel(
    "matmul_cooperative",
    bindings=(
        reads("ELEM a", "uvec4 a8", form=Form.ELEMENT),
        reads("ELEM b", "uvec4 b8", form=Form.ELEMENT),
        reads("ELEM per_channel", "uvec4 per_channel8", form=Form.ELEMENT, when="!REDUCE"),
        reads("ELEM per_channel", when="REDUCE"),
        writes("Y_ELEM y", "uvec4 y8", when="!REDUCE"),
        writes("Y_ELEM y", when="REDUCE"),
        reads("ELEM residual", "uvec4 residual8", form=Form.ELEMENT, when="RESIDUAL !REDUCE"),
        reads("ELEM residual", when="RESIDUAL REDUCE"),
        reads("ELEM residual2", when="REDUCE BROADCAST"),
        writes("ELEM product", when="REDUCE PRODUCT"),
    ),
    push=(*MATMUL_PUSH, *REDUCED_PUSH),
    constants=(
        *EPILOGUE,
        *constants("bool", BIAS_BY_ROW=False),
        *COOPERATIVE_TILE,
        *constants("bool", A_WIDE=False, B_WIDE=False),
        *constants("bool", when="!REDUCE", Y_WIDE=False),
        *constants("bool", WHOLE=False),  # k is whole k-tiles
        *constants("bool", A_RUNS=False, B_RUNS=False),
        *constants("bool", A_ENDS_WHOLE=False, B_ENDS_WHOLE=False),  # what is read of it is whole 8-wide vectors
        *REDUCED,
        *ADDENDS,
    ),
    matrices=True,
)

MATMUL_REGISTER = Kernel(
    "matmul_register",
    bindings=(
        reads("ELEM a"),
        reads("ELEM b"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y"),
        reads("ELEM residual", when="RESIDUAL"),
    ),
    push=(*MATMUL_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("bool", BIAS_BY_ROW=False),
        *constants("int", TM=8, TN=8),
        *F16_DEPTH,
    ),
)

MATMUL_SHARED = Kernel(
    "matmul_shared",
    bindings=(
        reads("ELEM a", "ELEM4 a4"),
        reads("ELEM b", "ELEM4 b4"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y", "Y_ELEM4 y4", when="!REDUCE"),
        writes("Y_ELEM y", when="REDUCE !ATOMIC_CAS !ATOMIC_FLOAT"),
        updates("float y", when="REDUCE ATOMIC_FLOAT"),
        updates("uint y", "int y_signed", when="REDUCE ATOMIC_CAS", qualifiers="coherent"),
        reads("ELEM residual", "ELEM4 residual4", when="RESIDUAL !REDUCE"),
        reads("ELEM residual", when="RESIDUAL REDUCE"),
        reads("ELEM residual2", when="REDUCE BROADCAST"),
        writes("ELEM product", when="REDUCE PRODUCT"),
    ),
    push=(
        *MATMUL_PUSH,
        *REDUCED_PUSH,
    ),
    constants=(
        *EPILOGUE,
        *constants("bool", BIAS_BY_ROW=False),
        *constants("int", BM=64, BN=64, BK=16, TM=4, TN=4),
        *constants("bool", UNROLL=True),
        *constants("bool", A_BY_COL=False),  # a lies along m, not k
        *constants("bool", B_BY_ROW=False),  # b lies along k, not n
        *constants("bool", A_VEC4=False, B_VEC4=False),
        *constants("bool", when="!REDUCE", Y_VEC4=False),
        *F16_DEPTH,
        *REDUCED,
        *ADDENDS,
    ),
)

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

MATMUL_SUBGROUP = Kernel(
    "matmul_subgroup",
    subgroups=(),
    bindings=(
        reads("ELEM a"),
        reads("ELEM b", "ELEM4 b4"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y", "Y_ELEM4 y4", when="!REDUCE"),
        writes("Y_ELEM y", when="REDUCE"),
        reads("ELEM residual", "ELEM4 residual4", when="RESIDUAL !REDUCE"),
        reads("ELEM residual", when="RESIDUAL REDUCE"),
        reads("ELEM residual2", when="REDUCE BROADCAST"),
        writes("ELEM product", when="REDUCE PRODUCT"),
    ),
    push=(
        *MATMUL_PUSH,
        *REDUCED_PUSH,
    ),
    constants=(
        *EPILOGUE,
        *constants("bool", BIAS_BY_ROW=False),
        *constants("int", TM=16, TN=8, SUBGROUP=8),
        *constants("bool", VEC4=False),
        *REDUCED,
        *ADDENDS,
        *constants("bool", when="REDUCE", ALONG_COLUMNS=False),  # else the rows are reduced
    ),
)

PACK_TILES = Kernel(
    "pack_tiles",
    bindings=(
        reads("ELEM src"),
        writes("ELEM dst"),
    ),
    push=(
        *fields("uint", "groups rows outer inner inner_padded"),
        *fields("uint", "group_stride row_stride outer_stride inner_stride"),
    ),
    constants=(*constants("uint", TILE=8),),
)

SCATTER_STRIDED = Kernel(
    "scatter_strided",
    bindings=(
        reads("X_ELEM x"),
        reads("ELEM per_channel", when="EPILOGUE"),
        writes("ELEM y", when="!EPILOGUE"),
        writes("ELEM y", when="EPILOGUE"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "chunk"),
        *fields("uint", "n[5]"),
        *fields("int", "x_n[5]"),
        *fields("int", "offset[5]"),
        *fields("int", "s[5]"),
        *fields("uint", "channels", when="EPILOGUE"),  # the outermost dimension is images x channels
        *fields("float", "act_a act_b", when="EPILOGUE"),
    ),
    constants=(
        *WALK,
        *constants("bool", SHIFT=False),  # strides are powers of two, and s holds their logarithms
        *constants("uint", when="EPILOGUE", ACT=0),
        *constants("uint", when="EPILOGUE", PER_CHANNEL=0),  # 1: a bias, 2: a slope, 4: a scale and shift for all
    ),
    moves=True,
)

STRIDED_COPY = Kernel(
    "strided_copy",
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        writes("ELEM y", "ELEM4 y4"),
    ),
    push=(
        *fields("uint", "invocations"),
        *fields("uint", "chunk"),
        *fields("int", "x_base"),
        *fields("int", "y_base"),
        *fields("uint", "n[8]"),
        *fields("int", "xs[8]"),
        *fields("int", "ys[8]"),
    ),
    constants=(
        *WALK,
        *constants("bool", VEC4=False),
    ),
    moves=True,
)

SUM_SPLIT_K = Kernel(
    "sum_split_k",
    bindings=(
        reads("float slices"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y"),
        reads("ELEM residual", when="RESIDUAL"),
    ),
    push=(
        *fields("uint", "total channels plane"),
        *fields("float", "act_a act_b beta"),
    ),
    constants=(
        *EPILOGUE,
        *constants("uint", SPLIT_K=2),
    ),
)

TRANSPOSE_TILES = Kernel(
    "transpose_tiles",
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        writes("ELEM y", "ELEM4 y4"),
    ),
    push=(
        *fields("uint", "groups rows columns"),
        *fields("int", "x_column y_row"),
        *fields("uint", "n[6]"),
        *fields("int", "xs[6]"),
        *fields("int", "ys[6]"),
    ),
    constants=(
        *constants("uint", RANK=0, TILE=32, TURNS=16),  # TURNS: elements of an invocation
        *constants("bool", X_VEC4=False, Y_VEC4=False),
    ),
    moves=True,
)

# Of tiles, by their columns, rows and the count of a launch.
_TILE_DIVISORS = fields("uint", "x_factor x_shift y_factor y_shift count_factor count_shift")

WINOGRAD_BY_CHANNEL = Kernel(
    "winograd_by_channel",
    bindings=(
        reads("ELEM x"),
        writes("float v"),
    ),
    push=(
        *fields("int", "images channels groups h w"),  # images that the tiles are of, from that of ``first`` on
        *fields("int", "tiles_y tiles_x pt pl"),
        *fields("int", "first count"),
    ),
    constants=(
        *constants("int", M=2, R=3),
        *constants("bool", GRADIENT=False),
        *constants("int", CHANNELS=32, ROWS=1, COLUMNS=1),  # of a workgroup: channels, and tiles of a patch
    ),
)

WINOGRAD_INPUT = Kernel(
    "winograd_input",
    bindings=(
        reads("ELEM x", "ELEM2 x2"),
        writes("Y_ELEM v", "Y_ELEM2 v2"),
    ),
    push=(
        *fields("int", "c_in h w"),
        *fields("int", "tiles_y tiles_x pt pl"),
        *fields("int", "first count end"),
        *_TILE_DIVISORS,
    ),
    constants=(
        *constants("int", M=2, R=3, TILES=1),  # TILES of a lane, neighbours
        *constants("bool", PAIRED=False),
    ),
)

WINOGRAD_OUTPUT = Kernel(
    "winograd_output",
    bindings=(
        reads("X_ELEM p", "X_ELEM2 p2"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y", "Y_ELEM2 y2"),
        reads("ELEM residual", when="RESIDUAL"),
    ),
    push=(
        *fields("int", "c_out oh ow"),
        *fields("int", "tiles_y tiles_x"),
        *fields("int", "first count end"),
        *_TILE_DIVISORS,
        *fields("float", "act_a act_b"),
    ),
    constants=(
        *constants("int", M=2, R=3, TILES=1),
        *EPILOGUE,
    ),
)

WINOGRAD_OUTPUT_GRADIENT = Kernel(
    "winograd_output_gradient",
    bindings=(
        reads("ELEM dy"),
        writes("float u"),
    ),
    push=(
        *fields("int", "c_out oh ow"),
        *fields("int", "tiles_y tiles_x"),
        *fields("int", "first count"),
    ),
    constants=(*constants("int", M=2, R=3),),
)

WINOGRAD_WEIGHT_GRADIENT = Kernel(
    "winograd_weight_gradient",
    bindings=(
        reads("float slices"),
        reads("ELEM add"),
        writes("Y_ELEM dw"),
    ),
    push=(
        *fields("int", "pairs slice_count"),
        *fields("float", "scale beta"),
    ),
    constants=(
        *constants("int", M=2, R=3, PARTS=1, STAGED=0),
        *constants("bool", HAS_ADD=False),
    ),
)

WINOGRAD_WEIGHTS = Kernel(
    "winograd_weights",
    bindings=(
        reads("ELEM weight"),
        writes("Y_ELEM u"),
    ),
    push=(*fields("int", "c_out c_in"),),
    constants=(*constants("int", M=2, R=3),),
)

TO_TEXTURE = Kernel(
    "to_texture",
    bindings=(
        reads("ELEM x"),
        writes("image3D texels", when="!TEXTURE_2D"),
        writes("image2D texels", when="TEXTURE_2D"),
    ),
    push=(
        *fields("int", "total width rows slices"),
        *fields("int", "columns lanes"),
        *fields("int", "column_stride row_stride lane_stride outer_stride"),
    ),
)
