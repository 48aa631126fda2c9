"""Calls inside routes: chosen as any other call, forced, measured, explained and swept by their paths."""

import dataclasses

import pytest

from vkconv.bench.tune import settings
from vkconv.combinations import every_setting, inner_routes
from vkconv.core import DType, UsageError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.plan.explain import explain_call
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import graph_of_shapes
from vkconv.route import Candidate, choose, judge, nested

LAVAPIPE, H200 = load_device("lavapipe"), load_device("h200")
CALL = "conv_reduce:x=1x16x7x7,w=32x16x1x1,op=mean"
UNFUSED = {"conv_reduce": "unfused"}


def parsed(text):
    return parse_call(text, OPS)


def planned(text, device=LAVAPIPE, **options):
    return plan(graph_of_shapes(parsed(text)), device, Options(passes=False, **options)).plan.nodes[0]


def unfused(text, device=LAVAPIPE):
    call = parsed(text)
    route = next(route for route in OPS[call.op].routes if route.name == "unfused")
    return route, call, route.inner(call, device, {})


@pytest.mark.parametrize("device", [LAVAPIPE, H200], ids=["lavapipe", "h200"])
@pytest.mark.parametrize("text", [CALL, f"{CALL},dtype=f16", "gemm_reduce:a=64x96,b=96x80,axis=m"])
def test_an_inner_call_takes_what_it_would_take_alone(text, device):
    node = planned(text, device, routes=dict.fromkeys(("conv_reduce", "gemm_reduce"), "unfused"))
    _, _, subs = unfused(text, device)
    assert node.choice.inner.keys() == subs.keys() and len(subs) == 2
    for name, sub in subs.items():
        alone = choose(OPS[sub.call.op].routes, sub.call, device)
        assert (node.params[name], nested(node.params, name)) == (alone.route.name, dict(alone.params))
        assert (node.choice.inner[name].by, node.choice.by) == ("rule", "forced")


def test_an_inner_call_is_in_the_type_of_the_outer_one():
    for dtype in (DType.F16, DType.BF16):
        _, _, subs = unfused(f"{CALL},dtype={dtype}")
        specs = [spec for sub in subs.values() for spec in sub.call.specs.values()]
        assert {spec.dtype for spec in specs} == {dtype}


@pytest.mark.parametrize("key", ["conv_reduce", "node:call"])
def test_a_route_inside_is_forced_by_its_path(key):
    node = planned(CALL, routes={**UNFUSED, f"{key}/conv2d": "direct"}, params={f"{key}/conv2d": {"local": 32}})
    assert node.params["conv2d"] == "direct" and node.params["conv2d/local"] == 32
    assert node.choice.inner["conv2d"].by == "forced" and node.choice.inner["reduce"].by == "rule"
    assert str(node.choice).startswith("unfused (conv2d: direct local=32) (reduce: ")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"routes": {**UNFUSED, "conv_reduce/conv2d": "winograd"}}, "cannot take conv2d=winograd.*one of direct"),
        ({"routes": {**UNFUSED, "conv_reduce/conv2x": "direct"}}, "no node has such a call inside it.*unfused"),
        ({"routes": {"conv_reduce": "fused_lanes", "conv_reduce/conv2d": "direct"}}, "no node has such a call inside"),
        ({"routes": UNFUSED, "params": {"conv_reduce/conv2d": {"local": 7}}}, "cannot take conv2d/local=7"),
        ({"routes": UNFUSED, "params": {"conv_reduce/conv2d": {"locl": 8}}}, "no node has such a call inside"),
        ({"routes": {"conv_reducer/conv2d": "direct"}}, "there is no 'conv_reducer/conv2d' here"),
    ],
)
def test_what_cannot_be_had_inside_is_refused_with_what_can(options, match):
    with pytest.raises(UsageError, match=match):
        planned(CALL, **options)


def row(route, us, **params):
    return Candidate(route, {name.replace("__", "/"): value for name, value in params.items()}, us, 0.1)


def test_a_measured_table_is_followed_inside():
    _, _, subs = unfused(CALL)
    measured = {format_call(subs["conv2d"].call, OPS): (row("direct", 1.0, local=16),)}
    node = planned(CALL, routes=UNFUSED, measured=measured)
    assert (node.params["conv2d"], node.params["conv2d/local"]) == ("direct", 16)
    assert node.choice.inner["conv2d"].by == "measured"


def test_a_row_of_the_outer_call_has_the_route_inside():
    route, call, _ = unfused(CALL)
    wanted = route.resolve(call, LAVAPIPE, {"conv2d": "direct", "reduce": "tree"})
    known = row("unfused", 2.0), Candidate("unfused", wanted, 3.0, 0.1), row("unfused", 1.0, conv2d="gone")
    node = planned(CALL, measured={format_call(call, OPS): known})
    assert (node.choice.by, node.params) == ("measured", wanted)
    assert {inner.by for inner in node.choice.inner.values()} == {"measured"}


def test_explain_shows_the_tree():
    options = Options(routes={**UNFUSED, "conv_reduce/conv2d": "direct"})
    table, data = explain_call(parsed(CALL), LAVAPIPE, options)
    taken = {cells["route"] for cells in table.rows if cells["taken"] == "yes"}
    assert taken == {"unfused", "conv2d/direct", f"reduce/{data['inner']['reduce']['route']}"}
    inner = data["inner"]["conv2d"]
    assert (inner["route"], inner["by"], inner["call"]) == (
        "direct",
        "forced",
        "conv2d:x=1x16x7x7,w=32x16x1x1,dtype=f32",
    )
    assert {entry["route"] for entry in inner["routes"]} >= {"direct", "winograd", "pointwise"}


def test_a_route_is_refused_where_nothing_can_run_inside_it():
    """By the requirement of the one route inside, or of each of them."""
    call = parsed("conv2d_backward_data:dy=1x8x9x9,w=8x8x7x7,x_shape=1x8x9x9,p=3")
    routes = {route.name: route for route in OPS["conv2d_backward_data"].routes}
    verdict = judge(routes["flipped_winograd"], call, LAVAPIPE)
    assert (verdict.allowed, verdict.refused_by, verdict.actual) == (False, "a 3x3 or 5x5 kernel", "7x7")

    def two(call, device, params):
        (sub,) = routes["flipped_winograd"].inner(call, device, params).values()
        return {"conv2d": dataclasses.replace(sub, routes=(*sub.routes, *sub.routes))}

    verdict = judge(dataclasses.replace(routes["flipped_winograd"], inner=two), call, LAVAPIPE)
    assert (verdict.allowed, verdict.refused_by) == (False, "a route of conv2d for its conv2d")
    assert verdict.actual == "; ".join(["winograd needs a 3x3 or 5x5 kernel (here 7x7)"] * 2)


def test_every_route_inside_is_walked_once():
    route, call, subs = unfused(CALL)
    ways = list(inner_routes(route, call, LAVAPIPE))
    legal = route.legal(call, LAVAPIPE)
    assert ways[0] == {} and len(ways) == 1 + sum(len(legal[name]) - 1 for name in subs)
    assert all(route.build(call, LAVAPIPE, way).steps for way in ways)


def test_settings_follow_the_route_inside():
    route, call, _ = unfused(CALL)
    settings = list(every_setting(route, call, LAVAPIPE, ("conv2d", "conv2d/local")))
    assert settings[0] == route.resolve(call, LAVAPIPE, {})
    assert {s["conv2d"] for s in settings} == set(route.legal(call, LAVAPIPE)["conv2d"])
    direct = [s["conv2d/local"] for s in settings if s["conv2d"] == "direct"]
    assert sorted(direct) == [8, 16, 32, 64, 128, 256]


def test_what_hangs_on_a_route_goes_with_it():
    route, call, _ = unfused(CALL)
    direct = route.changed(call, LAVAPIPE, route.resolve(call, LAVAPIPE, {}), {"conv2d": "direct"})
    assert direct == route.resolve(call, LAVAPIPE, {"conv2d": "direct"})


def test_what_a_changed_parameter_rules_out_has_its_default():
    call = parse_call("conv2d:x=1x3x224x224,w=96x3x4x4,s=4", OPS)
    route = next(route for route in OPS["conv2d"].routes if route.name == "space_to_depth")
    default = route.resolve(call, H200, {})
    assert (default["block"], default["conv2d/vec4_columns"]) == ("4x4", 1)
    changed = route.changed(call, H200, default, {"block": "2x2"})
    assert changed["block"] == "2x2" and "conv2d/vec4_columns" not in changed
    assert route.build(call, H200, changed).steps
    assert settings(route, call, H200)
