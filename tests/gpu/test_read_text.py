"""The main job: a published recogniser reads a line of a photo on the device, and agrees with ONNX Runtime."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from required import required

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def read_text(*arguments):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "examples/read_text.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)


@pytest.mark.alone
def test_reads_the_line_and_agrees_with_onnxruntime(tmp_path, device):
    required("rapidocr_onnxruntime", "skimage", "onnx", "onnxruntime", "PIL")
    figures = tmp_path / "figures.json"
    done = read_text("--device", device, "--runs", 2, "--json", figures)
    assert done.returncode == 0, done.stderr
    assert "Region-based segmentation" in done.stdout
    for row in ("load", "compile", "first run", "steady"):
        assert f"\n{row} " in done.stdout
    assert [line for line in done.stderr.splitlines() if line.endswith("...")], "no plain progress lines in a pipe"

    data = json.loads(figures.read_text())
    assert data["text"] == "Region-based segmentation"
    assert 0 < data["relative_difference"] <= 1e-3
    assert len(data["steady_us"]) == 2 and all(us > 0 for us in data["stages_us"].values())
    profile = data["profile"]
    for rows in (profile["nodes"], profile["ops"]):
        times = [row["time"] for row in rows]
        assert min(times) >= 0
        # A clock around the call, read apart from those that the rows are made of, says the same, but for what the
        # call does besides.
        assert 0 <= profile["call_us"] - sum(times) < 0.05 * profile["wall_us"] + 5000
    convs = [row for row in profile["nodes"] if row["op"] == "conv2d"]
    assert len(convs) > 20 and all(row["GFLOP/s"] > 0 and row["GB/s"] > 0 for row in convs)
    assert {row["op"]: row["count"] for row in profile["ops"]}["conv2d"] == len(convs)


def test_says_what_to_install_without_the_packages(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_MODELS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no models/ch_PP-OCRv4_rec_infer.onnx") and "pip install" in done.stderr


_WITHOUT_MODELS = """
import importlib.util, runpy, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "rapidocr_onnxruntime" else find(name, *rest)
sys.argv = ["read_text.py"]
runpy.run_path("examples/read_text.py", run_name="__main__")
"""
