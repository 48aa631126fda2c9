"""Models whose sizes depend on values, in stages on a device, against ONNX Runtime and numpy."""

import asyncio
import json

import numpy as np
import pytest
from cli_kit import vkconv as vkconv_command
from required import required

required("onnx", "onnxruntime")
import onnx.parser  # noqa: E402
import onnxruntime  # noqa: E402

import vkconv  # noqa: E402
from vkconv.core import InputError, UsageError  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.staged import StagedSession  # noqa: E402

pytestmark = pytest.mark.gpu

# The boxes that are left of each image's classes, their scores and how many they are, the best three of them.
DETECTOR = """
detector (float[n, 67, 4] corners, float[n, 3, 67] logits) =>
    (float[k, 4] boxes, float[k] scores, int64[k, 3] kept, float[m] best)
<int64[1] most = {9}, float[1] iou = {0.4}, float[1] least = {0.6}, int64[1] three = {3},
 int64[2] place = {0, 2}> {
    probability = Sigmoid (logits)
    kept = NonMaxSuppression <center_point_box = 1> (corners, probability, most, iou, least)
    at = Gather <axis = 1> (kept, place)
    boxes = GatherND (corners, at)
    scores = GatherND (probability, kept)
    shape = Shape (scores)
    count = Min (shape, three)
    best, order = TopK (scores, count)
}
"""


def proto(text, opset=17):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    onnx.checker.check_model(model)
    return model


def drawn(images, seed):
    rng = np.random.default_rng(seed)
    corners = np.concatenate([rng.uniform(0, 8, (images, 67, 2)), rng.uniform(1, 4, (images, 67, 2))], -1)
    return {"corners": corners.astype(np.float32), "logits": rng.standard_normal((images, 3, 67)).astype(np.float32)}


def assert_like_onnxruntime(model, inputs, outputs):
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, wanted in zip(outputs, reference.run(list(outputs), inputs), strict=True):
        assert outputs[name].dtype == wanted.dtype and outputs[name].shape == wanted.shape, name
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-5, atol=1e-6)


def test_a_detector_is_as_onnxruntime_has_it_for_every_number_of_boxes(device):
    """One session, several images and seeds, and again what it was first run with: the same bytes."""
    model = proto(DETECTOR)
    with vkconv.load(model, device) as session:
        assert isinstance(session, StagedSession) and len(session.stages) == 2
        counts = []
        for images, seed in ((1, 0), (2, 1), (2, 2), (1, 0)):
            inputs = drawn(images, seed)
            outputs = session.run(inputs)
            assert_like_onnxruntime(model, inputs, outputs)
            counts.append(len(outputs["kept"]))
        assert len(set(counts)) > 1 and counts[0] == counts[-1]
        first, last = (session.run(drawn(1, 0)) for _ in range(2))
        assert all(first[name].tobytes() == last[name].tobytes() for name in first)
        assert f"{counts[0]}" in str(session.explain()) and "in 2 stages" in str(session.explain())
        assert len(session.plans) == 2 and all(plan.nodes for plan in session.plans)


def test_a_detector_finds_nothing(device):
    """No box at all: everything behind it has no elements."""
    inputs = drawn(1, 0)
    inputs["logits"] -= 100
    with vkconv.load(proto(DETECTOR), device) as session:
        outputs = session.run(inputs)
        assert {name: array.shape for name, array in outputs.items()} == {
            "boxes": (0, 4),
            "scores": (0,),
            "kept": (0, 3),
            "best": (0,),
        }
        assert_like_onnxruntime(proto(DETECTOR), drawn(1, 3), session.run(drawn(1, 3)))


def test_outputs_stay_on_the_device_when_asked_to(device):
    with vkconv.load(proto(DETECTOR), device) as session:
        inputs = drawn(2, 5)
        wanted = session.run(inputs)
        there = session.run({name: vkconv.array(array, device) for name, array in inputs.items()}, out="device")
        assert all(isinstance(array, vkconv.DeviceArray) for array in there.values())
        assert all(there[name].numpy().tobytes() == wanted[name].tobytes() for name in wanted)


def test_named_dimensions_are_of_the_model_and_inputs_may_go_by_place(device):
    """No later stage has the dimension: it takes values that the first one found."""
    inputs = drawn(2, 5)
    with vkconv.load(proto(DETECTOR), device, dims={"n": 2}) as session:
        assert_like_onnxruntime(
            proto(DETECTOR), inputs, dict(zip(session.outputs, session(*inputs.values()), strict=True))
        )
    with pytest.raises(InputError, match="no input has a dimension 'm'"):
        vkconv.load(proto(DETECTOR), device, dims={"m": 2})


COMPRESS = """
g (float[5, 7] x, bool[4] keep) => (float[k, 7] rows, float[j] elements, int64[2, m] places)
<int64[1] none = {-1}> {
    rows = Compress <axis = 0> (x, keep)
    flat = Compress (x, keep)
    elements = Relu (flat)
    some = Relu (x)
    places = NonZero (some)
}
"""


@pytest.mark.parametrize("kept", [(1, 0, 0, 1), (0, 0, 0, 0), (1, 1, 1, 1)])
def test_conditions_take_what_they_say(kept, device):
    x = np.random.default_rng(4).standard_normal((5, 7)).astype(np.float32)
    inputs = {"x": x, "keep": np.array(kept, bool)}
    with vkconv.load(proto(COMPRESS), device) as session:
        assert_like_onnxruntime(proto(COMPRESS), inputs, session.run(inputs))


def test_a_fallback_has_nothing_to_do(device):
    with vkconv.load(proto(DETECTOR), device, fallback="onnxruntime") as session:
        assert not session.parts.refused
        inputs = drawn(1, 1)
        assert_like_onnxruntime(proto(DETECTOR), inputs, session.run(inputs))


def test_what_a_session_refuses_is_refused_before_a_stage_runs(device):
    graph = load_onnx_proto(proto(DETECTOR))
    with pytest.raises(UsageError, match="runs in stages, whose inputs and outputs keep their types"):
        vkconv.load(graph, device, io_dtype="f16")
    with pytest.raises(InputError, match=r"has no input 'corner' .did you mean 'corners'"):
        vkconv.load(graph, device, shapes={"corner": (1, 67, 4)})
    with vkconv.load(graph, device, shapes={"corners": (1, 67, 4), "logits": (1, 3, 67)}) as session:
        inputs = drawn(1, 0)
        with pytest.raises(InputError, match="needs the input 'logits'"):
            session.run({"corners": inputs["corners"]})
        with pytest.raises(InputError, match="1x66x4"):
            session.run(inputs | {"corners": inputs["corners"][:, 1:]})
        with pytest.raises(InputError, match="timeout_s"):
            session.run(inputs, timeout_s=-1)
        assert_like_onnxruntime(proto(DETECTOR), inputs, session.run(inputs, timeout_s=60))
    session.close()
    with pytest.raises(UsageError, match="is closed; load the model again"):
        session.run(inputs)


def test_routes_are_forced_in_the_stage_of_their_node(device):
    settings = {"routes": {"node:TopK_7": "bitonic"}, "params": {"node:Sigmoid_0": {"local": 8}}}
    with vkconv.load(proto(DETECTOR), device, **settings) as session:
        inputs = drawn(1, 2)
        assert_like_onnxruntime(proto(DETECTOR), inputs, session.run(inputs))
        routes = {node.name: node.route for plan in session.plans for node in plan.nodes}
        assert routes["TopK_7"] == "bitonic"
    with pytest.raises(UsageError, match="there is no 'node:TopK_8' here"):
        vkconv.load(proto(DETECTOR), device, routes={"node:TopK_8": "bitonic"})


def test_floats_in_16_bits_between_the_stages_inputs_and_outputs(device):
    inputs = drawn(1, 7)
    with vkconv.load(proto(DETECTOR), device) as whole, vkconv.load(proto(DETECTOR), device, dtype="f16") as halved:
        wanted, got = whole.run(inputs), halved.run(inputs)
        assert got["scores"].dtype == np.float32
        np.testing.assert_allclose(got["best"], wanted["best"], rtol=2e-3)


# A loop of a computed number of steps around a branch that a value chooses, between two plain stages.
CONTROL = """
control (float[n, 5] x, int64 trips) => (float[n, 5] y, float[k, n, 5] rows)
<float half = {0.5}, float limit = {4.0}> {
    r = Relu (x)
    v, rows = Loop (trips, , r) <
        body = body (int64 i, bool c, float[n, 5] a) => (bool d, float[n, 5] b, float[n, 5] row) {
        d = Identity (c)
        s = ReduceMax <keepdims = 0> (a)
        large = Greater (s, limit)
        b = If (large) <then_branch = p () => (float[n, 5] u) { u = Mul (a, half) },
            else_branch = q () => (float[n, 5] w) { w = Add (a, r) }>
        row = Neg (b)
    }>
    y = Add (v, r)
}
"""


def test_control_flow_by_values_is_driven_by_the_host(device):
    """Odd sizes, several of them and numbers of steps in one session, and again what it was first run with."""
    model = proto(CONTROL)
    rng = np.random.default_rng(3)
    drawn = [{"x": rng.uniform(-2, 2, (n, 5)).astype(np.float32), "trips": np.array(t)} for n, t in ((3, 4), (7, 1))]
    with vkconv.load(model, device) as session:
        assert [stage.control is not None for stage in session.stages] == [False, True, False]
        first = session.run(drawn[0])
        for inputs, outputs in ((drawn[0], first), (drawn[1], session.run(drawn[1]))):
            assert_like_onnxruntime(model, inputs, outputs)
        futures = [session.submit(inputs) for inputs in (drawn[1], drawn[0])]
        again, called = futures[1].result(), session(*drawn[0].values())
        for name, other in zip(("y", "rows"), called, strict=True):
            assert first[name].tobytes() == again[name].tobytes() == other.tobytes()
        profiles = session.profile(drawn[0])
        assert {"stage 0", "stage 2"} < set(profiles) and sum(
            name.startswith("stage 1, body 0") for name in profiles
        ) > 4
        assert all(profile.timing.wall_us > 0 for profile in profiles.values())
        assert "trips = 4" in str(session.explain()) and len(session.plans) >= 3
        held = session.run(drawn[1], out="device")
        np.testing.assert_array_equal(held["rows"].numpy(), futures[0].result()["rows"])
    with pytest.raises(UsageError, match="is closed"):
        session.submit(drawn[0])


def test_runs_in_flight_are_those_of_any_session(device):
    """Bounded, awaited, on the device if wanted, with errors of vkconv; closing waits for those that are there."""
    inputs = {"x": np.ones((3, 5), np.float32), "trips": np.array(4)}
    session = vkconv.load(proto(CONTROL), device, in_flight=2)
    want = session.run(inputs)

    def assert_right(outputs):
        assert set(outputs) == set(want)
        for name, array in outputs.items():
            np.testing.assert_array_equal(np.asarray(array), want[name])

    futures = []
    for _ in range(12):
        futures.append(session.submit(inputs))
        assert sum(not future.done() for future in futures) <= 2
    there = session.submit(inputs, out="device").result(60)
    assert all(isinstance(array, vkconv.DeviceArray) for array in there.values())

    async def together():
        return await asyncio.gather(*(session.arun(inputs) for _ in range(8)))

    for outputs in (*(future.result() for future in futures), there, *asyncio.run(together())):
        assert_right(outputs)
    for given in (
        {**inputs, "x": [[1], [2, 3]]},
        {**inputs, "x": "abc"},
        {**inputs, "x": np.ones((3, 5))},
        {"x": 1},
        None,
    ):
        for run in (session.run, session.submit):
            with pytest.raises(InputError):
                run(given)
    with pytest.raises(vkconv.VkconvError, match=r"within 1e-06 s|finish within"):
        session.submit(inputs, timeout_s=1e-6).result(60)
    last = [session.submit(inputs) for _ in range(2)]
    session.close()
    for future in last:
        assert_right(future.result(0))
    with pytest.raises(UsageError, match="is closed"):
        asyncio.run(session.arun(inputs))


def test_the_command_line_measures_runs_in_flight(device, tmp_path):
    (tmp_path / "m.onnx").write_bytes(proto(CONTROL).SerializeToString())
    np.save(tmp_path / "trips.npy", np.array(4))
    given = "--input", "x=3x5", "--input", f"trips=@{tmp_path / 'trips.npy'}", "--device", device
    code, out, _ = vkconv_command("run", tmp_path / "m.onnx", *given, "--runs", 5, "--in-flight", 2, "--json")
    flown = json.loads(out)["in_flight"]
    assert code == 0 and flown["in_flight"] == 2 and len(flown["latencies_us"]) == 5
