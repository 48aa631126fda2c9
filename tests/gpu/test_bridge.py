"""The native bridge on the first Vulkan device: right values, checked limits, ordered work, and no leak, hang
or crash.
"""

import gc
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kp
import numpy as np
import numpy.typing as npt
import pytest
from required import unavailable

from vkconv.backend import _bridge
from vkconv.compiler import compile_shader
from vkconv.shader import Shader

pytestmark = pytest.mark.gpu

Floats = npt.NDArray[np.float32]

NAN_WORD = 0x7FC00BAD
AFFINE = """
#version 450
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { uint count; float scale; };
layout(set = 0, binding = 0) readonly buffer Source { float source[]; };
layout(set = 0, binding = 1) writeonly buffer Target { float target[]; };
void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < count) target[i] = scale * source[i] + 1.0;
}
"""
SPIN = """
#version 450
layout(local_size_x = 8) in;
layout(push_constant) uniform Push { uint steps; };
layout(set = 0, binding = 0) buffer State { uint state[]; };
void main() {
    uint x = state[gl_GlobalInvocationID.x];
    for (uint i = 0; i < steps; ++i) x = x * 1664525u + 1013904223u;
    state[gl_GlobalInvocationID.x] = x;
}
"""


def _compile(source: str, folder: Path, name: str) -> bytes:
    (folder / f"{name}.comp").write_text(source)
    return compile_shader(Shader(name), folder)


@pytest.fixture(scope="module")
def affine_spirv(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _compile(AFFINE, tmp_path_factory.mktemp("spirv"), "affine")


@pytest.fixture(scope="module")
def spin_spirv(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _compile(SPIN, tmp_path_factory.mktemp("spirv"), "spin")


@pytest.fixture
def device() -> Iterator[_bridge.Device]:
    if not _bridge.devices():
        unavailable("no Vulkan device: install mesa-vulkan-drivers for lavapipe")
    with _bridge.Device(0) as opened:
        yield opened


class Affine:
    """y = scale * x + 1, `steps` times, in dependent dispatches between two poisoned buffers."""

    def __init__(self, device: _bridge.Device, spirv: bytes, count: int, steps: int = 1, timestamps: int = 0) -> None:
        nbytes = 4 * count
        self.count, self.steps = count, steps
        self.upload = device.buffer(nbytes, "upload")
        self.download = device.buffer(nbytes, "download")
        buffers = [device.buffer(nbytes, "device") for _ in range(2)]
        pipeline = device.pipeline(spirv, 2, 8, [64])
        r = self.recording = device.recording(timestamps)
        if timestamps:
            r.timestamp()
        r.copy(self.upload, 0, buffers[0], 0, nbytes)
        r.fill(buffers[1], 0, nbytes, NAN_WORD)
        for step in range(steps):
            r.barrier(["transfer", "compute"], ["compute"])
            push = struct.pack("If", count, 2.0)
            source, target = buffers[step % 2], buffers[1 - step % 2]
            r.dispatch(pipeline, [(source, 0, nbytes), (target, 0, nbytes)], push, ((count + 63) // 64, 1, 1))
            if timestamps:
                r.timestamp()
        r.barrier(["compute"], ["transfer"])
        r.copy(buffers[steps % 2], 0, self.download, 0, nbytes)
        r.barrier(["transfer"], ["host"])
        r.end()

    def __call__(self, x: Floats) -> Floats:
        np.frombuffer(self.upload.view, np.float32)[:] = x
        np.frombuffer(self.download.view, np.float32)[:] = np.nan
        self.recording.run()
        return np.frombuffer(self.download.view, np.float32).copy()

    def expected(self, x: Floats) -> npt.NDArray[np.float64]:
        y = x.astype(np.float64)
        for _ in range(self.steps):
            y = 2.0 * y + 1.0
        return y


def _integers(count: int, seed: int = 0) -> Floats:
    """Small integers, so that f32 results are exact."""
    return np.random.default_rng(seed).integers(-99, 99, count).astype(np.float32)


def _long_work(device: _bridge.Device, spirv: bytes, seconds: float) -> _bridge.Recording:
    """A recording that keeps the device busy for about `seconds`, measured on this device first.

    It is made long by its number of dispatches: lavapipe ends every loop after 65535 iterations.
    """
    steps, groups = 60_000, 64
    nbytes = 4 * 8 * groups
    state = device.buffer(nbytes, "device")
    pipeline = device.pipeline(spirv, 1, 4)

    def record(dispatches: int) -> _bridge.Recording:
        r = device.recording()
        r.fill(state, 0, nbytes, 1)
        for _ in range(dispatches):
            r.barrier(["transfer", "compute"], ["compute"])
            r.dispatch(pipeline, [(state, 0, nbytes)], struct.pack("I", steps), (groups, 1, 1))
        r.end()
        return r

    record(1).run()
    probe, dispatches = record(20), 20
    start = time.perf_counter()
    probe.run()
    return record(max(2, round(seconds * dispatches / (time.perf_counter() - start))))


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


def test_a_kp_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    program = "import vkconv.backend._bridge"
    for text, message in (
        ("raise ModuleNotFoundError('no kp')", "kp cannot be imported: no kp"),
        ("", "was built with another pybind11 or compiler"),
    ):
        (tmp_path / "kp.py").write_text(text)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        result = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 1
        assert result.stderr.splitlines()[-1].startswith("ImportError: ")
        assert message in result.stderr


# --- kernels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 63, 1009])
def test_a_kernel_writes_right_values_over_poison(device: _bridge.Device, affine_spirv: bytes, count: int) -> None:
    affine = Affine(device, affine_spirv, count, steps=5)
    for seed in range(3):
        x = _integers(count, seed)
        np.testing.assert_array_equal(affine(x), affine.expected(x))


def test_ranges_of_one_buffer(device: _bridge.Device, affine_spirv: bytes) -> None:
    """Source and target are slices of one buffer, and what lies outside the target stays poisoned."""
    align = max(
        int(device.facts["properties"]["VkPhysicalDeviceProperties"]["limits"]["minStorageBufferOffsetAlignment"]),
        4,
    )
    words = align // 4
    count = 3 * words
    x = _integers(count)
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
        affine(_integers(affine.count, seed))
        wall_ns = (time.perf_counter() - start) * 1e9
        times = affine.recording.timestamps_ns()
        assert len(times) == 10
        assert times[0] == 0.0
        assert times == sorted(times)
        assert 0 < times[-1] < wall_ns
    with pytest.raises(ValueError, match="0 timestamps"):
        device.recording().timestamp()


def test_kompute_objects_are_real(device: _bridge.Device, affine_spirv: bytes) -> None:
    assert isinstance(device.manager, kp.Manager)
    affine = Affine(device, affine_spirv, 257)
    sequence = affine.recording.sequence
    assert isinstance(sequence, kp.Sequence)
    x = _integers(257)
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
    x = _integers(65)
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
from vkconv.compiler import compile_shader
from vkconv.shader import Shader
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


@pytest.mark.parametrize("barrier", [True, False], ids=["barrier", "no-barrier"])
def test_dependent_dispatches_need_their_barrier(affine_spirv: bytes, tmp_path: Path, barrier: bool) -> None:
    spirv = tmp_path / "affine.spv"
    spirv.write_bytes(affine_spirv)
    report = _validated(HAZARD_PROGRAM, [str(spirv), "barrier" if barrier else "none"], tmp_path)
    if barrier:
        assert report == ""
    else:
        assert "READ_AFTER_WRITE" in report


# --- errors ---------------------------------------------------------------------------------------


def test_no_standard_streams() -> None:
    """A stream crashes in a process with two copies of libstdc++ (native/errors.hpp), on error paths of all places."""
    stream = re.compile(
        r"<(sstream|iostream|ostream|istream|fstream|iomanip|locale|codecvt|regex|format|fmt/\S+)>"
        r"|\b(std::(\w*stream|locale|cout|cerr|clog|format)|fmt::)"
    )
    sources = [p for p in (Path(__file__).parents[2] / "native").iterdir() if p.suffix in (".cpp", ".hpp")]
    assert len(sources) > 10
    found = [f"{p.name}: {line}" for p in sources for line in p.read_text().splitlines() if stream.search(line)]
    assert found == []
    # And none that a header brought in. A static libstdc++ has them all, used or not.
    module = Path(_bridge.__file__).read_bytes()
    if b"libstdc++.so" not in module:
        return
    for symbol in (b"basic_ostream", b"basic_istream", b"stringstream", b"_ZNSo", b"_ZNSt6locale", b"codecvt"):
        assert symbol not in module, symbol


def test_a_buffer_over_the_heap_names_both_numbers(device: _bridge.Device) -> None:
    heap = max(heap["size_bytes"] for heap in device.memory())
    for nbytes in (heap + 1, 1 << 62):
        with pytest.raises(_bridge.OutOfMemoryError) as caught:
            device.buffer(nbytes, "device")
        assert caught.value.requested_bytes >= nbytes
        assert 0 < caught.value.available_bytes < nbytes
        assert str(caught.value.requested_bytes) in str(caught.value)
        assert str(caught.value.available_bytes) in str(caught.value)
        assert caught.value.result == "VK_ERROR_OUT_OF_DEVICE_MEMORY"
    assert device.buffer(1 << 16, "device").nbytes == 1 << 16


def test_buffer_arguments(device: _bridge.Device) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        device.buffer(0, "device")
    with pytest.raises(ValueError, match="'fast'"):
        device.buffer(4, "fast")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        device.buffer(-1, "device")
    with pytest.raises(_bridge.VulkanError, match="not visible"):
        _ = device.buffer(4, "device").view


def test_pipeline_arguments(device: _bridge.Device, affine_spirv: bytes) -> None:
    limits = device.facts["properties"]["VkPhysicalDeviceProperties"]["limits"]
    for bad in (b"", b"\x03\x02#\x07", affine_spirv[:-1], bytes(64)):
        with pytest.raises(ValueError, match="not a SPIR-V module"):
            device.pipeline(bad, 2, 8)
    over = limits["maxPushConstantsSize"] + 4
    with pytest.raises(ValueError, match=f"{over}.*{limits['maxPushConstantsSize']}"):
        device.pipeline(affine_spirv, 2, over)
    bindings = limits["maxPerStageDescriptorStorageBuffers"]
    if bindings < 2**32 - 1:
        with pytest.raises(ValueError, match=f"{bindings + 1}.*{bindings}"):
            device.pipeline(affine_spirv, bindings + 1, 8)
    with pytest.raises(ValueError, match="subgroup size 3"):
        device.pipeline(affine_spirv, 2, 8, [64], subgroup_size=3)


def test_subgroup_size_can_be_asked_for(device: _bridge.Device, affine_spirv: bytes) -> None:
    sizes = device.facts["properties"].get("VkPhysicalDeviceSubgroupSizeControlProperties")
    if "subgroupSizeControl" in device.enabled["features"] and sizes and sizes["requiredSubgroupSizeStages"]:
        assert device.pipeline(affine_spirv, 2, 8, [64], subgroup_size=sizes["minSubgroupSize"])
    with (
        _bridge.Device(0, disable=["VkPhysicalDeviceSubgroupSizeControlFeatures"]) as plain,
        pytest.raises(ValueError, match="cannot fix"),
    ):
        plain.pipeline(affine_spirv, 2, 8, [64], subgroup_size=8)


def test_dispatch_arguments(device: _bridge.Device, affine_spirv: bytes) -> None:
    limits = device.facts["properties"]["VkPhysicalDeviceProperties"]["limits"]
    buffer = device.buffer(4096, "device")
    pipeline = device.pipeline(affine_spirv, 2, 8, [64])
    recording = device.recording()
    whole = (buffer, 0, 4096)
    good = ([whole, whole], bytes(8), (1, 1, 1))
    too_many = limits["maxComputeWorkGroupCount"][1] + 1
    cases: list[tuple[tuple[object, ...], str]] = [
        (([whole], good[1], good[2]), "1 buffers given, the pipeline has 2"),
        ((good[0], bytes(4), good[2]), "4 bytes of push constants given, the pipeline takes 8"),
        (([whole, (buffer, 0, 4097)], good[1], good[2]), "4097 bytes at 0 leaves the buffer of 4096"),
        (([whole, (buffer, 2**64 - 4, 8)], good[1], good[2]), "leaves the buffer of 4096"),
        (([whole, (buffer, 4096, 0)], good[1], good[2]), "0 bytes"),
        (([whole, (buffer, 1, 16)], good[1], good[2]), "minStorageBufferOffsetAlignment"),
        ((good[0], good[1], (0, 1, 1)), "0 workgroups on axis 0"),
    ]
    if too_many < 2**32:
        cases.append(((good[0], good[1], (1, too_many, 1)), f"{too_many} workgroups on axis 1"))
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            recording.dispatch(pipeline, *arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="overlap"):
        recording.copy(buffer, 0, buffer, 8, 16)
    with pytest.raises(ValueError, match="whole words"):
        recording.fill(buffer, 2, 4, 0)
    with pytest.raises(ValueError, match="'everything'"):
        recording.barrier(["everything"], ["compute"])  # type: ignore[list-item]
    with pytest.raises(_bridge.VulkanError, match="not ended"):
        recording.run()
    recording.end()
    recording.run()
    with pytest.raises(_bridge.VulkanError, match="has ended"):
        recording.fill(buffer, 0, 4, 0)
    with _bridge.Device(0) as other, pytest.raises(_bridge.VulkanError, match="another device"):
        other.recording().fill(buffer, 0, 4, 0)


# --- lifetime -------------------------------------------------------------------------------------


def test_use_after_close(device: _bridge.Device, affine_spirv: bytes) -> None:
    affine = Affine(device, affine_spirv, 1009)
    x = _integers(1009)
    affine(x)
    seen = np.frombuffer(affine.download.view, np.float32)
    recording, pipeline = device.recording(), device.pipeline(affine_spirv, 2, 8, [64])
    sequence = affine.recording.sequence
    device.close()
    device.close()
    assert device.closed
    np.testing.assert_array_equal(seen, affine.expected(x))  # the view keeps its memory
    uses: list[Callable[[], object]] = [
        lambda: device.facts,
        lambda: device.enabled,
        lambda: device.manager,
        lambda: device.pipeline_cache_loaded,
        lambda: device.memory(),
        lambda: device.buffer(4, "device"),
        lambda: device.recording(),
        lambda: device.pipeline(affine_spirv, 2, 8),
        lambda: device.pipeline_cache(),
        lambda: device.wait_idle(),
        lambda: affine.recording.run(),
        lambda: affine.recording.submit(),
        lambda: affine.recording.wait(),
        lambda: affine.recording.timestamps_ns(),
        lambda: affine.recording.sequence,
        lambda: affine.upload.view,
        lambda: recording.dispatch(pipeline, [], b"", (1, 1, 1)),
        lambda: recording.end(),
    ]
    for use in uses:
        with pytest.raises(_bridge.VulkanError, match="closed"):
            use()
    assert not sequence.is_init()


def test_children_outlive_a_dropped_device(device: _bridge.Device, affine_spirv: bytes) -> None:
    own = _bridge.Device(0)
    affine = Affine(own, affine_spirv, 77)
    del own
    gc.collect()
    x = _integers(77)
    np.testing.assert_array_equal(affine(x), affine.expected(x))


def test_cycles_do_not_leak(device: _bridge.Device, affine_spirv: bytes) -> None:
    def cycle(close: bool) -> None:
        own = _bridge.Device(0)
        affine = Affine(own, affine_spirv, 4099, steps=8, timestamps=9)
        x = _integers(4099)
        np.testing.assert_array_equal(affine(x)[:3], affine.expected(x)[:3])
        with pytest.raises(ValueError, match="at least 1"):
            own.buffer(0, "device")
        assert own.manager.sequence().is_init()
        if close:
            own.close()

    def resident_bytes() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for i in range(40):
        cycle(i % 2 == 0)
    before = resident_bytes()
    for i in range(200):
        cycle(i % 2 == 0)
    assert resident_bytes() - before < 8 << 20


def test_pipeline_cache_round_trip_and_damage(device: _bridge.Device, affine_spirv: bytes) -> None:
    assert not device.pipeline_cache_loaded
    device.pipeline(affine_spirv, 2, 8, [64])
    blob = device.pipeline_cache()
    with _bridge.Device(0, pipeline_cache=blob) as again:
        assert again.pipeline_cache_loaded
        x = _integers(99)
        affine = Affine(again, affine_spirv, 99)
        np.testing.assert_array_equal(affine(x), affine.expected(x))
    damaged = [blob[:-1], blob + b"\0", blob[:20], b"", os.urandom(len(blob))]
    for i in range(0, len(blob), max(1, len(blob) // 16)):
        damaged.append(blob[:i] + bytes([blob[i] ^ 0x10]) + blob[i + 1 :])
    for bad in damaged:
        with _bridge.Device(0, pipeline_cache=bad) as fresh:
            assert not fresh.pipeline_cache_loaded
            assert fresh.pipeline(affine_spirv, 2, 8, [64])


def test_merged_pipeline_caches_hold_the_pipelines_of_both(
    device: _bridge.Device, affine_spirv: bytes, spin_spirv: bytes
) -> None:
    device.pipeline(affine_spirv, 2, 8, [64])
    own = device.pipeline_cache()
    with _bridge.Device(0) as other:
        other.pipeline(spin_spirv, 1, 4)
        theirs = other.pipeline_cache()
    merged = device.merge_pipeline_cache(theirs)
    assert len(merged) >= max(len(own), len(theirs))
    if len(own) > 1000:  # lavapipe keeps nothing but a header
        assert len(merged) > max(len(own), len(theirs))
    for useless in (b"", theirs[:-1], os.urandom(len(theirs))):
        assert len(device.merge_pipeline_cache(useless)) == len(own)
    assert device.pipeline_cache() == own
    with _bridge.Device(0, pipeline_cache=merged) as again:
        assert again.pipeline_cache_loaded
        x = _integers(99)
        affine = Affine(again, affine_spirv, 99)
        np.testing.assert_array_equal(affine(x), affine.expected(x))
    device.close()
    with pytest.raises(_bridge.VulkanError, match="closed"):
        device.merge_pipeline_cache(theirs)


# --- waiting --------------------------------------------------------------------------------------


def test_submit_and_wait(device: _bridge.Device, affine_spirv: bytes) -> None:
    first, second = Affine(device, affine_spirv, 509, 3), Affine(device, affine_spirv, 251, 4)
    x, y = _integers(509), _integers(251)
    np.frombuffer(first.upload.view, np.float32)[:] = x
    np.frombuffer(second.upload.view, np.float32)[:] = y
    with pytest.raises(_bridge.VulkanError, match="nothing was submitted"):
        first.recording.wait()
    first.recording.submit()
    second.recording.submit()
    assert second.recording.wait()
    assert first.recording.wait()
    assert first.recording.wait(timeout_ns=0)
    np.testing.assert_array_equal(np.frombuffer(first.download.view, np.float32), first.expected(x))
    np.testing.assert_array_equal(np.frombuffer(second.download.view, np.float32), second.expected(y))


def test_time_out_leaves_the_recording_usable(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = _long_work(device, spin_spirv, 1.0)
    start = time.perf_counter()
    with pytest.raises(_bridge.TimeoutError_, match="50000000 ns") as caught:
        work.run(timeout_ns=50_000_000)
    assert time.perf_counter() - start < 0.5
    assert caught.value.result == "VK_TIMEOUT"
    for use in (work.run, work.submit):
        with pytest.raises(_bridge.VulkanError, match="still works"):
            use()
    with pytest.raises(_bridge.VulkanError, match="no completed run"):
        work.timestamps_ns()
    assert not work.wait(timeout_ns=1000)
    assert work.wait()
    work.run()


def test_close_waits_for_the_device(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = _long_work(device, spin_spirv, 0.5)
    work.submit()
    start = time.perf_counter()
    device.close()
    assert time.perf_counter() - start > 0.1
    with pytest.raises(_bridge.VulkanError, match="closed"):
        work.wait()


def test_abandon_lets_go_and_the_device_works_on(
    device: _bridge.Device, spin_spirv: bytes, affine_spirv: bytes
) -> None:
    affine, x = Affine(device, affine_spirv, 251, steps=2), _integers(251)
    work = _long_work(device, spin_spirv, 1.0)
    with pytest.raises(_bridge.TimeoutError_):
        work.run(timeout_ns=20_000_000)
    start = time.perf_counter()
    work.abandon()
    assert time.perf_counter() - start < 0.2
    assert device.abandoned == 1
    for use in (work.run, work.submit, work.wait, work.end, work.timestamps_ns):
        with pytest.raises(_bridge.VulkanError, match="abandoned"):
            use()
    work.abandon()
    del work
    np.testing.assert_array_equal(affine(x), affine.expected(x))  # after the spinning, on the same queue
    assert time.perf_counter() - start > 0.4
    assert device.abandoned == 0
    affine.recording.abandon()
    assert device.abandoned == 0, "nothing of it was in flight"
    with pytest.raises(_bridge.VulkanError, match="abandoned"):
        affine.recording.run()


def test_abandoned_memory_comes_back(device: _bridge.Device, spin_spirv: bytes) -> None:
    def mapped() -> bool:
        ranges = (line.split(maxsplit=1)[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
        return any(int(first, 16) <= address < int(end, 16) for first, end in ranges)

    work = _long_work(device, spin_spirv, 0.5)
    buffer = device.buffer(64 << 20, "download")
    address = np.frombuffer(buffer.view, np.uint8).ctypes.data
    held = device.recording()
    held.fill(buffer, 0, 64 << 20, 7)
    held.end()
    work.submit()
    held.submit()
    held.abandon()
    del held, buffer
    assert device.abandoned == 1
    assert mapped(), "freed under the device's hands"
    work.wait()
    device.wait_idle()
    assert device.abandoned == 0
    assert not mapped()


def test_dropping_a_recording_in_flight_does_not_wait(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = _long_work(device, spin_spirv, 2.0)
    work.submit()
    start = time.perf_counter()
    del work
    gc.collect()
    assert time.perf_counter() - start < 1.0
    assert device.abandoned == 1
    device.wait_idle()
    assert device.abandoned == 0


def test_close_gives_abandoned_work_two_seconds(device: _bridge.Device, spin_spirv: bytes, affine_spirv: bytes) -> None:
    with _bridge.Device(0) as own:
        work = _long_work(own, spin_spirv, 5.0)
        affine = Affine(own, affine_spirv, 99)
        work.submit()
        work.abandon()
        affine.recording.submit()
        start = time.perf_counter()
    assert 1.5 < time.perf_counter() - start < 3.5
    with pytest.raises(_bridge.VulkanError, match="closed"):
        affine.recording.wait()
    with _bridge.Device(0) as again:  # what was let go still runs
        x = _integers(99)
        later = Affine(again, affine_spirv, 99)
        np.testing.assert_array_equal(later(x), later.expected(x))


LEAVE_PROGRAM = """
import sys, time
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/.."]
from pathlib import Path
from test_bridge import _bridge, _long_work
device = _bridge.Device(0)
work = _long_work(device, Path(sys.argv[2]).read_bytes(), 30.0)
work.submit()
if sys.argv[3] == "abandon":
    work.abandon()
print(time.time())
"""


FORK_PROGRAM = """
import gc, os, signal, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/.."]
from pathlib import Path
from test_bridge import Affine, _bridge, _integers, _long_work
device = _bridge.Device(0)
other = _bridge.Device(0)
manager = other.manager
work = _long_work(device, Path(sys.argv[2]).read_bytes(), 2.0)
affine = Affine(device, Path(sys.argv[3]).read_bytes(), 99)
sequence = affine.recording.sequence
work.submit()
child = os.fork()
if child == 0:
    signal.alarm(15)
    device.close()
    del work, affine, device, sequence, other, manager
    gc.collect()
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert not work.wait(timeout_ns=0), "the child did not wait for the parent's work"
work.wait()
x = _integers(99)
assert (affine(x) == affine.expected(x)).all()
"""


def test_a_forked_child_leaves_what_it_inherited_alone(spin_spirv: bytes, affine_spirv: bytes, tmp_path: Path) -> None:
    arguments = [str(Path(__file__).parent)]
    for name, spirv in (("spin", spin_spirv), ("affine", affine_spirv)):
        (tmp_path / name).write_bytes(spirv)
        arguments.append(str(tmp_path / name))
    subprocess.run([sys.executable, "-c", FORK_PROGRAM, *arguments], check=True, timeout=30)


@pytest.mark.parametrize("how", ["abandon", "leave"])
def test_the_process_ends_while_the_device_works(spin_spirv: bytes, tmp_path: Path, how: str) -> None:
    spirv = tmp_path / "spin.spv"
    spirv.write_bytes(spin_spirv)
    program = [sys.executable, "-c", LEAVE_PROGRAM, str(Path(__file__).parent), str(spirv), how]
    done = subprocess.run(program, capture_output=True, text=True, timeout=25, check=True)
    assert time.time() - float(done.stdout) < 5


# Stands before the Vulkan loader and, once told, answers for it.
FAULTS = """
#include <dlfcn.h>
typedef int (*Call)(void *, unsigned, const void *, unsigned long, unsigned long);
int submit_result, wait_result, enumerate_result;
static int pass_on(const char *name, void *a, unsigned b, const void *c, unsigned long d, unsigned long e) {
    return ((Call)dlsym(dlopen("libvulkan.so.1", RTLD_NOW), name))(a, b, c, d, e);
}
int vkQueueSubmit(void *queue, unsigned count, const void *infos, unsigned long fence) {
    return submit_result ? submit_result : pass_on("vkQueueSubmit", queue, count, infos, fence, 0);
}
int vkWaitForFences(void *device, unsigned count, const void *fences, unsigned all, unsigned long timeout) {
    return wait_result ? wait_result : pass_on("vkWaitForFences", device, count, fences, all, timeout);
}
int vkGetFenceStatus(void *device, unsigned long fence) {
    int (*real)(void *, unsigned long) = dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkGetFenceStatus");
    return wait_result ? wait_result : real(device, fence);
}
int vkEnumeratePhysicalDevices(void *instance, void *count, void *devices) {
    int (*real)(void *, void *, void *) = dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkEnumeratePhysicalDevices");
    return enumerate_result ? enumerate_result : real(instance, count, devices);
}
"""

LOST_PROGRAM = """
import ctypes, sys
from vkconv.backend import _bridge
faults = ctypes.CDLL(None)

def fault(name, result):
    ctypes.c_int.in_dll(faults, name).value = result

def failure(use):
    try:
        use()
    except _bridge.VulkanError as error:
        return type(error), error.result
    return None

LOST = (_bridge.DeviceLostError, "VK_ERROR_DEVICE_LOST")
MEMORY = (_bridge.OutOfMemoryError, "VK_ERROR_OUT_OF_DEVICE_MEMORY")
device = _bridge.Device(0)
buffer = device.buffer(4096, "download")

def recording():
    r = device.recording()
    r.fill(buffer, 0, 4096, 7)
    r.end()
    return r

a, b, c, unused = (recording() for _ in range(4))
for start in (a.run, b.submit):
    fault("submit_result", -2)
    assert failure(start) == MEMORY
assert [failure(r.wait) for r in (a, a, b)] == [MEMORY] * 3
fault("submit_result", 0)
a.run()
b.submit()
assert a.wait() and b.wait()
b.submit()
c.submit()
fault("submit_result", -4)
fault("wait_result", -4)
assert failure(a.run) == LOST and failure(b.wait) == LOST
assert [failure(r.wait) for r in (a, b, c, a, b, c)] == [LOST] * 6
assert failure(c.run) == LOST and failure(c.wait) == LOST
assert failure(unused.wait) == (_bridge.VulkanError, "")
a.abandon()
del b, c
assert device.abandoned == 0
device.close()
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which Vulkan calls can be made to fail, unknown to the validation layer, which
    therefore stays out."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.c").write_text(FAULTS)
    library = folder / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "faults.c", "-ldl"], check=True, timeout=60)
    return {**os.environ, "LD_PRELOAD": str(library), "VK_INSTANCE_LAYERS": ""}


def test_a_failed_submission_is_told_again_by_wait(faults: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", LOST_PROGRAM], check=True, env=faults, timeout=60)


@pytest.mark.parametrize(
    ("result", "message"), [(0, ""), (-9, ""), (-3, "drivers give no device"), (-1, "HOST_MEMORY")]
)
def test_only_an_absent_driver_is_no_device(faults: dict[str, str], result: int, message: str) -> None:
    program = f"""if True:
        import ctypes
        from vkconv.backend import _bridge
        ctypes.c_int.in_dll(ctypes.CDLL(None), "enumerate_result").value = {result}
        try:
            assert bool(_bridge.devices()) == ({result} == 0)
        except _bridge.VulkanError as error:
            assert {message!r} and {message!r} in str(error), error
        else:
            assert not {message!r}
    """
    subprocess.run([sys.executable, "-c", program], check=True, env=faults, timeout=60)


@pytest.mark.parametrize("call", ["run", "wait_idle"])
def test_interrupt_ends_a_wait(device: _bridge.Device, spin_spirv: bytes, call: str) -> None:
    work = _long_work(device, spin_spirv, 3.0)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    if call == "wait_idle":
        work.submit()
    start = time.perf_counter()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        work.run() if call == "run" else device.wait_idle()
    assert 0.2 < time.perf_counter() - start < 1.3
    timer.join()
    assert work.wait()


def test_two_threads(device: _bridge.Device, affine_spirv: bytes) -> None:
    """Different recordings of one device run side by side."""
    failures: list[BaseException] = []

    def replay(seed: int) -> None:
        try:
            affine = Affine(device, affine_spirv, 10_007, steps=6)
            for turn in range(20):
                x = _integers(10_007, 1000 * seed + turn)
                np.testing.assert_array_equal(affine(x), affine.expected(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=replay, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert failures == []


def test_one_recording_in_two_threads_is_refused(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = _long_work(device, spin_spirv, 1.0)
    thread = threading.Thread(target=work.run)
    thread.start()
    time.sleep(0.2)
    start = time.perf_counter()
    for use in (work.run, work.submit, work.wait, work.timestamps_ns):
        with pytest.raises(_bridge.VulkanError, match="another thread"):
            use()
    assert time.perf_counter() - start < 0.5, "the waiting thread kept the GIL"
    thread.join()
    work.run()


def test_close_while_another_thread_runs(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = _long_work(device, spin_spirv, 0.6)
    thread = threading.Thread(target=work.run)
    thread.start()
    time.sleep(0.2)
    device.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
