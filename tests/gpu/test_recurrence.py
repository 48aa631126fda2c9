"""Recurrent networks of ONNX on the device, held to ONNX Runtime: what its own node tests leave out."""

import numpy as np
import pytest
from required import required

required("onnx", "onnxruntime")
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.plan.planner import Options  # noqa: E402
from vkconv.session import Session  # noqa: E402

pytestmark = pytest.mark.gpu
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
T, N, INPUT, HIDDEN = 5, 3, 7, 11


def model(op, present, **attributes):
    """A node of all its outputs, with the operands of names in ``present``."""
    rng = np.random.default_rng(3)
    d, gates = 1 + (attributes.get("direction") == "bidirectional"), GATES[op]
    shapes = {
        "w": (d, gates * HIDDEN, INPUT),
        "r": (d, gates * HIDDEN, HIDDEN),
        "b": (d, 2 * gates * HIDDEN),
        "lengths": (N,),
        "h": (d, N, HIDDEN),
        "c": (d, N, HIDDEN),
        "p": (d, 3 * HIDDEN),
    }
    arrays = {name: 0.5 * rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["lengths"] = np.array([5, 1, 3], np.int32)
    names = [name if name in ("w", "r") or name in present else "" for name in shapes][: 7 if op == "LSTM" else 5]
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, ["x", *names], outputs, hidden_size=HIDDEN, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (T, N, INPUT))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(arrays[name], name) for name in names if name],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CASES = {
    "lstm": ("LSTM", ("b", "lengths", "h", "c", "p"), {"direction": "bidirectional"}),
    "lstm, c alone, clipped": ("LSTM", ("c",), {"direction": "reverse", "clip": 0.25}),
    "lstm, input is forget": ("LSTM", ("b", "p"), {"input_forget": 1}),
    "lstm of other functions": (
        "LSTM",
        ("lengths", "h"),
        {
            "direction": "bidirectional",
            "activations": ["HardSigmoid", "ScaledTanh", "Softsign", "Sigmoid", "LeakyRelu", "Affine"],
            "activation_alpha": [0.25, 1.5, 0.125, 0.5],
            "activation_beta": [0.375, 0.75, 0.25],
        },
    ),
    "gru": ("GRU", ("b", "lengths", "h"), {"direction": "bidirectional"}),
    "gru, linear before reset": (
        "GRU",
        ("b", "lengths", "h"),
        {"direction": "bidirectional", "linear_before_reset": 1},
    ),
    "rnn": ("RNN", ("b", "h"), {"direction": "reverse", "activations": ["Relu"]}),
}


@pytest.mark.parametrize("route", ["sequence", "steps"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_onnx_runtime(case, route, device):
    op, present, attributes = CASES[case]
    made = model(op, present, **attributes)
    x = np.random.default_rng(5).standard_normal((T, N, INPUT)).astype(np.float32)
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    options = Options(routes={"recurrence": route})
    with Session(load_onnx_proto(made), device, options=options, poison=True) as session:
        outputs, again = session.run({"x": x}), session.run({"x": x})
        steps = [node.dispatches for node in session.plan.nodes if node.call.op == "recurrence"]
    assert [y.tobytes() for y in outputs.values()] == [y.tobytes() for y in again.values()], "two replays differ"
    for got, want in zip(outputs.values(), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    assert max(steps) <= (1 if route == "sequence" else T * (2 if case == "gru" else 1))
