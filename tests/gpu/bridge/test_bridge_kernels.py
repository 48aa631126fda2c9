"""The native bridge on the first Vulkan device: complete facts, right values, ordered work."""

import gc
import os
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from bridge_kit import Affine, integers

from vkconv.backend import _bridge

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


# --- facts --------------------------------------------------------------------------------------------------


def test_facts_are_complete(device: _bridge.Device) -> None:
    facts = device.facts
    assert facts == _bridge.devices()[0]
    base = facts["properties"]["VkPhysicalDeviceProperties"]
    assert base["apiVersion"] >= 1 << 22 | 1 << 12
    assert base["deviceName"]
    assert base["deviceType"].startswith("VK_PHYSICAL_DEVICE_TYPE_")
    assert len(bytes.fromhex(base["pipelineCacheUUID"])) == 16
    limits = base["limits"]
    assert limits["maxComputeSharedMemorySize"] >= 16384
    assert limits["maxPushConstantsSize"] >= 128
    assert len(limits["maxComputeWorkGroupCount"]) == len(limits["maxComputeWorkGroupSize"]) == 3
    assert min(limits["maxComputeWorkGroupCount"]) >= 65535
    assert limits["timestampPeriod"] > 0
    subgroup = facts["properties"]["VkPhysicalDeviceSubgroupProperties"]
    assert subgroup["subgroupSize"] >= 1
    assert "VK_SHADER_STAGE_COMPUTE_BIT" in subgroup["supportedStages"]
    assert "VK_SUBGROUP_FEATURE_BASIC_BIT" in subgroup["supportedOperations"]
    assert facts["properties"]["VkPhysicalDeviceMaintenance3Properties"]["maxMemoryAllocationSize"] >= 1 << 30
    assert len(facts["properties"]["VkPhysicalDeviceIDProperties"]["deviceUUID"]) == 32
    assert {"shaderInt64", "robustBufferAccess"} <= facts["features"]["VkPhysicalDeviceFeatures"].keys()
    assert "storageBuffer16BitAccess" in facts["features"]["VkPhysicalDevice16BitStorageFeatures"]
    assert any("VK_QUEUE_COMPUTE_BIT" in family["queueFlags"] for family in facts["queueFamilies"])
    memory = facts["memory"]
    assert all(heap["size"] > 0 for heap in memory["memoryHeaps"])
    assert {kind["heapIndex"] for kind in memory["memoryTypes"]} <= set(range(len(memory["memoryHeaps"])))
    assert bool(facts["cooperativeMatrices"]) == ("VK_KHR_cooperative_matrix" in facts["extensions"])


OF_EXTENSIONS = {  # structures that never became core
    "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT": "VK_EXT_shader_atomic_float",
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": "VK_KHR_cooperative_matrix",
    "VkPhysicalDeviceCooperativeMatrixPropertiesKHR": "VK_KHR_cooperative_matrix",
    "VkPhysicalDeviceShaderBfloat16FeaturesKHR": "VK_KHR_shader_bfloat16",
    "VkPhysicalDevicePCIBusInfoPropertiesEXT": "VK_EXT_pci_bus_info",
    "VkPhysicalDeviceShaderCorePropertiesAMD": "VK_AMD_shader_core_properties",
    "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV": "VK_NV_shader_sm_builtins",
    "VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM": "VK_ARM_shader_core_builtins",
}


def test_a_device_is_asked_for_the_structures_of_its_extensions(device: _bridge.Device) -> None:
    facts = device.facts
    told = {*facts["properties"], *facts["features"]} & OF_EXTENSIONS.keys()
    assert told == {struct for struct, extension in OF_EXTENSIONS.items() if extension in facts["extensions"]}


def test_structures_are_told_whole_and_in_the_forms_of_profiles(device: _bridge.Device) -> None:
    properties, features = device.facts["properties"], device.facts["features"]
    base = properties["VkPhysicalDeviceProperties"]
    limits = base["limits"]
    assert len(limits) == 106 and len(features["VkPhysicalDeviceFeatures"]) == 55
    assert all(type(value) is bool for struct in features.values() for value in struct.values())
    assert limits["maxViewportDimensions"] == [int(n) for n in limits["maxViewportDimensions"]]
    assert all(type(bound) is float for bound in limits["viewportBoundsRange"])
    assert "VK_SAMPLE_COUNT_1_BIT" in limits["framebufferColorSampleCounts"]
    assert type(limits["strictLines"]) is bool and type(base["sparseProperties"]["residencyAlignedMipSize"]) is bool
    driver = properties.get("VkPhysicalDeviceDriverProperties")
    if driver is not None:
        assert driver["driverID"].startswith("VK_DRIVER_ID_") and driver["driverName"].isprintable()
        assert driver["conformanceVersion"].keys() == {"major", "minor", "subminor", "patch"}
    for shape in device.facts["cooperativeMatrices"]:
        kinds = {shape[name].removeprefix("VK_COMPONENT_TYPE_") for name in ("AType", "BType", "CType", "ResultType")}
        assert all(kind.endswith(("_KHR", "_EXT", "_NV")) for kind in kinds)
        assert shape["scope"].startswith("VK_SCOPE_")


def test_an_extension_is_left_off_with_the_one_it_needs(device: _bridge.Device) -> None:
    needed, extension = "VK_EXT_shader_atomic_float", "VK_EXT_shader_atomic_float2"
    enabled = device.enabled["extensions"]
    with _bridge.Device(0, disable=[needed]) as other:
        assert other.enabled["extensions"] == [name for name in enabled if name not in (needed, extension)]
    with _bridge.Device(0, disable=[extension]) as other:
        assert other.enabled["extensions"] == [name for name in enabled if name != extension]


def test_every_enabled_feature_is_offered_and_disable_takes_it_away(device: _bridge.Device) -> None:
    offered = {name for block in device.facts["features"].values() for name, value in block.items() if value}
    enabled = device.enabled
    assert set(enabled["features"]) <= offered
    assert set(enabled["extensions"]) <= device.facts["extensions"].keys()
    assert "robustBufferAccess" not in enabled["features"]
    assert enabled["features"], "a device that offers nothing at all"
    first = enabled["features"][0]
    with _bridge.Device(0, disable=[first]) as other:
        assert other.enabled["features"] == [name for name in enabled["features"] if name != first]
    with pytest.raises(ValueError, match="no_such_feature"):
        _bridge.Device(0, disable=["no_such_feature"])


def test_an_index_without_a_device(device: _bridge.Device) -> None:
    with pytest.raises(IndexError, match="99"):
        _bridge.Device(99)


def test_no_working_driver_is_no_device(tmp_path: Path) -> None:
    code = "from vkconv.backend import _bridge; assert _bridge.devices() == [], _bridge.devices()"
    nowhere = str(tmp_path / "absent.json")
    environment = {**os.environ, "VK_ICD_FILENAMES": nowhere, "VK_DRIVER_FILES": nowhere}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("sys.modules['kp'] = None", "kp cannot be imported: "),
        ("import kp", "was built with another pybind11 or compiler"),  # that of tmp_path
    ],
)
def test_a_kp_that_cannot_be_used_is_named(tmp_path: Path, before: str, message: str) -> None:
    (tmp_path / "kp.py").write_text("")
    program, environment = (
        f"import sys; {before}; import vkconv.backend._bridge",
        {**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("ImportError: ")
    assert message in result.stderr


def test_vkconv_brings_its_own_kp(tmp_path: Path) -> None:
    """Another one that is installed is left alone."""
    (tmp_path / "kp.py").write_text("raise ImportError('not this one')")
    program = "import vkconv.backend._bridge, kp; print(kp.__file__); kp.Manager"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).parent.name == "kompute"


# --- kernels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 63, 1009])
def test_a_kernel_writes_right_values_over_poison(device: _bridge.Device, affine_spirv: bytes, count: int) -> None:
    affine = Affine(device, affine_spirv, count, steps=5)
    for seed in range(3):
        x = integers(count, seed)
        np.testing.assert_array_equal(affine(x), affine.expected(x))


def test_ranges_of_one_buffer(device: _bridge.Device, affine_spirv: bytes) -> None:
    """Source and target are slices of one buffer, and what lies outside the target stays poisoned."""
    align = max(
        int(device.facts["properties"]["VkPhysicalDeviceProperties"]["limits"]["minStorageBufferOffsetAlignment"]),
        4,
    )
    words = align // 4
    count = 3 * words
    x = integers(count)
    host = device.buffer(4 * (count + words + count + 5), "download")
    view = np.frombuffer(host.view, np.float32)
    view[:] = np.nan
    view[:count] = x
    r = device.recording()
    start = 4 * (count + words)
    r.dispatch(
        device.pipeline(affine_spirv, 2, 8, [64]),
        [(host, 0, 4 * count), (host, start, 4 * count)],
        struct.pack("If", count, 3.0),
        ((count + 63) // 64, 1, 1),
    )
    r.barrier(["compute"], ["host"])
    r.end()
    r.run()
    np.testing.assert_array_equal(view[count + words : count + words + count], 3.0 * x + 1.0)
    assert np.isnan(view[count : count + words]).all()
    assert np.isnan(view[-5:]).all()


def test_fill_reaches_the_end_of_an_odd_buffer(device: _bridge.Device) -> None:
    host = device.buffer(7, "download")
    host.view[:] = bytes(range(7))
    r = device.recording()
    r.fill(host, 4, 3, 0xA1B2C3D4)
    r.barrier(["transfer"], ["host"])
    r.end()
    r.run()
    assert bytes(host.view) == bytes([0, 1, 2, 3, 0xD4, 0xC3, 0xB2])


def test_timestamps_never_go_back(device: _bridge.Device, affine_spirv: bytes) -> None:
    affine = Affine(device, affine_spirv, 100_003, steps=9, timestamps=10)
    for seed in range(3):  # a pool that is not reset would keep the first run's times
        start = time.perf_counter()
        affine(integers(affine.count, seed))
        wall_ns = (time.perf_counter() - start) * 1e9
        times = affine.recording.timestamps_ns()
        assert len(times) == 10
        assert times[0] == 0.0
        assert times == sorted(times)
        assert 0 < times[-1] < wall_ns
    with pytest.raises(ValueError, match="0 timestamps"):
        device.recording().timestamp()


@pytest.mark.parametrize("count", [(1 << 20) + 1, 1 << 31, (1 << 32) - 1])
def test_more_timestamps_than_drivers_count_right_are_refused(device: _bridge.Device, count: int) -> None:
    with pytest.raises(ValueError, match=f"Device.recording: {count} timestamps, a recording has at most 1048576"):
        device.recording(count)


def test_the_most_timestamps_that_a_recording_may_have(device: _bridge.Device) -> None:
    recording = device.recording(1 << 20)
    recording.timestamp()
    recording.end()
    recording.run()
    assert recording.timestamps_ns() == [0.0]


def test_kompute_objects_are_real(device: _bridge.Device, affine_spirv: bytes) -> None:
    import kp  # that of vkconv

    assert isinstance(device.manager, kp.Manager)
    affine = Affine(device, affine_spirv, 257)
    sequence = affine.recording.sequence
    assert isinstance(sequence, kp.Sequence)
    x = integers(257)
    np.frombuffer(affine.upload.view, np.float32)[:] = x
    np.frombuffer(affine.download.view, np.float32)[:] = np.nan
    sequence.eval()
    np.testing.assert_array_equal(np.frombuffer(affine.download.view, np.float32), affine.expected(x))
    sequence.clear()  # drops kp's operations, not what the command buffer needs
    gc.collect()
    np.testing.assert_array_equal(affine(x), affine.expected(x))
    assert device.manager.sequence().is_init()
    tensor = device.manager.tensor(x)
    assert tensor.is_init()
    sequence.destroy()
    with pytest.raises(_bridge.VulkanError, match="destroyed through kp"):
        affine.recording.run()


def test_a_sequence_outlives_its_recording(device: _bridge.Device, affine_spirv: bytes) -> None:
    affine = Affine(device, affine_spirv, 65)
    x = integers(65)
    np.frombuffer(affine.upload.view, np.float32)[:] = x
    result = np.frombuffer(affine.download.view, np.float32)
    result[:] = np.nan
    sequence, expected = affine.recording.sequence, affine.expected(x)
    del affine
    gc.collect()
    sequence.eval()
    np.testing.assert_array_equal(result, expected)


# --- hazards ------------------------------------------------------------------------------------------------

HAZARD_PROGRAM = """
import struct, sys
from vkconv.backend import _bridge
from vkconv.glslang import compile_shader
from vkconv.kernel import Shader
spirv, barrier = open(sys.argv[1], "rb").read(), sys.argv[2] == "barrier"
with _bridge.Device(0) as device:
    a, b, c = (device.buffer(4096, "device") for _ in range(3))
    pipeline = device.pipeline(spirv, 2, 8, [64])
    r = device.recording(2)
    r.timestamp()
    r.fill(a, 0, 4096, 0)
    r.fill(b, 0, 4096, 0)
    r.barrier(["transfer"], ["compute"])
    push = struct.pack("If", 1024, 2.0)
    r.dispatch(pipeline, [(a, 0, 4096), (b, 0, 4096)], push, (16, 1, 1))
    if barrier:
        r.barrier(["compute"], ["compute"])
    r.dispatch(pipeline, [(b, 0, 4096), (c, 0, 4096)], push, (16, 1, 1))
    r.timestamp()
    r.end()
    r.run()
    r.run()
    r.timestamps_ns()
    device.pipeline_cache()
"""


def _validated(program: str, arguments: list[str], folder: Path) -> str:
    """What VK_LAYER_KHRONOS_validation reports about a program, synchronization validation included."""
    log = folder / "validation.log"
    settings = folder / "vk_layer_settings.txt"
    settings.write_text(
        textwrap.dedent(f"""
        khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
        khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
        khronos_validation.report_flags = error,warn
        khronos_validation.log_filename = {log}
        """)
    )
    environment = {
        **os.environ,
        "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
        "VK_LAYER_SETTINGS_PATH": str(settings),
    }
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, env=environment, timeout=120)
    assert log.exists(), "the validation layer did not start"
    return log.read_text()


@pytest.mark.skipif(os.environ.get("VKCONV_TEST_VALIDATION") == "0", reason="reads what the validation layer reports")
@pytest.mark.parametrize("barrier", [True, False], ids=["barrier", "no-barrier"])
def test_dependent_dispatches_need_their_barrier(affine_spirv: bytes, tmp_path: Path, barrier: bool) -> None:
    spirv = tmp_path / "affine.spv"
    spirv.write_bytes(affine_spirv)
    report = _validated(HAZARD_PROGRAM, [str(spirv), "barrier" if barrier else "none"], tmp_path)
    if barrier:
        assert report == ""
    else:
        assert "READ_AFTER_WRITE" in report
