"""One device in the limits of another: what is left of both."""

import pytest

from vkconv.device import Device, load_device, shipped_devices
from vkconv.device.emulate import differences, emulated
from vkconv.device.importer import REQUIRED_LIMITS
from vkconv.ops.core.requirements import shuffles

REAL = load_device("lavapipe")


def limit(device: Device, name: str) -> tuple[int, ...]:
    return device.limits(name) if isinstance(REQUIRED_LIMITS[name], list) else (device.limit(name),)


@pytest.mark.parametrize("name", shipped_devices())
def test_no_limit_is_wider_than_either_device(name: str) -> None:
    other = load_device(name)
    here = emulated(other, REAL)
    assert (here.kind, here.vendor, here.driver) == (other.kind, other.vendor, other.driver)
    assert here.key not in (other.key, REAL.key)
    for field in REQUIRED_LIMITS:
        if field == "timestampPeriod":
            continue
        pick = max if field.startswith("min") else min
        assert limit(here, field) == tuple(map(pick, limit(other, field), limit(REAL, field)))
    assert here.heap_bytes <= min(other.heap_bytes, REAL.heap_bytes)
    assert here.subgroup_size == REAL.subgroup_size
    assert here.subgroup_operations == other.subgroup_operations & REAL.subgroup_operations
    assert {q.id for q in here.quirks} == {q.id for q in (*other.quirks, *REAL.quirks)}


def test_features_and_extensions_are_those_of_both() -> None:
    half = ("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16")
    assert REAL.feature(*half)
    assert emulated(load_device("mali-g57"), REAL).feature(*half)
    assert not emulated(load_device("raspberry-pi-4"), REAL).feature(*half)
    assert emulated(load_device("h200"), REAL).has("VK_EXT_shader_atomic_float")
    assert not emulated(load_device("h200"), REAL).has("VK_KHR_cooperative_matrix")
    assert not emulated(load_device("mali-g57"), REAL).has("VK_EXT_shader_atomic_float")


def test_subgroups_are_of_several_sizes_where_the_other_has_them() -> None:
    assert emulated(load_device("mali-g57"), REAL).subgroup_sizes == (8, 8)
    assert emulated(load_device("adreno-618"), REAL).subgroup_sizes == (4, 8)
    assert not shuffles(emulated(load_device("raspberry-pi-4"), REAL))


def test_a_device_emulates_itself() -> None:
    assert differences(REAL, REAL) == []
    assert emulated(REAL, REAL).quirks == REAL.quirks


def test_differences_tell_what_cannot_be_had() -> None:
    rows = {name: (there, here) for name, there, here in differences(load_device("h200"), REAL)}
    assert rows["maxComputeSharedMemorySize"] == ("49152", "32768")
    assert rows["subgroup size"] == ("32", "8")
    assert rows["cooperativeMatrix"] == ("yes", "no")
    assert "maxComputeWorkGroupInvocations" not in rows
