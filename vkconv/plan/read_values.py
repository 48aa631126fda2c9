"""What rules read of a device as text: one value, or those of several devices beside each other."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vkconv.device import Device
from vkconv.device.numbers import Number
from vkconv.device.quirks import Quirk
from vkconv.device.reads import Kind, Seen
from vkconv.policy import Row, whole_value

_MOST_CHARACTERS = 60
_BEFORE = 20  # characters that a cut leaves in front of the first difference
# What Vulkan says; the rest are numbers and rows that vkconv has of a device.
FACTS: frozenset[Kind] = frozenset(
    {"limit", "property", "feature", "extension", "format", "cooperativeMatrices", "quirks"}
)
_STRUCTS: Mapping[Kind, str] = {
    "limit": "VkPhysicalDeviceLimits",
    "extension": "VkExtensionProperties",
    "format": "VkFormatProperties",
    "cooperativeMatrices": "VkCooperativeMatrixPropertiesKHR",
}


@dataclasses.dataclass(frozen=True)
class Read:
    """A fact, a number or a policy that a rule read: its value as text, its evidence and source."""

    name: str
    value: str
    evidence: str = ""
    source: str = ""

    @classmethod
    def of(cls, seen: Seen, device: Device) -> "Read":
        """What a device has of it."""
        what = seen.of(device)
        if isinstance(what, Number):
            return cls(seen.name, str(what), what.evidence, what.source)
        if isinstance(what, Row):
            return cls(seen.name, value_text(what.value), what.evidence, what.source)
        evidence, source = "", ""
        if seen.kind in FACTS and seen.kind != "quirks" and what is not None:
            evidence = "assumed" if device.assumes(seen.name) else "driver"
            source = _STRUCTS.get(seen.kind) or seen.words[0]
        return cls(seen.name, value_text(what), evidence, source)

    def __str__(self) -> str:
        return f"{self.name} {shortened(self.value)}{_from(self)}"


def _from(read: Read) -> str:
    return f" ({read.evidence})" if read.evidence else ""


def value_text(value: Any) -> str:
    """A value of a policy or a fact on one line."""
    match value:
        case Quirk():
            return value.id
        case float():
            return f"{value:.10g}"
        case bool():
            return "yes" if value else "no"
        case None:
            return "not said"
        case Mapping() if "MSize" in value:
            return _matrix(value)
        case Mapping():
            return " ".join(f"{name}={value_text(inner)}" for name, inner in value.items())
        case list() | tuple():
            return "|".join(map(value_text, value)) or "none"
    return str(value)


def _matrix(row: Mapping[str, Any]) -> str:
    """A cooperative matrix as ``16x16x16 float16 to float32``."""
    types = [str(row[name]).removeprefix("VK_COMPONENT_TYPE_").removesuffix("_KHR").lower() for name in _TYPES]
    return f"{row['MSize']}x{row['NSize']}x{row['KSize']} {types[0]} to {types[1]}"


_TYPES = ("AType", "ResultType")


def shortened(text: str) -> str:
    """A text that is cut where it is long."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def differs(seen: Seen, devices: Iterable[Device]) -> bool:
    """Whether devices have other values of it."""
    return len({value_text(_value(seen, device)) for device in devices}) > 1


def _value(seen: Seen, device: Device) -> Any:
    what = seen.of(device)
    return whole_value(seen.name, what) if isinstance(what, Row) else what


def beside(seen: Seen, devices: Sequence[Device], between: str = " / ") -> str:
    """What devices have of it: of rows and lists only what is not the same on all, and of long texts the part with the
    first difference."""
    reads = [Read.of(seen, device) for device in devices]
    values = [_value(seen, device) for device in devices]
    texts = apart(values, [read.value for read in reads])
    if len({read.evidence for read in reads}) == 1:
        return f"{seen.name}: {between.join(texts)}{_from(reads[0])}"
    return f"{seen.name}: {between.join(f'{text}{_from(read)}' for text, read in zip(texts, reads, strict=True))}"


def apart(values: Sequence[Any], texts: Sequence[str]) -> list[str]:
    """Values, whose whole texts are given, as what differs between them."""
    if all(isinstance(value, Mapping) and "MSize" not in value for value in values):
        texts = _fields_apart(values)
    elif all(isinstance(value, list | tuple) and not any(isinstance(one, int) for one in value) for value in values):
        sets = [list(map(value_text, value)) for value in values]
        shared = set(sets[0]).intersection(*sets[1:])
        if any(set(one) - shared for one in sets):  # not the order alone
            more = ["|".join(text for text in dict.fromkeys(one) if text not in shared) for one in sets]
            texts = [text or ("no more" if shared else "none") for text in more]
    return _cut(texts)


def _fields_apart(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields that differ, ``none`` where a row has none of such name."""
    found: list[list[str]] = [[] for _ in values]
    for name in dict.fromkeys(name for value in values for name in value):
        inner = [value.get(name) for value in values]
        texts = ["none" if one is None else value_text(one) for one in inner]
        if len({*texts}) > 1:
            if all(isinstance(one, Mapping) for one in inner):
                below = _fields_apart([one for one in inner if isinstance(one, Mapping)])
                texts = [" ".join(f"{name}.{word}" for word in text.split()) for text in below]
            else:
                texts = [f"{name}={text}" for text in texts]
            for one, text in zip(found, texts, strict=True):
                one.append(text)
    return [" ".join(one) for one in found]


def _cut(texts: Sequence[str]) -> list[str]:
    if max(map(len, texts)) <= _MOST_CHARACTERS:
        return list(texts)
    same = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*texts, strict=False))
    begin = max(0, len(list(same)) - _BEFORE)
    return [f"...{shortened(text[begin:])}" if begin else shortened(text) for text in texts]


def by_kind(found: Iterable[Seen]) -> list[Seen]:
    """Numbers and policies before facts, each in the order of their reading."""
    return sorted(found, key=lambda seen: seen.kind in FACTS)
