"""ONNX models of 64-bit floats, read as ones of 32 bits where that is asked for."""

import numpy as np
import pytest
from cli_kit import vkconv
from onnx import TensorProto, helper, numpy_helper, save_model
from onnx_kit import make

from vkconv.check.reference import reference_outputs
from vkconv.core import ModelError, UnsupportedError
from vkconv.graph import load_model

D, F = TensorProto.DOUBLE, TensorProto.FLOAT
RNG = np.random.default_rng(2)


def model():
    """f64 as inputs, outputs, weights, a mask, attributes, and within a body."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Cast", ["held"], ["wide"], to=D), helper.make_node("Add", ["wide", "three"], ["more"])],
        "body",
        [],
        [info("more", D, [2, 3])],
        [numpy_helper.from_array(np.float64(3), "three")],
    )
    keep = helper.make_graph(
        [helper.make_node("Identity", ["product"], ["same"])], "keep", [], [info("same", D, [2, 3])]
    )
    fill = numpy_helper.from_array(np.full(1, np.finfo(np.float64).min))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Cast", ["product"], ["held"], to=F),
        helper.make_node("If", ["yes"], ["chosen"], then_branch=body, else_branch=keep),
        helper.make_node("ConstantOfShape", ["shape"], ["lowest"], value=fill),
        helper.make_node("Where", ["seen", "chosen", "lowest"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["y"], axis=-1),
    ]
    constants = {"w": RNG.standard_normal((4, 3)), "yes": np.array(True), "shape": np.array([2, 3])}
    constants["seen"] = np.array([[True, True, False], [True, False, False]])
    return make(nodes, inputs={"x": (D, [2, 4])}, outputs=("y",), constants=constants), constants


def wanted(x, constants):
    scores = np.where(constants["seen"], x @ constants["w"] + 3, -np.inf)
    found = np.exp(scores - scores.max(-1, keepdims=True))
    return found / found.sum(-1, keepdims=True)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.long
def test_it_computes_in_f32(tmp_path, external):
    made, constants = model()
    save_model(made, tmp_path / "m.onnx", save_as_external_data=external, size_threshold=64, location="m.data")
    graph = load_model(tmp_path / "m.onnx", f64_as_f32=True)
    assert {str(spec.dtype) for spec in graph.inputs.values()} == {"f32"}
    x = RNG.standard_normal((2, 4))
    (y,) = reference_outputs(graph, {"x": x.astype(np.float32)}).values()
    np.testing.assert_allclose(y, wanted(x, constants), rtol=1e-5)
    if not external:
        assert load_model(made.SerializeToString(), f64_as_f32=True).nodes == graph.nodes
    code, _, err = vkconv("convert", tmp_path / "m.onnx", tmp_path / "m.vkc", "--f64-as-f32")
    assert code == 0, err
    assert len(load_model(tmp_path / "m.vkc").nodes) == len(graph.nodes)


def test_it_is_refused_unless_that_is_asked_for():
    with pytest.raises(UnsupportedError, match=r"holds double; .* f64_as_f32=True\) and vkconv convert --f64-as-f32"):
        load_model(model()[0].SerializeToString())


def test_bits_of_a_double_stay_those():
    nodes = [helper.make_node("BitCast", ["x"], ["y"], to=D)]
    made = make(nodes, inputs={"x": (TensorProto.INT64, [3])}, outputs=("y",), opset=26)
    with pytest.raises((UnsupportedError, ModelError), match="double"):
        load_model(made.SerializeToString(), f64_as_f32=True)


def test_a_damaged_tensor_is_told_as_any_other():
    made, _ = model()
    (tensor,) = (t for t in made.graph.initializer if t.name == "w")
    tensor.raw_data = tensor.raw_data[:-8]
    with pytest.raises((ModelError, UnsupportedError), match="w"):
        load_model(made.SerializeToString(), f64_as_f32=True)
