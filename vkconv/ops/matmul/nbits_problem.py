"""The numbers of a product with weights of few bits, which its definition and its kernels read."""

import dataclasses
import math
from typing import Self

from vkconv.call import Call
from vkconv.graph.ir import TensorSpec
from vkconv.ops.kernels.epilogue import EPILOGUE_ATTRS
from vkconv.ops.matmul.op import MATMUL

# Of a weight.
BITS = (2, 4, 8)
# Weights of a block: whole words whatever the bits.
LEAST_BLOCK = 16


@dataclasses.dataclass(frozen=True, slots=True)
class NbitsProblem:
    """y is m x n, each element a sum of k products; a column's weights are ``blocks`` of so many words."""

    m: int
    n: int
    k: int
    bits: int
    blocks: int
    block_words: int

    @classmethod
    def of(cls, call: Call) -> Self:
        a, (n, blocks, nbytes) = call.shape("a"), call.shape("b")
        return cls(math.prod(a[:-1]), n, a[-1], int(call["bits"]), blocks, nbytes // 4)

    @property
    def row_words(self) -> int:
        """Words of the weights of a column."""
        return self.blocks * self.block_words

    def __str__(self) -> str:
        return f"{self.m}x{self.n} over {self.k} in blocks of {self.block_words * 32 // self.bits}"


def matmul_of(call: Call) -> Call:
    """The matmul by the unpacked weights, n x k."""
    p = NbitsProblem.of(call)
    operands = {
        "a": call.operands["a"],
        "b": TensorSpec((p.n, p.k), call.specs["a"].dtype),
        "bias": call.operands.get("bias"),
    }
    return MATMUL.call(operands, {"trans_b": True, **{attr.name: call[attr.name] for attr in EPILOGUE_ATTRS}})
