"""Explanations as data: the keys that tools read, every refusal with its value, one row per node."""

import json

import pytest
from cli_kit import vkconv
from flow import commands
from plan_kit import CONV, LAVAPIPE, SMALL_GRAPHS

from vkconv.core import LimitError
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.commands import Barrier
from vkconv.plan.explain import explain_call, explain_plan, explain_plan_data
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import graph_of_shapes


def test_explaining_a_call_gives_its_route_and_every_refusal():
    call = next(n.call for n in plan(CONV, LAVAPIPE).plan.nodes)
    table, data = explain_call(call, LAVAPIPE)
    assert data["schema"] == "vkconv.explain/1"
    assert data["route"] == "subgroup_tile" and data["by"] == "rule"
    assert [r["route"] for r in data["routes"]] == [r.name for r in OPS["conv2d"].routes]
    refused = {r["route"]: (r["allowed"], r["refused_by"], r["actual"]) for r in data["routes"]}
    assert refused["pointwise"] == (False, "a 1x1 kernel", "3x3")
    assert set(data) == {
        *("schema", "call", "device", "route", "params", "by", "note", "measured", "dispatches"),
        *("measured_ignored", "prepack_dispatches", "shaders", "packed_bytes", "scratch_bytes", "routes", "inner"),
        *("fixed_push", "read"),
    }
    assert "subgroup_tile" in table.title
    assert explain_call(call, LAVAPIPE, Options(routes={"conv2d": "direct"}))[1]["by"] == "forced"


@pytest.mark.parametrize(
    ("text", "route", "said"),
    [
        ("reshape:x=2x6,shape=3x4", "alias", "the input's bytes"),
        ("relu:x=0x4", "empty", "no output has an element"),
        ("matmul:a=0x8,b=8x3", "empty", "no output has an element"),
        ("conv2d:x=0x8x8x8,w=16x8x3x3,p=1", "empty", "no output has an element"),
        ("conv2d:x=1x8x8x8,w=0x8x3x3", "empty", "no output has an element"),
        ("conv_transpose2d:x=0x8x4x4,w=8x16x3x3,s=2", "empty", "no output has an element"),
        ("conv2d_backward_data:dy=0x8x5x5,w=8x4x3x3,x_shape=10x10,s=2,p=1", "empty", "no output has an element"),
        ("shape:x=2x3", "constant", "computed when the graph is planned"),
        ("range:start=0,limit=5", "constant", "computed when the graph is planned"),
    ],
)
def test_explaining_a_call_that_no_route_runs(text, route, said):
    call = parse_call(text, OPS)
    table, data = explain_call(call, LAVAPIPE)
    assert (data["route"], data["by"], data["params"], data["dispatches"]) == (route, None, {}, 0)
    assert f": {route} (nothing runs: " in table.title and said in table.title
    assert [r["route"] for r in data["routes"]] == [r.name for r in OPS[call.op].routes]
    assert "yes" not in [row["taken"] for row in table.rows]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("clip:x=3,a=-1e300,b=6", r"the number -1e\+300, and shaders take f32"),
        ("relu:x=1048576x1024", r"4294967296 bytes.*2147483648 bytes"),
        ("conv2d:x=1x1x8x8,w=1x1x1x1,s=8589934592x1", "the number 8589934592"),
    ],
)
def test_explaining_a_call_that_does_not_fit_says_so(text, match):
    with pytest.raises(LimitError, match=match):
        explain_call(parse_call(text, OPS), LAVAPIPE)


def test_weights_of_an_explained_call_are_prepacked_once():
    call = parse_call("conv2d:x=1x16x7x37,w=19x16x3x3,p=1", OPS)
    assert {n: c.shape for n, c in graph_of_shapes(call).constants.items()} == {"w": (19, 16, 3, 3)}
    assert explain_call(call, LAVAPIPE)[1]["prepack_dispatches"] == 1


def test_explaining_a_plan_has_a_row_per_node_and_the_memory():
    result = plan(SMALL_GRAPHS["residual"], LAVAPIPE).plan
    data, table = explain_plan_data(result), explain_plan(result)
    assert (
        [row["node"] for row in data["nodes"]] == [n.name for n in result.nodes] == [row["node"] for row in table.rows]
    )
    assert set(data["nodes"][0]) == {"node", "call", "route", "params", "by", "note", "measured", "dispatches", "why"}
    assert data["barriers"] == len(commands(result.run, Barrier)) > 0
    assert data["memory"]["activations_bytes"] == result.memory.activations_bytes


def test_explaining_a_plan_tells_what_parameters_come_to():
    text = "conv2d_backward_weight:x=9x4x30x30,dy=9x4x30x30,w_shape=4x4x3x3,p=1"
    options = Options(routes={"node:call": "two_stage"}, params={"node:call": {"split_k": 3}})
    result = plan(graph_of_shapes(parse_call(text, OPS)), LAVAPIPE, options).plan
    (node,), (row,) = explain_plan_data(result)["nodes"], explain_plan(result).rows
    assert node["note"].startswith("3 equal slices: 3 asked for; 1.69 KiB scratch; rows_")
    assert row["by"] == f"forced; {node['note']}"


@pytest.mark.parametrize(
    "text", ["add:a=3:u8,b=3:u8", "concat:x0=3x4:bool,x1=3x4:bool,axis=0", "reduce:x=3x4:i8,axes=1"]
)
def test_a_call_in_wider_integers_is_explained_by_its_own_node(text):
    """Not by the cast before it."""
    call = parse_call(text, OPS)
    table, data = explain_call(call, LAVAPIPE)
    assert data["call"].startswith(text.partition(",")[0]) and "in i32: no kernel of it has" in data["note"]
    assert {row["route"] for row in data["routes"]} == {route.name for route in OPS[call.op].routes}
    assert data["route"] in {row["route"] for row in data["routes"] if row["allowed"]} and table.rows


@pytest.mark.parametrize(
    ("words", "dtype"), [("f16", "f16"), ("f16,matmul=bf16", "bf16"), ("f16,node:call=f32", "f32"), ("exp=f16", "f32")]
)
def test_a_call_is_explained_in_the_type_of_an_option(words, dtype):
    code, out, _ = vkconv("explain", "matmul:a=7x13,b=13x5", "--dtype", words, "-d", "mali-g715", "--json")
    assert code == 0 and json.loads(out)["call"] == f"matmul:a=7x13,b=13x5,dtype={dtype}"


def test_a_type_of_an_op_that_is_not_there_is_refused():
    code, _, err = vkconv("explain", "matmul:a=7x13,b=13x5", "--dtype", "matmull=f16", "-d", "mali-g715")
    assert code == 2 and "there is no 'matmull' here (did you mean 'matmul'?)" in err
