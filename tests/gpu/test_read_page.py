"""The detector finds the lines of a page and the recogniser reads them; both, and the classifier, as ONNX Runtime."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from required import required
from shipped import exhaustive

required("rapidocr_onnxruntime", "skimage", "scipy", "onnx", "onnxruntime", "PIL")
from read_page import boxes_of, detector_input, minimal_rectangle, open_page, size_of, straightened  # noqa: E402
from read_text import MAX_RELATIVE_DIFFERENCE, onnxruntime_output, package_file  # noqa: E402

import vkconv  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.gpu
LINES = [
    "Region-based segmentation",
    "Let us first determine markers of the coins and the",
    "background. These markers are pixels that we can label",
    "unambiguously as either object or background. Here,",
    "the markers are found at the two extreme parts of the",
    "histogram of grey values:",
]


def turned(width, height, degrees):
    """Corners of a rectangle around the point (50, 40)."""
    angle = math.radians(degrees)
    along, across = np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])
    signs = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    return (50, 40) + signs[:, :1] * along * width / 2 + signs[:, 1:] * across * height / 2


@pytest.mark.parametrize("degrees", [-40, -7, 0, 3.5, 44])
def test_the_minimal_rectangle_around_a_turned_one_is_that_one(degrees):
    corners = turned(40, 9, degrees)
    weights = np.random.default_rng(5).dirichlet(np.ones(4), 200)
    box = minimal_rectangle(np.concatenate([weights @ corners, corners]))
    np.testing.assert_allclose(box, corners, atol=1e-9)
    np.testing.assert_allclose(size_of(box), (40, 9))


@pytest.mark.parametrize("points", [[(3, 4)], [(3, 4)] * 5, [(1, 1), (4, 5)], [(0, 0), (1, 2), (2, 4)]])
def test_the_minimal_rectangle_of_points_on_a_line_has_no_area(points):
    width, height = size_of(minimal_rectangle(np.array(points, np.float64)))
    assert width * height < 1e-9
    assert max(width, height) == pytest.approx(math.dist(min(points), max(points)))


def test_boxes_grow_by_their_area_over_their_perimeter_and_specks_and_doubtful_ones_go():
    probabilities = np.zeros((64, 96), np.float32)
    probabilities[40:48, 10:74] = 0.9  # a line of 64 x 8
    probabilities[4:14, 20:40] = 0.4  # text on the whole, but less than BOX_THRESHOLD
    probabilities[60:62, 90:92] = 1  # a speck
    (box,) = boxes_of(probabilities)
    by = 1.6 * 64 * 8 / (2 * (64 + 8))
    left, right, top, bottom = 10 - by, 74 + by, 40 - by, 48 + by
    np.testing.assert_allclose(box, [(left, top), (right, top), (right, bottom), (left, bottom)])


def test_boxes_come_from_the_top_down():
    probabilities = np.zeros((64, 96), np.float32)
    for top, left in ((44, 5), (4, 60), (24, 10)):
        probabilities[top : top + 6, left : left + 30] = 1
    assert [round(float(box[:, 1].mean())) for box in boxes_of(probabilities)] == [7, 27, 47]
    assert boxes_of(np.zeros((32, 32), np.float32)) == []


def test_the_classifier_takes_the_page_s_first_line_for_upright_and_agrees_with_onnxruntime(device):
    model = package_file("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "rapidocr-onnxruntime")
    page = open_page(package_file("skimage", "data/page.png", "scikit-image"))
    line = straightened(page, np.array([(6, 11), (293, 13), (293, 34), (6, 32)], np.float64))
    x = np.stack([line[:, :, :192], line[:, ::-1, :192]])
    with vkconv.load(model, device) as session:
        (got,) = session.run({"x": x}).values()
    want = onnxruntime_output(model, x)
    assert np.abs(got - want).max() <= MAX_RELATIVE_DIFFERENCE * np.abs(want).max()
    assert got[0, 0] > 0.9


def test_a_picture_of_any_size_comes_to_the_detector_in_steps():
    page = open_page(package_file("skimage", "data/page.png", "scikit-image"))
    for size, shape in (((384, 191), (384, 768)), ((100, 10), (384, 3840)), ((70, 90), (480, 384))):
        x = detector_input(page.resize(size))
        assert x.shape == (1, 3, *shape) and x.dtype == np.float32 and -1 <= x.min() < x.max() <= 1


def read_page(*arguments):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "examples/read_page.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)


@pytest.mark.slow
@exhaustive
def test_reads_the_lines_of_the_page_and_draws_their_boxes(tmp_path, device):
    from PIL import Image

    done = read_page("--device", device, "--output", tmp_path / "boxes.png")
    assert done.returncode == 0, done.stderr
    read = [line.partition("  ")[2] for line in done.stdout.split("\n\n")[0].splitlines()]
    assert read[: len(LINES)] == LINES
    assert len(read) == len(LINES) + 1 and read[-1].endswith("np.zeros_like(coins)")
    for network in ("detector", "recogniser"):
        assert f"\n{network}: largest difference to ONNX Runtime " in done.stdout
    with Image.open(tmp_path / "boxes.png") as drawn:
        assert drawn.size == (3 * 384, 3 * 191)
        pixels = np.asarray(drawn).astype(int)
    assert (pixels[:, :, 0] - pixels[:, :, 1] > 100).sum() > 1000  # the page is grey, the boxes are red


def test_a_file_that_is_no_picture_is_named(tmp_path):
    page = tmp_path / "page.png"
    page.write_bytes(b"not a picture")
    done = read_page(page)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: cannot read {page} as a picture") and "Traceback" not in done.stderr


def test_an_empty_page_has_no_line(tmp_path, device):
    from PIL import Image

    Image.new("L", (64, 32), 230).save(tmp_path / "empty.png")
    done = read_page(tmp_path / "empty.png", "--device", device, "--output", tmp_path / "boxes.png")
    assert done.returncode == 1
    assert "no line found" in done.stderr and "0 boxes" in done.stdout
