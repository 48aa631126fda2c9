"""Device files: the facts of a device as JSON, checked field by field, so that planning needs no device."""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec

from vkconv.core import ModelError, UsageError, did_you_mean, expand_user, not_a_file
from vkconv.device.facts import DEVICE_LOCAL, DOT_ACCELERATED, KIND_NAMES, SCHEMA, Device
from vkconv.device.numbers import NUMBERS, Evidence, is_described, is_number

_DATA = Path(__file__).parent / "data"
MAX_FILE_BYTES = 16 << 20
_HOW = "vkconv devices --dump prints such a file"
_MISSING = object()


@functools.cache
def shipped_devices() -> tuple[str, ...]:
    """Names of the device files that come with vkconv, sorted."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.json")))


def load_device(source: str | Path) -> Device:
    """A device from a shipped name (``lavapipe``, ``h200``, ...) or from the path of a device file.

    Raises UsageError for a name that is neither, ModelError for a file that is not a device file, with every
    field that is missing or wrong.
    """
    if isinstance(source, str) and source in shipped_devices():
        return _shipped(source)
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


@functools.cache
def _shipped(name: str) -> Device:
    return _load(_DATA / f"{name}.json")


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


# ---- the schema: what each field must be, in words and as a type or a test. All that anything reads has a rule.

_U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Side = Annotated[int, msgspec.Meta(ge=1, le=1024)]
_Number = (
    bool | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | Annotated[float, msgspec.Meta(gt=-1e39, lt=1e39)]
)


class _Matrix(msgspec.Struct):
    MSize: _Side
    NSize: _Side
    KSize: _Side
    AType: str
    BType: str
    CType: str
    ResultType: str
    saturatingAccumulation: bool  # noqa: N815 - Vulkan's own name
    scope: str


def _is_a(kind: Any) -> Callable[[Any], bool]:
    """Whether a value is of a type by msgspec's strict rules: no number is a text, no true a number."""

    def holds(value: Any) -> bool:
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, OverflowError, UnicodeError):  # halves of characters
            return False
        return True

    return holds


def _is_count(value: Any) -> bool:
    """Of 64 bits without a sign, of which msgspec's bounds have 63."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_limit(value: Any) -> bool:
    return _is_count(value) or _is_a(_Number | list[str])(value)


def _is_heap(value: Any) -> bool:
    return isinstance(value, dict) and _is_count(value.get("size")) and _is_a(list[str])(value.get("flags"))


class _MemoryType(msgspec.Struct):
    propertyFlags: list[str]  # noqa: N815 - Vulkan's own names
    heapIndex: Annotated[int, msgspec.Meta(ge=0, lt=16)]  # noqa: N815 - of VK_MAX_MEMORY_HEAPS


Rule = tuple[str, Callable[[Any], bool]]
_TEXT: Rule = ("a text", _is_a(str))
# VK_MAX_PHYSICAL_DEVICE_NAME_SIZE, with the zero at its end; the name goes to terminals and into tables.
_NAME: Rule = (
    "a text of 1 to 255 bytes that can be printed",
    lambda v: isinstance(v, str) and v.isprintable() and 0 < len(v.encode()) < 256,
)
_TYPE: Rule = (f"one of {', '.join(KIND_NAMES.values())}", lambda v: v in KIND_NAMES.values())
_COUNT: Rule = ("a whole number, not negative", _is_count)
_WORD: Rule = ("a whole number of 32 bits, not negative", _is_a(_U32))
_UNITS: Rule = ("a whole number from 0 to 65536", _is_a(Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]))
_LIMIT: Rule = ("a number, true, false or a list of texts", _is_limit)
_POSITIVE: Rule = ("a positive whole number", lambda v: _is_count(v) and v > 0)
_PERIOD: Rule = ("a number of ns, not negative", lambda v: _is_count(v) or (isinstance(v, float) and 0 <= v < 1e9))


def _triple(x: int, y: int, z: int) -> Rule:
    """Three limits, each at least what Vulkan 1.1 guarantees."""

    def holds(v: Any) -> bool:
        return (
            isinstance(v, list)
            and len(v) == 3
            and all(_is_a(_U32)(n) and n >= m for n, m in zip(v, (x, y, z), strict=True))
        )

    return f"three whole numbers of 32 bits from {x}, {y} and {z} on, as Vulkan guarantees", holds


def _at_least(least: int) -> Rule:
    """A limit that Vulkan 1.1 guarantees of every device: routes and their parameters rely on it."""
    return f"a whole number of 32 bits from {least} on, as Vulkan guarantees", lambda v: _is_a(_U32)(v) and v >= least


def _power_of_two(most: int) -> Rule:
    return (
        f"a power of two from 1 to {most}",
        lambda v: _is_a(_U32)(v) and v in (1 << n for n in range(most.bit_length())),
    )


def _numbers(count: int) -> Rule:
    kind = Annotated[list[_Number], msgspec.Meta(min_length=count, max_length=count)]
    return f"{count} numbers", _is_a(kind)


def _number(least: float) -> Rule:
    """A number of a target."""
    kinds = ", ".join(get_args(Evidence))
    return (
        f'{{"value": a number from {least:g} on, "evidence": one of {kinds}, "source": what says so}}',
        lambda v: is_number(v, least),
    )


_HEX: Rule = ("32 hexadecimal digits", lambda v: isinstance(v, str) and re.fullmatch(r"[0-9a-f]{32}", v) is not None)
_TEXTS: Rule = ("a list of texts", _is_a(list[str]))
_BIT: Rule = ("true or false", _is_a(bool))
_TABLE: Rule = ("an object", _is_a(dict[str, Any]))
_OBJECTS: Rule = ("a list of objects", _is_a(list[dict[str, Any]]))
_MATRICES: Rule = (
    f"a list of objects with {', '.join(_Matrix.__struct_fields__)}, sizes from 1 to 1024",
    _is_a(list[_Matrix]),
)
_TARGET: Rule = (
    'an object of a text "generation" and the object "numbers", which may have ' + ", ".join(NUMBERS),
    is_described,
)
_ORIGINS: Rule = (
    f"an object of paths of fields to one of {', '.join(get_args(Evidence))}",
    _is_a(dict[str, Evidence]),
)
_HEAPS: Rule = (
    'a list of {"size": bytes, "flags": [texts]} with one of them ' + DEVICE_LOCAL,
    lambda v: isinstance(v, list) and all(map(_is_heap, v)) and any(DEVICE_LOCAL in heap["flags"] for heap in v),
)
_MEMORY_TYPES: Rule = (
    'a list of {"propertyFlags": [texts], "heapIndex": a number from 0 to 15}',
    _is_a(list[_MemoryType]),
)

_BASE = "properties.VkPhysicalDeviceProperties."
_LIMITS = _BASE + "limits."
_SUBGROUP = "properties.VkPhysicalDeviceSubgroupProperties."
_SIZE_CONTROL = "properties.VkPhysicalDeviceSubgroupSizeControlProperties."
_DRIVER = "properties.VkPhysicalDeviceDriverProperties."
_FLOAT_CONTROLS = "properties.VkPhysicalDeviceFloatControlsProperties."

REQUIRED: dict[str, Rule] = {
    "properties": _TABLE,
    _BASE + "deviceName": _NAME,
    _BASE + "deviceType": _TYPE,
    _BASE + "vendorID": _WORD,
    _BASE + "deviceID": _WORD,
    _BASE + "apiVersion": _at_least(1),
    _BASE + "driverVersion": _WORD,
    _LIMITS + "maxComputeSharedMemorySize": _at_least(16_384),
    _LIMITS + "maxComputeWorkGroupCount": _triple(65_535, 65_535, 65_535),
    _LIMITS + "maxComputeWorkGroupInvocations": _at_least(128),
    _LIMITS + "maxComputeWorkGroupSize": _triple(128, 128, 64),
    _LIMITS + "maxPerStageDescriptorStorageBuffers": _at_least(4),
    _LIMITS + "maxPushConstantsSize": _at_least(128),
    _LIMITS + "maxStorageBufferRange": _at_least(1 << 27),
    _LIMITS + "minStorageBufferOffsetAlignment": _power_of_two(1 << 16),
    _LIMITS + "timestampPeriod": _PERIOD,
    _SUBGROUP + "subgroupSize": _power_of_two(128),
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
    "extensions.*": _WORD,
    _LIMITS + "*": _LIMIT,
    _LIMITS + "maxViewportDimensions": _numbers(2),
    _LIMITS + "viewportBoundsRange": _numbers(2),
    _LIMITS + "pointSizeRange": _numbers(2),
    _LIMITS + "lineWidthRange": _numbers(2),
    _BASE + "pipelineCacheUUID": _HEX,
    "properties.VkPhysicalDeviceMaintenance3Properties.maxMemoryAllocationSize": _POSITIVE,
    _DRIVER + "driverID": _TEXT,
    _DRIVER + "driverName": _TEXT,
    _DRIVER + "driverInfo": _TEXT,
    _SIZE_CONTROL + "minSubgroupSize": _power_of_two(128),
    _SIZE_CONTROL + "maxSubgroupSize": _power_of_two(128),
    _SIZE_CONTROL + "maxComputeWorkgroupSubgroups": _at_least(1),
    _SIZE_CONTROL + "requiredSubgroupSizeStages": _TEXTS,
    _FLOAT_CONTROLS + "roundingModeIndependence": _TEXT,
    _FLOAT_CONTROLS + "shaderRoundingModeRTEFloat16": _BIT,
    "properties." + ".".join(DOT_ACCELERATED): _BIT,
    "source": _TEXT,
    "assumed": _TEXTS,
    "evidence": _ORIGINS,
    "queueFamilies": _OBJECTS,
    "memory.memoryTypes": _MEMORY_TYPES,
    "formats": _TABLE,
    "formats.*": _TABLE,
    "formats.*.VkFormatProperties": _TABLE,
    "formats.*.VkFormatProperties.optimalTilingFeatures": _TEXTS,
    "cooperativeMatrices": _MATRICES,
    **{f"properties.{struct}.{field}": _UNITS for m in NUMBERS.values() for struct, field, _ in m.driver},
    "target": _TARGET,
    **{f"target.numbers.{name}": _number(meaning.least) for name, meaning in NUMBERS.items()},
}


def problems_of(facts: Mapping[str, Any]) -> Iterator[str]:
    """What is missing or wrong in the facts of a device file, field by field."""
    rules = REQUIRED | OPTIONAL
    for pattern, (words, holds) in rules.items():
        for path, value in _at(facts, pattern):
            if path != pattern and path in rules:  # which says it more exactly
                continue
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
