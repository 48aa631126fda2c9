"""Tensors of images that no storage buffer binding can hold whole: how many images one may take."""

import math
from collections.abc import Sequence

from vkconv.device import Device

# Kernels may read and write values as vec4.
_ALIGNMENT_BYTES = 16

# Ops whose routes bind some of the images of a tensor that is larger than a binding, where one may begin there.
TAKEN_BY_IMAGES = (
    *("conv2d", "conv_transpose2d"),
    *("conv2d_backward_data", "conv2d_backward_weight", "conv3d_backward_data"),
)


def most_bound(device: Device) -> int:
    """Bytes that a storage buffer binding may have."""
    return int(device.limit("maxStorageBufferRange"))


def images_at_a_time(images: int, image_bytes: Sequence[int], device: Device, *, halved: bool = False) -> int:
    """The most images whose part of each tensor fits a binding and is followed by one that may begin where it ends.

    ``image_bytes`` are those of one image in each tensor; ``halved``: of f32, where elements may have 16 bits. 0 where
    an image alone does not fit, or no number of them ends where a binding may begin.
    """
    most = most_bound(device)
    if images * max(image_bytes) <= most:
        return images
    step = image_step(image_bytes, device, halved=halved)
    return most // max(image_bytes) // step * step


def image_step(image_bytes: Sequence[int], device: Device, *, halved: bool = False) -> int:
    """A binding may begin at each multiple of so many images of every tensor."""
    alignment = math.lcm(device.limit("minStorageBufferOffsetAlignment"), _ALIGNMENT_BYTES) << halved
    return math.lcm(*(alignment // math.gcd(alignment, nbytes) for nbytes in image_bytes))
