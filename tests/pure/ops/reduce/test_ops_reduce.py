"""Reductions: how x is walked, how long ones are split, and which route is taken and why."""

import math

import pytest

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core import requirements
from vkconv.ops.core.calls import parse_call
from vkconv.ops.reduce.problem import Problem, Split, by_bands, into, whole
from vkconv.plan.explain import explain_call
from vkconv.route import choose, judge

LAVAPIPE, H200 = load_device("lavapipe"), load_device("h200")


def problem(text):
    return Problem.of(parse_call(text, OPS))


def taken(text, device):
    call = parse_call(text, OPS)
    choice = choose(OPS[call.op].routes, call, device)
    return choice.route.name, choice.params


def test_x_is_walked_as_lines():
    p = problem("reduce:x=2x3x5x8,axes=0x2x3")
    assert (p.columns, p.lines, p.run, p.planes) == (False, 2, 40, 3)
    p = problem("reduce:x=2x3x5x8,axes=0x2")
    assert (p.columns, p.lines, p.run, p.width, p.planes, p.by_vec4) == (True, 2, 5, 8, 3, True)
    assert not problem("reduce:x=5x6,axes=0").by_vec4
    p = problem("reduce:x=1x1x7,axes=0x1")
    assert (p.columns, p.width, p.lines, p.run) == (True, 7, 1, 1)
    p = problem("reduce:x=scalar")
    assert (p.columns, p.outputs, p.count, p.run) == (False, 1, 1, 1)


@pytest.mark.parametrize("text", ["reduce:x=2x3x5x8,axes=0x2x3", "reduce:x=97x6,axes=0", "reduce:x=7x1001,axes=1"])
def test_parts_cover_everything_once(text):
    p = problem(text)
    for parts in (1, 2, 3, 5, 8, 40, 1000):
        split = into(p, parts)
        lines = [min(i + split.lines, p.lines) - i for i in range(0, p.lines, split.lines)]
        runs = [min(i + split.run, p.run) - i for i in range(0, p.run, split.run)]
        assert sum(lines) * sum(runs) == p.count and min(lines + runs) > 0
        assert split.count(p) == len(lines) * len(runs) and split.of_line(p) == len(runs)
        assert p.columns or len(runs) == 1 or split.run % 4 == 0
    assert into(p, 1) == whole(p)


def test_nothing_to_reduce_is_one_part():
    p = problem("reduce:x=4x0x3,op=max,axes=1")
    assert (p.count, whole(p).count(p), into(p, 7).count(p)) == (0, 1, 1)


# The sizes that IREE's tests expect of its rule (set_split_reduction_sizes_outer_reduction.mlir).
@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("reduce:x=4096x32,axes=0", Split(1, 64)),
        ("reduce:x=4x32x512,axes=0x2", Split(1, 64)),
        ("reduce:x=1255x3x1255,axes=0x2", Split(1, 1255)),
        ("reduce:x=4x3x15,axes=0x2", None),
    ],
)
def test_the_published_rule_cuts_as_published(text, split):
    assert by_bands(problem(text))[0] == split
    call = parse_call(text, OPS)
    route = next(r for r in OPS["reduce"].routes if r.name == "split")
    parts = route.params(call, H200)["parts"][0]
    assert parts == (split.count(problem(text)) if split else 1)
    steps = route.build(call, H200).steps
    assert len(steps) == (2 if split else 1)


@pytest.mark.parametrize(
    ("text", "on_h200", "on_lavapipe"),
    [
        ("reduce:x=16384x16384,axes=1", "subgroup", "lanes"),
        ("reduce:x=16384x16384,axes=0", "two_pass", "lanes"),
        ("reduce:x=96x4000x4096,op=max,axes=1", "tree", "lanes"),
        (f"reduce:x={1 << 28},op=max", "two_pass", "lanes"),
        ("reduce:x=1000000x3,axes=1", "serial", "serial"),
        ("reduce:x=100000x5,axes=0", "two_pass", "lanes"),
        ("reduce:x=100000x24,axes=1", "clusters", "serial"),
        ("arg_reduce:x=8x50257,axis=1", "two_pass", "subgroup"),
        ("arg_reduce:x=4x128256,axis=1", "two_pass", "subgroup"),
        ("arg_reduce:x=4000x50257,axis=1", "subgroup", "subgroup"),
        ("arg_reduce:x=8x91x4096,axis=1", "tree", "serial"),
        ("arg_reduce:x=100000x10,axis=1", "serial", "serial"),
    ],
)
def test_the_route_follows_the_shape_and_the_device(text, on_h200, on_lavapipe):
    assert taken(text, H200)[0] == on_h200
    assert taken(text, LAVAPIPE)[0] == on_lavapipe


def test_a_cut_reduction_fills_the_device():
    route, params = taken("reduce:x=16384x16384,axes=0", H200)
    assert route == "two_pass" and params["parts"] * 64 >= 3.8 * 132 and params["width"] == 4
    _, params = taken(f"reduce:x={1 << 28}", H200)
    assert params["parts"] == 4 * 132
    # lavapipe ends longer loops: no part may make one.
    for text in (f"reduce:x={(1 << 24) + 1}", f"reduce:x={1 << 24}x2,op=log_sum_exp,axes=0"):
        call = parse_call(text, OPS)
        choice = choose(OPS["reduce"].routes, call, LAVAPIPE)
        steps = choice.route.build(call, LAVAPIPE).steps
        assert len(steps) > 1 and max(step.loop_iterations for step in steps) <= 65535


def test_what_is_finished_and_what_is_not():
    """Atomics that need no last step have none; maxima of floats go through integers of the same order."""
    atomic = next(r for r in OPS["reduce"].routes if r.name == "atomic")
    launches = {
        "sum": 2,
        "prod": 2,
        "max": 3,
        "mean": 3,
        "log_sum_exp": 6,
    }
    for op, count in launches.items():
        program = atomic.build(parse_call(f"reduce:x=5x100,op={op},axes=1", OPS), H200)
        assert len(program.steps) == count
        assert bool(program.scratch) is (count > 2)
    assert len(atomic.build(parse_call("reduce:x=5x100:i32,op=max,axes=1", OPS), H200).steps) == 2
    native = atomic.build(parse_call("reduce:x=5x100,axes=1", OPS), H200).steps[1].shader
    assert native.defines == (("REDUCTION_TREE", ""), ("ATOMIC_FLOAT", ""))
    columns = atomic.build(parse_call("reduce:x=100x5,axes=0", OPS), H200).steps[1]
    assert columns.shader.defines == (("ATOMIC_FLOAT", ""),) and not columns.shared_bytes
    assert not atomic.deterministic


def test_a_workgroup_of_a_row_makes_one_atomic_operation():
    atomic = next(r for r in OPS["reduce"].routes if r.name == "atomic")
    (_, added) = atomic.build(parse_call("reduce:x=5x1000,axes=1", OPS), H200, {"items": 4, "local": 64}).steps
    assert math.prod(added.groups) == 5 * 4 and added.shared_bytes == 4 * 64


def test_short_rows_share_the_lanes_of_a_subgroup():
    clusters = next(r for r in OPS["reduce"].routes if r.name == "clusters")
    (step,) = clusters.build(parse_call("reduce:x=1000x24,axes=1", OPS), H200).steps
    assert step.constants["CLUSTER"] == 8 and math.prod(step.groups) == 63 and not step.shared_bytes


@pytest.mark.parametrize(("text", "whole"), [("4x1024", True), ("4x1026", False), ("1x1026", False), ("4x3x8", True)])
def test_rows_of_whole_vec4_are_loaded_by_vec4(text, whole):
    tree = next(r for r in OPS["reduce"].routes if r.name == "tree")
    axes = "0x2" if text == "4x3x8" else "1"
    (step,) = tree.build(parse_call(f"reduce:x={text},axes={axes}", OPS), H200).steps
    assert step.constants["WHOLE"] is whole


def test_explain_says_why():
    _, data = explain_call(parse_call("reduce:x=1024x4096,axes=1", OPS), H200)
    refused = {row["route"]: row["refused_by"] for row in data["routes"]}
    assert data["route"] == "subgroup"
    assert refused["lanes"] == requirements.UNROLLS.text and "keep the device busy" in refused["two_pass"]
    _, data = explain_call(parse_call("reduce:x=1024x4096,axes=0", OPS), H200)
    refused = {row["route"]: row["refused_by"] for row in data["routes"]}
    assert data["route"] == "two_pass" and refused["subgroup"] == "the innermost dimension reduced"


def test_subgroups_need_the_innermost_dimension_and_arithmetic():
    subgroup = next(r for r in OPS["reduce"].routes if r.name == "subgroup")
    assert judge(subgroup, parse_call("reduce:x=9x99,axes=1", OPS), H200).allowed
    verdict = judge(subgroup, parse_call("reduce:x=9x99,axes=0", OPS), H200)
    assert not verdict.allowed and verdict.actual == "99 neighbours kept"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arg_reduce:x=2x0,axis=1", "axis 1 of x .* is empty"),
        ("arg_reduce:x=2x3,op=mx", "did you mean 'max'"),
        ("arg_reduce:x=2x3,axis=2", r"axis 2 is outside \[-2, 1\]"),
        ("arg_reduce:x=2x3,to=f32", "indices are i32 or i64, not 'f32'"),
        ("arg_reduce:x=2x3:bool", "x is bool; cast it to i32"),
    ],
)
def test_illegal_calls_are_named(text, message):
    with pytest.raises(GraphError, match=message):
        parse_call(text, OPS)


def test_push_blocks_are_within_what_every_device_has():
    for text in OPS["reduce"].cases:
        call = parse_call(text, OPS)
        for route in OPS["reduce"].routes:
            if judge(route, call, H200).allowed and not call.is_empty:
                assert all(step.push_size <= 128 for step in route.build(call, H200).steps)
                assert all(math.prod(step.groups) > 0 for step in route.build(call, H200).steps)
