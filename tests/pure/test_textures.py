"""Textures: how arrays lie in them, what is refused and how it is said, who shares an image, what plans count."""

import re

import numpy as np
import pytest

from vkconv import shaders
from vkconv.core import LimitError, RouteError, ShaderError
from vkconv.device import Device, load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.kernel import Form, Kernel, Shader, reads, writes
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.routes import ROUTES
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.textures import Texels
from vkconv.plan.memory import Block
from vkconv.plan.pack import PackFolder
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import forcing, graph_of_shapes
from vkconv.plan.textures import PlacedTextures
from vkconv.program import Dispatch, Program
from vkconv.storage import check_types
from vkconv.texture import PlannedTexture, Texture, fits

LAVAPIPE = load_device("lavapipe")
ADRENO = load_device("adreno-740")
DEPTHWISE = "conv2d:x=1x64x56x56,w=64x1x3x3,p=1,g=64"
BY_NAME = {route.name: route for route in ROUTES}


def with_limits(device, **limits):
    facts = dict(device.facts)
    base = facts["properties"]["VkPhysicalDeviceProperties"]
    known = {**base["limits"], **limits}
    base = {**base, "limits": known}
    return Device({**facts, "properties": {**facts["properties"], "VkPhysicalDeviceProperties": base}})


def filled(texels, array, dims):
    """The texture that the launch of texels makes of an array, by the definition in its push constants."""
    push = texels.dispatch("x", "t", LAVAPIPE).push
    texture, flat = texels.texture, array.ravel()
    got = np.full((max(1, texture.depth), texture.height, texture.width, 4), np.nan)
    for outer in range(texels.outer):
        for lane in range(4 * push["slices"]):
            for row in range(texels.rows):
                for column in range(texture.width):
                    there = lane < texels.lanes and column < texels.columns
                    at = outer * push["outer_stride"] + lane * push["lane_stride"]
                    at += row * push["row_stride"] + column * push["column_stride"]
                    layer = outer * push["slices"] + lane // 4
                    place = (layer, row) if dims == 3 else (0, layer * texels.rows + row)
                    got[(*place, column, lane % 4)] = flat[at] if there else 0
    return got


@pytest.mark.parametrize("dims", [2, 3])
def test_texels_of_an_input_lie_slice_by_slice(dims):
    n, c, h, w = 2, 6, 3, 5
    x = np.arange(n * c * h * w).reshape(n, c, h, w)
    got = filled(Texels(w, h, c, 1, w, h * w, dims, outer=n, outer_stride=c * h * w), x, dims)
    assert not np.isnan(got).any()
    padded = np.zeros((n, 8, h, w))
    padded[:, :c] = x
    want = padded.reshape(n * 2, 4, h, w).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_sizes_of_textures():
    assert str(Texture(4, 5, 6)) == "3-D 4 x 5 x 6" and str(Texture(4, 5)) == "2-D 4 x 5"
    assert Texture(4, 5, 6).f32_bytes == 16 * 120
    assert Texture(4, 5).format(160) == "rgba16f" and Texture(4, 5).format(320) == "rgba32f"
    assert fits(Texture(256, 256, 256), ADRENO) and not fits(Texture(257, 1, 1), ADRENO)
    assert fits(Texture(257, 1, 1), with_limits(ADRENO, maxImageDimension3D=257))


@pytest.mark.parametrize(
    ("text", "route", "said"),
    [
        # Past the depth of three dimensions in two, past the height of both, and weights too wide.
        (
            "conv2d:x=1x8x5000x8,w=4x8x1x1",
            "texture_pointwise",
            "input in 3-D 3-D 8 x 5000 x 2, maxImageDimension3D 256",
        ),
        ("conv2d:x=1x8x5000x8,w=4x8x1x1", "texture_pointwise", "input in 2-D 2-D 8 x 10000, maxImageDimension2D 4096"),
        ("conv2d:x=1x4100x1x1,w=4x4100x1x1", "texture_tile", "weights 2-D 4100 x 1, maxImageDimension2D 4096"),
        ("conv2d:x=1x6x8x8,w=12x1x3x3,g=6", "texture_depthwise", "6 channels, 12 from 1 each"),
        ("conv2d:x=1x6x8x40,w=6x1x1x17,g=6", "texture_depthwise", "17 columns"),
        ("conv2d:x=1x6x8x8,w=6x6x3x3", "texture_pointwise", "3x3"),
        ("conv2d:x=1x6x8x8,w=6x3x3x3,g=2", "texture_tile", "2 groups"),
    ],
)
def test_a_forced_route_that_does_not_fit_says_both_numbers(text, route, said):
    call = parse_call(text, OPS)
    with pytest.raises(RouteError, match=re.escape(said)):
        plan(graph_of_shapes(call), ADRENO, forcing(route))


def test_where_only_two_dimensions_hold_the_input_the_other_is_no_choice():
    call = parse_call("conv2d:x=1x4x300x300,w=4x4x3x3", OPS)
    assert BY_NAME["texture_tile"].legal(call, ADRENO)["dims"] == (2,)
    assert BY_NAME["texture_tile"].legal(call, with_limits(ADRENO, maxImageDimension3D=2048))["dims"] == (3, 2)


def test_a_device_without_the_format_is_told():
    call = parse_call("conv2d:x=1x4x8x8,w=4x4x1x1,dtype=f16", OPS)
    name = "VK_FORMAT_R16G16B16A16_SFLOAT"
    offered = {"VkFormatProperties": {"optimalTilingFeatures": ["VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT"]}}
    lacks = Device({**ADRENO.facts, "formats": {name: offered}})
    with pytest.raises(RouteError, match=f"{name} is not both sampled and stored here"):
        plan(graph_of_shapes(call), lacks, forcing("texture_pointwise"))
    both = ["VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT", "VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT"]
    has = Device({**ADRENO.facts, "formats": {name: {"VkFormatProperties": {"optimalTilingFeatures": both}}}})
    assert plan(graph_of_shapes(call), has, forcing("texture_pointwise")).plan.textures


@pytest.mark.parametrize(("dtype", "texel"), [("f32", "rgba32f"), ("f16", "rgba16f"), ("bf16", "rgba32f")])
def test_texels_of_a_call_are_of_its_type(dtype, texel):
    call = parse_call(f"conv2d:x=1x6x8x8,w=5x6x3x3,p=1,dtype={dtype}", OPS)
    planned = plan(graph_of_shapes(call), ADRENO, forcing("texture_tile")).plan
    assert {made.format for made in planned.textures.values()} == {texel}
    width = 16 if texel == "rgba32f" else 8
    assert {made.nbytes for made in planned.textures.values()} == {width * 8 * 8 * 2, width * 8 * 18}
    assert planned.memory.weights_bytes == width * 8 * 18
    assert planned.memory.activations_bytes >= width * 8 * 8 * 2
    assert planned.memory.lower_bound_bytes <= planned.memory.activations_bytes


def test_no_target_takes_them_unasked_while_nothing_was_timed():
    for text in ("conv2d:x=1x64x56x56,w=64x64x1x1", "conv2d:x=1x64x56x56,w=64x64x3x3,p=1", DEPTHWISE):
        for name in ("adreno-740", "mali-g610-panvk", "h200", "lavapipe"):
            (node,) = plan(graph_of_shapes(parse_call(text, OPS)), load_device(name)).plan.nodes
            verdicts = {v.route.name: v for v in node.choice.verdicts}
            assert not node.route.startswith("texture_")
            assert not any(v.preferred for name, v in verdicts.items() if name.startswith("texture_"))


# ---- the typed form


SAMPLES = Kernel("samples", bindings=(reads("sampler3D x"), reads("sampler2D weight"), writes("ELEM y")))


def test_a_declaration_has_its_kinds_and_makes_glsl():
    shader = Shader(SAMPLES)
    assert shader.interface.kinds == "ssb"
    assert [b.form for b in SAMPLES.bindings[:2]] == [Form.TEXELS] * 2 and SAMPLES.bindings[0].dims == 3
    assert "layout(set = 0, binding = 0) uniform sampler3D x;" in shader.glsl
    stores = Shader(shaders.kernels.TO_TEXTURE)
    assert stores.interface.kinds == "bi"
    assert "layout(set = 0, binding = 1, TEXEL_FORMAT) writeonly restrict uniform image3D texels;" in stores.glsl


def _sampling(x, weight, textures):
    step = Dispatch(Shader(SAMPLES), {"x": x, "weight": weight, "y": "y"}, (1, 1, 1), (8, 1, 1))
    return Program((step,), scratch={name: t.f32_bytes for name, t in textures.items()}, textures=textures)


@pytest.mark.parametrize(
    ("x", "weight", "said"),
    [
        ("a", "plane", "takes 'a' at its binding 'x' for a 3-D texture, and it is a buffer"),
        ("plane", "plane", "takes 'plane' at its binding 'x' for a 3-D texture, and it is a 2-D texture"),
        ("volume", "volume", "takes 'volume' at its binding 'weight' for a 2-D texture, and it is a 3-D texture"),
    ],
)
def test_a_launch_that_takes_another_thing_for_a_texture_is_a_fault(x, weight, said):
    textures = {"plane": Texture(4, 4), "volume": Texture(4, 4, 4)}
    check_types(_sampling("volume", "plane", textures), {})
    with pytest.raises(ShaderError, match=re.escape(said)):
        check_types(_sampling(x, weight, textures), {})


def test_a_launch_that_takes_a_texture_for_a_buffer_is_a_fault():
    textures = {"volume": Texture(4, 4, 4)}
    step = Dispatch(Shader(shaders.kernels.FILL), {"y": "volume"}, (1, 1, 1), (8, 1, 1), {"total": 1, "value": 0})
    with pytest.raises(ShaderError, match="for a buffer, and it is a 3-D texture"):
        check_types(Program((step,), scratch={"volume": 1024}, textures=textures), {})


def test_what_is_left_out_is_bound_to_another_of_its_kind():
    call = parse_call("conv2d:x=1x4x8x8,w=4x4x1x1", OPS)  # no bias: the kernel declares per_channel all the same
    step = BY_NAME["texture_pointwise"].build(call, ADRENO).steps[1]
    assert [bind.buffer for bind in step.binds] == ["input_texels", "weight_texels", "y", "y"]


# ---- who shares an image


def test_textures_of_one_kind_share_an_image_where_they_are_not_alive_together():
    same, other = (PlannedTexture(Texture(4, 4, depth), "rgba32f", 256) for depth in (1, 2))
    blocks = [
        Block("a", 256, 0, 1),
        Block("b", 256, 1, 2),
        Block("c", 256, 2, 3),
        Block("d", 256, 4, 4),
        Block("e", 4, 0, 9),
    ]
    placed = PlacedTextures("texture", blocks, {"a": same, "b": same, "c": same, "d": other})
    where = {name: region.buffer for name, region in placed.regions.items()}
    assert where == {"a": "texture:0", "b": "texture:1", "c": "texture:0", "d": "texture:2"}
    assert placed.nbytes == 768


# ---- limits, packs


def test_a_limit_of_descriptors_is_named():
    call = parse_call("conv2d:x=1x4x8x8,w=4x4x1x1", OPS)
    few = with_limits(ADRENO, maxPerStageDescriptorSampledImages=1)
    with pytest.raises(LimitError, match=r"needs maxPerStageDescriptorSampledImages = 2, .* allows 1"):
        plan(graph_of_shapes(call), few, forcing("texture_pointwise"))


def test_buffers_alone_count_as_storage_buffers():
    """Two textures beside them do not: four buffers, which Vulkan promises, are enough."""
    call = parse_call("conv2d:x=1x4x8x8,w=4x4x1x1,b=4,residual=1x4x8x8", OPS)
    four = with_limits(ADRENO, maxPerStageDescriptorStorageBuffers=4)
    assert plan(graph_of_shapes(call), four, forcing("texture_pointwise")).plan.run


def test_a_pack_says_what_its_textures_are(tmp_path):
    nodes = (Node("first", "conv2d", ("x", "w"), ("y",), {}),)
    weights = {"w": np.ones((4, 4, 1, 1), np.float32)}
    graph = Graph({"x": TensorSpec((1, 4, 8, 8))}, ("y",), nodes, weights, "net")
    planned = plan(graph, ADRENO, Options(routes={"conv2d": "texture_pointwise"}, staging=True))
    folder = PackFolder(tmp_path / "pack")
    name = folder.plan(planned, {"x": np.ones((1, 4, 8, 8), np.float32)}, {}, label="net")
    lines = [line.partition(" # ")[0].split() for line in (tmp_path / "pack" / name).read_text().splitlines()]
    buffers = {line[1]: line for line in lines if line[0] == "buffer"}
    textures = [line for line in lines if line[0] == "texture"]
    assert [line[2:] for line in textures] == [["rgba32f", "8", "8", "1"], ["rgba32f", "4", "1", "0"]]
    assert [buffers[line[1]][2:] for line in textures] == [["device", "1024"], ["device", "64"]]
    kinds = [line[2] for line in lines if line[0] == "bindings"]
    assert sorted(kinds) == ["bi", "bi", "ssbb"]
    (most,) = (line[2] for line in lines if line[:2] == ["needs", "maxPerStageDescriptorStorageBuffers"])
    assert most == "2"
