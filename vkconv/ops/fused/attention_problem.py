"""The extents of an attention and where its mask lies, and what its routes in one launch share."""

import dataclasses
from typing import Self

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.requirement import Requirement
from vkconv.route import Params

# The define of kernels with a mask.
MASK = ("MASK", "")


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

    @property
    def of_mask(self) -> dict[str, int]:
        """Where the mask lies, as push constants."""
        names = ("mask_image", "mask_head", "mask_row", "mask_key")
        return {"mask_images": self.mask_images, **dict(zip(names, self.mask, strict=True))}

    @property
    def push(self) -> dict[str, int]:
        """The extents and where the mask lies, as push constants."""
        extents = ("images", "heads", "heads_of_keys", "queries", "keys", "head_size", "value_size")
        return {**{name: getattr(self, name) for name in extents}, **self.of_mask}

    def __str__(self) -> str:
        return f"{self.queries} queries of {self.keys} keys, {self.batches} heads of {self.head_size}"


def _with_heads(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of an operand without heads as with one."""
    return dims if len(dims) == 4 else (dims[0], 1, *dims[1:])


_BUFFERS = "maxPerStageDescriptorStorageBuffers"
BINDS_MASK = Requirement(
    "no mask, or five storage buffers in a launch",
    lambda call, device: not call.has("mask") or int(device.limit(_BUFFERS)) >= 5,
    lambda call, device: f"{device.limit(_BUFFERS)} storage buffers",
)


def saved_note(call: Call, device: Device, params: Params) -> str:
    """What one launch saves."""
    p = AttentionProblem.of(call)
    saved = p.batches * p.queries * p.keys * call.outputs["y"].dtype.nbytes
    return f"{bytes_str(saved)} of scores are neither written nor read, twice each"
