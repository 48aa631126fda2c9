"""conv2d without a device: shapes, errors, the reference against a second formulation, and which route is chosen."""

import itertools

import numpy as np
import pytest
from ops_device import device

from vkconv.core import GraphError, RouteError
from vkconv.device import load_device
from vkconv.ops.conv.conv2d.in_registers import SUITS_SUBGROUP
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.conv.conv2d.subgroup import SUBGROUP_TILE
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.route import choose, judge

OPS = {"conv2d": CONV2D}


def scatter(call, x, w):
    """The convolution by another way: every input element is added into the outputs it touches."""
    _, c_in, h, width = x.shape
    y = np.zeros(call.shape("y"))
    _, c_out, oh, ow = y.shape
    (sh, sw), (dh, dw), (t, left, _, _) = call["stride"], call["dilation"], call["padding"]
    per_in, per_out = c_in // call["groups"], c_out // call["groups"]
    for ky, kx, iy, ix in itertools.product(range(w.shape[2]), range(w.shape[3]), range(h), range(width)):
        oy, rest_y = divmod(iy + t - ky * dh, sh)
        ox, rest_x = divmod(ix + left - kx * dw, sw)
        if rest_y or rest_x or not (0 <= oy < oh and 0 <= ox < ow):
            continue
        for co in range(c_out):
            first = co // per_out * per_in
            y[:, co, oy, ox] += x[:, first : first + per_in, iy, ix] @ w[co, :, ky, kx]
    return y


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:x=2x4x7x6,w=6x2x3x2,g=2,s=2x1,p=1x0x2x1,d=1x2",
        "conv2d:x=1x3x5x5,w=3x1x3x3,g=3,p=3",
        "conv2d:x=1x2x1x9,w=3x2x1x3,auto=same_upper,s=1x2",
    ],
)
def test_reference_is_the_convolution(text):
    call = parse_call(text, OPS)
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-4, 5, call.shape(name)).astype(np.float64) for name in "xw")
    np.testing.assert_array_equal(CONV2D.reference(call, {"x": x, "w": w})[0], scatter(call, x, w))


def test_reference_adds_bias_then_applies_the_activation():
    call = parse_call("conv2d:x=1x1x1x2,w=1x1x1x1,b=1,act=leaky_relu,act_a=0.5", OPS)
    arrays = {"x": np.array([[[[1.0, -1.0]]]]), "w": np.array([[[[4.0]]]]), "b": np.array([-2.0])}
    np.testing.assert_array_equal(CONV2D.reference(call, arrays)[0], [[[[2.0, -3.0]]]])


@pytest.mark.parametrize(
    ("text", "y", "padding"),
    [
        ("conv2d:x=1x3x48x320,w=16x3x3x3,s=2,p=1", (1, 16, 24, 160), (1, 1, 1, 1)),
        ("conv2d:x=1x1x6x7,w=1x1x3x4,auto=same_upper,s=2", (1, 1, 3, 4), (0, 1, 1, 2)),
        ("conv2d:x=1x1x6x7,w=1x1x3x4,auto=same_lower,s=2", (1, 1, 3, 4), (1, 2, 0, 1)),
        ("conv2d:x=1x1x6x7,w=1x1x3x4,auto=valid,d=2x1", (1, 1, 2, 4), (0, 0, 0, 0)),
        ("conv2d:x=1x1x6x7,w=1x1x3x4,p=2x1", (1, 1, 8, 6), (2, 1, 2, 1)),
        ("conv2d:x=0x1x6x7,w=1x1x3x4", (0, 1, 4, 4), (0, 0, 0, 0)),
    ],
)
def test_shapes_and_padding(text, y, padding):
    call = parse_call(text, OPS)
    assert (call.shape("y"), call["padding"], call["auto_pad"]) == (y, padding, "explicit")
    assert parse_call(format_call(call, OPS), OPS) == call


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv2d:x=1x3x8x8,w=4x5x3x3", "x has 3 channels, but w has 5 per group in 1 group = 5"),
        ("conv2d:x=1x0x8x8,w=4x0x3x3", r"x has 0 channels \(1x0x8x8\); give it at least 1"),
        ("conv2d:x=1x4x8x8,w=3x2x3x3,g=2", "3 output channels do not divide into 2 groups"),
        ("conv2d:x=1x4x8x8,w=4x4x3x3,g=0", "groups is 0"),
        ("conv2d:x=1x0x8x8,w=4x0x3x3", "x has 0 channels"),
        ("conv2d:x=1x3x8x8,w=4x3x3x3,b=3", "the bias is 3; with 4 output channels it is 4"),
        ("conv2d:x=1x3x8x8,w=4x3x3x3,s=0", r"stride is \(0, 0\)"),
        ("conv2d:x=1x3x8x8,w=4x3x3x3,d=1x-1", r"dilation is \(1, -1\)"),
        ("conv2d:x=1x3x8x8,w=4x3x3x3,p=1x2x3", "padding is .* it takes 1, 2"),
        ("conv2d:x=1x3x8x8,w=4x3x3x3,p=-1", "values >= 0"),
        (
            "conv2d:x=1x3x2x8,w=4x3x3x3",
            "along h a kernel of 3 with dilation 1 spans 3, but the padded input has only 2",
        ),
        (
            "conv2d:x=1x1x1x1,w=1x1x1x2,p=0x1500000000x0x0,d=1x1500000000",
            r"along w the padded input \(1 \+ 1500000000 \+ 0\) has 1500000001 elements; shaders count to 1073741824",
        ),
        ("conv2d:x=1x3x8x8,w=4x3x3x3,auto=same", "auto_pad is 'same'"),
        ("conv2d:x=1x3x8x8,w=4x3x3x3,auto=valid,p=1", "give one of the two"),
        ("conv2d:x=1x3x8x8,w=4x3x3x3,act=rellu", "did you mean 'relu'"),
        ("conv2d:x=1x3x8x8,w=4x3x3x0", "the kernel is 3x0"),
        ("conv2d:x=3x8x8,w=4x3x3x3", r"x \(N, C, H, W\)"),
        ("conv2d:x=1x3x8x8,w=4x3x3x3:f16", "operands of one float dtype"),
        ("conv2d:x=1x3x8x8,w=4x3x3x3,dtype=i32", "operands of one float dtype"),
    ],
)
def test_illegal_calls_name_their_values(text, message):
    with pytest.raises(GraphError, match=message):
        parse_call(text, OPS)


@pytest.mark.parametrize(
    ("text", "on_cpu", "on_gpu"),
    [
        ("conv2d:x=1x16x24x160,w=16x1x3x3,g=16,p=1", "depthwise", "depthwise"),
        ("conv2d:x=1x64x28x28,w=64x64x3x3,p=1", "winograd", "winograd"),
        ("conv2d:x=1x64x12x12,w=64x64x3x3,p=1", "direct_tile", "implicit_gemm"),
        ("conv2d:x=1x15x28x28,w=64x15x3x3,p=1", "direct_tile", "implicit_gemm"),
        ("conv2d:x=1x64x28x28,w=64x64x3x3,p=1,s=2", "direct_tile", "implicit_gemm"),
        ("conv2d:x=1x16x24x160,w=32x16x1x1", "pointwise", "implicit_gemm"),
        ("conv2d:x=1x3x48x320,w=16x3x3x3,s=2,p=1", "direct_tile", "implicit_gemm"),
        ("conv2d:x=1x16x24x160,w=32x16x1x1,p=1", "direct_tile", "implicit_gemm"),
        ("conv2d:x=1x1x28x28,w=32x1x3x3", "direct_tile", "implicit_gemm"),
        ("conv2d:x=1x8x9x9,w=8x4x1x1,g=2", "pointwise", "implicit_gemm"),
        ("conv2d:x=1x8x9x9,w=8x4x3x3,g=2", "grouped", "grouped"),
        ("conv2d:x=1x64x9x9,w=64x32x3x3,g=2", "grouped", "implicit_gemm"),
        ("conv2d:x=1x4x9x99,w=8x4x3x3,d=1x32", "direct", "implicit_gemm"),
    ],
)
@pytest.mark.parametrize("kind", ["CPU", "DISCRETE_GPU"])
def test_route_chosen_by_rule(text, on_cpu, on_gpu, kind):
    assert choose(CONV2D.routes, parse_call(text, OPS), device(kind)).route.name == (
        on_cpu if kind == "CPU" else on_gpu
    )


@pytest.mark.parametrize(
    ("text", "route"),
    [
        # What an H100 or an H200 took each for, on both sides of a threshold.
        ("16x16x54x54,w=64x16x3x3,p=1", "implicit_gemm"),
        ("1x192x20x20,w=192x192x3x3,p=1", "winograd"),
        ("1x256x12x12,w=256x256x3x3,p=1", "implicit_gemm"),
        ("16x16x224x224,w=16x16x3x3,p=1", "subgroup_tile"),
        ("1x18x128x128,w=18x18x3x3,p=1", "winograd"),
        ("16x36x64x64,w=36x36x3x3,p=1", "winograd"),
        ("1x912x7x7,w=912x8x3x3,p=1,g=114", "implicit_gemm"),
        ("1x152x28x28,w=152x8x3x3,s=2,p=1,g=19", "implicit_gemm"),
        ("1x440x14x14,w=440x8x3x3,p=1,g=55", "grouped"),
        ("1x208x18x18,w=208x8x3x3,p=1,g=26", "implicit_gemm"),
        ("16x736x10x10,w=736x8x3x3,p=1,g=92", "subgroup_tile"),
        ("1x256x64x64,w=256x8x3x3,s=2,p=1,g=32", "grouped"),
        ("1x3x288x288,w=32x3x7x7,s=4,p=3", "implicit_gemm"),
        ("1x256x28x28,w=256x8x3x3,p=1,g=32", "grouped"),
        ("16x440x14x14,w=440x8x3x3,s=2,p=1,g=55", "subgroup_tile"),
        ("4x720x7x7,w=720x24x3x3,p=1,g=30", "subgroup_tile"),
        ("16x24x48x48,w=96x24x1x1", "implicit_gemm"),
        ("16x24x56x56,w=72x24x1x1", "implicit_gemm"),
        ("1x64x64x64,w=64x16x3x3,p=1,g=4", "implicit_gemm"),
        ("16x128x32x32,w=128x16x3x3,p=1,g=8", "subgroup_tile"),
        ("16x48x88x88,w=48x24x3x3,s=2,p=1,g=2", "implicit_gemm"),
        ("16x728x16x16,w=728x1x3x3,p=1,g=728", "subgroup_depthwise"),
        ("1x96x104x104,w=96x1x3x3,s=2,p=1,g=96", "subgroup_depthwise"),
        ("16x3072x7x7,w=3072x1x3x3,p=1,g=3072", "depthwise_planes"),
        ("16x3072x7x7,w=3072x1x3x3,p=1,g=3072,dtype=f16", "depthwise_planes"),
        ("1x3x352x352,w=64x3x7x7,s=2,p=3", "subgroup_tile"),
        ("16x3x304x304,w=16x3x3x3,s=2,p=1", "subgroup_tile"),
        ("16x32x128x128,w=32x1x3x3,p=1,g=32,dtype=f16", "subgroup_depthwise"),
        ("1x512x3x3,w=512x512x1x1,dtype=f16", "cooperative"),
        ("1x152x28x28,w=152x8x3x3,s=2,p=1,g=19,dtype=f16", "cooperative"),
        ("1x440x14x14,w=440x8x3x3,p=1,g=55,dtype=f16", "block_diagonal"),
        ("1x3x300x300,w=40x3x3x3,s=2,p=1,dtype=f16", "cooperative"),
        ("1x3x224x224,w=64x3x7x7,s=2,p=3,dtype=f16", "space_to_depth"),
    ],
)
def test_route_that_was_the_fastest_on_hopper(text, route):
    assert choose(CONV2D.routes, parse_call(f"conv2d:x={text}", OPS), load_device("h200")).route.name == route


def test_planes_of_a_1x1_depthwise_are_rows():
    """22 columns are no whole vectors of four, 484 are."""
    h200 = load_device("h200")
    for dtype in ("f32", "f16"):
        call = parse_call(f"conv2d:x=16x512x22x22,w=512x1x1x1,g=512,dtype={dtype}", OPS)
        choice = choose(CONV2D.routes, call, h200)
        assert choice.route.name == "subgroup_depthwise" and choice.params["rows"] == 1
        assert choice.params["columns"] % 4 == 0


def test_parameters_by_rule_on_hopper():
    """Blocks of depthwise routes within their multiply-adds, and four pixels at once with the tile that costs chose."""
    h200 = load_device("h200")
    for name, most in (("depthwise_planes", 512), ("subgroup_depthwise", 400)):
        route = next(route for route in CONV2D.routes if route.name == name)
        params = route.resolve(parse_call("conv2d:x=16x96x56x56,w=96x1x7x7,p=3,g=96", OPS), h200, {})
        assert params["rows"] * params["columns"] * 49 <= most
    params = choose(CONV2D.routes, parse_call("conv2d:x=16x112x14x14,w=288x112x3x3,p=1", OPS), h200).params
    assert (params["product/tile"], params["product/vec4_columns"]) == ("32x128x16", 1)


@pytest.mark.parametrize(
    ("text", "route", "params"),
    [
        ("conv2d:x=1x16x24x160,w=16x1x3x3,g=16,p=1", "subgroup_depthwise", {"rows": 4, "columns": 16}),
        ("conv2d:x=1x384x14x14,w=384x1x3x3,g=384,p=1", "subgroup_depthwise", {"rows": 4, "columns": 8}),
        ("conv2d:x=1x64x28x28,w=64x64x3x3,p=1", "winograd", {"product/channels": 32, "product/columns": 4}),
        ("conv2d:x=1x32x28x28,w=32x32x3x3,p=1", "subgroup_tile", {"channels": 32, "columns": 4}),
        ("conv2d:x=1x64x28x28,w=64x64x3x3,p=1,s=2", "subgroup_tile", {"channels": 32, "columns": 4}),
        ("conv2d:x=1x256x56x56,w=64x256x1x1", "subgroup_tile", {"channels": 32, "columns": 8}),
        ("conv2d:x=1x3x224x224,w=64x3x7x7,s=2,p=3", "subgroup_tile", {"channels": 16, "columns": 8}),
        ("conv2d:x=1x256x28x28,w=256x8x3x3,p=1,g=32", "subgroup_tile", {"channels": 8, "columns": 16}),
        ("conv2d:x=1x192x17x17,w=192x192x1x7,p=0x3", "subgroup_tile", {"channels": 16, "columns": 8}),
        ("conv2d:x=1x4x9x199,w=8x4x3x3,d=1x32", "direct", {}),
    ],
)
def test_route_and_tile_where_subgroups_shuffle(text, route, params):
    choice = choose(CONV2D.routes, parse_call(text, OPS), load_device("lavapipe"))
    assert (choice.route.name, {name: choice.params[name] for name in params}) == (route, params)


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("conv2d:x=1x240x19x19,w=80x240x1x1", "pointwise"),
        ("conv2d:x=1x3x192x192,w=32x3x3x3,s=2,p=1", "direct"),
        ("conv2d:x=1x128x44x44,w=128x4x3x3,p=1,g=32", "direct"),
        ("conv2d:x=1x80x40x40,w=80x1x3x3,p=1,g=80", "direct"),
        ("conv2d:x=1x64x1x1,w=128x64x1x1", "direct"),
        ("conv2d:x=1x64x4x4,w=64x64x1x1", "direct"),
        ("conv2d:x=1x64x5x5,w=64x64x1x1", "pointwise"),
        ("conv2d:x=1x64x12x12,w=64x1x1x1,g=64", "direct"),
        ("conv2d:x=1x384x22x22,w=768x384x2x2,s=2", "direct"),
    ],
)
def test_nothing_is_shared_by_lanes_where_loops_over_tiles_are_not_unrolled(text, route):
    call = parse_call(text, OPS)
    assert choose(CONV2D.routes, call, load_device("swiftshader")).route.name == route
    verdict = judge(SUBGROUP_TILE, call, load_device("swiftshader"))
    assert verdict.allowed and verdict.refused_by == SUITS_SUBGROUP.text


def test_subgroup_tile_needs_shuffles_within_subgroups():
    call = parse_call("conv2d:x=1x8x9x9,w=8x8x3x3", OPS)
    with pytest.raises(RouteError, match="needs shuffles within subgroups, and here it is no operations"):
        choose(CONV2D.routes, call, device(), forced="subgroup_tile")
    assert choose(CONV2D.routes, call, load_device("h200"), forced="subgroup_tile").params["local"] == 32


def test_last_route_takes_every_case():
    for text in CONV2D.cases:
        choose(CONV2D.routes, parse_call(text, OPS), device(), forced=CONV2D.routes[-1].name)


def test_forced_route_explains_what_it_needs():
    with pytest.raises(RouteError, match="needs groups 1, and here it is 2 groups"):
        choose(CONV2D.routes, parse_call("conv2d:x=1x4x5x5,w=4x2x3x3,g=2", OPS), device(), forced="direct_tile")


def test_large_outputs_fold_the_grid():
    call = parse_call("conv2d:x=1x1x4096x4096,w=1x1x1x1", OPS)
    for route in CONV2D.routes[:-1]:
        if judge(route, call, device()).allowed:
            for dispatch in route.build(call, device()).steps:
                assert max(dispatch.groups) <= 65535


@pytest.mark.parametrize(("padding", "route"), [(1, "subgroup_tile"), (0, "implicit_gemm")])
def test_stems_whose_rows_are_no_whole_vec4_are_not_for_subgroups_of_a_gpu(padding, route):
    call = parse_call(f"conv2d:x=16x3x224x224,w=64x3x3x3,s=2,p={padding}", OPS)
    others = [r for r in OPS["conv2d"].routes if r.name != "shared_patch"]
    assert choose(others, call, load_device("h200")).route.name == route


@pytest.mark.parametrize(
    ("call", "taken"),
    [
        ("x=32x3x224x224,w=24x3x3x3,s=2,p=1", True),
        ("x=32x3x224x224,w=64x3x7x7,s=2,p=3", False),
        ("x=32x3x224x224,w=16x3x3x3,s=2,p=1", False),
        ("x=16x3x224x224,w=96x3x4x4,s=4", False),
        ("x=32x3x224x224,w=24x3x1x1", False),
        ("x=32x24x112x112,w=24x24x3x3,p=1", False),
        ("x=32x3x224x224,w=24x3x3x3,s=2,p=1,dtype=f16", False),
    ],
)
def test_stems_in_f32_whose_windows_overlap_go_by_patches(call, taken):
    chosen = choose(OPS["conv2d"].routes, parse_call(f"conv2d:{call}", OPS), load_device("h200"))
    assert (chosen.route.name == "shared_patch") == taken


@pytest.mark.parametrize("name", ["h200", "mali-g52-panvk", "raspberry-pi-4", "lavapipe"])
@pytest.mark.parametrize(
    "call", ["x=2x3x37x53,w=19x3x3x3,s=2", "x=1x5x64x64,w=70x5x9x9,d=3x4,p=12", "x=1x300x9x9,w=65x300x3x3"]
)
def test_patches_of_every_parameter_fit_into_shared_memory(name, call):
    where, call = load_device(name), parse_call(f"conv2d:{call}", OPS)
    route = next(r for r in OPS["conv2d"].routes if r.name == "shared_patch")
    legal = route.params(call, where)
    for values in itertools.product(*legal.values()):
        params = dict(zip(legal, values, strict=True))
        step = route.build(call, where, params).steps[0]
        assert step.shared_bytes <= where.limit("maxComputeSharedMemorySize")
        assert step.local[0] <= params["local"]
