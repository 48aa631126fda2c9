"""The backward-weight ops without a device: the reference against a second formulation, which route is chosen, how the
sum is cut, and what explain tells of it."""

import copy
import dataclasses
import itertools

import numpy as np
import pytest
from ops_device import device

from vkconv.core import DType, GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.conv.wgrad.kernels import Gemm, Narrow, Rows
from vkconv.ops.conv.wgrad.policy import KERNELS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.core.tolerance import relative_tolerance, two_level_tolerance
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
    ("more", "route", "splits", "scratch_bytes"),
    [
        ("", "two_stage", 528, 528 * 9216 * 4),
        (",policy=bands", "split_multi", 80, 80 * 9216 * 4),
        (",policy=occupancy", "two_stage", 128, 128 * 9216 * 4),
        (",split=7", "two_stage", 7, 7 * 9216 * 4),
        (",split=1", "direct", None, 0),
        (",policy=bands,split=1", "direct", None, 0),
    ],
)
def test_the_headline_case_of_upstream(more, route, splits, scratch_bytes):
    table, data = explain_call(parse_call(HEADLINE + more, OPS), H200)
    assert (data["route"], data["params"].get("splits"), data["scratch_bytes"]) == (route, splits, scratch_bytes)
    assert data["note"] in table.title and "scratch" in data["note"]
    if splits:
        assert data["note"].startswith(f"{splits} ")


def test_the_notes_say_why():
    notes = {}
    for policy, route in itertools.product(("auto", "bands", "occupancy"), ("split_n", "split_multi", "two_stage")):
        options = Options(routes={"conv2d_backward_weight": route})
        _, data = explain_call(parse_call(f"{HEADLINE},policy={policy}", OPS), H200, options)
        notes[policy, route] = data["note"]
        assert data["by"] == "forced" and data["dispatches"] == 2
    assert "16 boxes of 1x1x225x225 (n, d, h, w): 16 images, at most 512 parts; 576 KiB" in notes["auto", "split_n"]
    assert "80 boxes of 1x1x45x225 (n, d, h, w): 9216 outputs: at most 128 parts" in notes["auto", "split_multi"]
    assert "528 equal parts" in notes["auto", "two_stage"] and "132 compute units" in notes["auto", "two_stage"]
    assert "an estimated capacity of" in notes["occupancy", "two_stage"]
    _, data = explain_call(parse_call(HEADLINE, OPS), H200, Options(routes={"conv2d_backward_weight": "one_stage"}))
    assert "not deterministic" in data["note"]
    assert [r["route"] for r in data["routes"] if not r["deterministic"]] == ["one_stage"]


@pytest.mark.parametrize(
    ("split", "params", "route", "note"),
    [
        (7, {}, "split_n", "3 boxes of 1x1x30x30 (n, d, h, w): 7 asked for; "),
        (7, {}, "two_stage", "7 equal parts: 7 asked for; "),
        (7, {}, "direct", "the whole sum, 7 asked for; "),
        (1, {}, "direct", "the whole sum; "),
        (0, {"splits": 2}, "split_n", "2 boxes of 2x1x30x30 (n, d, h, w): 2 asked for; "),
        (0, {"splits": 3}, "split_n", "3 boxes of 1x1x30x30 (n, d, h, w): 3 images, at most 512 parts; "),
    ],
)
def test_notes_tell_what_was_asked_for_from_what_is_done(split, params, route, note):
    call = parse_call(f"conv2d_backward_weight:x=3x4x30x30,dy=3x4x30x30,w_shape=4x4x3x3,p=1,split={split}", OPS)
    options = Options(routes={call.op: route} if route else {}, params={call.op: params} if params else {})
    assert explain_call(call, H200, options)[1]["note"].startswith(note)


def test_a_split_that_cannot_be_is_refused_or_said():
    with pytest.raises(GraphError, match="split is 163, but a sum of 162 products"):
        parse_call("conv2d_backward_weight:x=2x4x9x9,dy=2x4x9x9,w_shape=4x4x3x3,p=1,split=163", OPS)
    call = parse_call("conv2d_backward_weight:x=1x512x9x9,dy=1x512x9x9,w_shape=512x512x3x3,p=1,split=64", OPS)
    note = explain_call(call, H200)[1]["note"]
    assert note.startswith("the whole sum: the 64 asked for take 576 MiB of scratch, and 256 MiB is the most; ")


def test_bands_that_do_not_cut_leave_the_sum_whole():
    call = parse_call("conv2d_backward_weight:x=1x64x9x9,dy=1x64x9x9,w_shape=64x64x3x3,p=1,policy=bands", OPS)
    _, data = explain_call(call, H200)
    assert data["route"] == "direct"
    (refused,) = [r for r in data["routes"] if r["route"] == "split_multi"]
    assert refused["allowed"] and "a sum of 81 is short" in refused["actual"]


@pytest.mark.parametrize("facts", [H200, LAVAPIPE, load_device("mali-g715"), device("INTEGRATED_GPU", 128)])
def test_scratch_stays_within_its_budget(facts):
    for text in (
        "conv2d_backward_weight:x=32x256x14x14,dy=32x1024x14x14,w_shape=1024x256x1x1",
        "conv2d_backward_weight:x=32x512x7x7,dy=32x512x7x7,w_shape=512x512x3x3,p=1",
        "conv2d_backward_weight:x=4x450x9x9,dy=4x450x9x9,w_shape=450x1x3x3,p=1,g=450",
    ):
        for policy in ("auto", "occupancy", "bands"):
            call = parse_call(f"{text},policy={policy}", OPS)
            for route in OPS[call.op].routes:
                if judge(route, call, facts).allowed:
                    legal = route.params(call, facts).get("splits", (1,))
                    for splits in (legal[0], max(legal)):
                        params = {"splits": splits} if "splits" in route.params(call, facts) else {}
                        program = route.build(call, facts, params)
                        assert sum(program.scratch.values()) <= scratch_budget(facts), (route.name, splits)


def test_too_many_parts_are_refused_with_both_numbers():
    call = parse_call("conv2d_backward_weight:x=1x512x9x9,dy=1x512x9x9,w_shape=512x512x3x3,p=1,split=64", OPS)
    (two_stage,) = (route for route in OPS[call.op].routes if route.name == "two_stage")
    verdict = judge(two_stage, call, H200)
    assert not verdict.allowed and verdict.actual == "576 MiB, 256 MiB is the most"
    assert choose(OPS[call.op].routes, call, H200).route.name != "two_stage"


def test_sums_that_a_driver_would_end_early_are_cut():
    call = parse_call("conv2d_backward_weight:x=1x1x1000x1000,dy=1x1x1000x1000,w_shape=1x1x1x1", OPS)
    chosen = choose(OPS[call.op].routes, call, LAVAPIPE)
    assert chosen.route.name == "two_stage" and chosen.params["splits"] > 1
    program = chosen.route.build(call, LAVAPIPE, chosen.params)
    assert max(d.loop_iterations for d in program.steps) <= LAVAPIPE.max_loop_iterations
    assert judge(OPS[call.op].routes[-1], call, LAVAPIPE).refused_by == "loops that the driver runs to their end"


def test_wide_calls_take_a_gemm_on_gpus_and_registers_on_cpus():
    for text, gpu, cpu in (
        ("x=32x64x56x56,dy=32x64x56x56,w_shape=64x64x3x3,p=1", "tiles of 4x4", "tiles of 4x4"),
        ("x=4x144x28x28,dy=4x144x28x28,w_shape=144x1x3x3,p=1,g=144", "narrow 1", "rows 1 by 3 units across groups"),
        ("x=32x64x56x56,dy=32x256x56x56,w_shape=256x64x1x1", "gemm 128x64", "rows 32 by 4"),
    ):
        call = parse_call(f"conv2d_backward_weight:{text}", OPS)
        assert gpu in explain_call(call, H200)[1]["note"] and cpu in explain_call(call, LAVAPIPE)[1]["note"]


def test_the_tolerance_of_two_levels_is_the_larger_one():
    for terms, parts, out, of in ((1000, 1, "f32", 1000), (1000, 10, "f32", 100), (1000, 100, "f32", 100)):
        assert two_level_tolerance(terms, parts, DType(out)) == relative_tolerance(of, DType(out))
    assert two_level_tolerance(64, 2, DType.BF16) == relative_tolerance(1, DType.BF16)


def test_tiles_are_what_their_shaders_need():
    for kernel in KERNELS:
        if isinstance(kernel, Gemm):
            assert kernel.rows % kernel.lane_rows == kernel.columns % kernel.lane_columns == 0
            assert kernel.lane_rows % 4 == kernel.lane_columns % 4 == kernel.local % kernel.depth == 0
        if isinstance(kernel, Narrow):
            assert kernel.local.bit_count() == 1
    least = device("INTEGRATED_GPU", 128)
    assert {type(k) for k in KERNELS if k.fits(least)} == {Gemm, Narrow, Rows}
    assert len(set(KERNELS)) == len(KERNELS)


def test_lanes_share_loads_where_subgroups_are_full():
    call = parse_call("conv2d_backward_weight:x=2x64x28x28,dy=2x64x28x28,w_shape=64x64x3x3,p=1", OPS)
    wide = dataclasses.replace(LAVAPIPE, facts=copy.deepcopy(LAVAPIPE.facts))
    wide.facts["properties"]["VkPhysicalDeviceSubgroupProperties"]["subgroupSize"] = 16
    for facts, shared in ((LAVAPIPE, True), (wide, False), (device("CPU"), False)):
        chosen = choose(OPS[call.op].routes, call, facts)
        step = chosen.route.build(call, facts, chosen.params).steps[0]
        assert step.shader.stem == "backward_weight_rows"
        assert (("SUBGROUPS", "") in step.shader.defines) == shared


def test_winograds_parts_stay_within_the_scratch():
    """Also where passes over some of the tiles each leave their own."""
    for text, facts, route in (
        ("x=32x512x28x28,dy=32x512x28x28,w_shape=512x512x3x3,p=1", load_device("mali-g715"), "direct"),
        ("x=128x256x56x56,dy=128x256x56x56,w_shape=256x256x3x3,p=1", H200, "winograd"),
    ):
        call = parse_call(f"conv2d_backward_weight:{text}", OPS)
        choice = choose(OPS[call.op].routes, call, facts)
        scratch = choice.route.build(call, facts, choice.params).scratch
        assert choice.route.name == route and scratch.get("parts", 0) <= scratch_budget(facts)


@pytest.mark.parametrize(
    ("shape", "route", "needs", "actual"),
    [
        ("x=0x4x6x6,dy=0x8x6x6,w_shape=8x4x1x1", "explicit_gemm", "at least one image to multiply", "an empty batch"),
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
