"""Targets: what the shipped device files say of their devices, and which of several sources of a number counts."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vkconv.core import ModelError
from vkconv.device import Device, load_device, shipped_devices, target_of
from vkconv.device.emulate import emulated
from vkconv.device.facts import SCHEMA
from vkconv.device.numbers import NUMBERS, Described, assumed

Facts = dict[str, Any]

# The devices that there are, from a Raspberry Pi to a data centre's GPU, with room on both sides.
PLAUSIBLE = {
    "compute_units": (1, 256),
    "fma_per_unit": (4, 512),
    "f16_rate": (0.5, 4),
    "matrix_fma_per_unit": (0, 8192),
    "clock_mhz": (200, 4000),
    "dependent_cycles": (1, 64),
    "registers_per_unit": (512, 1 << 18),
    "registers_per_lane": (16, 512),
    "full_occupancy_registers": (8, 256),
    "lanes_per_unit": (64, 8192),
    "workgroups_per_unit": (1, 128),
    "shared_bytes_per_unit": (8 << 10, 1 << 20),
    "cache_bytes": (64 << 10, 1 << 30),
    "bandwidth_gbs": (2, 10_000),
    "launch_us": (0.5, 1000),
}
CLASSES = ("cpu", "mobile", "integrated", "discrete")
_WHERE = re.compile(r"https?://[\w.-]+/\S|^Mesa, src/|docs/[a-z_]+\.md")


def described(name: str) -> Described:
    """The object ``target`` of a shipped file."""
    return msgspec.convert(load_device(name).facts["target"], Described)


def facts_of(name: str, *, own_target: bool = False) -> Facts:
    """Facts to change, as of a live device unless with the file's own target."""
    facts = copy.deepcopy(dict(load_device(name).facts))
    if not own_target:
        del facts["target"]
    return facts


def base(facts: Facts) -> Facts:
    """The properties that every device has."""
    found: Facts = facts["properties"]["VkPhysicalDeviceProperties"]
    return found


@pytest.mark.parametrize("name", shipped_devices())
def test_a_shipped_file_describes_its_device(name: str) -> None:
    target = described(name)
    assert target.generation
    assert target.numbers
    assert target.numbers.keys() <= NUMBERS.keys()
    # The drivers of some devices whose files are dumps say their units; a CPU's cores are those of the machine.
    told = target_of(load_device(name)).numbers["compute_units"].evidence == "driver"
    assert ("compute_units" in target.numbers) is not (told or name in ("lavapipe", "swiftshader"))


@pytest.mark.parametrize("name", shipped_devices())
def test_numbers_are_plausible(name: str) -> None:
    numbers = target_of(load_device(name)).numbers
    assert numbers.keys() == NUMBERS.keys() == PLAUSIBLE.keys()
    for key, number in numbers.items():
        least, most = PLAUSIBLE[key]
        assert least <= number.value <= most, (key, number)
    assert numbers["full_occupancy_registers"].value <= numbers["registers_per_lane"].value


@pytest.mark.parametrize("name", shipped_devices())
def test_a_number_says_where_it_is_from(name: str) -> None:
    for key, number in described(name).numbers.items():
        assert number.evidence != "driver", f"{key}: the driver's own field tells it, in a live device as in a dump"
        assert len(number.source) > 15, key
        if number.evidence in ("published", "measured"):
            assert _WHERE.search(number.source), (key, number.source)
        if number.evidence == "compiler":
            assert "pipeline statistics of" in number.source, key


def test_registers_suffice_for_whole_occupancy() -> None:
    keys = ("full_occupancy_registers", "lanes_per_unit", "registers_per_unit")
    told = [name for name in shipped_devices() if all(key in described(name).numbers for key in keys)]
    assert len(told) >= 15
    for name in told:
        registers, lanes, all_registers = (described(name).numbers[key].value for key in keys)
        assert registers * lanes <= all_registers, name


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("h100", 66.9),
        ("h200", 66.9),
        ("radeon-rx-7800-xt", 37.3),
        ("arc-a770", 17.2),
        ("apple-m1", 2.6),
        ("adreno-750", 3.07),
        ("powervr-bxm-8-256", 0.23),
        ("raspberry-pi-4", 0.032),
        ("adreno-660-turnip", 1.3824),
        ("geforce-rtx-3090-nvk", 35.6),
        ("radeon-680m-radv", 3.379),
        ("radeon-780m-radv", 8.294),
        ("radeon-rx-7900-xtx-radv", 61.4),
        ("radeon-rx-9070-xt-radv", 48.7),
        ("steam-deck-radv", 1.6),
    ],
)
def test_units_lanes_and_clock_make_the_peak_that_is_published(name: str, tflops: float) -> None:
    target = target_of(load_device(name))
    peak = 2e-6 * target.compute_units * target.value("fma_per_unit") * target.value("clock_mhz")
    assert peak == pytest.approx(tflops, rel=0.03)


def test_phones_are_told_apart() -> None:
    phones = [name for name in shipped_devices() if target_of(load_device(name)).device_class == "mobile"]
    assert len(phones) == 21
    assert len({target_of(load_device(name)).compute_units for name in phones}) >= 6


def test_a_live_device_with_the_id_of_a_shipped_one_has_its_target() -> None:
    facts = facts_of("mali-g715")
    base(facts)["deviceName"] = "Mali-G715 of another driver"
    target = target_of(Device(facts))
    assert target.name == "mali-g715"
    assert target.numbers == target_of(load_device("mali-g715")).numbers


def test_a_name_is_surer_than_an_id() -> None:
    facts = facts_of("xclipse-940")
    assert base(facts)["deviceID"] == base(facts_of("xclipse-920"))["deviceID"]
    assert target_of(Device(facts)).name == "xclipse-940"


def test_two_drivers_of_a_gpu_that_call_it_alike_are_told_apart() -> None:
    for name in ("adreno-830", "adreno-830-turnip"):
        assert base(facts_of(name))["deviceName"] == "Adreno (TM) 830"
        assert target_of(Device(facts_of(name))).name == name


@pytest.mark.parametrize("name", ["adreno-740", "adreno-750", "adreno-830"])
def test_a_gpu_is_the_same_under_both_of_its_drivers(name: str) -> None:
    """Their numbers are of the GPU; what differs by driver are the facts."""
    assert described(f"{name}-turnip") == described(name)


def test_a_cpu_driver_of_another_version_is_the_same_device() -> None:
    facts = facts_of("lavapipe")
    base(facts)["deviceName"] = "llvmpipe (LLVM 19.1.7, 512 bits)"
    base(facts)["deviceID"] = 7
    assert target_of(Device(facts)).numbers["launch_us"] == described("lavapipe").numbers["launch_us"]


def test_the_driver_goes_before_the_file() -> None:
    facts = facts_of("mali-g715")
    facts["properties"]["VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM"] = {"shaderCoreCount": 5}
    target = target_of(Device(facts))
    assert target.compute_units == 5
    assert target.numbers["compute_units"].evidence == "driver"
    assert target.numbers["compute_units"].source == "VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM.shaderCoreCount"
    assert target.numbers["clock_mhz"] == described("mali-g715").numbers["clock_mhz"]


def test_a_files_own_target_goes_before_the_shipped_one() -> None:
    facts = facts_of("mali-g715", own_target=True)
    facts["target"]["numbers"] = {"clock_mhz": {"value": 555, "evidence": "measured", "source": "a test"}}
    target = target_of(Device(facts))
    assert target.value("clock_mhz") == 555 and target.numbers["clock_mhz"].evidence == "measured"
    assert target.numbers["compute_units"].evidence == "assumed"


@pytest.mark.parametrize(
    ("name", "vendor", "kind", "device_class"),
    [
        ("mali-g57", 0x13B5, "INTEGRATED_GPU", "mobile"),
        ("mali-g57", 0x1234, "INTEGRATED_GPU", "integrated"),
        ("mali-g57", 0x1234, "DISCRETE_GPU", "discrete"),
        ("mali-g57", 0x1234, "VIRTUAL_GPU", "discrete"),
        ("mali-g57", 0x1234, "CPU", "cpu"),
    ],
)
def test_an_unknown_device_is_assumed_to_be_as_its_class(name: str, vendor: int, kind: str, device_class: str) -> None:
    facts = facts_of(name)
    base(facts).update(deviceName="nobody's", vendorID=vendor, deviceID=1, deviceType=f"VK_PHYSICAL_DEVICE_TYPE_{kind}")
    device = Device(facts)
    target = target_of(device)
    assert (target.name, target.generation, target.device_class) == ("nobody's", "", device_class)
    assert target.numbers == assumed(target.device_class, device.vendor)
    assert {number.evidence for number in target.numbers.values()} == {"assumed"}


def test_assumptions_are_whole_and_have_reasons() -> None:
    for device_class in CLASSES:
        for vendor in ("unknown", "amd", "apple", "arm", "broadcom", "imagination", "intel", "nvidia", "samsung"):
            numbers = assumed(device_class, vendor)  # type: ignore[arg-type]
            assert list(numbers) == list(NUMBERS)
            assert all(NUMBERS[key].least <= n.value and len(n.source) > 15 for key, n in numbers.items())
            # Rows of a vendor leave these to the class.
            assert numbers["compute_units"] == assumed(device_class, "unknown")["compute_units"]  # type: ignore[arg-type]
            assert numbers["lanes_per_unit"].value == 1024
    assert assumed("mobile", "broadcom")["fma_per_unit"].value < assumed("mobile", "unknown")["fma_per_unit"].value


@pytest.mark.parametrize(
    "target",
    [
        3,
        {"numbers": {}},
        {"generation": " ", "numbers": {}},
        {"generation": "x", "numbers": []},
        {"generation": "x", "numbers": {}, "more": 1},
        {"generation": "x", "numbers": {}, "device_class": "phone"},
        {"generation": "x", "numbers": {"clocks_mhz": {"value": 1, "evidence": "assumed", "source": "a test"}}},
    ],
)
def test_a_broken_target_is_named(tmp_path: Path, target: object) -> None:
    path = written(tmp_path, facts_of("mali-g57") | {"target": target})
    with pytest.raises(
        ModelError, match=r"\n  target must be an object of .*compute_units, .*clock_mhz, .*, and is "
    ) as caught:
        load_device(path)
    assert str(caught.value).startswith(f"{path} is not a complete device file")


@pytest.mark.parametrize(
    "change",
    [
        {"value": "800"},
        {"value": True},
        {"value": 1e999},
        {"value": 10**400},
        {"value": 0},
        {"value": -800},
        {"evidence": "heard"},
        {"source": " "},
        {"source": None},
        {"more": 1},
    ],
)
def test_a_broken_number_is_named(tmp_path: Path, change: Facts) -> None:
    facts = facts_of("mali-g57", own_target=True)
    facts["target"]["numbers"]["clock_mhz"] |= change
    says = (
        r"\n  target\.numbers\.clock_mhz must be .*from 1 on.*driver, measured, published, compiler, assumed.*, and is "
    )
    with pytest.raises(ModelError, match=says) as caught:
        load_device(written(tmp_path, facts))
    assert str(caught.value).count("\n") == 1


@pytest.mark.parametrize("count", ["132", [132], 1.5, -1])
def test_what_the_driver_says_is_a_count(tmp_path: Path, count: object) -> None:
    facts = facts_of("h200")
    facts["properties"]["VkPhysicalDeviceShaderSMBuiltinsPropertiesNV"]["shaderSMCount"] = count
    with pytest.raises(ModelError, match=r"SMBuiltinsPropertiesNV\.shaderSMCount must be a whole number"):
        load_device(written(tmp_path, facts))


def test_a_device_in_the_limits_of_another_has_the_others_target() -> None:
    phone = load_device("mali-g57")
    target = target_of(emulated(phone, load_device("h200")))
    assert target.numbers == target_of(phone).numbers


def test_a_number_may_be_less_than_one_where_that_makes_sense(tmp_path: Path) -> None:
    facts = facts_of("mali-g57", own_target=True)
    for name, value in {"launch_us": 0.5, "f16_rate": 0.5, "matrix_fma_per_unit": 0}.items():
        facts["target"]["numbers"][name] = {"value": value, "evidence": "assumed", "source": "a test"}
    target = target_of(load_device(written(tmp_path, facts)))
    assert [target.value(name) for name in ("launch_us", "f16_rate", "matrix_fma_per_unit")] == [0.5, 0.5, 0]


def written(folder: Path, facts: Facts) -> Path:
    """A device file."""
    path = folder / "device.json"
    path.write_text(json.dumps({"schema": SCHEMA, **facts}))
    return path


def test_a_saved_device_keeps_its_target(tmp_path: Path) -> None:
    device = load_device("adreno-740")
    device.save(tmp_path / "mine.json")
    assert target_of(load_device(tmp_path / "mine.json")).numbers == target_of(device).numbers
