"""``vkconv check``: what it prints, saves and ends with, for models, calls and the whole device."""

import json
import shlex

import faults
import numpy as np
import pytest
from test_cli_gpu import vkconv

from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc

pytestmark = pytest.mark.gpu


@pytest.fixture
def model(tmp_path):
    random = np.random.default_rng(1)
    nodes = (
        Node("first", "conv2d", ("x", "w"), ("a",), {"padding": (1, 0, 1, 0)}),
        Node("clamp/é", "relu", ("a",), ("b",)),
        Node("last", "reduce", ("b",), ("y",), {"op": "sum", "axes": (2, 3)}),
    )
    graph = Graph(
        {"x": TensorSpec((1, 2, "h", 9))}, ("y",), nodes, {"w": random.standard_normal((3, 2, 3, 1), np.float32)}
    )
    path = tmp_path / "m.vkc"
    save_vkc(graph, path)
    return path


def test_a_model_that_is_right(model, device):
    code, out, err = vkconv("check", model, "--input", "x=1x2x7x9", "--device", device, "--no-passes")
    assert (code, err) == (0, "")
    assert "input x = 1x2x7x9:randn:0" in out
    assert "3 nodes right, alone and in the run" in out


def test_everything_at_once_as_files(model, tmp_path, device):
    paths = [tmp_path / f"page.{suffix}" for suffix in ("json", "md", "html")]
    saved = [word for path in paths for word in ("-o", path)]
    argv = ("check", model, "-i", "1x2x7x9", "--limits", "mali-g57", "--repeat", 3, "--sweep", "local", *saved)
    code, out, err = vkconv(*argv, "--device", device, "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert json.loads(paths[0].read_text()) == data
    assert data["schema"] == "vkconv.check/1"
    assert data["limits"] == "Mali-G57"
    assert data["device"]["name"].startswith("Mali-G57 on ")
    assert data["problems"] == []
    assert all(node["alone"]["ok"] and node["run"]["ok"] for node in data["check"]["nodes"])
    assert {node["distinct"] for node in data["repeat"]["nodes"]} == {1}
    assert {row["params"]["local"] for row in data["sweep"]} >= {64, 128}
    for path in paths[1:]:
        text = path.read_text()
        for part in ("planned for Mali-G57", "Sweep", "Runs", "first"):
            assert part in text
    assert "http" not in paths[2].read_text().replace("http-equiv", "")


def test_a_fault_is_told_dumped_and_repeated(model, tmp_path, monkeypatch, device):
    folder = tmp_path / "wrong nodes"
    argv = ("check", model, "-i", "1x2x7x9", "--device", device, "--no-passes")
    with faults.planted(faults.WRONG_TAIL, tmp_path / "planted", monkeypatch, device):
        code, out, err = vkconv(*argv, "--stop-at-first", "--dump", folder)
        assert (code, err) == (1, "")
        assert "FAILED: clamp/é (relu:" in out
        assert "(the last 3" in out or "memory order" in out
        (line,) = [line for line in out.splitlines() if line.startswith("repeat it alone: ")]
        command = shlex.split(line.partition(": ")[2])
        assert command[0] == "vkconv"
        made = next(folder.iterdir())
        assert {p.name for p in made.iterdir()} == {"node.vkc", "x.npy", "expected_y.npy", "command.txt"}
        assert shlex.split((made / "command.txt").read_text()) == command
        code, out, _ = vkconv(*command[1:])
        assert code == 1
        assert "FAILED: call (relu:" in out
    x, wanted = np.load(made / "x.npy"), np.load(made / "expected_y.npy")
    np.testing.assert_array_equal(np.maximum(x, 0), wanted)
    assert vkconv(*command[1:])[0] == 0


def test_a_call_with_its_own_inputs(tmp_path, device):
    np.save(tmp_path / "x.npy", np.full((3, 5), np.nan, np.float32))
    code, out, err = vkconv("check", "relu:x=3x5", "-i", f"x=@{tmp_path / 'x.npy'}", "--device", device)
    assert (code, err) == (0, "")
    assert f"input x = @{tmp_path / 'x.npy'}" in out
    assert " 15 " in out  # NaN


def test_a_call_that_planning_computes_is_not_called_right(device):
    code, out, _ = vkconv("check", "constant_of_shape:shape=2x3,value=1.5", "--device", device)
    assert code == 0
    assert "nothing was checked: all values are known when the graph is planned" in out and "right" not in out


def test_all_ops_of_some(tmp_path, device):
    page = tmp_path / "page.html"
    argv = ("check", "--all-ops", "--op", "relu", "--op", "transpose", "--device", device, "-o", page)
    code, out, err = vkconv(*argv)
    assert (code, err) == (0, "")
    assert "all right" in out
    assert "<h2>Ops</h2>" in page.read_text()
    code, out, _ = vkconv(*argv[:-2], "--json")
    rows = json.loads(out)["rows"]
    assert {row["op"] for row in rows} == {"relu", "transpose"}
    assert {row["status"] for row in rows} == {"ok"}


def test_all_ops_finds_a_maximum_that_drops_nan(tmp_path, monkeypatch, device):
    with faults.planted(faults.NAN_DROPPING_MAX, tmp_path, monkeypatch, device):
        code, out, _ = vkconv("check", "--all-ops", "--op", "pool2d", "--op", "relu", "--device", device)
    assert code == 1
    assert "with NaN, infinities and zeros: y[" in out
    assert "vkconv check pool2d:" in out
    assert "FAILED" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("check",), "nothing to check"),
        (("check", "--all-ops", "relu:x=3"), "--all-ops checks the device by itself"),
        (("check", "relu:x=3", "--op", "relu"), "--op goes with --all-ops"),
        (("check", "--all-ops", "--op", "relo"), "did you mean 'relu'?"),
        (("check", "relu:x=3", "--sweep", "tile"), "has no parameter 'tile'"),
        (("check", "relu:x=3", "-o", "page.pdf"), "no format for '.pdf'"),
        (("check", "relu:x=0x3"), "nothing to check"),
        (("check", "reshape:x=3x2,shape=6"), "nothing runs for reshape"),
        (("check", "relu:x=3", "--limits", "mali-g5"), "did you mean 'mali-g57'"),
        (("check", "relu:x=3", "-i", "z=zeros"), "no input 'z'"),
        (("check", "conv2d:x=1x2x9x9,w=3x2x3x3", "--limits", "mali-g57", "--route", "conv2d=nope"), "no route 'nope'"),
    ],
)
def test_wrong_usage(argv, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = vkconv(*argv)
    assert code == 2
    assert says in err
    assert out == ""
