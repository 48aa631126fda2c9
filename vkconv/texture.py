"""Textures: Vulkan images of four channels a texel, which kernels sample through the texture cache. No Vulkan here.

The word image is left to what a batch has many of.
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

from vkconv.device import Device

CHANNELS = 4
F32_TEXEL_BYTES = 16

TexelFormat = Literal["rgba32f", "rgba16f"]
_FORMATS: dict[int, TexelFormat] = {F32_TEXEL_BYTES: "rgba32f", F32_TEXEL_BYTES // 2: "rgba16f"}
VULKAN_FORMATS: dict[TexelFormat, str] = {
    "rgba32f": "VK_FORMAT_R32G32B32A32_SFLOAT",
    "rgba16f": "VK_FORMAT_R16G16B16A16_SFLOAT",
}

# What Vulkan promises of the limits that textures need, for a device file that does not say.
_PROMISED = {
    "maxImageDimension2D": 4096,
    "maxImageDimension3D": 256,
    "maxPerStageDescriptorSamplers": 16,
    "maxPerStageDescriptorSampledImages": 16,
    "maxPerStageDescriptorStorageImages": 4,
}
_USES = ("VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT", "VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT")


@dataclasses.dataclass(frozen=True, slots=True)
class Texture:
    """The texels of an image: ``width`` x ``height``, and ``depth`` where it has three dimensions, else 0."""

    width: int
    height: int
    depth: int = 0

    @property
    def dims(self) -> int:
        return 3 if self.depth else 2

    @property
    def texels(self) -> int:
        return self.width * self.height * max(1, self.depth)

    @property
    def f32_bytes(self) -> int:
        """Bytes of its texels where channels are f32."""
        return self.texels * F32_TEXEL_BYTES

    def format(self, nbytes: int) -> TexelFormat:
        """What its texels are where all of them take so many bytes."""
        return _FORMATS[nbytes // self.texels]

    def __str__(self) -> str:
        sizes = (self.width, self.height, *((self.depth,) if self.depth else ()))
        return f"{self.dims}-D {' x '.join(map(str, sizes))}"


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedTexture:
    """An image that a plan has the backend make: its extent, the format of its texels, and their bytes. A driver may
    pad them."""

    texture: Texture
    format: TexelFormat
    nbytes: int


def most(limit: str, device: Device) -> int:
    """A limit that textures need: the device's own, or where its file does not say, what Vulkan promises."""
    known = device.known_limit(limit)
    return _PROMISED[limit] if known is None else known


def said(limit: str, device: Device) -> str:
    """Said behind a limit that the device's file does not have."""
    return (
        ""
        if device.known_limit(limit) is not None
        else " (what Vulkan promises, since its device file does not say: more may do)"
    )


def extents(texture: Texture, device: Device) -> Iterator[tuple[str, int, int]]:
    """The limit of its extent, the largest side, and what the device allows."""
    limit = f"maxImageDimension{texture.dims}D"
    yield limit, max(texture.width, texture.height, texture.depth), most(limit, device)


def fits(texture: Texture, device: Device) -> bool:
    """Whether the device makes images of this extent."""
    return all(value <= allowed for _, value, allowed in extents(texture, device))


def lacks_format(name: TexelFormat, device: Device) -> bool:
    """Whether the facts say that the device does not both sample and store a format. Vulkan promises both of these; a
    file that does not say is taken at that word."""
    features = device.texel_features(VULKAN_FORMATS[name])
    return features is not None and not set(_USES) <= set(features)
