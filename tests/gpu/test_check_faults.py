"""Planted faults are found by `vkconv check`, located to their node, and told by what they look like."""

import dataclasses
import json

import faults
import numpy as np
import pytest
from graph_kit import make_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import Theme, random_graph
from run_graphs import drawn as drawn_for

from vkconv import session
from vkconv.backend.runtime import select_device
from vkconv.check.conformance import checks, conform
from vkconv.check.model import check_model
from vkconv.check.repeat import repeat_model
from vkconv.check.report import model_data, model_table
from vkconv.check.sweep import sweep_call
from vkconv.core import DType
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan import lowering, memory
from vkconv.plan.commands import Launch
from vkconv.plan.planner import Options, plan

pytestmark = pytest.mark.gpu

SHAPE = (1, 3, 10, 301)
OPTIONS = Options(
    {"conv2d": "direct", "pool2d": "window", "softmax": "workgroup"},
    {"softmax": {"tree": 1, "local": 128}},  # several subgroups
    passes=False,
)


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


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.booleans(), st.sampled_from([None, "mali-g57", "adreno-618"]))
def test_no_false_alarm_on_random_graphs(device, rng, passes, limits):
    """Aliases, empty values, outputs that are inputs or constants, several outputs: all of it is checked or passed."""
    other = None if limits is None else load_device(limits)
    graph, exact = random_graph(rng, Theme(rng))
    arrays = drawn_for(graph, exact, seed=4)
    options = Options(passes=passes)
    checked = check_model(graph, arrays, device=device, options=options, limits=other)
    assert checked.problem == ""
    assert json.dumps(model_data(checked), allow_nan=False)
    assert str(model_table(checked))
    assert repeat_model(graph, arrays, 3, device=device, options=options, limits=other).problem == ""


# ---- faults that no kernel has by itself


def test_a_node_that_runs_too_early_is_wrong_in_the_run_only(monkeypatch, device):
    """The maximum before the values it reads are there: alone it is right."""

    def too_early(*args):
        planned = plan(*args)
        run = list(planned.plan.run)
        nodes = [c.node if isinstance(c, Launch) else "" for c in run]
        if "pool2d_p" in nodes and "relu_r" in nodes:
            early, late = nodes.index("relu_r"), nodes.index("pool2d_p")
            run[early], run[late] = run[late], run[early]
        return dataclasses.replace(planned, plan=dataclasses.replace(planned.plan, run=tuple(run)))

    monkeypatch.setattr(session, "plan", too_early)
    checked = check_model(model(), inputs(), device=device, options=OPTIONS)
    assert checked.first is not None
    assert checked.first.node == "pool2d_p"
    assert checked.first.cause == "in the run"
    assert "right alone, wrong in the run" in checked.problem
    assert [n.node for n in checked.nodes if n.cause] == ["pool2d_p"]


def test_values_that_share_memory_while_both_are_alive_are_told(monkeypatch, device):
    def overlapping(blocks, alignment, most):
        layout = memory.lay_out(blocks, alignment, most)
        if len(blocks) < 4 or len({(block.first, block.last) for block in blocks}) == 1:
            return layout  # of a node alone, or of the run where nothing is shared
        places = {name: dataclasses.replace(place, offset=0) for name, place in layout.places.items()}
        return dataclasses.replace(layout, places=places)

    graph = make_graph({"x": (64, 64)}, [("neg", "x", "a"), ("exp", "a", "b"), ("add", "a b", "y")], "y")
    x = {"x": np.random.default_rng(2).standard_normal((64, 64), np.float32)}
    options = Options(passes=False, staging=True)  # so that the output is among them
    assert check_model(graph, x, device=device, options=options).problem == ""
    monkeypatch.setattr(lowering, "lay_out", overlapping)
    checked = check_model(graph, x, device=device, options=options)
    assert checked.first is None
    assert checked.shared == ("y",)
    assert "differs when values share memory" in checked.problem


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


@pytest.mark.alone  # the others run lavapipe without threads of its own, which races need
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


def test_nodes_that_the_plan_fused_are_checked_as_it_has_them(device):
    nodes = [("matmul", "x w", "a"), ("reduce", "a", "r", {"op": "sum", "axes": (1,)}), ("relu", "r", "y")]
    graph = make_graph({"x": (300, 20)}, nodes, "y", {"w": np.ones((20, 40), np.float32)})
    given = {"x": np.random.default_rng(1).standard_normal((300, 20), np.float32)}
    options = Options(routes={"gemm_reduce": "fused_partials"})
    checked = check_model(graph, given, device=device, options=options)
    assert "gemm_reduce" in {node.call.op for node in checked.nodes}
    assert checked.complete and checked.first is None
    repeated = repeat_model(graph, given, 3, device=device, options=options)
    assert repeated.first is None and not repeated.shared


# ---- a whole device

CONFORMANCE_FAULTS = {
    "missing barrier": (faults.MISSING_BARRIER, "softmax", "workgroup", "with tree = 1: y["),
    "wrong local size": (faults.WRONG_LOCAL_SIZE, "neg", "elementwise", " = 1: y["),
    "wrong tail": (faults.WRONG_TAIL, "neg", "elementwise", "y[2, 64] is nan"),
    "swapped padding": (faults.SWAPPED_PADDING, "conv2d", "direct", "elements are off by more"),
    "maximum that drops NaN": (faults.NAN_DROPPING_MAX, "pool2d", "window", "with NaN, infinities and zeros: y["),
    "race": (faults.RACE, "neg", "elementwise", "1 of 201 elements"),
    "stale memory": (faults.STALE_MEMORY, "neg", "elementwise", "y differs between two replays"),
    "half precision": (faults.HALF_OVERFLOW, "neg", "elementwise", "elements are off by more"),
}


@pytest.mark.parametrize("name", CONFORMANCE_FAULTS)
def test_the_check_of_a_device_finds_a_planted_fault_by_its_cases(name, tmp_path, monkeypatch, device):
    fault, op, route, words = CONFORMANCE_FAULTS[name]
    facts = select_device(device)[1]
    with faults.planted(fault, tmp_path, monkeypatch, device):
        mine = [check for check in checks(facts, [op], [DType.F32]) if check.route == route]
        rows = (conform(check, device) for check in mine)
        failed = next(row for row in rows if row.status == "FAILED")
    assert words in failed.why
    assert f"--route {op}={route}" in failed.command()
    assert ("--param" in failed.command()) == ("=" in words)
