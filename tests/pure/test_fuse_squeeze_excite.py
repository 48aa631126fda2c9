"""The gate of a squeeze-and-excite block as one node: what becomes one, what stays, what decides, what it saves."""

import numpy as np
import onnx
import pytest
from graph_kit import draw, evaluate, f32, make_bound, make_graph
from onnx import TensorProto, helper, numpy_helper

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.graph.onnx import load_onnx_proto
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.bound import bind
from vkconv.plan.planner import Options, plan, rewritten
from vkconv.route import choose

H200, LAVAPIPE, ADRENO = (load_device(name) for name in ("h200", "lavapipe", "adreno-740"))
X = {"x": (2, 24, 7, 5)}
CONSTANTS = {
    "w1": f32(6, 24, 1, 1, seed=1),
    "b1": f32(6, seed=2),
    "w2": f32(24, 6, 1, 1, seed=3),
    "b2": f32(24, seed=4),
    "halves": f32(24, 3, 1, 1, seed=5),
}
MEAN = ("reduce", "x", "m", {"op": "mean", "axes": (2, 3)})
SQUEEZE = ("conv2d", "m w1 b1", "s", {"act": "relu"})
EXCITE = ("conv2d", "s w2 b2", "g", {"act": "hard_sigmoid", "act_a": 1 / 6, "act_b": 0.5})
SCALE = ("mul", "x g", "y")

FUSED = {
    "a mean": [MEAN, SQUEEZE, EXCITE, SCALE],
    "a pool over all": [("pool2d", "x", "m", {"kind": "avg", "kernel": (7, 5)}), SQUEEZE, EXCITE, SCALE],
    "activations as their own nodes": [
        *(MEAN, ("conv2d", "m w1", "c"), ("silu", "c", "s"), ("conv2d", "s w2", "e"), ("sigmoid", "e", "g"), SCALE),
    ],
}
KEPT = {
    "the means are an output": ([MEAN, SQUEEZE, EXCITE, SCALE], "y m", 1),
    "a maximum": ([("reduce", "x", "m", {"op": "max", "axes": (2, 3)}), SQUEEZE, EXCITE, SCALE], "y", 1),
    "what is squeezed has two readers": ([MEAN, SQUEEZE, EXCITE, SCALE, ("tanh", "s", "z")], "y z", 0),
    "groups": ([MEAN, SQUEEZE, ("conv2d", "s halves", "g", {"groups": 2}), SCALE], "y", 0),
    "an activation that may be infinite": ([MEAN, ("conv2d", "m w1", "s", {"act": "exp"}), EXCITE, SCALE], "y", 0),
}


@pytest.mark.parametrize("nodes", FUSED.values(), ids=FUSED)
def test_the_gate_becomes_one_that_computes_the_same(nodes):
    before = make_bound(X, nodes, "y", CONSTANTS)
    after, remarks = rewritten(before, ADRENO, Options())
    made = after.nodes[0]
    assert [node.call.op for node in after.nodes] == ["squeeze_excite", "mul"]
    assert "are part of it" in remarks[made.name]
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("nodes", "outputs", "products"), KEPT.values(), ids=KEPT)
def test_what_is_no_gate_stays_but_for_two_products(nodes, outputs, products):
    after, _ = rewritten(make_bound(X, nodes, outputs, CONSTANTS), ADRENO, Options())
    made = [node for node in after.nodes if node.call.op == "squeeze_excite"]
    assert len(made) == products and all(node.call.shape("x")[2:] == (1, 1) for node in made)


@pytest.mark.parametrize(
    ("device", "options", "count"),
    [
        (ADRENO, Options(), 2),
        (ADRENO, Options(dtype="f16"), 2),
        (H200, Options(), 4),
        (LAVAPIPE, Options(), 4),
        (ADRENO, Options(skip_passes=["fuse_squeeze_excite"]), 4),
        (ADRENO, Options(routes={"reduce": "serial"}), 3),
        (H200, Options(routes={"node:conv2d_g": "one_launch"}), 2),
        (LAVAPIPE, Options(routes={"node:conv2d_g": "two_launches"}, dtype="bf16"), 2),
    ],
)
def test_the_device_and_the_caller_decide(device, options, count):
    nodes = plan(make_graph(X, FUSED["a mean"], "y", CONSTANTS), device, options).plan.nodes
    assert len([node for node in nodes if node.call.op != "cast"]) == count


@pytest.mark.parametrize(
    ("pool", "acts"),
    [
        (("GlobalAveragePool", {}), ("Relu", "HardSigmoid")),  # mobilenet_v3 of torchvision
        (
            ("ReduceMean", {"axes": [2, 3], "keepdims": 1}),
            ("Silu", "Sigmoid"),
        ),  # efficientnet, and exporters that reduce
    ],
)
def test_blocks_as_exporters_write_them(pool, acts):
    op, attrs = pool
    nodes = [helper.make_node(op, ["x"], ["m"], **attrs), helper.make_node("Conv", ["m", "w1", "b1"], ["c"])]
    if acts[0] == "Silu":
        nodes += [helper.make_node("Sigmoid", ["c"], ["cs"]), helper.make_node("Mul", ["c", "cs"], ["s"])]
    else:
        nodes.append(helper.make_node(acts[0], ["c"], ["s"]))
    gate = {"alpha": 1 / 6} if acts[1] == "HardSigmoid" else {}
    nodes += [
        helper.make_node("Conv", ["s", "w2", "b2"], ["e"]),
        helper.make_node(acts[1], ["e"], ["g"], **gate),
        helper.make_node("Mul", ["g", "x"], ["y"]),
    ]
    weights = [numpy_helper.from_array(CONSTANTS[name], name) for name in ("w1", "b1", "w2", "b2")]
    dims = list(X["x"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in "xy"]
    graph = helper.make_graph(nodes, "block", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    onnx.checker.check_model(model)
    before = bind(load_onnx_proto(model), OPS)
    after, _ = rewritten(before, ADRENO, Options())
    assert [node.call.op for node in after.nodes] == ["squeeze_excite", "mul"]
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "device", "route"),
    [
        ("x=1x16x14x14,w1=8x16x1x1,w2=16x8x1x1", ADRENO, "one_launch"),
        ("x=1x72x56x56,w1=24x72x1x1,w2=72x24x1x1", ADRENO, "two_launches"),  # one compute unit would read too long
        ("x=1x960x7x7,w1=240x960x1x1,w2=960x240x1x1", ADRENO, "unfused"),  # and here the weights
        ("x=1x16x14x14,w1=8x16x1x1,w2=16x8x1x1", H200, "unfused"),
        ("x=1x16x14x14,w1=8x16x1x1,w2=16x8x1x1", LAVAPIPE, "unfused"),
    ],
)
def test_what_a_compute_unit_reads_alone_decides(call, device, route):
    made = parse_call(f"squeeze_excite:{call}", OPS)
    choice = choose(OPS["squeeze_excite"].routes, made, device)
    assert choice.route.name == route


def test_explain_says_what_it_saves():
    call = parse_call("squeeze_excite:x=2x16x14x14,w1=8x16x1x1,w2=16x8x1x1,dtype=f16", OPS)
    one, two, unfused = OPS["squeeze_excite"].routes
    assert one.note(call, ADRENO, {}) == "saves 192 B written and read between the steps, and 2 launches"
    assert two.note(call, ADRENO, {}) == "saves 64 B written and read between the steps, and 1 launch"
    assert unfused.note(call, ADRENO, {}) == "96 B of scratch between the steps"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x=1x8x4x4,w1=2x7x1x1,w2=8x2x1x1", r"w1 is 2x7x1x1; for 8 channels it is \(R, 8, 1, 1\)"),
        ("x=1x8x4x4,w1=2x8x1x1,w2=8x3x1x1", r"w2 is 8x3x1x1; behind w1 it is \(G, 2, 1, 1\)"),
        ("x=1x8x4x4,w1=2x8x1x1,w2=8x2x1x1,b1=3", "b1 is 3; it is 2"),
        ("x=1x8x0x4,w1=2x8x1x1,w2=8x2x1x1", "elements of each image"),
        ("x=1x8x4x4,w1=2x8x1x1,w2=8x2x1x1,gate=log", "no activation 'log'"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(text, said):
    with pytest.raises(GraphError, match=said):
        parse_call(f"squeeze_excite:{text}", OPS)
