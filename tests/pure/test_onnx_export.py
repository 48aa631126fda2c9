"""Export to ONNX without a device: every case of every op, there and back, computes what it did."""

import numpy as np
import pytest
from graph_kit import draw, evaluate, make_graph, optimize
from required import required

required("onnx")


import onnx  # noqa: E402

from vkconv.core import UnsupportedError  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.onnx_export import to_onnx  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.ops.core.calls import parse_call  # noqa: E402
from vkconv.plan.bound import bind, widen  # noqa: E402
from vkconv.plan.single import graph_of_shapes  # noqa: E402


def _is_empty(call):
    return any(0 in spec.shape for spec in (*call.operands.values(), *call.outputs.values()) if spec is not None)


# A dimension of 0 is an open one in models that vkconv reads, as exporters write it.
CASES = [text for op in OPS.values() for text in op.cases if not _is_empty(parse_call(text, OPS))]
# What ONNX has no word for: parts of training, what passes make, and forms that ONNX's ops do not have; and what it has
# in parts: a recurrence is LSTM, GRU or RNN without the product before it, and of results that are counted ONNX has as
# many as there are.
WITHOUT = {
    "chain",
    "conv2d_backward_data",
    "conv2d_backward_weight",
    "conv3d_backward_data",
    "conv3d_backward_weight",
    "conv_reduce",
    "inverted_residual",
    "non_max_suppression",
    "nonzero",
    "prologue_conv2d",
    "recurrence",
    "separable_conv2d",
    "squeeze_excite",
}
WITHOUT |= {"gemm_reduce", "scatter_strided", "bitcast", "shift_left", "shift_right"}
SOME_WITHOUT = {"group_norm", "instance_norm", "layer_norm", "rms_norm", "pool2d", "space_to_depth"}
# Calls whose shapes onnx counts otherwise, or that it refuses: indices of rank 0, odd scales, ceil_mode with indices.
SOME_WITHOUT |= {"one_hot", "pool2d_argmax", "resize"}
# ONNX has half a pixel off, or none and sides of at least one.
SOME_WITHOUT |= {"roi_align"}
# What becomes of rows of nothing but -inf, and masks that windows of an image take in turn.
SOME_WITHOUT |= {"attention", "softmax"}
# Rows along the first dimension, which is the batch to ONNX.
SOME_WITHOUT |= {"tensor_scatter"}


@pytest.mark.long
@pytest.mark.parametrize("text", CASES)
def test_a_call_there_and_back_is_the_same(text):
    call = parse_call(text, OPS)
    graph = graph_of_shapes(call)
    try:
        model = to_onnx(graph)
    except UnsupportedError as error:
        assert call.op in WITHOUT | SOME_WITHOUT, error
        return
    assert call.op not in WITHOUT
    back = load_onnx_proto(model)
    assert back.inputs == graph.inputs and back.outputs == graph.outputs
    before, after = bind(graph, OPS), bind(back, OPS)
    arrays = draw(before.inputs)
    for pair in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        want, got = map(widen, pair)
        most = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * most)


def test_names_and_metadata_travel():
    graph = make_graph(
        {"x": (1, 3, 5, 5)},
        [("conv2d", "x w", "c", {"act": "hard_swish", "out_scale": 2.0, "out_shift": 1.0}), ("relu", "c", "y")],
        "c y",
        {"w": np.ones((2, 3, 3, 3), np.float32)},
    ).replace(metadata={"labels": "a\nb"})
    model = to_onnx(graph)
    assert [node.op_type for node in model.graph.node] == ["Conv", "HardSwish", "Mul", "Add", "Relu"]
    assert [node.name for node in model.graph.node][::4] == ["conv2d_c", "relu_y"]
    assert model.producer_name == "vkconv"
    assert {prop.key: prop.value for prop in model.metadata_props} == {"labels": "a\nb"}
    onnx.checker.check_model(model, full_check=True)
    assert {info.name for info in model.graph.value_info} >= {"c"} - {o.name for o in model.graph.output}
    (conv, relu) = optimize(bind(load_onnx_proto(model), OPS)).nodes
    assert (conv.call["act"], conv.call["out_scale"], conv.call["out_shift"]) == ("hard_swish", 2.0, 1.0)
    assert relu.call.op == "relu"


def test_what_onnx_lacks_is_listed_node_by_node():
    nodes = [("scatter_strided", "x", "a", {"shape": (9,), "stride": (2,)}), ("bitcast", "a", "y", {"to": "i32"})]
    with pytest.raises(UnsupportedError) as refused:
        to_onnx(make_graph({"x": (4,)}, nodes, "y"))
    assert "scatter_strided (scatter_strided_a): ONNX has no such op" in str(refused.value)
    assert "bitcast (bitcast_y)" in str(refused.value)


def test_open_dimensions_stay_open():
    graph = make_graph(
        {"x": ("n", 3, "h", "w")}, [("merge", "x", "m", {"first": 1, "last": 2}), ("tanh", "m", "y")], "y"
    )
    back = load_onnx_proto(to_onnx(graph))
    assert back.inputs["x"].shape == ("n", 3, "h", "w")
    assert bind(back, OPS, {"x": (2, 3, 4, 5)}).specs["y"].shape == (2, 12, 5)
