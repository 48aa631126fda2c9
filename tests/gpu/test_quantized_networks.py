"""Small networks of 8-bit integers, as quantizers export them, against the reference and against onnx's own."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import vkconv
from vkconv.check.reference import reference_outputs
from vkconv.graph.onnx import load_onnx_proto
from vkconv.graph.vkc import load_vkc, save_vkc

pytestmark = pytest.mark.gpu


class Maker:
    """Nodes and constants of a model."""

    def __init__(self, seed):
        self.rng, self.nodes, self.constants = np.random.default_rng(seed), [], []

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op, *inputs, outputs=1, **attrs):
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attrs))
        return names if outputs > 1 else names[0]

    def conv(self, x, x_scale, x_zero, c_in, c_out, kernel, y_scale, y_zero, **attrs):
        groups = attrs.get("group", 1)
        shape = (c_out, c_in // groups, kernel, kernel)
        w = self.rng.integers(-127, 128, shape).astype(np.int8)
        w_scale = (self.rng.uniform(0.5, 1.5, c_out) / (74 * np.sqrt(np.prod(shape[1:])))).astype(np.float32)
        bias = self.rng.integers(-2000, 2000, c_out).astype(np.int32)
        given = (w, w_scale, np.zeros(c_out, np.int8), np.float32(y_scale), y_zero, bias)
        return self.node("QLinearConv", x, x_scale, x_zero, *map(self.constant, given), **attrs)

    def model(self, x, y):
        info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x), helper.make_empty_tensor_value_info(y)]
        graph = helper.make_graph(self.nodes, "quantized", info[:1], info[1:], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)


def mobile(seed, size=(2, 3, 33, 29)):
    """A stem, a depthwise and a pointwise convolution in bytes between floats."""
    m = Maker(seed)
    scale, zero = m.constant(np.float32(0.03)), m.constant(np.uint8(121))
    q = m.node("QuantizeLinear", "x", scale, zero)
    q = m.conv(q, scale, zero, 3, 16, 3, 0.02, np.uint8(97), strides=(2, 2), pads=(1, 1, 1, 1))
    scale, zero = m.constant(np.float32(0.02)), m.constant(np.uint8(97))
    q = m.conv(q, scale, zero, 16, 16, 3, 0.02, np.int8(3), pads=(1, 1, 1, 1), group=16)
    scale, zero = m.constant(np.float32(0.02)), m.constant(np.int8(3))
    q = m.conv(q, scale, zero, 16, 37, 1, 0.025, np.int8(-7))
    y = m.node("DequantizeLinear", q, m.constant(np.float32(0.025)), m.constant(np.int8(-7)))
    return m.model(size, y)


def inputs(seed, size=(2, 3, 33, 29)):
    return {"x": np.random.default_rng(seed).standard_normal(size, np.float32)}


@pytest.mark.parametrize("route", [None, "dot", "gemm", "tile", "direct"])
def test_a_network_of_bytes_gives_the_numbers_of_the_reference(route, device):
    model, given = mobile(1), inputs(2)
    graph = load_onnx_proto(model)
    routes = {} if route is None else {"qlinear_conv": route}
    with vkconv.load(graph, device, options=vkconv.Options(routes=routes)) as session:
        first, second = session.run(given), session.run(given)
    (name,) = graph.outputs
    assert first[name].tobytes() == second[name].tobytes()
    np.testing.assert_array_equal(first[name], reference_outputs(graph, given)[name].astype(np.float32))
    # onnx's scales in float64, and adds the zero point before it rounds: a byte more or less where that matters.
    (theirs,) = ReferenceEvaluator(model).run(None, given)
    steps = np.abs(first[name] - theirs) / 0.025
    assert steps.max() < 2.5 and (steps > 0.5).mean() < 0.01
    assert len(np.unique(first[name])) > 100


def test_products_of_dynamic_ranges(device):
    """A layer as dynamic quantization leaves it: bytes by the range of the input, sums scaled in f32."""
    m = Maker(5)
    q, scale, zero = m.node("DynamicQuantizeLinear", "x", outputs=3)
    w = m.constant(m.rng.integers(-127, 128, (67, 40)).astype(np.int8))
    sums = m.node("MatMulInteger", q, w, zero, m.constant(np.int8(0)))
    scaled = m.node(
        "Mul", m.node("Cast", sums, to=TensorProto.FLOAT), m.node("Mul", scale, m.constant(np.float32(0.01)))
    )
    y = m.node("Relu", m.node("Add", scaled, m.constant(m.rng.standard_normal(40).astype(np.float32))))
    model, given = m.model((3, 5, 67), y), inputs(6, (3, 5, 67))
    graph = load_onnx_proto(model)
    with vkconv.load(graph, device) as session:
        got = session.run(given)[y]
    (theirs,) = ReferenceEvaluator(model).run(None, given)
    np.testing.assert_allclose(got, theirs, rtol=1e-5, atol=1e-4)


def test_bytes_go_in_and_out_and_into_files(device, tmp_path):
    graph = load_onnx_proto(mobile(7))
    save_vkc(graph, tmp_path / "mobile.vkc")
    given = inputs(8)
    with vkconv.load(graph, device) as one, vkconv.load(tmp_path / "mobile.vkc", device) as other:
        (name,) = graph.outputs
        assert one.run(given)[name].tobytes() == other.run(given)[name].tobytes()
    assert {a.dtype.name for a in load_vkc(tmp_path / "mobile.vkc").constants.values()} >= {"int8", "uint8", "int32"}
