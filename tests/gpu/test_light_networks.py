"""The ``light_*`` networks of the onnx package, with random weights, on the device against ONNX Runtime."""

import numpy as np
import pytest
from light_networks import NETWORKS, light_network
from required import required
from shipped import exhaustive

import vkconv
from vkconv.graph.onnx import load_onnx_proto

required("onnxruntime")
pytestmark = pytest.mark.gpu


def onnxruntime_output(model, x):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow, exhaustive]) if name == "vgg19" else name for name in NETWORKS]
)
def test_agrees_with_onnxruntime(name, device):
    model = light_network(name)
    (image,) = model.graph.input
    x = np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)
    want = onnxruntime_output(model, x)
    with vkconv.load(load_onnx_proto(model), device) as session:
        (got,) = session.run({image.name: x}).values()
    assert got.shape == want.shape and np.isfinite(want).all()
    difference = np.abs(got - want).max()
    assert difference <= 1e-3 * np.abs(want).max()
    # Some outputs differ little from one another: hold what does differ to as much.
    assert want.std() > 0 and difference <= 1e-3 * want.std()
