"""An expanding 1x1, a depthwise and a projecting 1x1 convolution as one node: what becomes one, what stays, what a tile
makes again at its borders."""

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, make_bound, make_graph

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.fused.inverted_residual_routes import IN_ROW, RATE
from vkconv.ops.fused.separable_routes import TILES, problem, saving
from vkconv.plan.planner import Options, plan, rewritten
from vkconv.route import choose

H200, LAVAPIPE, ADRENO, MALI = (load_device(name) for name in ("h200", "lavapipe", "adreno-740", "mali-g610-panvk"))
X = {"x": (2, 8, 16, 15)}
CONSTANTS = {
    "e": f32(24, 8, 1, 1, seed=1),
    "e_b": f32(24, seed=2),
    "d": f32(24, 1, 3, 3, seed=3),
    "d_b": f32(24, seed=4),
    "w": f32(8, 24, 1, 1, seed=5),
    "b": f32(8, seed=6),
    "twice": f32(48, 1, 3, 3, seed=7),
    "w_48": f32(8, 48, 1, 1, seed=8),
    "e_3x3": f32(24, 8, 3, 3, seed=9),
}
EXPAND = ("conv2d", "x e e_b", "h", {"act": "relu6"})
WIDE = {"groups": 24, "padding": (1,)}
DEPTHWISE = ("conv2d", "h d d_b", "m", {**WIDE, "act": "relu6"})
PROJECT = ("conv2d", "m w b", "y")
FUSED = {
    "no shortcut": [EXPAND, DEPTHWISE, PROJECT],
    "a shortcut": [EXPAND, DEPTHWISE, ("conv2d", "m w b", "p"), ("add", "p x", "y")],
    "strides, and no bias": [("conv2d", "x e", "h"), ("conv2d", "h d", "m", {**WIDE, "stride": (2,)}), PROJECT],
}
KEPT = {
    "the expanded channels have two readers": ([EXPAND, DEPTHWISE, PROJECT, ("tanh", "h", "z")], "y z"),
    "two windows for each channel": (
        [EXPAND, ("conv2d", "h twice", "m", WIDE), ("conv2d", "m w_48", "y")],
        "y",
    ),
    "a kernel of 3x3 before it": ([("conv2d", "x e_3x3", "h", {"padding": (1,)}), DEPTHWISE, PROJECT], "y"),
}


@pytest.mark.parametrize("nodes", FUSED.values(), ids=FUSED)
def test_the_block_becomes_one_that_computes_the_same(nodes):
    before = make_bound(X, nodes, "y", CONSTANTS)
    after, remarks = rewritten(before, ADRENO, Options())
    (made,) = after.nodes
    assert made.call.op == "inverted_residual" and "are part of it" in remarks[made.name]
    assert after.outputs == before.outputs and after.specs["y"] == before.specs["y"]
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("nodes", "outputs"), KEPT.values(), ids=KEPT)
def test_what_is_no_block_stays(nodes, outputs):
    after, _ = rewritten(make_bound(X, nodes, outputs, CONSTANTS), ADRENO, Options())
    assert "inverted_residual" not in [node.call.op for node in after.nodes]


@pytest.mark.parametrize(
    ("device", "options", "ops"),
    [
        (ADRENO, Options(), ["inverted_residual"]),
        (ADRENO, Options(dtype="f16"), ["inverted_residual"]),
        (H200, Options(), ["conv2d"] * 3),
        (LAVAPIPE, Options(), ["conv2d"] * 3),
        (ADRENO, Options(skip_passes=["fuse_inverted_residual"]), ["conv2d", "separable_conv2d"]),
        (ADRENO, Options(routes={"inverted_residual": "unfused"}), ["conv2d", "separable_conv2d"]),
        (ADRENO, Options(skip_passes=["fuse_inverted_residual", "fuse_separable"]), ["conv2d"] * 3),
        (H200, Options(routes={"node:conv2d_y": "one_launch"}), ["inverted_residual"]),
    ],
)
def test_the_device_and_the_caller_decide(device, options, ops):
    nodes = plan(make_graph(X, FUSED["no shortcut"], "y", CONSTANTS), device, options).plan.nodes
    assert [node.call.op for node in nodes if node.call.op != "cast"] == ops


def test_what_tiles_make_again_at_their_borders_is_counted():
    call = parse_call("inverted_residual:x=1x8x16x16,we=32x8x1x1,wd=32x1x3x3,w=32x32x1x1,p=1", OPS)
    tile = TILES["32x8x8x16_4x4"]
    what = saving(call, tile, IN_ROW.middle(call))
    assert what.nbytes == 2 * (32 * 256 + 32 * 256) * 4 and what.launches == 2
    assert what.needed == 32 * 256 * (8 + 9 + 32)
    assert what.repeated == 32 * 8 * (4 * 10 * 10 - 256)  # windows of 10x10 for tiles of 8x8
    note = OPS["inverted_residual"].routes[0].note(call, ADRENO, {"tile": tile.name})
    assert note == "saves 128 KiB written and read between them, and 2 launches; 9% more multiply-adds"


def test_what_is_made_again_for_too_many_channels_does_not_pay():
    """A device that saves two launches and traffic of a small image, but expands 160 channels six times over."""
    small, deep = "x=1x8x16x16,we=32x8x1x1,wd=32x1x3x3,w=32x32x1x1,p=1", "x=1x160x7x7,we=960x160x1x1,wd=960x1x5x5"
    routes = OPS["inverted_residual"].routes
    assert choose(routes, parse_call(f"inverted_residual:{small}", OPS), MALI).route.name == "one_launch"
    call = parse_call(f"inverted_residual:{deep},w=320x960x1x1,p=2", OPS)
    choice = choose(routes, call, MALI)
    assert choice.route.name == "unfused" and RATE.of(MALI) > 0
    assert "us saved for" in choice.verdicts[0].actual and "more multiply-adds" in choice.verdicts[0].actual


def test_a_tile_of_the_rule_is_one_that_fits():
    for text in OPS["inverted_residual"].cases:
        call = parse_call(text, OPS)
        for device in (H200, ADRENO, MALI, LAVAPIPE):
            route = OPS["inverted_residual"].routes[0]
            if all(need.test(call, device) for need in route.must):
                assert TILES[route.params(call, device)["tile"][0]].fits(problem(call), device)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x=1x8x6x6,we=16x7x1x1,wd=16x1x3x3,w=4x16x1x1", r"x is 1x8x6x6 and we 16x7x1x1; they are \(N, C_in, H, W\)"),
        ("x=1x8x6x6,we=16x8x1x1,be=15,wd=16x1x3x3,w=4x16x1x1", "be is 15; it is 16"),
        ("x=1x8x6x6,we=16x8x1x1,wd=32x1x3x3,w=4x32x1x1", "wd is 32x1x3x3; it has a window for each of the 16 channels"),
        ("x=1x8x6x6,we=16x8x1x1,wd=16x1x3x3,w=4x8x1x1", "w are 4x8x1x1; behind 16 channels"),
        ("x=1x8x6x6,we=16x8x1x1,wd=16x1x3x3,w=4x16x1x1,expand=log", "no activation 'log'"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(text, said):
    with pytest.raises(GraphError, match=said):
        parse_call(f"inverted_residual:{text}", OPS)
