"""Parameters of routes: legal values and their defaults, what is refused, and how options reach the nodes."""

import math
import random

import pytest
from plan_kit import LAVAPIPE, two_convs
from shipped import EXHAUSTIVE

from vkconv.cli.options import parse_params
from vkconv.core import RouteError, UsageError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.prepack import Sizes
from vkconv.plan.explain import explain_call, explain_plan, explain_plan_data
from vkconv.plan.limits import check_dispatch
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import call_graph
from vkconv.route import judge

pytestmark = pytest.mark.long

CONV = "conv2d:x=1x8x9x9,w=24x8x3x3,p=1"
DEPTHWISE = "conv2d:x=1x8x9x9,w=8x1x3x3,g=8,p=1"


def route(op, name):
    return next(r for r in OPS[op].routes if r.name == name)


def draw_setting(route, call, facts, draw):
    """A legal value for every parameter, those of inner calls with the routes that were drawn for them."""
    params = {}
    while free := [name for name in route.legal(call, facts, params) if name not in params]:
        params[free[0]] = draw.choice(route.legal(call, facts, params)[free[0]])
    return params


@pytest.mark.parametrize("device", ["lavapipe", "h200"])
@pytest.mark.parametrize("op", [op for op in OPS.values() if op.routes], ids=lambda op: op.name)
def test_every_combination_keeps_to_the_limits(op, device):
    facts, draw = load_device(device), random.Random(1)
    for text in op.cases:
        call = parse_call(text, OPS)
        if not all(spec.size for spec in call.outputs.values()):
            continue
        for r in (r for r in op.routes if judge(r, call, facts).allowed):
            legal = r.legal(call, facts)
            assert legal and all(values and len(set(values)) == len(values) for values in legal.values())
            assert r.resolve(call, facts, {}) == {name: values[0] for name, values in legal.items()}
            for params in [draw_setting(r, call, facts, draw) for _ in range(4 if EXHAUSTIVE else 1)]:
                program = r.build(call, facts, params)
                for dispatch in (*program.prepack, *program.steps):
                    check_dispatch(text, dispatch, facts)
                    assert dispatch.shader in r.forms
                    assert math.prod(dispatch.groups) >= 1


def test_every_parameter_changes_the_program():
    for text in (CONV, DEPTHWISE, "conv2d:x=1x8x90x90,w=24x8x1x1", "matmul:a=70x80,b=80x70", "add:a=999,b=999"):
        call = parse_call(text, OPS)
        for r in (r for r in OPS[call.op].routes if judge(r, call, LAVAPIPE).allowed):
            default = r.build(call, LAVAPIPE)
            for name, values in r.legal(call, LAVAPIPE).items():
                for value in values[1:]:
                    assert r.build(call, LAVAPIPE, {name: value}) != default, (text, r.name, name, value)


def test_the_rule_picks_the_default_and_tuning_sees_the_rest():
    sizes = Sizes((16, 12, 8), (24,))
    assert sizes.values(60, LAVAPIPE) == (16, 12, 8, 24)
    assert sizes.values(24, LAVAPIPE) == (12, 16, 8, 24)


def test_unknown_and_illegal_values_are_refused_with_what_is_legal():
    call, tile = parse_call(CONV, OPS), route("conv2d", "direct_tile")
    with pytest.raises(
        UsageError, match=r"'direct_tile' of conv2d has no parameter 'chanels' \(did you mean 'channels"
    ):
        tile.build(call, LAVAPIPE, {"chanels": 8})
    with pytest.raises(UsageError, match=r"cannot take channels=5 for this call .* one of 4, 8, 12, 16"):
        tile.build(call, LAVAPIPE, {"channels": 5})


def test_tiles_that_would_spill_are_not_offered():
    wide = parse_call("conv2d:x=1x8x9x99,w=24x8x3x3,p=1,s=1x4", OPS)
    assert 16 not in route("conv2d", "direct_tile").params(wide, LAVAPIPE)["columns"]
    assert 16 in route("conv2d", "direct_tile").params(parse_call(CONV, OPS), LAVAPIPE)["columns"]


# ---- options


def params_of(params):
    planned = plan(two_convs(), LAVAPIPE, Options(params=params)).plan
    return {node.name: node.params for node in planned.nodes}


def test_params_reach_the_nodes_whose_route_has_them():
    default = params_of({})
    assert (default["dense"]["columns"], default["deep"]["columns"], default["deep"]["local"]) == (4, 2, 8)
    op = params_of({"conv2d": {"local": 16, "channels": 4}})
    assert op["dense"] == {**default["dense"], "local": 16, "channels": 4}
    assert op["deep"] == {**default["deep"], "local": 16}
    both = params_of(
        {"node:deep": {"local": 32}, "conv2d:subgroup_depthwise": {"rows": 1, "local": 16}, "conv2d": {"local": 8}}
    )
    assert both["deep"] == {**default["deep"], "rows": 1, "local": 32}
    assert both["dense"] == default["dense"]


def test_params_reach_the_program():
    launch = plan(two_convs(), LAVAPIPE, Options(params={"node:dense": {"local": 32}})).plan.run
    assert [c.spec_words[0] for c in launch if getattr(c, "node", "") == "dense"] == [32]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"conv2": {"local": 8}}, "no 'conv2' here .did you mean 'conv2d'"),
        ({"conv2d:tile": {"local": 8}}, "no route 'tile' .did you mean 'direct_tile'"),
        ({"node:dens": {"local": 8}}, "no 'node:dens' here .did you mean 'node:dense'"),
        ({"conv2d": {"chanels": 8}}, "chanels:8: no node takes it; .*subgroup_tile .channels, columns, local"),
        ({"conv2d:pointwise": {"channels": 8}}, "no node takes it"),
        ({"node:deep": {"channels": 8}}, "node 'deep' .*'subgroup_depthwise' of conv2d has no parameter 'channels'"),
        ({"conv2d": {"local": 7}}, "node 'dense' .*cannot take local=7"),
    ],
)
def test_params_that_nothing_takes_are_refused(params, message):
    with pytest.raises(UsageError, match=message):
        params_of(params)


def test_a_forced_route_takes_params_and_its_must_still_holds():
    options = Options(routes={"node:dense": "direct"}, params={"conv2d:direct": {"local": 128}})
    dense = plan(two_convs(), LAVAPIPE, options).plan.nodes[0]
    assert (dense.route, dense.params) == ("direct", {"local": 128})
    with pytest.raises(RouteError, match="one input channel per group"):
        plan(two_convs(), LAVAPIPE, Options(routes={"node:dense": "depthwise"}, params={"node:dense": {"local": 16}}))


def test_explain_shows_params():
    table, data = explain_call(parse_call(CONV, OPS), LAVAPIPE, Options(params={"conv2d": {"columns": 4}}))
    assert "subgroup_tile channels=24 columns=4 local=8" in table.title
    assert data["params"] == {"channels": 24, "columns": 4, "local": 8}
    routes = {row["route"]: row["params"] for row in data["routes"]}
    assert routes["direct_tile"]["channels"] == [12, 16, 8, 4] and routes["depthwise"] == {}
    planned = plan(two_convs(), LAVAPIPE).plan
    assert explain_plan(planned).rows[1]["route"].startswith("subgroup_depthwise rows=3 columns=2")
    assert explain_plan_data(planned)["nodes"][1]["params"]["rows"] == 3


def test_param_texts():
    assert parse_params(None) == {}
    assert parse_params(
        ["conv2d=local:64,columns:8,matmul:register=rows:4", "conv2d=local:32", "node:a=b:c=rows:2", "x/y=tile:8x4"]
    ) == {
        "conv2d": {"local": 32, "columns": 8},
        "matmul:register": {"rows": 4},
        "node:a=b:c": {"rows": 2},
        "x/y": {"tile": "8x4"},
    }
    for text in (
        "",
        "conv2d",
        "local:64",
        "conv2d=local",
        "conv2d=local:x/y",
        "conv2d=:8",
        "conv2d=local:-8",
        "=local:8",
    ):
        with pytest.raises(UsageError, match="KEY=NAME:VALUE"):
            parse_params([text])


def test_params_that_map_no_names_are_refused():
    graph = call_graph(parse_call(CONV, OPS))
    with pytest.raises(UsageError, match="param conv2d: None maps no names to values"):
        plan(graph, LAVAPIPE, Options(params={"conv2d": None}))
