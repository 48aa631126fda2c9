"""The kernels of shaders/matmul."""

from vkconv.kernel import Field, Kernel, constants, fields, reads, writes
from vkconv.shaders.common import EPILOGUE

_NBITS_SCALES = (
    reads("ELEM scale"),
    reads("uint zero"),
)

_NBITS_PUSH = (
    *fields("int", "m n k"),
    *fields("int", "row_words zero_bytes"),  # of a column of y: its weights, its zero points
)

_NBITS = (
    *constants("int", BITS=4, BLOCK_SHIFT=2),  # log2 of the words of a block
    *constants("bool", HAS_ZERO=False),
)


def _nbits_product(name: str, *sizes: Field, weights: tuple[str, ...] = ("uint b",)) -> Kernel:
    """One of the kernels that multiply by such weights, which it reads by these views."""
    return Kernel(
        name,
        bindings=(
            reads("ELEM a", "ELEM4 a4"),
            reads(*weights),
            *_NBITS_SCALES,
            reads("ELEM per_channel"),
            writes("ELEM y"),
        ),
        push=(*_NBITS_PUSH, *fields("float", "act_a act_b")),
        constants=(*EPILOGUE, *_NBITS, *constants("bool", A_VEC4=False), *sizes),
    )


NBITS_REGISTER = _nbits_product("nbits_register", *constants("int", TM=1))
NBITS_SHARED = _nbits_product("nbits_shared", *constants("int", BM=32, BN=32))
NBITS_SKINNY = _nbits_product(
    "nbits_skinny", *constants("int", TM=1, TN=1, WORDS=1, LANES_N=2, LANES_K=32), weights=("uint b", "uvec4 b4")
)
NBITS_UNPACK = Kernel(
    "nbits_unpack",
    bindings=(reads("uint b"), *_NBITS_SCALES, writes("ELEM w", "ELEM4 w4")),
    push=_NBITS_PUSH,
    constants=(*_NBITS, *constants("bool", W_VEC4=False)),
)
