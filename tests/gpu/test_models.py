"""Published networks on the device against ONNX Runtime: RapidOCR's text direction classifier, recogniser and detector
(which has transposed convolutions)."""

import numpy as np
import pytest
from models_kit import CLASSIFIER, DETECTOR, NETWORKS, RECOGNISER, drawn, model_path, picture
from required import required

import vkconv
from vkconv.backend.runtime import select_device
from vkconv.graph import load_model
from vkconv.graph.vkc import save_vkc
from vkconv.ops import OPS
from vkconv.plan.planner import Options, plan
from vkconv.route import judge

required("rapidocr_onnxruntime", "onnx", "onnxruntime")
pytestmark = pytest.mark.gpu
CASES = [
    (CLASSIFIER, (1, 3, 48, 192)),
    (CLASSIFIER, (2, 3, 48, 100)),
    (RECOGNISER, (1, 3, 48, 104)),
    (RECOGNISER, (2, 3, 48, 72)),
    (DETECTOR, (1, 3, 64, 96)),
]


def onnxruntime_output(name, x):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model_path(name), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def assert_agrees(got, want):
    """At most 1e-3 of the output's largest value apart, and not constant."""
    assert got.shape == want.shape and want.std() > 0
    assert np.abs(got - want).max() <= 1e-3 * np.abs(want).max()


def only(outputs):
    (array,) = outputs.values()
    return array


@pytest.mark.parametrize(("name", "shape"), CASES, ids=lambda v: v.split("_")[-2] if isinstance(v, str) else str(v))
def test_agrees_with_onnxruntime(name, shape, device):
    x = drawn(name, shape)
    with vkconv.load(model_path(name), device) as session:
        got = only(session.run({"x": x}))
    assert_agrees(got, onnxruntime_output(name, x))


@pytest.mark.parametrize("name", [CLASSIFIER, RECOGNISER])
def test_one_session_takes_shapes_in_turn_and_each_image_of_a_batch_is_its_own(name, device):
    wide, narrow = picture((2, 3, 48, 96)), picture((1, 3, 48, 64))
    with vkconv.load(model_path(name), device) as session:
        both = only(session.run({"x": wide}))
        assert_agrees(only(session.run({"x": narrow})), onnxruntime_output(name, narrow))
        for i in range(2):
            alone = only(session.run({"x": wide[i : i + 1]}))
            np.testing.assert_allclose(both[i : i + 1], alone, rtol=0, atol=1e-5 * np.abs(alone).max())
        np.testing.assert_array_equal(only(session.run({"x": wide})), both)


@pytest.mark.parametrize("name", [CLASSIFIER, RECOGNISER])
def test_vkc_and_onnx_give_identical_bytes_ten_times(name, device, tmp_path):
    x = picture((1, 3, 48, 64))
    converted = tmp_path / "model.vkc"
    save_vkc(load_model(model_path(name)), converted)
    with vkconv.load(model_path(name), device) as session:
        first = only(session.run({"x": x})).tobytes()
        for _ in range(9):
            assert only(session.run({"x": x})).tobytes() == first
    with vkconv.load(converted, device) as session:
        assert only(session.run({"x": x})).tobytes() == first


@pytest.mark.parametrize("name", [CLASSIFIER, RECOGNISER])
def test_passes_save_nodes_and_change_nothing_but_rounding(name, device):
    x = picture((1, 3, 48, 64))
    with vkconv.load(model_path(name), device) as session:
        want, nodes = only(session.run({"x": x})), len(session.plan.nodes)
    with vkconv.load(model_path(name), device, options=Options(passes=False)) as session:
        assert_agrees(only(session.run({"x": x})), want)
        assert len(session.plan.nodes) > 1.3 * nodes


# None of these networks has a convolution in groups of several channels, a normalization of short rows or by other
# statistics, a recurrence, a gradient or what only gradients are made of, integers of 8 bits, the best of a row, or a
# product or convolution that only a reduction reads, a reduction of integers, or an index made one of many.
NOT_THERE = {("conv2d", "grouped"), ("layer_norm", "one_lane"), ("reduce", "int64")}
NOT_THERE |= {("conv2d", "by_images"), ("conv_transpose2d", "by_images")}  # they have one image
OPS_NOT_THERE = {
    "arg_reduce",
    "attention",
    "batch_norm_training",
    "conv2d_backward_data",
    "conv2d_backward_weight",
    "conv_integer",
    "conv3d_backward_data",
    "conv3d_backward_weight",
    "conv_reduce",
    "gemm_reduce",
    "group_norm",
    "instance_norm",
    "inverted_residual",
    "matmul_integer",
    "matmul_nbits",
    "one_hot",
    "prologue_conv2d",
    "qlinear_conv",
    "qlinear_matmul",
    "recurrence",
    "rms_norm",
    "scatter_strided",
    "separable_conv2d",
    "squeeze_excite",
    "topk",
}


def forced_routes():
    """(op, route) of every op with a choice."""
    several = (op for op in OPS.values() if len(op.routes) > 1 and op.name not in OPS_NOT_THERE)
    routes = [(op.name, route.name) for op in several for route in op.routes if route.f16_depth is None]
    of_halves = "cooperative", "fragment", "block_diagonal"
    return [pair for pair in routes if pair not in NOT_THERE and not any(word in pair[1] for word in of_halves)]


@pytest.mark.share(4)
@pytest.mark.parametrize(("op", "route"), forced_routes(), ids=lambda v: v)
def test_every_route_agrees_in_a_network(op, route, device):
    """Forced on every node that it can take, in the first network that has one."""
    _, facts = select_device(device)
    (wanted,) = [r for r in OPS[op].routes if r.name == route]
    for name, shape in NETWORKS.items():
        graph, x = load_model(model_path(name)), drawn(name, shape)
        nodes = plan(graph, facts, shapes={"x": x.shape}).plan.nodes
        able = {n.name for n in nodes if n.call.op == op and judge(wanted, n.call, facts).allowed}
        if able:
            with vkconv.load(graph, device, routes={f"node:{n}": route for n in able}) as session:
                got = only(session.run({"x": x}))
                assert {n.name for n in session.plan.nodes if n.route == route and n.call.op == op} == able
            assert_agrees(got, onnxruntime_output(name, x))
            return
    pytest.fail(f"no network here has a {op} that {route} takes on {facts.name}")


def test_the_recogniser_in_memory_of_its_own_gives_the_same_bytes(device):
    x = picture((1, 3, 48, 64))
    results = []
    for share in (True, False):
        with vkconv.load(model_path(RECOGNISER), device, options=Options(share_memory=share)) as session:
            results.append(only(session.run({"x": x})).tobytes())
            memory = session.plan.memory
            if share:
                assert memory.activations_bytes <= 1.25 * memory.lower_bound_bytes
    assert results[0] == results[1]
