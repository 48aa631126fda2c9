"""conv_transpose2d without a device: shapes, errors, the reference against a second formulation, and its phases."""

import itertools

import numpy as np
import pytest
from ops_device import device

from vkconv.core import GraphError, RouteError
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.conv.transpose.op import CONV_TRANSPOSE2D
from vkconv.ops.conv.transpose.phases import Axis
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.route import choose

OPS = {"conv_transpose2d": CONV_TRANSPOSE2D, "conv2d": CONV2D}


def outputs_of(text):
    return np.prod(parse_call(text, OPS).shape("y"))


def gather(call, x, w):
    """The transposed convolution by another way: every output element looks for the inputs that reach it."""
    _, _, h, width = x.shape
    y = np.zeros(call.shape("y"))
    _, c_out, oh, ow = y.shape
    (sh, sw), (dh, dw), (t, left, _, _) = call["stride"], call["dilation"], call["padding"]
    per_in, per_out = x.shape[1] // call["groups"], c_out // call["groups"]
    for oy, ox, ky, kx in itertools.product(range(oh), range(ow), *map(range, w.shape[2:])):
        iy, rest_y = divmod(oy + t - ky * dh, sh)
        ix, rest_x = divmod(ox + left - kx * dw, sw)
        if rest_y or rest_x or not (0 <= iy < h and 0 <= ix < width):
            continue
        for co in range(c_out):
            group = slice(co // per_out * per_in, (co // per_out + 1) * per_in)
            y[:, co, oy, ox] += x[:, group, iy, ix] @ w[group, co % per_out, ky, kx]
    return y


@pytest.mark.parametrize("text", [t for t in CONV_TRANSPOSE2D.cases if outputs_of(t) < 2000])
def test_reference_is_the_transposed_convolution(text):
    call = parse_call(text.split(",act")[0], OPS)
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-4, 5, call.shape(name)).astype(np.float64) for name in "xw")
    np.testing.assert_array_equal(CONV_TRANSPOSE2D.reference(call, {"x": x, "w": w})[0], gather(call, x, w))


def test_reference_is_the_gradient_of_conv2d():
    """<conv2d(a, w), b> = <a, conv_transpose2d(b, w)>, with the same numbers in w, for every a and b."""
    forward = parse_call("conv2d:x=2x6x9x8,w=4x3x3x2,g=2,s=2x3,p=1x0x1x1,d=1x2", OPS)
    shape = "x".join(map(str, forward.shape("y")))
    back = parse_call(f"conv_transpose2d:x={shape},w=4x3x3x2,g=2,s=2x3,p=1x0x1x1,d=1x2,op=0x0", OPS)
    rng = np.random.default_rng(2)
    a, b, w = (
        rng.integers(-4, 5, s).astype(np.float64) for s in (forward.shape("x"), forward.shape("y"), (4, 3, 3, 2))
    )
    y = CONV2D.reference(forward, {"x": a, "w": w})[0]
    dx = CONV_TRANSPOSE2D.reference(back, {"x": b, "w": w})[0]
    reached = tuple(slice(0, extent) for extent in dx.shape)
    assert (y * b).sum() == (a[reached] * dx).sum() and not np.any(a.shape < dx.shape)


def test_what_no_tap_reaches_is_the_activated_bias():
    call = parse_call("conv_transpose2d:x=1x1x2x1,w=1x1x1x1,b=1,s=3x1,op=1x0,act=leaky_relu,act_a=0.5", OPS)
    arrays = {"x": np.array([[[[1.0], [2.0]]]]), "w": np.array([[[[4.0]]]]), "b": np.array([-2.0])}
    want = np.array([2.0, -1.0, -1.0, 6.0, -1.0]).reshape(1, 1, 5, 1)
    np.testing.assert_array_equal(CONV_TRANSPOSE2D.reference(call, arrays)[0], want)


@pytest.mark.parametrize(
    ("text", "y", "padding", "output_padding"),
    [
        ("x=1x64x28x28,w=64x32x4x4,s=2,p=1", (1, 32, 56, 56), (1, 1, 1, 1), (0, 0)),
        ("x=1x6x40x50,w=6x8x3x3,s=1x2,p=2x3,op=0x1", (1, 8, 38, 96), (2, 3, 2, 3), (0, 1)),
        ("x=1x1x3x3,w=1x2x3x3,s=3x2,out=10x8", (1, 2, 10, 8), (0, 0, 0, 0), (1, 1)),
        ("x=1x1x3x3,w=1x2x3x3,s=3x2,op=1,out=10x8", (1, 2, 10, 8), (0, 0, 0, 0), (1, 1)),
        ("x=1x1x3x3,w=1x2x3x3,s=2,auto=same_upper", (1, 2, 6, 6), (0, 0, 1, 1), (0, 0)),
        ("x=1x1x3x3,w=1x2x3x3,s=2,auto=same_lower", (1, 2, 6, 6), (1, 1, 0, 0), (0, 0)),
        ("x=1x1x3x3,w=1x2x3x3,s=2,auto=same_upper,out=4x5", (1, 2, 4, 5), (1, 1, 2, 1), (0, 0)),
        ("x=1x1x3x3,w=1x2x3x3,s=2,out=4x5", (1, 2, 4, 5), (2, 1, 1, 1), (0, 0)),
        ("x=1x1x3x3,w=1x2x1x1,s=2,auto=same_upper", (1, 2, 6, 6), (0, 0, 0, 0), (1, 1)),
        ("x=1x1x3x3,w=1x2x3x3,auto=valid", (1, 2, 5, 5), (0, 0, 0, 0), (0, 0)),
        ("x=0x1x3x3,w=1x2x3x3,d=2", (0, 2, 7, 7), (0, 0, 0, 0), (0, 0)),
    ],
)
def test_shapes_and_padding(text, y, padding, output_padding):
    call = parse_call(f"conv_transpose2d:{text}", OPS)
    assert (call.shape("y"), call["padding"], call["output_padding"]) == (y, padding, output_padding)
    assert parse_call(format_call(call, OPS), OPS) == call


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=1x3x8x8,w=4x5x3x3", "x has 3 channels, but w takes 4"),
        ("x=1x3x8x8,w=3x5x3x3,g=2", "3 input channels do not divide into 2 groups"),
        ("x=1x4x8x8,w=4x4x3x3,g=0", "groups is 0"),
        ("x=1x4x8x8,w=4x4x3x3,b=3", "the bias is 3; with 4 output channels it is 4"),
        ("x=1x4x8x8,w=4x4x3x3,b=4,g=2", "the bias is 4; with 8 output channels it is 8"),
        ("x=1x4x8x8,w=4x4x3x3,s=0", r"stride is \(0, 0\)"),
        ("x=1x4x8x8,w=4x4x3x3,s=-2", r"stride is \(-2, -2\)"),
        ("x=1x4x8x8,w=4x4x3x3,d=1x0", r"dilation is \(1, 0\)"),
        ("x=1x4x8x8,w=4x4x3x3,p=-1", "values >= 0"),
        ("x=1x4x8x8,w=4x4x3x3,s=2,op=2", r"output_padding is \(2,\); .* smaller than the stride \(2, 2\)"),
        ("x=1x4x8x8,w=4x4x3x3,s=2,op=0x-1", "not negative"),
        ("x=1x4x8x8,w=4x4x3x3,s=1x65537", r"stride is \(1, 65537\) .* 65537 phases along an axis; at most 32768"),
        ("x=1x4x1x2,w=4x4x1x3,d=1x999999999", r"along w the output before it is cropped has 20+ elements; .* 10737"),
        ("x=1x4x8x8,w=4x4x3x3,op=0x0x0", "one or two values"),
        ("x=1x4x1x8,w=4x4x3x3,p=2x0", r"along h 1 inputs reach 3 outputs, and the padding takes 4 of them \(2 \+ 2\)"),
        ("x=1x4x0x8,w=4x4x3x3", "x is 0x8"),
        ("x=1x4x8x8,w=4x0x3x3", "0 output channels per group"),
        ("x=1x4x8x8,w=4x4x3x0", "3x0 kernel"),
        ("x=1x4x8x8,w=4x4x3x3,out=99x18", "along h the output is to have 99 elements, but the input reaches only 10"),
        ("x=1x4x8x8,w=4x4x3x3,out=9", "output_shape is .* two values"),
        ("x=1x4x8x8,w=4x4x3x3,auto=same_upper,p=1", "give one of the two"),
        ("x=1x4x8x8,w=4x4x3x3,auto=same", "auto_pad is 'same'"),
        ("x=1x4x8x8,w=4x4x3x3,act=rellu", "did you mean 'relu'"),
        ("x=4x8x8,w=4x4x3x3", r"x \(N, C, H, W\)"),
        ("x=1x4x8x8,w=4x4x3x3:f16", "operands of one float dtype"),
    ],
)
def test_illegal_calls_name_their_values(text, message):
    with pytest.raises(GraphError, match=message):
        parse_call(f"conv_transpose2d:{text}", OPS)


def test_phases_partition_the_taps():
    for kernel, stride, dilation in itertools.product(range(1, 7), range(1, 7), range(1, 7)):
        axis = Axis(9, kernel, stride, dilation)
        taps = [range(k0, kernel, axis.tap_step) for k0 in range(axis.tap_step)]
        assert [len(t) for t in taps] == [n for n, _, count in axis.phases for _ in range(count)]
        assert [first for _, first, _ in axis.phases] == [
            sum(c for _, _, c in axis.phases[:i]) for i in range(len(axis.phases))
        ]
        places = [k0 * dilation % stride for k0 in range(axis.tap_step)]
        assert sorted(places) == list(range(0, stride, axis.gcd))
        assert all(k * dilation % stride == place for place, tap in zip(places, taps, strict=True) for k in tap)
        assert axis.most_taps == max(map(len, taps))
        for k0, place in enumerate(places):  # what the direct kernel computes
            assert place // axis.gcd * axis.inverse % axis.tap_step == k0


@pytest.mark.parametrize(
    ("text", "on_cpu", "on_gpu"),
    [
        ("x=1x64x28x28,w=64x32x4x4,s=2,p=1", "transposed_blocks", "transposed_gemm"),
        ("x=1x64x28x28,w=64x1x4x4,s=2,p=1,g=64", "transposed_blocks", "transposed_blocks"),
        ("x=1x8x28x28,w=8x32x4x4,s=2,p=1", "transposed_blocks", "transposed_tile"),
        ("x=1x64x2x2,w=64x32x5x5,s=5", "transposed_tile", "transposed_gemm"),
        ("x=1x4x9x99,w=4x8x3x3,d=1x32", "transposed_direct", "transposed_phases"),
    ],
)
def test_route_chosen_by_rule(text, on_cpu, on_gpu):
    call = parse_call(f"conv_transpose2d:{text}", OPS)
    assert choose(CONV_TRANSPOSE2D.routes, call, device("CPU")).route.name == on_cpu
    assert choose(CONV_TRANSPOSE2D.routes, call, device("DISCRETE_GPU")).route.name == on_gpu


@pytest.mark.parametrize(
    ("kind", "dtype", "taken"), [("DISCRETE_GPU", "f16", 2), ("DISCRETE_GPU", "f32", 0), ("INTEGRATED_GPU", "f16", 0)]
)
def test_weights_lie_in_shared_memory_where_that_is_known_to_pay(kind, dtype, taken):
    (route,) = [r for r in CONV_TRANSPOSE2D.routes if r.name == "transposed_blocks"]
    small, large = (
        parse_call(f"conv_transpose2d:x=1x{c}x28x28,w={c}x{c // 8}x3x3,s=2,p=1,g=8,dtype={dtype}", OPS)
        for c in (64, 1024)
    )
    params = route.params(small, device(kind))
    assert params["shared_loads"][0] == taken and sorted(params["shared_loads"]) == [0, 2]
    (step,) = route.build(small, device(kind), {"shared_loads": 2}).steps
    assert step.shared_bytes == 4 * 8 * 9 * params["channels"][0]
    assert 2 not in route.params(large, device(kind))["shared_loads"]  # 128 channels by 9 taps, 18 KiB


@pytest.mark.parametrize(
    ("text", "most_rows"),
    [
        ("x=3x64x20x20,w=64x32x4x4,s=2,p=1", 20),  # 1.6 MB an image
        ("x=9x8x60x60,w=8x32x4x4,s=2,p=1", 60),  # 7.4 MB: two images at a time
        ("x=2x8x300x200,w=8x16x3x3,s=2", 145),
        ("x=2x8x300x200,w=8x16x3x3,s=1x2,d=3x1,p=4x0,g=2", 72),
    ],
)
def test_products_stay_within_16_mib_and_reach_every_output(text, most_rows):
    call = parse_call(f"conv_transpose2d:{text}", OPS)
    (route,) = [r for r in CONV_TRANSPOSE2D.routes if r.name == "transposed_gemm"]
    program = route.build(call, device())
    assert program.scratch["products"] <= 16 << 20
    seen = []
    for step in program.steps[1::2]:
        names = ("first_image", "images", "first_row", "rows", "first_output", "outputs")
        image, images, first_row, rows, first, count = (step.push[name] for name in names)
        assert rows <= most_rows
        # Every row of x that meets an output of the slab is among its rows.
        for oy, ky in itertools.product(range(first, first + count), range(call.shape("w")[2])):
            iy, rest = divmod(oy + call["padding"][0] - ky * call["dilation"][0], call["stride"][0])
            assert rest or not 0 <= iy < call.shape("x")[2] or first_row <= iy < first_row + rows
        seen += [(image + i, first + j) for i in range(images) for j in range(count)]
    assert seen == [(i, j) for i in range(call.shape("y")[0]) for j in range(call.shape("y")[2])]


def test_products_that_no_slab_can_hold_are_refused():
    call = parse_call("conv_transpose2d:x=1x1x2x60000,w=1x100x1x1", OPS)
    with pytest.raises(RouteError, match=r"products of one row of the output in 16.0 MiB, and here it is 22.9 MiB"):
        choose(CONV_TRANSPOSE2D.routes, call, device(), forced="transposed_gemm")


def test_last_route_takes_every_case():
    for text in CONV_TRANSPOSE2D.cases:
        choose(CONV_TRANSPOSE2D.routes, parse_call(text, OPS), device(), forced=CONV_TRANSPOSE2D.routes[-1].name)
