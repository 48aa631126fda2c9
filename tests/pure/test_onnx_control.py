"""Control flow that is known when a model is read, against ONNX Runtime."""

import numpy as np
import pytest
from required import required

required("onnx", "onnxruntime")
import onnx  # noqa: E402
import onnx.parser  # noqa: E402
import onnxruntime  # noqa: E402
from graph_kit import evaluate  # noqa: E402

from vkconv.core import ModelError, UnsupportedError  # noqa: E402
from vkconv.graph.onnx import control, load_onnx_proto  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402

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


@pytest.mark.parametrize(
    "text",
    [
        LOOP.replace("agraph (", "agraph (int64 trips, ").replace("int64 trips = {TRIPS}, ", ""),
        LOOP.replace("TRIPS", "3").replace("d = Identity (c)", "d = Not (c)"),
        NESTED.replace("agraph (", "agraph (bool yes, ").replace(", bool yes = {1}", ""),
    ],
    ids=["trips", "condition", "branch"],
)
def test_what_is_computed_stays_and_is_refused_with_a_way_out(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"control flow by values that are computed.*--fallback onnxruntime"):
        load_onnx_proto(model(text))
