"""The kernels of shaders/fused."""

from vkconv.kernel import Form, Kernel, constants, fields, reads, updates, writes
from vkconv.shaders.common import EPILOGUE
from vkconv.shaders.conv import GEMM_TILE

GEMM_REDUCE_COMBINE = Kernel(
    "gemm_reduce_combine",
    bindings=(
        reads("float parts"),
        writes("Y_ELEM y"),
    ),
    push=(
        *fields("int", "total rows segments"),
        *fields("int", "extent block"),  # columns of a segment and of a tile
        *fields("int", "tiles slots"),  # of a batch, of a tile
        *fields("int", "base"),  # of the parts
        *fields("int", "lines"),  # segments that lie behind each other in an output of a row
        *fields("float", "divisor"),
    ),
    constants=(
        *constants("uint", FUNCTION=0),
        *constants("int", LANES=1),
        *constants("int", OUTPUTS=64),  # of a workgroup, neighbours in neighbouring invocations
    ),
)

_ATTENTION_PUSH = (
    *fields("int", "images heads heads_of_keys queries keys head_size value_size"),
    *fields("int", "mask_images mask_image mask_head mask_row mask_key", when="MASK"),
    *fields("float", "scale"),
)

ATTENTION_FLASH = Kernel(
    "attention_flash",
    bindings=(
        reads("ELEM q", "ELEM4 q4"),
        reads("ELEM k", "ELEM4 k4"),
        reads("ELEM v", "ELEM4 v4"),
        writes("ELEM y", "ELEM4 y4"),
        reads("ELEM mask", when="MASK"),
    ),
    push=(*_ATTENTION_PUSH,),
    constants=(
        *constants("int", BM=32, BN=32, TM=4, LANES_N=8, BK=16, VK=16),
        *constants("int", HEAD=64, VALUE4S=16),  # elements of a query, whole BK; vec4 of a value
        *constants("bool", Q_VEC4=False, K_VEC4=False, V_VEC4=False),
        *constants("bool", K_BY_COL=False),  # keys lie side by side
        *constants("bool", CAUSAL=False, ZERO_ROWS=True),
    ),
)

ATTENTION_FLASH_LANES = Kernel(
    "attention_flash_lanes",
    bindings=ATTENTION_FLASH.bindings,
    push=(*_ATTENTION_PUSH,),
    constants=(
        *constants("int", BM=64, BN=32),
        *constants("int", ROWS=1, LANES=1),  # queries of a cluster, and lanes
        *constants("int", HEAD4S=8, VALUE4S=8),  # vec4 of a query and of a value
        *constants("bool", AHEAD=False),  # fetch the next tile before the arithmetic of this one
        *constants("bool", Q_VEC4=False, K_VEC4=False, V_VEC4=False),
        *constants("bool", K_BY_COL=False),  # keys lie side by side
        *constants("bool", CAUSAL=False, ZERO_ROWS=True),
    ),
    subgroups=("CLUSTERS",),
)

ATTENTION_COOPERATIVE = Kernel(
    "attention_cooperative",
    bindings=(
        reads("ELEM q", "uvec4 q8", form=Form.ELEMENT),
        reads("ELEM k", "uvec4 k8", form=Form.ELEMENT),
        reads("ELEM v", "uvec4 v8", form=Form.ELEMENT),
        writes("ELEM y", "uvec4 y8", form=Form.ELEMENT),
        reads("ELEM mask", when="MASK"),
    ),
    push=(*_ATTENTION_PUSH,),
    constants=(
        *constants("int", BM=32, BN=32, SM=16, MM=16, MN=16, MK=16, SUBGROUP=32),
        *constants("int", HEAD=32, VALUES=32),  # elements of a query and of a value, whole matrices
        *constants("int", ROW_LANES=8, K_BY_COL=0),  # lanes that share a row of scores; keys lie side by side
        *constants("bool", Q_WIDE=False, K_WIDE=False, V_WIDE=False),
        *constants("bool", CAUSAL=False, ZERO_ROWS=True),
    ),
    matrices=True,
)

ATTENTION_MASK = Kernel(
    "attention_mask",
    bindings=(
        updates("ELEM scores"),
        reads("ELEM mask", when="MASK"),
    ),
    push=(
        *fields("uint", "total keys queries"),
        *fields("uint", "heads mask_images mask_image mask_head mask_row mask_key", when="MASK"),
    ),
    constants=(*constants("bool", CAUSAL=False),),
)

SEPARABLE_CONV2D = Kernel(
    "separable_conv2d",
    bindings=(
        reads("ELEM x"),
        reads("ELEM4 expand", when="EXPAND"),
        reads("ELEM depthwise"),
        reads("ELEM biases"),
        reads("ELEM4 weight"),
        reads("ELEM per_channel"),
        writes("Y_ELEM y"),
        reads("ELEM residual", when="RESIDUAL"),
    ),
    push=(
        *fields("int", "n c_in h w"),
        *fields("int", "c_between c_out oh ow"),
        *fields("int", "pt pl"),
        *fields("float", "act_a act_b between_a between_b"),
        *fields("float", "expand_a expand_b", when="EXPAND"),
    ),
    constants=(
        *EPILOGUE,
        *GEMM_TILE,
        *constants("int", TILE_H=8, TILE_W=8, KH=3, KW=3, SH=1, SW=1, DH=1, DW=1),
        *constants("uint", BETWEEN=0),  # the activation between the two
        *constants("bool", HAS_BETWEEN_BIAS=False),
        *constants("uint", when="EXPAND", EXPAND_ACT=0),
        *constants("bool", when="EXPAND", HAS_EXPAND_BIAS=False),
        *constants("int", when="EXPAND", VECS=1),  # vec4 of channels that an invocation makes of a pixel at a time
    ),
)

SQUEEZE_EXCITE = Kernel(
    "squeeze_excite",
    bindings=(
        reads("ELEM x"),
        reads("ELEM w1"),
        reads("ELEM b1"),
        reads("ELEM w2"),
        reads("ELEM b2"),
        writes("ELEM y"),
    ),
    push=(
        *fields("int", "images plane gates"),
        *fields("float", "act_a act_b gate_a gate_b"),
    ),
    constants=(
        *constants("int", CHANNELS=64, HIDDEN=16, LOCAL=128),
        *constants("int", MEAN_LANES=16, SQUEEZE_LANES=16, EXCITE_LANES=16),
        *constants("uint", ACT=0, GATE=0),
        *constants("bool", HAS_B1=False, HAS_B2=False),
    ),
)
