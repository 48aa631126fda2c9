"""Images of the bridge: stored by one dispatch, sampled by the next, cleared, replayed; and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from bridge_kit import compile_source

from vkconv.backend import _bridge

pytestmark = pytest.mark.gpu

LOCAL = "#version 450\nlayout(local_size_x = 8) in;\n"
SIZES = {2: (5, 3, 0), 3: (5, 3, 7)}
PLACE = {
    2: "ivec2 place = ivec2(i % 5, i / 5);",
    3: "ivec3 place = ivec3(i % 5, i / 5 % 3, i / 15);",
}


def texels(dims: int) -> int:
    width, height, depth = SIZES[dims]
    return width * height * max(1, depth)


def store(dims: int, texel_format: str) -> str:
    """Texels of a buffer into an image."""
    return (
        f"{LOCAL}layout(set = 0, binding = 0) readonly buffer Source {{ vec4 source[]; }};\n"
        f"layout(set = 0, binding = 1, {texel_format}) writeonly uniform image{dims}D target;\n"
        f"void main() {{ int i = int(gl_GlobalInvocationID.x); if (i >= {texels(dims)}) return;\n"
        f"{PLACE[dims]} imageStore(target, place, source[i]); }}"
    )


def sample(dims: int) -> str:
    """Texels of an image into a buffer."""
    return (
        f"{LOCAL}layout(set = 0, binding = 0) uniform sampler{dims}D source;\n"
        "layout(set = 0, binding = 1) writeonly buffer Target { vec4 target[]; };\n"
        f"void main() {{ int i = int(gl_GlobalInvocationID.x); if (i >= {texels(dims)}) return;\n"
        f"{PLACE[dims]} target[i] = texelFetch(source, place, 0); }}"
    )


class ThereAndBack:
    """Texels into an image by one dispatch and back by another, in one recording."""

    def __init__(self, device: _bridge.Device, dims: int, texel_format: str, folder: Path) -> None:
        count, nbytes = texels(dims), 16 * texels(dims)
        self.upload, self.download = device.buffer(nbytes, "upload"), device.buffer(nbytes, "download")
        self.image = device.image(*SIZES[dims], texel_format)
        stores = device.pipeline(compile_source(store(dims, texel_format), folder, "store"), "bi", 0)
        samples = device.pipeline(compile_source(sample(dims), folder, "sample"), "sb", 0)
        groups = ((count + 7) // 8, 1, 1)
        r = self.recording = device.recording()
        r.barrier(["compute", "transfer"], ["compute", "transfer"])
        r.dispatch(stores, [(self.upload, 0, nbytes), self.image], b"", groups)
        r.barrier(["compute"], ["compute"])
        r.dispatch(samples, [self.image, (self.download, 0, nbytes)], b"", groups)
        r.barrier(["compute"], ["host"])
        r.end()
        self.samples, self.groups = samples, groups

    def __call__(self, x: np.ndarray) -> np.ndarray:
        np.frombuffer(self.upload.view, np.float32)[:] = x.ravel()
        np.frombuffer(self.download.view, np.float32)[:] = np.nan
        self.recording.run()
        return np.frombuffer(self.download.view, np.float32).copy()


@pytest.mark.parametrize("texel_format", ["rgba32f", "rgba16f"])
@pytest.mark.parametrize("dims", [2, 3])
def test_what_one_dispatch_stores_the_next_samples(device, dims, texel_format, tmp_path):
    there = ThereAndBack(device, dims, texel_format, tmp_path)
    assert there.image.extent == SIZES[dims] or list(there.image.extent) == list(SIZES[dims])
    assert there.image.format == texel_format
    assert there.image.nbytes >= texels(dims) * (16 if texel_format == "rgba32f" else 8)
    for seed in range(3):  # replays: the layouts are those that a run leaves
        x = np.random.default_rng(seed).integers(-99, 99, 4 * texels(dims)).astype(np.float32)
        np.testing.assert_array_equal(there(x), x)


def test_texels_of_16_bits_are_rounded(device, tmp_path):
    x = np.full(4 * texels(2), 1.0 + 2.0**-12, np.float32)
    np.testing.assert_array_equal(ThereAndBack(device, 2, "rgba16f", tmp_path)(x), np.ones_like(x))


def test_a_later_recording_samples_what_an_earlier_one_stored_or_cleared(device, tmp_path):
    there = ThereAndBack(device, 3, "rgba32f", tmp_path)
    x = np.arange(4 * texels(3), dtype=np.float32)
    np.testing.assert_array_equal(there(x), x)
    later = device.recording()
    later.dispatch(there.samples, [there.image, (there.download, 0, there.download.nbytes)], b"", there.groups)
    later.barrier(["compute"], ["host"])
    later.end()
    got = np.frombuffer(there.download.view, np.float32)
    got[:] = np.nan
    later.run()
    np.testing.assert_array_equal(got, x)
    clears = device.recording()
    clears.clear(there.image, float("nan"))
    clears.end()
    clears.run()
    later.run()
    assert np.isnan(got).all()


def test_an_image_over_a_limit_names_both_numbers(device):
    limits = device.facts["properties"]["VkPhysicalDeviceProperties"]["limits"]
    wide = limits["maxImageDimension2D"]
    with pytest.raises(ValueError, match=rf"{wide * 4} x 1 x 1 rgba32f is over \d+ on axis 0"):
        device.image(wide * 4, 1, 0, "rgba32f")
    deep = limits["maxImageDimension3D"]
    with pytest.raises(ValueError, match=rf"1 x 1 x {deep * 4} rgba16f is over \d+ on axis 2"):
        device.image(1, 1, deep * 4, "rgba16f")
    with pytest.raises(ValueError, match="0 x 4 has no texel"):
        device.image(0, 4, 0, "rgba32f")
    with pytest.raises(ValueError, match="must be 'rgba32f' or 'rgba16f', not 'r8'"):
        device.image(4, 4, 0, "r8")


def test_facts_of_formats_say_what_images_need(device):
    for name in ("VK_FORMAT_R32G32B32A32_SFLOAT", "VK_FORMAT_R16G16B16A16_SFLOAT"):
        features = device.facts["formats"][name]["VkFormatProperties"]["optimalTilingFeatures"]
        assert {"VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT", "VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT"} <= set(features)


def test_bindings_of_another_kind_are_refused(device, tmp_path):
    there = ThereAndBack(device, 2, "rgba32f", tmp_path)
    r, slice_ = device.recording(), (there.download, 0, there.download.nbytes)
    with pytest.raises(ValueError, match="binding 0 of the pipeline is an image, given a buffer"):
        r.dispatch(there.samples, [slice_, slice_], b"", (1, 1, 1))
    with pytest.raises(ValueError, match="binding 1 of the pipeline is a buffer, given an image"):
        r.dispatch(there.samples, [there.image, there.image], b"", (1, 1, 1))
    with pytest.raises(ValueError, match="2 bindings"):
        r.dispatch(there.samples, [there.image], b"", (1, 1, 1))
    spirv = compile_source(sample(2), tmp_path, "sample")
    with pytest.raises(ValueError, match="a binding is b, s or i, not 'x'"):
        device.pipeline(spirv, "sx", 0)
    limits = device.facts["properties"]["VkPhysicalDeviceProperties"]["limits"]
    most = limits["maxPerStageDescriptorStorageImages"]
    if most < 1 << 20:
        with pytest.raises(ValueError, match=f"{most + 1} bindings are over maxPerStageDescriptorStorageImages {most}"):
            device.pipeline(spirv, "i" * (most + 1), 0)


def test_an_image_is_not_sampled_and_stored_at_once(device, tmp_path):
    source = (
        store(2, "rgba32f")
        .replace("readonly buffer Source { vec4 source[]; }", "uniform sampler2D source")
        .replace("source[i]", "texelFetch(source, place, 0)")
    )
    pipeline = device.pipeline(compile_source(source, tmp_path, "both"), "si", 0)
    image = device.image(*SIZES[2], "rgba32f")
    with pytest.raises(ValueError, match="sampled and stored at once"):
        device.recording().dispatch(pipeline, [image, image], b"", (1, 1, 1))


def test_images_of_a_closed_device_are_refused(tmp_path):
    with _bridge.Device(0) as closed:
        there = ThereAndBack(closed, 2, "rgba32f", tmp_path)
    with _bridge.Device(0) as device:
        pipeline = device.pipeline(compile_source(sample(2), tmp_path, "sample"), "sb", 0)
        target = device.buffer(16 * texels(2), "device")
        with pytest.raises(_bridge.VulkanError, match="device is closed"):
            device.recording().dispatch(pipeline, [there.image, (target, 0, target.nbytes)], b"", (1, 1, 1))
