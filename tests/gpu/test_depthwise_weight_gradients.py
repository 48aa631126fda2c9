"""The routes of weight gradients with one input channel per group against the float64 reference: kernels, strides,
dilations and paddings, tails of rows and lanes, every parameter, numbers that are none, 16-bit floats."""

import itertools

import numpy as np
import pytest
from route_kit import draw, right, takes

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect, run_call
from vkconv.core import RouteError
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.kernels.windows import out_extent

pytestmark = pytest.mark.gpu
ROUTES = {
    route.name: route
    for route in OPS["conv2d_backward_weight"].routes
    if route.name in ("depthwise", "depthwise_planes")
}
# What shares the pixels of a channel out among lanes.
SHARES = {"depthwise": ("columns", "rows", "together"), "depthwise_planes": ("lines", "rows", "columns", "staged")}
ADDED = ",add={w},scale=-0.5,beta=2"


def depthwise(n, c, extent, kernel, stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1), multiplier=1, more=""):
    """A call of so many channels and output channels of each."""
    sides = zip("hw", extent, kernel, stride, (pad[0::2], pad[1::2]), dilation, strict=True)
    out = [out_extent(axis, e, k, s, p, d) for axis, e, k, s, p, d in sides]
    shapes = {"x": (n, c, *extent), "dy": (n, c * multiplier, *out), "w_shape": (c * multiplier, 1, *kernel)}
    text = ",".join(f"{name}={'x'.join(map(str, values))}" for name, values in shapes.items())
    attrs = {"s": stride, "p": pad, "d": dilation}
    text += "".join(f",{name}={'x'.join(map(str, values))}" for name, values in attrs.items())
    text += more.format(w="x".join(map(str, shapes["w_shape"])))
    return parse_call(f"conv2d_backward_weight:{text},g={c}", OPS)


@pytest.fixture(params=ROUTES.values(), ids=ROUTES)
def route(request):
    return request.param


def legal_of(route, call, device):
    return route.legal(call, select_device(device)[1])


def shares(route, call, device, most, **given):
    """Ways to share pixels out, but for what is given: so many of all, evenly."""
    legal = legal_of(route, call, device)
    values = ([given[name]] if name in given else legal[name] for name in SHARES[route.name])
    ways = [dict(zip(SHARES[route.name], way, strict=True)) for way in itertools.product(*values)]
    return ways[:: -(-len(ways) // most) | 1]


def exactly_right(call, route, device, params=None):
    """The reference's whole numbers to the bit, and real ones within the tolerance."""
    arrays = draw(call, "integers")
    got = right(call, arrays, route.name, device, params)
    np.testing.assert_array_equal(got, expect(call, arrays).outputs[0], err_msg=f"{format_call(call, OPS)} {params}")
    right(call, draw(call, "normals"), route.name, device, params)


KERNELS = ((1, 1), (3, 3), (5, 5), (7, 7), (1, 7), (7, 1), (2, 4), (3, 6))


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_kernels_and_strides(kernel, stride, route, device):
    half = tuple(k // 2 for k in kernel)
    exactly_right(depthwise(3, 3, (9, 20), kernel, stride, (*half, *half)), route, device)
    exactly_right(depthwise(2, 5, (11, 13), kernel, stride, (0, half[1], half[0], 0)), route, device)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pad"),
    [
        ((3, 3), (1, 1), (2, 2), (2, 2, 2, 2)),
        ((3, 3), (2, 2), (3, 2), (0, 1, 2, 3)),
        ((5, 5), (1, 1), (2, 3), (4, 6, 4, 6)),
        ((7, 7), (2, 1), (2, 2), (6, 6, 6, 6)),
        ((2, 3), (3, 2), (4, 1), (5, 0, 0, 2)),
        ((1, 5), (1, 1), (1, 8), (0, 16, 0, 16)),
        ((3, 3), (1, 1), (1, 1), (4, 5, 7, 6)),
    ],
)
def test_dilations_and_paddings(kernel, stride, dilation, pad, route, device):
    """Paddings beyond the kernel: rows and columns of dy that meet zeros alone."""
    for extent in ((15, 16), (13, 17)):
        exactly_right(depthwise(2, 3, extent, kernel, stride, pad, dilation), route, device)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 31, 33, 260])
@pytest.mark.parametrize("height", [1, 2, 17])
def test_tails_of_rows_and_planes(height, width, route, device):
    """Planes of one row, rows shorter than an invocation's columns and wider than a workgroup."""
    exactly_right(depthwise(3, 5, (height, width), (3, 3), pad=(1, 1, 1, 1)), route, device)
    exactly_right(depthwise(1, 7, (height, width), (3, 3), (2, 2), (1, 1, 1, 1), more=ADDED), route, device)


@pytest.mark.parametrize("multiplier", [2, 3, 7])
def test_several_output_channels_of_an_input_channel(multiplier, route, device):
    exactly_right(depthwise(2, 3, (9, 12), (3, 3), pad=(1, 1, 1, 1), multiplier=multiplier), route, device)
    exactly_right(
        depthwise(2, 1, (9, 12), (5, 3), (2, 1), (2, 1, 2, 1), multiplier=multiplier, more=ADDED), route, device
    )


CALLS = (
    depthwise(3, 2, (12, 12), (3, 3), pad=(1, 1, 1, 1), more=ADDED),
    depthwise(2, 3, (11, 13), (5, 3), (2, 2), (2, 1, 1, 2), (1, 2)),
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: format_call(call, OPS))
@pytest.mark.parametrize("name", ["lines", "columns", "rows", "together", "staged", "local", "split_k", "tree"])
def test_every_value_of_a_parameter(name, call, route, device):
    """Each with few slices and with several: the same sums, whatever a workgroup has of them."""
    legal = legal_of(route, call, device)
    if name not in legal:
        pytest.skip(f"{route.name} has no {name}")
    slices = [n for n in (1, 3) if n in legal["split_k"]]
    for value, split_k in itertools.product(legal[name], slices):
        exactly_right(call, route, device, {"split_k": split_k, name: value})


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=lambda call: format_call(call, OPS))
@pytest.mark.share(4)
def test_shares_by_lanes(call, route, device):
    legal = legal_of(route, call, device)
    lanes = itertools.cycle(itertools.product(legal["local"], legal["tree"]))
    for way, (local, tree) in zip(shares(route, call, device, 100), lanes, strict=False):
        right(call, draw(call, "normals"), route.name, device, {**way, "local": local, "tree": tree})


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("more", ["", ADDED, ",dw_dtype=f32"])
@pytest.mark.parametrize("width", [16, 13])
def test_16_bit_floats(width, more, dtype, route, device):
    """Sums of f32: 700 products of ones are 700, also where neighbours in bf16 are 4 apart."""
    call = depthwise(4, 3, (14, width), (3, 3), pad=(1, 1, 1, 1), more=more)
    call = parse_call(f"{format_call(call, OPS)},dtype={dtype}".replace(",dtype=f32,", ","), OPS)
    kinds = {"depthwise": {"columns": (4, 1)}, "depthwise_planes": {"staged": (1, 0)}}
    ((name, values),) = kinds[route.name].items()
    for params in ({}, *({"split_k": 3, name: value} for value in values)):
        right(call, draw(call, "normals"), route.name, device, params)


def test_the_same_bytes_each_time(route, device):
    """From scratch and a gradient full of NaN bits at first, and of what the run before left then."""
    call = CALLS[0]
    arrays = draw(call, "normals")
    for split_k in (1, 3):
        ran = run_call(call, arrays, device=device, route=route.name, params={"split_k": split_k}, replays=3)
        assert np.isfinite(ran.outputs[0][0]).all()
        assert len({outputs[0].tobytes() for outputs in ran.outputs}) == 1


@pytest.mark.parametrize("columns", [1, 2])
def test_nan_and_infinity_go_where_ieee_says(columns, route, device):
    """Also where an infinity meets padding, which is zeros."""
    call = depthwise(2, 4, (11, 12), (3, 3), (2, 2), (1, 1, 0, 0), more=ADDED)
    arrays = draw(call, "normals")
    arrays["x"][0, 0, 4, 3], arrays["dy"][1, 2, 0, 3], arrays["add"][3, 0, 1, 1] = np.nan, np.inf, -np.inf
    for way in shares(route, call, device, 12, columns=columns):
        params = {**way, "split_k": 1}
        ran, checked = check_call(call, arrays, device=device, route=route.name, params=params)
        assert checked.ok, f"{params}: {checked.problem}"
        (dw,) = ran.outputs[0]
        assert np.isnan(dw[0]).any() and np.isfinite(dw[1]).all() and np.isnan(dw[2, 0, 0]).all()


@pytest.mark.parametrize("columns", [1, 2, 4, 8])
def test_what_no_tap_meets_is_not_read_into_a_sum(columns, route, device):
    """Rows between strides, columns behind the last window: infinite, and nothing of it in the sums."""
    call = depthwise(2, 3, (15, 30), (2, 2), (4, 5), (0, 0, 0, 0))
    arrays = draw(call, "normals")
    mask = np.ones((15, 30), bool)
    for ky, kx in itertools.product(range(2), range(2)):
        mask[ky : ky + 4 * (call.shape("dy")[2] - 1) + 1 : 4, kx : kx + 5 * (call.shape("dy")[3] - 1) + 1 : 5] = False
    arrays["x"][:, :, mask] = np.inf
    if columns in legal_of(route, call, device)["columns"]:
        for params in shares(route, call, device, 8, columns=columns):
            assert np.isfinite(right(call, arrays, route.name, device, params)).all()


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("edge", ["top", "bottom", "left", "right"])
def test_an_infinity_at_an_edge_reaches_the_taps_that_meet_it_alone(edge, stride, route, device):
    """The others of a strip's first and last rows, and of pixels behind the last, multiply zeros by nothing."""
    side = (7, 11) if stride == (1, 1) else (11, 15)
    call = depthwise(2, 3, side, (3, 3), stride)
    assert call.shape("dy")[2:] == ((5, 9) if stride == (1, 1) else (5, 7))
    at = {"top": np.s_[0, :], "bottom": np.s_[-1, :], "left": np.s_[:, 0], "right": np.s_[:, -1]}[edge]
    met = {"top": np.s_[0, :], "bottom": np.s_[2, :], "left": np.s_[:, 0], "right": np.s_[:, 2]}[edge]
    arrays = draw(call, "normals")
    arrays["x"][(..., *at)], arrays["dy"] = np.inf, np.abs(arrays["dy"])
    for params in shares(route, call, device, 9):
        (dw,) = run_call(call, arrays, device=device, route=route.name, params=params).outputs[0]
        infinite = np.zeros((3, 1, 3, 3), bool)
        infinite[(..., *met)] = True
        np.testing.assert_array_equal(np.isposinf(dw), infinite, err_msg=str(params))
        assert np.isfinite(dw[~infinite]).all(), params


@pytest.mark.share(3)
def test_more_workgroups_than_a_dimension_has(route, device):
    call = parse_call("conv2d_backward_weight:x=1x70001x1x2,dy=1x70001x1x2,w_shape=70001x1x1x1,g=70001", OPS)
    arrays = draw(call, "integers")
    ran = run_call(call, arrays, device=device, route=route.name)
    np.testing.assert_array_equal(ran.outputs[0][0], expect(call, arrays).outputs[0])


@pytest.mark.parametrize("more", ["", ",add=6x1x3x3,beta=0.5"])
def test_a_batch_of_nothing_is_what_is_added(more, route, device):
    call = parse_call(f"conv2d_backward_weight:x=0x6x6x6,dy=0x6x4x4{more},w_shape=6x1x3x3,g=6", OPS)
    arrays = draw(call, "normals")
    ran = run_call(call, arrays, device=device, route=route.name)
    want = np.float32(0.5) * arrays["add"] if more else np.zeros((6, 1, 3, 3), np.float32)
    np.testing.assert_array_equal(ran.outputs[0][0], want)


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        (
            "x=1x4x9x9,dy=1x4x9x9,w_shape=4x2x3x3,g=2,p=1",
            ROUTES,
            "one input channel per group, and here it is 2 channels",
        ),
        ("x=1x4x9x9,dy=1x4x9x9,w_shape=4x1x9x9,g=4,p=4", ROUTES, "at most 49 taps, and here it is 81 taps"),
        (
            "x=1x4x9x9,dy=1x4x9x9,w_shape=4x1x3x3,g=4,p=12,d=12",
            ["depthwise"],
            "20 rows of dy and .* here it is 25 rows",
        ),
        (
            "x=1x4x9x90,dy=1x4x9x90,w_shape=4x1x3x3,g=4,p=1x30,d=1x30",
            ["depthwise_planes"],
            "taps within 63 rows and 40 columns, and here it is 3 rows and 61 columns",
        ),
        (
            "x=1x2x2x9000,dy=1x2x2x9000,w_shape=2x1x1x1,g=2",
            ["depthwise_planes"],
            "a band of a plane in 1024 vectors .* here it is 4500 vectors",
        ),
    ],
)
def test_a_call_that_it_cannot_take_is_refused_with_the_numbers(text, names, message, route, device):
    if route.name not in names:
        pytest.skip("for another route")
    call = parse_call(f"conv2d_backward_weight:{text}", OPS)
    assert not takes(call, route.name, device)
    with pytest.raises(RouteError, match=message):
        run_call(call, draw(call, "normals"), device=device, route=route.name)
