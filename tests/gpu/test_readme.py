"""What README.md, docs/tour.md and the tutorials show is what happens: their Python blocks and vkconv commands run as
printed, but that what measures does so for less long. The README's are processes of their own, as users start them;
the others run in this one, which compiles a pipeline once for all of them."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import vkconv
from required import required

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def commands(path):
    return re.findall(r"^(vkconv .*?)(?:\s+#.*)?$", "\n".join(blocks(path, "sh")), re.MULTILINE)


README, TOUR = ROOT / "README.md", ROOT / "docs" / "tour.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small published classifier as model.onnx, and a decoder of one layer as decoder.onnx."""
    required("rapidocr_onnxruntime", "onnx")
    from decoder_kit import decoder

    package = importlib.util.find_spec("rapidocr_onnxruntime")
    model = Path(package.submodule_search_locations[0]) / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    folder = tmp_path_factory.mktemp("readme")
    shutil.copy(model, folder / "model.onnx")
    (folder / "decoder.onnx").write_bytes(decoder(layers=1, masked=False).SerializeToString())
    return folder


def test_the_python_blocks_run(folder, monkeypatch, capsys):
    (short,) = blocks(README, "python")
    session, functions = blocks(TOUR, "python")
    monkeypatch.chdir(folder)
    exec(compile(short, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("[(1, 2)]\n") and "depthwise" in printed and "read outputs" in printed
    exec(compile(session, "tour.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "(1, 2)" in printed and "depthwise" in printed and "read outputs" in printed
    exec(compile(functions, "tour.md", "exec"), {})
    assert capsys.readouterr().out == "(1, 16, 16, 16) (1, 8, 32, 32) (1, 30, 30, 16) (16, 8, 3, 3)\n"


def test_there_are_commands():
    assert len(commands(README)) >= 5 and len(commands(TOUR)) >= 20


def as_users_start_it(*words):
    done = subprocess.run(
        [sys.executable, "-m", "vkconv", *words],
        capture_output=True,
        text=True,
        timeout=300,  # beside other tests
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("document", "start"), [(README, as_users_start_it), (TOUR, vkconv)], ids=[README.stem, TOUR.stem]
)
def test_the_commands_run_in_order(document, start, folder, monkeypatch):
    run_all(commands(document), start, folder, monkeypatch)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_does_what_it_says(tutorial, folder, monkeypatch, capsys):
    assert len(commands(tutorial)) >= 4
    with monkeypatch.context() as patch:
        run_all(commands(tutorial), vkconv, folder, patch)
    monkeypatch.chdir(folder)
    for block in blocks(tutorial, "python"):
        exec(compile(block, tutorial.name, "exec"), {})
        assert capsys.readouterr().out


def run_all(lines, start, folder, patch):
    patch.chdir(folder)
    patch.setenv("VKCONV_CACHE_DIR", str(folder / "cache"))
    patch.setenv("VKCONV_MEASURED", "")
    for command in lines:
        words = shlex.split(command)
        if "--min-time" in words:
            words[words.index("--min-time") + 1] = "0.005"
        elif words[1] in ("bench", "tune") and "--report" not in words:
            words += ["--min-time", "0.005"]
        if words[1] == "bench":
            words += ["--runs", "3", "--warmup", "0"]
        if "--budget" in words:
            words[words.index("--budget") + 1] = "5"
        code, out, err = start(*words[1:])
        assert code == 0, f"{command}\n{out}\n{err}"
        assert out.strip()
