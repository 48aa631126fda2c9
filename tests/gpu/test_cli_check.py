"""``vkconv check``: what it prints, saves and ends with, for models, calls and the whole device."""

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time

import faults
import numpy as np
import pytest
from cli_kit import ROOT, vkconv

from vkconv.backend.runtime import select_device
from vkconv.check import model as check_model
from vkconv.check.conformance import checks
from vkconv.cli import output, progress
from vkconv.cli.stopping import Terminated
from vkconv.core import DType
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc
from vkconv.plan import planner

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


def stopping(monkeypatch, error, name, after):
    """Raise an error in place of a check's step once so many of its calls are done."""
    done = 0
    step = getattr(check_model._Checker, name)

    def counted(*args):
        nonlocal done
        done += 1
        if done > after:
            raise error
        return step(*args)

    monkeypatch.setattr(check_model._Checker, name, counted)


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_what_was_checked_of_a_model_is_kept(model, tmp_path, device, monkeypatch, error, code):
    stopping(monkeypatch, error, "_check", 2)
    saved = tmp_path / "m.json"
    argv = ("check", model, "-i", "1x2x7x9", "--no-passes", "--device", device, "-o", saved)
    got, out, err = vkconv(*argv)
    assert (got, err) == (code, "")
    assert "INCOMPLETE: stopped by" in out and "after 2 of 3 nodes" in out
    data = json.loads(saved.read_text())
    assert data["incomplete"] and not data["check"]["complete"] and len(data["check"]["nodes"]) == 2


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_a_model_of_which_nothing_was_checked_is_just_stopped(model, device, monkeypatch, error, code):
    stopping(monkeypatch, error, "_check", 0)
    assert vkconv("check", model, "-i", "1x2x7x9", "--no-passes", "--device", device) == (code, "", "")


def test_a_check_tells_how_far_it_is_where_there_is_no_terminal(model, device, monkeypatch):
    monkeypatch.setattr(output, "TELL_S", 0.0)
    code, _, err = vkconv("check", model, "--dim", "h=7", "--no-passes", "--device", device)
    assert code == 0 and re.search(r"\[1/3\] first, about .* left", err)


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
    assert {row["params"]["local"] for row in data["sweep"]} >= {32, 128}
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


# ---- the whole device


@contextlib.contextmanager
def started(*argv, **pipes):
    """The command in a process group of its own, as a shell starts it, with the validation layer off: workers would
    write over the log of this process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("VK_INSTANCE")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "vkconv", "check", "--all-ops", *map(str, argv)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | pipes
    with subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **pipes) as running:
        try:
            yield running
        finally:
            running.kill()


def rows_of(path, device, *ops):
    """What a file has of these ops' checks, whose order it keeps."""
    rows = json.loads(path.read_text())["rows"]
    every = [(check.text, check.route, check.form, check.params) for check in checks(select_device(device)[1], ops)]
    found = [(row["call"], row["route"], row["form"], row["params"]) for row in rows]
    assert found == [check for check in every if check in found]
    return rows, len(every)


def test_all_ops_of_some(tmp_path, device):
    page = tmp_path / "page.html"
    argv = ("check", "--all-ops", "--op", "relu", "--op", "transpose", "--device", device, "-j", 1, "-o", page)
    code, out, _ = vkconv(*argv)
    assert code == 0
    assert "all right" in out and "routes: 3 of 3 run, in " in out
    assert "<h2>Ops</h2>" in page.read_text()
    code, out, _ = vkconv(*argv[:-2], "--json")
    data = json.loads(out)
    assert {row["op"] for row in data["rows"]} == {"relu", "transpose"}
    assert {row["status"] for row in data["rows"]} == {"ok", "refused"}  # tiles, of what they do not move
    assert {row["form"] for row in data["rows"]} >= {"f32", "f16 packed", "bf16 packed", "i64"}
    assert not data["incomplete"] and data["coverage"]["routes_run"] == 3
    assert any(row["params"] for row in data["rows"])
    code, out, _ = vkconv(*argv[:-2], "--short", "--dtype", "f32", "--json")
    assert code == 0 and not any(row["params"] for row in json.loads(out)["rows"])


def test_workers_find_what_one_process_finds(tmp_path, device):
    ops = ("softmax", "relu", "transpose")
    path = tmp_path / "rows.json"
    asked = [word for op in ops for word in ("--op", op)]
    with started(*asked, "--dtype", "f32", "--device", device, "-j", 2, "-o", path, "--json") as running:
        out, err = running.communicate(timeout=600)
    assert running.returncode == 0, err
    assert json.loads(out) == json.loads(path.read_text())
    rows, _ = rows_of(path, device, *ops)
    assert {row["status"] for row in rows} == {"ok", "refused"}
    code, out, _ = vkconv("check", "--all-ops", *asked, "--dtype", "f32", "--device", device, "-j", 1, "--json")
    found, wanted = ([{**row, "seconds": 0} for row in of] for of in (rows, json.loads(out)["rows"]))
    assert code == 0 and found == wanted


def test_where_it_is_told_in_lines_now_and_then(monkeypatch, device):
    monkeypatch.setattr(progress, "TELL_S", 0.0)
    code, _, err = vkconv("check", "--all-ops", "--op", "relu", "--dtype", "f32", "--device", device, "-j", 1)
    lines = err.splitlines()
    count = len(checks(select_device(device)[1], ["relu"], [DType.F32]))
    assert code == 0 and len(lines) == count
    assert lines[0].startswith(f"{count} checks on ") and lines[0].endswith(", in 1 process")
    assert re.fullmatch(rf"1 of {count} checks, 0 failed, about (\d+ min )?\d+ s left", lines[1])


def test_where_it_is_told_in_a_line_of_a_terminal(device):
    terminal, theirs = pty.openpty()
    with started("--op", "relu", "--dtype", "f32", "--device", device, "-j", 1, "--json", stderr=theirs) as running:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(terminal, 1 << 16):
                shown += part
        out = running.stdout.read()
        assert running.wait(60) == 0
    os.close(terminal)
    assert json.loads(out)["rows"] and b"0 failed, relu elementwise" in shown


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "stopped by Ctrl-C"),
        (signal.SIGTERM, 143, "stopped by SIGTERM"),
        (signal.SIGKILL, -9, "still at work"),
    ],
)
def test_what_is_done_is_kept_when_it_is_stopped(number, code, words, jobs, tmp_path, device):
    path, page = tmp_path / "rows.json", tmp_path / "page.md"
    with started("--op", "matmul", "--device", device, "-j", jobs, "-o", path, "-o", page) as running:
        until = time.monotonic() + 120
        while not page.exists():  # it is written once the first check is done
            assert running.poll() is None and time.monotonic() < until, running.stderr.read()
            time.sleep(0.01)
        if number != signal.SIGKILL:
            time.sleep(1)
        os.killpg(running.pid, number)  # as a terminal does
        out, err = running.communicate(timeout=60)
    assert running.returncode == code
    assert "Traceback" not in err
    rows, count = rows_of(path, device, "matmul")
    data = json.loads(path.read_text())
    assert 0 < len(rows) < count == data["checks"]
    assert data["incomplete"] and data["stopped"] == words and not data["failed"]
    said = f"INCOMPLETE, {words} after {len(rows)} of {count} checks"
    assert said in page.read_text()
    assert (said in out) == (number != signal.SIGKILL)
    assert {missed["reason"] for missed in data["coverage"]["not_run"]} >= {"not checked"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_its_pipelines_are_not_kept_for_other_processes(jobs, tmp_path, monkeypatch, device):
    """Each session would save all that there are by then."""
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path))
    with started("--op", "relu", "--dtype", "f32", "--short", "--device", device, "-j", jobs) as running:
        assert running.wait(120) == 0
    assert not (tmp_path / "pipelines").exists()


def test_a_file_that_cannot_be_written_is_told_of_at_once(tmp_path, device):
    (tmp_path / "file").write_text("")
    argv = ("check", "--all-ops", "--op", "matmul", "--device", device, "-j", 1, "-o", tmp_path / "file" / "rows.json")
    code, out, err = vkconv(*argv)
    assert code == 2 and "cannot write" in err and not out


def test_all_ops_finds_a_maximum_that_drops_nan(tmp_path, monkeypatch, device):
    with faults.planted(faults.NAN_DROPPING_MAX, tmp_path, monkeypatch, device):
        argv = ("check", "--all-ops", "--op", "pool2d", "--op", "relu", "--dtype", "f32", "--device", device, "-j", 1)
        code, out, _ = vkconv(*argv)
    assert code == 1
    assert "with NaN, infinities and zeros: y[" in out
    assert "vkconv check pool2d:" in out
    assert "FAILED" in out


def test_a_call_in_packed_storage(device):
    code, out, _ = vkconv("check", "relu:x=3x67,dtype=f16", "--device", device, "--storage", "packed", "--json")
    assert code == 0
    data = json.loads(out)
    assert data["check"]["nodes"][0]["alone"]["ok"] and "limits" not in data
    code, out, _ = vkconv("check", "relu:x=3x67,dtype=f16", "--device", device, "--storage", "packed")
    assert "16-bit floats in packed storage" in out


def test_a_call_is_swept_in_the_type_of_an_option(device):
    argv = ("check", "conv2d:x=1x2x5x5,w=3x2x3x3", "--route", "conv2d=direct", "--dtype", "f16", "--device", device)
    code, out, _ = vkconv(*argv, "--sweep", "local", "--json")
    assert code == 0
    assert {row["call"].rpartition(",")[2] for row in json.loads(out)["sweep"]} == {"dtype=f16"}
    code, _, err = vkconv(*argv, "--sweep", "tile")
    assert code == 2 and "has no parameter 'tile'" in err


@pytest.mark.parametrize(("option", "wanted"), [("--fixed-push", True), ("--no-fixed-push", False)])
def test_all_runs_of_a_model_push_or_not(option, wanted, model, tmp_path, monkeypatch, device):
    asked = []
    with_fixed_push = planner.with_fixed_push
    monkeypatch.setattr(planner, "with_fixed_push", lambda p, w: asked.append(w) or with_fixed_push(p, w))
    argv = ("check", model, "-i", "1x2x7x9", "--device", device, "--no-passes", option, "--sweep", "local")
    code, out, _ = vkconv(*argv)
    assert code == 0 and f"push constants are {'constants of pipelines' if wanted else 'pushed'}" in out
    assert len(asked) > 3 and set(asked) == {wanted}
    with faults.planted(faults.WRONG_TAIL, tmp_path / "planted", monkeypatch, device):
        code, out, _ = vkconv(*argv[:-2], "--stop-at-first", "--dump", tmp_path / "wrong")
        (line,) = [line for line in out.splitlines() if line.startswith("repeat it alone: ")]
        assert code == 1 and f" {option}" in line
        assert vkconv(*shlex.split(line.partition(": ")[2])[1:])[0] == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("check",), "nothing to check"),
        (("check", "--all-ops", "relu:x=3"), "--all-ops checks the device by itself"),
        (("check", "relu:x=3", "--op", "relu"), "--op goes with --all-ops"),
        (("check", "relu:x=3", "--jobs", "2"), "--jobs goes with --all-ops"),
        (("check", "relu:x=3", "--short"), "--short goes with --all-ops"),
        (("check", "--all-ops", "-j", "2", "--workers", "dask://h:1"), "each board checks in one process"),
        (("check", "--all-ops", "--storage", "paked"), "did you mean 'packed'?"),
        (("check", "relu:x=3", "--storage", "native,packed"), "several go with --all-ops"),
        (("check", "relu:x=3", "--storage", "packed", "--workers", "dask://h:1"), "for a device of this machine"),
        (("check", "--all-ops", "--op", "relo"), "did you mean 'relu'?"),
        (("check", "relu:x=3", "--sweep", "tile"), "has no parameter 'tile'"),
        (("check", "conv2d:x=1x2x9x9,w=3x2x3x3", "--route", "conv2d=direct", "--sweep", "tile"), "sweep route too"),
        (("check", "relu:x=3", "-o", "page.pdf"), "no format for '.pdf'"),
        (("check", "relu:x=0x3"), "nothing to check"),
        (("check", "relu:x=40000000000000"), "relu:x=40000000000000: checking it takes about"),
        (("check", "reshape:x=3x2,shape=6"), "nothing runs for reshape"),
        (("check", "relu:x=3", "--limits", "mali-g5"), "did you mean 'mali-g57'"),
        (("check", "relu:x=3", "-i", "z=zeros"), "no input 'z'"),
        (("check", "conv2d:x=1x2x9x9,w=3x2x3x3", "--limits", "mali-g57", "--route", "conv2d=nope"), "no route 'nope'"),
    ],
)
@pytest.mark.share(1)
def test_wrong_usage(argv, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = vkconv(*argv)
    assert code == 2
    assert says in err
    assert out == ""
