"""One device in the limits of another: what a phone would be given, planned so that it runs here."""

from collections.abc import Iterable, Mapping
from typing import Any

from vkconv.device.facts import DEVICE_LOCAL, Device

_BASE = "VkPhysicalDeviceProperties"
_SUBGROUP = "VkPhysicalDeviceSubgroupProperties"
_SIZE_CONTROL = "VkPhysicalDeviceSubgroupSizeControlProperties"
_SIZE_CONTROL_FEATURES = "VkPhysicalDeviceSubgroupSizeControlFeatures"
_MAINTENANCE3 = "VkPhysicalDeviceMaintenance3Properties"
_CLOCK = "timestampPeriod"


def emulated(other: Device, real: Device) -> Device:
    """A device that is ``other`` by kind, vendor and driver, so that its routes are chosen, and that has no more than
    both ``other`` and ``real`` have, so that what is planned for it runs on ``real``.

    Every limit is the tighter one, features, extensions and subgroup operations are those of both, memory is the
    smaller one, and the quirks of both apply. Subgroups are as large as those of ``real``: their size cannot be
    emulated. Where ``other`` has subgroups of several sizes, so does the emulated one. It emulates no speed.
    """
    properties = {struct: dict(fields) for struct, fields in other.facts["properties"].items()}
    base = properties[_BASE]
    base["limits"] = _tighter(base["limits"], real.facts["properties"][_BASE]["limits"])
    base["deviceName"] = f"{other.name} on {real.name}"
    properties[_SUBGROUP] = {
        "subgroupSize": real.subgroup_size,
        "supportedStages": ["VK_SHADER_STAGE_COMPUTE_BIT"],
        "supportedOperations": [
            f"VK_SUBGROUP_FEATURE_{name.upper()}_BIT"
            for name in sorted(other.subgroup_operations & real.subgroup_operations)
        ],
    }
    low, high = other.subgroup_sizes
    subgroups = real.fact(_SIZE_CONTROL, "maxComputeWorkgroupSubgroups")
    properties[_SIZE_CONTROL] = {
        "minSubgroupSize": real.subgroup_size if low == high else max(1, real.subgroup_size // 2),
        "maxSubgroupSize": real.subgroup_size,
        "requiredSubgroupSizeStages": ["VK_SHADER_STAGE_COMPUTE_BIT"],
        **({"maxComputeWorkgroupSubgroups": subgroups} if subgroups else {}),
    }
    allocations = [d.fact(_MAINTENANCE3, "maxMemoryAllocationSize") for d in (other, real)]
    if any(allocations):
        properties[_MAINTENANCE3] = {"maxMemoryAllocationSize": min(filter(None, allocations))}
    features = {
        struct: {name: on and real.feature(struct, name) for name, on in fields.items()}
        for struct, fields in other.facts.get("features", {}).items()
    }
    control = real.feature(_SIZE_CONTROL_FEATURES, "subgroupSizeControl")
    features.setdefault(_SIZE_CONTROL_FEATURES, {})["subgroupSizeControl"] = control
    mine = other.facts.get("cooperativeMatrices", ())
    facts: dict[str, Any] = {
        **other.facts,
        "properties": properties,
        "features": features,
        "extensions": {n: v for n, v in other.facts.get("extensions", {}).items() if real.has(n)},
        "memory": {"memoryHeaps": [{"size": min(other.heap_bytes, real.heap_bytes), "flags": [DEVICE_LOCAL]}]},
        "cooperativeMatrices": [m for m in mine if m in real.facts.get("cooperativeMatrices", ())],
    }
    return Device(facts, other.quirks + tuple(quirk for quirk in real.quirks if quirk not in other.quirks))


def differences(other: Device, real: Device) -> list[tuple[str, str, str]]:
    """What of ``other`` cannot be had on ``real``, as (fact, what it is there, what it is here)."""
    here = emulated(other, real)
    rows = [
        (name, _text(value), _text(here.facts["properties"][_BASE]["limits"][name]))
        for name, value in other.facts["properties"][_BASE]["limits"].items()
        if name != _CLOCK
    ]
    rows.append(("subgroup size", _span(other.subgroup_sizes), _span(here.subgroup_sizes)))
    rows.append(("subgroup operations", _names(other.subgroup_operations), _names(here.subgroup_operations)))
    rows += [
        (name, "yes", "no")
        for struct, fields in other.facts.get("features", {}).items()
        for name, on in fields.items()
        if on and not here.feature(struct, name)
    ]
    return [row for row in rows if row[1] != row[2]]


def _tighter(mine: Mapping[str, Any], real: Mapping[str, Any]) -> dict[str, Any]:
    """The stricter of two values of every limit; those that only one device tells are as it has them."""
    limits = {**mine, **{name: value for name, value in real.items() if name not in mine}}
    for name in mine.keys() & real.keys():
        pick = max if name.startswith("min") else min
        if name == _CLOCK:
            limits[name] = real[name]
        elif isinstance(mine[name], list) and isinstance(real[name], list):
            if all(isinstance(value, str) for value in mine[name]):  # flags
                limits[name] = [value for value in mine[name] if value in real[name]]
            else:
                limits[name] = [pick(pair) for pair in zip(mine[name], real[name], strict=True)]
        elif _is_number(mine[name]) and _is_number(real[name]):
            limits[name] = pick(mine[name], real[name])
    return limits


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _span(sizes: tuple[int, int]) -> str:
    return " to ".join(map(str, sorted(set(sizes))))


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
