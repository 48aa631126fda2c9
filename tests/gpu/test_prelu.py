"""prelu behind convolutions: exact by every route and however the sum is cut, at run time or at load, and fused into
the convolutions of an ONNX model."""

import numpy as np
import pytest
from required import required
from route_kit import draw as inputs_of

import vkconv
from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect, run_call
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.strided import STRIDED_COPY
from vkconv.plan.commands import Launch
from vkconv.plan.planner import Options
from vkconv.route import judge

pytestmark = pytest.mark.gpu
# Tails of channels and pixels, groups, outputs that no tap reaches; sums that parts of K are cut from.
CALLS = (
    "conv2d:x=2x37x7x9,w=23x37x3x3,{}p=1,act=prelu,slope=23",
    "conv2d:x=2x37x7x9,w=23x37x3x3,{}residual=2x23x7x9,p=1,act=prelu,slope=23",
    "conv2d:x=1x10x6x11,w=21x10x1x1,{}act=prelu,slope=21",
    "conv2d:x=2x10x7x9,w=14x5x3x2,{}g=2,s=2x1,p=1,act=prelu,slope=14",
    "conv2d:x=2x7x9x13,w=7x1x3x3,{}g=7,p=1,act=prelu,slope=7",
    "conv_transpose2d:x=2x34x5x6,w=34x9x3x3,{}g=2,s=2,p=1,act=prelu,slope=18",
    "conv_transpose2d:x=1x5x4x5,w=5x6x2x2,{}s=3,act=prelu,slope=6",
    "conv2d_backward_data:dy=2x37x5x6,w=37x11x3x3,{}x_shape=10x11,s=2,p=1,act=prelu,slope=11",
    "conv2d_backward_data:dy=2x7x5x6,w=7x11x1x1,{}x_shape=10x11,s=2,act=prelu,slope=11",
)


def with_bias(text):
    return text.format(f"b={text.rpartition('=')[2]},")


@pytest.mark.parametrize("text", [form(text) for text in CALLS for form in (lambda t: t.format(""), with_bias)])
def test_quarters_are_exact_by_every_route(text, device):
    call, (_, facts) = parse_call(text, OPS), select_device(device)
    arrays = inputs_of(call, "integers")
    arrays["slope"] = (np.arange(arrays["slope"].size, dtype=np.float32) % 9 - 4) / 4
    (want,) = expect(call, arrays).outputs
    assert ((want != 0) & (np.abs(want) % 1 != 0)).any()
    for route in OPS[call.op].routes:
        if not judge(route, call, facts).allowed:
            continue
        for slices in {1, 3}.intersection(route.params(call, facts).get("split_k", ())) or (None,):
            params = {} if slices is None else {"split_k": slices}
            ran, checked = check_call(call, arrays, device=device, route=route.name, params=params)
            assert ran.route == route.name and checked.ok, f"{route.name} {params}: {checked.problem}"
            if "winograd" not in route.name:
                np.testing.assert_array_equal(ran.outputs[0][0], want, err_msg=f"{route.name} {params}")


@pytest.mark.parametrize("constant", [(), ("w",), ("w", "b"), ("slope",), ("w", "b", "slope")], ids="-".join)
def test_bias_and_slope_may_be_weights_or_inputs(constant, device):
    for text in CALLS[:1] + CALLS[-1:]:
        call = parse_call(with_bias(text), OPS)
        arrays = inputs_of(call, "integers")
        ((y,),) = run_call(call, arrays, device=device, route=None, constant=constant).outputs
        want = expect(call, arrays).outputs[0]
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-5 * np.abs(want).max())


def model(path):
    """Conv, PRelu by channel, ConvTranspose, PRelu by channel, Conv without bias, PRelu of one slope."""
    required("onnx", "onnxruntime")
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(5)
    shapes = {"w1": (12, 3, 3, 3), "b1": (12,), "s1": (12, 1, 1), "w2": (12, 7, 2, 2), "b2": (7,), "s2": (7, 1, 1)}
    shapes |= {"w3": (5, 7, 1, 1), "s3": (1,)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("PRelu", ["c1", "s1"], ["p1"]),
        helper.make_node("ConvTranspose", ["p1", "w2", "b2"], ["c2"], "second", strides=[2, 2]),
        helper.make_node("PRelu", ["c2", "s2"], ["p2"]),
        helper.make_node("Conv", ["p2", "w3"], ["c3"], "third"),
        helper.make_node("PRelu", ["c3", "s3"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 9, 11])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5, 18, 22])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    onnx.checker.check_model(made)
    onnx.save(made, path)


def test_prelu_of_an_onnx_model_runs_in_its_convolutions(device, tmp_path):
    model(tmp_path / "model.onnx")
    import onnxruntime

    reference = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    whole = vkconv.load(tmp_path / "model.onnx", device)
    plain = vkconv.load(tmp_path / "model.onnx", device, options=Options(passes=False))
    with whole, plain:
        for n in (1, 3, 1):
            x = np.random.default_rng(n).standard_normal((n, 3, 9, 11)).astype(np.float32)
            (want,) = reference.run(None, {"x": x})
            for session, nodes in ((whole, 3), (plain, 6)):
                y = session.run({"x": x})["y"]
                assert len(session.plan.nodes) == nodes
                np.testing.assert_allclose(y, want, rtol=0, atol=1e-5 * np.abs(want).max())
        acts = [(node.name, node.call.op, node.call["act"]) for node in whole.plan.nodes]
        assert acts == [
            ("first", "conv2d", "prelu"),
            ("second", "conv_transpose2d", "prelu"),
            ("third", "conv2d", "leaky_relu"),
        ]
        shaders = {command.shader for command in whole.plan.run if isinstance(command, Launch)}
        assert STRIDED_COPY not in shaders, "bias and slope are put side by side at load"
