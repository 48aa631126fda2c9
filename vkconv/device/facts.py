"""`Device`: what the planner may know of a GPU, in the field names of Vulkan itself.

The facts are a dict in the layout of Vulkan profile files (``properties`` / ``features`` / ``extensions`` by
struct name), so that a live device, a dump of one and a shipped file are the same thing.
"""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from vkconv.core import UsageError
from vkconv.device.vendors import VENDORS

Kind = Literal["cpu", "integrated", "discrete", "virtual", "other"]

_KINDS: dict[str, Kind] = {
    "VK_PHYSICAL_DEVICE_TYPE_CPU": "cpu",
    "VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU": "integrated",
    "VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU": "discrete",
    "VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU": "virtual",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Device:
    """Facts of one Vulkan device. ``facts`` is the dict the bridge or a device file gives."""

    facts: Mapping[str, Any]

    @cached_property
    def _properties(self) -> Mapping[str, Any]:
        return self.facts["properties"]["VkPhysicalDeviceProperties"]  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        return str(self._properties["deviceName"])

    @cached_property
    def vendor(self) -> str:
        """Vendor by PCI id: ``arm``, ``qualcomm``, ``nvidia``, ``amd``, ``intel``, ``mesa``, ... or ``unknown``."""
        return VENDORS.get(int(self._properties["vendorID"]), "unknown")

    @property
    def kind(self) -> Kind:
        """``cpu``, ``integrated``, ``discrete``, ``virtual`` or ``other``, as the driver says."""
        return _KINDS.get(str(self._properties["deviceType"]), "other")

    def limit(self, name: str) -> int:
        """A scalar of VkPhysicalDeviceLimits by its Vulkan name, as an int."""
        return int(self._properties["limits"][name])

    def limits(self, name: str) -> tuple[int, ...]:
        """An array of VkPhysicalDeviceLimits by its Vulkan name, such as maxComputeWorkGroupCount."""
        return tuple(int(v) for v in self._properties["limits"][name])

    def feature(self, struct: str, name: str) -> bool:
        """A feature bit, for example ``("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16")``."""
        return bool(self.facts.get("features", {}).get(struct, {}).get(name, False))

    @property
    def subgroup_size(self) -> int:
        return int(self.facts["properties"].get("VkPhysicalDeviceSubgroupProperties", {}).get("subgroupSize", 1))


def load_device(source: str | Path) -> Device:
    raise UsageError(f"no device file {source}")
