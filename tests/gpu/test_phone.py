"""``vkconv phone``: from cable to report, and faults on the way. The boards are this machine, behind stand-ins."""

import json
import os
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from cli_kit import on_terminal, vkconv
from phone_kit import ADB, SSH, stub
from required import unavailable

from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc
from vkconv.loading import load
from vkconv.phone import fleet
from vkconv.phone.build import compile_player
from vkconv.phone.transport import Ssh

pytestmark = pytest.mark.gpu
BOARD = "ssh://pi@board"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("c++")
    if compiler is None or not Path("/usr/include/vulkan/vulkan_core.h").exists():
        unavailable("c++ and libvulkan-dev build the player")
    made = tmp_path_factory.mktemp("player") / "player"
    compile_player([compiler], made)
    return made


@pytest.fixture
def boards(tmp_path, monkeypatch, program):
    """The folder in which boards are, each by its name."""
    root = tmp_path / "boards"
    root.mkdir()
    stub(tmp_path / "bin", "ssh", SSH, root)
    stub(tmp_path / "bin", "adb", ADB, root)
    (root / "devices").write_text("one\tdevice\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("VKCONV_PLAYER", str(program))
    monkeypatch.delenv("VKCONV_ADB", raising=False)
    return root


def fault(boards, what):
    (boards / "fault").write_text(what)


def left(boards):
    """What is left on the boards, but for the player and empty folders."""
    return [p for p in boards.rglob("*") if p.is_file() and p.parent != boards and not p.name.startswith("player-")]


@pytest.fixture
def model(tmp_path):
    nodes = (
        Node("conv", "conv2d", ("x", "w"), ("a",), {"padding": (1, 1, 1, 1)}),
        Node("sum", "reduce", ("a",), ("y",), {"op": "sum", "axes": (2, 3)}),
    )
    weight = np.random.default_rng(3).standard_normal((5, 3, 3, 3), np.float32)
    save_vkc(Graph({"x": TensorSpec((2, 3, 9, 7))}, ("a", "y"), nodes, {"w": weight}), tmp_path / "m.vkc")
    return tmp_path / "m.vkc"


@pytest.mark.parametrize("how", [("--via", BOARD), ("--serial", "one"), ()])
@pytest.mark.share(2)
def test_from_cable_to_report(boards, tmp_path, how):
    """One command: build or take the player, push, plan for the device, play, tell, tidy up."""
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    words = ("matmul:a=9x8,b=8x7", "relu:x=5", "--min-time", "0.001", "--runs", 3, "-o", data, "-o", page)
    code, out, _ = vkconv("phone", "bench", *words, *how)
    assert code == 0
    result = json.loads(data.read_text())
    assert [(row["call"].split(":")[0], row["check"]) for row in result["rows"]] == [("matmul", "ok"), ("relu", "ok")]
    assert all(row["us_median"] > 0 and row["runs"] >= 3 and row["allowed"] >= 0 for row in result["rows"])
    assert "matmul:a=9x8,b=8x7" in out and page.stat().st_size > 1000
    assert left(boards) == []
    code, out, _ = vkconv("compare", data, data)
    assert code == 0


def test_what_a_row_was_measured_in_is_said_beside_it(boards, tmp_path):
    """The pause, the processor, and of a phone its screen."""
    dumpsys = tmp_path / "bin" / "dumpsys"
    dumpsys.write_text("#!/bin/sh\necho '  mWakefulness=Awake'\n")
    dumpsys.chmod(0o755)
    cpu = str(max(os.sched_getaffinity(0)))
    words = ("phone", "bench", "relu:x=5", "--min-time", "0.001", "-o", tmp_path / "r.json")
    code, _, err = vkconv(*words, "--cpu", cpu, "--cooldown", "0.01")
    assert code == 0, err
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    notes = ", ".join(row["notes"])
    assert all(said in notes for said in (f"on CPU {cpu} alone", "screen on", "after a pause of 0.01 s"))
    dumpsys.write_text("#!/bin/sh\necho '  mWakefulness=Dozing'\n")
    assert vkconv(*words)[0] == 0
    notes = ", ".join(json.loads((tmp_path / "r.json").read_text())["rows"][0]["notes"])
    assert "screen off" in notes and "pause" not in notes
    code, _, err = vkconv(*words, "--cpu", "9999")
    assert code == 1 and "--cpu 9999: this machine has no such processor" in err + (tmp_path / "r.json").read_text()


def test_the_calls_of_a_model_are_measured(boards, tmp_path):
    save_vkc(Graph({"x": TensorSpec(("n", 7))}, ("y",), (Node("r", "relu", ("x",), ("y",)),), {}), tmp_path / "m.vkc")
    words = ("phone", "bench", tmp_path / "m.vkc", "--min-time", "0.001", "--via", BOARD, "-o", tmp_path / "r.json")
    code, _, err = vkconv(*words)
    assert (code, "--shape" in err) == (2, True)
    assert vkconv(*words, "--shape", "x=3x7")[0] == 0
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert (row["call"], row["check"]) == ("relu:x=3x7,dtype=f32", "ok")


def test_info_writes_the_device_file(boards, tmp_path):
    code, out, _ = vkconv("phone", "info", "--via", BOARD, "-o", tmp_path / "d.json")
    assert code == 0
    there = load_device(str(tmp_path / "d.json"))
    assert vkconv("explain", "relu:x=5", "-d", tmp_path / "d.json")[0] == 0
    assert there.name in out
    assert there.driver and there.heap_bytes > 0 and there.subgroup_size > 1


def test_what_is_kept_is_not_copied_again(boards):
    class Counted(Ssh):
        count = 0

        def push(self, files, folder):
            Counted.count += len(files)
            super().push(files, folder)

    words = ("phone", "bench", "relu:x=5", "--via", BOARD, "--min-time", "0.001", "--keep")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vkconv.phone.transport.Ssh", Counted)
        assert vkconv(*words)[0] == 0
        first, Counted.count = Counted.count, 0
        assert vkconv(*words)[0] == 0
    assert (first > 3, Counted.count) == (True, 1)  # the index


def test_a_model_is_checked_and_run(boards, model, tmp_path):
    code, out, _ = vkconv("phone", "check", model, "--via", BOARD, "--repeat", 3, "-o", tmp_path / "c.json")
    assert code == 0
    assert "2 nodes right, alone and in the run" in out
    nodes = json.loads((tmp_path / "c.json").read_text())["check"]["nodes"]
    assert [node["node"] for node in nodes] == ["conv", "sum"]
    assert all(0 <= node["alone"]["max_rel"] <= node["alone"]["allowed"] for node in nodes)
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 7), np.float32)
    np.save(tmp_path / "x.npy", x)
    code, out, _ = vkconv(
        "phone", "run", model, "--via", BOARD, "-i", f"x=@{tmp_path / 'x.npy'}", "--save", tmp_path / "s"
    )
    assert code == 0
    with load(model) as session:
        here = session.run({"x": x})
    for number, name in enumerate(("a", "y")):
        assert np.load(tmp_path / "s" / "pi@board" / f"{number}.npy").tobytes() == here[name].tobytes()
    assert left(boards) == []


def test_all_ops_and_two_devices(boards, tmp_path):
    (boards / "devices").write_text("one\tdevice\ntwo\tdevice\n")
    words = ("phone", "check", "--all-ops", "--op", "relu", "--short", "--dtype", "f32", "-o", tmp_path / "c.json")
    words = (*words, "-o", tmp_path / "c.xml", "-o", tmp_path / "c.csv")
    code, _, err = vkconv(*words)
    assert (code, "several devices, one, two: name some with --serial" in err) == (3, True)
    code, out, _ = vkconv(*words, "--all")
    assert code == 0
    found = json.loads((tmp_path / "c.json").read_text())["boards"]
    assert [board["board"] for board in found] == ["one", "two"]
    assert "all right" in out
    suites = ElementTree.parse(tmp_path / "c.xml").getroot()
    assert {suite.get("name").split(",")[0] for suite in suites} >= {"one", "two"}
    assert (suites.get("failures"), suites.get("errors")) == ("0", "0")
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert lines[0] == "group,name,outcome,max_rel,allowed,seconds,why"
    assert len(lines) - 1 == int(suites.get("tests")) > 10


@pytest.mark.parametrize(
    ("what", "how", "says"),
    [
        ("key", ("--via", BOARD), "Permission denied (publickey).; add your key there: ssh-copy-id"),
        ("host", ("--via", BOARD), "No route to host"),
        ("wrong", (), "the player is not built for 'mips64'"),
        ("full", (), "No space left on device; free some memory there"),
        ("full-shell", ("--via", BOARD), "No space left on device; free some memory there"),
    ],
)
def test_a_board_that_cannot_be_used(boards, what, how, says):
    fault(boards, what)
    code, _, err = vkconv("phone", "bench", "relu:x=5", *how)
    assert code in (2, 3)
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("devices", "how", "says"),
    [
        ("one\tunauthorized\n", (), "one: adb says unauthorized; allow this machine on the device's screen"),
        ("one\toffline\n", (), "one: adb says offline; unplug it"),
        ("", (), "adb has no device: plug one in"),
        ("one\tdevice\n", ("--serial", "other"), "adb has no device other; it has one"),
        ("one\tdevice\n", ("--via", "ftp://x"), "--via 'ftp://x' is none of adb"),
        ("one\tdevice\n", ("--via", "ssh://-oProxyCommand=x"), "is none of adb"),
    ],
)
def test_devices_that_adb_has_not_or_may_not_use(boards, devices, how, says):
    (boards / "devices").write_text(devices)
    code, _, err = vkconv("phone", "bench", "relu:x=5", *how)
    assert code in (2, 3)
    assert says in err


@pytest.mark.parametrize(
    ("what", "how", "measured", "says"),
    [
        ("cable", (), 2, "2 of 4 packs were played, then: error: device 'one' not found; the device is gone"),
        ("cable", ("--via", BOARD), 2, "2 of 4 packs were played, then: error: device 'one' not found"),
        ("broken", (), None, "packs were played, then: error: closed; the device is gone"),
        ("reboot", (), 1, "1 of 4 packs were played, then: error: device offline; unplug it"),
        ("quiet", (), 1, "1 of 4 packs were played, then: the connection broke off; the device is gone"),
    ],
)
def test_what_was_measured_before_it_was_lost_is_kept(boards, tmp_path, what, how, measured, says):
    fault(boards, what)
    words = ("relu:x=5", "relu:x=6", "relu:x=7", "relu:x=8", "--min-time", "0.001", "--runs", 3)
    outputs = ("-o", tmp_path / "r.json", "-o", tmp_path / "r.xml", "-o", tmp_path / "r.csv")
    code, _, err = vkconv("phone", "bench", *words, *how, *outputs)
    assert code == 1
    lost = ElementTree.parse(tmp_path / "r.xml").getroot().iter("error")
    assert says in next(lost).get("message")
    assert says in (tmp_path / "r.csv").read_text()
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    ok = [row for row in rows if row["check"] == "ok"]
    assert len(rows) == 4
    assert len(ok) == (len(ok) if measured is None else measured)
    assert all(says in row["why"] for row in rows if row["check"] == "lost")
    assert sum(row["check"] == "lost" for row in rows) == 4 - len(ok) > 0
    assert "Traceback" not in err
    fault(boards, "")
    code, _, _ = vkconv("phone", "pull", tmp_path / "pulled", *how, "--remove")
    assert code == 0
    (kept,) = (tmp_path / "pulled").rglob("results.jsonl")
    assert json.loads(kept.read_text().splitlines()[0])["schema"] == "vkconv.played/1"
    assert [p for p in boards.rglob("*") if p.is_file() and p.parent != boards] == []


def test_what_was_checked_before_it_was_stopped_is_kept(boards, tmp_path, monkeypatch):
    play_all = fleet.play_all

    def stopped(*args):
        for number, told in enumerate(play_all(*args)):
            if number == 8:
                raise KeyboardInterrupt
            yield told

    monkeypatch.setattr(fleet, "play_all", stopped)
    words = ("--all-ops", "--op", "relu", "--short", "--dtype", "f32", "--via", BOARD, "-o", tmp_path / "c.json")
    code, out, _ = vkconv("phone", "check", *words)
    assert code == 130 and "stopped by Ctrl-C" in out
    (board,) = json.loads((tmp_path / "c.json").read_text())["boards"]
    assert board["problem"] == "stopped by Ctrl-C" and board["incomplete"] and board["rows"]


def test_tables_fit_a_terminal_of_100_columns(boards, model, monkeypatch):
    via = ("--via", BOARD)
    for words in (
        ("list",),
        ("info", *via),
        ("bench", "relu:x=5", "--min-time", "0.001", "--runs", 1, *via),
        ("check", model, *via),
        ("run", model, *via),
    ):
        code, lines, broken = on_terminal(monkeypatch, "phone", *words)
        assert (code, broken) == (0, []) and lines, words
