"""Ops of ONNX that are functions: what has a body and no rule is imported as that."""

from pathlib import Path

import numpy as np
import pytest
from required import required

required("onnx")
import onnx  # noqa: E402
from graph_kit import evaluate  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

from vkconv.core import ModelError, UnsupportedError  # noqa: E402
from vkconv.graph.onnx import functions, load_onnx, load_onnx_proto, worker  # noqa: E402
from vkconv.graph.onnx.bodies import expanded  # noqa: E402
from vkconv.graph.onnx.rules import RULES  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402


def model(nodes: list[onnx.NodeProto], outputs: tuple[str, ...], opset: int = 23) -> onnx.ModelProto:
    """A model of one input x of 2x3x4x8."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def attention(i: int = 0, x: str = "x") -> onnx.NodeProto:
    return helper.make_node("Attention", [x, x, x], [f"y{i}"], name=f"a{i}", is_causal=1, softcap=2.0)


@pytest.mark.long
def test_a_body_that_depends_on_its_node_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(model([attention()], ("y0",)).SerializeToString())
    graph = load_onnx(path)
    assert "softmax" in {node.op for node in graph.nodes} and all(node.name.startswith("a0/") for node in graph.nodes)
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 8)).astype(np.float32)
    (y,) = evaluate(bind(graph, OPS, {"x": x.shape}), {"x": x})
    scores = 2 * np.tanh(x @ x.swapaxes(-1, -2) / np.sqrt(8) / 2) + np.triu(np.full((4, 4), -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(y, weights / weights.sum(-1, keepdims=True) @ x, rtol=1e-5, atol=1e-6)


def test_a_function_of_onnxs_preview_is_its_body() -> None:
    """Attention without a mask, by another name and in another domain."""
    node = helper.make_node("FlexAttention", ["x", "x", "x"], ["y0"], name="a0", domain="ai.onnx.preview")
    made = model([node], ("y0",), opset=26)
    made.opset_import.append(helper.make_opsetid("ai.onnx.preview", 1))
    graph = load_onnx_proto(made)
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 8)).astype(np.float32)
    (y,) = evaluate(bind(graph, OPS, {"x": x.shape}), {"x": x})
    weights = np.exp(x @ x.swapaxes(-1, -2) / np.sqrt(8))
    np.testing.assert_allclose(y, weights / weights.sum(-1, keepdims=True) @ x, rtol=1e-5, atol=1e-6)


def test_bodies_of_bodies_are_expanded_and_their_own_domain_is_gone() -> None:
    window = helper.make_node("HannWindow", ["n"], ["w"], name="window")
    size = helper.make_node("Constant", [], ["n"], value_int=5)
    made = expanded(model([size, window], ("w",)), RULES, worker.run)
    assert not made.functions and worker.BODIES not in {entry.domain for entry in made.opset_import}
    graph = load_onnx_proto(model([size, window], ("w",)))
    (w,) = evaluate(bind(graph, OPS, {"x": (2, 3, 4, 8)}), {"x": np.zeros((2, 3, 4, 8), np.float32)})
    np.testing.assert_allclose(w, np.sin(np.pi * np.arange(5) / 5) ** 2, rtol=1e-5, atol=1e-6)


def test_bodies_have_the_limits_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MAX_NODES", 40)
    many = model([attention(i) for i in range(9)], ("y8",))
    with pytest.raises(ModelError, match=r"has \d\d\d nodes once they are inlined, vkconv takes 40"):
        load_onnx_proto(many)


def test_a_node_whose_types_nobody_knows_stays_and_is_named() -> None:
    foreign = helper.make_node("Odd", ["x"], ["t"], name="odd", domain="elsewhere")
    made = model([foreign, attention(0, "t")], ("y0",))
    made.opset_import.append(helper.make_opsetid("elsewhere", 1))
    with pytest.raises(UnsupportedError, match=r"Attention \(a0\): softcap=2.0, .* types of its inputs"):
        load_onnx_proto(made)


def test_no_op_is_suggested_for_one_that_onnx_has() -> None:
    det = helper.make_node("Det", ["x"], ["y"], name="d")
    with pytest.raises(UnsupportedError, match=r"Det \(d\): vkconv has no such op\n"):
        load_onnx_proto(model([det], ("y",)))
