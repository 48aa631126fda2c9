"""Gradients as functions: against the float64 reference, in every layout, and what is refused."""

import numpy as np
import pytest
from functional_kit import drawn

import vkconv
from vkconv import functional
from vkconv.backend.arrays import DeviceArray
from vkconv.check import compare, expect
from vkconv.core import GraphError, InputError, RouteError, UsageError
from vkconv.functional import cache
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def released():
    """Sessions of a test close under its own validation report."""
    yield
    functional.clear_cache()


def holds(text, arrays, dw):
    call = parse_call(text, OPS)
    assert dw.dtype == np.float32 and dw.flags.c_contiguous
    assert compare(call, [dw], expect(call, arrays)).problem == ""


@pytest.mark.parametrize("split", [None, 1, 6])
@pytest.mark.parametrize("policy", [None, "bands", "occupancy"])
def test_conv2d_backward_weight(split, policy, device):
    x, dy, d = drawn((2, 6, 9, 11), (2, 4, 5, 10), (4, 3, 3, 2))
    options = {"stride": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2), "groups": 2, "scale": 0.5, "beta": -2}
    dw = functional.conv2d_backward_weight(
        x, dy, (4, 3, 3, 2), **options, d=d, split=split, policy=policy, device=device
    )
    text = "conv2d_backward_weight:x=2x6x9x11,dy=2x4x5x10,add=4x3x3x2,w_shape=4x3x3x2,s=2x1,p=1x0x2x1,d=1x2,g=2"
    holds(f"{text},scale=0.5,beta=-2", {"x": x, "dy": dy, "add": d}, dw)


def test_it_is_the_gradient_of_conv2d(device):
    x, w, dy, step = drawn((2, 4, 7, 8), (6, 2, 3, 3), (2, 6, 4, 4), (6, 2, 3, 3))
    options = {"stride": 2, "padding": 1, "groups": 2, "device": device}
    dw = functional.conv2d_backward_weight(x, dy, w.shape, **options).astype(np.float64)
    y, moved = (functional.conv2d(x, v, **options).astype(np.float64) for v in (w, w + step))
    np.testing.assert_allclose((dw * step).sum(), ((moved - y) * dy).sum(), rtol=1e-4)


def test_channels_last_and_groups_apart_are_the_same_with_the_axes_moved(device):
    x, dy, d = drawn((2, 6, 7, 5), (2, 4, 7, 5), (4, 3, 3, 3))
    options = {"padding": 1, "beta": 1.5, "device": device}
    want = functional.conv2d_backward_weight(x, dy, d.shape, d=d, groups=2, **options)
    last = [np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in (x, dy)]
    dw = functional.conv2d_backward_weight(*last, d.shape, d=d, groups=2, layout="NHWC", **options)
    np.testing.assert_array_equal(dw, want)
    apart = last[0].reshape(2, 7, 5, 2, 3), last[1].reshape(2, 7, 5, 2, 2)
    gkyxc = np.ascontiguousarray(d.reshape(2, 2, 3, 3, 3).transpose(0, 1, 3, 4, 2))
    dw = functional.conv2d_backward_weight(*apart, gkyxc.shape, d=gkyxc, layout="NHWGC", **options)
    assert dw.shape == gkyxc.shape and dw.flags.c_contiguous
    np.testing.assert_array_equal(dw.transpose(0, 1, 4, 2, 3).reshape(d.shape), want)


def test_arrays_on_the_device_are_reordered_there_and_their_gradients_stay(device):
    x, dy, w = drawn((2, 7, 5, 2, 3), (2, 7, 5, 2, 2), (2, 2, 3, 3, 3))
    options = {"padding": 1, "layout": "NHWGC", "device": device}
    there = [vkconv.array(a, device) for a in (x, dy, w)]
    dw = functional.conv2d_backward_weight(*there[:2], w.shape, out="device", **options)
    dx = functional.conv2d_backward_data(there[1], there[2], x.shape, out="device", **options)
    db = functional.conv2d_bias_gradient(there[1], layout="NHWGC", device=device, out="device")
    assert all(isinstance(made, DeviceArray) for made in (dw, dx, db))
    np.testing.assert_array_equal(dw.numpy(), functional.conv2d_backward_weight(x, dy, w.shape, **options))
    np.testing.assert_array_equal(dx.numpy(), functional.conv2d_backward_data(dy, w, x.shape, **options))
    assert db.shape == (4,)
    # One call each: nothing else ran for a layout.
    assert all(len(kept.session.plan.nodes) == 1 for kept in cache._sessions.values())
    text = "conv2d_backward_weight:x=2x7x5x2x3,dy=2x7x5x2x2,w_shape=2x2x3x3x3,p=1,layout=NHWGC,w_layout=GKYXC"
    holds(text, {"x": x, "dy": dy}, dw.numpy())


def test_three_dimensions(device):
    x, dy = drawn((2, 4, 5, 6, 7), (2, 6, 3, 6, 6))
    options = {"stride": (2, 1, 1), "padding": (1, 1, 0, 1, 1, 1), "groups": 2, "device": device}
    want = functional.conv3d_backward_weight(x, dy, (6, 2, 3, 3, 3), **options)
    text = "conv3d_backward_weight:x=2x4x5x6x7,dy=2x6x3x6x6,w_shape=6x2x3x3x3,s=2x1x1,p=1x1x0x1x1x1,g=2"
    holds(text, {"x": x, "dy": dy}, want)
    last = [a.transpose(0, 2, 3, 4, 1) for a in (x, dy)]
    dw = functional.conv3d_backward_weight(*last, (6, 2, 3, 3, 3), layout="NDHWC", **options)
    np.testing.assert_array_equal(dw, want)
    apart = last[0].reshape(2, 5, 6, 7, 2, 2), last[1].reshape(2, 3, 6, 6, 2, 3)
    dw = functional.conv3d_backward_weight(*apart, (2, 3, 3, 3, 3, 2), layout="NDHWGC", **options)
    np.testing.assert_array_equal(dw.transpose(0, 1, 5, 2, 3, 4).reshape(want.shape), want)


def test_bias_gradient(device):
    (dy,) = drawn((3, 38, 5, 13))
    want = dy.astype(np.float64).sum((0, 2, 3))
    db = functional.conv2d_bias_gradient(dy, device=device)
    assert db.dtype == np.float32
    np.testing.assert_allclose(db, want, atol=3 * 5 * 13 * 2.0**-24 * np.abs(want).max())
    last = functional.conv2d_bias_gradient(dy.transpose(0, 2, 3, 1), layout="NHWC", device=device)
    np.testing.assert_allclose(last, db, atol=3 * 5 * 13 * 2.0**-24 * np.abs(want).max())
    apart = dy.transpose(0, 2, 3, 1).reshape(3, 5, 13, 2, 19)
    np.testing.assert_array_equal(functional.conv2d_bias_gradient(apart, layout="NHWGC", device=device), last)
    assert not functional.conv2d_bias_gradient(dy[:0], device=device).any()


def test_the_numbers_of_a_convolution_come_in_order(device):
    x, dy, d = drawn((2, 4, 6, 6), (2, 6, 3, 3), (6, 2, 3, 3))
    dw = functional.conv2d_backward_weight(x, dy, d.shape, 2, 1, 1, 2, np.float32(0.5), 3, d, device=device)
    text = "conv2d_backward_weight:x=2x4x6x6,dy=2x6x3x3,w_shape=6x2x3x3,s=2,p=1,g=2,scale=0.5,add=6x2x3x3,beta=3"
    holds(text, {"x": x, "dy": dy, "add": d}, dw)


def test_a_batch_of_nothing_gives_nothing_or_what_is_added(device):
    x, dy, d = drawn((0, 4, 6, 6), (0, 6, 4, 4), (6, 2, 3, 3))
    dw = functional.conv2d_backward_weight(x, dy, d.shape, groups=2, device=device)
    assert dw.shape == d.shape and not dw.any()
    dw = functional.conv2d_backward_weight(x, dy, d.shape, groups=2, beta=0.5, d=d, device=device)
    np.testing.assert_array_equal(dw, np.float32(0.5) * d)


X, DY = drawn((2, 4, 6, 6), (2, 6, 4, 4))
REFUSED = [
    ({"dy": DY[:, :, :3]}, GraphError, r"along h dy has 3, but x of 6 with padding 0 \+ 0, kernel 3, .* = 4"),
    ({"stride": 2}, GraphError, r"along h dy has 4, .* and stride 2 makes \(6 \+ 0 - 2 - 1\) / 2 \+ 1 = 2"),
    ({"x": X[:1]}, GraphError, "x has 1 images, but dy has 2"),
    ({"w_shape": (6, 3, 3, 3)}, GraphError, "x has 4 channels, but w_shape 6x3x3x3 has 3 per group in 1 group = 3"),
    ({"w_shape": (5, 4, 3, 3)}, GraphError, "dy has 6 channels, but w_shape 5x4x3x3 makes 5"),
    ({"w_shape": (6, 1, 3, 3), "groups": 4}, GraphError, "6 output channels do not divide into 4 groups"),
    ({"w_shape": (6, 4, 3)}, GraphError, r"takes x \(N, C_in, H, W\), dy \(N, C_out, OH, OW\) and w_shape"),
    ({"w_shape": (6, 4, 0, 3)}, GraphError, "the kernel is 0x3"),
    ({"w_shape": 6.5}, UsageError, "w_shape is 6.5"),
    ({"groups": 0}, GraphError, "groups is 0"),
    ({"padding": (1, 2, 3)}, GraphError, r"padding is \(1, 2, 3\); it takes 1, 2 \(h, w\) or 4 values"),
    ({"padding": -1}, GraphError, "at least 0"),
    ({"padding": "same_upper"}, UsageError, "padding is 'same_upper'"),
    ({"dilation": 0}, GraphError, r"dilation is \(0,\); it takes 1 or 2 values"),
    ({"dilation": 4}, GraphError, "the output would be empty"),
    ({"beta": 1}, GraphError, "beta is 1.0, but there is no operand add"),
    ({"d": X}, GraphError, "add is .*2x4x6x6.*; it is added to dw and has w_shape and its type, 6x4x3x3 f32"),
    ({"scale": "1"}, UsageError, "scale is '1'"),
    ({"scale": 1e39}, GraphError, "scale is 1e[+]39, which f32 cannot hold"),
    ({"policy": "band"}, UsageError, "cannot take policy=band .* policy is one of auto, bands, occupancy"),
    ({"route": "direct", "policy": "bands"}, UsageError, "'direct' .* has no parameter 'policy'; it has tile"),
    ({"split": 0}, UsageError, "cannot take split_k=0"),
    ({"split": -3}, UsageError, "cannot take split_k=-3"),
    ({"split": 1.5}, UsageError, "split is 1.5"),
    ({"split": (1, 2)}, UsageError, r"split is \(1, 2\); it is one integer"),
    ({"dy": None}, InputError, "needs dy"),
    ({"route": "explicit_gemm"}, RouteError, "needs a kernel of one tap, stride 1 and no padding, and here it is 3x3"),
    ({"route": "two_stages"}, UsageError, "did you mean 'two_stage'"),
    ({"split": 1 << 20}, UsageError, "split_k is one of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32$"),
    ({"layout": "NHCW"}, UsageError, "has no layout 'NHCW'"),
    ({"layout": "NHWGC"}, InputError, r"takes x \(N, H, W, G, C\), not an array of shape"),
    ({"x": X.astype(np.float64)}, GraphError, "numpy dtype float64"),
    ({"dy": DY.astype(np.int32)}, GraphError, "one float dtype"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED, ids=lambda v: str(v)[:40] if type(v) is str else "")
@pytest.mark.share(1)
def test_what_is_refused_says_why(change, error, message, device):
    given = {"x": X, "dy": DY, "w_shape": (6, 4, 3, 3), "device": device, **change}
    with pytest.raises(error, match=message):
        functional.conv2d_backward_weight(given.pop("x"), given.pop("dy"), given.pop("w_shape"), **given)
    assert not cache._sessions


def test_groups_that_differ_are_refused(device):
    x, dy = np.zeros((1, 5, 5, 2, 3), np.float32), np.zeros((1, 5, 5, 2, 4), np.float32)
    for shape, groups, message in (
        ((3, 4, 1, 1, 3), 1, "x has 2 groups, dy 2, w_shape 3"),
        ((2, 4, 1, 1, 3), 3, "groups is 3"),
        ((8, 3, 1, 1), 2, r"is \(G, C_out/G, KH, KW, C_in/G\)"),
    ):
        with pytest.raises(InputError, match=message):
            functional.conv2d_backward_weight(x, dy, shape, groups=groups, layout="NHWGC", device=device)


def test_one_dimension_is_one_of_height_1(device):
    x, dy, w, d = drawn((2, 6, 19), (2, 4, 9), (4, 3, 5), (4, 3, 5))
    options = {"stride": 2, "padding": (1, 2), "dilation": 1, "groups": 2, "device": device}
    high = {"stride": (1, 2), "padding": (0, 1, 0, 2), "groups": 2, "device": device}
    dw = functional.conv1d_backward_weight(x, dy, w.shape, **options, d=d, beta=2)
    wide = [a[:, :, None] for a in (x, dy, d)]
    want = functional.conv2d_backward_weight(*wide[:2], (4, 3, 1, 5), **high, d=wide[2], beta=2)
    np.testing.assert_array_equal(dw, want[:, :, 0])
    dx = functional.conv1d_backward_data(dy, w, x.shape, **options)
    want = functional.conv2d_backward_data(wide[1], w[:, :, None], (1, 19), **high)
    assert dx.shape == x.shape
    np.testing.assert_array_equal(dx, want[:, :, 0])
    last = [np.ascontiguousarray(a.transpose(0, 2, 1)) for a in (x, dy)]
    moved = functional.conv1d_backward_data(last[1], w, (19,), layout="NWC", **options)
    np.testing.assert_array_equal(moved, dx.transpose(0, 2, 1))
    apart = last[0].reshape(2, 19, 2, 3), last[1].reshape(2, 9, 2, 2)
    gkxc, d_gkxc = (np.ascontiguousarray(a.reshape(2, 2, 3, 5).transpose(0, 1, 3, 2)) for a in (w, d))
    moved = functional.conv1d_backward_weight(*apart, gkxc.shape, layout="NWGC", **options, d=d_gkxc, beta=2)
    np.testing.assert_array_equal(moved, dw.reshape(2, 2, 3, 5).transpose(0, 1, 3, 2))
    moved = functional.conv1d_backward_data(apart[1], gkxc, apart[0].shape, layout="NWGC", **options)
    np.testing.assert_array_equal(moved.reshape(2, 19, 6), dx.transpose(0, 2, 1))
    with pytest.raises(UsageError, match=r"x_shape is \(1, 19\); with the layout NCW it is W or \(N, C, W\)"):
        functional.conv1d_backward_data(dy, w, (1, 19), **options)
    with pytest.raises(UsageError, match=r"w_shape is \(4, 3, 1, 5\); with the layout NCW it is \(K, C, X\)"):
        functional.conv1d_backward_weight(x, dy, (4, 3, 1, 5), **options)


def test_several_tensors_are_added_each_times_its_number(device):
    x, dy, *d = drawn((2, 3, 7, 8), (2, 5, 7, 8), *[(5, 3, 3, 3)] * 3)
    dw = functional.conv2d_backward_weight(x, dy, (5, 3, 3, 3), padding=1, beta=(2, -0.5, 3), d=d, device=device)
    text = "conv2d_backward_weight:x=2x3x7x8,dy=2x5x7x8,w_shape=5x3x3x3,p=1,beta=2,factors=-0.5x3"
    added = {"add": d[0], "term0": d[1], "term1": d[2]}
    holds(f"{text},{','.join(f'{name}=5x3x3x3' for name in added)}", {"x": x, "dy": dy, **added}, dw)
    with pytest.raises(UsageError, match="beta has 2 numbers and d 3 tensors"):
        functional.conv2d_backward_weight(x, dy, (5, 3, 3, 3), padding=1, beta=(2, 1), d=d, device=device)


def test_a_gradient_of_f32_is_not_rounded_to_the_type_of_its_operands(device):
    x, dy = (a.astype(np.float16) for a in drawn((3, 5, 9, 7), (3, 7, 9, 7)))
    options = {"w_shape": (7, 5, 3, 3), "padding": 1, "device": device}
    dw = functional.conv2d_backward_weight(x, dy, dtype="f32", **options)
    text = "conv2d_backward_weight:x=3x5x9x7,dy=3x7x9x7,w_shape=7x5x3x3,p=1,dtype=f16,dw_dtype=f32"
    holds(text, {"x": x, "dy": dy}, dw)
    rounded = functional.conv2d_backward_weight(x, dy, **options)
    assert rounded.dtype == np.float16 and np.any(dw != dw.astype(np.float16))
    np.testing.assert_array_equal(rounded, dw.astype(np.float16))
    with pytest.raises(GraphError, match="dw_dtype is bf16, and x and dy are f16"):
        functional.conv2d_backward_weight(x, dy, dtype="bf16", **options)


def test_data_gradients_of_three_dimensions_in_every_layout(device):
    dy, w = drawn((2, 4, 3, 4, 5), (4, 3, 2, 3, 3))
    options = {"stride": (2, 1, 1), "padding": (0, 1, 1), "groups": 2, "device": device}
    dx = functional.conv3d_backward_data(dy, w, (6, 4, 5), **options)
    text = "conv3d_backward_data:dy=2x4x3x4x5,w=4x3x2x3x3,x_shape=6x4x5,s=2x1x1,p=0x1x1,g=2"
    holds(text, {"dy": dy, "w": w}, dx)
    last = np.ascontiguousarray(dy.transpose(0, 2, 3, 4, 1))
    moved = functional.conv3d_backward_data(last, w, (2, 6, 4, 5, 6), layout="NDHWC", **options)
    np.testing.assert_array_equal(moved, dx.transpose(0, 2, 3, 4, 1))
    gkzyxc = np.ascontiguousarray(w.reshape(2, 2, 3, 2, 3, 3).transpose(0, 1, 3, 4, 5, 2))
    apart = functional.conv3d_backward_data(
        last.reshape(2, 3, 4, 5, 2, 2), gkzyxc, (6, 4, 5), layout="NDHWGC", **options
    )
    np.testing.assert_array_equal(apart.reshape(moved.shape), moved)
    with pytest.raises(UsageError, match=r"x_shape is \(6, 4\); with the layout NCDHW it is \(D, H, W\) or \(N, C, D"):
        functional.conv3d_backward_data(dy, w, (6, 4), **options)


@pytest.mark.parametrize(
    ("policy", "route"),
    [("iree", "split_multi"), ("ck", "explicit_gemm")],
)
def test_the_published_rules_of_systems_choose_the_route_too(policy, route, device):
    x, dy = (np.random.default_rng(3).integers(-3, 4, (7, c, 31, 37)).astype(np.float32) for c in (13, 19))
    want = np.einsum("nchw,nkhw->kc", x, dy)[..., None, None]
    made = vkconv.functional.conv2d_backward_weight(x, dy, (19, 13, 1, 1), policy=policy, device=device)
    np.testing.assert_array_equal(made, want)
    row = vkconv.functional.conv1d_backward_weight(x[:, :, 0], dy[:, :, 0], (19, 13, 1), policy=policy, device=device)
    np.testing.assert_array_equal(row, np.einsum("ncw,nkw->kc", x[:, :, 0], dy[:, :, 0])[..., None])
    taken = [kept.session.plan.nodes[0] for kept in cache._sessions.values()]
    assert any(node.choice.by.startswith(f"policy {policy}") and node.route == route for node in taken)
    with pytest.raises(UsageError, match=r"'two_stage' .* cannot take policy=ck"):
        vkconv.functional.conv2d_backward_weight(x, dy, (19, 13, 1, 1), route="two_stage", policy="ck", device=device)
