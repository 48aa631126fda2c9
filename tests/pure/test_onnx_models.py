"""Published networks through the ONNX importer."""

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from required import required

required("onnx")

from vkconv.graph.onnx import load_onnx  # noqa: E402
from vkconv.graph.vkc import load_vkc, save_vkc  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.share(1)]


def rapidocr(name: str) -> Path:
    required("rapidocr_onnxruntime")
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    assert package is not None and package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "models" / name


def test_the_text_recogniser(tmp_path: Path) -> None:
    graph = load_onnx(rapidocr("ch_PP-OCRv4_rec_infer.onnx"))
    assert [(name, str(spec.dtype), len(spec.shape), spec.shape[1]) for name, spec in graph.inputs.items()] == [
        ("x", "f32", 4, 3)
    ]
    assert len(graph.symbols) == 3
    counts = Counter(node.op for node in graph.nodes)
    assert (counts["conv2d"], counts["matmul"], counts["softmax"], counts["batch_norm"]) == (38, 13, 3, 6)
    assert counts["pool2d"] == 1 and counts["flatten"] == 0
    assert len(graph.metadata["character"].split("\n")) in (6623, 6624)
    save_vkc(graph, tmp_path / "rec.vkc")
    again = load_vkc(tmp_path / "rec.vkc")
    assert (again.nodes, again.outputs, dict(again.inputs)) == (graph.nodes, graph.outputs, dict(graph.inputs))
    for name, array in graph.constants.items():
        assert np.array_equal(again.constants[name], array)
    save_vkc(again, tmp_path / "again.vkc")
    assert (tmp_path / "rec.vkc").read_bytes() == (tmp_path / "again.vkc").read_bytes()


def test_the_text_direction_classifier() -> None:
    graph = load_onnx(rapidocr("ch_ppocr_mobile_v2.0_cls_infer.onnx"))
    counts = Counter(node.op for node in graph.nodes)
    assert (counts["conv2d"], counts["hard_sigmoid"], counts["reduce"], counts["pool2d"]) == (53, 9, 10, 1)


def test_the_text_detector() -> None:
    graph = load_onnx(rapidocr("ch_PP-OCRv4_det_infer.onnx"))
    counts = Counter(node.op for node in graph.nodes)
    assert (counts["conv2d"], counts["conv_transpose2d"], counts["resize"]) == (62, 2, 6)
