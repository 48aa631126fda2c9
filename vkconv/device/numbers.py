"""What is known of a device beside Vulkan's facts: the names of the numbers, their evidence, what is assumed."""

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

Evidence = Literal["driver", "measured", "published", "compiler", "assumed"]
"""Where a number is from: the driver says so; measured by vkconv on the device; published by somebody who can know; a
compiler's statistics; assumed for want of these."""

DeviceClass = Literal["cpu", "mobile", "integrated", "discrete"]
"""``cpu`` drivers compute on the host's cores; ``mobile`` GPUs are those of phones and boards, ``integrated`` those of
PCs; everything else counts as ``discrete``."""


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number of a target. ``source`` names the field, the page (URL), the command or the reason."""

    value: float
    evidence: Evidence
    source: str

    def __str__(self) -> str:
        return f"{self.value:.10g}"


@dataclasses.dataclass(frozen=True, slots=True)
class Meaning:
    """What a number stands for, the driver's fields that tell it, as (struct, field, times), and its least value."""

    text: str
    driver: tuple[tuple[str, str, int], ...] = ()
    least: float = 1


_SM_BUILTINS = "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV"
NUMBERS: Mapping[str, Meaning] = {
    "compute_units": Meaning(
        "what runs whole workgroups: SM, compute unit, Xe core, shader core; cores of a CPU",
        (
            (_SM_BUILTINS, "shaderSMCount", 1),
            ("VkPhysicalDeviceShaderCoreProperties2AMD", "activeComputeUnitCount", 1),
            ("VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM", "shaderCoreCount", 1),
        ),
    ),
    "fma_per_unit": Meaning("f32 multiply-adds of a compute unit in a cycle"),
    "f16_rate": Meaning("f16 multiply-adds of lanes for each f32 one", least=0.01),
    "matrix_fma_per_unit": Meaning(
        "f16 multiply-adds of a compute unit's matrix units in a cycle; 0: it has none", least=0
    ),
    "clock_mhz": Meaning("clock of the compute units under load, MHz"),
    "dependent_cycles": Meaning("cycles from an instruction of a subgroup to the next that needs its result"),
    "registers_per_unit": Meaning("32-bit registers of a compute unit"),
    "registers_per_lane": Meaning("32-bit registers of an invocation at most, before it spills"),
    "full_occupancy_registers": Meaning("32-bit registers of an invocation up to which occupancy is whole"),
    "lanes_per_unit": Meaning(
        "invocations that a compute unit holds at a time", ((_SM_BUILTINS, "shaderWarpsPerSM", 32),)
    ),
    "workgroups_per_unit": Meaning("workgroups that a compute unit holds at a time"),
    "shared_bytes_per_unit": Meaning("shared memory of a compute unit, bytes"),
    "cache_bytes": Meaning("last-level cache that the compute units share, bytes"),
    "bandwidth_gbs": Meaning("memory bandwidth, 10^9 bytes a second"),
    "launch_us": Meaning("one more dispatch with its barrier in a command buffer, us", least=0.01),
}


class _Assumed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers assumed for a class, or for devices of some vendors in it."""

    device_class: DeviceClass
    numbers: dict[str, float]
    source: str
    vendors: tuple[str, ...] = ()


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object ``target`` of a device file; ``generation_source`` is the page that tells the generation."""

    generation: str
    numbers: dict[str, Number]
    generation_source: str = ""
    device_class: DeviceClass | None = None


def is_described(value: object) -> bool:
    """Whether a value of a device file is a `Described` of numbers of `NUMBERS` alone, whatever these are."""
    numbers = value.get("numbers") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(numbers, dict) or not numbers.keys() <= NUMBERS.keys():
        return False
    return _converts({**value, "numbers": {}}, Described) and bool(value["generation"].strip())


_MOST = 1e15


def is_number(value: object, least: float) -> bool:
    """Whether a value of a device file is a `Number` from ``least`` to 10^15 that says where it is from."""
    if not _converts(value, Number):
        return False
    number = msgspec.convert(value, Number)
    return math.isfinite(number.value) and least <= number.value <= _MOST and bool(number.source.strip())


def _converts(value: object, to: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert(value, to)
    except (msgspec.ValidationError, UnicodeEncodeError):  # a text with half of a character
        return False
    return True


def assumed(device_class: DeviceClass, vendor: str) -> Mapping[str, Number]:
    """Every number of `NUMBERS` for a class: of the first row that has it, rows of the vendor before the others."""
    rows = [row for row in _assumed_rows() if row.device_class == device_class]
    suiting = [row for row in rows if vendor in row.vendors] + [row for row in rows if not row.vendors]
    return {
        name: Number(row.numbers[name], "assumed", row.source)
        for name in NUMBERS
        for row in [next(row for row in suiting if name in row.numbers)]
    }


@functools.cache
def _assumed_rows() -> tuple[_Assumed, ...]:
    with (Path(__file__).parent / "assumed.toml").open("rb") as file:
        return msgspec.convert(tomllib.load(file)["row"], tuple[_Assumed, ...])
