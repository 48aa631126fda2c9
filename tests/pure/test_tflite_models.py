"""Trained .tflite networks that wheels of three publishers carry, by the ops' references, against LiteRT: those of
mediapipe, openWakeWord's (wyoming-openwakeword) and microWakeWord's (pymicro-wakeword)."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from required import required

required("tflite", "ai_edge_litert")
from graph_kit import evaluate  # noqa: E402
from tflite_kit import litert  # noqa: E402

from vkconv.check.reference import reference_outputs  # noqa: E402
from vkconv.core import UnsupportedError  # noqa: E402
from vkconv.graph.tflite import load_tflite  # noqa: E402
from vkconv.graph.tflite.reader import read  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.share(1)]

# Convolutions in f16 weights, transposed ones that are MediaPipe's own, prelu, resize, weights with their zeros left
# out. The other nine of the wheel agree too: docs/models.md.
NETWORKS = (
    "face_detection/face_detection_short_range",
    "face_landmark/face_landmark",
    "holistic_landmark/hand_recrop",
    "iris_landmark/iris_landmark",
    "selfie_segmentation/selfie_segmentation_landscape",
)


# openWakeWord's, and what their first dimensions are bound to. hey_jarvis is one of two networks, by an IF.
WAKE_WORDS = {
    "alexa_v0.1": (1, 16, 96),
    "embedding_model": (3, 76, 32, 1),
    "hey_mycroft_v0.1": (1, 16, 96),
    "hey_rhasspy_v0.1": (1, 16, 96),
    "melspectrogram": (1, 16000),
    "ok_nabu_v0.1": (1, 16, 96),
}
STREAMS = ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")


def packaged(package: str, path: str) -> Path:
    """A file in an installed package, found without importing it (that of mediapipe needs OpenCV)."""
    required(package)
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / path


def model_path(name: str) -> Path:
    return packaged("mediapipe", f"modules/{name}.tflite")


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_a_trained_network_is_what_litert_makes_of_it(name: str) -> None:
    """LiteRT multiplies in f32 in an order of its own: 2e-5 of the largest output is what two sets of its kernels lie
    apart on these."""
    path = model_path(name)
    graph = load_tflite(path)
    ((input_name, spec),) = graph.inputs.items()
    x = np.random.default_rng(7).random(spec.dims, np.float32)
    found = reference_outputs(graph, {input_name: x})
    wanted = litert(path.read_bytes(), {input_name: x}, plain="segmentation" not in name)
    assert list(found) == list(wanted)
    for output, array in wanted.items():
        np.testing.assert_allclose(found[output], array, rtol=0, atol=2e-5 * np.abs(array).max(), err_msg=output)


def test_weights_without_their_zeros_get_them_back() -> None:
    graph = load_tflite(model_path("face_detection/face_detection_full_range_sparse"))
    large = [array for array in graph.constants.values() if array.size > 4096]
    assert large and sum(float((array == 0).mean()) > 0.5 for array in large) > 20


def test_operators_of_others_are_named() -> None:
    with pytest.raises(UnsupportedError, match="custom TransformTensorBilinear"):
        load_tflite(model_path("face_landmark/face_landmark_with_attention"))


@pytest.mark.parametrize("name", WAKE_WORDS)
def test_sound_is_what_litert_makes_of_it(name: str) -> None:
    path, shape = packaged("wyoming_openwakeword", f"models/{name}.tflite"), WAKE_WORDS[name]
    graph = load_tflite(path)
    (input_name,) = graph.inputs
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32) * (1000 if name == "melspectrogram" else 1)
    (found,) = evaluate(bind(graph, OPS, {input_name: shape}), {input_name: x})
    (wanted,) = litert(path.read_bytes(), {input_name: x}).values()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_what_litert_makes_of_it(name: str) -> None:
    """Its six variables too, which go on from what LiteRT has: between two of them lie two layers, and a byte may be
    one off in each."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    path, key = packaged("pymicro_wakeword", f"models/{name}.tflite"), "tflite.state."
    graph = load_tflite(path)
    following = {k.removeprefix(key): output for k, output in graph.metadata.items() if k.startswith(key)}
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    run = Interpreter(str(path), experimental_op_resolver_type=resolver, experimental_preserve_all_tensors=True)
    run.allocate_tensors()
    operators = read(path.read_bytes()).operators
    handles = {op.outputs[0]: op.variable for op in operators if op.name == "VAR_HANDLE"}
    assigned = {handles[op.inputs[0]]: op.inputs[1] for op in operators if op.name == "ASSIGN_VARIABLE"}
    assert assigned.keys() == following.keys() and len(following) == 6
    states = {k: np.full(graph.inputs[k].dims, int(graph.metadata[f"tflite.initial.{k}"]), np.int8) for k in following}
    (x_name,) = graph.inputs.keys() - states.keys()
    rng = np.random.default_rng(3)
    for _ in range(20):
        x = rng.integers(-128, 0, graph.inputs[x_name].dims).astype(np.int8)
        found = reference_outputs(graph, {x_name: x, **states})
        run.set_tensor(run.get_input_details()[0]["index"], x)
        run.invoke()
        (output,) = (d["index"] for d in run.get_output_details())
        states = {name: run.get_tensor(index).copy() for name, index in assigned.items()}
        pairs = [(found[following[k]], states[k]) for k in states]
        pairs.append((found[graph.outputs[0]], run.get_tensor(output)))
        for mine, theirs in pairs:
            apart = np.abs(mine.astype(int) - theirs)
            assert apart.max() <= 2 and apart.mean() < 0.25
    assert all(state.std() > 3 for state in states.values())
