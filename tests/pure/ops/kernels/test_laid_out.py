"""Calls in other layouts: what they are beside the same call with channels first, and what is reordered for them."""

import numpy as np
import pytest
from ops_device import device

from vkconv.core import DType, GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.laid_out import LAYOUTS
from vkconv.plan.explain import explain_call
from vkconv.plan.planner import by_published_rule
from vkconv.route import choose, judge

H200, LAVAPIPE = load_device("h200"), load_device("lavapipe")
CASES = [text for op in LAYOUTS for text in OPS[op].cases if "layout=" in text]
APART = "conv2d_backward_weight:x=3x7x6x2x5,dy=3x7x6x2x3,w_shape=2x3x1x1x5,layout=NHWGC,w_layout=GKYXC"


def apart(array, letters, full, merged, groups=None):
    """By hand: the axes of an array of these letters in the order ``full``, the two of ``merged`` made one."""
    moved = np.einsum(f"{letters}->{full}", array)
    at = full.index(merged[0]) if merged else None
    return moved if at is None else moved.reshape(*moved.shape[:at], -1, *moved.shape[at + 2 :])


def test_every_op_of_the_table_has_cases():
    assert {text.partition(":")[0] for text in CASES} == set(LAYOUTS)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_reference_is_that_of_the_same_call_with_channels_first(groups):
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((2, 5, 7, groups, 3)), rng.standard_normal((groups, 4, 3, 1, 3))
    call = parse_call(f"conv2d:x=2x5x7x{groups}x3,w={groups}x4x3x1x3,p=1x0,layout=NHWGC,w_layout=GKYXC", OPS)
    assert call["groups"] == groups and call.shape("y") == (2, 5, 7, groups, 4)
    (y,) = OPS["conv2d"].reference(call, {"x": x, "w": w})
    x_first, w_first = apart(x, "nhwgc", "ngchw", "gc"), apart(w, "gkyxc", "gkcyx", "gk")
    first = parse_call(f"conv2d:x=2x{3 * groups}x5x7,w={4 * groups}x3x3x1,p=1x0,g={groups}", OPS)
    (want,) = OPS["conv2d"].reference(first, {"x": x_first, "w": w_first})
    np.testing.assert_array_equal(apart(y, "nhwgk", "ngkhw", "gk"), want)


def test_shapes_are_those_of_the_layout():
    call = parse_call("conv2d_backward_data:dy=2x5x7x6,w=6x3x3x3,x_shape=9x13,g=2,s=2,p=1,layout=NHWC", OPS)
    assert call["x_shape"] == call.shape("dx") == (2, 9, 13, 6)
    whole = "conv2d_backward_data:dy=2x5x7x6,w=6x3x3x3,x_shape=2x9x13x6,g=2,s=2,p=1,layout=NHWC"
    assert parse_call(whole, OPS) == call


def test_a_call_in_the_default_layout_has_none_in_its_text_and_reorders_nothing():
    text = "conv2d:x=1x3x9x8,w=4x3x3x3"
    call, plain = parse_call(f"{text},layout=NCHW,w_layout=KCYX", OPS), parse_call(text, OPS)
    assert call == plain and format_call(call, OPS) == format_call(plain, OPS)
    route = choose(OPS["conv2d"].routes, call, H200).route
    assert route.reorders(call) == (0, 0) and route.build(call, H200) == route.base.build(plain, H200)


@pytest.mark.parametrize("facts", [H200, LAVAPIPE, device("mali-g57")], ids=["h200", "lavapipe", "mali-g57"])
@pytest.mark.parametrize("text", CASES)
def test_the_route_and_its_parameters_are_those_of_the_call_with_channels_first(text, facts):
    call = parse_call(text, OPS)
    routes = OPS[call.op].routes
    first = LAYOUTS[call.op].first(call)
    taken, want = choose(routes, call, facts), choose(routes, first, facts)
    assert (taken.route.name, taken.params) == (want.route.name, want.params)
    program, inside = taken.route.build(call, facts, taken.params), want.route.build(first, facts, want.params)
    before, behind = taken.route.reorders(call)
    assert len(program.steps) == before + len(inside.steps) + behind


def test_weights_that_are_constant_are_reordered_once():
    call = parse_call("conv2d:x=3x5x7x6,w=10x3x1x6,p=1x0,layout=NHWC,w_layout=KYXC", OPS)
    route = OPS["conv2d"].routes[-1]
    program = route.build(call, LAVAPIPE)
    assert route.reorders(call) == (1, 1) and program.prepack[0].buffers["x"] == "w"
    assert not {"w", "y"} & {b for step in program.steps[1:-1] for b in step.buffers.values()}


def test_what_lies_as_kernels_take_it_is_bound_where_it_is():
    call = parse_call("conv2d:x=2x1x1x6,w=5x1x1x6,layout=NHWC,w_layout=KYXC", OPS)
    for route in OPS["conv2d"].routes:
        if judge(route, call, LAVAPIPE).allowed:
            assert route.reorders(call) == (0, 0)
            program = route.build(call, LAVAPIPE)
            assert "x" in {b for step in program.steps for b in step.buffers.values()}
    in_groups = parse_call("conv2d:x=2x2x3x7x6,w=2x5x3x1x1,layout=NGCHW,w_layout=GKCYX", OPS)
    assert choose(OPS["conv2d"].routes, in_groups, LAVAPIPE).route.reorders(in_groups) == (0, 0)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_what_reorders_moves_16_bits_and_a_gradient_of_f32_is_brought_back_as_f32(dtype):
    text = f"conv2d_backward_weight:x=2x9x8x16,dy=2x9x8x32,w_shape=32x3x3x16,p=1,dtype={dtype},layout=NHWC"
    call = parse_call(f"{text},w_layout=KYXC,dw_dtype=f32", OPS)
    choice = choose(OPS[call.op].routes, call, H200)
    program = choice.route.build(call, H200, choice.params)
    forms = [step.shader.dtype for step in program.steps if step.shader.kernel.moves]
    assert forms == [DType.U16, DType.U16, DType.U32]
    assert program.scratch["x.first"] == 2 * 9 * 8 * 16 * 2 and program.scratch["dw.first"] == 32 * 9 * 16 * 4


def test_explain_shows_what_is_reordered():
    table, data = explain_call(parse_call(APART, OPS), LAVAPIPE)
    said = "reorders x to NCHW, dy to NCHW by a launch each, 15.8 KiB read and written"
    assert said in str(table) and said in data["note"] and data["dispatches"] == 3


def test_published_rules_see_the_call_with_channels_first():
    assert by_published_rule("ck", parse_call(APART, OPS), LAVAPIPE).route == "explicit_gemm"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "conv2d:x=1x3x9x8,w=4x3x3x3,layout=NHCQ",
            "layout is 'NHCQ' .did you mean 'NHWC'.*the letters N, C, H, W in any order",
        ),
        ("conv2d:x=1x3x9x8,w=4x3x3x3,layout=NHWCC", "did you mean 'NHWC'"),
        ("conv2d:x=1x3x9x8,w=4x3x3x3,layout=NHWGC", "x is 1x3x9x8; in the layout NHWGC it has 5 dimensions"),
        ("conv2d:x=1x9x8x3,w=4x3x3x2,layout=NHWC,w_layout=KYXC", "3 .*2"),
        ("conv2d:x=1x9x8x2x3,w=3x4x1x1x3,layout=NHWGC,w_layout=GKYXC", "one number, and here they are x 2, w 3"),
        ("conv2d:x=1x9x8x2x3,w=2x4x1x1x3,g=3,layout=NHWGC,w_layout=GKYXC", "here they are x 2, w 2; groups is 3"),
        (APART.replace("w_shape=2x3x1x1x5", "w_shape=6x5x1x1"), "w_shape is 6x5x1x1; in the layout GKYXC"),
    ],
)
def test_what_is_refused_says_why(text, said):
    with pytest.raises(GraphError, match=said):
        parse_call(text, OPS)
