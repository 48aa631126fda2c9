"""Device files made from what other tools write: ``vulkaninfo --json`` (new and old), Vulkan profile files, and what
Android prints of a phone's GPU.

A profile file says nothing of some fields that planning needs, least of all of memory. What is missing is filled with
what Vulkan requires of every device, and listed in the file's ``assumed``.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vkconv.core import ModelError, UsageError, did_you_mean
from vkconv.device.android import vkjson
from vkconv.device.facts import DEVICE_LOCAL, DOT_ACCELERATED, KIND_NAMES, SCHEMA, Device, Kind
from vkconv.device.files import problems_of, read_json

_BASE = "VkPhysicalDeviceProperties"
_SUBGROUP = "VkPhysicalDeviceSubgroupProperties"
_SIZE_CONTROL = "VkPhysicalDeviceSubgroupSizeControlProperties"
_FLOATS = "VkPhysicalDeviceFloatControlsProperties"
_DOT, _ACCELERATED = DOT_ACCELERATED
# VkShaderFloatControlsIndependence by number.
_INDEPENDENCES = tuple(f"VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_{name}" for name in ("32_BIT_ONLY", "ALL", "NONE"))

# Vulkan's required limits (specification, table "Required Limits"), for those that planning asks for. Nothing is
# required of timestamps, and of subgroups only that they exist.
REQUIRED_LIMITS: dict[str, Any] = {
    "maxStorageBufferRange": 1 << 27,
    "maxPushConstantsSize": 128,
    "maxPerStageDescriptorStorageBuffers": 4,
    "maxComputeSharedMemorySize": 16384,
    "maxComputeWorkGroupCount": [65535, 65535, 65535],
    "maxComputeWorkGroupInvocations": 128,
    "maxComputeWorkGroupSize": [128, 128, 64],
    "minStorageBufferOffsetAlignment": 256,
    "timestampPeriod": 1.0,
}
_REQUIRED_SUBGROUP = {
    "subgroupSize": 1,
    "supportedStages": ["VK_SHADER_STAGE_COMPUTE_BIT"],
    "supportedOperations": ["VK_SUBGROUP_FEATURE_BASIC_BIT"],
}
# Half of the memory of a small phone, where nothing is known.
_HEAP_BYTES = 1 << 30

# Structs of Vulkan 1.1 to 1.3 that sum up earlier ones: their fields as those have them, and under which name.
_SUMMED_PROPERTIES: dict[str, dict[str, tuple[str, str]]] = {
    "VkPhysicalDeviceVulkan11Properties": {
        "subgroupSize": (_SUBGROUP, "subgroupSize"),
        "subgroupSupportedStages": (_SUBGROUP, "supportedStages"),
        "subgroupSupportedOperations": (_SUBGROUP, "supportedOperations"),
        "maxMemoryAllocationSize": ("VkPhysicalDeviceMaintenance3Properties", "maxMemoryAllocationSize"),
    },
    "VkPhysicalDeviceVulkan12Properties": {
        **{name: ("VkPhysicalDeviceDriverProperties", name) for name in ("driverID", "driverName", "driverInfo")},
        **{name: (_FLOATS, name) for name in ("roundingModeIndependence", "shaderRoundingModeRTEFloat16")},
    },
    "VkPhysicalDeviceVulkan13Properties": {
        **{
            name: (_SIZE_CONTROL, name) for name in ("minSubgroupSize", "maxSubgroupSize", "requiredSubgroupSizeStages")
        },
        _ACCELERATED: (_DOT, _ACCELERATED),
    },
}
_SUMMED_FEATURES: dict[str, dict[str, tuple[str, str]]] = {
    "VkPhysicalDeviceVulkan11Features": {
        "storageBuffer16BitAccess": ("VkPhysicalDevice16BitStorageFeatures", "storageBuffer16BitAccess")
    },
    "VkPhysicalDeviceVulkan12Features": {
        "storageBuffer8BitAccess": ("VkPhysicalDevice8BitStorageFeatures", "storageBuffer8BitAccess"),
        "shaderFloat16": ("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16"),
        "shaderInt8": ("VkPhysicalDeviceShaderFloat16Int8Features", "shaderInt8"),
        "vulkanMemoryModel": ("VkPhysicalDeviceVulkanMemoryModelFeatures", "vulkanMemoryModel"),
    },
    "VkPhysicalDeviceVulkan13Features": {
        "subgroupSizeControl": ("VkPhysicalDeviceSubgroupSizeControlFeatures", "subgroupSizeControl"),
        "shaderIntegerDotProduct": ("VkPhysicalDeviceShaderIntegerDotProductFeatures", "shaderIntegerDotProduct"),
    },
}
# Only what compute asks for is kept: a report has thousands of fields of graphics.
_PROPERTIES = (
    _BASE,
    "VkPhysicalDeviceDriverProperties",
    _SUBGROUP,
    _SIZE_CONTROL,
    "VkPhysicalDeviceMaintenance3Properties",
    _FLOATS,
    _DOT,
    "VkPhysicalDeviceCooperativeMatrixPropertiesKHR",
    "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV",
)
_FEATURES = (
    "VkPhysicalDevice16BitStorageFeatures",
    "VkPhysicalDevice8BitStorageFeatures",
    "VkPhysicalDeviceShaderFloat16Int8Features",
    "VkPhysicalDeviceSubgroupSizeControlFeatures",
    "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT",
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR",
    "VkPhysicalDeviceShaderBfloat16FeaturesKHR",
    "VkPhysicalDeviceShaderIntegerDotProductFeatures",
    "VkPhysicalDeviceVulkanMemoryModelFeatures",
)
# VkPhysicalDeviceType by number, as older tools write it, and without its prefix, as text output has it.
_TYPES = ("OTHER", "INTEGRATED_GPU", "DISCRETE_GPU", "VIRTUAL_GPU", "CPU")
_VENDOR_TAGS = ("KHR", "EXT")


def import_device(
    path: Path, *, profile: str = "", name: str = "", kind: Kind | None = None, heap_bytes: int | None = None
) -> Device:
    """The device that a file of another tool describes, with what it does not say filled in and listed.

    ``profile`` names the profile to take where the file has several; ``name`` is that of a device without one;
    ``kind`` and ``heap_bytes`` say what the file leaves out, and outrank it. Raises ModelError for a file that is
    neither vulkaninfo's JSON, nor a profile file, nor a phone's, and UsageError for a profile that it does not have.
    """
    data = _read(path)
    try:
        label, found = _found(data, profile, path)
        facts, assumed = _complete(found, name or label, kind, heap_bytes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is damaged: a part of it is of the wrong kind ({error})") from None
    facts = {"source": f"{label} in {path.name}, imported by vkconv devices import", "assumed": assumed, **facts}
    problems = list(problems_of(facts))
    if problems:
        raise ModelError("\n  ".join([f"{path} has fields that make no device file:", *problems]))
    return Device(facts)


def _found(data: Mapping[str, Any], profile: str, path: Path) -> tuple[str, dict[str, Any]]:
    """What a report tells, by whatever tool it was written: its name, and properties, features, extensions, heaps."""
    if "capabilities" in data:
        return _profile(data, profile, path)
    if _BASE in data:
        return "vulkaninfo", _old_vulkaninfo(data)
    if (phone := _first(data.get("devices"))) and "properties" in phone:
        told = vkjson(phone)
        return "vkjson", _with_plain_names({**told, "heaps": _heaps(told["heaps"])})
    if data.get("schema") == SCHEMA:
        raise UsageError(f"{path} is a device file already: --device {path} plans for it")
    raise ModelError(
        f"{path} is neither what vulkaninfo --json writes, nor a Vulkan profile, nor what adb shell cmd gpu vkjson "
        f'prints: it has neither "capabilities" nor "{_BASE}" nor "devices" at its top'
    )


def _read(path: Path) -> Mapping[str, Any]:
    data = read_json(path, "device report", "vulkaninfo --json writes it, its text output is not read")
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds a {type(data).__name__}, not an object")
    return data


# ---- profiles, which is also what vulkaninfo writes


def _profile(data: Mapping[str, Any], wanted: str, path: Path) -> tuple[str, dict[str, Any]]:
    """The name of a profile and its capability blocks laid over each other."""
    profiles = _objects(data.get("profiles"))
    if wanted and wanted not in profiles:
        raise UsageError(f"{path} has no profile {wanted!r}{did_you_mean(wanted, profiles)}; it has {_list(profiles)}")
    if len(profiles) > 1 and not wanted:
        raise UsageError(f"{path} has several profiles, {_list(profiles)}: say which with --profile")
    name = wanted or next(iter(profiles), "device")
    blocks = _objects(data["capabilities"])
    used = list(_flat(profiles.get(name, {}).get("capabilities", blocks)))
    merged: dict[str, Any] = {"properties": {}, "features": {}, "extensions": {}}
    for block in used:
        if block not in blocks:
            raise ModelError(f"{path}: profile {name!r} asks for the capabilities {block!r}, which are not there")
        _merge(merged, blocks[block])
    return name, _with_plain_names(merged)


def _with_plain_names(found: Mapping[str, Any]) -> dict[str, Any]:
    """The same with its structs under the names that device files have."""
    return {
        **found,
        "properties": _struct_names(found["properties"], _SUMMED_PROPERTIES),
        "features": _struct_names(found["features"], _SUMMED_FEATURES),
    }


def _flat(names: Any) -> Iterator[str]:
    """The names of capability blocks; of variants, a list in the list, the first: every device has it or better."""
    for name in names:
        if isinstance(name, list):
            yield from _flat(name[:1])
        else:
            yield str(name)


def _merge(target: dict[str, Any], block: Mapping[str, Any]) -> None:
    for key, value in block.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        elif isinstance(value, dict):
            target[key] = {}
            _merge(target[key], value)
        else:
            target[key] = value


def _struct_names(
    structs: Mapping[str, Any], summed: Mapping[str, Mapping[str, tuple[str, str]]]
) -> dict[str, dict[str, Any]]:
    """Structs under the names that device files have: those of the version that made them core, summed ones apart."""
    plain: dict[str, dict[str, Any]] = {}
    for struct, fields in structs.items():
        bare = next((struct.removesuffix(tag) for tag in _VENDOR_TAGS if struct.endswith(tag)), struct)
        known = bare if bare in (*_PROPERTIES, *_FEATURES) else struct
        if not isinstance(fields, dict):
            if known in (*_PROPERTIES, *_FEATURES, *summed):
                raise ValueError(f"{struct} is no object")
            continue
        plain.setdefault(known, {}).update(fields)
        for field, (home, name) in summed.get(struct, {}).items():
            if field in fields:
                plain.setdefault(home, {}).setdefault(name, fields[field])
    return plain


# ---- what old versions of vulkaninfo write: the structs at the top, enums as numbers


def _old_vulkaninfo(data: Mapping[str, Any]) -> dict[str, Any]:
    extensions = data.get("ArrayOfVkExtensionProperties")
    heaps = _objects({"memory": data.get("VkPhysicalDeviceMemoryProperties")}).get("memory", {}).get("memoryHeaps")
    return {
        "properties": {name: fields for name, fields in _objects(data).items() if name in _PROPERTIES},
        "features": {
            name: {field: bool(value) for field, value in fields.items()}
            for name, fields in _objects(data).items()
            if name in _FEATURES
        },
        "extensions": {
            str(entry["extensionName"]): entry.get("specVersion", 1)
            for entry in (extensions if isinstance(extensions, list) else ())
            if isinstance(entry, dict) and "extensionName" in entry
        },
        "heaps": _heaps(heaps),
    }


def _heaps(heaps: Any) -> list[dict[str, Any]]:
    """Memory heaps with their flags, a number, by name."""
    return [
        {"size": heap.get("size"), "flags": [DEVICE_LOCAL] if heap.get("flags") in (1, 3, [DEVICE_LOCAL]) else []}
        for heap in (heaps if isinstance(heaps, list) else ())
        if isinstance(heap, dict)
    ]


# ---- what is missing


def _complete(
    found: Mapping[str, Any], name: str, kind: Kind | None, heap_bytes: int | None
) -> tuple[dict[str, Any], list[str]]:
    """The facts of a device file from what was found, and the paths of fields that were assumed."""
    assumed: list[str] = []
    properties = {struct: dict(found["properties"].get(struct, {})) for struct in _PROPERTIES}
    properties = {struct: fields for struct, fields in properties.items() if fields or struct in (_BASE, _SUBGROUP)}
    _name_numbers(properties)
    base = properties[_BASE]
    limits = dict(_objects(base).get("limits", {}))

    def fill(fields: dict[str, Any], where: str, defaults: Mapping[str, Any]) -> None:
        for field, value in defaults.items():
            if field not in fields:
                fields[field] = value
                assumed.append(f"{where}.{field}")

    fill(limits, f"properties.{_BASE}.limits", REQUIRED_LIMITS)
    base["limits"] = {field: limits[field] for field in REQUIRED_LIMITS}
    base["deviceType"] = _type(kind, base.get("deviceType"), assumed)
    base["deviceName"] = base.get("deviceName") or name
    if isinstance(uuid := base.get("pipelineCacheUUID"), list):
        base["pipelineCacheUUID"] = "".join(f"{byte:02x}" for byte in uuid if isinstance(byte, int))
    base.pop("sparseProperties", None)
    version = {"apiVersion": 1 << 22 | 1 << 12, "driverVersion": 0, "vendorID": 0, "deviceID": 0}
    fill(base, f"properties.{_BASE}", version)
    fill(properties[_SUBGROUP], f"properties.{_SUBGROUP}", _REQUIRED_SUBGROUP)
    heaps = found.get("heaps") or []
    if heap_bytes is not None:
        heaps = [{"size": heap_bytes, "flags": [DEVICE_LOCAL]}]
    elif not heaps:
        heaps = [{"size": _HEAP_BYTES, "flags": [DEVICE_LOCAL]}]
        assumed.append("memory.memoryHeaps")
    facts = {
        "properties": properties,
        "features": {s: dict(found["features"][s]) for s in _FEATURES if s in found["features"]},
        "extensions": dict(sorted(found["extensions"].items())),
        "memory": {"memoryHeaps": heaps},
        "cooperativeMatrices": [],
    }
    return facts, assumed


def _name_numbers(properties: Mapping[str, dict[str, Any]]) -> None:
    """Bits and the enum of the structs that have them, where a tool writes them as numbers."""
    for struct, field in ((_FLOATS, "shaderRoundingModeRTEFloat16"), DOT_ACCELERATED):
        if field in properties.get(struct, {}):
            properties[struct][field] = _bit(properties[struct][field])
    independence = properties.get(_FLOATS, {}).get("roundingModeIndependence")
    if isinstance(independence, int) and 0 <= independence < len(_INDEPENDENCES):
        properties[_FLOATS]["roundingModeIndependence"] = _INDEPENDENCES[independence]


def _bit(value: Any) -> Any:
    return bool(value) if value in (0, 1) else value


def _type(kind: Kind | None, value: Any, assumed: list[str]) -> str:
    """``deviceType`` as Vulkan names it."""
    if kind is not None:
        return KIND_NAMES[kind]
    if isinstance(value, int) and 0 <= value < len(_TYPES):
        return f"VK_PHYSICAL_DEVICE_TYPE_{_TYPES[value]}"
    if isinstance(value, str):
        return value if value.startswith("VK_") else f"VK_{value}"
    assumed.append(f"properties.{_BASE}.deviceType")
    return KIND_NAMES["integrated"]


def _objects(value: Any) -> dict[str, Any]:
    """The entries of an object that are objects themselves; none of anything else."""
    return {key: inner for key, inner in value.items() if isinstance(inner, dict)} if isinstance(value, dict) else {}


def _first(value: Any) -> dict[str, Any]:
    """The first element of a list, where that is an object."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
