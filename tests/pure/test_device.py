"""Device facts from files: what the fields mean, and what a broken file says about itself."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from vkconv.core import ModelError, UsageError
from vkconv.device import Device, load_device, shipped_devices
from vkconv.device.vendors import VENDORS

Facts = dict[str, Any]


@pytest.fixture
def facts() -> Facts:
    return copy.deepcopy(dict(load_device("lavapipe").facts))


def write(path: Path, facts: Facts) -> Path:
    path.write_text(json.dumps({"schema": "vkconv.device/1", **facts}))
    return path


@pytest.mark.parametrize(
    ("name", "vendor", "kind", "subgroup", "unified"),
    [
        ("lavapipe", "mesa", "cpu", 8, True),
        ("mali-g715", "arm", "integrated", 16, True),
        ("adreno-740", "qualcomm", "integrated", 64, True),
        ("h200", "nvidia", "discrete", 32, False),
    ],
)
def test_shipped_devices(name: str, vendor: str, kind: str, subgroup: int, unified: bool) -> None:
    device = load_device(name)
    assert (device.vendor, device.kind, device.subgroup_size, device.unified_memory) == (
        vendor,
        kind,
        subgroup,
        unified,
    )
    assert "arithmetic" in device.subgroup_operations
    assert device.facts["source"]
    assert dict(device.describe())["name"] == device.name


def test_every_shipped_file_has_its_own_key() -> None:
    assert len({load_device(name).key for name in shipped_devices()}) == len(shipped_devices())


def test_lavapipe_reads_as_vulkaninfo_says() -> None:
    device = load_device("lavapipe")
    assert device.api_version == "1.3.230"
    assert device.driver == "llvmpipe Mesa 22.3.6 (LLVM 15.0.6)"
    assert device.driver_version == (0, 0, 1)
    assert device.heap_bytes == 2 << 30
    assert device.limits("maxComputeWorkGroupCount") == (65535, 65535, 65535)
    assert device.limit("maxPushConstantsSize") == 128
    assert device.timestamp_period_ns == 1.0
    assert device.feature("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16")
    assert not device.feature("VkPhysicalDeviceNoSuchFeatures", "shaderFloat16")
    assert device.has("VK_EXT_shader_atomic_float")
    assert not device.has("VK_KHR_cooperative_matrix")
    assert device.subgroup_sizes == (8, 8)


def test_heap_is_the_largest_that_the_device_owns(facts: Facts) -> None:
    local, flag = "VK_MEMORY_HEAP_DEVICE_LOCAL_BIT", "VK_MEMORY_HEAP_MULTI_INSTANCE_BIT"
    facts["properties"]["VkPhysicalDeviceProperties"]["deviceType"] = "VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU"
    facts["memory"]["memoryHeaps"] = [
        {"size": 256 << 20, "flags": [local]},
        {"size": 24 << 30, "flags": [local, flag]},
        {"size": 64 << 30, "flags": []},
    ]
    device = Device(facts)
    assert device.heap_bytes == 24 << 30
    assert not device.unified_memory


def test_driver_versions_unpack_by_driver(facts: Facts) -> None:
    base = facts["properties"]["VkPhysicalDeviceProperties"]
    base["driverVersion"] = 570 << 22 | 124 << 14 | 6 << 6
    driver = facts["properties"]["VkPhysicalDeviceDriverProperties"]
    driver["driverID"] = "VK_DRIVER_ID_NVIDIA_PROPRIETARY"
    assert Device(facts).driver_version == (570, 124, 6)
    # The same GPU under Mesa's NVK packs it like a Vulkan version.
    driver["driverID"] = "VK_DRIVER_ID_MESA_NVK"
    base["driverVersion"] = 24 << 22 | 3 << 12
    assert Device(facts).driver_version == (24, 3)


def test_driver_text_falls_back_to_its_numbers(facts: Facts) -> None:
    del facts["properties"]["VkPhysicalDeviceDriverProperties"]
    facts["properties"]["VkPhysicalDeviceProperties"]["driverVersion"] = 44 << 22 | 1 << 12
    assert Device(facts).driver == "44.1"


def test_subgroup_operations_count_only_where_compute_has_them(facts: Facts) -> None:
    subgroup = facts["properties"]["VkPhysicalDeviceSubgroupProperties"]
    subgroup["supportedOperations"].append("VK_SUBGROUP_FEATURE_PARTITIONED_BIT_NV")
    assert "shuffle_relative" in Device(facts).subgroup_operations
    assert not any("partitioned" in name for name in Device(facts).subgroup_operations)
    subgroup["supportedStages"] = ["VK_SHADER_STAGE_FRAGMENT_BIT"]
    assert Device(facts).subgroup_operations == frozenset()


def test_subgroup_sizes_need_the_feature_and_the_stage(facts: Facts) -> None:
    control = facts["properties"]["VkPhysicalDeviceSubgroupSizeControlProperties"]
    control.update(minSubgroupSize=4, maxSubgroupSize=32)
    assert Device(facts).subgroup_sizes == (4, 32)
    facts["features"]["VkPhysicalDeviceSubgroupSizeControlFeatures"]["subgroupSizeControl"] = False
    assert Device(facts).subgroup_sizes == (8, 8)


def test_key_is_a_file_name_that_changes_with_the_driver(facts: Facts) -> None:
    key = Device(facts).key
    assert key == Device(copy.deepcopy(facts)).key
    assert key.startswith("10005-0000-00000001-76616c2d")
    assert not set(key) - set("0123456789abcdef-")
    facts["properties"]["VkPhysicalDeviceDriverProperties"]["driverInfo"] = "Mesa 23.0.0 (LLVM 15.0.6)"
    assert Device(facts).key != key


def test_unknown_limits_are_named(facts: Facts) -> None:
    with pytest.raises(ModelError, match=r"llvmpipe.*maxPushConstantSize.*did you mean 'maxPushConstantsSize'"):
        Device(facts).limit("maxPushConstantSize")


def test_unknown_vendor_and_kind(facts: Facts) -> None:
    facts["properties"]["VkPhysicalDeviceProperties"].update(vendorID=0x1234, deviceType="VK_SOMETHING_NEW")
    assert (Device(facts).vendor, Device(facts).kind) == ("unknown", "other")


def test_vendor_names_are_unique() -> None:
    assert len(set(VENDORS.values())) == len(VENDORS)


def test_save_and_load_agree(tmp_path: Path, facts: Facts) -> None:
    Device(facts).save(tmp_path / "a" / "device.json")
    again = load_device(tmp_path / "a" / "device.json")
    assert again.facts == facts
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "device.json"]


def test_unknown_name_suggests_one() -> None:
    with pytest.raises(UsageError, match=r"no device 'mali-g716' \(did you mean 'mali-g715'\?\).*lavapipe"):
        load_device("mali-g716")


@pytest.mark.parametrize("name", ["missing.json", "no/such/file", Path("missing"), "no\0such.json"])
def test_missing_file(name: str | Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_device(name)


def test_a_name_that_the_system_refuses() -> None:
    with pytest.raises(ModelError, match=r"cannot be read .*too long"):
        load_device("/" + "d" * 300 + ".json")
    with pytest.raises(UsageError, match="no device 'ddd"):
        load_device("d" * 300)
    with pytest.raises(UsageError, match=r"the device file is '~nosuchuser/d\.json', and there is no such user"):
        load_device("~nosuchuser/d.json")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"{" * 100_000, "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1, 2]", 'needs "schema": "vkconv.device/1", and has \'list\''),
        (b'{"schema": "vkconv.device/9"}', "has 'vkconv.device/9'"),
        (b'{"capabilities": {}}', "Vulkan profile"),
    ],
)
def test_not_a_device_file(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_device(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_all_missing_fields_are_listed_at_once(tmp_path: Path, facts: Facts) -> None:
    limits = facts["properties"]["VkPhysicalDeviceProperties"]["limits"]
    del limits["maxComputeSharedMemorySize"], limits["timestampPeriod"], facts["memory"]
    with pytest.raises(ModelError) as caught:
        load_device(write(tmp_path / "d.json", facts))
    text = str(caught.value)
    assert "properties.VkPhysicalDeviceProperties.limits.maxComputeSharedMemorySize is missing" in text
    assert "limits.timestampPeriod is missing" in text
    assert "memory.memoryHeaps is missing" in text
    assert str(tmp_path / "d.json") in text


BASE = ("properties", "VkPhysicalDeviceProperties")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (BASE, []),
        (("properties", "VkPhysicalDeviceMaintenance3Properties"), 7),
        ((*BASE, "vendorID"), "0x10005"),
        ((*BASE, "vendorID"), True),
        ((*BASE, "vendorID"), -1),
        ((*BASE, "deviceName"), None),
        ((*BASE, "deviceName"), ""),
        ((*BASE, "deviceName"), "Mali\x1b[31m"),
        ((*BASE, "deviceName"), "M" * 256),
        ((*BASE, "deviceType"), "INTEGRATED_GPU"),
        ((*BASE, "limits", "maxComputeSharedMemorySize"), 1 << 64),
        ((*BASE, "pipelineCacheUUID"), "../../../../tmp/x"),
        ((*BASE, "limits", "maxComputeWorkGroupCount"), [65535, 65535]),
        ((*BASE, "limits", "maxComputeWorkGroupCount"), [65535, 65535, 0]),
        ((*BASE, "limits", "maxComputeWorkGroupInvocations"), 1024.0),
        ((*BASE, "limits", "timestampPeriod"), float("nan")),
        (("properties", "VkPhysicalDeviceSubgroupProperties", "subgroupSize"), 0),
        (("features", "VkPhysicalDeviceFeatures", "shaderInt64"), 1),
        (("extensions",), ["VK_KHR_16bit_storage"]),
        (("memory", "memoryHeaps"), []),
        (("memory", "memoryHeaps"), [{"size": 1024, "flags": []}]),
        (("memory", "memoryHeaps"), [{"size": "big", "flags": ["VK_MEMORY_HEAP_DEVICE_LOCAL_BIT"]}]),
        (("cooperativeMatrices",), {}),
        (("cooperativeMatrices",), [{}]),
        (("cooperativeMatrices",), [dict.fromkeys(("MSize", "NSize", "KSize"), 16)]),
        ((*BASE, "vendorID"), 1 << 32),
        ((*BASE, "limits", "bufferImageGranularity"), [1, 2]),
        ((*BASE, "limits", "maxBoundDescriptorSets"), "8"),
        ((*BASE, "limits", "maxViewportDimensions"), 16384),
        ((*BASE, "limits", "minStorageBufferOffsetAlignment"), 48),
        (("properties", "VkPhysicalDeviceSubgroupProperties", "subgroupSize"), 2**31),
        (("properties", "VkPhysicalDeviceSubgroupProperties", "subgroupSize"), 24),
        (("properties", "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV"), {"shaderSMCount": "x"}),
        (("properties", "VkPhysicalDeviceFloatControlsProperties"), {"shaderRoundingModeRTEFloat16": "yes"}),
    ],
)
def test_wrong_fields_are_refused(tmp_path: Path, facts: Facts, path: tuple[str, ...], value: object) -> None:
    holder = facts
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    if isinstance(value, dict) and value:
        path = (*path, *value)
    with pytest.raises(ModelError, match=rf"\n  {'.'.join(path)} must be .*, and is "):
        load_device(write(tmp_path / "d.json", facts))
