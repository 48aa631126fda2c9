"""What ``adb shell cmd gpu vkjson`` prints of a phone's GPU, in the layout of Vulkan profiles.

Android's vkjson (frameworks/native/vulkan/vkjson) has the structs of Vulkan under names of its own, enums and bits as
numbers, and all numbers as JSON prints floats.
"""

from collections.abc import Mapping
from typing import Any

_STRUCTS = {
    "core11": "VkPhysicalDeviceVulkan11",
    "core12": "VkPhysicalDeviceVulkan12",
    "core13": "VkPhysicalDeviceVulkan13",
}
_SUBGROUP_BITS = (
    "BASIC",
    "VOTE",
    "ARITHMETIC",
    "BALLOT",
    "SHUFFLE",
    "SHUFFLE_RELATIVE",
    "CLUSTERED",
    "QUAD",
)
_COMPUTE_BIT = 0x20
# VkDriverId by number, from the Vulkan registry.
_DRIVER_IDS = (
    "",
    "AMD_PROPRIETARY",
    "AMD_OPEN_SOURCE",
    "MESA_RADV",
    "NVIDIA_PROPRIETARY",
    "INTEL_PROPRIETARY_WINDOWS",
    "INTEL_OPEN_SOURCE_MESA",
    "IMAGINATION_PROPRIETARY",
    "QUALCOMM_PROPRIETARY",
    "ARM_PROPRIETARY",
    "GOOGLE_SWIFTSHADER",
    "GGP_PROPRIETARY",
    "BROADCOM_PROPRIETARY",
    "MESA_LLVMPIPE",
    "MOLTENVK",
    "COREAVI_PROPRIETARY",
    "JUICE_PROPRIETARY",
    "VERISILICON_PROPRIETARY",
    "MESA_TURNIP",
    "MESA_V3DV",
    "MESA_PANVK",
    "SAMSUNG_PROPRIETARY",
    "MESA_VENUS",
    "MESA_DOZEN",
    "MESA_NVK",
    "IMAGINATION_OPEN_SOURCE_MESA",
    "MESA_HONEYKRISP",
)


def vkjson(device: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of vkjson's ``devices`` as ``properties``, ``features``, ``extensions`` by Vulkan's struct names, and
    its memory ``heaps`` with the flags as numbers."""
    device = _whole(device)
    properties: dict[str, Any] = {"VkPhysicalDeviceProperties": device.get("properties", {})}
    features: dict[str, Any] = {}
    for core, struct in _STRUCTS.items():
        held = device.get(core)
        if isinstance(held, dict):
            properties[f"{struct}Properties"] = _named(held.get("properties", {}))
            features[f"{struct}Features"] = {k: bool(v) for k, v in held.get("features", {}).items()}
    extensions = device.get("extensions")
    memory = device.get("memory")
    return {
        "properties": properties,
        "features": features,
        "extensions": {
            str(entry["extensionName"]): entry.get("specVersion", 1)
            for entry in (extensions if isinstance(extensions, list) else ())
            if isinstance(entry, dict) and "extensionName" in entry
        },
        "heaps": memory.get("memoryHeaps", []) if isinstance(memory, dict) else [],
    }


def _whole(value: Any) -> Any:
    """The same with floats that are whole numbers as such."""
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Bits and enums of a struct by their names, those that planning asks for."""
    named = dict(fields)
    for field in ("subgroupSupportedStages", "requiredSubgroupSizeStages"):
        if isinstance(bits := named.get(field), int):
            named[field] = ["VK_SHADER_STAGE_COMPUTE_BIT"] if bits & _COMPUTE_BIT else []
    if isinstance(bits := named.get("subgroupSupportedOperations"), int):
        named["subgroupSupportedOperations"] = [
            f"VK_SUBGROUP_FEATURE_{name}_BIT" for place, name in enumerate(_SUBGROUP_BITS) if bits >> place & 1
        ]
    if isinstance(number := named.get("driverID"), int):
        named["driverID"] = driver_id(number)
    return named


def driver_id(number: int) -> str:
    """The name of a VkDriverId."""
    known = _DRIVER_IDS[number] if 0 < number < len(_DRIVER_IDS) else f"UNKNOWN_{number}"
    return f"VK_DRIVER_ID_{known}"
