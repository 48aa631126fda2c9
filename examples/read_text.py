"""Read a line of text from a photo with a published recogniser, on the best Vulkan device, and prove the result.

The network is PP-OCRv4's recogniser as the PyPI package rapidocr-onnxruntime carries it; the photo is ``page.png``
of scikit-image. Prints the text, the device, timings, where the time of one run goes, and the largest difference
to ONNX Runtime. Exit code 1 when the text is wrong or the difference too large.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from vkconv.core import UsageError, VkconvError, atomic_write
from vkconv.graph import load_model
from vkconv.graph.vkc import save_vkc
from vkconv.loading import load
from vkconv.table import Column, Table

TEXT = "Region-based segmentation"
# Where that line is in page.png (384 x 191 pixels): rows 9 to 34, columns 2 to 299.
TOP, BOTTOM, LEFT, RIGHT = 9, 35, 2, 300
# The recogniser takes lines of this height, padded on the right to at least this width.
HEIGHT, MIN_WIDTH = 48, 320
MAX_RELATIVE_DIFFERENCE = 1e-3
# The first one also records commands with timestamps, which the median of three leaves out.
PROFILED_RUNS = 3

Floats = npt.NDArray[np.float32]


def package_file(package: str, path: str, install: str) -> Path:
    """A file of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / path).is_file():
            return Path(folder) / path
    raise UsageError(f"no {path} of the package {package} here; install it with: pip install {install}")


def normalized(pixels: npt.NDArray[np.generic]) -> Floats:
    """RGB pixels of (h, w, 3) as the networks take them: (3, h, w), BGR, from -1 to 1."""
    return (pixels[:, :, ::-1].transpose(2, 0, 1).astype(np.float32) / 255 - 0.5) / 0.5


def read_line(picture: Path) -> Floats:
    """The line of text as the recogniser takes it: (1, 3, HEIGHT, width), BGR, from -1 to 1, zeros on the right."""
    from PIL import Image

    with Image.open(picture) as page:
        line = page.convert("RGB").crop((LEFT, TOP, RIGHT, BOTTOM))
    width = math.ceil(HEIGHT * line.width / line.height)
    bgr = normalized(np.asarray(line.resize((width, HEIGHT), Image.Resampling.BILINEAR)))
    return np.pad(bgr, ((0, 0), (0, 0), (0, max(0, MIN_WIDTH - width))))[None]


def decode(probabilities: Floats, alphabet: str) -> str:
    """Greedy CTC of (1, steps, classes): the best class of each step, repeats merged, class 0 (blank) left out.

    ``alphabet`` has one character per line for the classes from 1 on; the last class is the space.
    """
    characters = ["", *alphabet.splitlines(), " "]
    best = probabilities[0].argmax(axis=-1)
    kept = [index for step, index in enumerate(best) if step == 0 or index != best[step - 1]]
    return "".join(characters[index] for index in kept)


def onnxruntime_output(model: Path, x: Floats) -> Floats:
    """What ONNX Runtime computes on the CPU for the same input."""
    try:
        import onnxruntime
    except ImportError:
        raise UsageError("no onnxruntime to compare with; install it with: pip install onnxruntime") from None
    reference = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    output: Floats = reference.run(None, {reference.get_inputs()[0].name: x})[0]
    return output


@contextlib.contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """A function that begins a step by name: a bar on a terminal, plain lines elsewhere, always on stderr."""
    if not sys.stderr.isatty():
        yield lambda name: print(f"{name} ...", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=steps)

        def begin(name: str) -> None:
            bar.update(task, description=f"{name:<18}", advance=1)

        yield begin


def main(options: argparse.Namespace) -> int:
    model = package_file(
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", "--no-deps rapidocr-onnxruntime==1.4.4"
    )
    x = read_line(package_file("skimage", "data/page.png", "scikit-image"))
    with tempfile.TemporaryDirectory(prefix="vkconv-") as folder, progress(5 + options.runs) as begin:
        begin("convert")
        converted = Path(folder, "recogniser.vkc")
        save_vkc(load_model(model), converted)
        begin("load and compile")
        with load(converted, options.device, shapes={"x": x.shape}) as session:
            begin("first run")
            (y,) = session.run({"x": x}).values()
            steady_us = []
            for number in range(options.runs):
                begin(f"run {number + 1} of {options.runs}")
                started = time.perf_counter_ns()
                session.run({"x": x})
                steady_us.append((time.perf_counter_ns() - started) / 1e3)
            begin("profile")
            profile = session.profile({"x": x}, PROFILED_RUNS)
            begin("compare")
            expected = onnxruntime_output(model, x)
            text, device, timings = decode(y, session.metadata["character"]), session.device, session.timings

    difference = float(np.abs(y - expected).max() / np.abs(expected).max())
    stages = {
        "load": timings.load_us,
        "compile": timings.compile_us,
        "first run": timings.first_run_us,
        "steady": statistics.median(steady_us),
    }
    show(f"text: {text}")
    show(f"device: {device.name}, driver {device.driver}, Vulkan {device.api_version}")
    show(Table("", (Column("stage"), Column("time", unit="ms")), [(s, us / 1e3) for s, us in stages.items()]))
    print(f"steady: median of {len(steady_us)} runs, {min(steady_us) / 1e3:.4g} to {max(steady_us) / 1e3:.4g} ms\n")
    show(profile.nodes)
    show(profile.ops)
    print(f"{profile.note}\n")
    print(
        f"largest difference to ONNX Runtime: {difference:.2e} of its largest value (limit {MAX_RELATIVE_DIFFERENCE:g})"
    )
    if options.json:
        figures = {
            "schema": "vkconv.read_text/1",
            "text": text,
            "device": {"name": device.name, "driver": device.driver, "vulkan": device.api_version},
            "stages_us": stages,
            "steady_us": steady_us,
            "profile": profile.data(),
            "relative_difference": difference,
        }
        try:
            with atomic_write(options.json) as file:
                file.write(json.dumps(figures, indent=1, ensure_ascii=False).encode())
        except OSError as error:
            raise UsageError(f"cannot write {options.json}: {error.strerror or error}") from None
    if text != TEXT:
        print(f"wrong: the line reads {TEXT!r}, not {text!r}", file=sys.stderr)
    # Not ">": a NaN is no agreement.
    if not difference <= MAX_RELATIVE_DIFFERENCE:
        print(f"wrong: the difference to ONNX Runtime is {difference:.2e}", file=sys.stderr)
    return int(text != TEXT or not difference <= MAX_RELATIVE_DIFFERENCE)


def show(part: Table | str) -> None:
    """A line or a table with a blank line after it, through rich on a terminal."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(part, end="\n\n", markup=False)
    else:
        print(part, end="\n\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="auto", help="auto, an index of vkconv devices, or part of a name")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="timed runs; their median is the steady row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    return options


def run_example(run: Callable[[], int]) -> NoReturn:
    """End the process as an example ends: an error of vkconv is one line, not a traceback."""
    try:
        sys.exit(run())
    except VkconvError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run_example(lambda: main(arguments()))
