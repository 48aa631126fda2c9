"""Tuning on the device: what is measured is kept, and the next plan takes it and says so."""

import json
import warnings

import numpy as np
import pytest
from cli_kit import vkconv

import vkconv as package
from vkconv.backend.runtime import select_device
from vkconv.bench import engine
from vkconv.graph.vkc import save_vkc
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.measured import read_table, table_path, write_table
from vkconv.plan.planner import Options
from vkconv.plan.single import call_graph
from vkconv.route import Candidate, judge

CALL = "matmul:a=13x9,b=9x11,dtype=f32"
pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("VKCONV_MEASURED", raising=False)


def tune(device, *arguments):
    return vkconv("tune", *arguments, "--device", device, "--min-time", 0.001)


def allowed_routes(facts):
    call = parse_call(CALL, OPS)
    return {r.name for r in OPS[call.op].routes if judge(r, call, facts).allowed}


def test_a_new_plan_takes_what_was_measured(device, tmp_path):
    code, out, err = tune(device, CALL)
    assert code == 0 and "1 of 1 calls measured" in out and "[1/1]" in err
    facts = select_device(device)[1]
    path = table_path(facts)
    assert str(path) in out
    row = read_table(path).rows[CALL]
    routes = allowed_routes(facts)
    assert {c.route for c in row.candidates} == routes and len(row.candidates) > len(routes)
    data = json.loads(vkconv("explain", CALL, "--device", device, "--json")[1])
    best = row.candidates[0]
    assert (data["by"], data["route"], data["params"]) == ("measured", best.route, best.params)
    assert f"measured table: {best.us_median:.4g} us" in vkconv("explain", CALL, "--device", device)[1]
    assert "1 of 1 calls judged" in vkconv("tune", "--report", "--device", device)[1]


def test_a_session_runs_what_the_table_says_and_gives_the_same(device, monkeypatch):
    facts, call = select_device(device)[1], parse_call(CALL, OPS)
    assert tune(device, CALL, "--quick")[0] == 0
    path = table_path(facts)
    # A row that no clock would give: it is the table that is believed, not a rule that happens to agree.
    slow = Candidate("register", {"rows": 1, "columns": 1, "local": 32, "swap": 1}, 0.5, 0.0)
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


def test_interrupted_tuning_keeps_what_is_done(device, tmp_path, monkeypatch):
    path, measure = tmp_path / "mine.json", engine.measure

    def interrupted(call, route, **options):
        if call.op == "abs":
            raise KeyboardInterrupt
        return measure(call, route, **options)

    monkeypatch.setattr(engine, "measure", interrupted)
    code, out, _ = tune(device, "relu:x=3x5", "abs:x=3x5", "--quick", "-o", path)
    assert code == 130 and "1 of 2 calls measured (interrupted)" in out
    assert list(read_table(path).rows) == ["relu:x=3x5,dtype=f32"]


def test_a_wrong_route_is_never_in_a_table(device, tmp_path, monkeypatch):
    path, measure = tmp_path / "mine.json", engine.measure

    def wrong(call, route, **options):
        row = measure(call, route, **options)
        if route == "register":
            row.check, row.us_median, row.why = "FAILED", 0.001, "off by one"
        return row

    monkeypatch.setattr(engine, "measure", wrong)
    code, _, err = tune(device, CALL, "--quick", "-o", path)
    assert code == 1 and "off by one" in err
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = {c.route for c in read_table(path).rows[CALL].candidates}
    assert kept == allowed_routes(select_device(device)[1]) - {"register"}
