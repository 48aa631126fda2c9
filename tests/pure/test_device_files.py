"""The device files that vkconv ships: complete, with sources, planned for; and files made from other tools' reports."""

import contextlib
import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_routes
import numpy as np
import pytest
from shipped import one_of_each_driver

from vkconv.compilers.device_files import BY_HAND
from vkconv.compilers.gpus import data as compilers
from vkconv.core import ModelError, UsageError
from vkconv.device import Device, importer, load_device, shipped_devices
from vkconv.device.facts import DOT_ACCELERATED
from vkconv.device.files import problems_of
from vkconv.device.importer import REQUIRED_LIMITS, import_device

REPORT = Path(__file__).parent / "data" / "vulkaninfo-llvmpipe.json"
LIMITS = "properties.VkPhysicalDeviceProperties.limits."


@pytest.mark.parametrize("name", shipped_devices())
def test_a_shipped_file_says_where_it_is_from_and_what_is_assumed(name: str) -> None:
    facts = load_device(name).facts
    assert len(facts["source"]) > 60
    assert not list(problems_of(facts))
    for path in facts.get("assumed", ()):
        value: Any = facts
        for key in path.split("."):
            assert key in value, f"{name} assumes {path}, which it lacks"
            value = value[key]


@pytest.mark.parametrize("name", shipped_devices())
def test_a_shipped_file_keeps_to_what_vulkan_requires(name: str) -> None:
    device = load_device(name)
    for limit, least in REQUIRED_LIMITS.items():
        if limit == "timestampPeriod":
            continue
        values = device.limits(limit) if isinstance(least, list) else (device.limit(limit),)
        wanted = least if isinstance(least, list) else [least]
        if limit == "minStorageBufferOffsetAlignment":
            assert values[0] <= wanted[0]
            assert values[0] & (values[0] - 1) == 0
        else:
            assert all(value >= least for value, least in zip(values, wanted, strict=True)), limit


def test_the_devices_that_are_asked_for_are_there() -> None:
    classes = {
        "arm": {"mali-g57", "mali-g78", "mali-g715", "immortalis-g720"},
        "qualcomm": {"adreno-740", "adreno-750", "adreno-830"},
        "imagination": {"powervr-bxm-8-256"},
        "samsung": {"xclipse-920", "xclipse-940"},
        "apple": {"apple-m1"},
        "nvidia": {"orin", "h100", "h200"},
        "amd": {"radeon-rx-7800-xt"},
        "intel": {"arc-a770"},
        "google": {"swiftshader"},
        "mesa": {"lavapipe"},
    }
    found: dict[str, set[str]] = {}
    for name in set(shipped_devices()) - {gpu.device for gpu in compilers().gpus}:
        found.setdefault(load_device(name).vendor, set()).add(name)
    assert found == classes
    assert len(shipped_devices()) >= 30


def test_a_file_of_a_gpu_that_compiles_is_of_its_compilers_driver() -> None:
    """A vendor's file of the same GPU is another one."""
    ids = {
        "turnip": "VK_DRIVER_ID_MESA_TURNIP",
        "radv": "VK_DRIVER_ID_MESA_RADV",
        "nvk": "VK_DRIVER_ID_MESA_NVK",
        "honeykrisp": "VK_DRIVER_ID_MESA_HONEYKRISP",
        "panvk": "VK_DRIVER_ID_MESA_PANVK",
        "v3dv": "VK_DRIVER_ID_MESA_V3DV",
        "powervr": "VK_DRIVER_ID_IMAGINATION_OPEN_SOURCE_MESA",
    }
    of_files = {gpu.device: gpu for gpu in compilers().gpus if gpu.device}
    assert len(of_files) == 18 and {gpu.driver for gpu in of_files.values()} == ids.keys()
    for name, gpu in of_files.items():
        facts = load_device(name).facts
        driver = facts["properties"]["VkPhysicalDeviceDriverProperties"]
        assert driver["driverID"] == ids[gpu.driver], name
        assert re.match(r"Mesa \d+\.\d+\.\d", driver["driverInfo"]), name
        assert f"--with {gpu.name} --dump: {load_device(name).driver} behind the " in facts["source"], name
        assert BY_HAND in facts["source"] and "memory.memoryHeaps" in facts["assumed"], name


@pytest.mark.parametrize("name", shipped_devices())
def test_a_shipped_file_says_which_driver_it_is_of(name: str) -> None:
    device = load_device(name)
    driver = device.facts["properties"]["VkPhysicalDeviceDriverProperties"]
    assert driver["driverID"].startswith("VK_DRIVER_ID_") and driver["driverName"]
    assert driver.get("driverInfo") or device.assumes("driverVersion") or any(device.driver_version)


@pytest.mark.parametrize("name", one_of_each_driver())
def test_routes_are_those_of_the_golden_file(name: str) -> None:
    path = golden_routes.FOLDER / f"{name}.txt"
    assert golden_routes.golden(name) == path.read_text(), "read the difference; python tests/pure/golden_routes.py"


def test_every_golden_file_is_of_a_shipped_device() -> None:
    assert {path.stem for path in golden_routes.FOLDER.iterdir()} == set(shipped_devices())


# ---- importing


def planned_for(device: Device) -> dict[str, Any]:
    """What planning asks a device."""
    return {
        "name": device.name,
        "kind": device.kind,
        "vendor": device.vendor,
        "driver": device.driver,
        "limits": {name: device.facts["properties"]["VkPhysicalDeviceProperties"]["limits"][name] for name in LIMITED},
        "subgroups": (device.subgroup_size, device.subgroup_sizes, device.subgroup_operations),
        "half": device.feature("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16"),
        "storage": device.feature("VkPhysicalDevice16BitStorageFeatures", "storageBuffer16BitAccess"),
        "atomic": device.feature("VkPhysicalDeviceShaderAtomicFloatFeaturesEXT", "shaderBufferFloat32AtomicAdd"),
        "extension": device.has("VK_EXT_shader_atomic_float"),
        "dot": device.feature("VkPhysicalDeviceShaderIntegerDotProductFeatures", "shaderIntegerDotProduct"),
        "memory model": device.feature("VkPhysicalDeviceVulkanMemoryModelFeatures", "vulkanMemoryModel"),
        "quirks": device.quirks,
        "allocation": device.fact("VkPhysicalDeviceMaintenance3Properties", "maxMemoryAllocationSize"),
    }


LIMITED = tuple(REQUIRED_LIMITS)
STRUCT = re.compile(r"VkPhysicalDevice\w+Features(?:[A-Z]+)?\b")


def report() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(REPORT.read_text())
    return data


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


def test_what_vulkaninfo_writes_is_the_device_that_is_shipped() -> None:
    imported = import_device(REPORT, heap_bytes=2 << 30)
    assert planned_for(imported) == planned_for(load_device("lavapipe"))
    assert imported.heap_bytes == 2 << 30
    assert imported.facts["assumed"] == []


def test_an_import_is_a_device_file(tmp_path: Path) -> None:
    imported = import_device(REPORT)
    assert imported.facts["assumed"] == ["memory.memoryHeaps"]
    imported.save(tmp_path / "d.json")
    assert planned_for(load_device(tmp_path / "d.json")) == planned_for(imported)


def test_structs_that_sum_up_versions_stand_for_the_ones_they_sum_up(tmp_path: Path) -> None:
    data = report()
    block = data["capabilities"]["device"]
    for kind in ("properties", "features"):
        block[kind] = {k: v for k, v in block[kind].items() if "Vulkan1" in k or k.startswith("VkPhysicalDeviceP")}
    block["features"]["VkPhysicalDeviceShaderAtomicFloatFeaturesEXT"] = {"shaderBufferFloat32AtomicAdd": True}
    imported = import_device(write(tmp_path / "p.json", data), heap_bytes=2 << 30)
    assert planned_for(imported) == planned_for(load_device("lavapipe"))


@pytest.mark.parametrize(
    ("struct", "feature", "summed"),
    [
        ("VkPhysicalDeviceShaderIntegerDotProductFeatures", "shaderIntegerDotProduct", "Vulkan13"),
        ("VkPhysicalDeviceVulkanMemoryModelFeatures", "vulkanMemoryModel", "Vulkan12"),
        ("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16", "Vulkan12"),
    ],
)
def test_a_feature_is_read_by_each_name_that_reports_have_for_it(
    struct: str, feature: str, summed: str, tmp_path: Path
) -> None:
    for name in (struct, f"{struct}KHR", f"VkPhysicalDevice{summed}Features"):
        for bit in (True, False):
            data = report()
            data["capabilities"]["device"]["features"] = {name: {feature: bit}}
            assert import_device(write(tmp_path / "p.json", data)).feature(struct, feature) is bit, name


def test_every_feature_that_routes_ask_for_is_imported() -> None:
    sources = Path(importer.__file__).parents[1].glob("ops/**/*.py")
    asked = {struct for path in sources for struct in STRUCT.findall(path.read_text())}
    assert len(asked) > 5 and asked <= {*importer._FEATURES}


def test_what_a_profile_does_not_say_is_what_vulkan_requires(tmp_path: Path) -> None:
    limits = {"maxComputeWorkGroupInvocations": 256, "maxComputeWorkGroupSize": [256, 256, 64]}
    properties = {"VkPhysicalDeviceProperties": {"limits": limits}}
    profile = {
        "profiles": {"VP_TEST": {"api-version": "1.1.0", "capabilities": ["low", ["better", "best"]]}},
        "capabilities": {
            "low": {"properties": properties, "extensions": {"VK_KHR_16bit_storage": 1}},
            "better": {"features": {"VkPhysicalDevice16BitStorageFeaturesKHR": {"storageBuffer16BitAccess": True}}},
            "best": {"features": {"VkPhysicalDevice8BitStorageFeaturesKHR": {"storageBuffer8BitAccess": True}}},
        },
    }
    device = import_device(write(tmp_path / "p.json", profile), kind="discrete", name="a class of devices")
    assert (device.name, device.kind, device.limit("maxComputeWorkGroupInvocations")) == (
        "a class of devices",
        "discrete",
        256,
    )
    assert device.limit("maxPerStageDescriptorStorageBuffers") == 4
    assert f"{LIMITS}maxPerStageDescriptorStorageBuffers" in device.facts["assumed"]
    assert f"{LIMITS}maxComputeWorkGroupInvocations" not in device.facts["assumed"]
    assert device.feature("VkPhysicalDevice16BitStorageFeatures", "storageBuffer16BitAccess")
    assert not device.feature("VkPhysicalDevice8BitStorageFeatures", "storageBuffer8BitAccess")
    assert (device.subgroup_size, device.subgroup_operations) == (1, frozenset({"basic"}))


def test_the_form_that_vulkaninfo_had_before(tmp_path: Path) -> None:
    base = copy.deepcopy(report()["capabilities"]["device"]["properties"]["VkPhysicalDeviceProperties"])
    base["deviceType"] = 4
    data = {
        "$schema": "https://schema.khronos.org/vulkan/devsim_1_0_0.json#",
        "VkPhysicalDeviceProperties": base,
        "ArrayOfVkExtensionProperties": [{"extensionName": "VK_KHR_16bit_storage", "specVersion": 1}],
        "VkPhysicalDeviceMemoryProperties": {"memoryHeaps": [{"flags": 1, "size": 3 << 30}, {"flags": 0, "size": 5}]},
        "VkPhysicalDeviceFeatures": {"shaderInt64": 1},
    }
    device = import_device(write(tmp_path / "old.json", data))
    assert (device.name, device.kind, device.heap_bytes) == ("llvmpipe (LLVM 15.0.6, 256 bits)", "cpu", 3 << 30)
    assert device.limits("maxComputeWorkGroupSize") == (1024, 1024, 1024)
    assert device.has("VK_KHR_16bit_storage")


def test_what_android_prints(tmp_path: Path) -> None:
    """As frameworks/native/vulkan/vkjson writes it: its names, numbers as floats, enums and bits as numbers."""
    block = report()["capabilities"]["device"]
    base = block["properties"]["VkPhysicalDeviceProperties"] | {"deviceType": 4.0, "vendorID": 65541.0}
    eleven = block["properties"]["VkPhysicalDeviceVulkan11Properties"]
    eleven |= {"subgroupSize": 8.0, "subgroupSupportedStages": 48.0, "subgroupSupportedOperations": 191.0}
    phone = {
        "properties": base,
        "core11": {"properties": eleven, "features": {"storageBuffer16BitAccess": 1.0}},
        "core12": {
            "properties": {
                **{"driverID": 13.0, "driverName": "llvmpipe", "driverInfo": "Mesa 22.3.6 (LLVM 15.0.6)"},
                **{"roundingModeIndependence": 1.0, "shaderRoundingModeRTEFloat16": 0.0},
            },
            "features": {"shaderFloat16": 1.0, "storageBuffer8BitAccess": 1.0, "vulkanMemoryModel": 1.0},
        },
        "core13": {
            "properties": {
                **{"minSubgroupSize": 8.0, "maxSubgroupSize": 8.0, "requiredSubgroupSizeStages": 48.0},
                **{DOT_ACCELERATED[1]: 0.0},
            },
            "features": {"subgroupSizeControl": 1.0, "shaderIntegerDotProduct": 1.0},
        },
        "extensions": [{"extensionName": "VK_EXT_shader_atomic_float", "specVersion": 1.0}],
        "memory": {"memoryHeaps": [{"flags": 1.0, "size": float(2 << 30)}]},
    }
    device = import_device(write(tmp_path / "phone.json", {"apiVersion": 4206822.0, "devices": [phone]}))
    same = planned_for(load_device("lavapipe")) | {"atomic": False}  # vkjson has no struct of it in core
    assert planned_for(device) == same
    assert device.fact(*DOT_ACCELERATED) is False
    assert device.fact("VkPhysicalDeviceFloatControlsProperties", "roundingModeIndependence").endswith("_ALL")
    assert device.heap_bytes == 2 << 30
    assert device.facts["assumed"] == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "holds a list, not an object"),
        ({"schema": "vkconv.report/1"}, "neither what vulkaninfo --json writes, nor a Vulkan profile"),
        ({"schema": "vkconv.device/1"}, "is a device file already"),
        ({"devices": [{}, 5]}, "neither what vulkaninfo"),
        ({"devices": [{"properties": {"vendorID": "arm"}, "core11": 5}]}, "vendorID must be a whole number"),
        ({"profiles": {"A": {}, "B": {}}, "capabilities": {}}, "several profiles, A, B: say which with --profile"),
        ({"profiles": {"A": {"capabilities": ["x"]}}, "capabilities": {}}, "asks for the capabilities 'x'"),
        (
            {"capabilities": {"d": {"properties": {"VkPhysicalDeviceProperties": {"vendorID": "arm"}}}}},
            "VkPhysicalDeviceProperties.vendorID must be a whole number",
        ),
        ({"VkPhysicalDeviceProperties": {"limits": {"maxPushConstantsSize": -1}}}, "maxPushConstantsSize must be"),
        ({"VkPhysicalDeviceProperties": {"pipelineCacheUUID": [1, 2]}}, "pipelineCacheUUID must be 32 hexadecimal"),
        ({"VkPhysicalDeviceProperties": {"deviceName": ["x"]}}, "deviceName must be a text"),
        ({"VkPhysicalDeviceProperties": {"deviceType": "PHONE"}}, "deviceType must be one of VK_PHYSICAL_DEVICE_TYPE_"),
        (
            {"capabilities": {"d": {"properties": {"VkPhysicalDeviceProperties": 3}}}},
            "wrong kind (VkPhysicalDeviceProperties is no object)",
        ),
        (
            {"capabilities": {"d": {"features": {"VkPhysicalDevice16BitStorageFeaturesKHR": [1]}}}},
            "wrong kind (VkPhysicalDevice16BitStorageFeaturesKHR is no object)",
        ),
    ],
)
def test_reports_that_say_nothing_are_refused(tmp_path: Path, data: object, says: str) -> None:
    path = write(tmp_path / "r.json", data)
    with pytest.raises((ModelError, UsageError)) as caught:
        import_device(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_text_of_vulkaninfo_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "vulkaninfo.txt"
    path.write_text("==========\nVULKANINFO\n")
    with pytest.raises(ModelError, match="vulkaninfo --json writes it"):
        import_device(path)
    with pytest.raises(ModelError, match="no such file"):
        import_device(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="has no profile 'nope'"):
        import_device(REPORT, profile="nope")
    with pytest.raises(ModelError, match="vkconv devices import"):
        load_device(REPORT)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield (*path, key)
        yield from places(held, (*path, key))


@pytest.mark.long
def test_a_damaged_report_raises_nothing_but_our_errors(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    junk = [None, [], {}, 5, -1, 1.5, "text", True, [None], [{}], {"x": []}, [[]], 1e300]
    block = report()["capabilities"]["device"]
    phone = {
        "properties": block["properties"]["VkPhysicalDeviceProperties"],
        "core11": {"properties": block["properties"]["VkPhysicalDeviceVulkan11Properties"], "features": {}},
        "core12": {"properties": {"driverID": 13}, "features": {"shaderFloat16": 1}},
        "extensions": [{"extensionName": "VK_KHR_16bit_storage"}],
        "memory": {"memoryHeaps": [{"size": 5, "flags": 1}]},
    }
    old = {
        "VkPhysicalDeviceProperties": phone["properties"],
        "ArrayOfVkExtensionProperties": phone["extensions"],
        "VkPhysicalDeviceMemoryProperties": phone["memory"],
    }
    for whole in (report(), {"devices": [phone]}, old):
        everywhere = list(places(whole))
        for _ in range(300):
            data = copy.deepcopy(whole)
            *before, last = everywhere[random.integers(len(everywhere))]
            held: Any = data
            for key in before:
                held = held[key]
            held[last] = junk[random.integers(len(junk))]
            with contextlib.suppress(ModelError, UsageError):
                import_device(write(tmp_path / "d.json", data)).describe()
