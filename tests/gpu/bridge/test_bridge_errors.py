"""What the bridge refuses, and how it says so."""

import re
from pathlib import Path

import pytest

from vkconv.backend import _bridge

pytestmark = pytest.mark.gpu


# --- errors ---------------------------------------------------------------------------------------


def test_no_standard_streams() -> None:
    """A stream crashes in a process with two copies of libstdc++ (native/errors.hpp), on error paths of all places."""
    stream = re.compile(
        r"<(sstream|iostream|ostream|istream|fstream|iomanip|locale|codecvt|regex|format|fmt/\S+)>"
        r"|\b(std::(\w*stream|locale|cout|cerr|clog|format)|fmt::)"
    )
    sources = [p for p in (Path(__file__).parents[3] / "native").iterdir() if p.suffix in (".cpp", ".hpp")]
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
