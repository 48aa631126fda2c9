"""Tensors larger than a storage buffer binding: what launches bind of them."""

import pytest
from graph_kit import made_up_device

from vkconv.core import DType, LimitError, ShaderError
from vkconv.device import load_device
from vkconv.kernel import Shader
from vkconv.ops import OPS
from vkconv.ops.conv.wgrad.images import at_a_time
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.bindings import image_step
from vkconv.ops.core.calls import parse_call
from vkconv.plan.commands import Launch
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import call_graph
from vkconv.program import Dispatch, Program, Range
from vkconv.shaders.kernels import STRIDED_COPY
from vkconv.storage import stored

# im2col takes up to 16 MiB of scratch.
RANGE = 17 << 20
SMALL = made_up_device("mali-g715", maxStorageBufferRange=RANGE, minStorageBufferOffsetAlignment=64)
PUBLISHED = (
    "conv2d_backward_data:dy=12x2016x30x46,w=2016x896x1x1,x_shape=12x896x59x91,s=2",
    "conv2d_backward_data:dy=32x2048x25x25,w=2048x1024x1x1,x_shape=32x1024x50x50,s=2",
    "conv2d_backward_data:dy=32x1024x50x50,w=1024x512x1x1,x_shape=32x512x100x100,s=2",
    "conv2d_backward_data:dy=10x896x59x91,w=896x448x1x1,x_shape=10x448x118x182,s=2",
    "conv2d_backward_weight:x=16x16x225x225,dy=16x64x225x225,w_shape=64x16x3x3,p=1",
)


def launches(text, device, **options):
    call = parse_call(text, OPS)
    return call, [
        c for c in plan(call_graph(call), device, Options(passes=False, **options)).plan.run if isinstance(c, Launch)
    ]


def word_of(launch, name):
    """A push constant of one word."""
    offset = 0
    for field in launch.shader.interface.push:
        if field.name == name:
            return launch.push_words[offset]
        offset += field.count
    raise KeyError(name)


def bound(call, device, launched):
    """By the buffers of the plan that hold a tensor, the distinct byte ranges that launches bind, in order."""
    planned = plan(call_graph(call), device, Options(passes=False)).plan
    found = {}
    for name in (*call.specs,):
        _, home = planned.values[name]
        regions = {r for c in launched for r, _ in c.binds if r.buffer == home.buffer}
        inside = [r for r in regions if home.offset <= r.offset < home.offset + home.nbytes]
        found[name] = sorted((r.offset - home.offset, r.nbytes) for r in inside)
    return found


@pytest.mark.parametrize("name", ["mali-g715", "adreno-750", "lavapipe"])
@pytest.mark.parametrize("text", PUBLISHED)
def test_published_calls_of_iree_fit_the_bindings_of_phones(text, name):
    """dx of 10x448x118x182 cannot be cut where a binding may begin at each 256 bytes, and fits in 16 bits."""
    device = load_device(name)
    _, made = launches(text, device)
    assert max(region.nbytes for c in made for region, _ in c.binds) <= device.limit("maxStorageBufferRange")


BEGIN = "assumed by its device file: bindings begin at multiples of minStorageBufferOffsetAlignment = {} bytes"
UNSAID = "what Vulkan 1.1 promises, since its device file does not say"
OF_224 = "conv2d_backward_data:dy=4x224x235x363,w=224x32x1x1,x_shape=470x725,s=2"
TINY_DW = "conv2d_backward_weight:x=7x4x940x1450,dy=7x3x940x1450,w_shape=3x4x1x1"
# Whole images begin where bindings may; it is the dilated dy that none holds.
IN_SCRATCH = "conv2d_backward_data:dy=1x512x200x200,w=512x8x3x3,x_shape=400x400,s=2,p=1"
LARGE_DX = "conv2d_backward_data:dy=32x256x100x100,w=256x8x3x3,x_shape=200x200,s=2,p=1,g=32"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (OF_224, "mali-g715", BEGIN.format(256)),
        (IN_SCRATCH, "mali-g715", "may allow more\\); use smaller shapes"),
        (LARGE_DX, "mali-g715", UNSAID),
        (LARGE_DX, "adreno-750", UNSAID),
    ],
)
def test_what_a_device_file_assumes_is_said_where_a_published_call_fails_by_it(text, name, said):
    routes = {"conv2d_backward_data": "fill_scatter_conv"} if text == IN_SCRATCH else {}
    with pytest.raises(LimitError, match=said):
        launches(text, load_device(name), routes=routes)


OF_2048 = "conv2d_backward_data:dy=32x2048x25x25,w=2048x1024x1x1,x_shape=32x1024x50x50,s=2,dtype=f16"


def test_a_forced_route_of_too_large_tensors_says_how_to_take_it_for_some_images():
    device, routes = load_device("adreno-750"), {"conv2d_backward_data": "swap_1x1"}
    said = "--route conv2d_backward_data=by_images --route conv2d_backward_data/some=swap_1x1; use smaller shapes"
    with pytest.raises(LimitError, match=said) as raised:
        launches(OF_2048, device, routes=routes)
    assert "assumed" not in str(raised.value)
    routes = {"conv2d_backward_data": "by_images", "conv2d_backward_data/some": "swap_1x1"}
    _, made = launches(OF_2048, device, routes=routes)
    assert max(region.nbytes for c in made for region, _ in c.binds) <= device.limit("maxStorageBufferRange")


@pytest.mark.parametrize("name", ["mali-g715", "mali-g78", "immortalis-g720", "xclipse-940", "powervr-bxm-8-256"])
def test_images_that_begin_where_no_binding_may_are_copied(name):
    """dy fits a binding whole, x does not: its images are cut where one may begin, and those of dy are copied."""
    device = load_device(name)
    call, made = launches(TINY_DW, device)
    step, most = device.limit("minStorageBufferOffsetAlignment"), device.limit("maxStorageBufferRange")
    assert all(region.offset % step == 0 and region.nbytes <= most for c in made for region, _ in c.binds)
    copies = [c for c in made if c.shader.key.startswith("strided_copy")]
    count, image = at_a_time(WeightGradient.of(call), device), 4 * 3 * 940 * 1450
    assert len(copies) == 1 and copies[0].binds[1][0].nbytes >= (7 - count) * image
    source, home = copies[0].binds[0][0], plan(call_graph(call), device, Options(passes=False)).plan.values["dy"][1]
    assert source.offset - home.offset + 4 * word_of(copies[0], "x_base") * (4 if vec4_of(copies[0]) else 1) == (
        count * image
    )


def vec4_of(launch):
    """Whether a copy goes by vec4."""
    names = [field.name for field in launch.shader.interface.constants]
    return launch.spec_words[3 + names.index("VEC4")]


@pytest.mark.parametrize("name", ["adreno-740", "adreno-750", "adreno-830"])
def test_adreno_takes_published_calls_whose_images_begin_at_each_64_bytes(name):
    device = load_device(name)
    for text in (OF_224, TINY_DW):
        made = launches(text, device)[1]
        assert {region.offset % 64 for c in made for region, _ in c.binds} == {0}


@pytest.mark.parametrize(
    "text",
    [
        OF_224,
        "conv2d_backward_data:dy=5x32x470x725,w=32x3x3x3,x_shape=940x1450,s=2,p=1",
        TINY_DW,
    ],
)
def test_where_bindings_begin_at_each_32_bytes_these_calls_are_taken(text):
    device = made_up_device("mali-g715", maxStorageBufferRange=1 << 27, minStorageBufferOffsetAlignment=32)
    _, made = launches(text, device)
    assert max(region.nbytes for c in made for region, _ in c.binds) <= 1 << 27


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(
    "text",
    [
        "conv2d:x=6x18x200x200,w=26x18x3x3,b=26,residual=6x26x200x200,p=1,act=relu",
        "conv2d:x=8x64x100x100,w=64x1x3x3,p=1,g=64",
        "conv_transpose2d:x=6x8x100x100,w=8x32x2x2,s=2",
        "conv2d_backward_data:dy=6x48x100x100,w=48x32x1x1,x_shape=200x200,s=2",
        "conv2d_backward_data:dy=10x64x100x100,w=64x64x3x3,x_shape=100x100,p=1",
    ],
)
def test_images_are_cut_where_a_binding_may_begin_and_none_is_left_out(text, dtype):
    call, made = launches(f"{text},dtype={dtype}", SMALL)
    for name, spec in call.specs.items():
        ranges = bound(call, SMALL, made)[name]
        if spec.dims[0] == call.outputs[next(iter(call.outputs))].dims[0]:
            ends = [offset + nbytes for offset, nbytes in ranges]
            assert [0, *ends[:-1]] == [offset for offset, _ in ranges] and ends[-1] == spec.nbytes, name
            assert all(offset % 64 == 0 for offset, _ in ranges)
    assert max(region.nbytes for c in made for region, _ in c.binds) <= RANGE


@pytest.mark.parametrize(
    ("route", "dtype"),
    [*((r, t) for r in ("split_n", "split_multi", "two_stage") for t in ("f32", "bf16")), ("one_stage", "f32")],
)
def test_sums_over_images_bind_some_of_them_and_number_their_slices_in_a_row(route, dtype):
    text = f"conv2d_backward_weight:x=7x32x200x200,dy=7x40x200x200,w_shape=40x32x3x3,p=1,dtype={dtype}"
    call = parse_call(text, OPS)
    planned = plan(call_graph(call), SMALL, Options(routes={call.op: route}, passes=False)).plan
    made = [c for c in planned.run if isinstance(c, Launch) and "combine" not in c.shader.key]
    starts = [c.binds[1][0].offset - planned.values["dy"][1].offset for c in made]
    of_launch = 2 * 40 * 200 * 200 * call.specs["dy"].dtype.nbytes
    assert starts == [0, of_launch, 2 * of_launch, 3 * of_launch]
    if route != "one_stage":
        firsts = [word_of(c, "first_slice") for c in made]
        assert firsts[0] == 0 and firsts == sorted({*firsts}) and firsts[-1] < planned.nodes[0].params["split_k"] + 4
    assert all(r.nbytes <= RANGE for c in planned.run if isinstance(c, Launch) for r, _ in c.binds)


def test_no_image_that_a_binding_cannot_hold_is_cut():
    device = made_up_device("mali-g715", maxStorageBufferRange=1000)
    gradient = "conv2d_backward_weight:x={0}x1x{1},dy={0}x1x{1},w_shape=1x1x1x1"
    for images, side, wanted in ((8, "1x256", 8), (8, "1x25", 8), (100, "3x3", 13), (100, "8x8", 2)):
        p = WeightGradient.of(parse_call(gradient.format(images, side), OPS))
        assert at_a_time(p, device) == wanted
    # 36 bytes end where a binding may begin after 64 images: at multiples of 256.
    assert image_step([36], device) == 64 and image_step([36], device, halved=True) == 128


def test_ranges_are_counted_in_the_elements_that_a_buffer_holds():
    program = Program((copy_of({"x": Range(128, 64), "y": Range(128, 64)}),))
    (half,) = stored(program, {"x": DType.F16, "y": DType.F32}, DType.F16, SMALL).steps
    assert half.ranges == {"x": Range(64, 32), "y": Range(128, 64)}
    within = program.within({"x": Range(1024, 256)}).steps[0].ranges
    assert within == {"x": Range(1024 + 128, 64), "y": Range(128, 64)}
    with pytest.raises(ShaderError, match="has ranges of"):
        copy_of({"z": Range(0, 4)})


def copy_of(ranges):
    push = {f.name: (0,) * f.count if f.count > 1 else 0 for f in STRIDED_COPY.push}
    return Dispatch(Shader(STRIDED_COPY), {"x": "x", "y": "y"}, (1, 1, 1), (64, 1, 1), push, ranges=ranges)
