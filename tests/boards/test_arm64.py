"""The player of arm64, built here and run by a user-mode qemu on arm64 lavapipe: from cable to report on a processor
that is not this one's."""

import importlib.util
import json
import shlex
import shutil

import boards as parts
import numpy as np
import pytest
from cli_kit import vkconv
from phone_kit import SSH, stub
from required import unavailable

from vkconv.core import UsageError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc

pytestmark = pytest.mark.boards
BOARD = ("--via", "ssh://pi@board")


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A machine of arm64 behind a stand-in of ssh: its player runs under qemu, its other programs are of here."""
    try:
        emulated = parts.emulated()
    except UsageError as error:
        unavailable(str(error))
    if not (shutil.which("aarch64-linux-gnu-g++") or importlib.util.find_spec("ziglang")):
        unavailable("pip install ziglang, or aarch64-linux-gnu-g++, builds the player for arm64")
    root = tmp_path / "boards"
    root.mkdir()
    variables = parts.driver_files("lavapipe", tmp_path / "icd.json")
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    program = tmp_path / "emulated"
    program.write_text(f'#!/bin/sh\n{given} exec {shlex.join(emulated)} "$@"\n')
    program.chmod(0o755)
    (root / "rewrite").write_text(
        f"s#\\(\\.\\{{1,2\\}}/[^ ]*player-[0-9a-f]* \\)#{program} \\1#\ns#^uname -m#echo aarch64#\n"
    )
    stub(tmp_path / "bin", "ssh", SSH, root)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("VKCONV_PLAYER", "VKCONV_PLAYER_CXX"):
        monkeypatch.delenv(name, raising=False)
    return root


def test_a_suite_is_checked_and_measured(board, tmp_path):
    code, out, err = vkconv("phone", "info", *BOARD, "-o", tmp_path / "d.json")
    assert code == 0, err
    assert "llvmpipe" in out and "Mesa" in out
    words = ("--op", "softmax", "--op", "add", "--op", "pool2d", "--few", "--dtype", "f32")
    code, out, err = vkconv("phone", "check", "--all-ops", *words, *BOARD, "-o", tmp_path / "c.json")
    assert code == 0, out + err
    assert "all right" in out
    found = json.loads((tmp_path / "c.json").read_text())
    checked = found["rows"]
    assert sum(row["status"] == "ok" for row in checked) > 10
    code, _, err = vkconv("phone", "bench", "relu:x=5", "--min-time", "0.001", *BOARD, "-o", tmp_path / "r.json")
    assert code == 0, err
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert (row["check"], row["us_median"] > 0) == ("ok", True)


def test_a_model_is_checked_node_by_node(board, tmp_path):
    nodes = (
        Node("conv", "conv2d", ("x", "w"), ("a",), {"padding": (1, 1, 1, 1)}),
        Node("sum", "reduce", ("a",), ("y",), {"op": "sum", "axes": (2, 3)}),
    )
    weight = np.random.default_rng(3).standard_normal((5, 3, 3, 3), np.float32)
    save_vkc(Graph({"x": TensorSpec((2, 3, 9, 7))}, ("a", "y"), nodes, {"w": weight}), tmp_path / "m.vkc")
    code, out, err = vkconv("phone", "check", tmp_path / "m.vkc", *BOARD, "--repeat", 3)
    assert code == 0, out + err
    assert "2 nodes right, alone and in the run" in out
