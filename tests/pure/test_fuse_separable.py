"""A depthwise and a 1x1 convolution as one node: what becomes one, what stays two, what is refused, what it saves."""

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, make_bound, make_graph

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.fused.separable_routes import IN_ROW, TILES, by_rule, problem, saving
from vkconv.ops.fused.separable_tiles import needed
from vkconv.plan.planner import Options, plan, rewritten
from vkconv.route import choose

H200, LAVAPIPE, ADRENO = (load_device(name) for name in ("h200", "lavapipe", "adreno-740"))
X = {"x": (2, 24, 16, 15)}
POINT = ("conv2d", "m w b", "y", {"act": "relu"})
WIDE = {"groups": 24, "padding": (1,)}
CONSTANTS = {
    "d": f32(24, 1, 3, 3, seed=1),
    "d_b": f32(24, seed=2),
    "w": f32(16, 24, 1, 1, seed=3),
    "b": f32(16, seed=4),
    "w_3x3": f32(16, 24, 3, 3, seed=5),
    "slope": f32(24, seed=6),
    "grouped": f32(16, 12, 1, 1, seed=7),
    "pairs": f32(24, 2, 3, 3, seed=8),
}

FUSED = {
    "an activation between": [("conv2d", "x d d_b", "m", {**WIDE, "act": "relu6"}), POINT],
    "none, and no bias": [("conv2d", "x d", "m", WIDE), ("conv2d", "m w", "y")],
    "an activation as its own node": [("conv2d", "x d", "c", WIDE), ("hard_swish", "c", "m"), POINT],
    "strides": [("conv2d", "x d", "m", {**WIDE, "stride": (2,)}), POINT],
    "a clip": [("conv2d", "x d", "m", {**WIDE, "act": "clip", "act_a": -1.0, "act_b": 1.0}), POINT],
}
KEPT = {
    "a kernel of 3x3 behind it": ([("conv2d", "x d", "m", WIDE), ("conv2d", "m w_3x3", "y")], "y"),
    "what lies between is an output": ([("conv2d", "x d", "m", WIDE), POINT], "y m"),
    "it has two readers": ([("conv2d", "x d", "m", WIDE), POINT, ("tanh", "m", "z")], "y z"),
    "groups of two channels": ([("conv2d", "x pairs", "m", {**WIDE, "groups": 12}), POINT], "y"),
    "a 1x1 in groups": ([("conv2d", "x d", "m", WIDE), ("conv2d", "m grouped", "y", {"groups": 2})], "y"),
    "a 1x1 of every other pixel": ([("conv2d", "x d", "m", WIDE), ("conv2d", "m w", "y", {"stride": (2,)})], "y"),
    "a padded 1x1": ([("conv2d", "x d", "m", WIDE), ("conv2d", "m w", "y", {"padding": (1,)})], "y"),
    "slopes": ([("conv2d", "x d", "m", {**WIDE, "act": "relu", "out_scale": 2.0}), POINT], "y"),
    "an activation that may be infinite": ([("conv2d", "x d", "m", {**WIDE, "act": "exp"}), POINT], "y"),
}


@pytest.mark.parametrize("nodes", FUSED.values(), ids=FUSED)
def test_both_become_one_that_computes_the_same(nodes):
    before = make_bound(X, nodes, "y", CONSTANTS)
    after, remarks = rewritten(before, ADRENO, Options())
    (made,) = after.nodes
    assert made.call.op == "separable_conv2d" and "is part of it" in remarks[made.name]
    assert after.outputs == before.outputs and after.specs["y"] == before.specs["y"]
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("nodes", "outputs"), KEPT.values(), ids=KEPT)
def test_what_is_no_separable_convolution_stays(nodes, outputs):
    after, _ = rewritten(make_bound(X, nodes, outputs, CONSTANTS), ADRENO, Options())
    assert "separable_conv2d" not in [node.call.op for node in after.nodes]


TWO = FUSED["an activation between"]


@pytest.mark.parametrize(
    ("device", "options", "count"),
    [
        (ADRENO, Options(), 1),
        (ADRENO, Options(dtype="f16"), 1),
        (H200, Options(), 2),
        (LAVAPIPE, Options(), 2),
        (ADRENO, Options(skip_passes=["fuse_separable"]), 2),
        (ADRENO, Options(routes={"separable_conv2d": "unfused"}), 2),
        (ADRENO, Options(routes={"conv2d": "direct"}), 2),
        (H200, Options(routes={"node:conv2d_y": "one_launch"}), 1),
        (LAVAPIPE, Options(routes={"node:conv2d_y": "one_launch"}, dtype="bf16"), 1),
    ],
)
def test_the_device_and_the_caller_decide(device, options, count):
    nodes = plan(make_graph(X, TWO, "y", CONSTANTS), device, options).plan.nodes
    assert len([node for node in nodes if node.call.op != "cast"]) == count


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x=1x8x6x6,wd=8x2x3x3,w=4x8x1x1", r"wd are 8x2x3x3; they are \(C, 1, KH, KW\)"),
        ("x=1x8x6x6,wd=8x1x3x3,w=4x7x1x1", "w are 4x7x1x1; behind 8 channels"),
        ("x=1x8x6x6,wd=8x1x3x3,w=4x8x3x3", "w are 4x8x3x3; behind 8 channels"),
        ("x=1x8x6x6,wd=8x1x3x3,bd=7,w=4x8x1x1", "8 depthwise channels"),
        ("x=1x8x6x6,wd=8x1x3x3,w=4x8x1x1,between=log", "no activation 'log'"),
        ("x=1x8x6x6,wd=12x1x3x3,w=4x12x1x1", "12 output channels do not divide into 8 groups"),
        ("x=1x8x6x6,wd=8x1x3x3,w=4x8x1x1,residual=1x4x6x6", "residual"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(text, said):
    with pytest.raises(GraphError, match=said):
        parse_call(f"separable_conv2d:{text}", OPS)


def test_explain_says_what_it_saves_and_what_it_makes_twice():
    call = parse_call("separable_conv2d:x=1x32x16x16,wd=32x1x3x3,w=64x32x1x1,p=1,dtype=f16", OPS)
    choice = choose(OPS["separable_conv2d"].routes, call, ADRENO)
    what = saving(call, TILES["64x4x8x16_4x4"], IN_ROW.middle(call))
    assert what.nbytes == 2 * 2 * 32 * 16 * 16 and what.launches == 1 and what.repeated == 0
    assert what.needed == needed(problem(call), 256) == 32 * 256 * (64 + 9)
    twice = saving(call, TILES["32x4x8x16_4x4"], IN_ROW.middle(call))
    assert twice.repeated == 32 * 256 * 9  # the depthwise convolution, for the other half of the output channels
    note = choice.route.note(call, ADRENO, choice.params)
    assert choice.route.name == "one_launch" and note.startswith("saves 32.0 KiB written and read between them, and 1 ")


def test_tiles_that_no_shared_memory_holds_leave_it_to_the_steps():
    call = parse_call("separable_conv2d:x=1x6x40x5,wd=6x1x9x9,w=4x6x1x1,p=20,d=2x5", OPS)
    one = OPS["separable_conv2d"].routes[0]
    assert not all(need.test(call, ADRENO) for need in one.must)
    assert choose(OPS["separable_conv2d"].routes, call, ADRENO).route.name == "unfused"


def test_a_tile_of_the_rule_fits_the_device():
    for device in (H200, LAVAPIPE, ADRENO, load_device("mali-g610-panvk"), load_device("raspberry-pi-4")):
        for text in OPS["separable_conv2d"].cases[:-1]:
            call = parse_call(text, OPS)
            if all(need.test(call, device) for need in OPS["separable_conv2d"].routes[0].must):
                assert by_rule(call, device).fits(problem(call), device)
