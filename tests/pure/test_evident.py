"""What is shown of devices with its evidence: facts are the driver's, published, assumed, or not known."""

import copy
from typing import Any

import pytest

from vkconv.cli.evident import NOT_KNOWN, Evident, evident
from vkconv.core import ModelError
from vkconv.device import Device, load_device, shipped_devices, target_of
from vkconv.device.files import problems_of

# What the issue of targets asks for beside numbers.
TRAITS = (
    *("class", "vendor", "generation", "subgroup_size", "subgroup_sizes", "subgroup_operations", "shared_bytes"),
    *("memory_bytes", "unified_memory", "cooperative_matrices", "images"),
)
DERIVED = ("peak_f32_tflops", "peak_f16_tflops", "peak_matrix_tflops", "barrier_us")
SIZE_CONTROL = "VkPhysicalDeviceSubgroupSizeControlProperties"


def changed(name: str, **facts: Any) -> Device:
    return Device({**copy.deepcopy(dict(load_device(name).facts)), **facts})


def shown(name: str, key: str) -> tuple[str, str]:
    one = evident(load_device(name))[key]
    return one.value, one.evidence


@pytest.mark.parametrize("name", shipped_devices())
def test_everything_has_a_value_an_evidence_and_a_source(name: str) -> None:
    device = load_device(name)
    found = evident(device)
    assert list(found) == [*TRAITS, *target_of(device).numbers, *DERIVED]
    for key, one in found.items():
        assert one.value and len(one.source) > 5, key
        assert one.value != NOT_KNOWN or one.evidence == NOT_KNOWN, key
        assert all(map(str.isprintable, (one.value, one.source))), key


@pytest.mark.parametrize("name", shipped_devices())
def test_the_evidence_of_a_file_names_fields_that_it_has(name: str) -> None:
    facts = load_device(name).facts
    by_hand = facts["source"].startswith(("Written by hand", "Limits, "))
    assert ("evidence" in facts) is by_hand
    for path in facts.get("evidence", ()):
        value: Any = facts
        for key in path.split("."):
            value = value[key]
    assert not list(problems_of(facts))


@pytest.mark.parametrize(
    ("name", "key", "value", "evidence"),
    [
        # A driver's dump, a driver's report with what it does not say by hand, and files from pages.
        ("h200", "subgroup_size", "32", "driver"),
        ("h200", "subgroup_sizes", "32", "driver"),
        ("h200", "unified_memory", "no", "driver"),
        ("h200", "cooperative_matrices", "11", "driver"),
        ("h200", "vendor", "nvidia", "driver"),
        ("h200", "generation", "Hopper", "published"),
        ("radeon-rx-7900-xtx-radv", "subgroup_sizes", "32 to 64", "driver"),
        ("radeon-rx-7900-xtx-radv", "memory_bytes", "24.0 GiB", "assumed"),
        ("radeon-rx-7800-xt", "subgroup_sizes", "32 to 64", "assumed"),
        ("radeon-rx-7800-xt", "vendor", "amd", "published"),
        ("radeon-rx-7800-xt", "subgroup_size", "64", "driver"),
        ("radeon-rx-7800-xt", "cooperative_matrices", NOT_KNOWN, NOT_KNOWN),
        ("apple-m1", "subgroup_sizes", "none", "driver"),
        ("mali-g52-panvk", "subgroup_size", "1", "assumed"),
        ("mali-g52-panvk", "subgroup_sizes", "none", "driver"),
        ("mali-g57", "subgroup_sizes", "16", "assumed"),
        ("mali-g57", "memory_bytes", "2.74 GiB", "published"),
        ("mali-g715", "subgroup_sizes", NOT_KNOWN, NOT_KNOWN),
        ("mali-g715", "unified_memory", "yes", "published"),
        ("adreno-740", "subgroup_operations", "arithmetic, ballot, basic, shuffle, shuffle_relative, vote", "assumed"),
        ("adreno-830", "cooperative_matrices", "none", "published"),
        ("orin", "generation", "Ampere", NOT_KNOWN),
        ("h200", "barrier_us", NOT_KNOWN, NOT_KNOWN),
        ("h200", "peak_f32_tflops", "66.91", "published"),
        ("lavapipe", "images", "rgba32f, rgba16f; 2-D to 4096, 3-D to 256", "published"),
    ],
)
def test_where_it_is_from(name: str, key: str, value: str, evidence: str) -> None:
    assert shown(name, key) == (value, evidence)


def test_images_are_those_that_the_driver_tells() -> None:
    lavapipe = copy.deepcopy(dict(load_device("lavapipe").facts))
    uses = ["VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT", "VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT"]
    formats = {
        "VK_FORMAT_R32G32B32A32_SFLOAT": {"VkFormatProperties": {"optimalTilingFeatures": uses}},
        "VK_FORMAT_R16G16B16A16_SFLOAT": {"VkFormatProperties": {"optimalTilingFeatures": uses[:1]}},
    }
    lavapipe["properties"]["VkPhysicalDeviceProperties"]["limits"] |= {
        "maxImageDimension2D": 16384,
        "maxImageDimension3D": 2048,
    }
    images = evident(Device({**lavapipe, "formats": formats}))["images"]
    assert (images.value, images.evidence) == ("rgba32f; 2-D to 16384, 3-D to 2048", "driver")
    assert "limits as the file has them" in evident(Device(lavapipe))["images"].source


def test_nobody_knows_the_generation_of_an_unknown_device() -> None:
    facts = copy.deepcopy(dict(load_device("mali-g57").facts))
    del facts["target"], facts["evidence"]
    facts["properties"]["VkPhysicalDeviceProperties"].update(deviceName="nobody's", deviceID=1)
    found = evident(Device(facts))
    assert found["generation"] == Evident(NOT_KNOWN, NOT_KNOWN, "no device file tells it")
    assert found["class"].value == "mobile" and found["class"].evidence == "driver"


def test_a_class_that_a_file_gives_is_its_word() -> None:
    target = dict(load_device("mali-g57").facts["target"], device_class="integrated")
    one = evident(changed("mali-g57", target=target))["class"]
    assert (one.value, one.evidence) == ("integrated", "assumed")


def test_the_longest_path_counts_and_what_is_left_out_is_not_known() -> None:
    size = "properties.VkPhysicalDeviceSubgroupProperties.subgroupSize"
    device = changed(
        "h200", evidence={"properties": "published", size: "measured"}, assumed=[f"properties.{SIZE_CONTROL}"]
    )
    found = evident(device)
    assert found["subgroup_size"].evidence == "measured" and found["vendor"].evidence == "published"
    # Of several facts the least sure one counts.
    assert found["subgroup_sizes"].evidence == NOT_KNOWN and "subgroupSizeControl" in found["subgroup_sizes"].source
    assert found["memory_bytes"].evidence == NOT_KNOWN


@pytest.mark.parametrize("evidence", [3, {"properties": "heard"}, {"properties": None}])
def test_a_broken_evidence_is_named(tmp_path: Any, evidence: Any) -> None:
    path = tmp_path / "broken.json"
    changed("mali-g57", evidence=evidence).save(path)
    with pytest.raises(ModelError, match=r"\n  evidence must be an object of paths of fields to one of driver, "):
        load_device(path)
