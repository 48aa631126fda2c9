"""Control flow that is known when a model is read, against ONNX Runtime."""

from pathlib import Path

import numpy as np
import pytest
from required import required

required("onnx", "onnxruntime")
import onnx  # noqa: E402
import onnx.parser  # noqa: E402
import onnxruntime  # noqa: E402
from graph_kit import evaluate, run_stages  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from vkconv.core import GraphError, LimitError, ModelError, UnsupportedError  # noqa: E402
from vkconv.graph import load_model  # noqa: E402
from vkconv.graph.onnx import control, load_onnx_proto  # noqa: E402
from vkconv.graph.vkc import save_vkc  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan import control as plan_control  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402
from vkconv.plan.stages import Stage, cut_stages  # noqa: E402

LOOP = """
agraph (float[2, 3] x) => (float[2, 3] y, float[n, 2, 3] rows)
<int64 trips = {TRIPS}, bool go = {1}, float[1] one = {1.0}> {
    y, rows = Loop (trips, go, x) <
        body = body (int64 i, bool c, float[2, 3] v) => (bool d, float[2, 3] w, float[2, 3] r) {
        d = Identity (c)
        t = CastLike (i, v)
        u = Add (v, t)
        w = Mul (u, x)
        r = Add (w, one)
    }>
}
"""
SCAN = """
agraph (float[2] s, float[2, 5] a, float[4, 2] b) => (float[2] last, float[2, k] rows)
<> {
    last, rows = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
        scan_output_axes = [1], scan_output_directions = [1],
        body = body (float[2] v, float[2] p, float[2] q) => (float[2] w, float[2] r) {
            t = Mul (v, p)
            w = Add (t, q)
            r = Neg (w)
        }> (s, a, b)
}
"""
NESTED = """
agraph (float[3] x) => (float[3] y)
<int64 two = {2}, int64 three = {3}, bool yes = {1}> {
    y = Loop (two, , x) <body = outer (int64 i, bool c, float[3] v) => (bool d, float[3] w) {
        d = Identity (c)
        u = Loop (three, c, v) <body = inner (int64 j, bool e, float[3] p) => (bool f, float[3] q) {
            f = Identity (e)
            q = Add (p, v)
        }>
        w = If (yes) <then_branch = a () => (float[3] m) { m = Add (u, x) },
            else_branch = b () => (float[3] k) { k = Neg (u) }>
    }>
}
"""


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')


def agrees(made: onnx.ModelProto) -> None:
    rng = np.random.default_rng(9)
    shapes = {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in made.graph.input}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, arrays)
    got = evaluate(bind(load_onnx_proto(made), OPS, shapes), arrays)
    for y, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_a_loop_is_its_body_so_many_times() -> None:
    agrees(model(LOOP.replace("TRIPS", "4")))


def test_a_scan_goes_along_any_axis_and_backwards() -> None:
    agrees(model(SCAN.replace("[2, 5] a", "[2, 4] a")))


def test_control_flow_in_control_flow_that_reads_from_outside() -> None:
    agrees(model(NESTED))
    agrees(model(NESTED.replace("yes = {1}", "yes = {0}")))


def test_a_loop_of_no_steps_gives_what_it_began_with() -> None:
    text = LOOP.replace(", float[n, 2, 3] rows", "").replace("y, rows = ", "y = ").replace(", float[2, 3] r)", ")")
    agrees(model(text.replace("r = Add (w, one)", "").replace("TRIPS", "0")))


def test_too_many_steps_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"nodes once Loop node '' of 9000000000 steps is unrolled, vkconv takes"):
        load_onnx_proto(model(LOOP.replace("TRIPS", "9000000000")))
    monkeypatch.setattr(control, "MAX_GROWTH_BYTES", 500)
    with pytest.raises(ModelError, match=r"of 4 steps adds \d+ bytes unrolled; vkconv takes 500"):
        load_onnx_proto(model(LOOP.replace("TRIPS", "4")))


TRIPS = LOOP.replace("agraph (", "agraph (int64 trips, ").replace("int64 trips = {TRIPS}, ", "")
STOPPED = (
    LOOP.replace("TRIPS", "9")
    .replace("d = Identity (c)", "")
    .replace("r = Add (w, one)", "r = Add (w, one)\n s = ReduceSum <keepdims = 0> (w)\n d = Less (s, most)")
    .replace("float[1] one", "float most = {100.0}, float[1] one")
)
BRANCH = NESTED.replace("agraph (", "agraph (bool yes, ").replace(", bool yes = {1}", "")
OPEN_SCAN = SCAN.replace("[2, 5] a", "[2, k] a").replace("[4, 2] b", "[k, 2] b")


def agrees_in_stages(made: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> list[Stage]:
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, arrays)
    graph = load_onnx_proto(made)
    for y, want in zip(run_stages(graph, arrays), wanted, strict=True):
        assert y.shape == want.shape and y.dtype == want.dtype
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    return list(cut_stages(graph, OPS))


@pytest.mark.parametrize("trips", [1, 3])
def test_a_loop_of_a_computed_number_of_steps(trips: int) -> None:
    arrays = {"trips": np.array(trips), "x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    (stage,) = agrees_in_stages(model(TRIPS), arrays)
    assert stage.control is not None and stage.steered_by == ("trips",)


def test_a_loop_that_ends_by_a_condition() -> None:
    assert agrees_in_stages(model(STOPPED), {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})


@pytest.mark.parametrize("yes", [True, False])
def test_a_branch_that_a_value_chooses(yes: bool) -> None:
    agrees_in_stages(model(BRANCH), {"yes": np.array(yes), "x": np.array([1, 2, 3], np.float32)})


def test_a_scan_of_an_open_number_of_steps() -> None:
    arrays = {"s": np.ones(2), "a": np.arange(10).reshape(2, 5), "b": np.arange(10).reshape(5, 2)}
    agrees_in_stages(model(OPEN_SCAN), {name: array.astype(np.float32) for name, array in arrays.items()})


def test_what_is_before_and_behind_is_planned_as_a_whole() -> None:
    text = """
    agraph (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) <float most = {2.0}> {
        r = Relu (x)
        s = ReduceSum <keepdims = 0> (r)
        c = Less (s, most)
        b = If (c) <then_branch = p () => (float[2, 3] u) { u = Neg (r) },
            else_branch = q () => (float[2, 3] v) { v = Exp (x) }>
        y = Add (b, r)
        z = Exp (r)
    }"""
    for scale in (0.1, 10):
        stages = agrees_in_stages(model(text), {"x": scale * np.arange(6, dtype=np.float32).reshape(2, 3)})
        assert [stage.control is not None for stage in stages] == [False, True, False]
        assert [node.op for node in stages[0].nodes] == ["relu", "reduce", "less", "exp"]


def test_a_loop_without_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_control, "MAX_STEPS", 4)
    text = STOPPED.replace("Loop (trips, go, x)", "Loop (, , x)").replace("most = {100.0}", "most = {inf}")
    with pytest.raises(LimitError, match=r"loop node .* has not ended after 4 steps; vkconv takes as many"):
        run_stages(load_onnx_proto(model(text)), {"x": np.zeros((2, 3), np.float32)})


def test_a_body_that_cannot_be_taken_says_why() -> None:
    text = BRANCH.replace("k = Neg (u)", "k = Det (u)")
    with pytest.raises(UnsupportedError, match=r"its else_branch: Det \(.*\): vkconv has no such op"):
        load_onnx_proto(model(text))


def test_what_has_bodies_is_not_planned_as_a_whole() -> None:
    with pytest.raises(UnsupportedError, match=r"has control flow by values \(loop node .*\), which the host drives"):
        bind(load_onnx_proto(model(TRIPS)), OPS, {"trips": (), "x": (2, 3)})


def test_what_has_bodies_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"has control flow \(loop node .*\), which a \.vkc file does not hold"):
        save_vkc(load_onnx_proto(model(TRIPS)), tmp_path / "loop.vkc")


def test_a_condition_in_a_file_of_its_own_is_read_when_it_runs(tmp_path):
    """It is no reason to fail: what steers the model is read with the other weights."""
    info = helper.make_tensor_value_info
    bodies = [
        helper.make_graph([helper.make_node(op, ["x"], ["z"])], op, [], [info("z", TensorProto.FLOAT, [3])])
        for op in ("Neg", "Abs")
    ]
    node = helper.make_node("If", ["yes"], ["y"], "choose", then_branch=bodies[0], else_branch=bodies[1])
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", TensorProto.FLOAT, [3])],
        [info("y", TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(np.array(True), "yes")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save_model(made, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    (node,) = load_model(tmp_path / "m.onnx").nodes
    assert node.op == "if"
