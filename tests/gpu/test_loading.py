"""`vkconv.load` of models in memory, and with a fallback."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkconv
from vkconv.core import ModelError, UsageError

pytestmark = pytest.mark.gpu
X = np.array([[1, -2, 3]], np.float32)


def model():
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in ("x", "t", "y")]
    nodes = [helper.make_node("Relu", ["x"], ["t"], name="first"), helper.make_node("Neg", ["t"], ["y"], name="second")]
    graph = helper.make_graph(nodes, "g", info[:1], info[2:], value_info=info[1:2])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_path_a_model_and_its_bytes_are_the_same_model(tmp_path, device):
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    for source in (path, str(path), model(), model().SerializeToString()):
        with vkconv.load(source, device) as session:
            np.testing.assert_array_equal(session.run({"x": X})["y"], -np.maximum(X, 0))


def test_a_fallback_runs_what_is_left(device):
    made = model()
    made.graph.node[0].CopyFrom(helper.make_node("Det", ["x3"], ["d"], name="first"))
    del made.graph.node[1:]
    made.graph.node.append(helper.make_node("Neg", ["d"], ["y"], name="second"))
    made.graph.input[0].CopyFrom(helper.make_tensor_value_info("x3", TensorProto.FLOAT, [2, 2]))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, []))
    x = np.array([[1, 2], [3, 5]], np.float32)
    with vkconv.load(made, device, fallback="onnxruntime") as session:
        np.testing.assert_allclose(session.run({"x3": x})["y"], 1, rtol=1e-6)
        assert [region.taken for region in session.parts.regions] == [False, True]
        assert tuple(session.inputs) == ("x3",) and session.outputs == ("y",)


def test_what_no_model_is_and_settings_that_a_fallback_does_not_take(device):
    with pytest.raises(ModelError, match="a int is no model that vkconv reads"):
        vkconv.load(3, device)
    with pytest.raises(ModelError, match="the given model: it is empty"):
        vkconv.load(b"", device)
    with pytest.raises(ModelError, match="the given model: is not an ONNX model"):
        vkconv.load(b"abc", device)
    with pytest.raises(UsageError, match="takes shapes, not dtype"):
        vkconv.load(model(), device, fallback="onnxruntime", dtype="f16")
    with pytest.raises(UsageError, match="there is no fallback 'tvm'"):
        vkconv.load(model(), device, fallback="tvm")
