"""Benchmarks on the device: right before fast, every refusal a row, interrupted runs kept."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dispatch_kit import launch

from vkconv.backend.executable import Executable
from vkconv.backend.runtime import open_device
from vkconv.bench.calibrate import floors
from vkconv.bench.engine import measure
from vkconv.bench.files import read_result
from vkconv.bench.reference import expected
from vkconv.bench.rows import mark_best
from vkconv.bench.runner import Routes, make_tasks, run_tasks
from vkconv.bench.sampling import BenchOptions
from vkconv.bench.suites import parse_entries
from vkconv.cli import main
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc
from vkconv.ops import OPS
from vkconv.ops.core.activation import ACTIVATIONS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels import rooflines as kernels
from vkconv.plan.planner import plan
from vkconv.plan.single import graph_of_shapes, held_constant
from vkconv.route import Route

ROOT = Path(__file__).parents[2]
QUICK = BenchOptions(min_time_s=0.005, runs=3, warmup=1)
CONV = "conv2d:x=1x5x11x13,w=7x5x3x3,b=7,p=1"
pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def rows_of(text, device, *routes, options=QUICK):
    entries = parse_entries(text)
    facts = open_device(device).device
    tasks = make_tasks(entries, Routes.parse(routes, entries), facts)
    return list(run_tasks(tasks, device=device, options=options, floors=floors(open_device(device))))


def test_a_row_in_another_layout_says_what_of_it_reorders(device):
    line = "ckProfiler grouped_conv_bwd_weight 0 2 1 1 0 1 2 2 3 5 4 3 3 7 6 1 1 1 1 1 1 1 1 1"
    (row,) = rows_of(line, device)
    assert row.ok and "layout=NHWGC,w_layout=GKYXC" in row.call
    (note,) = (note for note in row.notes if note.startswith("reordering"))
    moved, whole = (float(word) for word in re.search(r"launches, ([\d.]+) of ([\d.]+) us", note).groups())
    assert note.startswith(f"reordering: 3 of {row.dispatches} launches") and 0 <= moved < whole
    (row,) = rows_of(CONV, device)
    assert not any(note.startswith("reordering") for note in row.notes)


@pytest.mark.parametrize(
    "text", [CONV, "matmul:a=33x40,b=40x35,bias=35", "softmax:x=5x70", "split:x=7x6,axis=1,num_outputs=2"]
)
def test_every_route_has_a_row_that_is_right_or_says_why_not(text, device):
    rows = rows_of(text, device, "all")
    assert [row.route for row in rows] == [r.name for r in OPS[rows[0].op].routes]
    for row in rows:
        assert row.check in ("ok", "refused") and row.ok == (row.check == "ok") and bool(row.why) != row.ok
    assert sum(row.chosen for row in rows) == 1
    for row in filter(lambda r: r.ok, rows):
        assert 0 < row.us_min <= row.us_median <= row.us_p90
        assert row.runs >= 3 and row.submissions >= 1 and row.dispatches >= 1
        assert row.us_wall > 0 and row.us_wall_repeated >= 0.5 * row.us_median
        assert row.max_rel <= row.allowed and row.us_spread_percent >= 0
        assert row.gbps > 0 and row.percent_of_floor > 0 and row.bound in ("fma", "copy")


def test_a_refused_route_says_which_need_refused_it(device):
    row = measure(parse_call(CONV, OPS), "pointwise", device=device, options=QUICK)
    assert row.check == "refused" and row.us_median is None
    assert "1x1 kernel" in row.why and "3x3" in row.why


def test_prepacking_is_timed_apart(device):
    tile, direct = (measure(parse_call(CONV, OPS), r, device=device, options=QUICK) for r in ("direct_tile", "direct"))
    assert tile.us_prepack > 0 and direct.us_prepack is None


def test_a_span_of_several_executions_is_divided_by_their_number(device):
    live, call = open_device(device), parse_call(CONV, OPS)
    wanted = expected(call, seed=0)
    planned = plan(graph_of_shapes(call), live.device)
    executable = Executable(planned.plan, live, held_constant(wanted.arrays))
    try:
        executable.run({name: wanted.arrays[name] for name in planned.plan.inputs})
        repeats = executable.repeat(12, 4)
        spans_us, _ = repeats.run()
        stamps_ns = np.array(repeats._recording.timestamps_ns())
        assert np.all(np.diff(stamps_ns) > 0)
        np.testing.assert_allclose(spans_us, np.diff(stamps_ns) / 4e3, rtol=1e-9)
        assert len(spans_us) == 3
    finally:
        executable.close()


def test_parameters_reach_the_route(device):
    row = measure(parse_call("relu:x=999", OPS), device=device, options=QUICK)
    assert row.ok and row.given == {} and row.params
    values = OPS["relu"].routes[0].params(parse_call("relu:x=999", OPS), open_device(device).device)["local"]
    other = measure(parse_call("relu:x=999", OPS), params={"local": values[-1]}, device=device, options=QUICK)
    assert other.ok and other.params["local"] == values[-1] and other.given == {"local": values[-1]}
    wrong = measure(parse_call("relu:x=999", OPS), params={"local": 12345}, device=device, options=QUICK)
    assert wrong.check == "refused" and "12345" in wrong.why


def planted(monkeypatch, change):
    """relu with a route before its own whose dispatch is changed."""
    op = OPS["relu"]
    honest = op.routes[0]

    def program(call, device, params):
        made = honest.build(call, device)
        return dataclasses.replace(made, steps=tuple(dataclasses.replace(s, **change(s)) for s in made.steps))

    route = Route("planted", program, honest.shaders, "a test", honest.must)
    monkeypatch.setitem(OPS, "relu", dataclasses.replace(op, routes=(route, honest)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda step: {"groups": (1, 1, 1)}, "is nan"),  # most of the output stays as it was poisoned
        (
            lambda step: {
                "push": {**step.push, "a": 1.0, "b": 1.0},
                "constants": {**step.constants, "FUNCTION": ACTIVATIONS["elu"].id},
            },
            "off by more",
        ),
    ],
)
def test_a_wrong_route_is_failed_not_timed_and_never_best(monkeypatch, change, words, device):
    planted(monkeypatch, change)
    rows = rows_of("relu:x=99991", device, "all")
    mark_best(rows)
    wrong, right = rows
    assert wrong.check == "FAILED" and words in wrong.why and wrong.us_median is None and wrong.chosen
    assert right.ok and not wrong.best


def test_a_route_that_only_the_first_run_gets_right_is_failed(monkeypatch, device):
    original = Executable.peek
    monkeypatch.setattr(Executable, "peek", lambda self, name: original(self, name) + np.float32(1))
    row = measure(parse_call("relu:x=999", OPS), device=device, options=QUICK)
    assert row.check == "FAILED" and "when it was repeated" in row.why and row.us_median is None


def test_calls_that_are_too_large_are_skipped_with_both_numbers(monkeypatch, device):
    row = measure(parse_call("relu:x=1000000x1000000", OPS), device=device, options=QUICK)
    heap = open_device(device).device.heap_bytes
    assert row.check == "skipped" and "8000000000000 bytes" in row.why and f"{heap} bytes" in row.why
    monkeypatch.setattr("vkconv.check.inputs.available_bytes", lambda: 1000)
    row = measure(parse_call("relu:x=999", OPS), device=device, options=QUICK)
    assert row.check == "skipped" and "1000 B are free" in row.why and "host memory" in row.why


@pytest.mark.parametrize(
    ("text", "check", "words"),
    [
        ("flatten:x=3x4", "skipped", "nothing runs"),
        ("relu:x=0x4", "skipped", "no output element"),
        ("scatter_strided:x=5:i64,shape=13,offset=1,stride=3", "refused", "elements"),
        ("gather:x=1x3,indices=40:i32", "error", "indices span 0 to 3; the axis has 1"),
    ],
)
def test_what_cannot_be_measured_is_a_row(text, check, words, device):
    (row,) = rows_of(text, device)
    assert row.check == check and words in row.why and row.us_median is None


def test_calls_without_an_op_are_rows(device, monkeypatch):
    text = "conv -n 1 -c 3 -H 9 -W 9 -k 4 -y 3 -x 3"
    assert [row.check for row in rows_of(text, device)] == ["ok", "ok", "ok"]
    monkeypatch.delitem(OPS, "conv2d_backward_weight")
    rows = rows_of(text, device)
    assert [row.check for row in rows] == ["ok", "ok", "no op"]
    assert rows[2].op == "conv2d_backward_weight" and "no op 'conv2d_backward_weight'" in rows[2].why


def test_the_tool_itself_takes_little_time(device):
    row = measure(parse_call("relu:x=4096", OPS), device=device, options=BenchOptions(min_time_s=0.1))
    assert row.us_overhead < 200


# ---- floors


@pytest.mark.parametrize("items", kernels.COPY_ITEMS)
def test_the_copy_kernel_copies_everything(items, device):
    nbytes = 37 * kernels.COPY_STEP_BYTES
    x = np.random.default_rng(1).standard_normal(nbytes // 4, np.float32)
    facts = open_device(device).device
    assert np.array_equal(launch(device, {"x": nbytes, "y": nbytes}, kernels.copy(nbytes, items, facts), x), x)


def test_the_multiply_add_kernel_does_all_its_arithmetic(device):
    count, iterations = 1003, 5
    y = launch(device, {"y": 4 * count}, kernels.multiply_add(count, iterations, open_device(device).device))
    chains = (np.arange(count) % 64)[:, None] + np.arange(8.0)
    for _ in range(4 * iterations):
        chains = chains * 0.999 + 0.001
    np.testing.assert_allclose(y, chains.sum(1), rtol=1e-5)
    assert kernels.fma_flops(count, iterations) == 2 * chains.size * 4 * iterations


def test_floors_are_measured_once(device):
    live = open_device(device)
    assert floors(live) is floors(live)
    assert floors(live).copy_gbps > 0.1 and floors(live).fma_gflops > 0.1


# ---- the command line


def vkconv(capsys, *argv):
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in argv])
    captured = capsys.readouterr()
    return done.value.code or 0, captured.out, captured.err


def test_bench_writes_what_it_shows_and_compares_with_itself(tmp_path, capsys, device):
    graph = Graph(
        {"x": TensorSpec((3, 50))},
        ("y",),
        (Node("a", "tan", ("x",), ("t",)), Node("b", "tan", ("t",), ("u",)), Node("c", "softmax", ("u",), ("y",))),
    )
    save_vkc(graph, tmp_path / "m.vkc")
    outputs = [tmp_path / f"r.{suffix}" for suffix in ("json", "csv", "md")]
    options = ["--device", device, "--min-time", "0.01", *(o for path in outputs for o in ("-o", path))]
    code, out, err = vkconv(capsys, "bench", tmp_path / "m.vkc", CONV, "--route", "all", *options)
    assert code == 0, err
    result = read_result(outputs[0])
    assert {row.call.partition(":")[0]: row.count for row in result.rows} == {"tan": 2, "softmax": 1, "conv2d": 1}
    assert len(outputs[1].read_text().splitlines()) == 1 + len(result.rows)
    assert {tuple(row.nodes) for row in result.rows if row.op == "tan"} == {("a", "b")}
    right = [row for row in result.rows if row.ok]
    assert right and all(np.median(row.us_samples) == pytest.approx(row.us_median, rel=0.01) for row in right)
    assert result.header.expected_s > 0 and result.header.floors and not result.header.incomplete
    assert "about" in err and all(row.call in out for row in result.rows)
    code, out, _ = vkconv(capsys, "compare", outputs[0], outputs[0], "--fail-over", "1.05")
    assert code == 0 and "slower" not in out and "B/A 1.000" in out


def test_what_was_measured_outlives_a_file_and_a_reader(tmp_path, capsys, device):
    saved = tmp_path / "r.json"
    (tmp_path / "folder.json").mkdir()
    options = ["--device", device, "--min-time", "0.01", "-o", tmp_path / "folder.json", "-o", saved]
    code, out, err = vkconv(capsys, "bench", "relu:x=99", *options)
    assert code == 2 and "folder.json: Is a directory" in err and f"wrote {saved}" in out and "elementwise" in out
    saved.unlink()

    reader, writer = os.pipe()
    os.close(reader)
    words = ["bench", "relu:x=99", "--sweep", "local", "--json", "--device", str(device), "--min-time", "0.01"]
    command = [sys.executable, "-m", "vkconv", *words, "-o", str(saved)]  # more than Python keeps before it writes
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300)
    os.close(writer)
    assert done.returncode == 141 and read_result(saved).rows


def test_bench_prints_the_json_that_it_saves(tmp_path, capsys, device):
    saved = tmp_path / "r.json"
    options = ["--device", device, "--min-time", "0.01", "-o", saved, "--json"]
    code, out, err = vkconv(capsys, "bench", "relu:x=99", *options)
    assert code == 0, err
    assert json.loads(out) == json.loads(saved.read_text())


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["conv3d:x=1x3x8x8,w=4x3x1x1"], "did you mean 'conv2d'"),
        (["--suite", "peeers"], "did you mean 'peers'"),
        ([CONV, "--route", "dirct"], "did you mean 'direct'"),
        ([CONV, "--sweep", "rout"], "'rout'"),
        ([CONV, "-o", "r.jsn"], "did you mean '.json'"),
        ([CONV, "--dtype", "f23"], "did you mean 'f32'"),
        ([CONV, "--min-time", "nan"], "--min-time nan"),
        (["resnet50"], "suites go by --suite (did you mean 'resnet50'?)"),
        ([], "nothing to measure"),
        (["none.onnx"], "none.onnx"),
    ],
)
def test_wrong_usage_is_an_error_with_a_suggestion(argv, words, capsys, device):
    code, out, err = vkconv(capsys, "bench", *argv, "--device", device)
    assert code == 2 and words in err and not out


def test_a_failed_row_ends_with_1(monkeypatch, capsys, device):
    planted(monkeypatch, lambda step: {"groups": (1, 1, 1)})
    code, out, _ = vkconv(capsys, "bench", "relu:x=99991", "--min-time", "0.01", "--device", device)
    assert code == 1 and "FAILED" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_keeps_what_was_measured(number, code, tmp_path, device):
    target = tmp_path / "r.json"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "vkconv", "bench", "relu:x=99", "tanh:x=99", "--min-time", "20", "--runs", "1"]
    command += ["--warmup", "0", "--device", device, "-o", str(target)]
    # The first row must be done quickly: it is a call that nothing runs for.
    command.insert(4, "flatten:x=3x3")
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        for line in run.stderr:
            if line.startswith("[1/3]"):
                break
        run.send_signal(number)
        out, _ = run.communicate(timeout=60)
    assert run.returncode == code and "INCOMPLETE" in out
    data = json.loads(target.read_text())
    assert data["header"]["incomplete"] and [r["op"] for r in data["rows"]] == ["flatten"]
