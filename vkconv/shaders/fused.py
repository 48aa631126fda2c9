"""The kernels of shaders/fused."""

from vkconv.kernel import Kernel, constants, fields, reads, writes

GEMM_REDUCE_COMBINE = Kernel(
    "gemm_reduce_combine",
    bindings=(
        reads("float parts"),
        writes("ELEM y"),
    ),
    push=(
        *fields("int", "total rows segments"),
        *fields("int", "extent block"),  # columns of a segment and of a tile
        *fields("int", "tiles slots"),  # of a batch, of a tile
        *fields("float", "divisor"),
    ),
    constants=(
        *constants("uint", FUNCTION=0),
        *constants("int", LANES=1),
        *constants("int", OUTPUTS=64),  # of a workgroup, neighbours in neighbouring invocations
    ),
)
