"""The command line on a device: what it computes, measures and saves, and what it says where there is none."""

import functools
import json
import os
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from cli_kit import on_terminal, vkconv, vkconv_process
from session_kit import slow_graph

from vkconv.cli import doctor
from vkconv.cli.in_flight import measure_in_flight
from vkconv.core import DeviceError
from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc
from vkconv.loading import load

SHAPE = (3, 7, 11)
pytestmark = pytest.mark.gpu


def vkconv_without_drivers(tmp_path, *argv):
    """In a process whose Vulkan loader finds no driver."""
    none = str(tmp_path / "no-driver.json")
    return vkconv_process(*argv, VK_DRIVER_FILES=none, VK_ICD_FILENAMES=none)


@pytest.fixture
def model(tmp_path):
    """y = relu(x + c), z = x * c, where x leaves its first dimension open."""
    constant = np.random.default_rng(5).integers(-9, 10, SHAPE[1:]).astype(np.float32)
    graph = Graph(
        {"x": TensorSpec(("n", *SHAPE[1:]))},
        ("y", "z"),
        (
            Node("shift", "add", ("x", "c"), ("a",)),
            Node("clamp", "relu", ("a",), ("y",)),
            Node("scale", "mul", ("x", "c"), ("z",)),
        ),
        {"c": constant},
        name="two",
    )
    path = tmp_path / "two.vkc"
    save_vkc(graph, path)
    return path, constant


def test_run_computes_and_saves(model, tmp_path, device):
    path, constant = model
    y, z = tmp_path / "new" / "y.npy", tmp_path / "z.npy"
    code, out, err = vkconv(
        "run", path, "--input", "x=3x7x11:randn:8", "-o", f"y={y}", "-o", f"z={z}", "--device", device, "--runs", 2
    )
    assert (code, err) == (0, "")
    x = np.random.default_rng(8).standard_normal(SHAPE, np.float32)
    np.testing.assert_array_max_ulp(np.load(y), np.maximum(x + constant, 0), 1)
    np.testing.assert_array_max_ulp(np.load(z), x * constant, 1)
    for part in ("input x = 3x7x11:randn:8", "load", "compile", "first run", "steady", "median of 2", str(y)):
        assert part in out
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["new", "two.vkc", "y.npy", "z.npy"]


def test_run_follows_links_and_writes_to_pipes_and_standard_output(model, tmp_path, device):
    path, _ = model
    target, link = tmp_path / "there.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    words = ("run", path, "--input", "x=3x7x11:randn:8", "--device", device, "--runs", 1)
    code, out, err = vkconv_process(*words, "--trace", pipe, "--node-data", link)
    reader.join(10)
    assert (code, err) == (0, "") and f"wrote {pipe}" in out
    assert stat.S_ISFIFO(pipe.stat().st_mode) and json.loads(got[0])
    assert link.is_symlink() and stat.S_IMODE(target.stat().st_mode) == 0o600 and json.loads(target.read_text())
    code, out, err = vkconv_process(*words, "--trace", "-")
    assert code == 0 and json.loads(out) and "wrote -: trace" in err


def test_run_whose_files_cannot_be_written_shows_what_it_measured(model, tmp_path, device):
    run = "run", model[0], "--input", "x=3x7x11", "--device", device, "--runs", 1
    folder = tmp_path / "folder.npy"
    folder.mkdir()
    z, nodes, trace = tmp_path / "z.npy", tmp_path / "nodes.json", folder / "file" / "trace.json"
    trace.parent.touch()
    code, out, err = vkconv(*run, "-o", f"y={folder}", "-o", f"z={z}", "--trace", trace, "--node-data", nodes)
    assert (code, err) == (2, f"error: cannot write {folder}: Is a directory\n")
    assert "steady" in out and [line for line in out.splitlines() if line.startswith("wrote")] == [
        f"wrote {z}: z",
        f"wrote {nodes}: node data for Model Explorer",
    ]
    code, out, err = vkconv(*run, "--trace", trace, "--json")
    assert (code, err) == (2, f"error: cannot write {trace}: Not a directory\n")
    assert json.loads(out)["steady_us"] and json.loads(out)["written"] == {}


@pytest.mark.alone
def test_run_json_has_figures_outputs_and_profile(model, tmp_path, device):
    path, constant = model
    x = np.random.default_rng(0).integers(-99, 99, SHAPE).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    command = ("run", path, "--input", f"@{tmp_path / 'x.npy'}", "--device", device, "--runs", 5, "--json", "--profile")
    # A process of its own: one that has run this model before has nothing left to compile.
    data = json.loads(vkconv_process(*command)[1])
    assert data["schema"] == "vkconv.run/1" and len(data["steady_us"]) == 5
    assert all(data[key] > 0 for key in ("load_us", "compile_us", "first_run_us", "steady_median_us"))
    expected = {"y": np.maximum(x + constant, 0), "z": x * constant}
    for row in data["outputs"]:
        want = expected[row["output"]]
        assert (row["shape"], row["dtype"], row["nan"]) == ("3x7x11", "float32", 0)
        assert (row["min"], row["max"]) == (want.min(), want.max())
        assert row["mean"] == pytest.approx(want.mean(dtype=np.float64))
    profile = data["profile"]
    nodes = [row["node"] for row in profile["nodes"]]
    assert {"write inputs", "submit", "clamp", "scale", "wait", "read outputs"} <= set(nodes)
    # The clock around the call is read apart from those that the rows are made of.
    for rows in (profile["nodes"], profile["ops"]):
        assert 0 <= profile["call_us"] - sum(row["time"] for row in rows) < 0.2 * profile["wall_us"] + 5000
    assert len(profile["runs_wall_us"]) == 5 and profile["wall_us"] == sorted(profile["runs_wall_us"])[2]


def test_run_with_several_in_flight(model, device):
    run = "run", model[0], "--input", "x=3x7x11", "--device", device, "--runs", 9, "--in-flight", 4
    code, out, _ = vkconv(*run, "--json")
    flown = json.loads(out)["in_flight"]
    assert code == 0 and flown["in_flight"] == 4 and len(flown["latencies_us"]) == 9
    assert 0 < flown["latency_p50_us"] <= flown["latency_p99_us"] == max(flown["latencies_us"]) <= flown["wall_us"]
    assert flown["runs_per_s"] == pytest.approx(9e6 / flown["wall_us"])
    code, out, _ = vkconv(*run)
    assert code == 0 and "4 in flight" in out and "latency p99" in out and "runs/s" in out
    code, out, _ = vkconv(*run[:-4], "--runs", 2, "--in-flight", 100_000)
    assert code == 0 and "2 in flight" in out and "100000" not in out


PEAK = """
import re, sys
from pathlib import Path
import numpy as np
from vkconv.cli.in_flight import measure_in_flight
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.loading import load

def peak_bytes():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

graph = Graph({"x": TensorSpec((1 << 20,))}, ("y",), (Node("n", "neg", ("x",), ("y",)),), {}, "net")
x = {"x": np.ones(1 << 20, np.float32)}
with load(graph, sys.argv[1], in_flight=3) as session:
    measure_in_flight(session, x, 10, 1, 3, None)
    before = peak_bytes()
    assert len(measure_in_flight(session, x, 300, 1, 3, 60).latencies_us) == 300
    print(peak_bytes() - before)
"""


@pytest.mark.alone
def test_results_in_flight_go_as_they_land(device):
    """Outputs of 4 MiB, 300 of them, in a process whose heap holds nothing else that was freed."""
    done = subprocess.run([sys.executable, "-c", PEAK, device], check=True, stdout=subprocess.PIPE, timeout=120)
    assert int(done.stdout.split()[-1]) < 100 << 20


def test_runs_in_flight_that_fail_end_the_measurement(device):
    class Failing:
        def __init__(self, session):
            self.session, self.count = session, 0

        def submit(self, arrays, timeout_s):
            self.count += 1
            assert timeout_s == (5 if self.count == 1 else 20)
            return self.session.submit(arrays, timeout_s=0 if self.count > 2 else timeout_s)

    graph, x = slow_graph(0.05)
    with load(graph, device) as session, pytest.raises(DeviceError, match=r"within 0 s"):
        measure_in_flight(Failing(session), x, 1000, 1, 3, 5)


def test_run_forces_routes_and_says_so(model, device, monkeypatch):
    path, _ = model
    monkeypatch.setenv("VKCONV_ROUTE", "mul=broadcast,node:clamp=broadcast")
    data = json.loads(vkconv("run", path, "--input", "3x7x11", "--device", device, "--runs", 1, "--json")[1])
    assert data["routes_forced"] == {"mul": "broadcast", "node:clamp": "broadcast"}
    code, _, err = vkconv("run", path, "--input", "3x7x11", "--device", device, "--route", "add=brodcast")
    assert code == 2 and "did you mean 'broadcast'" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "--input x=1x7x11"),
        (["--input", "3x7x12"], 2, "3x7x12"),
        (["--input", "3x7x11", "-o", "y.npy"], 2, "y, z"),
        (["--input", "3x7x11", "--device", "99"], 2, "there is no device 99"),
        (["--input", "3x7x11", "--device", "no such gpu"], 2, "fits no device"),
    ],
)
def test_run_refuses(model, arguments, code, said):
    assert vkconv("run", model[0], *arguments)[:2] == (code, "")
    assert said in vkconv("run", model[0], *arguments)[2]


def test_run_that_takes_too_long_exits_3(tmp_path, device):
    spec = TensorSpec((1, 64, 128, 128))
    weight = np.random.default_rng(1).standard_normal((64, 64, 3, 3)).astype(np.float32)
    nodes = [Node(f"conv{i}", "conv2d", (f"v{i}", "w"), (f"v{i + 1}",), {"padding": (1, 1, 1, 1)}) for i in range(12)]
    path = tmp_path / "long.vkc"
    save_vkc(Graph({"v0": spec}, ("v12",), tuple(nodes), {"w": weight}, name="long"), path)
    code, out, err = vkconv("run", path, "--device", device, "--timeout", "0.000001")
    assert (code, out) == (3, "")
    assert err.startswith("error: ") and "within 1e-06 s" in err


def test_devices_dump_is_a_device_file(tmp_path):
    code, out, _ = vkconv("devices")
    assert code == 0 and "auto" in out
    code, dumped, _ = vkconv("devices", "--dump", "--device", "auto")
    file = tmp_path / "this.json"
    file.write_text(dumped)
    assert load_device(file).name in out
    assert load_device(file).name in vkconv("devices", "--device", "auto")[1]
    call = "add:a=3x5,b=3x5"
    assert vkconv("explain", call, "--device", file) == vkconv("explain", call, "--device", "auto")


def test_doctor_runs_a_kernel_on_every_device(monkeypatch):
    monkeypatch.setattr(doctor, "probe", functools.cache(doctor.probe))  # each once, for the table and for JSON
    code, lines, broken = on_terminal(monkeypatch, "doctor")
    assert (code, broken) == (0, []) and len(lines) > 10
    data = json.loads(vkconv("doctor", "--json")[1])
    rows = {row["check"]: row for row in data["checks"]}
    assert rows["kernel on device 0"]["status"] == "ok", rows["kernel on device 0"]
    assert rows["bridge"]["status"] == "ok"
    assert all(row["todo"] for row in data["checks"] if row["status"] != "ok")


def test_without_a_driver_everything_says_what_to_install(model, tmp_path):
    path, _ = model
    before = sorted(tmp_path.iterdir())
    for command in (["devices"], ["run", path, "--input", "3x7x11"], ["explain", path, "--shape", "x=3x7x11"]):
        code, out, err = vkconv_without_drivers(tmp_path, *command)
        assert (code, out) == (3, ""), command
        assert err.startswith("error: no Vulkan device found") and "mesa-vulkan-drivers" in err
    code, out, _ = vkconv_without_drivers(tmp_path, "doctor", "--json")
    data = json.loads(out)
    assert code == data["exit_code"] == 3
    (row,) = [row for row in data["checks"] if row["check"] == "devices"]
    assert row["status"] == "fail" and "mesa-vulkan-drivers" in row["todo"]
    code, out, _ = vkconv_without_drivers(tmp_path, "explain", path, "--shape", "x=3x7x11", "--device", "lavapipe")
    assert code == 0 and "broadcast" in out
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", ["run", "check"])
def test_inputs_beyond_the_device_are_refused_before_they_are_drawn(command, model, device, monkeypatch):
    drawn = []
    monkeypatch.setattr("vkconv.check.inputs.filled", lambda *given: drawn.append(given))
    monkeypatch.setattr("vkconv.plan.limits.max_allocation_bytes", lambda facts: 922)
    code, out, err = vkconv(command, model[0], "--input", "x=3x7x11", "--device", device)
    assert (code, out, drawn) == (2, "", [])
    assert "input 'x': 3x7x11:f32 takes 924 B, the largest allocation of" in err
