"""The backward-weight ops without a device: the reference against a second formulation, which route is chosen, how the
sum is cut, and what explain tells of it."""

import copy
import dataclasses
import itertools
import re

import numpy as np
import pytest
from ops_device import device

from vkconv.core import DType, GraphError, UsageError
from vkconv.cost import compute_units
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.conv.wgrad.kernels import Gemm, Rows, Skinny
from vkconv.ops.conv.wgrad.policy import BANDS
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import TILES
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.core.tolerance import relative_tolerance, two_level_tolerance
from vkconv.ops.kernels.winograd import BY_CHANNEL, WinogradTiles, by_channel, patch_of
from vkconv.plan.explain import explain_call
from vkconv.plan.planner import Options
from vkconv.route import choose, judge

H200, LAVAPIPE = load_device("h200"), load_device("lavapipe")
HEADLINE = "conv2d_backward_weight:x=16x16x225x225,dy=16x64x225x225,w_shape=64x16x3x3,p=1"


def by_hand(call, x, dy):
    """Every element of dw by its definition."""
    dw = np.zeros(call["w_shape"])
    rank, groups = x.ndim - 2, call["groups"]
    rows, channels = dw.shape[0] // groups, dw.shape[1]
    for at in np.ndindex(*dw.shape[:2], *dw.shape[2:]):
        for image, pixel in itertools.product(range(x.shape[0]), np.ndindex(*dy.shape[2:])):
            where = tuple(
                pixel[i] * call["stride"][i] + at[2 + i] * call["dilation"][i] - call["padding"][i] for i in range(rank)
            )
            if all(0 <= w < e for w, e in zip(where, x.shape[2:], strict=True)):
                channel = at[0] // rows * channels + at[1]
                dw[at] += x[(image, channel, *where)] * dy[(image, at[0], *pixel)]
    return dw


@pytest.mark.parametrize(
    "text",
    [
        "conv2d_backward_weight:x=2x4x7x6,dy=2x6x4x5,w_shape=6x2x3x2,g=2,s=2x1,p=1x0x2x1,d=1x2",
        "conv2d_backward_weight:x=1x3x5x5,dy=1x3x9x9,w_shape=3x1x3x3,g=3,p=3",
        "conv2d_backward_weight:x=1x2x1x9,dy=1x3x1x4,w_shape=3x2x1x3,s=1x2",
        "conv3d_backward_weight:x=2x2x3x4x3,dy=2x4x2x4x2,w_shape=4x1x2x3x3,g=2,s=2x1x1,p=0x1x0x1x1x1,d=1x1x1",
    ],
)
def test_reference_is_the_sum_of_products(text):
    call = parse_call(text, OPS)
    rng = np.random.default_rng(1)
    x, dy = (rng.integers(-4, 5, call.shape(name)).astype(np.float64) for name in ("x", "dy"))
    np.testing.assert_array_equal(OPS[call.op].reference(call, {"x": x, "dy": dy})[0], by_hand(call, x, dy))


def test_reference_scales_and_adds():
    call = parse_call("conv2d_backward_weight:x=1x1x1x2,dy=1x1x1x2,add=1x1x1x1,w_shape=1x1x1x1,scale=3,beta=-2", OPS)
    arrays = {"x": np.array([[[[1.0, 2.0]]]]), "dy": np.array([[[[5.0, 7.0]]]]), "add": np.array([[[[4.0]]]])}
    np.testing.assert_array_equal(OPS[call.op].reference(call, arrays)[0], [[[[3 * 19.0 - 8]]]])
    assert OPS[call.op].terms(call) == 3 and OPS[call.op].flops(call) == 4


def test_attributes_become_explicit():
    call = parse_call("conv3d_backward_weight:x=1x2x5x6x7,dy=1x3x5x6x7,w_shape=3x2x3x3x3,p=1", OPS)
    assert call["padding"] == (1,) * 6 and call["stride"] == call["dilation"] == (1, 1, 1)
    assert parse_call(format_call(call, OPS), OPS) == call


@pytest.mark.parametrize(
    ("given", "split_k", "note"),
    [
        ({}, 704, "704 equal slices"),
        ({"policy": "bands"}, 80, "80 boxes of 1x1x45x225"),
        ({"policy": "occupancy"}, 128, "128 equal slices"),
        ({"split_k": 6}, 6, "6 equal slices: 6 asked for"),
        ({"split_k": 1}, 1, "1 equal slices: 1 asked for; no scratch"),
        ({"policy": "bands", "split_k": 48}, 48, "48 boxes of 1x1x75x225"),
    ],
)
def test_the_headline_case_of_upstream(given, split_k, note):
    options = Options(params={"conv2d_backward_weight": given})
    table, data = explain_call(parse_call(HEADLINE, OPS), H200, options)
    scratch = split_k * 9216 * 4 if split_k > 1 else 0
    assert (data["route"], data["params"]["split_k"], data["scratch_bytes"]) == ("two_stage", split_k, scratch)
    assert data["note"] in table.title and data["note"].startswith(note)


def test_upstreams_policies_are_routes_too():
    call = parse_call(HEADLINE, OPS)
    routes = {route.name: route for route in OPS[call.op].routes}
    boxes = routes["split_multi"].build(call, H200)
    assert routes["two_stage"].build(call, H200, {"policy": "bands"}) == boxes
    assert boxes.scratch == {"slices": 80 * 9216 * 4}


@pytest.mark.parametrize(
    ("route", "params", "message"),
    [
        ("direct", {"policy": "bands"}, "no parameter 'policy'; it has tile"),
        ("explicit_gemm", {"split_k": 8}, "split_k is one of 1, 2, 3, 4$"),
        ("split_multi", {"policy": "auto"}, "cannot take policy=auto .*; policy is one of bands"),
        ("two_stage", {"policy": "band"}, "policy is one of auto, bands, occupancy"),
        ("two_stage", {"split_k": 0}, "split_k is one of 1, 2, 3, 4, 6, 8, 12, 16, 24"),
        ("two_stage", {"split_k": 7}, "split_k is one of 1, 2, 3, 4, 6, 8, 12, 16, 24"),
        ("two_stage", {"split_k": 1 << 20}, "split_k is one of 1, 2, 3, 4, 6, 8, 12, 16, 24"),
    ],
)
def test_a_split_that_a_route_cannot_make_is_refused_with_what_it_can(route, params, message):
    text = "conv2d_backward_weight:x=16x16x25x25,dy=16x64x25x25,w_shape=64x16x1x1"
    options = Options(routes={"conv2d_backward_weight": route}, params={f"conv2d_backward_weight:{route}": params})
    with pytest.raises(UsageError, match=message):
        explain_call(parse_call(text, OPS), H200, options)


@pytest.mark.parametrize(
    ("more", "option"), [("policy=bands", "policy:bands"), ("split=7", "split_k:7"), ("split=0", "split_k:0")]
)
def test_a_split_is_no_attribute_of_a_call(more, option):
    with pytest.raises(UsageError, match=f"--param conv2d_backward_weight={option}$"):
        parse_call(f"{HEADLINE},{more}", OPS)
    call, (name, value) = parse_call(HEADLINE, OPS), more.split("=")
    with pytest.raises(GraphError, match=f"--param conv2d_backward_weight={option}$"):
        OPS[call.op].call(call.operands, {**call.attrs, name: value})


def test_the_notes_say_why():
    notes = {}
    for route, policy in (("split_n", ""), ("split_multi", "bands"), ("two_stage", "auto"), ("two_stage", "occupancy")):
        params = {"conv2d_backward_weight": {"policy": policy}} if policy else {}
        options = Options(routes={"conv2d_backward_weight": route}, params=params)
        _, data = explain_call(parse_call(HEADLINE, OPS), H200, options)
        notes[route, policy] = data["note"]
        assert data["by"] == "forced" and data["dispatches"] == 2
    assert "16 boxes of 1x1x225x225 (n, d, h, w): 16 images, at most 512 slices; 576 KiB" in notes["split_n", ""]
    assert "80 boxes of 1x1x45x225 (n, d, h, w): 9216 outputs: at most 128 slices" in notes["split_multi", "bands"]
    assert "704 equal slices" in notes["two_stage", "auto"] and "132 compute units" in notes["two_stage", "auto"]
    assert "an estimated capacity of" in notes["two_stage", "occupancy"]
    _, data = explain_call(parse_call(HEADLINE, OPS), H200, Options(routes={"conv2d_backward_weight": "one_stage"}))
    assert "not deterministic" in data["note"]
    assert [r["route"] for r in data["routes"] if not r["deterministic"]] == ["one_stage"]


@pytest.mark.parametrize(
    ("params", "route", "note"),
    [
        ({"split_k": 128}, "split_multi", "90 boxes of 1x1x1x30 (n, d, h, w): 128 asked for; "),
        ({"split_k": 6}, "two_stage", "6 equal slices: 6 asked for; "),
        ({}, "direct", "the whole sum; "),
        ({"split_k": 2}, "split_n", "2 boxes of 2x1x30x30 (n, d, h, w): 2 asked for; "),
        ({"split_k": 3}, "split_n", "3 boxes of 1x1x30x30 (n, d, h, w): 3 images, at most 512 slices; "),
    ],
)
def test_notes_tell_what_was_asked_for_from_what_is_done(params, route, note):
    call = parse_call("conv2d_backward_weight:x=3x4x30x30,dy=3x4x30x30,w_shape=4x4x3x3,p=1", OPS)
    options = Options(routes={call.op: route} if route else {}, params={call.op: params} if params else {})
    assert explain_call(call, H200, options)[1]["note"].startswith(note)


def test_more_slices_than_pixels_or_scratch_are_none_of_the_legal_ones():
    for text, most in (
        ("x=2x4x9x9,dy=2x4x9x9,w_shape=4x4x3x3", 128),  # 162 pixels
        ("x=1x512x9x9,dy=1x512x9x9,w_shape=512x512x3x3", 24),  # 256 MiB of scratch, 9 MiB a slice
    ):
        call = parse_call(f"conv2d_backward_weight:{text},p=1", OPS)
        for route in OPS[call.op].routes:
            if route.name in ("two_stage", "split_multi"):
                assert max(route.legal(call, H200)["split_k"]) == most


def test_bands_that_do_not_cut_leave_the_sum_whole():
    call = parse_call("conv2d_backward_weight:x=1x64x9x9,dy=1x64x9x9,w_shape=64x64x3x3,p=1", OPS)
    routes = {route.name: route for route in OPS[call.op].routes}
    params = routes["two_stage"].resolve(call, H200, {"policy": "bands"})
    assert params["split_k"] == 1 and "a sum of 81 is short" in routes["two_stage"].note(call, H200, params)
    assert routes["two_stage"].build(call, H200, params) == routes["direct"].build(call, H200)


def test_routes_that_nobody_asked_for_say_why_not():
    verdicts = choose(OPS["conv2d_backward_weight"].routes, parse_call(HEADLINE, OPS), H200).verdicts
    opt_in = {v.route.name: v.refused_by for v in verdicts if v.allowed and v.route.opt_in}
    assert set(opt_in) == {"split_n", "split_multi", "one_stage"}
    assert opt_in["split_n"] == "opt-in only: two_stage fills the device"


@pytest.mark.long
@pytest.mark.parametrize("facts", [H200, LAVAPIPE, load_device("mali-g715"), device("INTEGRATED_GPU", 128)])
def test_scratch_stays_within_its_budget(facts):
    for text in (
        "conv2d_backward_weight:x=32x256x14x14,dy=32x1024x14x14,w_shape=1024x256x1x1",
        "conv2d_backward_weight:x=32x512x7x7,dy=32x512x7x7,w_shape=512x512x3x3,p=1",
        "conv2d_backward_weight:x=4x450x9x9,dy=4x450x9x9,w_shape=450x1x3x3,p=1,g=450",
    ):
        call = parse_call(text, OPS)
        for route in OPS[call.op].routes:
            if judge(route, call, facts).allowed:
                legal = route.params(call, facts)
                given = [{name: value} for name in ("split_k", "policy") for value in legal.get(name, ())]
                for params in ({}, *given):
                    program = route.build(call, facts, params)
                    assert sum(program.scratch.values()) <= scratch_budget(facts), (route.name, params)


@pytest.mark.parametrize("route", ["split_n", "split_multi"])
@pytest.mark.parametrize("name", ["h200", "mali-g715", "lavapipe"])
@pytest.mark.parametrize("n", [16, 17, 64])
def test_no_more_slices_than_the_scratch_holds(n, name, route):
    """A slice is 9 MiB: 64 MiB hold seven, 256 MiB 28, and bands want eight, images one of each."""
    call = parse_call(f"conv2d_backward_weight:x={n}x512x60x60,dy={n}x512x60x60,w_shape=512x512x3x3,p=1", OPS)
    device = load_device(name)
    choice = choose(OPS[call.op].routes, call, device, forced=route)
    program = choice.route.build(call, device, choice.params)
    slices = program.scratch["slices"] // (9 << 20)
    assert 2 <= slices <= scratch_budget(device) // (9 << 20)
    assert slices == choice.params["split_k"] or n == 64  # which are several launches, each with slices of its own
    if (route, n) == ("split_n", 16) and name != "h200":
        assert "7 fit the scratch" in choice.route.note(call, device, choice.params)


@pytest.mark.long
def test_sums_that_a_driver_would_end_early_are_cut():
    call = parse_call("conv2d_backward_weight:x=1x1x1000x1000,dy=1x1x1000x1000,w_shape=1x1x1x1", OPS)
    chosen = choose(OPS[call.op].routes, call, LAVAPIPE)
    assert chosen.route.name == "two_stage" and chosen.params["split_k"] > 1
    program = chosen.route.build(call, LAVAPIPE, chosen.params)
    assert max(d.loop_iterations for d in program.steps) <= LAVAPIPE.max_loop_iterations
    assert judge(OPS[call.op].routes[-1], call, LAVAPIPE).refused_by == "loops that the driver runs to their end"


@pytest.mark.long
def test_wide_calls_take_a_gemm_on_gpus_and_registers_on_cpus():
    for text, gpu, cpu in (
        ("x=32x64x56x56,dy=32x64x56x56,w_shape=64x64x3x3,p=1", "tiles of 4x4", "tiles of 4x4"),
        ("x=4x144x28x28,dy=4x144x28x28,w_shape=144x1x3x3,p=1,g=144", "strips of 7x4", "strips of 28x8"),
        ("x=4x144x28x28,dy=4x72x28x28,w_shape=72x2x3x3,p=1,g=72", "skinny_1x", "rows_1x"),
        ("x=32x64x56x56,dy=32x256x56x56,w_shape=256x64x1x1", "gemm_128x64x", "rows_32x4x"),
    ):
        call = parse_call(f"conv2d_backward_weight:{text}", OPS)
        assert gpu in explain_call(call, H200)[1]["note"] and cpu in explain_call(call, LAVAPIPE)[1]["note"]


def test_the_tolerance_of_two_levels_is_the_larger_one():
    for terms, parts, out, of in ((1000, 1, "f32", 1000), (1000, 10, "f32", 100), (1000, 100, "f32", 100)):
        assert two_level_tolerance(terms, parts, DType(out)) == relative_tolerance(of, DType(out))
    assert two_level_tolerance(64, 2, DType.BF16) == relative_tolerance(1, DType.BF16)


def test_tiles_are_what_their_shaders_need():
    for kernel in TILES.values():
        if isinstance(kernel, Gemm):
            assert kernel.rows % kernel.lane_rows == kernel.columns % kernel.lane_columns == 0
            assert kernel.lane_rows % 4 == kernel.lane_columns % 4 == kernel.local % kernel.depth == 0
        if isinstance(kernel, Skinny):
            assert kernel.local.bit_count() == 1
    least = device("INTEGRATED_GPU", 128)
    assert {type(k) for k in TILES.values() if k.fits(least)} == {Gemm, Skinny, Rows}
    assert len(set(TILES.values())) == len(TILES) == 18 + 12 + 76 + 27 + 10
    assert all(re.fullmatch(r"(gemm|skinny|rows)_[0-9x]+(b2|loop)?(_\w+)?", name) for name in TILES)


def test_unrolls_loads_where_subgroups_are_full():
    call = parse_call("conv2d_backward_weight:x=2x64x28x28,dy=2x64x28x28,w_shape=64x64x3x3,p=1", OPS)
    wide = dataclasses.replace(LAVAPIPE, facts=copy.deepcopy(LAVAPIPE.facts))
    wide.facts["properties"]["VkPhysicalDeviceSubgroupProperties"]["subgroupSize"] = 16
    for facts, shared in ((LAVAPIPE, True), (wide, False), (device("CPU"), False)):
        chosen = choose(OPS[call.op].routes, call, facts)
        step = chosen.route.build(call, facts, chosen.params).steps[0]
        assert step.shader.stem == "backward_weight_rows"
        assert (("SUBGROUPS", "") in step.shader.defines) == shared


def test_winograds_slices_stay_within_the_scratch():
    """Also where passes over some of the tiles each leave their own."""
    for text, facts, route in (
        ("x=32x512x28x28,dy=32x512x28x28,w_shape=512x512x3x3,p=1", load_device("mali-g715"), "direct"),
        ("x=128x256x56x56,dy=128x256x56x56,w_shape=256x256x3x3,p=1", H200, "winograd"),
    ):
        call = parse_call(f"conv2d_backward_weight:{text}", OPS)
        choice = choose(OPS[call.op].routes, call, facts)
        scratch = choice.route.build(call, facts, choice.params).scratch
        assert choice.route.name == route and scratch.get("slices", 0) <= scratch_budget(facts)


def winograd_of(text, facts, **params):
    """A call, the route, and a value for each of its parameters."""
    call = parse_call(f"conv2d_backward_weight:{text}", OPS)
    route = next(r for r in OPS[call.op].routes if r.name == "winograd")
    return call, route, route.resolve(call, facts, params)


SEVENS = "x=32x510x7x7,dy=32x512x7x7,w_shape=512x255x3x3,p=1,g=2"


def test_winograds_operands_lie_by_channel_where_asked():
    """Two transforms that store channels, and a product that loads them; of 255 channels a group has 256 in a row."""
    call, route, params = winograd_of(SEVENS, H200, layout="channels")
    program = route.build(call, H200, params)
    x, dy, product, _ = program.steps
    assert (x.shader, dy.shader) == (BY_CHANNEL, BY_CHANNEL)
    assert product.constants["BY_CHANNEL"] and not product.constants["VEC4"]
    assert program.scratch["inputs"] == program.scratch["gradients"] == 4 * 36 * 128 * 512
    assert "channels in a row" in route.note(call, H200, params)
    tiles = route.build(call, H200, {**params, "layout": "tiles"})
    assert tiles.scratch["inputs"] == 4 * 36 * 128 * 510 and not tiles.steps[2].constants["BY_CHANNEL"]


def test_a_tile_in_registers_has_tiles_in_a_row():
    """Where channels are asked for, and no tile, one that takes them is the default."""
    call, route, params = winograd_of(SEVENS, LAVAPIPE)
    assert isinstance(TILES[params["tile"]], Rows)
    asked = {**params, "layout": "channels"}
    assert all(step.shader != BY_CHANNEL for step in route.build(call, LAVAPIPE, asked).steps)
    assert "tiles in a row" in route.note(call, LAVAPIPE, asked)
    assert isinstance(TILES[winograd_of(SEVENS, LAVAPIPE, layout="channels")[2]["tile"]], Gemm)


@pytest.mark.parametrize("local", [8, 128, 256])
@pytest.mark.parametrize(("m", "r"), [(4, 3), (2, 3), (2, 5), (4, 5)])
@pytest.mark.parametrize("extent", [(1, 1), (7, 7), (27, 27), (13, 225), (225, 3)])
@pytest.mark.parametrize("channels", [1, 3, 48, 512])
def test_patches_of_tiles_fit_every_device(local, m, r, extent, channels):
    tiles = WinogradTiles.of(m, r, 2, extent)
    for window in (m, m + r - 1):
        patch = patch_of(tiles, window, channels, local)
        assert patch.shared_bytes(m) <= 16384 and (patch.shared_bytes(m) // 4 // patch.channels) % 2 == 1
        assert patch.rows <= tiles.rows and patch.columns <= tiles.columns
        assert patch.channels <= 32 and (patch.channels < 2 * channels or channels == 1)


def test_patches_of_eight_points_have_half_the_channels_where_lanes_would_idle():
    """Two tiles of 32 channels are all that shared memory holds of them; eight of 16 are for 128 lanes."""
    of_x, of_dy = (patch_of(WinogradTiles.of(4, 5, 9, (27, 27)), window, 96, 128) for window in (8, 4))
    assert (of_x.channels, of_x.rows * of_x.columns) == (16, 8) and of_dy.channels == 32
    assert patch_of(WinogradTiles.of(2, 5, 9, (27, 27)), 6, 96, 128).channels == 32


def test_a_pass_by_channel_launches_the_images_that_it_has_tiles_of():
    """Tiles 6 to 20 of four an image are of images 1 to 5."""
    tiles = WinogradTiles.of(4, 3, 32, (7, 7))
    some = by_channel(tiles, ("x", "inputs"), (32, 64, 7, 7), (1, 1), 1, 6, 15, H200)
    assert some.push["images"] == 5 and some.groups == (5 * 2, 1, 1)


@pytest.mark.parametrize(
    ("shape", "route", "needs", "actual"),
    [
        ("x=0x4x6x6,dy=0x8x6x6,w_shape=8x4x1x1", "explicit_gemm", "at least one image to multiply", "0 images"),
        (
            "x=1x1x512x4194303,dy=1x1x512x4194303,w_shape=1x1x1x1",
            "direct",
            "sums over at most 2147483135 pixels",
            "2147483136",
        ),
    ],
)
def test_a_refusal_names_what_is_there(shape, route, needs, actual):
    call = parse_call(f"conv2d_backward_weight:{shape}", OPS)
    verdict = judge(next(r for r in OPS[call.op].routes if r.name == route), call, H200)
    assert (verdict.allowed, verdict.refused_by, verdict.actual) == (False, needs, actual)


def test_the_bands_look_at_the_channels_of_a_group():
    """2048 channels to 2048 in 4 groups are 512 x 512 outputs side by side, fewer than 640000."""
    call = parse_call("conv2d_backward_weight:x=64x2048x28x28,dy=64x2048x28x28,w_shape=2048x512x1x1,g=4", OPS)
    split, why = BANDS.default(WeightGradient.of(call), H200)
    assert split.count(WeightGradient.of(call)) > 1 and "outputs" in why


@pytest.mark.parametrize(
    ("text", "device", "slices"),
    [
        ("x=1x64x512x512,dy=1x64x512x512,w_shape=64x64x1x1,dtype=f16", "h200", 256),
        ("x=2x64x224x224,dy=2x64x224x224,w_shape=64x64x1x1,dtype=bf16", "h200", 64),
        ("x=1x128x300x301,dy=1x128x300x301,w_shape=128x128x1x1,dtype=f16", "h200", 48),
        ("x=1x64x512x512,dy=1x64x512x512,w_shape=64x64x1x1,dtype=f16", "radeon-rx-9070-xt-radv", 128),
        ("x=32x512x28x28,dy=32x128x28x28,w_shape=128x512x1x1,dtype=f16", "h200", 1),  # images are enough
        ("x=1x64x20x20,dy=1x64x20x20,w_shape=64x64x1x1,dtype=f16", "h200", 1),  # a short sum
    ],
)
def test_explicit_products_of_few_images_are_cut_in_slices_that_fill_the_units(text, device, slices):
    call, facts = parse_call(f"conv2d_backward_weight:{text}", OPS), load_device(device)
    choice = choose(OPS[call.op].routes, call, facts)
    assert (choice.route.name, choice.params["split_k"]) == ("explicit_cooperative", slices)
    *parts, combined = choice.route.build(call, facts, choice.params).steps
    workgroups = sum(np.prod(part.groups) for part in parts)
    assert slices == 1 or (workgroups <= 2 * compute_units(facts) and 2 * workgroups > compute_units(facts))
    assert combined.push["slice_count"] == slices * call.shape("x")[0]


def test_slices_that_are_not_equal_are_all_of_an_images_pixels():
    call = parse_call("conv2d_backward_weight:x=3x20x37x41,dy=3x24x37x41,w_shape=24x10x1x1,g=2", OPS)
    (route,) = [route for route in OPS[call.op].routes if route.name == "explicit_gemm"]
    equal, last, combined = route.build(call, H200, {"split_k": 4}).steps
    assert 3 * equal.push["k"] + last.push["k"] == 37 * 41 and 0 < last.push["k"] < equal.push["k"]
    assert combined.push["slice_count"] == 4 * 3
    # dw has 240 elements: three slices of three images end at a multiple of 64 bytes.
    assert equal.ranges["y"].offset == 0 and last.ranges["y"].offset == equal.ranges["y"].nbytes == 4 * 240 * 9
