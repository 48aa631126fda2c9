"""The extents of an attention and where its mask lies."""

import dataclasses
from typing import Self

from vkconv.call import Call


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionProblem:
    """Scores of ``queries`` x ``keys`` for each of ``heads`` of ``images``, products of ``head_size`` elements, weigh
    values of ``value_size``. ``heads_of_keys`` neighbouring heads share keys and values.

    ``mask`` has the strides of a mask over images, heads, queries and keys, 0 where it repeats; image i takes that of
    ``i % mask_images``.
    """

    images: int
    heads: int
    heads_of_keys: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    mask_images: int = 1
    mask: tuple[int, int, int, int] = (0, 0, 0, 0)

    @classmethod
    def of(cls, call: Call) -> Self:
        """That of a checked call."""
        q, k, v = (_with_heads(call.shape(name)) for name in ("q", "k", "v"))
        made = cls(q[0], q[1], q[1] // k[1], q[2], v[2], q[3], v[3])
        if not call.has("mask"):
            return made
        dims = call.shape("mask")
        if len(call.shape("q")) == 3 and len(dims) == 3:
            dims = _with_heads(dims)
        dims = (1,) * (4 - len(dims)) + dims
        steps = (dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1)
        image, head, row, key = (0 if extent == 1 else step for extent, step in zip(dims, steps, strict=True))
        return dataclasses.replace(made, mask_images=dims[0], mask=(image, head, row, key))

    @property
    def batches(self) -> int:
        """Images times heads."""
        return self.images * self.heads

    def __str__(self) -> str:
        return f"{self.queries} queries of {self.keys} keys, {self.batches} heads of {self.head_size}"


def _with_heads(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of an operand without heads as with one."""
    return dims if len(dims) == 4 else (dims[0], 1, *dims[1:])
