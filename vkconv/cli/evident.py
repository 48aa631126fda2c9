"""What ``vkconv devices --evidence`` shows of a device: what it is and its numbers, each with where it is from."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import get_args

from vkconv.core import bytes_str
from vkconv.device import Device, Target, target_of
from vkconv.device.numbers import Evidence, Number
from vkconv.table import Column, Table
from vkconv.texture import VULKAN_FORMATS, lacks_format, most

NOT_KNOWN = "not known"
"""The evidence of what nobody says, and its value."""

# The weakest last: what follows from several facts is no surer than the least sure of them.
_ORDER = (*get_args(Evidence), NOT_KNOWN)
_BASE = "properties.VkPhysicalDeviceProperties."
_SUBGROUP = "properties.VkPhysicalDeviceSubgroupProperties."
_SIZES = "properties.VkPhysicalDeviceSubgroupSizeControlProperties"
_SIZED = "features.VkPhysicalDeviceSubgroupSizeControlFeatures.subgroupSizeControl"
_PROMISED = (
    "https://registry.khronos.org/vulkan/specs/latest/html/vkspec.html: Required Format Support, Required Limits"
)
# Headings short enough for all numbers of a device on one line.
_TRAITS = {
    "class": "class",
    "vendor": "vendor",
    "generation": "generation",
    "subgroup_size": "subgroup",
    "subgroup_sizes": "may require",
    "shared_bytes": "group's shared",
    "unified_memory": "UMA",
    "cooperative_matrices": "matrices",
}
_NUMBERS = {
    "compute_units": "units",
    "fma_per_unit": "fma",
    "f16_rate": "f16",
    "matrix_fma_per_unit": "matrix",
    "clock_mhz": "MHz",
    "dependent_cycles": "latency",
    "registers_per_unit": "regs/unit",
    "registers_per_lane": "most",
    "full_occupancy_registers": "whole",
    "lanes_per_unit": "lanes",
    "workgroups_per_unit": "groups",
    "shared_bytes_per_unit": "shared",
    "cache_bytes": "cache",
    "bandwidth_gbs": "GB/s",
    "launch_us": "launch us",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Evident:
    """A value as text, with what it is from: an `Evidence`, or `NOT_KNOWN`."""

    value: str
    evidence: str
    source: str


def evident(device: Device) -> dict[str, Evident]:
    """All that is known of a device by name, what it is before its numbers."""
    target = target_of(device)
    numbers = {name: Evident(_shown(name, n), n.evidence, n.source) for name, n in target.numbers.items()}
    return {**dict(_traits(device, target)), **numbers, **dict(_derived(target))}


def evident_table(device: Device) -> Table:
    """A row for each of them."""
    columns = [Column("what"), Column("value", align="right"), Column("evidence"), Column("source")]
    rows = [(name, one.value, one.evidence, one.source) for name, one in evident(device).items()]
    return Table(target_of(device).name, columns, rows)


def notes(device: Device) -> Iterator[str]:
    """What the device's file says of itself, for below the table."""
    if assumed := device.facts.get("assumed"):
        yield f"assumed by the device's file: {', '.join(path.rpartition('.')[2] for path in assumed)}"
    if source := device.facts.get("source"):
        yield f"its source: {source}"


def all_devices(devices: Mapping[str, Device]) -> tuple[Table, str]:
    """A row for each device, behind each value the first letter of its evidence; and what the letters mean."""
    rows = []
    for name, device in devices.items():
        found = evident(device)
        cells = (found[key] for key in (*_TRAITS, *_NUMBERS))
        rows.append((name, *(f"{'' if c.value == NOT_KNOWN else c.value} {c.evidence[0]}".strip() for c in cells)))
    columns = [*map(Column, _TRAITS.values()), *(Column(heading, align="right") for heading in _NUMBERS.values())]
    return Table("", [Column("file"), *columns], rows), ", ".join(f"{word[0]} {word}" for word in _ORDER)


def _shown(name: str, number: Number) -> str:
    return bytes_str(int(number.value)) if "bytes" in name else str(number)


# ---- what a device is


def _traits(device: Device, target: Target) -> Iterator[tuple[str, Evident]]:
    base = device.facts["properties"]["VkPhysicalDeviceProperties"]
    kind = str(base["deviceType"]).removeprefix("VK_PHYSICAL_DEVICE_TYPE_")
    if target.class_given:
        yield "class", Evident(target.device_class, "assumed", "device_class in the target of the device's file")
    else:
        said = f"{kind}, of vendor {device.vendor}"
        yield "class", _of_facts(device, target.device_class, _BASE + "deviceType", _BASE + "vendorID", said=said)
    yield "vendor", _of_facts(device, device.vendor, _BASE + "vendorID", said=f"0x{int(base['vendorID']):04X}")
    if target.generation_source:
        yield "generation", Evident(target.generation, "published", target.generation_source)
    else:
        why = "the device's file names no page" if target.generation else "no device file tells it"
        yield "generation", Evident(target.generation or NOT_KNOWN, NOT_KNOWN, why)
    yield "subgroup_size", _of_facts(device, str(device.subgroup_size), _SUBGROUP + "subgroupSize")
    yield "subgroup_sizes", _subgroup_sizes(device)
    operations = ", ".join(sorted(device.subgroup_operations)) or "none"
    yield "subgroup_operations", _of_facts(device, operations, _SUBGROUP + "supportedOperations")
    limit = "maxComputeSharedMemorySize"
    yield "shared_bytes", _of_facts(device, bytes_str(device.limit(limit)), f"{_BASE}limits.{limit}")
    yield "memory_bytes", _of_facts(device, bytes_str(device.heap_bytes), "memory.memoryHeaps")
    by_kind = device.kind in ("cpu", "integrated")
    heaps = () if by_kind else ("memory.memoryHeaps",)
    unified = "yes" if device.unified_memory else "no"
    yield "unified_memory", _of_facts(device, unified, _BASE + "deviceType", *heaps, said=kind)
    yield "cooperative_matrices", _matrices(device)
    yield "images", _images(device)


def _subgroup_sizes(device: Device) -> Evident:
    """The sizes that a compute pipeline may require."""
    struct = "VkPhysicalDeviceSubgroupSizeControlProperties"
    stages = device.fact(struct, "requiredSubgroupSizeStages") or ()
    paths = [f"{_SIZES}.{field}" for field in ("minSubgroupSize", "maxSubgroupSize", "requiredSubgroupSizeStages")]
    if struct in device.facts["properties"]:
        least, most_ = device.subgroup_sizes
        may = "VK_SHADER_STAGE_COMPUTE_BIT" in stages and device.feature(*_SIZED.split(".")[1:])
        value = "none" if not may else str(least) if least == most_ else f"{least} to {most_}"
        return _of_facts(device, value, *paths, _SIZED)
    # A driver that can do it says so; a file put together from pages need not.
    if _evidence(device, _SIZES) == "driver":
        return Evident("none", "driver", f"no {struct}")
    return Evident(NOT_KNOWN, NOT_KNOWN, "the device's file does not say; taken as none")


def _matrices(device: Device) -> Evident:
    """Shapes and types of cooperative matrices."""
    count = len(device.facts.get("cooperativeMatrices", ()))
    if count:
        return _of_facts(device, str(count), "cooperativeMatrices")
    if _evidence(device, "cooperativeMatrices") == NOT_KNOWN:
        return Evident(NOT_KNOWN, NOT_KNOWN, "the device's file does not say; taken as none")
    return _of_facts(device, "none", "cooperativeMatrices")


def _images(device: Device) -> Evident:
    """The texels that can be sampled and stored, and the largest images of them."""
    formats = [name for name in VULKAN_FORMATS if not lacks_format(name, device)]
    limits = ("maxImageDimension2D", "maxImageDimension3D")
    sides = [f"{limit[-2]}-D to {most(limit, device)}" for limit in limits]
    value = f"{', '.join(formats) or 'none'}; {', '.join(sides)}"
    has = device.facts["properties"]["VkPhysicalDeviceProperties"]["limits"].keys() >= set(limits)
    if has and device.facts.get("formats"):
        return _of_facts(device, value, "formats", *(f"{_BASE}limits.{limit}" for limit in limits))
    said = "limits as the file has them, formats" if has else "formats as the file has them, limits"
    said = said if has or device.facts.get("formats") else "the file does not say: formats and limits"
    return Evident(value, "published", f"{said} that Vulkan requires of every device, {_PROMISED}")


def _derived(target: Target) -> Iterator[tuple[str, Evident]]:
    """What follows from several numbers, and what no number tells."""

    def product(*names: str) -> Evident:
        numbers = [target.numbers[name] for name in names]
        value = 2e-6
        for number in numbers:
            value *= number.value
        weakest = max((number.evidence for number in numbers), key=_ORDER.index)
        return Evident(f"{value:.4g}", weakest, f"2 x {' x '.join(names)}")

    each = ("compute_units", "clock_mhz")
    yield "peak_f32_tflops", product(*each, "fma_per_unit")
    yield "peak_f16_tflops", product(*each, "fma_per_unit", "f16_rate")
    yield "peak_matrix_tflops", product(*each, "matrix_fma_per_unit")
    yield (
        "barrier_us",
        Evident(NOT_KNOWN, NOT_KNOWN, "no measurement tells a barrier from its launch: launch_us has both"),
    )


# ---- where facts are from


def _evidence(device: Device, path: str) -> str:
    """Of a fact by its dotted path. A file whose facts are no driver's report says so under ``evidence``: the longest
    path of it that leads there counts, and what it leaves out is not known."""

    def leads(above: str) -> bool:
        return path == above or path.startswith(f"{above}.")

    if any(map(leads, device.facts.get("assumed", ()))):
        return "assumed"
    told: Mapping[str, str] | None = device.facts.get("evidence")
    if told is None:
        return "driver"
    return told.get(max(filter(leads, told), key=len, default=""), NOT_KNOWN)


def _of_facts(device: Device, value: str, *paths: str, said: str = "") -> Evident:
    """What follows from facts: no surer than the least sure of them, which the source names."""
    origins = {path: _evidence(device, path) for path in paths}
    weakest = max(origins.values(), key=_ORDER.index)
    named = ", ".join(
        ".".join(path.split(".")[-2:]) if path.startswith(("properties", "features")) else path
        for path, origin in origins.items()
        if origin == weakest
    )
    return Evident(value, weakest, f"{named}: {said}" if said else named)
