"""What README.md shows is what happens: its Python blocks and its vkconv commands run as printed, but that what
measures does so for less long."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from required import required

pytestmark = pytest.mark.gpu
README = (Path(__file__).parents[2] / "README.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(
    r"^(vkconv .*?)(?:\s+#.*)?$",
    "\n".join(re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small published classifier as model.onnx."""
    required("rapidocr_onnxruntime", "onnx")
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    model = Path(package.submodule_search_locations[0]) / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    folder = tmp_path_factory.mktemp("readme")
    shutil.copy(model, folder / "model.onnx")
    return folder


def test_the_python_blocks_run(folder, monkeypatch, capsys):
    session, functions = PYTHON
    monkeypatch.chdir(folder)
    exec(compile(session, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "(1, 2)" in printed and "depthwise" in printed and "read outputs" in printed
    exec(compile(functions, "README.md", "exec"), {})
    assert capsys.readouterr().out == "(1, 16, 16, 16) (1, 8, 32, 32) (1, 30, 30, 16) (16, 8, 3, 3)\n"


def test_there_are_commands():
    assert len(COMMANDS) >= 8


def test_the_commands_run_in_order(folder):
    own = {**os.environ, "VKCONV_CACHE_DIR": str(folder / "cache"), "VKCONV_MEASURED": ""}
    for command in COMMANDS:
        words = shlex.split(command)
        if words[1] in ("bench", "tune") and not {"--min-time", "--report"} & {*words}:
            words += ["--min-time", "0.02"]
        if "--budget" in words:
            words[words.index("--budget") + 1] = "5"
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=folder,
            env=own,
            capture_output=True,
            text=True,
            timeout=300,  # beside other tests
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip()
