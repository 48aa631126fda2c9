"""Planted faults are found by `vkconv check`, located to their node, and told by what they look like."""

import faults
import numpy as np
import pytest
from graph_kit import make_graph

from vkconv.backend.runtime import select_device
from vkconv.check.model import check_model
from vkconv.check.repeat import repeat_model
from vkconv.check.sweep import sweep_call
from vkconv.ops import OPS
from vkconv.ops.calls import parse_call
from vkconv.plan.planner import Options

pytestmark = pytest.mark.gpu

SHAPE = (1, 3, 10, 301)
OPTIONS = Options(routes={"conv2d": "direct", "softmax": "workgroup"}, passes=False)


def model():
    """A convolution with padding on two sides, a tail for everybody, a maximum, rows."""
    random = np.random.default_rng(3)
    return make_graph(
        {"x": SHAPE},
        [
            ("neg", "x", "n"),
            ("conv2d", "n w b", "c", {"padding": (2, 0, 0, 0)}),
            ("relu", "c", "r"),
            ("pool2d", "r", "p", {"kind": "max", "kernel": (2, 2), "stride": (2, 2)}),
            ("softmax", "p", "s", {"axis": 3}),
            ("abs", "s", "y"),
        ],
        "y",
        {
            "w": random.standard_normal((5, 3, 3, 2), np.float32),
            "b": random.standard_normal(5, np.float32),
        },
    )


def inputs(scale=1.0):
    return {"x": scale * np.random.default_rng(4).standard_normal(SHAPE, np.float32)}


FAULTS = {
    "missing barrier": (faults.MISSING_BARRIER, "softmax_s", ""),
    "wrong local size": (faults.WRONG_LOCAL_SIZE, "neg_n", "in memory order"),
    "wrong tail": (faults.WRONG_TAIL, "neg_n", "the last 3 columns of the last row of the last channel"),
    "swapped padding": (faults.SWAPPED_PADDING, "conv2d_c", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_at_its_node(name, tmp_path, monkeypatch, device):
    fault, node, words = FAULTS[name]
    with faults.planted(fault, tmp_path, monkeypatch, device):
        checked = check_model(model(), inputs(), device=device, options=OPTIONS)
    assert checked.first is not None
    assert checked.first.node == node
    assert checked.first.cause == "alone"
    assert words in checked.first.alone.pattern
    assert node in checked.problem
    stem = fault.stem
    wrong = {n.node for n in checked.nodes if n.cause}
    same_shader = {n.node for n in checked.nodes if n.route != "alias" and _uses(n, stem)}
    assert wrong <= same_shader  # nodes after it are right, given what they read


def _uses(node, stem):
    route = next(r for r in OPS[node.call.op].routes if r.name == node.route)
    return any(shader.stem == stem for shader in route.shaders)


def test_stop_at_first_ends_there(tmp_path, monkeypatch, device):
    with faults.planted(faults.SWAPPED_PADDING, tmp_path, monkeypatch, device):
        checked = check_model(model(), inputs(), device=device, options=OPTIONS, stop_at_first=True)
    assert [n.node for n in checked.nodes] == ["neg_n", "conv2d_c"]
    assert not checked.complete


def test_a_maximum_that_drops_nan_is_found_where_there_is_one(tmp_path, monkeypatch, device):
    x = inputs()
    x["x"][0, 1, 8, 8] = np.nan
    with faults.planted(faults.NAN_DROPPING_MAX, tmp_path, monkeypatch, device):
        assert check_model(model(), inputs(), device=device, options=OPTIONS).first is None
        checked = check_model(model(), x, device=device, options=OPTIONS)
    assert checked.first is not None
    assert checked.first.node == "pool2d_p"
    assert "the reference nan" in checked.first.problem
    assert checked.first.run.nan == 0


def test_half_precision_that_overflows_is_found_where_it_does(tmp_path, monkeypatch, device):
    with faults.planted(faults.HALF_OVERFLOW, tmp_path, monkeypatch, device):
        checked = check_model(model(), inputs(1e5), device=device, options=OPTIONS)
    assert checked.first is not None
    assert checked.first.node == "neg_n"
    assert checked.first.alone.inf > 0
    assert "inf, the reference" in checked.first.problem


@pytest.mark.parametrize("attempt", range(3))
def test_no_false_alarm(attempt, device):
    x = np.random.default_rng(attempt).standard_normal(SHAPE, np.float32)
    for options in (OPTIONS, Options()):
        assert check_model(model(), {"x": x}, device=device, options=options).problem == ""
        assert repeat_model(model(), {"x": x}, 10, device=device, options=options).problem == ""


# ---- determinism


def test_memory_that_is_not_written_first_is_found_by_replays(tmp_path, monkeypatch, device):
    with faults.planted(faults.STALE_MEMORY, tmp_path, monkeypatch, device):
        repeated = repeat_model(model(), inputs(), 6, device=device, options=OPTIONS)
    assert repeated.first is not None
    assert repeated.first.node == "neg_n"
    assert "column 5 of row 0 of channel 0" in repeated.first.pattern
    changed = {n.node: n for n in repeated.nodes if n.distinct > 1}
    assert not changed["conv2d_c"].origin
    assert changed["conv2d_c"].problem == ""


def test_a_race_is_found_by_replays(tmp_path, monkeypatch, device):
    graph = make_graph({"x": (1, 1, 700, 701)}, [("relu", "x", "r"), ("add", "r r", "y")], "y")
    x = np.random.default_rng(0).standard_normal((1, 1, 700, 701), np.float32)
    with faults.planted(faults.RACE, tmp_path, monkeypatch, device):
        repeated = repeat_model(graph, {"x": x}, 100, device=device, options=Options(passes=False))
    assert repeated.first is not None
    assert repeated.first.node == "relu_r"
    assert repeated.first.elements == 1
    assert "the last column of the last row" in repeated.first.pattern


def test_a_sweep_tells_which_local_sizes_are_wrong(tmp_path, monkeypatch, device):
    call = parse_call("relu:x=3x1031", OPS)
    x = {"x": np.random.default_rng(5).standard_normal((3, 1031), np.float32)}
    facts = select_device(device)[1]
    with faults.planted(faults.WRONG_LOCAL_SIZE, tmp_path, monkeypatch, device):
        rows = list(sweep_call(call, x, ["local"], device=device, facts=facts, runs=3))
    by_local = {row.params["local"]: row for row in rows}
    assert len(by_local) > 2
    assert all(bool(row.problem) == (local > 32) for local, row in by_local.items())
