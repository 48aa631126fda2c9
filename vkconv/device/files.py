"""Device files: the facts of a device as JSON, checked field by field, so that planning needs no device."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vkconv.core import ModelError, UsageError, did_you_mean, expand_user, not_a_file
from vkconv.device.facts import DEVICE_LOCAL, KIND_NAMES, SCHEMA, Device

_DATA = Path(__file__).parent / "data"
MAX_FILE_BYTES = 16 << 20
_HOW = "vkconv devices --dump prints such a file"
_MISSING = object()


def shipped_devices() -> tuple[str, ...]:
    """Names of the device files that come with vkconv, sorted."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.json")))


def load_device(source: str | Path) -> Device:
    """A device from a shipped name (``lavapipe``, ``h200``, ...) or from the path of a device file.

    Raises UsageError for a name that is neither, ModelError for a file that is not a device file, with every
    field that is missing or wrong.
    """
    if isinstance(source, str) and source in shipped_devices():
        return _load(_DATA / f"{source}.json")
    path = expand_user(source, "the device file")
    if isinstance(source, str) and path.name == source and path.suffix != ".json" and not_a_file(path):
        names = shipped_devices()
        raise UsageError(
            f"no device {source!r}{did_you_mean(source.lower(), names)}; vkconv has the facts of {', '.join(names)}, "
            f"or give the path of a device file ({_HOW})"
        )
    return _load(path)


def read_json(path: Path, what: str, how: str) -> Any:
    """What a JSON file of at most MAX_FILE_BYTES holds. Raises ModelError, calling it a ``what`` and saying ``how`` to
    get one."""
    try:
        if problem := not_a_file(path):
            raise ModelError(f"{what} {path}: {problem}; {how}")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelError(f"{path} has {path.stat().st_size} bytes; a {what} has at most {MAX_FILE_BYTES}")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not a {what}: not JSON ({error}); {how}") from None


def _load(path: Path) -> Device:
    facts = read_json(path, "device file", _HOW)
    if isinstance(facts, dict) and "capabilities" in facts:
        raise ModelError(f"{path} is a Vulkan profile, not a device file; vkconv devices import {path} makes one of it")
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        found = facts.get("schema") if isinstance(facts, dict) else type(facts).__name__
        raise ModelError(f'{path} is not a device file: it needs "schema": "{SCHEMA}", and has {found!r}; {_HOW}')
    problems = list(problems_of(facts))
    if problems:
        raise ModelError("\n  ".join([f"{path} is not a complete device file; {_HOW}:", *problems]))
    return Device({key: value for key, value in facts.items() if key != "schema"})


# ---- the schema: what each field must be, in words and as a test


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_heap(value: Any) -> bool:
    return isinstance(value, dict) and _is_count(value.get("size")) and _is_texts(value.get("flags"))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


Rule = tuple[str, Callable[[Any], bool]]
_TEXT: Rule = ("a text", lambda v: isinstance(v, str))
# VK_MAX_PHYSICAL_DEVICE_NAME_SIZE, with the zero at its end; the name goes to terminals and into tables.
_NAME: Rule = (
    "a text of 1 to 255 bytes that can be printed",
    lambda v: isinstance(v, str) and v.isprintable() and 0 < len(v.encode()) < 256,
)
_TYPE: Rule = (f"one of {', '.join(KIND_NAMES.values())}", lambda v: v in KIND_NAMES.values())
_COUNT: Rule = ("a whole number, not negative", _is_count)
_POSITIVE: Rule = ("a positive whole number", lambda v: _is_count(v) and v > 0)
_PERIOD: Rule = ("a number of ns, not negative", lambda v: _is_count(v) or (isinstance(v, float) and 0 <= v < 1e9))


def _triple(x: int, y: int, z: int) -> Rule:
    """Three limits, each at least what Vulkan 1.1 guarantees."""

    def holds(v: Any) -> bool:
        return (
            isinstance(v, list)
            and len(v) == 3
            and all(_is_count(n) and n >= m for n, m in zip(v, (x, y, z), strict=True))
        )

    return f"three whole numbers from {x}, {y} and {z} on, as Vulkan guarantees", holds


def _at_least(least: int) -> Rule:
    """A limit that Vulkan 1.1 guarantees of every device: routes and their parameters rely on it."""
    return f"a whole number from {least} on, as Vulkan guarantees", lambda v: _is_count(v) and v >= least


_HEX: Rule = ("32 hexadecimal digits", lambda v: isinstance(v, str) and re.fullmatch(r"[0-9a-f]{32}", v) is not None)
_TEXTS: Rule = ("a list of texts", _is_texts)
_BIT: Rule = ("true or false", lambda v: isinstance(v, bool))
_TABLE: Rule = ("an object", lambda v: isinstance(v, dict))
_OBJECTS: Rule = ("a list of objects", lambda v: isinstance(v, list) and all(isinstance(item, dict) for item in v))
_HEAPS: Rule = (
    'a list of {"size": bytes, "flags": [texts]} with one of them ' + DEVICE_LOCAL,
    lambda v: isinstance(v, list) and all(map(_is_heap, v)) and any(DEVICE_LOCAL in heap["flags"] for heap in v),
)

_BASE = "properties.VkPhysicalDeviceProperties."
_LIMITS = _BASE + "limits."
_SUBGROUP = "properties.VkPhysicalDeviceSubgroupProperties."
_SIZE_CONTROL = "properties.VkPhysicalDeviceSubgroupSizeControlProperties."
_DRIVER = "properties.VkPhysicalDeviceDriverProperties."

REQUIRED: dict[str, Rule] = {
    "properties": _TABLE,
    _BASE + "deviceName": _NAME,
    _BASE + "deviceType": _TYPE,
    _BASE + "vendorID": _COUNT,
    _BASE + "deviceID": _COUNT,
    _BASE + "apiVersion": _POSITIVE,
    _BASE + "driverVersion": _COUNT,
    _LIMITS + "maxComputeSharedMemorySize": _at_least(16_384),
    _LIMITS + "maxComputeWorkGroupCount": _triple(65_535, 65_535, 65_535),
    _LIMITS + "maxComputeWorkGroupInvocations": _at_least(128),
    _LIMITS + "maxComputeWorkGroupSize": _triple(128, 128, 64),
    _LIMITS + "maxPerStageDescriptorStorageBuffers": _at_least(4),
    _LIMITS + "maxPushConstantsSize": _at_least(128),
    _LIMITS + "maxStorageBufferRange": _at_least(1 << 27),
    _LIMITS + "minStorageBufferOffsetAlignment": _POSITIVE,
    _LIMITS + "timestampPeriod": _PERIOD,
    _SUBGROUP + "subgroupSize": _POSITIVE,
    _SUBGROUP + "supportedStages": _TEXTS,
    _SUBGROUP + "supportedOperations": _TEXTS,
    "features": _TABLE,
    "extensions": _TABLE,
    "memory.memoryHeaps": _HEAPS,
}
OPTIONAL: dict[str, Rule] = {
    "properties.*": _TABLE,
    "features.*": _TABLE,
    "features.*.*": _BIT,
    "extensions.*": _COUNT,
    _BASE + "pipelineCacheUUID": _HEX,
    "properties.VkPhysicalDeviceMaintenance3Properties.maxMemoryAllocationSize": _POSITIVE,
    _DRIVER + "driverID": _TEXT,
    _DRIVER + "driverName": _TEXT,
    _DRIVER + "driverInfo": _TEXT,
    _SIZE_CONTROL + "minSubgroupSize": _POSITIVE,
    _SIZE_CONTROL + "maxSubgroupSize": _POSITIVE,
    _SIZE_CONTROL + "requiredSubgroupSizeStages": _TEXTS,
    "source": _TEXT,
    "assumed": _TEXTS,
    "queueFamilies": _OBJECTS,
    "cooperativeMatrices": _OBJECTS,
}


def problems_of(facts: Mapping[str, Any]) -> Iterator[str]:
    """What is missing or wrong in the facts of a device file, field by field."""
    for pattern, (words, holds) in (REQUIRED | OPTIONAL).items():
        for path, value in _at(facts, pattern):
            if value is _MISSING:
                if pattern in REQUIRED:
                    yield f"{path} is missing: {words}"
            elif not holds(value):
                shown = repr(value)
                yield f"{path} must be {words}, and is {shown if len(shown) < 60 else shown[:57] + '...'}"


def _at(value: Any, pattern: str, before: str = "") -> Iterator[tuple[str, Any]]:
    """The fields that a dotted path names, each with its value; ``*`` stands for every key there is."""
    key, _, rest = pattern.partition(".")
    inside = value if isinstance(value, dict) else {}
    for name in inside if key == "*" else [key]:
        inner = inside.get(name, _MISSING)
        if rest and inner is not _MISSING:
            yield from _at(inner, rest, f"{before}{name}.")
        else:
            yield f"{before}{name}{'.' if rest else ''}{rest}", inner
