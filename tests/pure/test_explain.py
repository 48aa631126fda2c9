"""Explanations as data: the keys that tools read, every refusal with its value, one row per node."""

from flow import commands
from test_plan import CONV, LAVAPIPE, SMALL_GRAPHS

from vkconv.ops import OPS
from vkconv.plan.commands import Barrier
from vkconv.plan.explain import explain_call, explain_plan, explain_plan_data
from vkconv.plan.planner import Options, plan


def test_explaining_a_call_gives_its_route_and_every_refusal():
    call = next(n.call for n in plan(CONV, LAVAPIPE).plan.nodes)
    table, data = explain_call(call, LAVAPIPE)
    assert data["schema"] == "vkconv.explain/1"
    assert data["route"] == "direct_tile" and data["by"] == "rule"
    assert [r["route"] for r in data["routes"]] == [r.name for r in OPS["conv2d"].routes]
    refused = {r["route"]: (r["allowed"], r["refused_by"], r["actual"]) for r in data["routes"]}
    assert refused["pointwise"] == (False, "a 1x1 kernel", "3x3")
    assert set(data) == {
        *("schema", "call", "device", "route", "params", "by", "measured", "dispatches", "prepack_dispatches"),
        *("packed_bytes", "scratch_bytes", "routes"),
    }
    assert "direct_tile" in table.title
    assert explain_call(call, LAVAPIPE, Options(routes={"conv2d": "direct"}))[1]["by"] == "forced"


def test_explaining_a_plan_has_a_row_per_node_and_the_memory():
    result = plan(SMALL_GRAPHS["residual"], LAVAPIPE).plan
    data, table = explain_plan_data(result), explain_plan(result)
    assert (
        [row["node"] for row in data["nodes"]] == [n.name for n in result.nodes] == [row["node"] for row in table.rows]
    )
    assert set(data["nodes"][0]) == {"node", "call", "route", "params", "by", "measured", "dispatches", "why"}
    assert data["barriers"] == len(commands(result.run, Barrier)) > 0
    assert data["memory"]["activations_bytes"] == result.memory.activations_bytes
