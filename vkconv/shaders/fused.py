"""The kernels of shaders/fused."""

from vkconv.kernel import Kernel, constants, fields, reads, updates, writes

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

ATTENTION_FLASH = Kernel(
    "attention_flash",
    bindings=(
        reads("ELEM q", "ELEM4 q4"),
        reads("ELEM k", "ELEM4 k4"),
        reads("ELEM v", "ELEM4 v4"),
        writes("ELEM y", "ELEM4 y4"),
        reads("ELEM mask", when="MASK"),
    ),
    push=(
        *fields("int", "images heads heads_of_keys queries keys head_size value_size"),
        *fields("int", "mask_images mask_image mask_head mask_row mask_key", when="MASK"),
        *fields("float", "scale"),
    ),
    constants=(
        *constants("int", BM=32, BN=32, TM=4, LANES_N=8, BK=16, VK=16),
        *constants("int", HEAD=64, VALUE4S=16),  # elements of a query, whole BK; vec4 of a value
        *constants("bool", Q_VEC4=False, K_VEC4=False, V_VEC4=False),
        *constants("bool", K_BY_COL=False),  # keys lie side by side
        *constants("bool", CAUSAL=False, ZERO_ROWS=True),
    ),
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
