"""The route of weight gradients with one input channel per group without a device: when it is taken, how its pixels are
shared out, and what it refuses."""

import dataclasses
import itertools

import pytest

from vkconv.core import ceil_div
from vkconv.device import load_device, target_of
from vkconv.ops import OPS
from vkconv.ops.conv.wgrad import depthwise, depthwise_planes
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.calls import parse_call
from vkconv.route import choose, judge

H200, LAVAPIPE, MALI = load_device("h200"), load_device("lavapipe"), load_device("mali-g610-panvk")
RADEON = load_device("radeon-rx-7800-xt")
OP = OPS["conv2d_backward_weight"]
ROUTE = next(route for route in OP.routes if route.name == "depthwise")
HEADLINE = "x=64x32x112x112,dy=64x32x112x112,w_shape=32x1x3x3,p=1,g=32"


def call_of(text):
    return parse_call(f"conv2d_backward_weight:{text}", OPS)


def problem(text):
    return WeightGradient.of(call_of(text))


@pytest.mark.parametrize(
    ("text", "route"),
    [
        (HEADLINE, "depthwise"),
        (f"{HEADLINE},dtype=f16", "depthwise"),
        ("x=64x32x112x112,dy=64x64x112x112,w_shape=64x1x3x3,p=1,g=32", "depthwise"),
        ("x=64x32x112x112,dy=64x96x112x112,w_shape=96x1x3x3,p=1,g=32", "two_stage"),
        ("x=64x32x112x112,dy=64x32x112x112,w_shape=32x2x3x3,p=1,g=16", "two_stage"),
        ("x=64x1x112x112,dy=64x1x112x112,w_shape=1x1x3x3,p=1", "two_stage"),
    ],
)
def test_groups_of_one_channel_take_it(text, route):
    assert (choose(OP.routes, call_of(text), RADEON).route.name == "depthwise") == (route == "depthwise")


def test_an_nvidia_gpu_takes_it_as_measured():
    verdict = judge(ROUTE, call_of(HEADLINE), H200)
    assert verdict.allowed and verdict.preferred


def test_the_third_dimension_is_for_others():
    flat = parse_call("conv3d_backward_weight:x=1x3x1x9x9,dy=1x3x1x9x9,w_shape=3x1x1x3x3,p=0x1x1,g=3", OPS)
    deep = parse_call("conv3d_backward_weight:x=1x3x4x9x9,dy=1x3x4x9x9,w_shape=3x1x1x3x3,p=0x1x1,g=3", OPS)
    assert judge(ROUTE, flat, H200).allowed
    assert "a depth of 4 to 4, by 1" in judge(ROUTE, deep, H200).actual


def test_taps_that_registers_do_not_hold_are_for_others():
    call = call_of("x=2x32x28x28,dy=2x32x28x28,w_shape=32x1x7x7,p=3,g=32")
    verdict = judge(ROUTE, call, MALI)
    assert verdict.allowed and not verdict.preferred and "of 64 for 7x7" in verdict.actual
    assert judge(ROUTE, call, RADEON).preferred


def test_a_large_call_keeps_every_compute_unit_evenly_busy():
    for text in (HEADLINE, "x=64x144x56x56,dy=64x144x56x56,w_shape=144x1x3x3,p=1,g=144"):
        p, units = problem(text), target_of(H200).compute_units
        walk = depthwise.best(p, H200)
        workgroups = p.c_out * walk.slices
        assert workgroups * walk.local >= 640 * units
        assert ceil_div(workgroups, units) * units < 1.15 * workgroups
        assert walk.columns == 4 and walk.columns * walk.together * 4 >= 16


def test_loads_of_a_row_are_vec4_where_rows_are_whole_ones():
    """Of x: 3x3 by four columns meets one vec4 and an element at each side of it."""
    whole = problem(HEADLINE)
    assert depthwise._vec4(whole, 4) == (True, True) and depthwise._loads(whole, 4) == (2, 1)
    assert depthwise._vec4(whole, 2) == (False, False) and depthwise._loads(whole, 2) == (4, 0)
    strided = problem("x=4x8x56x56,dy=4x8x28x28,w_shape=8x1x3x3,p=1,s=2,g=8")
    assert depthwise._vec4(strided, 4) == (True, True) and depthwise._loads(strided, 4) == (1, 2)
    odd = problem("x=4x8x55x55,dy=4x8x55x55,w_shape=8x1x3x3,p=1,g=8")
    assert depthwise._vec4(odd, 4) == (False, False) and depthwise._loads(odd, 4) == (6, 0)


@pytest.mark.parametrize("text", [HEADLINE, "x=9x1x4000x5000,dy=9x1x4000x5000,w_shape=1x1x3x3,p=1"])
@pytest.mark.long
def test_no_setting_has_longer_loops_than_the_driver_runs(text):
    call, most = call_of(text), LAVAPIPE.max_loop_iterations
    legal = ROUTE.legal(call, LAVAPIPE)
    ends = [{values[0], min(values), max(values)} for values in legal.values()]
    for values in itertools.product(*ends):
        params = dict(zip(legal, values, strict=True))
        assert max(step.loop_iterations for step in ROUTE.build(call, LAVAPIPE, params).steps) <= most, params


def test_slices_lie_behind_each_other_and_meet_once():
    program = ROUTE.build(call_of(HEADLINE), H200, {"split_k": 16})
    first, second = program.steps
    assert program.scratch == {"slices": 16 * 32 * 9 * 4} and first.push["slice_count"] == 16
    assert first.buffers["result"] == second.buffers["slices"] == "slices"
    assert first.constants["TO_SCRATCH"] and not first.constants["TAIL"]
    (whole,) = ROUTE.build(call_of(HEADLINE), H200, {"split_k": 1}).steps
    assert whole.buffers["result"] == "dw" and not whole.constants["TO_SCRATCH"]


def test_lanes_meet_in_subgroups_where_workgroups_are_whole_ones():
    call = call_of(HEADLINE)
    assert ROUTE.legal(call, H200)["tree"] == (0, 1)
    assert ("SUBGROUPS", "") in ROUTE.build(call, H200).steps[0].shader.defines
    assert ("SUBGROUPS", "") not in ROUTE.build(call, H200, {"tree": 1}).steps[0].shader.defines


def test_more_rows_at_a_time_hold_more():
    p = problem(HEADLINE)
    held = [depthwise._held(p, 4, together) for together in (1, 2, 4)]
    assert held == [9 + 4 * 3 + 6, 9 + 4 * 4 + 12, 9 + 4 * 6 + 24]
    tall = dataclasses.replace(p, kernel=(1, 7, 7), stride=(1, 2, 2), dilation=(1, 2, 2))
    assert depthwise._held(tall, 1, 1) == 49 + 7 + 7  # 13 columns, of which taps meet 7


PLANES = next(route for route in OP.routes if route.name == "depthwise_planes")
SMALL = "x=64x512x14x14,dy=64x512x14x14,w_shape=512x1x3x3,p=1,g=512"
STRIDED = "x=64x256x38x38,dy=64x256x19x19,w_shape=256x1x3x3,p=1,s=2,g=256"


def dy_of(text, images):
    return text.replace("64x", f"{images}x")


@pytest.mark.parametrize(
    ("text", "device", "taken"),
    [
        (SMALL, H200, True),
        (f"{SMALL},dtype=f16", H200, True),
        (SMALL, MALI, False),
        (SMALL, RADEON, False),
        (SMALL, LAVAPIPE, False),
        ("x=64x512x17x17,dy=64x512x17x17,w_shape=512x1x3x3,p=1,g=512", H200, False),
        # Large planes, in f32 and of few taps, where lanes have columns.
        (HEADLINE, H200, True),
        (f"{HEADLINE},dtype=f16", H200, False),
        ("x=16x96x150x150,dy=16x96x150x150,w_shape=96x1x3x3,p=1,g=96", H200, False),
        ("x=64x32x112x112,dy=64x32x112x112,w_shape=32x1x5x5,p=2,g=32", H200, False),
        ("x=64x512x14x14,dy=64x1536x14x14,w_shape=1536x1x3x3,p=1,g=512", H200, False),
        (STRIDED, H200, True),
        (dy_of(STRIDED, 8), H200, False),
        (f"{STRIDED},dtype=f16", H200, True),
        # Lanes of depthwise load x by vectors there, of four columns and of two.
        ("x=64x256x32x32,dy=64x256x16x16,w_shape=256x1x3x3,p=1,s=2,g=256", H200, False),
        ("x=128x192x24x24,dy=128x192x12x12,w_shape=192x1x3x3,p=1,s=2,g=192,dtype=f16", H200, False),
        ("x=64x256x38x38,dy=64x256x19x38,w_shape=256x1x3x3,p=1,s=2x1,g=256", H200, False),
    ],
)
def test_planes_are_copied_where_that_was_faster(text, device, taken):
    assert (choose(OP.routes, call_of(text), device).route is PLANES) == taken


def test_lanes_have_a_column_each_and_few_are_idle():
    for text in (SMALL, "x=64x1152x16x16,dy=64x1152x16x16,w_shape=1152x1x3x3,p=1,g=1152", STRIDED):
        p = problem(text)
        way = depthwise_planes.best(p, H200)
        tile = depthwise_planes.Tile.of(p, way.lines)
        assert way.item.columns == 1
        assert 0.8 * way.local < way.item.of_units(p, tile) <= way.local
        assert tile.copies(way.local, way.staged) <= 8


@pytest.mark.parametrize(
    ("text", "slices"),
    [(SMALL, 1), (f"{SMALL},dtype=f16", 2), (STRIDED, 3), (f"{STRIDED},dtype=f16", 4), (dy_of(SMALL, 1), 1)],
)
def test_slices_are_all_resident_at_once(text, slices):
    p = problem(text)
    way = depthwise_planes.best(p, H200)
    assert way.slices == slices and p.c_out * slices <= depthwise_planes._at_once(p, way, H200)


def test_a_device_of_fewer_units_has_fewer_slices():
    few = load_device("geforce-rtx-3090-nvk")
    assert [depthwise_planes.best(problem(HEADLINE), device).slices for device in (H200, few)] == [12, 7]
    assert target_of(few).compute_units == 82


@pytest.mark.parametrize(("channels", "staged"), [(512, 1), (792, 1), (793, 0), (1188, 0), (1189, 1), (1536, 1)])
def test_dy_goes_by_shared_memory_where_waves_have_no_more_places(channels, staged):
    p = problem(f"x=64x{channels}x10x10,dy=64x{channels}x10x10,w_shape={channels}x1x3x3,p=1,g={channels}")
    assert depthwise_planes.best(p, H200).staged == staged


def test_vectors_of_a_unit_are_those_that_its_range_may_touch():
    """Of 14x14 whole ones; of 7x7 one may begin with the last element of a vector; of a band what its taps meet."""
    whole = depthwise_planes.Tile.of(problem(SMALL), 28)
    assert (whole.units, whole.band, whole.lines, whole.x_vec4s, whole.dy_vec4s) == (2, 14, 14, 49, 49)
    odd = depthwise_planes.Tile.of(problem("x=4x8x7x7,dy=4x8x7x7,w_shape=8x1x3x3,p=1,g=8"), 7)
    assert (odd.x_vec4s, odd.dy_vec4s) == (13, 13)
    band = depthwise_planes.Tile.of(problem(STRIDED), 5)
    assert (band.units, band.band, band.lines) == (1, 5, 11)
    assert band.x_vec4s == (11 * 38 + 3 + 3) // 4 and band.of_all(problem(STRIDED)) == 64 * 4


def test_units_lie_so_that_lanes_read_different_banks():
    """Planes of 16x16, a column for each lane: 256 elements apart two lanes would meet in each bank."""
    p = problem("x=64x1152x16x16,dy=64x1152x16x16,w_shape=1152x1x3x3,p=1,g=1152")
    tile, item = depthwise_planes.Tile.of(p, 64), depthwise_planes.Item(16, 1)
    for apart in depthwise_planes._apart(p, tile, item, H200):
        banks = {(lane // 16 * apart + lane % 16) % 32 for lane in range(32)}
        assert apart % 4 == 0 and apart >= 256 and len(banks) == 32


def test_16_bit_dy_is_loaded_as_it_is_needed():
    full, half = (PLANES.build(call_of(text), H200).steps[0] for text in (SMALL, f"{SMALL},dtype=f16"))
    assert (full.constants["STAGED"], half.constants["STAGED"]) == (1, 0)
    assert half.shared_bytes < full.shared_bytes


@pytest.mark.long
def test_no_way_has_longer_loops_than_the_driver_runs_or_more_shared_memory_than_it_has():
    for text in (SMALL, STRIDED, "x=9x1x400x200,dy=9x1x400x200,w_shape=1x1x3x3,p=1"):
        call = call_of(text)
        for device in (LAVAPIPE, MALI, H200):
            legal = PLANES.legal(call, device)
            ends = [dict.fromkeys((values[0], min(values), max(values))) for values in legal.values()]
            for values in itertools.product(*ends):
                step = PLANES.build(call, device, dict(zip(legal, values, strict=True))).steps[0]
                most = device.max_loop_iterations
                assert step.shared_bytes <= device.limit("maxComputeSharedMemorySize")
                assert most is None or step.loop_iterations <= most
