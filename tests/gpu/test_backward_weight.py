"""Every route and kernel of the backward-weight ops against the float64 reference: upstream's cases, drawn calls,
poisoned memory, numbers that are none, more workgroups than a dimension has."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from route_kit import allowed, drawn_agree, of_f32, takes
from route_kit import draw as inputs_of

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, compare, expect, run_call
from vkconv.core import GraphError, RouteError
from vkconv.ops import OPS
from vkconv.ops.conv.wgrad import winograd
from vkconv.ops.conv.wgrad.kernels import Gemm, Rows, Skinny
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import TILES
from vkconv.ops.core.calls import parse_call
from vkconv.ops.core.tolerance import two_level_tolerance
from vkconv.ops.kernels.winograd import WinogradTiles

pytestmark = pytest.mark.gpu
OP = OPS["conv2d_backward_weight"]
ROUTES = [route.name for route in of_f32("conv2d_backward_weight")]
# Winograd's products differ from those of the definition: not exact, and what is no number reaches a whole tile.
DEPTHWISE = ("depthwise", "depthwise_planes")
PLAIN = [name for name in ROUTES if name != "winograd"]


def route_of(name):
    return next(route for route in OP.routes if route.name == name)


def in_slices(call, route, split_k, device):
    """Parameters for so many slices, where the route slices into so many."""
    legal = route_of(route).legal(call, select_device(device)[1])
    return {"split_k": split_k} if split_k in legal.get("split_k", ()) else {}


def integers(call, seed=11):
    """From -5 to 5, as upstream's tests have them: every partial sum is exact in f32."""
    rng = np.random.default_rng(seed)
    return {k: rng.integers(-5, 6, s.dims).astype(np.float32) for k, s in call.operands.items() if s is not None}


def call_of(g, n, k, c, kernel, extent, stride=1, pad=0, end=None, more=""):
    """A call in composable_kernel's words: k and c are channels of a group, pads of the start and of the end."""
    rank = len(extent)
    end = pad if end is None else end
    starts, ends = ((p,) * rank if isinstance(p, int) else p for p in (pad, end))
    out = [(e + a + b - w) // stride + 1 for e, w, a, b in zip(extent, kernel, starts, ends, strict=True)]
    shapes = {"x": (n, g * c, *extent), "dy": (n, g * k, *out), "w_shape": (g * k, c, *kernel)}
    shapes |= {"s": (stride,) * rank, "p": (*starts, *ends)}
    text = ",".join(f"{name}={'x'.join(map(str, values))}" for name, values in shapes.items())
    return f"conv{rank}d_backward_weight:{text},g={g}{more}"


# test/grouped_convnd_bwd_weight: two dimensions as they are, but for the images of the fifth; one and three, scaled.
UPSTREAM = (
    call_of(2, 64, 4, 4, (1, 1), (7, 7)),
    call_of(2, 64, 128, 256, (1, 1), (7, 7), 2),
    call_of(2, 64, 3, 3, (1, 1), (7, 7)),
    call_of(2, 64, 5, 5, (1, 1), (7, 7)),
    call_of(2, 1, 128, 256, (3, 3), (14, 14), pad=1),
    call_of(2, 128, 128, 256, (1, 1), (3, 3)),
    call_of(1, 1, 1, 32, (3, 3), (32, 32), pad=1),
    call_of(1, 1, 64, 3, (3, 3), (32, 32), pad=1),
    call_of(1, 1, 1, 1, (3, 3), (32, 32), pad=1),
    call_of(16, 16, 1, 1, (3, 3), (28, 28), 2, pad=1),
    call_of(2, 16, 32, 64, (1, 1), (1, 14), 2),
    call_of(2, 32, 32, 64, (1, 3), (1, 28), pad=(0, 1)),
    call_of(1, 1, 1, 32, (1, 3), (1, 32), pad=(0, 1)),
    call_of(2, 16, 16, 32, (1, 1, 1), (7, 7, 7), 2),
    call_of(2, 2, 16, 32, (3, 3, 3), (14, 14, 3), pad=1),
    call_of(1, 1, 1, 32, (3, 3, 3), (8, 9, 10), pad=1),
    call_of(4, 1, 8, 16, (3, 3, 3), (7, 7, 7), pad=1),
    call_of(1, 1, 4, 4, (3, 3, 3), (7, 14, 14), pad=1, more=",scale=2"),
)


@pytest.mark.parametrize("split_k", [None, 1, 2])
@pytest.mark.parametrize("text", UPSTREAM)
def test_upstreams_cases_by_every_route(text, split_k, device):
    call = parse_call(text, OPS)
    arrays = integers(call)
    wanted = expect(call, arrays)
    for route in allowed(call, device):
        ran = run_call(call, arrays, device=device, route=route, params=in_slices(call, route, split_k, device))
        if route in PLAIN:
            np.testing.assert_array_equal(ran.outputs[0][0], wanted.outputs[0], err_msg=route)
        else:
            assert compare(call, ran.outputs[0], wanted).problem == "", route


OVERWRITTEN = (
    call_of(3, 2, 5, 3, (3, 3), (5, 6), pad=1),
    call_of(256, 2, 1, 1, (3, 3), (7, 6), pad=1),
    call_of(450, 2, 1, 1, (3, 3), (6, 7), pad=(1, 0), end=(2, 1)),
    call_of(450, 1, 1, 1, (5, 5), (9, 8), pad=(2, 1), end=(0, 3)),
    call_of(512, 2, 2, 1, (3, 3), (5, 5), 2, pad=(0, 1), end=(1, 0)),
)


@pytest.mark.parametrize("route", [name for name in PLAIN if name != "explicit_gemm"])
@pytest.mark.parametrize("text", OVERWRITTEN)
def test_nothing_that_lay_in_memory_gets_into_the_result(text, route, device):
    """Scratch and output start as NaN bits; the second run finds what the first left. Each group on its own, too."""
    call = parse_call(text, OPS)
    if not takes(call, route, device):
        assert route in DEPTHWISE and WeightGradient.of(call).channels > 1
        return
    arrays, params = integers(call), in_slices(call, route, 3, device)
    (first,), (again,) = run_call(call, arrays, device=device, route=route, params=params, replays=2).outputs
    (want,) = expect(call, arrays).outputs
    p = WeightGradient.of(call)
    for group in range(p.groups):
        rows = slice(group * p.rows, (group + 1) * p.rows)
        np.testing.assert_array_equal(first[rows], want[rows], err_msg=f"group {group}")
    assert np.isfinite(first).all() and first.tobytes() == again.tobytes()


# iree#22277 (failed to compile with a split), iree#22367 at a hundredth of its pixels, dilation, asymmetric padding.
ODD = (
    call_of(1, 4, 24, 13, (3, 3), (17, 19), pad=1),
    call_of(1, 4, 24, 5, (3, 3), (17, 19), pad=1),
    "conv2d_backward_weight:x=1x9x100x1,dy=1x192x25x1,w_shape=192x9x4x1,s=4x1",
    "conv2d_backward_weight:x=7x4x94x145,dy=7x3x94x145,w_shape=3x4x1x1",
    "conv2d_backward_weight:x=3x9x13x11,dy=3x13x11x8,w_shape=13x9x3x3,d=2,p=0x1x2x0",
    "conv2d_backward_weight:x=2x5x14x15,dy=2x9x8x6,w_shape=9x5x3x5,s=2,d=1x2,p=2x3x1x1",
    "conv2d_backward_weight:x=1x8x1x10007,dy=1x8x1x10007,w_shape=8x8x1x1",  # a prime
)


@pytest.mark.parametrize("kind", ["integers", "normals"])
@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize(
    "asked", [{}, {"split_k": 6}, {"policy": "bands"}, {"policy": "iree"}, {"policy": "occupancy"}], ids=str
)
def test_odd_channels_and_windows(text, asked, kind, device):
    """Within what upstream allows a sum in slices, which is less than a sum in one go may be off by."""
    call = parse_call(text, OPS)
    arrays, facts = inputs_of(call, kind), select_device(device)[1]
    wanted = expect(call, arrays)
    for route in allowed(call, device):
        legal = route_of(route).legal(call, facts)
        if any(value not in legal.get(name, ()) for name, value in asked.items()):
            continue
        ran = run_call(call, arrays, device=device, route=route, params=asked)
        slices = ran.params.get("split_k", 1)
        if route in ("split_n", "explicit_gemm"):
            images = WeightGradient.of(call).n
            slices = min(slices, images) if route == "split_n" else slices * images
        relative = two_level_tolerance(OP.terms(call), slices, call.outputs["dw"].dtype)
        narrow = dataclasses.replace(wanted, allowed=[dataclasses.replace(wanted.allowed[0], relative=relative)])
        assert compare(call, ran.outputs[0], narrow).problem == "", f"{route} in {slices} slices"
        if kind == "integers" and route in PLAIN:
            np.testing.assert_array_equal(ran.outputs[0][0], wanted.outputs[0], err_msg=route)


@st.composite
def gradients(draw, route):
    """A legal call that the route takes by its form: tails on every side, kernels larger than x, padding on a side."""
    winograd, depthwise = route == "winograd", route in DEPTHWISE
    rank = 2 if winograd or depthwise else draw(st.sampled_from((2, 2, 3)))
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    rows, channels = draw(st.sampled_from((1, 2, 5, 7, 17))), draw(st.sampled_from((1, 2, 3, 8, 13)))
    channels = 1 if depthwise else channels
    one = route == "explicit_gemm"
    sizes = st.tuples(*[st.integers(1, 4)] * rank)
    kernel, stride, dilation = ((1,) * rank,) * 3 if one or winograd else (draw(sizes) for _ in range(3))
    kernel = draw(st.sampled_from(((3, 3), (5, 5)))) if winograd else kernel
    padding = (0,) * (2 * rank) if one else draw(st.tuples(*[st.integers(0, 4)] * (2 * rank)))
    extent = (*draw(st.tuples(*[st.integers(1, 7)] * (rank - 1))), draw(st.sampled_from((1, 2, 5, 8, 17, 33))))
    n = draw(st.integers(1, 3))
    sides = zip(extent, kernel, stride, dilation, padding[:rank], padding[rank:], strict=True)
    out = [(e + a + b - d * (k - 1) - 1) // s + 1 for e, k, s, d, a, b in sides]
    assume(min(out) > 0)
    if winograd and kernel == (5, 5):  # of shorter sums it rounds too much
        n = max(n, -(-256 // math.prod(out)))
    w = (groups * rows, channels, *kernel)
    shapes = {"x": (n, groups * channels, *extent), "dy": (n, groups * rows, *out), "w_shape": w}
    shapes |= {"add": w} if draw(st.booleans()) else {}
    shapes |= {"s": stride, "p": padding, "d": dilation}
    text = ",".join(f"{name}={'x'.join(map(str, values))}" for name, values in shapes.items())
    text += f",g={groups},scale={draw(st.sampled_from((1, 1, -0.5, 4)))}" + (",beta=-2" if "add" in shapes else "")
    return parse_call(f"conv{rank}d_backward_weight:{text}", OPS)


SPLITS = ({}, {"split_k": 1}, {"split_k": 3}, {"policy": "bands"}, {"policy": "occupancy"})


@pytest.mark.parametrize("params", SPLITS, ids=str)
def test_two_stage_agrees_by_every_policy(params, device):
    """On a sum that bands split, too."""
    text = "conv2d_backward_weight:x=3x5x40x50,add=6x5x3x3,dy=3x6x40x50,w_shape=6x5x3x3,p=1,beta=-1"
    call = parse_call(text, OPS)
    arrays = integers(call)
    for route in ("two_stage", "one_stage"):
        ran = run_call(call, arrays, device=device, route=route, params=params)
        np.testing.assert_array_equal(ran.outputs[0][0], expect(call, arrays).outputs[0])
        assert {**ran.params, **params} == ran.params and (ran.params["split_k"] > 1) == (params != {"split_k": 1})


@pytest.mark.parametrize("route", ROUTES)
def test_drawn_calls_agree_with_the_reference(route, device):
    drawn_agree(gradients(route), route, device, examples=14, least=10, exact=lambda call: route in PLAIN)


# Larger than the tiles but by a tail, and narrow groups; scaled and added to.
TILED = {
    Gemm: "conv2d_backward_weight:x=2x17x5x13,dy=2x67x5x13,add=67x17x3x3,w_shape=67x17x3x3,p=1,scale=0.5,beta=2",
    Skinny: "conv2d_backward_weight:x=3x10x7x9,dy=3x30x4x5,add=30x2x5x3,w_shape=30x2x5x3,g=5,p=2x1,s=2,scale=-2,beta=1",
    Rows: "conv2d_backward_weight:x=3x10x7x9,dy=3x70x4x9,add=70x5x5x3,w_shape=70x5x5x3,g=2,p=2x1,s=2x1,scale=-2,beta=1",
}
# Compiling for a CPU takes seconds where a tile is large.
QUICK = {
    Gemm: [name for name, tile in TILES.items() if isinstance(tile, Gemm) and tile.rows <= 32],
    Skinny: [name for name, tile in TILES.items() if isinstance(tile, Skinny) and tile.local == 32],
    Rows: [name for name, tile in TILES.items() if isinstance(tile, Rows)][1::9],
}


def agrees_by_tile(text, route, tile, device, **params):
    call = parse_call(text, OPS)
    _, facts = select_device(device)
    if tile not in route_of(route).params(call, facts)["tile"]:
        return False
    ran, checked = check_call(
        call, inputs_of(call, "normals"), device=device, route=route, params={"tile": tile, **params}
    )
    assert ran.params["tile"] == tile and checked.ok, f"{tile}: {checked.problem}"
    return True


@pytest.mark.parametrize("kind", TILED)
def test_kernels_agree_with_the_reference(kind, device):
    text = TILED[kind]
    ran = [tile for tile in QUICK[kind] if agrees_by_tile(text, "two_stage", tile, device, split_k=3)]
    if not ran:
        assert kind is Rows and select_device(device)[1].kind != "cpu"
        return
    assert agrees_by_tile(text, "direct", ran[-1], device)
    legal = route_of("one_stage").params(parse_call(text, OPS), select_device(device)[1])
    for native in legal["native"]:
        assert agrees_by_tile(text, "one_stage", ran[-1], device, split_k=6, native=native)


@pytest.mark.slow
@pytest.mark.parametrize("text", TILED.values())
@pytest.mark.share(2)
def test_every_kernel_agrees_with_the_reference(text, device):
    assert sum(agrees_by_tile(text, "two_stage", tile, device, split_k=6) for tile in TILES) > 15


@pytest.mark.parametrize("route", [name for name in PLAIN if name not in DEPTHWISE])
def test_nan_and_infinity_go_where_ieee_says(route, device):
    """Also where an infinity meets padding, which is zeros."""
    text = "conv2d_backward_weight:x=2x3x6x9,dy=2x5x6x9,add={},w_shape={},p={},beta=2"
    shape, pad = ("5x3x1x1", 0) if route == "explicit_gemm" else ("5x3x3x3", 1)
    call = parse_call(text.format(shape, shape, pad), OPS)
    arrays = inputs_of(call, "normals")
    arrays["x"][0, 1, 2, 3], arrays["dy"][1, 2, 0, 4], arrays["add"][4, 2, 0, 0] = np.nan, np.inf, -np.inf
    params = in_slices(call, route, 2, device)
    ran, checked = check_call(call, arrays, device=device, route=route, params=params)
    assert ran.route == route and checked.ok, checked.problem
    (dw,) = ran.outputs[0]
    assert np.isnan(dw[:, 1]).all() and np.isfinite(dw[0, 0]).all() and not np.isfinite(dw[2, 0]).all()


@pytest.mark.parametrize("kind", QUICK)
def test_a_tail_brings_in_no_number_that_is_none(kind, device):
    """Pixels past the end of a row, channels past the last: what lies there in memory is infinite."""
    call = parse_call("conv2d_backward_weight:x=1x3x9x21,dy=1x5x3x5,w_shape=5x3x3x2,s=3x4", OPS)
    arrays = inputs_of(call, "normals")
    arrays["x"][:, :, :, 18:] = np.inf
    legal = route_of("two_stage").params(call, select_device(device)[1])["tile"]
    for tile in set(QUICK[kind][-4:]).intersection(legal):
        _, checked = check_call(call, arrays, device=device, route="two_stage", params={"tile": tile, "split_k": 2})
        assert checked.ok, f"{tile}: {checked.problem}"


@pytest.mark.parametrize("route", [name for name in ROUTES if name not in ("explicit_gemm", *DEPTHWISE)])
@pytest.mark.parametrize("add", ["", ",add=6x2x3x3,beta=0.5"])
def test_a_batch_of_nothing_is_what_is_added(route, add, device):
    call = parse_call(f"conv2d_backward_weight:x=0x4x6x6,dy=0x6x4x4{add},w_shape=6x2x3x3,g=2", OPS)
    arrays = inputs_of(call, "normals")
    ran = run_call(call, arrays, device=device, route=route)
    want = np.float32(0.5) * arrays["add"] if add else np.zeros((6, 2, 3, 3), np.float32)
    assert ran.route == route
    np.testing.assert_array_equal(ran.outputs[0][0], want)


@pytest.mark.parametrize("tile", ["gemm_16x32x16_4x4", "skinny_1x1x32", "rows_1x1x1", "rows_1x1x1_across"])
@pytest.mark.share(3)
def test_more_workgroups_than_a_dimension_has(tile, device):
    call = parse_call("conv2d_backward_weight:x=1x70001x1x2,dy=1x70001x1x2,w_shape=70001x1x1x1,g=70001", OPS)
    if tile not in route_of("two_stage").params(call, select_device(device)[1])["tile"]:
        pytest.skip("no kernel for this device")
    arrays = integers(call)
    ran = run_call(call, arrays, device=device, route="two_stage", params={"tile": tile, "split_k": 2})
    np.testing.assert_array_equal(ran.outputs[0][0], expect(call, arrays).outputs[0])


@pytest.mark.parametrize(
    ("shape", "outputs"),
    [
        ("x=3x10x7x9,dy=3x6x7x9,w_shape=6x5x3x3,g=2,p=1", 4),
        ("x=3x10x7x9,dy=3x6x7x9,w_shape=6x5x3x3,g=2,p=1", 2),
        ("x=2x3x9x8,dy=2x5x8x9,w_shape=5x3x3x3,p=0x1x1x2", 4),
        ("x=2x3x9x8,dy=2x5x8x9,w_shape=5x3x3x3,p=0x1x1x2", 2),
        ("x=5x10x7x9,dy=5x6x7x9,w_shape=6x5x5x5,g=2,p=2", 2),
        ("x=5x10x7x9,dy=5x6x7x9,w_shape=6x5x5x5,g=2,p=2", 4),
        ("x=3x3x13x12,dy=3x5x15x9,w_shape=5x3x5x5,p=4x1x2x0", 4),
    ],
)
@pytest.mark.parametrize("layout", winograd.IN_A_ROW)
def test_winograd_in_several_passes_and_slices(shape, outputs, layout, device, monkeypatch):
    """Passes over some of the tiles leave their slices behind each other; poisoned scratch, the same bytes again."""
    monkeypatch.setattr(WinogradTiles, "chunk", lambda tiles, channels, mib: 4)
    call = parse_call(f"conv2d_backward_weight:{shape},scale=-2", OPS)
    params = {"outputs": outputs, "split_k": 1, "layout": layout}
    ran, checked = check_call(call, inputs_of(call, "normals"), device=device, route="winograd", params=params)
    assert checked.ok, checked.problem
    again = run_call(call, inputs_of(call, "normals"), device=device, route="winograd", params=params, replays=2)
    assert {outputs[0].tobytes() for outputs in again.outputs} == {ran.outputs[0][0].tobytes()}


@pytest.mark.parametrize(
    ("text", "outputs", "tile"),
    [
        # tails of tiles, patches, vec4 and rows of products, for one channel of a group and for many
        ("x=2x37x13x15,dy=2x67x13x15,w_shape=67x37x3x3,p=1", 4, "gemm_32x32x16_4x4"),
        ("x=1x3x9x31,add=5x3x3x3,dy=1x5x7x29,w_shape=5x3x3x3,beta=2,scale=-0.5", 4, "gemm_16x32x16_4x4"),
        ("x=2x34x11x9,dy=2x14x13x10,w_shape=14x17x3x3,g=2,p=2x1x2x2", 2, "gemm_32x32x16_4x4"),
        ("x=1x66x19x27,dy=1x70x19x27,w_shape=70x33x5x5,p=2,g=2", 2, "gemm_32x64x16_4x8"),
        ("x=4x5x12x7,dy=4x10x12x7,w_shape=10x1x5x5,p=2,g=5", 2, "gemm_32x32x4loop_4x4"),
        ("x=1x66x19x27,dy=1x70x19x27,w_shape=70x33x5x5,p=2,g=2", 4, "gemm_32x64x16_4x8"),
        ("x=4x5x12x7,add=10x1x5x5,dy=4x10x9x10,w_shape=10x1x5x5,p=0x4x1x3,g=5,beta=2", 4, "gemm_32x32x4loop_4x4"),
        ("x=9x37x5x6:f16,dy=9x20x5x6:f16,w_shape=20x37x5x5,p=2,dw_dtype=f32", 4, "gemm_32x32x16_4x4"),
        ("x=3x20x6x7,dy=3x36x6x7,w_shape=36x20x3x3,p=1", 4, "gemm_32x144x8_4x12"),  # lanes that load nothing
        ("x=2x40x10x9:f16,dy=2x33x10x9:f16,w_shape=33x40x3x3,p=1,dw_dtype=f32", 4, "gemm_32x32x16_4x4"),
    ],
)
@pytest.mark.parametrize("split_k", [1, 3])
def test_winograd_with_channels_in_a_row(text, outputs, tile, split_k, device):
    """What pads channels in scratch is never written, and is NaN here."""
    call = parse_call(f"conv2d_backward_weight:{text}", OPS)
    facts = select_device(device)[1]
    if tile not in route_of("winograd").legal(call, facts)["tile"]:
        pytest.skip("no such tile on this device")
    params = {"outputs": outputs, "split_k": split_k, "layout": "channels", "tile": tile}
    ran, checked = check_call(call, inputs_of(call, "normals"), device=device, route="winograd", params=params)
    assert checked.ok, checked.problem
    again = run_call(call, inputs_of(call, "normals"), device=device, route="winograd", params=params, replays=2)
    assert {outputs[0].tobytes() for outputs in again.outputs} == {ran.outputs[0][0].tobytes()}


@pytest.mark.parametrize(("side", "outputs"), [(3, 4), (3, 2), (5, 2), (5, 4)])
def test_winograd_makes_the_same_bytes_of_slices_in_parts_and_by_way_of_shared_memory(
    side, outputs, device, monkeypatch
):
    """Parts are for GPUs of few registers, and shared memory for discrete ones, which no device here is."""
    monkeypatch.setattr(WinogradTiles, "chunk", lambda tiles, channels, mib: 4)
    w = f"7x5x{side}x{side}"
    text = f"conv2d_backward_weight:x=5x5x7x9,dy=5x7x7x9,w_shape={w},p={side // 2},add={w},beta=0.5"
    call = parse_call(text, OPS)
    made, local = set(), winograd.local_size(select_device(device)[1])
    for parts, staged in ((1, 0), (2, 0), (1, local)):
        monkeypatch.setattr(winograd, "_parts", lambda tiles, element, device, parts=parts: parts)
        monkeypatch.setattr(winograd, "_staged", lambda device, staged=staged: staged)
        params = {"outputs": outputs, "split_k": 1}
        ran, checked = check_call(call, inputs_of(call, "normals"), device=device, route="winograd", params=params)
        assert checked.ok, checked.problem
        made.add(ran.outputs[0][0].tobytes())
    assert len(made) == 1


def test_long_sums_are_cut_where_the_driver_ends_loops(device):
    """65,535 iterations are all that llvmpipe makes: one pixel each would be too few."""
    call = parse_call("conv2d_backward_weight:x=1x1x300x1000,dy=1x1x300x1000,w_shape=1x1x1x1", OPS)
    arrays = integers(call)
    np.testing.assert_array_equal(run_call(call, arrays, device=device).outputs[0][0], expect(call, arrays).outputs[0])


def test_one_stage_says_that_it_is_not_deterministic(device):
    assert [route.name for route in OP.routes if not route.deterministic] == ["one_stage"]
    call = parse_call("conv2d_backward_weight:x=1x3x9x9,dy=1x4x9x9,w_shape=4x3x1x1", OPS)
    route, facts = route_of("one_stage"), select_device(device)[1]
    assert "not deterministic" in route.note(call, facts, route.resolve(call, facts, {}))


@pytest.mark.parametrize(
    ("text", "route", "message"),
    [
        ("x=1x3x9x9,dy=1x4x9x9,w_shape=4x3x3x3,p=1", "explicit_gemm", "stride 1 and no padding, and here it is 3x3"),
        ("x=1x3x9x9,dy=1x4x5x5,w_shape=4x3x3x3,p=1,s=2", "winograd", "stride 1 and no dilation, and here it is 3x3"),
        ("x=1x3x9x9,dy=1x4x9x9,w_shape=4x3x7x7,p=3", "winograd", "a 3x3 or 5x5 kernel .* and here it is 7x7"),
        ("x=1x3x6x6,dy=1x4x6x6,w_shape=4x3x5x5,p=2", "winograd", "at least 256 pixels .* and here it is 36 pixels"),
    ],
)
def test_a_route_that_cannot_says_why(text, route, message, device):
    call = parse_call(f"conv2d_backward_weight:{text}", OPS)
    with pytest.raises(RouteError, match=message):
        run_call(call, inputs_of(call, "normals"), device=device, route=route)


def test_shapes_that_do_not_go_together_are_refused():
    with pytest.raises(GraphError, match="along w dy has 8, but x of 9"):
        parse_call("conv2d_backward_weight:x=1x3x9x9,dy=1x4x7x8,w_shape=4x3x3x3", OPS)
    assert math.prod(parse_call(UPSTREAM[0], OPS).shape("dw")) == 32


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("split_k", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "text",
    [
        "x=1x7x13x29,dy=1x5x13x29,w_shape=5x7x1x1",
        "x=3x20x11x31,add=24x10x1x1,dy=3x24x11x31,w_shape=24x10x1x1,g=2,scale=0.5,beta=2",
        "x=2x33x16x24,dy=2x35x16x24,w_shape=35x33x1x1",
    ],
)
def test_explicit_products_in_slices_of_an_image(text, split_k, dtype, device):
    """Integers, so that a pixel that is left out or met twice shows; the last slice is shorter where they are not
    equal, and scratch starts as NaN bits."""
    call = parse_call(f"conv2d_backward_weight:{text},dtype={dtype}", OPS)
    arrays = inputs_of(call, "integers")
    for tile in ("register_4x8", "shared_32x32x16"):
        params = {"split_k": split_k, "tile": tile}
        ran = run_call(call, arrays, device=device, route="explicit_gemm", params=params, replays=2)
        (first,), (again,) = ran.outputs
        checked = compare(call, [first], expect(call, arrays))
        assert checked.ok and first.tobytes() == again.tobytes(), checked.problem
        assert dtype != "f32" or np.array_equal(first, expect(call, arrays).outputs[0])
