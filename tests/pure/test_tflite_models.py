"""Trained .tflite networks that mediapipe's wheel carries, by the ops' references, against LiteRT."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from required import required

required("tflite", "ai_edge_litert", "mediapipe")
from tflite_kit import litert  # noqa: E402

from vkconv.check.reference import reference_outputs  # noqa: E402
from vkconv.core import UnsupportedError  # noqa: E402
from vkconv.graph.tflite import load_tflite  # noqa: E402

# Convolutions in f16 weights, transposed ones that are MediaPipe's own, prelu, resize, weights with their zeros left
# out. The other nine of the wheel agree too: docs/models.md.
NETWORKS = (
    "face_detection/face_detection_short_range",
    "face_landmark/face_landmark",
    "holistic_landmark/hand_recrop",
    "iris_landmark/iris_landmark",
    "selfie_segmentation/selfie_segmentation_landscape",
)


def model_path(name: str) -> Path:
    """The file in the installed package, found without importing it (its import needs OpenCV)."""
    package = importlib.util.find_spec("mediapipe")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "modules" / f"{name}.tflite"


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
