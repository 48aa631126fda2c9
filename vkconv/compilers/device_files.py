"""Device files of GPUs that are not here: what their drivers say behind shims, with what people know of the GPUs."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from vkconv.compilers.gpus import Gpu, driver_of
from vkconv.device import Device
from vkconv.device.facts import SCHEMA
from vkconv.device.files import OPTIONAL, REQUIRED

BY_HAND = " By hand: "
"""What stands in a file's ``source`` before that of facts that no driver said."""

_PROPERTIES, _LIMITS = "properties.", "properties.VkPhysicalDeviceProperties.limits."
# Of the build of the driver, not of the device.
_LEFT_OUT = ("properties.VkPhysicalDeviceProperties.pipelineCacheUUID",)
# Of graphics, nearly all of it; no route asks for one.
_FEATURES_LEFT_OUT = ("VkPhysicalDeviceFeatures",)


def device_file(gpu: Gpu, live: Device, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The device file of a GPU: of what its driver says in ``live`` that which compute needs; and of the file that
    there was its ``target``, the facts that the shim invents, and what its source says of these."""
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "source": _source(gpu, live) + "".join(str(kept.get("source", "")).partition(BY_HAND)[1:]),
        "assumed": sorted({*live.facts.get("assumed", ()), *_required(driver_of(gpu).invented)}),
        "target": kept.get("target", {"generation": gpu.title, "numbers": {}}),
        "properties": {},
        "features": {
            name: bits for name, bits in live.facts.get("features", {}).items() if name not in _FEATURES_LEFT_OUT
        },
        "extensions": dict(sorted(live.facts.get("extensions", {}).items())),
        "memory": {"memoryHeaps": live.facts["memory"]["memoryHeaps"]},
        "cooperativeMatrices": live.facts.get("cooperativeMatrices", []),
    }
    for path in (*REQUIRED, *OPTIONAL):
        of_compute = path.startswith(_PROPERTIES) and "*" not in path and path not in _LEFT_OUT
        if of_compute and (path in REQUIRED or not path.startswith(_LIMITS)):
            _copy(path, live.facts, facts)
    for path in driver_of(gpu).invented:
        _copy(path, kept, facts)
    return facts


def without_invented(gpu: Gpu, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A driver's facts as a device file may have them: what its shim invents is listed under ``assumed`` where a device
    file must have it, and left out elsewhere."""
    found = copy.deepcopy(dict(facts))
    for path in set(driver_of(gpu).invented) - REQUIRED.keys():
        *structs, field = path.split(".")
        inside = _inside(found, structs)
        if inside is not None:
            inside.pop(field, None)
    assumed = {*found.get("assumed", ()), *_required(driver_of(gpu).invented)}
    return {**found, "assumed": sorted(assumed)}


def _source(gpu: Gpu, live: Device) -> str:
    shim = driver_of(gpu).shim
    return (
        f"vkconv devices --with {gpu.name} --dump: {live.driver} behind the {shim} shim, without the GPU; of that what "
        "compute needs. The driver's limits, features and extensions are real."
    )


def _required(paths: tuple[str, ...]) -> Iterator[str]:
    return (path for path in paths if path in REQUIRED)


def _inside(facts: Mapping[str, Any], keys: list[str]) -> Any:
    """What stands at a path of keys; None where there is nothing."""
    value: Any = facts
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _copy(path: str, source: Mapping[str, Any], target: dict[str, Any]) -> None:
    """Copy what stands at a path, where there is something; an object is copied as its fields are."""
    *structs, field = path.split(".")
    found = _inside(source, structs)
    if not isinstance(found, dict) or field not in found:
        return
    value = found[field]
    inside = target
    for key in structs:
        inside = inside.setdefault(key, {})
    if not isinstance(value, dict):
        inside[field] = copy.deepcopy(value)
