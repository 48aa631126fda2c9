"""A scale, shift and activation and the convolution behind them as one node: what becomes one, and what stays two."""

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, make_bound, make_graph

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.graph import TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.planner import Options, plan, rewritten

H200, LAVAPIPE, MALI = (load_device(name) for name in ("h200", "lavapipe", "mali-g57"))
X = {"x": (2, 24, 5, 4)}
CONV = ("conv2d", "p w", "y", {"act": "tanh"})
CONSTANTS = {
    "w": f32(16, 24, 1, 1, seed=1),
    "w_3x3": f32(16, 24, 3, 3, seed=2),
    "s": f32(24, 1, 1, low=0.5, seed=3),
    "t": f32(1, 24, 1, 1, seed=4),
    "each": f32(2, 24, 1, 1, seed=5),
    "wide": f32(4, seed=6),
    "two": np.array([2], np.float32),
}


FUSED = {
    "a batch norm and relu": [("mul", "x s", "m"), ("add", "m t", "a"), ("relu", "a", "p"), CONV],
    "no activation": [("mul", "x s", "m"), ("add", "t m", "p"), CONV],
    "a scale alone": [("mul", "s x", "p"), CONV],
    "a scale of each image": [("mul", "x each", "p"), CONV],
    "a scale that is computed": [("sigmoid", "each", "g"), ("mul", "x g", "p"), CONV],
    "a scale and silu": [("mul", "x s", "m"), ("silu", "m", "p"), CONV],
}
KEPT = {
    "a kernel of 3x3": ([("mul", "x s", "p"), ("conv2d", "p w_3x3", "y")], "y"),
    "the scaled input is an output": ([("mul", "x s", "p"), CONV], "y p"),
    "it has two readers": ([("mul", "x s", "p"), ("conv2d", "p w", "y"), ("tanh", "p", "z")], "y z"),
    "a number": ([("mul", "x two", "p"), CONV], "y"),
    "a scale along the width": ([("mul", "x wide", "p"), CONV], "y"),
    "a shift of each image": ([("mul", "x s", "m"), ("add", "m each", "p"), CONV], "y"),
    "a shift alone": ([("add", "x s", "p"), CONV], "y"),
    "an activation with parameters": ([("mul", "x s", "m"), ("clip", "m", "p", {"a": 0.0, "b": 1.0}), CONV], "y"),
    "an activation that saturates": ([("mul", "x s", "m"), ("tanh", "m", "p"), CONV], "y"),
    "something between": ([("mul", "x s", "m"), ("relu", "m", "r"), ("add", "r t", "p"), CONV], "y"),
}


@pytest.mark.parametrize("nodes", FUSED.values(), ids=FUSED)
def test_both_become_one_that_computes_the_same(nodes):
    before = make_bound(X, nodes, "y", CONSTANTS)
    after, remarks = rewritten(before, H200, Options())
    made = after.nodes[-1]
    assert made.call.op == "prologue_conv2d" and made.name == "conv2d_y" and "is part of it" in remarks["conv2d_y"]
    assert after.outputs == before.outputs and after.specs["y"] == before.specs["y"]
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("nodes", "outputs"), KEPT.values(), ids=KEPT)
def test_what_is_no_prologue_stays(nodes, outputs):
    after, _ = rewritten(make_bound(X, nodes, outputs, CONSTANTS), H200, Options())
    assert "prologue_conv2d" not in [node.call.op for node in after.nodes]


SCALED = [("mul", "x s", "p"), CONV]


@pytest.mark.parametrize(
    ("device", "options", "ops"),
    [
        (H200, Options(), ["prologue_conv2d"]),
        (LAVAPIPE, Options(), ["mul", "conv2d"]),
        (MALI, Options(), ["mul", "conv2d"]),
        (MALI, Options(routes={"node:conv2d_y": "fused_gemm"}, dtype="f16"), ["prologue_conv2d"]),
        (H200, Options(dtype="f16"), ["mul", "conv2d"]),  # by matrix units
        (H200, Options(skip_passes=["fuse_prologue"]), ["mul", "conv2d"]),
        (H200, Options(routes={"prologue_conv2d": "unfused"}), ["mul", "conv2d"]),
        (H200, Options(routes={"conv2d": "pointwise"}), ["mul", "conv2d"]),
        (H200, Options(routes={"mul": "broadcast"}), ["mul", "conv2d"]),
        (LAVAPIPE, Options(routes={"node:conv2d_y": "fused_gemm"}), ["prologue_conv2d"]),
    ],
)
def test_the_device_and_the_caller_decide(device, options, ops):
    nodes = plan(make_graph(X, SCALED, "y", CONSTANTS), device, options).plan.nodes
    assert [node.call.op for node in nodes if node.call.op != "cast"] == ops


def test_without_room_for_its_buffers_it_is_refused_by_name():
    call = "prologue_conv2d:x=1x8x4x4,scale=8,w=8x8x1x1,residual=1x8x4x4"
    facts = dict(H200.facts)
    limits = {**facts["properties"]["VkPhysicalDeviceProperties"]["limits"], "maxPerStageDescriptorStorageBuffers": 6}
    properties = {**facts["properties"]["VkPhysicalDeviceProperties"], "limits": limits}
    few = type(H200)({**facts, "properties": {**facts["properties"], "VkPhysicalDeviceProperties": properties}})
    fused = OPS["prologue_conv2d"].routes[0]
    (unmet,) = (need for need in fused.must if not need.test(parse_call(call, OPS), few))
    assert unmet.actual(parse_call(call, OPS), few) == "7 buffers, and it allows 6"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x=2x8x4x4,scale=7,w=8x8x1x1", "the scale is 7; for x of 2x8x4x4 it is 8.*or 2x8"),
        ("x=2x8x4x4,scale=8,shift=2x8,w=8x8x1x1", "the shift is 2x8; for x of 2x8x4x4 it is 8"),
        ("x=2x8x4x4,scale=8,w=8x8x1x1,before=tanh", "no before='tanh'.*none, relu, hard_swish, silu"),
        ("x=2x8x4x4,scale=8,w=8x7x1x1", "w|channels"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(text, said):
    with pytest.raises(GraphError, match=said):
        parse_call(f"prologue_conv2d:{text}", OPS)


def test_an_addition_that_cancels_is_allowed_what_it_loses():
    call = parse_call("prologue_conv2d:x=1x1x1x1,scale=1,shift=1,w=1x1x1x1", OPS)
    op = OPS["prologue_conv2d"]
    arrays = {
        "x": np.full((1, 1, 1, 1), 3.0),
        "scale": np.ones(1),
        "shift": np.full(1, -3.0),
        "w": np.ones((1, 1, 1, 1)),
    }
    (exact,) = op.reference(call, arrays)
    assert exact.item() == 0 and op.magnitude(call, arrays, exact).item() >= 0.5
    assert call.outputs["y"] == TensorSpec((1, 1, 1, 1), call.outputs["y"].dtype)
