"""Find the lines of a photographed page and read them with published networks, on the best Vulkan device.

The networks are PP-OCRv4's detector and recogniser as the PyPI package rapidocr-onnxruntime carries them; the photo is
``page.png`` of scikit-image unless another is named. Prints the lines, timings and the largest compared to ONNX
Runtime, and draws the boxes into a PNG. Exit code 1 when a difference is too large or there is no line.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from read_text import (
    HEIGHT,
    MAX_RELATIVE_DIFFERENCE,
    MIN_WIDTH,
    decode,
    normalized,
    onnxruntime_output,
    package_file,
    progress,
    run_example,
    show,
)

from vkconv.core import UsageError, atomic_write
from vkconv.loading import load
from vkconv.table import Column, Table

if TYPE_CHECKING:
    from PIL import Image

# The shorter side of what the detector sees, for lines of some 40 pixels there; it halves the sides five times.
SHORT_SIDE, SIDE_STEP = 384, 32
# A pixel is text from this probability on, and a box from this mean of them.
PIXEL_THRESHOLD, BOX_THRESHOLD = 0.3, 0.5
# The detector is trained on lines shrunk from their edges; a box grows by this much of its area over its perimeter.
GROWTH = 1.6
# Smaller boxes are specks.
MIN_SIDE = 3.0
DRAWN_SCALE = 3

Floats = npt.NDArray[np.float32]
# Corners as rows of x and y: top left, top right, bottom right, bottom left.
Box = npt.NDArray[np.float64]


def minimal_rectangle(points: npt.NDArray[np.float64]) -> Box:
    """The rectangle of least area around points (rows of x and y): one of its sides lies along their convex hull."""
    corners = hull(points)
    if len(corners) < 2:
        return np.repeat(corners, 4, axis=0)
    sides = np.roll(corners, -1, axis=0) - corners
    best, least = corners[:1], math.inf
    for angle in np.arctan2(sides[:, 1], sides[:, 0]):
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        turned = corners @ turn
        (x0, y0), (x1, y1) = turned.min(axis=0), turned.max(axis=0)
        if (x1 - x0) * (y1 - y0) < least:
            least = (x1 - x0) * (y1 - y0)
            best = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]]) @ turn.T
    return upright(best)


def hull(points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The convex hull's corners, in turn (Andrew's monotone chain)."""
    ordered = sorted({(float(x), float(y)) for x, y in points})

    def chain(run: list[tuple[float, float]]) -> list[tuple[float, float]]:
        kept: list[tuple[float, float]] = []
        for x, y in run:
            while len(kept) > 1:
                (x0, y0), (x1, y1) = kept[-2:]
                if (x1 - x0) * (y - y0) > (y1 - y0) * (x - x0):
                    break
                kept.pop()
            kept.append((x, y))
        return kept

    if len(ordered) < 3:
        return np.array(ordered)
    return np.array(chain(ordered)[:-1] + chain(ordered[::-1])[:-1])


def upright(corners: npt.NDArray[np.float64]) -> Box:
    """Corners of a rectangle from the top left one on, for a line that runs to the right."""
    left, right = np.split(corners[np.argsort(corners[:, 0], kind="stable")], 2)
    (top_left, bottom_left), (top_right, bottom_right) = (side[np.argsort(side[:, 1])] for side in (left, right))
    return np.array([top_left, top_right, bottom_right, bottom_left])


def grown(box: Box, distance: float) -> Box:
    """A rectangle with each side moved outward by a distance."""
    along, across = box[1] - box[0], box[3] - box[0]
    along, across = (side / max(float(np.linalg.norm(side)), 1e-9) * distance for side in (along, across))
    return box + np.array([-along - across, along - across, along + across, across - along])


def boxes_of(probabilities: Floats) -> list[Box]:
    """Boxes around lines, in pixels of the detector's map (h, w), from the top down."""
    from scipy import ndimage

    labels, _ = ndimage.label(probabilities > PIXEL_THRESHOLD, np.ones((3, 3)))
    found = []
    for number, place in enumerate(ndimage.find_objects(labels), start=1):
        here = labels[place] == number
        if probabilities[place][here].mean() < BOX_THRESHOLD:
            continue
        ys, xs = np.nonzero(here)
        pixels = np.column_stack([xs + place[1].start, ys + place[0].start]).astype(np.float64)
        # A pixel covers the unit square to its right and below.
        box = minimal_rectangle(np.concatenate([pixels + corner for corner in ((0, 0), (0, 1), (1, 0), (1, 1))]))
        width, height = size_of(box)
        if min(width, height) >= MIN_SIDE:
            found.append(grown(box, GROWTH * width * height / (2 * (width + height))))
    return sorted(found, key=lambda box: float(box[:, 1].mean()))


def size_of(box: Box) -> tuple[float, float]:
    """Width and height of a rectangle."""
    return float(np.linalg.norm(box[1] - box[0])), float(np.linalg.norm(box[3] - box[0]))


def straightened(page: Image.Image, box: Box) -> Floats:
    """What lies in a box, as the recogniser takes a line: (3, HEIGHT, width)."""
    from PIL import Image

    width, height = size_of(box)
    top_left, top_right, bottom_right, bottom_left = box
    strip = page.transform(
        (math.ceil(HEIGHT * width / height), HEIGHT),
        Image.Transform.QUAD,
        (*top_left, *bottom_left, *bottom_right, *top_right),
        Image.Resampling.BICUBIC,
    )
    return normalized(np.asarray(strip))


def detector_input(page: Image.Image) -> Floats:
    """The page as the detector takes it: (1, 3, h, w), the shorter side SHORT_SIDE to the nearest SIDE_STEP."""
    from PIL import Image

    scale = SHORT_SIDE / min(page.size)
    width, height = (max(1, round(side * scale / SIDE_STEP)) * SIDE_STEP for side in page.size)
    return normalized(np.asarray(page.resize((width, height), Image.Resampling.BILINEAR)))[None]


def open_page(path: Path) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as page:
            return page.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UsageError(f"cannot read {path} as a picture: {error}") from None


def draw(page: Image.Image, boxes: list[Box], path: Path) -> None:
    """The page with its boxes, numbered, as a PNG of DRAWN_SCALE times its size."""
    from PIL import Image, ImageDraw

    drawn = page.resize((page.width * DRAWN_SCALE, page.height * DRAWN_SCALE), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(drawn)
    for number, box in enumerate(boxes, start=1):
        corners = [(float(x), float(y)) for x, y in box * DRAWN_SCALE]
        pen.polygon(corners, outline=(220, 40, 40), width=2)
        pen.text(corners[1], str(number), fill=(20, 60, 220), anchor="lb", font_size=6 * DRAWN_SCALE)
    try:
        with atomic_write(path) as file:
            drawn.save(file, "PNG")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def main(options: argparse.Namespace) -> int:
    package, install = "rapidocr_onnxruntime", "--no-deps rapidocr-onnxruntime==1.4.4"
    detector = package_file(package, "models/ch_PP-OCRv4_det_infer.onnx", install)
    recogniser = package_file(package, "models/ch_PP-OCRv4_rec_infer.onnx", install)
    page = open_page(options.picture or package_file("skimage", "data/page.png", "scikit-image"))
    stages: list[tuple[str, float]] = []

    with progress(5) as begin:

        @contextlib.contextmanager
        def stage(name: str) -> Iterator[None]:
            begin(name)
            started = time.perf_counter()
            yield
            stages.append((name, (time.perf_counter() - started) * 1e3))

        with stage("load detector"):
            x = detector_input(page)
            session = load(detector, options.device, shapes={"x": x.shape})
        with session, stage("find lines"):
            (found,) = session.run({"x": x}).values()
            device = session.device
        compared = {"detector": (found, detector, x)}
        scale = np.array(page.size) / np.array(x.shape[:1:-1])
        boxes = [box * scale for box in boxes_of(found[0, 0])]
        texts: list[str] = []
        if boxes:
            with stage("load recogniser"):
                strips = [straightened(page, box) for box in boxes]
                width = max(MIN_WIDTH, *(strip.shape[2] for strip in strips))
                x = np.stack([np.pad(strip, ((0, 0), (0, 0), (0, width - strip.shape[2]))) for strip in strips])
                session = load(recogniser, options.device, shapes={"x": x.shape})
            with session, stage("read lines"):
                (read,) = session.run({"x": x}).values()
                texts = [decode(line[None], session.metadata["character"]) for line in read]
            compared["recogniser"] = (read, recogniser, x)
        begin("compare")
        apart = {
            name: float(np.abs(got - (want := onnxruntime_output(model, given))).max() / np.abs(want).max())
            for name, (got, model, given) in compared.items()
        }
    draw(page, boxes, options.output)

    show("\n".join(f"{number}  {text}" for number, text in enumerate(texts, start=1)))
    show(f"device: {device.name}, driver {device.driver}, Vulkan {device.api_version}")
    show(Table("", (Column("stage"), Column("time", unit="ms")), stages))
    print(f"{len(boxes)} boxes drawn in {options.output}")
    for name, difference in apart.items():
        print(f"{name}: largest difference to ONNX Runtime {difference:.2e} of its largest value")
    # Not ">": a NaN is no agreement.
    wrong = [name for name, difference in apart.items() if not difference <= MAX_RELATIVE_DIFFERENCE]
    for name in wrong:
        print(f"wrong: the {name} is further from ONNX Runtime than {MAX_RELATIVE_DIFFERENCE:g}", file=sys.stderr)
    if not boxes:
        print("no line found", file=sys.stderr)
    return int(bool(wrong) or not boxes)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "picture", type=Path, nargs="?", help="a picture of a page; page.png of scikit-image if not given"
    )
    parser.add_argument("--device", default="auto", help="auto, an index of vkconv devices, or part of a name")
    parser.add_argument("--output", type=Path, default=Path("read_page.png"), metavar="FILE", help="the PNG with boxes")
    return parser.parse_args()


if __name__ == "__main__":
    run_example(lambda: main(arguments()))
