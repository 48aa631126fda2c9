"""Tensors of images that no storage buffer binding can hold whole: how many images one may take."""

import math
from collections.abc import Sequence

from vkconv.device import Device

# Kernels may read and write values as vec4.
_ALIGNMENT_BYTES = 16


def most_bound(device: Device) -> int:
    """Bytes that a storage buffer binding may have."""
    return int(device.limit("maxStorageBufferRange"))


def offset_step(device: Device, *, halved: bool = False) -> int:
    """A binding may begin at each multiple of so many bytes; ``halved``: of f32, where elements may have 16 bits."""
    return math.lcm(device.limit("minStorageBufferOffsetAlignment"), _ALIGNMENT_BYTES) << halved


def image_step(image_bytes: Sequence[int], device: Device, *, halved: bool = False) -> int:
    """A binding may begin at each multiple of so many images of every tensor."""
    alignment = offset_step(device, halved=halved)
    return math.lcm(*(alignment // math.gcd(alignment, nbytes) for nbytes in image_bytes))
