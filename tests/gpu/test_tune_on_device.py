"""Tuning on the device: what is measured is kept, and the next plan takes it and says so."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings

import msgspec
import numpy as np
import pytest
from cli_kit import vkconv

import vkconv as package
from vkconv.backend.runtime import select_device
from vkconv.bench import engine
from vkconv.cli import progress
from vkconv.graph.vkc import save_vkc
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.measured import kernels_of, kernels_of_op, read_table, table_path, write_table
from vkconv.plan.planner import Options
from vkconv.plan.single import call_graph
from vkconv.route import Candidate, judge

CALL = "matmul:a=13x9,b=9x11,dtype=f32"
# Tiles of matmul take a CPU driver seconds each to compile.
FEW_PARAMETERS = "softmax:x=37x132,axis=1,dtype=f32"
pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("VKCONV_MEASURED", raising=False)


def tune(device, *arguments):
    return vkconv("tune", *arguments, "--device", device, "--min-time", 0.001)


def allowed_routes(facts, text):
    call = parse_call(text, OPS)
    return {r.name for r in OPS[call.op].routes if judge(r, call, facts).allowed}


def test_a_new_plan_takes_what_was_measured(device, tmp_path):
    code, out, _ = tune(device, FEW_PARAMETERS)
    assert code == 0 and "1 of 1 calls measured" in out
    facts = select_device(device)[1]
    path = table_path(facts)
    assert str(path) in out
    row = read_table(path).rows[FEW_PARAMETERS]
    routes = allowed_routes(facts, FEW_PARAMETERS)
    assert {c.route for c in row.candidates} == routes and len(row.candidates) > len(routes)
    assert {c.kernels for c in row.candidates} == {kernels_of("softmax", name) for name in routes}
    assert (row.effort, row.half_sums, row.kernels) == ("default", False, kernels_of_op("softmax"))
    data = json.loads(vkconv("explain", FEW_PARAMETERS, "--device", device, "--json")[1])
    best = row.candidates[0]
    assert (data["by"], data["route"], data["params"]) == ("measured", best.route, best.params)
    assert f"measured table: {best.us_median:.4g} us" in vkconv("explain", FEW_PARAMETERS, "--device", device)[1]
    assert "1 of 1 calls judged" in vkconv("tune", "--report", "--device", device)[1]


def test_a_session_runs_what_the_table_says_and_gives_the_same(device, monkeypatch):
    facts, call = select_device(device)[1], parse_call(CALL, OPS)
    assert tune(device, CALL, "--quick")[0] == 0
    path = table_path(facts)
    # A row that no clock would give: it is the table that is believed, not a rule that happens to agree.
    slow = Candidate("register", {"rows": 1, "columns": 1, "local": 32, "swap": 1}, 0.5, 0.0)
    slow = msgspec.structs.replace(slow, kernels=kernels_of("matmul", "register"))
    table = read_table(path)
    row = table.rows[CALL]
    table.rows[CALL] = type(row)(row.date, (*row.candidates, slow))
    write_table(table, path)
    rng = np.random.default_rng(4)
    inputs = {name: rng.integers(-3, 4, spec.dims).astype(np.float32) for name, spec in call.operands.items() if spec}
    graph = call_graph(call)
    with package.load(graph, device) as session:
        (node,) = session.plan.nodes
        assert (node.route, dict(node.params), node.choice.by) == ("register", slow.params, "measured")
        assert "measured table: 0.5" in session.explain().rows[0]["by"]
        np.testing.assert_array_equal(session.run(inputs)["y"], inputs["a"] @ inputs["b"])
    with package.load(graph, device, options=Options(measured={})) as session:
        assert session.plan.nodes[0].choice.by != "measured"
    with package.load(graph, device, routes={"matmul": "register"}) as session:
        assert session.plan.nodes[0].choice.by == "forced"
    monkeypatch.setenv("VKCONV_MEASURED", "off")
    with package.load(graph, device) as session:
        assert session.plan.nodes[0].choice.by != "measured"


def test_a_broken_table_does_not_stop_a_session(device):
    path = table_path(select_device(device)[1])
    path.parent.mkdir(parents=True)
    path.write_text("{")
    graph = call_graph(parse_call(CALL, OPS))
    with pytest.warns(package.core.VkconvWarning, match="not a measured table"), package.load(graph, device) as session:
        assert session.plan.nodes[0].choice.by != "measured"
    code, _, err = tune(device, CALL, "--quick")
    assert code == 2 and str(path) in err and path.read_text() == "{"


def test_models_are_tuned_by_their_calls_and_tables_grow(device, tmp_path):
    save_vkc(call_graph(parse_call(CALL, OPS)), tmp_path / "m.vkc")
    path = tmp_path / "mine.json"
    assert tune(device, tmp_path / "m.vkc", "--quick", "-o", path)[0] == 0
    code, out, err = tune(device, "relu:x=3x5", "reshape:x=6,shape=2x3", "--quick", "-o", path)
    assert code == 0 and "which has 2 calls" in out and f"VKCONV_MEASURED={path}" in out
    assert "not tuned: reshape" in err
    assert sorted(read_table(path).rows) == [CALL, "relu:x=3x5,dtype=f32"]
    assert not table_path(select_device(device)[1]).exists()


def stopping(monkeypatch, at, stop):
    """Measuring that does something else before the first candidate of an op."""
    measure_all = engine.measure_all

    def instead(trials, **options):
        def asked():
            for trial in trials:
                if trial.call.op == at:
                    stop()
                yield trial

        return measure_all(asked(), **options)

    monkeypatch.setattr(engine, "measure_all", instead)


def interrupt():
    raise KeyboardInterrupt


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)  # the signal ends it


@pytest.mark.parametrize(
    ("stop", "code", "words"), [(interrupt, 130, "stopped by Ctrl-C"), (terminate, 143, "stopped by SIGTERM")]
)
def test_tuning_that_is_stopped_keeps_what_is_done_and_goes_on(stop, code, words, device, tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    calls = "relu:x=3x5", "abs:x=3x5", "exp:x=3x5"
    with monkeypatch.context() as patched:
        stopping(patched, "abs", stop)
        ended, out, _ = tune(device, *calls, "--quick", "-o", path)
    assert ended == code and f"1 of 3 calls measured, 2 left: {words}; wrote {path}, which has 1 call" in out
    first = read_table(path).rows
    assert list(first) == ["relu:x=3x5,dtype=f32"]
    ended, out, _ = tune(device, *calls, "--quick", "-o", path, "--json")
    data = json.loads(out)
    assert ended == 0 and [call["call"].partition(":")[0] for call in data["calls"]] == ["abs", "exp"]
    assert (data["in_table_already"], data["left"], data["stopped"], data["incomplete"]) == (1, 0, "", False)
    assert first.items() <= read_table(path).rows.items() and len(read_table(path).rows) == 3


def test_a_call_too_large_to_measure_says_so(device, tmp_path):
    code, out, err = tune(device, "relu:x=40000000000000", "--quick", "-o", tmp_path / "mine.json")
    assert code == 0 and "none was measured" in out and "right" not in out
    assert (
        "not tuned: relu:x=40000000000000,dtype=f32: it takes 291 TiB (320000000000000 bytes), the largest heap" in err
    )


def test_calls_are_measured_again_on_request_or_with_more_effort(device, tmp_path):
    path = tmp_path / "mine.json"
    assert tune(device, "relu:x=3x5", "--quick", "-o", path)[0] == 0
    before = path.read_bytes()
    code, out, _ = tune(device, "relu:x=3x5", "--quick", "-o", path)
    assert code == 0 and path.read_bytes() == before
    said = "0 of 1 calls measured, 1 in the table already (--again measures them); "
    assert f"{said}{path} has 1 call" in out
    (quick,) = read_table(path).rows.values()
    assert "1 of 1 calls measured" in tune(device, "relu:x=3x5", "-o", path)[1]
    (row,) = read_table(path).rows.values()
    assert row.effort == "default" and len(row.candidates) > len(quick.candidates)
    assert "1 of 1 calls measured" in tune(device, "relu:x=3x5", "--again", "-o", path)[1]
    # As if the kernels had changed since.
    old = msgspec.structs.replace(row, kernels="0" * 16)
    write_table(msgspec.structs.replace(read_table(path), rows={"relu:x=3x5,dtype=f32": old}), path)
    assert "1 of 1 calls measured" in tune(device, "relu:x=3x5", "--quick", "-o", path)[1]


def test_a_budget_ends_tuning_between_candidates(device, tmp_path, monkeypatch):
    path, real = tmp_path / "mine.json", time.monotonic
    late = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + late)

    def pass_time():
        nonlocal late
        late = 3600.0

    stopping(monkeypatch, "abs", pass_time)
    # abs has candidates left when the time is up, and is in no table; exp is never begun.
    code, out, _ = tune(device, "relu:x=3x5", "abs:x=3x5", "exp:x=3x5", "--budget", 600, "-o", path)
    assert code == 0
    assert "1 of 3 calls measured, 2 left: the budget of 600 s is used up" in out
    assert list(read_table(path).rows) == ["relu:x=3x5,dtype=f32"]
    code, out, _ = tune(device, "abs:x=3x5", "--budget", 1e-9, "-o", tmp_path / "none.json")
    assert code == 0 and "0 of 1 calls measured, 1 left: the budget of 1e-09 s" in out and "no table is written" in out
    assert not (tmp_path / "none.json").exists()


def interrupted_at(monkeypatch, at, stop=interrupt):
    """Measuring that is stopped before the candidate of this number, and a list of what was measured till then."""
    measure_all, measured = engine.measure_all, []

    def instead(trials, **options):
        def asked():
            for trial in trials:
                if len(measured) == at:
                    stop()
                measured.append((trial.route, dict(trial.params)))
                yield trial

        return measure_all(asked(), **options)

    monkeypatch.setattr(engine, "measure_all", instead)
    return measured


@pytest.mark.parametrize(
    ("text", "effort"), [(CALL, ["--quick"]), (FEW_PARAMETERS, []), ("relu:x=37x132,dtype=f32", ["--full"])]
)
def test_a_call_under_way_goes_on_where_it_was(text, effort, device, tmp_path, monkeypatch):
    path, beside = tmp_path / "mine.json", tmp_path / "mine.json.unfinished"
    with monkeypatch.context() as patched:
        first = interrupted_at(patched, 2)
        code, out, _ = tune(device, text, *effort, "-o", path)
    assert code == 130 and "0 of 1 calls measured, 1 left: stopped by Ctrl-C; no table is written" in out
    assert f"2 candidates of 1 unfinished call kept in {beside}, from where the same command goes on" in out
    assert not path.exists() and tried_in(beside) == first
    second = interrupted_at(monkeypatch, None)
    code, out, _ = tune(device, text, *effort, "-o", path, "--json")
    data = json.loads(out)
    assert code == 0 and data["left"] == 0 and data["unfinished"]["measured_before"] == 2
    assert not [one for one in second if one in first]
    row = read_table(path).rows[text]
    assert len(row.candidates) == len(first) + len(second) and all(c.kernels for c in row.candidates)
    assert not beside.exists()
    # Nothing is left to measure.
    assert "1 in the table already" in tune(device, text, *effort, "-o", path)[1]


def tried_in(beside):
    (tried,) = json.loads(beside.read_bytes())["calls"].values()
    return [(one["route"], one["params"]) for one in tried]


def test_every_budget_gets_further(device, tmp_path, monkeypatch):
    path, text, counts, real = tmp_path / "mine.json", "relu:x=37x132,dtype=f32", [], time.monotonic
    for _ in range(50):
        with monkeypatch.context() as patched:
            late = 0.0

            def spend():
                nonlocal late
                late = 3600.0

            patched.setattr(time, "monotonic", lambda: real() + late)  # noqa: B023 - of this turn
            interrupted_at(patched, 3, spend)
            code, out, _ = tune(device, text, "--full", "--budget", 600, "-o", path, "--json")
        data = json.loads(out)
        assert code == 0
        if not data["incomplete"]:
            break
        counts.append(data["unfinished"]["candidates"])
        assert not path.exists()
    assert len(counts) > 1 and counts == [4 * (turn + 1) for turn in range(len(counts))]
    assert counts[-1] <= len(read_table(path).rows[text].candidates) <= counts[-1] + 4


def test_a_table_with_an_unfinished_call_beside_it_is_used(device, tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    with monkeypatch.context() as patched:
        interrupted_at(patched, len(allowed_routes(select_device(device)[1], CALL)) + 1)
        assert tune(device, CALL, FEW_PARAMETERS, "--quick", "-o", path)[0] == 130
    assert list(read_table(path).rows) == [CALL]
    monkeypatch.setenv("VKCONV_MEASURED", str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = [json.loads(vkconv("explain", text, "-d", device, "--json")[1])["by"] for text in (CALL, FEW_PARAMETERS)]
    assert data[0] == "measured" and data[1] != "measured"


def test_a_failure_before_the_interruption_is_told_again(device, tmp_path, monkeypatch):
    path, measure_all = tmp_path / "mine.json", engine.measure_all

    def wrong_then_stopped(trials, **options):
        for count, row in enumerate(measure_all(trials, **options)):
            if count == 1:
                raise KeyboardInterrupt
            row.check, row.us_median, row.why = "FAILED", None, "off by one"
            yield row

    with monkeypatch.context() as patched:
        patched.setattr(engine, "measure_all", wrong_then_stopped)
        code, _, err = tune(device, CALL, "--quick", "-o", path)
    assert code == 130 and "off by one" in err
    code, _, err = tune(device, CALL, "--quick", "-o", path)
    assert code == 1 and "off by one" in err
    assert len(read_table(path).rows[CALL].candidates) == len(allowed_routes(select_device(device)[1], CALL)) - 1


def test_unfinished_candidates_of_other_kernels_are_measured_again(device, tmp_path, monkeypatch):
    path, beside = tmp_path / "mine.json", tmp_path / "mine.json.unfinished"
    with monkeypatch.context() as patched:
        interrupted_at(patched, 2)
        tune(device, CALL, "--quick", "-o", path)
    data = json.loads(beside.read_bytes())
    data["calls"][CALL][0]["kernels"] = "0" * 16
    beside.write_text(json.dumps(data))
    measured = interrupted_at(monkeypatch, None)
    code, out, _ = tune(device, CALL, "--quick", "-o", path)
    assert code == 0 and "1 candidate measured before; 1 candidate ignored, of other kernels" in out
    assert (data["calls"][CALL][0]["route"], data["calls"][CALL][0]["params"]) in measured


def test_how_far_it_is_is_told_in_lines_now_and_then(device, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "TELL_S", 0.0)
    code, _, err = tune(device, "relu:x=3x5", "abs:x=3x5", "--quick", "-o", tmp_path / "mine.json")
    lines = err.splitlines()
    assert code == 0 and lines[0] == "0 of 2 calls, 1 candidate"
    assert re.fullmatch(r"1 of 2 calls, 1 candidate, about \d+ s left", lines[1])
    _, _, err = tune(device, "exp:x=3x5", "--quick", "-o", tmp_path / "mine.json", "--budget", 500)
    assert re.match(r"0 of 1 calls, 1 candidate, about 8 min (20|19) s left", err)


def test_two_that_tune_at_a_time_both_keep_their_rows(device, tmp_path):
    path = tmp_path / "mine.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ops = ("relu", "abs", "exp"), ("neg", "sqrt", "tanh")
    options = ["--quick", "--min-time", "0.001", "--device", device, "-o", str(path)]
    commands = [[sys.executable, "-m", "vkconv", "tune", *(f"{op}:x=3x5" for op in mine), *options] for mine in ops]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for command in commands]
    assert [process.wait(300) for process in running] == [0, 0]
    assert sorted(call.partition(":")[0] for call in read_table(path).rows) == sorted(ops[0] + ops[1])


def test_a_table_that_cannot_be_written_is_told_of_at_once(device, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    measured = []
    stopping(monkeypatch, "abs", lambda: measured.append(1))
    code, _, err = tune(device, "relu:x=3x5", "abs:x=3x5", "--quick", "-o", tmp_path / "file" / "mine.json")
    assert code == 2 and "cannot write" in err and not measured


def test_a_wrong_route_is_never_in_a_table(device, tmp_path, monkeypatch):
    path, measure_all = tmp_path / "mine.json", engine.measure_all

    def wrong(trials, **options):
        for row in measure_all(trials, **options):
            if row.route == "register":
                row.check, row.us_median, row.why = "FAILED", 0.001, "off by one"
            yield row

    monkeypatch.setattr(engine, "measure_all", wrong)
    code, _, err = tune(device, CALL, "--quick", "-o", path)
    assert code == 1 and "off by one" in err
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = {c.route for c in read_table(path).rows[CALL].candidates}
    assert kept == allowed_routes(select_device(device)[1], CALL) - {"register"}
