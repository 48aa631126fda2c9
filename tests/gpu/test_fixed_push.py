"""Launches whose pipelines have their push constants as constants: a case of each route of each op, and a network."""

from types import SimpleNamespace

import numpy as np
import pytest
from route_kit import draw, facts_of
from shipped import EXHAUSTIVE

from vkconv import bench, functional
from vkconv.bench.engine import measure
from vkconv.bench.sampling import BenchOptions
from vkconv.check import expect, on_route, run_call
from vkconv.check.calls import hold
from vkconv.functional import cache
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan import bound, fixing
from vkconv.plan.planner import Options
from vkconv.route import judge
from vkconv.session import Session

# One in three; make exhaustive has all.
ROUTES = [(op.name, route.name) for op in OPS.values() for route in op.routes][:: 1 if EXHAUSTIVE else 3]


@pytest.mark.share(1)
@pytest.mark.parametrize(("op", "route"), ROUTES, ids=["-".join(way) for way in ROUTES])
def test_a_case_of_each_route_agrees_with_the_reference(op, route, device, monkeypatch):
    monkeypatch.setattr(bound, "FOLD_LIMIT_BYTES", 0)
    chosen = next(r for r in OPS[op].routes if r.name == route)
    calls = map(parse_call, OPS[op].cases, [OPS] * len(OPS[op].cases))
    call = next((c for c in calls if judge(chosen, c, facts_of(device)).allowed), None)
    if call is None:
        pytest.skip(f"no case of {op} goes by {route} here")
    wanted = expect(call, draw(call, "integers"))
    ran = run_call(call, wanted.arrays, device=device, route=route, replays=2, fixed_push=True)
    checked = hold(call, ran, on_route(call, wanted, ran.route))
    assert checked.ok, checked.problem


def test_the_same_bytes_come_of_pushed_numbers(device):
    call = parse_call("conv2d:x=2x7x13x17,w=14x7x3x3,s=2x1,p=1,b=14,act=silu", OPS)
    arrays = draw(call, "normals")
    pushed, fixed = (run_call(call, arrays, device=device, fixed_push=way) for way in (False, True))
    assert pushed.outputs[0][0].tobytes() == fixed.outputs[0][0].tobytes()


def test_calls_of_two_shapes_in_one_session_have_pipelines_of_their_own(device):
    node = Node("sum", "reduce", ("x",), ("y",), {"op": "sum", "axes": (1,), "keepdims": False})
    graph = Graph({"x": TensorSpec(("n", 5))}, ("y",), (node,))
    with Session(graph, device, options=Options(fixed_push=True)) as session:
        for n in (3, 70, 3):
            x = np.arange(n * 5, dtype=np.float32).reshape(n, 5)
            (y,) = session.run({"x": x}).values()
            assert y.tolist() == x.sum(axis=1).tolist()


def test_plans_of_many_shapes_share_pipelines_that_push(device, monkeypatch):
    monkeypatch.setattr(fixing, "FIXED_PUSH", SimpleNamespace(of=lambda _: True))
    node = Node("sum", "reduce", ("x",), ("y",), {"op": "sum", "axes": (1,), "keepdims": False})
    graph = Graph({"x": TensorSpec(("n", 5))}, ("y",), (node,))
    for asked, fixed in ((None, [True] * 4 + [False] * 2), (True, [True] * 6), (False, [False] * 6)):
        found = []
        with Session(graph, device, options=Options(fixed_push=asked)) as session:
            for n in (3, 70, 4, 5, 6, 7):
                x = np.arange(n * 5, dtype=np.float32).reshape(n, 5)
                (y,) = session.run({"x": x}).values()
                assert y.tolist() == x.sum(axis=1).tolist()
                found.append(fixing.fixed_launches(session.plan) > 0)
        assert found == fixed


def test_shapes_that_had_constants_have_them_again(device, monkeypatch):
    monkeypatch.setattr(fixing, "FIXED_PUSH", SimpleNamespace(of=lambda _: True))
    node = Node("sum", "reduce", ("x",), ("y",), {"op": "sum", "axes": (1,), "keepdims": False})
    graph = Graph({"x": TensorSpec(("n", 5))}, ("y",), (node,))
    with Session(graph, device, max_plans=1) as session:
        found = []
        for n in (3, 70, 3, 70, 3, 4, 5, 6, 3):
            session.run({"x": np.ones((n, 5), np.float32)})
            found.append(fixing.fixed_launches(session.plan) > 0)
        assert found == [True] * 7 + [False, True]


def test_functions_of_arrays_push(device, monkeypatch):
    monkeypatch.setattr(fixing, "FIXED_PUSH", SimpleNamespace(of=lambda _: True))
    fixed = []
    made = cache.Session
    monkeypatch.setattr(
        cache, "Session", lambda *args, **given: fixed.append(given["options"].fixed_push) or made(*args, **given)
    )
    x = np.arange(77, dtype=np.float32).reshape(7, 11)
    assert functional.relu(x - 40, device=device).tolist() == np.maximum(x - 40, 0).tolist()
    assert fixed == [False]


def test_bench_measures_either_way(device):
    call = parse_call("add:a=64,b=64", OPS)
    for way in (False, True):
        row = measure(call, device=device, options=BenchOptions(0.001, 3, 0, fixed_push=way))
        assert row.ok and row.us_median > 0
    header = bench.run("add:a=64,b=64", device=device, options=BenchOptions(0.001, 3, 0, fixed_push=True)).header
    assert header.options["fixed_push"] is True
