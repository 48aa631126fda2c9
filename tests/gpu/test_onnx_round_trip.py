"""A published network, converted to vkc, to ONNX and back, gives the same bytes on the device."""

import contextlib
import itertools

import pytest
from models_kit import CLASSIFIER, DETECTOR, NETWORKS, RECOGNISER, drawn, model_path
from required import required

import vkconv
from vkconv.cli import main

required("onnx")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", [CLASSIFIER, RECOGNISER, DETECTOR])
@pytest.mark.share(3)
def test_bytes_are_the_same_there_and_back(name, device, tmp_path):
    import onnx

    files = [model_path(name), tmp_path / "m.vkc", tmp_path / "m.onnx", tmp_path / "again.vkc"]
    for source, target in itertools.pairwise(files):
        with contextlib.suppress(SystemExit):
            main(["convert", str(source), str(target)])
    onnx.checker.check_model(tmp_path / "m.onnx", full_check=True)
    results, x = [], drawn(name, NETWORKS[name])
    for file in files:
        with vkconv.load(file, device) as session:
            (input_name,) = session.inputs
            results.append([array.tobytes() for array in session.run({input_name: x}).values()])
    assert results == results[:1] * len(results)
