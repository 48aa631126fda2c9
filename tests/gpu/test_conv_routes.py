"""Every route of conv2d and conv_transpose2d against the float64 reference: drawn calls, upstream's cases, scratch in
parts, values that are no numbers."""

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from route_kit import allowed, drawn_agree, of_f32
from route_kit import draw as inputs_of

import vkconv
from vkconv.backend.runtime import select_device
from vkconv.check import check_call, compare, expect, run_call
from vkconv.core import GraphError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.winograd import WinogradTiles

pytestmark = pytest.mark.gpu
ROUTES = [(op, route.name) for op in ("conv2d", "conv_transpose2d") for route in of_f32(op)]
# Exact on small integers.
EXACT_ACTIVATIONS = ("none", "relu", "relu6", "clip,act_a=-2.5,act_b=7", "leaky_relu,act_a=0.25", *["prelu"] * 3)
EXACT = {text.partition(",")[0] for text in EXACT_ACTIVATIONS}
ACTIVATIONS = (*EXACT_ACTIVATIONS, "hard_swish", "hard_sigmoid,act_a=0.2,act_b=0.5", "sigmoid", "silu", "gelu", "tanh")


@st.composite
def convolutions(draw, op, route):
    """A legal call that the route takes by its form: tails on every side, kernels larger than the input, padding on one
    side, strides and dilations with and without common factors."""
    size = st.integers(1, 5)
    strided = route == "space_to_depth"
    whole = route == "fully_connected"
    plain = strided or whole or route in ("winograd", "im2col_gemm")
    alone = plain or route in ("direct_tile", "texture_pointwise", "texture_tile")
    groups = 1 if alone else draw(st.integers(2 if route == "grouped" else 1, 3))
    in_group = 1 if "depthwise" in route else draw(st.sampled_from((1, 2, 3, 5, 8, 19)))
    out_group = draw(st.sampled_from((1, 2, 3, 4, 7, 17)))
    pointwise = route in ("pointwise", "pointwise_vec4", "texture_pointwise")
    square = draw(st.sampled_from(((3, 3), (5, 5))))
    kernel = square if route == "winograd" else (1, 1) if pointwise else draw(st.tuples(size, size))
    in_group = max(in_group, 8) if route == "winograd" and kernel == (5, 5) else in_group
    kernel = (kernel[0] + 1, kernel[1]) if strided and kernel == (1, 1) else kernel
    stride = (1, 1) if route in ("winograd", "pointwise_vec4") else draw(st.tuples(size, size))
    stride = (2, 1) if strided and stride == (1, 1) else stride
    dilation = (1, 1) if plain else draw(st.tuples(size, size))
    padding = (0, 0, 0, 0) if pointwise or whole else draw(st.tuples(*[st.integers(0, 4)] * 4))
    extent = draw(st.tuples(st.integers(1, 13), st.sampled_from((1, 2, 5, 8, 17, 33))))
    extent = (extent[0], 4 * extent[1]) if route == "pointwise_vec4" else kernel if whole else extent
    c_in, c_out = in_group * groups, out_group * groups
    act = draw(st.sampled_from(ACTIVATIONS))
    w = (c_in, out_group, *kernel) if op == "conv_transpose2d" else (c_out, in_group, *kernel)
    fields = {
        "x": (draw(st.integers(1, 3)), c_in, *extent),
        "w": w,
        **({"b": (c_out,)} if draw(st.booleans()) else {}),
        **({"slope": (c_out,)} if act == "prelu" else {}),
        "s": stride,
        "p": padding,
        "d": dilation,
    }
    if op == "conv_transpose2d":
        fields["op"] = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    text = f"{op}:" + ",".join(f"{name}={'x'.join(map(str, values))}" for name, values in fields.items())
    try:
        return parse_call(f"{text},g={groups},act={act}", OPS)
    except GraphError as error:
        assert "the output would be empty" in str(error)
        assume(False)


@pytest.mark.parametrize(("op", "route"), ROUTES)
def test_drawn_calls_agree_with_the_reference(op, route, device):
    def exact(call):
        return route != "winograd" and call["act"] in EXACT

    drawn_agree(convolutions(op, route), route, device, examples=16, least=10, exact=exact)


# executorch backends/vulkan/test: custom_ops/test_conv2d.cpp and op_tests/cases.py; the 64x256x256 one at a sixteenth
# of its area.
UPSTREAM = (
    "conv2d:x=1x8x8x8,w=8x8x3x3,p=1",
    "conv2d:x=1x8x8x8,w=8x8x3x3,b=8,p=1",
    "conv2d:x=1x16x16x16,w=16x16x3x3,b=16,p=1",
    "conv2d:x=1x8x16x16,w=16x8x3x3,b=16,p=1,s=2",
    "conv2d:x=1x16x8x8,w=8x16x3x3,b=8,p=1",
    "conv2d:x=1x11x8x8,w=13x11x3x3,b=13,p=1",
    "conv2d:x=1x3x16x16,w=8x3x3x3,b=8,p=1,s=2",
    "conv2d:x=1x11x12x12,w=13x11x3x3,b=13,p=1",
    "conv2d:x=1x16x48x48,w=16x16x3x3,b=16,p=1",
    "conv2d:x=1x16x8x8,w=64x16x3x3,b=64,p=1,act=relu",
    "conv2d:x=1x16x8x8,w=128x16x3x3,b=128,p=1,act=relu",
    "conv2d:x=1x64x64x64,w=64x32x3x3,b=64,p=1,g=2",
    "conv2d:x=1x16x3x3,w=16x8x3x3,b=16,p=1,g=2",
    "conv2d:x=1x6x40x50,w=8x6x3x3,b=8,s=1x2,p=2x3",
    "conv2d:x=1x6x40x50,w=1x6x3x3,b=1,d=2",
    "conv2d:x=1x5x9x10,w=3x5x1x1,b=3",
    "conv2d:x=1x5x9x10,w=4x5x1x1,p=1,s=2",
    "conv2d:x=1x8x12x11,w=8x1x3x3,b=8,g=8,p=1",
    "conv2d:x=1x8x12x11,w=8x1x5x5,b=8,g=8,p=2,s=2",
    "conv2d:x=1x8x9x9,w=8x1x3x3,g=8,d=2",
    "conv_transpose2d:x=1x6x40x50,w=6x8x3x3,b=8,s=1x2,p=2x3,op=0x1",
)


@pytest.mark.parametrize("text", UPSTREAM)
def test_upstreams_cases_by_every_route(text, device):
    """Integers, so that all routes but winograd are to agree to the bit."""
    call = parse_call(text, OPS)
    arrays = inputs_of(call, "integers")
    (want,) = expect(call, arrays).outputs
    for route in allowed(call, device):
        ((y,),) = run_call(call, arrays, device=device, route=route).outputs
        assert compare(call, [y], expect(call, arrays)).ok
        assert route == "winograd" or np.array_equal(y, want), route


@pytest.mark.parametrize("tile", ["shared_32x32x16", "register_8x8"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("channels", [24, 23])
def test_im2col_in_slices_of_its_sums_agrees(channels, dtype, tile, device):
    """Of several images, with all that follows the sums; slices that are added up start as NaN bits."""
    text = f"conv2d:x=3x{channels}x7x5,w=37x{channels}x3x3,b=37,residual=3x37x7x5,p=1,act=relu,dtype={dtype}"
    call = parse_call(text, OPS)
    arrays = inputs_of(call, "normals")
    for slices in (1, 2, 3, 4) if channels == 23 else (1, 2, 6):
        params = {"tile": tile, "split_k": slices}
        ran = run_call(call, arrays, device=device, route="im2col_gemm", params=params, replays=2)
        (first,), (again,) = ran.outputs
        checked = compare(call, [first], expect(call, arrays))
        assert checked.ok and params.items() <= ran.params.items(), checked.problem
        assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize(
    ("text", "route", "dispatches"),
    [
        ("conv2d:x=1x64x128x128,w=4x64x3x3,b=4,p=1,act=relu", "im2col_gemm", 6),  # rows
        ("conv2d:x=5x512x20x20,w=3x512x3x3,p=1", "im2col_gemm", 6),  # images, two at a time
        ("conv2d:x=2x512x3x1002,w=3x512x3x3,b=3", "im2col_gemm", 8),  # parts of a row
        ("conv_transpose2d:x=2x8x300x200,w=8x16x3x3,b=16,s=2,act=relu", "transposed_gemm", 12),
        ("conv_transpose2d:x=5x4x60x60,w=4x32x4x4,s=2,p=1", "transposed_gemm", 6),
        ("conv_transpose2d:x=1x8x300x200,w=8x8x3x3,b=16,s=1x2,d=3x1,p=4x0,g=2", "transposed_gemm", 6),
    ],
)
def test_scratch_in_parts_gives_the_same(text, route, dispatches, device):
    """The seams of the parts included; scratch that is used again and again starts as NaN bits."""
    call = parse_call(text, OPS)
    (row,) = [r for r in OPS[call.op].routes if r.name == route]
    assert len(row.build(call, select_device(device)[1]).steps) == dispatches
    arrays = inputs_of(call, "integers")
    ran = run_call(call, arrays, device=device, route=route, replays=2)
    (first,), (again,) = ran.outputs
    np.testing.assert_array_equal(first, expect(call, arrays).outputs[0])
    assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize(
    "text",
    [
        "conv2d:x=3x17x11x13,w=9x17x5x5,b=9,residual=3x9x11x13,p=2,act=relu",
        "conv2d:x=2x16x5x6,w=3x16x5x5",  # outputs of 1x2
        "conv2d:x=1x37x1x3,w=6x37x5x5,b=6,p=2x2x4x4,act=silu",
        "conv2d:x=1x23x8x19,w=70x23x5x5,p=4x0x1x3",
        "conv2d:x=2x18x9x14,w=5x18x5x5,b=5,p=2,act=relu,dtype=f16",
        "conv2d_backward_data:dy=2x19x9x12,w=19x7x5x5,x_shape=9x12,p=2",
        "conv2d_backward_data:dy=1x32x6x3,w=32x5x5x5,x_shape=8x5,p=1",
    ],
)
@pytest.mark.parametrize("step", [0, 4])
def test_winograd_of_5x5_by_tiles_of_each_size(text, outputs, step, device, monkeypatch):
    """In one pass, and in passes of four tiles, whose scratch starts as NaN bits."""
    if step:
        monkeypatch.setattr(WinogradTiles, "chunk", lambda tiles, channels, mib: step)
    call = parse_call(text, OPS)
    route, name = ("winograd", "outputs") if call.op == "conv2d" else ("flipped_winograd", "conv2d/outputs")
    arrays = inputs_of(call, "normals")
    ran, checked = check_call(call, arrays, device=device, route=route, params={name: outputs})
    assert checked.ok and ran.params[name] == outputs, checked.problem


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    "text",
    [
        "x=3x7x5x9,w=7x1x1x1,b=7,g=7,act=relu",
        "x=3x7x5x9,w=14x1x1x1,b=14,g=7,residual=3x14x5x9,act=silu",
        "x=2x8x6x6,w=8x1x1x1,g=8,residual=2x8x6x6",
        "x=2x8x13x13,w=8x1x1x1,g=8,s=2",
        "x=2x8x13x13,w=8x1x1x1,g=8,p=1",
    ],
)
def test_1x1_depthwise_by_rows_that_are_planes(text, dtype, device):
    call = parse_call(f"conv2d:{text},dtype={dtype}", OPS)
    arrays = inputs_of(call, "normals")
    _, checked = check_call(call, arrays, device=device, route="subgroup_depthwise")
    assert checked.ok, checked.problem
    again = run_call(call, arrays, device=device, route="subgroup_depthwise", replays=2)
    assert len({outputs[0].tobytes() for outputs in again.outputs}) == 1


def test_one_session_takes_sizes_in_turn_by_im2col(device):
    """Upstream's sizes of one model, with one to three parts of scratch."""
    w = np.random.default_rng(1).integers(-3, 4, (2, 64, 3, 3)).astype(np.float32)
    node = Node("c", "conv2d", ("x", "w"), ("y",), {"padding": (1, 1, 1, 1)})
    graph = Graph({"x": TensorSpec((1, 64, "h", "w"))}, ("y",), (node,), {"w": w}, "resized")
    with vkconv.load(graph, device, routes={"conv2d": "im2col_gemm"}) as session:
        for side, dispatches in ((64, 2), (56, 2), (112, 4), (128, 6), (64, 2)):
            call = parse_call(f"conv2d:x=1x64x{side}x{side},w=2x64x3x3,p=1", OPS)
            x = inputs_of(call, "integers", seed=side)["x"]
            y = session.run({"x": x})["y"]
            assert session.plan.nodes[0].dispatches == dispatches
            np.testing.assert_array_equal(y, expect(call, {"x": x, "w": w}).outputs[0])


@pytest.mark.parametrize(
    ("text", "params", "rows"),
    [
        ("conv2d:x=2x13x48x50,w=192x13x1x1,b=192", {}, 4),
        ("conv2d:x=1x9x52x52,w=140x9x1x1,act=relu", {"channels": 32, "columns": 16}, 1),
        ("conv2d:x=1x7x40x41,w=120x7x3x3,p=1x0x1x2", {"channels": 4, "columns": 8}, 4),
        ("conv2d:x=2x10x33x40,w=40x5x5x3,g=2,s=1x2,p=2,d=1x2", {"channels": 12, "columns": 4}, 2),
        ("conv2d:x=1x3x90x90,w=32x3x3x3,s=2,p=1", {}, 1),
        ("conv_reduce:x=2x13x48x50,w=192x13x1x1,b=192,op=mean", {}, 4),
    ],
)
def test_several_rows_of_taps_in_an_iteration(text, params, rows, device):
    """Rows of taps of all channels that are no multiple of four, by whole numbers: exact, but for the mean."""
    call = parse_call(text, OPS)
    route = "fused_lanes" if call.op == "conv_reduce" else "subgroup_tile"
    program = next(r for r in OPS[call.op].routes if r.name == route).build(call, select_device(device)[1], params)
    assert next(step for step in program.steps if "CO" in step.constants).constants["ROWS"] == rows
    arrays = inputs_of(call, "integers")
    arrays["x"][0, :, 3, 5] = np.inf
    ran, checked = check_call(call, arrays, device=device, route=route, params=params)
    assert ran.route == route and checked.ok, checked.problem
    if call.op == "conv2d":
        np.testing.assert_array_equal(ran.outputs[0][0], expect(call, arrays).outputs[0])


@pytest.mark.parametrize("staged", [0, 1])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("conv2d:x=3x37x7x7,w=37x1x3x3,b=37,g=37,p=1,act=relu", 28),
        ("conv2d:x=2x5x33x31,w=5x1x5x5,g=5,s=2,p=2", 9),
        ("conv2d:x=1x3x1x1,w=3x1x1x1,g=3", 4),
        ("conv2d:x=2x3x19x22,w=3x1x3x3,b=3,g=3,p=2,d=2", 5),
    ],
)
def test_ranges_of_planes_end_within_vectors(text, lines, dtype, staged, device):
    """Whole planes and bands whose elements are no whole vectors, and a tensor of fewer elements than one."""
    call = parse_call(f"{text},dtype={dtype}", OPS)
    params = {"lines": lines, "staged": staged}
    ran, checked = check_call(call, inputs_of(call, "integers"), device=device, route="depthwise_planes", params=params)
    assert ran.route == "depthwise_planes" and checked.ok, checked.problem


SPECIAL = {
    "depthwise": "conv2d:x=1x6x9x10,w=6x1x3x3,b=6,g=6,p=1,act={}",
    "depthwise_planes": "conv2d:x=1x6x9x10,w=6x1x3x3,b=6,g=6,p=1,act={}",
    "subgroup_depthwise": "conv2d:x=1x6x9x10,w=6x1x3x3,b=6,g=6,p=1,act={}",
    "grouped": "conv2d:x=1x6x9x10,w=4x3x3x3,b=4,g=2,p=1,act={}",
    "texture_depthwise": "conv2d:x=1x6x9x10,w=6x1x3x3,b=6,g=6,p=1,act={}",
    "texture_pointwise": "conv2d:x=1x6x9x10,w=5x6x1x1,b=5,act={}",
    "pointwise": "conv2d:x=1x6x9x10,w=5x6x1x1,b=5,act={}",
    "pointwise_vec4": "conv2d:x=1x6x8x10,w=5x6x1x1,b=5,act={}",
}


# winograd mixes the inputs of a tile before it multiplies: one that is no number reaches all outputs of its tile.
# space_to_depth multiplies some that no window has by zeros. fully_connected has one window of an image.
ELSEWHERE = ("winograd", "space_to_depth", "by_images", "fully_connected")
WITHIN_WINDOWS = [case for case in ROUTES if case[1] not in ELSEWHERE]


@pytest.mark.parametrize(("op", "route"), WITHIN_WINDOWS)
@pytest.mark.parametrize("act", ["none", "relu", "relu6", "hard_swish", "sigmoid", "prelu"])
def test_nan_and_infinity_go_where_ieee_says(op, route, act, device):
    default = "conv_transpose2d:x=1x6x5x7,w=6x5x3x3,b=5,s=2,p=1,act={}"
    default = default if op == "conv_transpose2d" else "conv2d:x=1x6x9x10,w=5x6x3x3,b=5,p=1,act={}"
    text = SPECIAL.get(route, default).format(act)
    text += f",slope={text.split('b=')[1].split(',')[0]}" if act == "prelu" else ""
    call = parse_call(text, OPS)
    arrays = inputs_of(call, "normals")
    if act == "prelu":
        arrays["slope"][:3] = 0, np.nan, np.inf
    arrays["x"][0, 0, 1, 1], arrays["x"][0, 3, 4, 6] = np.nan, np.inf
    arrays["x"][0, 5, 4, 1], arrays["b"][-1] = -np.inf, np.nan
    ran, checked = check_call(call, arrays, device=device, route=route)
    assert ran.route == route and checked.ok, checked.problem
    y = ran.outputs[0][0]
    assert np.isnan(y[:, -1]).all() and not np.isnan(y[:, 0]).all()


@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("act", ["none", "relu6", "sigmoid", "prelu"])
def test_what_is_no_number_stays_in_its_image_and_channel(act, swap, device):
    slope = ",slope=7" if act == "prelu" else ""
    call = parse_call(f"conv2d:x=6x9x2x3,w=7x9x2x3,b=7,residual=6x7x1x1,act={act}{slope}", OPS)
    arrays = inputs_of(call, "normals")
    arrays["x"][1, 8, 1, 2], arrays["w"][2, 0, 0, 1], arrays["b"][4], arrays["residual"][5, 6] = [np.nan] * 4
    params = {"swap": swap}
    ran, checked = check_call(call, arrays, device=device, route="fully_connected", params=params)
    assert checked.ok, checked.problem
    y = ran.outputs[0][0]
    there = np.zeros(y.shape[:2], bool)
    there[1], there[:, 2], there[:, 4], there[5, 6] = [True] * 4
    np.testing.assert_array_equal(np.isnan(y[:, :, 0, 0]), there)


@pytest.mark.parametrize(("op", "route"), ROUTES)
def test_a_batch_of_nothing_runs_nothing(op, route, device):
    text = {"conv2d": "conv2d:x=0x4x6x6,w=4x2x3x3,g=2,b=4", "conv_transpose2d": "conv_transpose2d:x=0x4x6x6,w=4x2x3x3"}
    call = parse_call(text[op], OPS)
    ran = run_call(call, inputs_of(call, "normals"), device=device, route=route)
    assert ran.route == "empty" and ran.outputs[0][0].shape == call.shape("y") and ran.outputs[0][0].size == 0


def test_taps_are_found_where_products_of_strides_and_dilations_pass_32_bits(device):
    """4093 phases, and taps a million places apart."""
    call = parse_call("conv_transpose2d:x=1x1x1x2,w=1x1x1x3,s=1x4093,d=1x1000003", OPS)
    arrays = inputs_of(call, "integers")
    (want,) = expect(call, arrays).outputs
    for route in allowed(call, device):
        ((y,),) = run_call(call, arrays, device=device, route=route).outputs
        assert np.array_equal(y, want), route
