"""The kernels of shaders/conv/conv2d."""

from vkconv.kernel import Form, Kernel, constants, fields, reads, updates, writes
from vkconv.shaders.common import ADDENDS, COOPERATIVE_TILE, EPILOGUE, F16_DEPTH, PROLOGUE, REDUCED, REDUCED_PUSH
from vkconv.shaders.conv import CONV2D_PUSH, GEMM_TILE, SLICED_K

CONV2D_COOPERATIVE_PUSH = (
    *fields("int", "last_h last_w last_sh last_sw"),
    *fields("uint", "plane_factor plane_shift row_factor row_shift"),
    *fields("uint", "vec8s_factor vec8s_shift"),
    *fields("int", "to_h to_w", when="!REDUCE"),
)

COOPERATIVE_OUTPUT = (
    *constants("int", when="!REDUCE", TO_SH=0, TO_SW=0),
    *constants("bool", PADDED=False),  # columns are counted as if planes were whole 8-wide vectors
    *constants("int", SPLIT_K=1),
)

# Elements in and out, weights as they lie.
_PLAIN = (
    reads("ELEM x"),
    reads("ELEM weight"),
    reads("ELEM per_channel"),
    writes("Y_ELEM y"),
    reads("ELEM residual", when="RESIDUAL"),
)

CHANNELS_LAST = Kernel(
    "channels_last",
    bindings=(
        reads("ELEM x"),
        writes("uvec4 y8", form=Form.ELEMENT),
    ),
    push=(
        *fields("int", "n h w"),
        *fields("int", "groups in_group"),
        *fields("int", "last_h last_w"),
        *fields("int", "sh sw pt pl"),
        *fields("uint", "w_factor w_shift h_factor h_shift"),
    ),
    constants=(
        *constants("bool", WHOLE=False),  # the channels of a group are whole 8-wide vectors
        *constants("bool", GROUPED=True),
        *constants("int", BLOCK=0),  # 8-wide vectors of a pixel that lie side by side, all where it is 0
    ),
)

CHANNELS_LAST_WORDS = Kernel(
    "channels_last_words",
    bindings=(
        reads("uvec4 x8", "uvec2 x4", form=Form.ELEMENT),
        writes("uvec4 y8", form=Form.ELEMENT),
    ),
    push=(
        *fields("int", "n h w"),
        *fields("int", "groups in_group"),
        *fields("int", "last_h last_w"),
        *fields("int", "pt pl"),
        *fields("int", "top left rows columns"),  # of what is made, where the input is
        *fields("uint", "plane_factor plane_shift w_factor w_shift"),
    ),
    constants=(
        *constants("bool", WHOLE=False),  # the channels of a group are whole 8-wide vectors
        *constants("bool", GROUPED=True),
        *constants("int", BLOCK=0),  # 8-wide vectors of a pixel that lie side by side, all where it is 0
        *constants("int", WORD=4, ACROSS=4),
    ),
)

CONV2D_COOPERATIVE = Kernel(
    "conv2d_cooperative",
    bindings=(
        reads("ELEM x", "uvec4 x8", "uvec2 x4", form=Form.ELEMENT),
        reads("uvec4 weight", form=Form.ELEMENT),
        reads("ELEM per_channel"),
        writes(
            "ELEM y",
            "uvec4 y8",
            "uvec2 y4",
            "uint y2",
            "float slices",
            "vec4 slices4",
            form=Form.EITHER,
            f32_constant="SPLIT_K",
            when="!REDUCE",
        ),
        writes("Y_ELEM y", when="REDUCE"),
        reads("ELEM residual", "uvec4 residual8", "uvec2 residual4", form=Form.ELEMENT, when="RESIDUAL !REDUCE"),
        reads("ELEM residual", when="RESIDUAL REDUCE"),
        reads("ELEM residual2", when="REDUCE BROADCAST"),
        writes("ELEM product", when="REDUCE PRODUCT"),
    ),
    push=(
        *CONV2D_PUSH,
        *CONV2D_COOPERATIVE_PUSH,
        *REDUCED_PUSH,
    ),
    constants=(
        *EPILOGUE,
        *constants("bool", LINEAR=False),
        *COOPERATIVE_TILE,
        *constants("int", when="!REDUCE", Y_WORD=1),
        *constants("int", KH=3, KW=3),
        *constants("bool", LAST=False),
        *constants("int", WORD=8),
        *constants("bool", ENDS_WHOLE=False),  # x is whole 8-wide vectors, where it is PADDED
        *constants("bool", WHOLE=False),  # the sum is whole k-tiles; of gathered ones each tap's, or LINEAR's
        *COOPERATIVE_OUTPUT,
        *REDUCED,
        *ADDENDS,
        *constants("int", when="REDUCE", SLOTS=1),  # the most images whose pixels a tile has
    ),
    matrices=True,
)

CONV2D_DEPTHWISE = Kernel(
    "conv2d_depthwise",
    bindings=_PLAIN,
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", RY=2, PX=8, KH=3, KW=3, SH=1, SW=1, DH=1, DW=1),
    ),
)

CONV2D_DEPTHWISE_SUBGROUP = Kernel(
    "conv2d_depthwise_subgroup",
    subgroups=(),
    bindings=(
        reads("ELEM x", "ELEM2 x2", "ELEM4 x4"),
        reads("ELEM weight"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y", "Y_ELEM2 y2", "Y_ELEM4 y4"),
        reads("ELEM residual", "ELEM4 residual4", when="RESIDUAL"),
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", RY=2, PX=8, KH=3, KW=3, SH=1, SW=1, DH=1, DW=1),
        *constants("int", LEFT=1, X_VEC=1, Y_VEC=1, SUBGROUP=8, PLANE_BLOCKS=0, ROW_BLOCKS=0),
    ),
)

CONV2D_DEPTHWISE_PLANES = Kernel(
    "conv2d_depthwise_planes",
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        *_PLAIN[1:3],
        writes("Y_ELEM y", "Y_ELEM2 y2", "Y_ELEM4 y4"),
        *_PLAIN[4:],
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", PLANES=4, BAND=14, RY=4, PX=1),
        *constants("int", LINES=14),  # input rows of a plane in shared memory
        *constants("int", STAGED=0),
        *constants("bool", PAIRS=False),
        *constants("int", C=1, H=14, W=14, OH=14, OW=14, KH=3, KW=3, SH=1, SW=1, DH=1, DW=1),
    ),
)

CONV2D_DIRECT = Kernel(
    "conv2d_direct",
    bindings=_PLAIN,
    push=(*CONV2D_PUSH,),
    constants=(*EPILOGUE,),
)

CONV2D_GEMM = Kernel(
    "conv2d_gemm",
    bindings=(
        reads("ELEM x", when="!VEC4_COLUMNS"),
        reads("ELEM4 x", when="VEC4_COLUMNS"),
        reads("ELEM4 weight"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y", "Y_ELEM4 y4", when="!REDUCE"),
        writes("Y_ELEM y", when="REDUCE !ATOMIC_CAS !ATOMIC_FLOAT"),
        updates("float y", when="REDUCE ATOMIC_FLOAT"),
        updates("uint y", "int y_signed", when="REDUCE ATOMIC_CAS", qualifiers="coherent"),
        reads("ELEM residual", "ELEM4 residual4", when="RESIDUAL !REDUCE"),
        reads("ELEM residual", when="RESIDUAL REDUCE"),
        reads("ELEM residual2", when="REDUCE BROADCAST"),
        writes("ELEM product", when="REDUCE PRODUCT"),
        reads("ELEM scale", when="PROLOGUE"),
        reads("ELEM shift", when="PROLOGUE"),
    ),
    push=(
        *CONV2D_PUSH,
        *fields("int", "slots", when="REDUCE"),  # segments that a tile may touch
        *fields("int", "lines", when="REDUCE"),  # segments of an image: 1, or its rows or columns
        *REDUCED_PUSH,
    ),
    constants=(
        *EPILOGUE,
        *GEMM_TILE,
        *constants("int", SPLIT_K=1),
        *constants("bool", LINEAR=False),
        *constants("int", KH=3, KW=3),
        *constants("bool", when="!REDUCE", Y_VEC4=False),
        *F16_DEPTH,
        *REDUCED,
        *ADDENDS,
        *constants("bool", when="REDUCE", ALONG_CHANNELS=False),  # else the pixels of each segment are reduced
        *constants("bool", when="REDUCE", DOWN=False),  # segments are columns
        *PROLOGUE,
        *SLICED_K,
    ),
)

CONV2D_FRAGMENT = Kernel(
    "conv2d_fragment",
    bindings=(
        reads("uvec4 x", "uvec2 x4", form=Form.ELEMENT),
        reads("uvec4 weight", form=Form.ELEMENT),
        reads("ELEM per_channel"),
        writes(
            "ELEM y",
            "uvec4 y8",
            "uvec2 y4",
            "uint y2",
            "float slices",
            "vec4 slices4",
            form=Form.EITHER,
            f32_constant="SPLIT_K",
        ),
        reads("ELEM residual", "uvec4 residual8", "uvec2 residual4", form=Form.ELEMENT, when="RESIDUAL"),
    ),
    push=(
        *CONV2D_PUSH,
        *CONV2D_COOPERATIVE_PUSH,
    ),
    constants=(
        *EPILOGUE,
        *COOPERATIVE_TILE,
        *constants("int", Y_WORD=1),
        *constants("int", KH=3, KW=3),
        *constants("int", FRAGMENT_ORDER=1),  # operands that lanes read as they hold them
        *constants("int", STAGES=2),
        *COOPERATIVE_OUTPUT,
    ),
    matrices=True,
)

CONV2D_PATCH = Kernel(
    "conv2d_patch",
    bindings=(
        reads("ELEM x"),
        reads("ELEM4 weight"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y", "Y_ELEM4 y4"),
        reads("ELEM residual", "ELEM4 residual4", when="RESIDUAL"),
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", CO=8, RY=2, PX=4),
        *constants("int", TW=28, TH=1, CG=3),  # lanes of a workgroup
        *constants("int", CI=3, BETWEEN=0, KH=3, KW=3, SH=1, SW=1, DH=1, DW=1),
        *constants("bool", Y_VEC4=False),
    ),
)

CONV2D_POINTWISE = Kernel(
    "conv2d_pointwise",
    bindings=(
        reads("ELEM x"),
        reads("ELEM weight", when="!HALF_MATH"),
        reads("ELEM4 weight", when="HALF_MATH"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y"),
        reads("ELEM residual", when="RESIDUAL"),
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", CO=8, PX=8),
        *F16_DEPTH,
    ),
)

CONV2D_POINTWISE_VEC4 = Kernel(
    "conv2d_pointwise_vec4",
    bindings=(
        reads("ELEM4 x"),
        reads("ELEM4 weight"),
        reads("ELEM per_channel"),
        writes("Y_ELEM4 y"),
        reads("ELEM residual", when="RESIDUAL"),
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", CO=8, QUADS=1),
    ),
)

CONV2D_SUBGROUP = Kernel(
    "conv2d_subgroup",
    subgroups=(),
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        reads("ELEM4 weight"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y", "Y_ELEM4 y4", when="!REDUCE"),
        writes("Y_ELEM y", when="REDUCE"),
        reads("ELEM residual", "ELEM4 residual4", when="RESIDUAL !REDUCE"),
        reads("ELEM residual", when="RESIDUAL REDUCE"),
        reads("ELEM residual2", when="REDUCE BROADCAST"),
        writes("ELEM product", when="REDUCE PRODUCT"),
    ),
    push=(
        *CONV2D_PUSH,
        *REDUCED_PUSH,
    ),
    constants=(
        *EPILOGUE,
        *constants("int", CO=8, PX=8, KW=3, SW=1, DW=1, LEFT=0, SUBGROUP=8, ROWS=0, PADDED_ROWS=1),
        *constants("bool", X_VEC4=False),
        *constants("bool", when="!REDUCE", Y_VEC4=False),
        *REDUCED,
        *ADDENDS,
    ),
)

# Inputs and weights as textures.
_TEXTURES = (
    reads("sampler3D x", when="!TEXTURE_2D"),
    reads("sampler2D x", when="TEXTURE_2D"),
    reads("sampler2D weight"),
    reads("ELEM per_channel"),
    writes("Y_ELEM y"),
    reads("ELEM residual", when="RESIDUAL"),
)

_TEXTURES_PUSH = (*CONV2D_PUSH, *fields("int", "slice_rows", when="TEXTURE_2D"))

CONV2D_TEXTURE_DEPTHWISE = Kernel(
    "conv2d_texture_depthwise",
    bindings=_TEXTURES,
    push=_TEXTURES_PUSH,
    constants=(
        *EPILOGUE,
        *constants("int", PX=4, KW=3, SW=1, DW=1),
    ),
)

CONV2D_TEXTURE_POINTWISE = Kernel(
    "conv2d_texture_pointwise",
    bindings=_TEXTURES,
    push=_TEXTURES_PUSH,
    constants=(
        *EPILOGUE,
        *constants("int", SLICES=1, PX=4),
    ),
)

CONV2D_TEXTURE_TILE = Kernel(
    "conv2d_texture_tile",
    bindings=_TEXTURES,
    push=_TEXTURES_PUSH,
    constants=(
        *EPILOGUE,
        *constants("int", SLICES=1, PX=4),
    ),
)

CONV2D_TILE = Kernel(
    "conv2d_tile",
    bindings=(
        reads("ELEM x"),
        reads("ELEM weight", when="!HALF_MATH"),
        reads("ELEM4 weight", when="HALF_MATH"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y"),
        reads("ELEM residual", when="RESIDUAL"),
    ),
    push=(*CONV2D_PUSH,),
    constants=(
        *EPILOGUE,
        *constants("int", CO=8, PX=8, KW=3, SW=1, DW=1),
        *F16_DEPTH,
    ),
)

PACK_FRAGMENTS = Kernel(
    "pack_fragments",
    subgroups=(),
    bindings=(
        reads("ELEM w"),
        writes("uvec4 y8", form=Form.ELEMENT),
    ),
    push=(*fields("int", "rows padded_rows channels kh kw groups"),),  # of a group
    constants=(
        *constants("int", FRAGMENT_ORDER=1),
        *constants("int", MM=16, MN=16, MK=16, SUBGROUP=32),
    ),
    matrices=True,
)

IM2COL = Kernel(
    "im2col",
    bindings=(
        reads("ELEM x"),
        writes("ELEM columns"),
    ),
    push=(
        *fields("int", "first_image images first_pixel count"),
        *fields("int", "c_in h w ow"),
        *fields("int", "sh sw dh dw pt pl"),
    ),
    constants=(*constants("int", KH=3, KW=3),),
)

SPACE_TO_DEPTH = Kernel(
    "space_to_depth",
    bindings=(
        reads("ELEM x", when="!LAST"),
        reads("ELEM x", "uint x2", "uvec2 x4", form=Form.ELEMENT, when="LAST"),
        writes("ELEM y", when="!LAST"),
        writes("uvec4 y8", form=Form.ELEMENT, when="LAST"),
    ),
    push=(
        *fields("int", "n h w"),
        *fields("int", "to_h to_w"),
        *fields("int", "top left"),
        *fields("uint", "plane_factor plane_shift row_factor row_shift"),
    ),
    constants=(
        *constants("int", C=3, BH=2, BW=2),
        *constants("int", when="LAST", WORD=1),
    ),
    moves=True,
)
