"""The kernels of shaders/conv."""

from vkconv.kernel import Kernel, constants, fields, reads, writes

CONV2D_PUSH = (
    *fields("int", "n c_in h w"),
    *fields("int", "c_out oh ow groups"),
    *fields("int", "kh kw sh sw"),
    *fields("int", "dh dw pt pl"),
    *fields("float", "act_a act_b"),
)

GEMM_TILE = (*constants("int", BM=64, BN=64, BK=16, TM=4, TN=4, BUFFERS=1), *constants("bool", UNROLL=True))
SLICED_K = (*constants("int", when="SLICED_K", TEAMS=2),)

# What shaders/conv/blocks.glsl reads.
_BLOCKS_PUSH = (
    *fields("int", "image[3]"),
    *fields("int", "kernel[3]"),
    *fields("int", "blocks[3]"),
    *fields("int", "stride[3]"),
    *fields("int", "dilation[3]"),
    *fields("int", "before[3]"),
)

COL2IM = Kernel(
    "col2im",
    bindings=(
        reads("X_ELEM x"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "total first"),  # elements of y, and the first of them
        *_BLOCKS_PUSH,
    ),
)

CONV3D_BACKWARD_DATA = Kernel(
    "conv3d_backward_data",
    bindings=(
        reads("ELEM dy"),
        reads("ELEM weight"),
        writes("ELEM dx"),
    ),
    push=(
        *fields("uint", "total"),
        *fields("int", "c_in c_out groups"),
        *_BLOCKS_PUSH,
    ),
)

DEFORM_CONV2D = Kernel(
    "deform_conv2d",
    bindings=(
        reads("ELEM x"),
        reads("ELEM w"),
        reads("ELEM offset"),
        reads("ELEM bias"),
        reads("ELEM mask"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "total"),
        *fields("int", "c h width m per_group kh kw oh ow"),
        *fields("int", "sh sw dh dw pt pl"),
        *fields("int", "m_per_group c_per_offset_group"),
    ),
    constants=(*constants("bool", HAS_BIAS=False, HAS_MASK=False),),
)
