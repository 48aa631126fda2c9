"""conv2d_backward_data without a device: its reference, what torch computes, shapes, errors, routes by rule."""

import numpy as np
import pytest
from ops_device import device

from vkconv.core import GraphError
from vkconv.graph.ir import TensorSpec
from vkconv.ops import OPS
from vkconv.ops.conv.dgrad.as_conv import GATHER_EPILOGUE, dilation
from vkconv.ops.conv.dgrad.as_transposed import as_transposed, remainders
from vkconv.ops.conv.dgrad.op import CONV2D_BACKWARD_DATA
from vkconv.ops.conv.dgrad.reached import SOME, as_reached, reached
from vkconv.ops.conv.dgrad.volume import CONV3D_BACKWARD_DATA
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.kernels.zero_insertion import FILL, GATHER
from vkconv.route import choose


def integers(*shapes):
    rng = np.random.default_rng(3)
    return [rng.integers(-4, 5, shape).astype(np.float64) for shape in shapes]


@pytest.mark.parametrize("text", CONV2D_BACKWARD_DATA.cases)
def test_reference_is_the_gradient_of_conv2d(text):
    """<conv2d(a, w), dy> = <a, dx> for every a and dy: for a that is 1 in one place, dx there. What no window reaches
    is left out of a before that, and is 0 in dx."""
    fields = [field for field in text.split(",") if not field.startswith(("b=", "slope=", "act", "out_s"))]
    call = parse_call(",".join(fields), OPS)
    left = as_reached(call)
    forward = OPS["conv2d"].call(
        {"x": left.outputs["dx"], "w": call.operands["w"]},
        {name: left[name] for name in ("stride", "padding", "dilation", "groups")},
    )
    a, dy, w = integers(call.shape("dx"), call.shape("dy"), call.shape("w"))
    (dx,) = CONV2D_BACKWARD_DATA.reference(call, {"dy": dy, "w": w})
    kept = (..., *(slice(axis.first, axis.first + axis.count * axis.step, axis.step) for axis in reached(call)))
    (y,) = OPS["conv2d"].reference(forward, {"x": a[kept], "w": w})
    assert (y * dy).sum() == (a * dx).sum()
    (transposed,) = OPS["conv_transpose2d"].reference(as_transposed(left), {"x": dy, "w": w})
    np.testing.assert_array_equal(dx[kept], transposed)
    assert np.count_nonzero(dx) == np.count_nonzero(dx[kept])


@pytest.mark.parametrize(
    ("text", "h"),
    [
        # first, step, count; stride, dilation and padding of what is left
        ("dy=1x4x14x9,w=4x2x3x3,x_shape=28x9,s=2x1,p=2x1,d=2x1", (0, 2, 14, 1, 1, (1, 1))),
        ("dy=1x4x15x9,w=4x2x3x3,x_shape=28x9,s=2x1,p=3x1x2x1,d=2x1", (1, 2, 14, 1, 1, (2, 1))),
        ("dy=1x4x6x9,w=4x2x3x3,x_shape=30x9,s=4x1,p=1x1x5x1,d=6x1", (1, 2, 15, 2, 3, (1, 2))),
        ("dy=1x4x5x9,w=4x2x2x3,x_shape=20x9,s=3x1,p=-1x1,d=3x1", (1, 3, 6, 1, 1, (0, 0))),
        ("dy=1x4x7x9,w=4x2x1x3,x_shape=15x9,s=2x1,p=-1x1x0x1,d=5x1", (1, 2, 7, 1, 1, (0, 0))),
        ("dy=1x4x4x9,w=4x2x3x3,x_shape=9x9,s=2x1,p=2x1,d=3x1", (0, 1, 9, 2, 3, (2, 2))),
    ],
)
def test_what_windows_reach_is_a_gradient_without_common_divisors(text, h):
    call = parse_call(f"conv2d_backward_data:{text}", OPS)
    found = reached(call)[0]
    assert (found.first, found.step, found.count, found.stride, found.dilation, found.padding) == h
    assert SOME.test(call, device("CPU")) == (found.step > 1)


def test_where_no_window_reaches_x_there_is_no_gradient_to_make():
    call = parse_call("conv2d_backward_data:dy=1x4x1x1,w=4x2x2x2,x_shape=1x1,s=2,p=1,d=2", OPS)
    assert [axis.count for axis in reached(call)] == [0, 0] and not SOME.test(call, device("CPU"))


# torch.nn.grad.conv2d_input(input_size, weight, grad_output, stride, padding, dilation, groups), worked out by hand:
# its weight and grad_output lie as w and dy do, input_size is x_shape.
BY_HAND = [
    (
        "dy=1x1x2x2,w=1x1x2x2,x_shape=5x5,s=2",
        [1, 10, 100, 1000],
        [1, 2, 3, 4],
        [
            *(1, 2, 10, 20, 0),
            *(3, 4, 30, 40, 0),
            *(100, 200, 1000, 2000, 0),
            *(300, 400, 3000, 4000, 0),
            *(0, 0, 0, 0, 0),
        ],
    ),
    ("dy=1x1x1x2,w=1x1x1x3,x_shape=1x4,s=1x2,p=0x1", [1, 10], [1, 2, 3], [2, 13, 20, 30]),
    ("dy=1x1x1x3,w=1x1x1x2,x_shape=1x5,d=1x2", [1, 10, 100], [1, 2], [1, 10, 102, 20, 200]),
    # two filters of one group: their gradients meet in the one channel
    ("dy=1x2x1x2,w=2x1x1x1,x_shape=1x3,s=1x2", [1, 2, 3, 4], [10, 100], [310, 0, 420]),
    # two groups of one filter each, two channels per group
    ("dy=1x2x1x1,w=2x2x1x1,x_shape=1x1,g=2", [1, 2], [1, 10, 100, 1000], [1, 10, 200, 2000]),
    ("dy=1x1x1x3,w=1x1x1x1,x_shape=1x4,s=1x2,p=0x1", [5, 6, 7], [2], [0, 12, 0, 14]),
]


@pytest.mark.parametrize(("text", "dy", "w", "dx"), BY_HAND)
def test_it_is_what_torch_calls_conv2d_input(text, dy, w, dx):
    call = parse_call(f"conv2d_backward_data:{text}", OPS)
    arrays = {name: np.array(v, np.float64).reshape(call.shape(name)) for name, v in (("dy", dy), ("w", w))}
    (got,) = CONV2D_BACKWARD_DATA.reference(call, arrays)
    np.testing.assert_array_equal(got, np.array(dx, np.float64).reshape(call.shape("dx")))


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("dy=2x8x5x5,w=8x4x3x3,x_shape=10x10,s=2,p=1", (1, 1)),
        ("dy=2x8x5x5,w=8x4x3x3,x_shape=9x9,s=2,p=1", (0, 0)),
        ("dy=1x1x2x2,w=1x1x2x2,x_shape=5x4,s=2", (1, 0)),
        ("dy=1x1x3x2,w=1x1x2x1,x_shape=12x5,s=4x3,d=1x5", (2, 1)),
    ],
)
def test_the_remainder_is_the_output_padding_of_the_transposed_convolution(text, rest):
    call = parse_call(f"conv2d_backward_data:{text}", OPS)
    transposed = as_transposed(call)
    assert remainders(call) == rest == transposed["output_padding"]
    again = OPS["conv_transpose2d"].call(transposed.operands, transposed.attrs)
    assert again.shape("y") == call.shape("dx")


def test_x_shape_is_height_and_width_or_whole():
    short, whole = (
        parse_call(f"conv2d_backward_data:dy=2x8x5x5,w=8x4x3x3,x_shape={shape},s=2,p=1", OPS)
        for shape in ("10x9", "2x4x10x9")
    )
    assert short == whole and short.shape("dx") == (2, 4, 10, 9)
    assert format_call(short, OPS) == (
        "conv2d_backward_data:dy=2x8x5x5,w=8x4x3x3,x_shape=2x4x10x9,s=2x2,p=1x1x1x1,dtype=f32"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dy=1x3x8x8,w=4x5x3x3,x_shape=10x10", "dy has 3 channels, but w makes 4"),
        ("dy=1x4x8x8,w=4x5x3x3", "needs the attribute 'x_shape'"),
        (
            "dy=1x4x8x8,w=4x5x3x3,x_shape=11x10",
            r"along h dy has 8, but .* x_shape's 11 makes 9: floor\(\(11 \+ 0 \+ 0 ",
        ),
        (
            "dy=1x4x8x8,w=4x5x3x3,x_shape=10x9",
            r"along w .* 9 makes 7: floor\(\(9 \+ 0 \+ 0 - 1 \(3 - 1\) - 1\) / 1\) \+ 1",
        ),
        ("dy=1x4x5x5,w=4x5x3x3,x_shape=11x9,s=2,p=1", r"11 makes 6: floor\(\(11 \+ 1 \+ 1 - 1 \(3 - 1\) - 1\) / 2\)"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=2x2", "along h a kernel of 3 with dilation 1 spans 3, .* only 2"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=10", r"x_shape is \(10,\); it takes"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=5x10x10", r"x_shape is \(5, 10, 10\)"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=0x10", r"x_shape is \(0, 10\)"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=2x5x10x10", "x_shape is 2x5x10x10, but dy has 1 images and w 5 input channels"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=1x4x10x10", "but dy has 1 images and w 5"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=10x10,g=3", "4 output channels do not divide into 3 groups"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=10x10,g=0", "groups is 0"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=10x10,b=4", "the bias is 4; with 5 input channels it is 5"),
        ("dy=1x4x8x8,w=4x0x3x3,x_shape=10x10", "0 input channels per group"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=10x10,s=0", r"stride is \(0, 0\)"),
        ("dy=1x4x8x1,w=4x5x1x1,x_shape=8x10,s=1x99991", "99991 phases along an axis; at most 32768"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=10x10,p=-1", r"10 makes 6: floor\(\(10 \+ -1 \+ -1 "),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=4x10,p=-3x0x-1x9", "along h a padding of -3 and -1 crops 4 of 4 elements; one"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=10x10,p=1x2x3", "1, 2 .* or 4 .* values"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=10x10,d=0", r"dilation is \(0, 0\)"),
        ("dy=1x4x8x8,w=4x5x3x3,x_shape=10x10,act=rellu", "did you mean 'relu'"),
        ("dy=4x8x8,w=4x5x3x3,x_shape=10x10", r"dy \(N, C_out, OH, OW\)"),
        ("dy=1x4x8x8,w=4x5x3x3:f16,x_shape=10x10", "operands of one float dtype"),
    ],
)
def test_illegal_calls_name_their_values(text, message):
    with pytest.raises(GraphError, match=message):
        parse_call(f"conv2d_backward_data:{text}", OPS)


@pytest.mark.parametrize(
    ("text", "on_cpu", "on_gpu"),
    [
        ("dy=1x64x56x56,w=64x64x3x3,x_shape=56x56,p=1", "flipped_winograd", "flipped_winograd"),
        ("dy=1x64x14x14,w=64x64x3x3,x_shape=14x14,p=1", "flipped_conv", "flipped_winograd"),
        ("dy=1x16x56x56,w=16x32x3x3,x_shape=56x56,p=1", "flipped_conv", "flipped_winograd"),
        ("dy=1x64x2x2,w=64x64x1x1,x_shape=2x2", "flipped_conv", "flipped_conv"),
        ("dy=1x64x3x3,w=64x8x1x3,x_shape=3x83,d=1x40", "flipped_conv", "flipped_conv"),
        ("dy=1x64x28x28,w=64x64x7x7,x_shape=28x28,p=3", "flipped_conv", "flipped_conv"),
        ("dy=1x64x28x28,w=64x64x1x1,x_shape=28x28", "flipped_conv", "flipped_conv"),
        ("dy=1x64x28x28,w=64x1x3x3,x_shape=28x28,p=1,g=64", "flipped_conv", "flipped_conv"),
        ("dy=4x224x235x363,w=224x32x1x1,x_shape=470x725,s=2", "swap_1x1", "swap_1x1"),
        ("dy=4x64x28x28,w=64x32x1x1,x_shape=56x56,s=2", "phase_blocks", "swap_1x1"),
        ("dy=1x64x4x4,w=64x64x1x1,x_shape=19x19,s=5", "swap_1x1", "swap_1x1"),
        ("dy=32x256x100x100,w=256x8x3x3,x_shape=200x200,s=2,p=1,g=32", "phase_blocks", "phase_blocks"),
        ("dy=5x32x470x725,w=32x3x3x3,x_shape=940x1450,s=2,p=1", "phase_blocks", "phase_blocks"),
        ("dy=1x64x28x28,w=64x32x3x3,x_shape=56x56,s=2,p=1", "phase_blocks", "phase_gemm"),
        ("dy=1x64x7x7,w=64x8x7x7,x_shape=37x37,s=5", "phase", "phase_gemm"),
        ("dy=1x64x2x2,w=64x8x3x3,x_shape=5x82,s=2x1,d=1x40", "col2im", "phase_gemm"),
        ("dy=1x64x14x14,w=64x32x3x3,x_shape=31x107,s=2,d=2x40", "col2im", "phase_gemm"),
        ("dy=2x32x7x7,w=32x16x3x3,x_shape=145x145,s=24,p=1", "phase", "phase_gemm"),
        ("dy=1x64x4x4,w=64x32x3x3,x_shape=198x198,s=65", "col2im", "col2im"),
        ("dy=1x64x28x28,w=64x32x3x3,x_shape=58x55,s=2,p=-1x1x0x1", "reached", "reached"),
        ("dy=1x64x28x28,w=64x32x3x3,x_shape=57x57,s=2,p=1x1x-1x0", "reached", "reached"),
        ("dy=1x64x28x28,w=64x32x3x3,x_shape=31x31,p=0x0x-1x-1", "flipped_conv", "flipped_winograd"),
        ("dy=2x32x14x14,w=32x24x3x3,x_shape=28x28,s=2,p=2,d=2", "phase_blocks", "phase_gemm"),
        ("dy=16x256x28x28,w=256x128x3x3,x_shape=56x56,s=2,p=2,d=2", "reached", "reached"),
        ("dy=16x256x28x28,w=256x128x3x3,x_shape=80x80,s=2,d=12", "reached", "reached"),
        ("dy=1x64x14x14,w=64x32x3x3,x_shape=56x56,s=4,p=2,d=2", "phase_blocks", "phase_gemm"),
    ],
)
def test_route_chosen_by_rule(text, on_cpu, on_gpu):
    call = parse_call(f"conv2d_backward_data:{text}", OPS)
    for kind, route in (("CPU", on_cpu), ("DISCRETE_GPU", on_gpu), ("INTEGRATED_GPU", on_gpu)):
        choice = choose(CONV2D_BACKWARD_DATA.routes, call, device(kind))
        assert (choice.route.name, choice.by) == (route, "rule")


def test_winograd_takes_kernels_of_5x5_where_that_was_timed():
    call = parse_call("conv2d_backward_data:dy=1x64x28x28,w=64x64x5x5,x_shape=28x28,p=2", OPS)
    kinds = ("CPU", "DISCRETE_GPU", "INTEGRATED_GPU")
    taken = {kind: choose(CONV2D_BACKWARD_DATA.routes, call, device(kind)).route.name for kind in kinds}
    assert taken == {"CPU": "flipped_conv", "DISCRETE_GPU": "flipped_winograd", "INTEGRATED_GPU": "flipped_conv"}


def test_what_neither_phases_nor_products_take_scatters_as_scatter_strided_does():
    """65x65 phases are too many, and products of all taps for the scratch: kMaxPassthroughElems of iree#23979 where no
    other limit is known."""
    rest = [route for route in CONV2D_BACKWARD_DATA.routes if route.name != "col2im"]
    for c_out, routes in ((256, ["fill", "gather", "gather"]), (257, ["fill", "fill", "gather"])):
        call = parse_call(f"conv2d_backward_data:dy=1x{c_out}x2x2,w={c_out}x8x3x3,x_shape=68x68,s=65", OPS)
        taken = [choose(rest, call, device(kind)).route.name for kind in ("CPU", "INTEGRATED_GPU", "DISCRETE_GPU")]
        assert taken == [f"{name}_scatter_conv" for name in routes]


@pytest.mark.parametrize(
    ("text", "dy", "dilated", "offset"),
    [
        ("dy=1x2x25x25,w=2x3x3x3,x_shape=50x50,s=2,p=1", 25, 52, 1),  # upstream.md: dst = H + d (y - 1)
        ("dy=1x2x5x5,w=2x3x1x1,x_shape=9x9,s=2", 5, 9, 0),
        ("dy=1x2x6x6,w=2x3x1x1,x_shape=9x9,s=2,p=1", 6, 9, -1),
        ("dy=1x2x3x3,w=2x3x3x3,x_shape=11x11,s=3,d=2", 3, 15, 4),
    ],
)
def test_the_dilated_dy_is_as_upstream_lays_it_out(text, dy, dilated, offset):
    call = parse_call(f"conv2d_backward_data:{text}", OPS)
    made = dilation(call)
    assert (made.x[2], made.y[2], made.offset[2]) == (dy, dilated, offset)


@pytest.mark.parametrize(
    ("more", "before"),
    [
        ("", True),
        (",act=relu", True),
        (",act=tanh", True),
        (",act=leaky_relu,act_a=0.1", True),
        (",act=sigmoid", False),
        (",act=exp", False),
        (",act=log", False),
        (",act=clip,act_a=1,act_b=2", False),
        (",act=clip,act_a=-1,act_b=2", True),
        (",b=4", False),
        (",b=4,act=relu", False),
        (",slope=4,act=prelu", True),
        (",b=4,slope=4,act=prelu", False),
    ],
)
def test_an_epilogue_comes_before_the_scatter_only_where_it_keeps_zeros(more, before):
    call = parse_call(f"conv2d_backward_data:dy=1x8x5x5,w=8x4x1x1{more},x_shape=10x10,s=2", OPS)
    (route,) = [r for r in CONV2D_BACKWARD_DATA.routes if r.name == "swap_1x1"]
    product, *scatter = route.build(call, device("CPU")).steps
    act = call["act"] != "none"
    of_channels = call.has("b") + 2 * call.has("slope")
    assert (product.constants["ACT"] > 0, product.constants["PER_CHANNEL"]) == (
        (act, of_channels) if before else (False, 0)
    )
    assert route.params(call, device("CPU"))["gather"] == ((0, 1) if before else (1,))
    if before:
        _, gather = route.build(call, device("CPU"), {"gather": 1}).steps
        assert scatter[0].shader == FILL and gather.shader == GATHER
    else:
        (gather,) = scatter
        assert gather.shader == GATHER_EPILOGUE and (gather.constants["ACT"] > 0, gather.constants["PER_CHANNEL"]) == (
            act,
            of_channels,
        )


@pytest.mark.parametrize("text", CONV3D_BACKWARD_DATA.cases[:-1])
def test_three_dimensions_are_the_other_gradient_of_the_same_products(text):
    """sum(dw w) = sum(dx x) for every x, dy and w: both are sum(y dy). A negative padding crops x."""
    call = parse_call(text, OPS)
    x, dy, w = integers(call.shape("dx"), call.shape("dy"), call.shape("w"))
    (dx,) = CONV3D_BACKWARD_DATA.reference(call, {"dy": dy, "w": w})
    crops = [(max(-a, 0), max(-b, 0)) for a, b in zip(call["padding"], call["padding"][3:], strict=False)]
    kept = (..., *(slice(a, n - b) for n, (a, b) in zip(x.shape[2:], crops, strict=True)))
    attrs = {name: call[name] for name in ("stride", "dilation", "groups")}
    attrs |= {"w_shape": w.shape, "padding": tuple(max(pad, 0) for pad in call["padding"])}
    specs = {"x": TensorSpec(x[kept].shape), "dy": TensorSpec(dy.shape)}
    weights = OPS["conv3d_backward_weight"].call(specs, attrs)
    (dw,) = OPS["conv3d_backward_weight"].reference(weights, {"x": x[kept], "dy": dy})
    assert (dw * w).sum() == (dx * x).sum() and dx.any()
    assert np.count_nonzero(dx) == np.count_nonzero(dx[kept])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dy=1x4x3x3x3,w=4x5x3x3x3", "needs the attribute 'x_shape'"),
        ("dy=1x4x3x3x3,w=4x5x3x3x3,x_shape=5x5", r"x_shape \(D, H, W\) or .* not .* 5x5"),
        ("dy=1x4x3x3,w=4x5x3x3x3,x_shape=5x5x5", r"takes dy \(N, C_out, OD, OH, OW\)"),
        ("dy=1x4x3x3x3,w=6x5x3x3x3,x_shape=5x5x5", "dy has 4 channels, but w makes 6"),
        ("dy=1x4x3x3x3,w=4x5x3x3x3,x_shape=5x5x5,g=3", "4x5x3x3x3 and has 3 groups"),
        ("dy=1x4x3x3x3,w=4x5x3x3x3,x_shape=2x5x5x5x5", "with 1 images of dy and 5 input channels of w it is"),
        ("dy=1x4x3x3x3,w=4x5x3x3x3,x_shape=5x6x5", "along h dy has 3, but x of 6 .* = 4"),
        ("dy=1x4x3x3x3,w=4x5x3x3x3,x_shape=5x5x5,p=0x0x-2x0x0x-3", "along w a padding of -2 and -3 crops 5 of 5; one"),
        ("dy=1x4x3x3x3,w=4x5x3x3x3,x_shape=5x5x5,s=0", r"stride is \(0,\)"),
        ("dy=1x4x3x3x3,w=4x5x3x3x3:f16,x_shape=5x5x5", "operands of one float dtype"),
    ],
)
def test_illegal_calls_of_three_dimensions_name_their_values(text, message):
    with pytest.raises(GraphError, match=message):
        parse_call(f"conv3d_backward_data:{text}", OPS)
