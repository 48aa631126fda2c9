"""Draw the pictures of README.md from what vkconv really says.

    python tools/readme_pictures.py [NAME...]

``check`` runs on a Vulkan device with a fault planted in a kernel; ``explain`` and ``roofline`` need none. Tests draw
them again, and fail where a picture is not what they get: test_pictures.py in tests/pure, test_picture_of_a_fault.py
in tests/gpu.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import picture

from vkconv import pages
from vkconv.bench.charts import roofline
from vkconv.bench.files import read_result
from vkconv.cli import main as run
from vkconv.cli import output
from vkconv.compiler import pipeline_spirv
from vkconv.glsl import shader_dir
from vkconv.glslang import compile_shader
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc
from vkconv.kernel import Shader

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
RESULT = ROOT / "bench" / "results" / "fits" / "dgrad.swap_1x1.phase_blocks.json"
COLUMNS = 100
EXPLAIN = ("explain", "conv2d:x=1x64x56x56,w=128x64x3x3,p=1", "--device", "mali-g715", "--why-not", "winograd")
CHECK = ("check", "model.vkc", "--input", "x=1x3x10x301", "--no-passes")
# What a driver does that drops the last invocations of a dispatch; no kernel of vkconv has it.
FAULT = ("unary", "if (i < count)", "if (i + 3 < count)")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(words: Sequence[str]) -> str:
    """What a command prints on a terminal."""
    terminal = _Terminal()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(COLUMNS)}),
        mock.patch.object(output, "_stream", lambda: terminal),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        run(list(words))
    return terminal.getvalue()


def explain() -> str:
    """Why a phone takes another route than one that was expected."""
    return picture.drawn(said(EXPLAIN).splitlines(), COLUMNS, " ".join(("vkconv", *EXPLAIN)))


def check() -> str:
    """A fault in a kernel, found at its node."""
    with tempfile.TemporaryDirectory(prefix="vkconv-") as folder, planted(Path(folder)), contextlib.chdir(folder):
        save_vkc(model(), Path("model.vkc"))
        text = said(CHECK)
    return picture.drawn(text.splitlines(), COLUMNS, " ".join(("vkconv", *CHECK)))


def model() -> Graph:
    """Two convolutions with an activation between them."""
    random = np.random.default_rng(3)
    constants = {name: random.standard_normal((3, 3, 3, 3), np.float32) for name in ("w1", "w2")}
    nodes = (
        Node("conv1", "conv2d", ("x", "w1"), ("a",), {"padding": (1, 1, 1, 1)}),
        Node("swish", "hard_swish", ("a",), ("b",)),
        Node("conv2", "conv2d", ("b", "w2"), ("c",), {"padding": (1, 1, 1, 1)}),
        Node("pool", "reduce", ("c",), ("y",), {"op": "mean", "axes": (2, 3)}),
    )
    return Graph({"x": TensorSpec((1, 3, 10, 301))}, ("y",), nodes, constants)


@contextlib.contextmanager
def planted(folder: Path) -> Iterator[None]:
    """The kernel with its fault in the place of the real one."""
    from vkconv.backend import runtime

    stem, old, new = FAULT
    shaders = folder / "shaders"
    shutil.copytree(shader_dir(), shaders)
    (source,) = shaders.rglob(f"{stem}.comp")
    text = source.read_text()
    if old not in text:
        raise SystemExit(f"{source.name} has changed: plant the fault anew")
    source.write_text(text.replace(old, new))

    def code(shader: Shader, fixed: Sequence[int] | None) -> bytes:
        return compile_shader(shader, shaders) if shader.stem == stem else pipeline_spirv(shader, fixed)

    with mock.patch.object(runtime, "pipeline_spirv", code):
        yield


def roof() -> str:
    """The roofline of a committed result, as its page has it."""
    result = read_result(RESULT)
    chart = re.search(r"<svg class=.roofline.*?</svg>", roofline(result.rows, result.header.floors), re.DOTALL)
    assert chart is not None
    style = (Path(pages.__file__).parent / "report.css").read_text()
    # Alone it has no table to link to, and a page of its own to lie on.
    svg = re.sub(r'<a href="#r\d+">|</a>', "", chart[0]).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    begin = svg.index(">") + 1
    ground = '<rect width="100%" height="100%" fill="var(--card)"/>'
    return f"{svg[:begin]}<style>{style}</style>{ground}{svg[begin:]}\n"


PICTURES: Mapping[str, Callable[[], str]] = {"check": check, "explain": explain, "roofline": roof}


def words(svg: str) -> list[str]:
    """The words of a picture, without numbers, which a device or another compiler of its driver may change."""
    return re.findall(r"[A-Za-z]{3,}", re.sub(r"<style>.*?</style>|<[^>]*>|&#?\w+;", " ", svg, flags=re.DOTALL))


def main(names: Sequence[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    for name in names or PICTURES:
        (FOLDER / f"{name}.svg").write_text(PICTURES[name]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
