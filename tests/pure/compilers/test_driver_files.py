"""Device files of GPUs that are not here: what is of the driver, of its shim, and of people."""

import copy
from typing import Any

import pytest

from vkconv.compilers.device_files import BY_HAND, device_file, without_invented
from vkconv.compilers.gpus import data, find_gpu
from vkconv.device import Device, load_device, target_of
from vkconv.device.files import problems_of

GPU = find_gpu("ga102")
BASE = "properties.VkPhysicalDeviceProperties."
SM = "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV"
KEPT = {
    "source": f"anything.{BY_HAND}the name and the heap.",
    "target": {"generation": "Ampere", "numbers": {}},
    "properties": {"VkPhysicalDeviceProperties": {"deviceName": "a card", "deviceID": 5, "apiVersion": 1}, SM: {}},
    "memory": {"memoryHeaps": [{"size": 7 << 30, "flags": ["VK_MEMORY_HEAP_DEVICE_LOCAL_BIT"]}]},
}


def said() -> dict[str, Any]:
    """Facts as a driver tells them: those of a whole dump."""
    facts = copy.deepcopy(dict(load_device("h200").facts))
    del facts["source"], facts["target"]
    return facts


def test_what_a_shim_invents_is_assumed_or_left_out() -> None:
    before = said()
    live = without_invented(GPU, before)
    assert live["assumed"] == ["memory.memoryHeaps", f"{BASE}deviceID", f"{BASE}deviceName"]
    assert live["properties"][SM] == {"shaderWarpsPerSM": 64}
    assert target_of(Device(live)).numbers["compute_units"].evidence != "driver"
    assert before == said() and not list(problems_of(live))


@pytest.mark.parametrize("gpu", ["raspberry-pi-4", "mali-g610", "adreno-740"])
def test_fields_that_are_not_there_are_no_matter(gpu: str) -> None:
    assert without_invented(find_gpu(gpu), said())["properties"][SM] == said()["properties"][SM]


def test_a_file_has_the_drivers_facts_and_what_people_know() -> None:
    live = Device(without_invented(GPU, said()))
    made = device_file(GPU, live, KEPT)
    assert not list(problems_of(made))
    assert made["source"].startswith(f"vkconv devices --with ga102 --dump: {live.driver} behind the nouveau shim")
    assert made["source"].endswith(f"{BY_HAND}the name and the heap.")
    assert made["target"] == KEPT["target"] and made["assumed"] == live.facts["assumed"]
    # By hand are only facts that the shim invents: the version is the driver's.
    base = made["properties"]["VkPhysicalDeviceProperties"]
    assert (base["deviceName"], base["deviceID"]) == ("a card", 5)
    assert base["apiVersion"] == said()["properties"]["VkPhysicalDeviceProperties"]["apiVersion"]
    assert made["memory"] == KEPT["memory"]
    # Of limits and features those of compute.
    assert "maxComputeSharedMemorySize" in base["limits"] and "maxImageDimension2D" not in base["limits"]
    assert "pipelineCacheUUID" not in base and "queueFamilies" not in made
    assert "VkPhysicalDeviceFeatures" not in made["features"]
    assert device_file(GPU, live, made) == made


def test_a_file_that_was_not_there_is_complete_but_for_what_people_know() -> None:
    made = device_file(GPU, Device(without_invented(GPU, said())), {})
    assert not list(problems_of(made))
    assert made["target"] == {"generation": GPU.title, "numbers": {}} and BY_HAND not in made["source"]


def test_every_shim_invents_memory() -> None:
    assert all("memory.memoryHeaps" in driver.invented for driver in data().drivers.values())
