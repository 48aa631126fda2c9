"""Products, masks and a softmax as one attention: what becomes one, with which mask, and what stays as it is."""

import math

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, make_bound, make_graph

from vkconv.device import load_device
from vkconv.plan.planner import Options, plan, rewritten

H200, LAVAPIPE, MALI = (load_device(name) for name in ("h200", "lavapipe", "mali-g57"))
SHAPE = (6, 2, 9, 4)
QKV = {"q": SHAPE, "k": SHAPE, "v": SHAPE}
EIGHTH = np.array(0.125, np.float32)
CONSTANTS = {
    "eighth": EIGHTH,
    "root": np.array(math.sqrt(0.5), np.float32),
    "zero": np.zeros((), np.float32),
    "two": np.array([2], np.float32),
    "bias": f32(1, 2, 9, 9, seed=1),
    "shift": f32(3, 1, 9, 9, seed=2),
    "shift_5d": f32(1, 3, 1, 9, 9, seed=3),
    "of_images": f32(2, 1, 1, 9, 9, seed=4),
    "of_keys": f32(9, seed=5),
    "late": np.triu(np.full((9, 9), -np.inf, np.float32), 1),
}
TURNED = ("transpose", "k", "kt", {"perm": (0, 1, 3, 2)})
SCORES = [TURNED, ("matmul", "q kt", "s")]
LAST = ("matmul", "p v", "y")
SOFT = ("softmax", "m", "p", {"axis": -1})
APART, TOGETHER = {"shape": (2, 3, 2, 9, 9)}, {"shape": (-1, 2, 9, 9)}


def swin(mask="shift_5d", apart=APART):
    return [
        ("mul", "q eighth", "qs"),
        TURNED,
        ("matmul", "qs kt", "s"),
        ("add", "s bias", "b"),
        ("reshape", "b", "w", apart),
        ("add", "w " + mask, "wm"),
        ("reshape", "wm", "m", TOGETHER),
        SOFT,
        LAST,
    ]


FUSED = {
    "no scale and no mask": [*SCORES, ("softmax", "s", "p", {"axis": 3}), LAST],
    "a quotient of the scores": [*SCORES, ("div", "s two", "m"), SOFT, LAST],
    "a product of both": [
        ("mul", "q root", "qs"),
        TURNED,
        ("mul", "kt root", "ks"),
        ("matmul", "qs ks", "m"),
        SOFT,
        LAST,
    ],
    "a scale and a mask that is computed": [
        *SCORES,
        ("mul", "eighth s", "t"),
        ("tanh", "z", "zt"),
        ("add", "zt t", "m"),
        SOFT,
        LAST,
    ],
    "a mask of queries that come later": [*SCORES, ("add", "s late", "m"), SOFT, LAST],
    "a mask of keys": [*SCORES, ("add", "s of_keys", "m"), SOFT, LAST],
    "two masks": [*SCORES, ("add", "s of_keys", "t"), ("add", "late t", "m"), SOFT, LAST],
    "keys that lie side by side": [
        ("transpose", "x", "kt", {"perm": (0, 2, 3, 1)}),
        ("matmul", "q kt", "m"),
        SOFT,
        LAST,
    ],
    "windows of an image": swin(),
    "windows whose mask has no image": swin("shift"),
}
SAFE = [*SCORES, ("add", "s late", "m"), ("softmax", "m", "w", {"axis": -1}), ("is_nan", "w", "n")]
FUSED["a safe softmax"] = [*SAFE, ("where", "n zero w", "p"), LAST]
KEPT = {
    "NaN replaced by another number": [*SAFE, ("where", "n eighth w", "p"), LAST],
    "NaN kept, and numbers not": [*SAFE, ("where", "n w zero", "p"), LAST],
    "NaN of another softmax": [*SAFE[:-1], ("is_nan", "s", "n"), ("where", "n zero w", "p"), LAST],
    "softmax of columns": [*SCORES, ("softmax", "s", "p", {"axis": 2}), LAST],
    "its logarithm": [*SCORES, ("softmax", "s", "p", {"axis": -1, "log": True}), LAST],
    "weights transposed": [
        *SCORES,
        ("softmax", "s", "t", {"axis": -1}),
        ("transpose", "t", "p", {"perm": (0, 1, 3, 2)}),
        LAST,
    ],
    "a scale behind the mask": [*SCORES, ("add", "s late", "t"), ("mul", "t eighth", "m"), SOFT, LAST],
    "a function between": [*SCORES, ("tanh", "s", "m"), SOFT, LAST],
    "two masks, one computed": [*SCORES, ("add", "s z", "t"), ("add", "late t", "m"), SOFT, LAST],
    "masks of each image apart": swin("of_images"),
    "other windows": [
        *swin("of_keys", {"shape": (6, 1, 2, 9, 9)})[:4],
        ("reshape", "b", "w", {"shape": (6, 18, 9)}),
        ("softmax", "w", "p2", {"axis": -1}),
        ("reshape", "p2", "p", TOGETHER),
        LAST,
    ],
    "a factor that is computed": [*SCORES, ("mul", "s z", "m"), SOFT, LAST],
}
INPUTS = {**QKV, "x": (6, 9, 2, 4), "z": (9, 9)}


def bound(nodes, outputs="y"):
    read = {name for node in nodes for name in node[1].split()}
    return make_bound({n: s for n, s in INPUTS.items() if n in read}, nodes, outputs, CONSTANTS)


@pytest.mark.parametrize("nodes", FUSED.values(), ids=FUSED)
def test_all_become_one_that_computes_the_same(nodes):
    before = bound(nodes)
    after, remarks = rewritten(before, H200, Options())
    made = after.nodes[-1]
    assert made.call.op == "attention" and made.name == "matmul_y"
    assert made.call["zero_rows"] == ("where" in [node[0] for node in nodes])
    assert "are part of it" in remarks["matmul_y"]
    assert {node.call.op for node in after.nodes[:-1]} <= {"tanh", "transpose"}
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nodes", KEPT.values(), ids=KEPT)
def test_what_is_no_attention_stays(nodes):
    before = bound(nodes)
    after, _ = rewritten(before, H200, Options())
    assert "attention" not in [node.call.op for node in after.nodes]
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", ["s", "p", "m"])
def test_what_something_else_reads_stays(value):
    nodes = [*SCORES, ("add", "s late", "m"), SOFT, LAST]
    after, _ = rewritten(bound(nodes, f"y {value}"), H200, Options())
    assert "attention" not in [node.call.op for node in after.nodes]


def test_windows_take_turns_of_their_masks():
    after, _ = rewritten(bound(swin()), H200, Options())
    (made,) = after.nodes
    assert made.call.shape("mask") == (3, 2, 9, 9) and math.isclose(made.call["scale"], 0.125)
    want = CONSTANTS["shift_5d"][0] + CONSTANTS["bias"]
    np.testing.assert_array_equal(after.constants[made.reads["mask"]], want)


ONE = [*SCORES, ("softmax", "s", "p", {"axis": -1}), LAST]
APART_OPS = ["matmul", "softmax", "matmul"]


@pytest.mark.parametrize(
    ("device", "options", "ops"),
    [
        (H200, Options(), ["attention"]),
        (MALI, Options(), ["attention"]),
        (MALI, Options(dtype="f16"), ["attention"]),
        (H200, Options(dtype="f16"), ["attention"]),
        (LAVAPIPE, Options(), APART_OPS),
        (LAVAPIPE, Options(routes={"node:matmul_y": "flash"}), ["attention"]),
        (H200, Options(routes={"attention": "unfused"}), APART_OPS),
        (H200, Options(routes={"node:matmul_s": "register"}), APART_OPS),
        (H200, Options(routes={"softmax": "serial"}), APART_OPS),
        (H200, Options(routes={"node:matmul_y": "register"}), APART_OPS),
        (H200, Options(skip_passes=["fuse_attention"]), APART_OPS),
    ],
)
def test_the_device_and_the_caller_decide(device, options, ops):
    nodes = plan(make_graph(QKV, ONE, "y"), device, options).plan.nodes
    assert [node.call.op for node in nodes if node.call.op != "cast"] == ops


@pytest.mark.parametrize(
    ("dtype", "head", "ops"),
    [
        (None, 64, ["attention"]),
        ("f16", 64, ["attention"]),
        ("bf16", 64, ["attention"]),
        ("f16", 264, APART_OPS),
    ],
)
def test_floats_of_16_bits_are_one_launch_where_matrices_hold_their_heads(dtype, head, ops):
    """The route is asked for in the type that floats will have."""
    graph = make_graph(dict.fromkeys("qkv", (4, 8, 256, head)), ONE, "y")
    nodes = plan(graph, H200, Options(dtype=dtype)).plan.nodes
    assert [node.call.op for node in nodes if node.call.op != "cast"] == ops
    if ops == ["attention"] and dtype is not None:
        assert next(node for node in nodes if node.call.op == "attention").route == "flash_cooperative"
