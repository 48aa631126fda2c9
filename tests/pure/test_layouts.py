"""Layout assignment: what each operation lets through, what stays, and that nothing computes anything else."""

import dataclasses

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, made_up_device, make_bound, make_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from vkconv.device import Target, target_of
from vkconv.device.numbers import Number
from vkconv.ops import OPS
from vkconv.plan.layouts import assign_layouts, transposing_us
from vkconv.plan.planner import Options, plan, rewritten

TARGET = target_of(made_up_device("lavapipe"))
LAST, FIRST = {"perm": (0, 2, 3, 1)}, {"perm": (0, 3, 1, 2)}
IN = ("transpose", "x", "t", FIRST)
X = {"x": (2, 5, 4, 3)}  # channels last
CONSTANTS = {
    "w": f32(4, 3, 3, 3, seed=1),
    "w4": f32(4, 4, 1, 1, seed=2),
    "channels": f32(4, seed=3),
    "map": f32(5, 4, 1, seed=5),
    "full": f32(2, 5, 4, 4, seed=6),
    "two": np.array(2, np.float32),
}
OUT = ("transpose", "m", "y", FIRST)


def last(node):
    """A node in channels last between a convolution and a transpose to channels first."""
    return [IN, ("conv2d", "t w", "c", {"padding": (1,)}), ("transpose", "c", "h", LAST), node, OUT]


# Nodes on h, which is channels last, that make m: ops afterwards.
MOVED = {
    "function": (last(("relu", "h", "m")), "relu"),
    "function with bounds": (last(("clip", "h", "m", {"a": -1.0, "b": 0.5})), "clip"),
    "constant along the channels": (last(("add", "h channels", "m")), "add"),
    "constant along the image": (last(("mul", "map h", "m")), "mul"),
    "constant of all dimensions": (last(("sub", "full h", "m")), "sub"),
    "scalar": (last(("div", "h two", "m")), "div"),
    "itself": (last(("mul", "h h", "m")), "mul"),
    "slope": (last(("prelu", "h channels", "m")), "prelu"),
    "softmax over the channels": (last(("softmax", "h", "m", {"axis": -1})), "softmax"),
    "softmax over rows": (last(("softmax", "h", "m", {"axis": 1})), "softmax"),
    "zeros around the image": (last(("pad", "h", "m", {"pads": (0, 1, 2, 0, 0, 3, 0, 1)})), "pad"),
    "channels cut": (
        last(("slice", "h", "m", {"starts": (1,), "ends": (3,), "axes": (3,), "steps": (1,)})),
        "slice",
    ),
    "mean over the image": (last(("reduce", "h", "m", {"op": "mean", "axes": (1, 2)})), "reduce"),
    "largest channel": (last(("reduce", "h", "m", {"op": "max", "axes": (3,)})), "reduce"),
    "concat of channels": (last(("concat", "h full", "m", {"axis": 3})), "concat"),
}


def bound_of(nodes, outputs="y", inputs=X):
    return make_bound(inputs, nodes, outputs, CONSTANTS)


def ops_of(graph):
    return " ".join(node.call.op for node in graph.nodes)


def assert_same(before, after, seed=3):
    arrays = draw(before.inputs, seed)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", MOVED.values(), ids=MOVED)
def test_a_transpose_moves_through(case):
    before = bound_of(case[0])
    after, remarks = assign_layouts(before, OPS, TARGET)
    assert ops_of(after) == f"transpose conv2d {case[1]} identity"
    assert after.outputs == before.outputs
    moved = next(node.name for node in before.nodes if "m" in node.writes.values())
    assert remarks[moved].startswith("in the layout before the transpose 0 2 3 1 of its operands; transposes of the ")
    assert_same(before, after)


def test_a_split_lets_all_its_parts_through():
    split = ("split", "h", "p q", {"axis": 3, "sizes": (1, 3)})
    nodes = [*last(split)[:-1], ("transpose", "p", "y", FIRST), ("transpose", "q", "z", FIRST)]
    before = bound_of(nodes, "y z")
    after, _ = assign_layouts(before, OPS, TARGET)
    assert ops_of(after) == "transpose conv2d split identity identity"
    assert_same(before, after)


def test_dimensions_that_a_reduction_takes_out_leave_the_permutation():
    nodes = [
        IN,
        ("relu", "t", "r"),
        ("transpose", "r", "h", LAST),
        ("reduce", "h", "y", {"axes": (1,), "keepdims": False}),
    ]
    before = bound_of(nodes)
    after, _ = assign_layouts(before, OPS, TARGET)
    assert ops_of(after) == "relu reduce"
    assert_same(before, after)
    transposed = [("reduce", "t", "m", {"axes": (2,), "keepdims": False}), ("transpose", "m", "y", {"perm": (0, 2, 1)})]
    before = bound_of([IN, *transposed])
    after, _ = assign_layouts(before, OPS, TARGET)
    assert ops_of(after) == "reduce identity"
    assert_same(before, after)


CONVOLUTIONS = [
    ("transpose", "x", "t1", FIRST),
    ("conv2d", "t1 w", "c1", {"padding": (1,)}),
    ("transpose", "c1", "n1", LAST),
    ("add", "n1 channels", "b1"),
    ("relu", "b1", "r1"),
    ("transpose", "r1", "t2", FIRST),
    ("conv2d", "t2 w4", "c2"),
    ("transpose", "c2", "n2", LAST),
    ("add", "n2 r1", "s"),
    ("relu", "s", "r2"),
    ("reduce", "r2", "y", {"op": "mean", "axes": (1, 2), "keepdims": False}),
]


def test_a_network_with_channels_last_has_one_transpose_and_the_usual_fusions():
    before = bound_of(CONVOLUTIONS)
    after, _ = assign_layouts(before, OPS, TARGET)
    assert ops_of(after) == "transpose conv2d add relu conv2d add relu reduce identity"
    assert_same(before, after)
    optimized, _ = rewritten(before, made_up_device("lavapipe"), Options())
    assert ops_of(optimized) == "transpose conv2d conv_reduce identity"
    assert_same(before, optimized)


def test_the_plan_says_what_was_moved():
    graph = make_graph(X, [*last(("softmax", "h", "m", {"axis": -1}))], "y", CONSTANTS)
    (node,) = (n for n in plan(graph, made_up_device("lavapipe")).plan.nodes if n.call.op == "softmax")
    said = "in the layout before the transpose 0 2 3 1 of its operands; transposes of the graph take an estimated"
    assert node.remark == f"{said} 61 us, as it was 183"


KEPT = {
    "nothing to gain": [IN, ("relu", "t", "y")],
    "a transpose at the end": [("relu", "x", "r"), ("transpose", "r", "y", FIRST)],
    "what needs the layout": [IN, ("conv2d", "t w", "y")],
    "another value that has no transpose": [IN, ("add", "t z", "a"), ("conv2d", "a w", "y")],
    "a part of another value that has no transpose": [
        IN,
        ("slice", "z", "part", {"starts": (0,), "ends": (1,), "axes": (0,)}),
        ("reshape", "part", "flat", {"shape": (3, 5, 4)}),
        ("add", "t flat", "a"),
        ("transpose", "a", "y", LAST),
    ],
    "a concat with what has no transpose": [
        IN,
        ("concat", "t z", "a", {"axis": 1}),
        ("transpose", "a", "y", LAST),
    ],
}


def test_the_other_operand_of_a_sum_is_put_into_its_layout_where_fewer_elements_move():
    nodes = [IN, ("add", "z t", "a"), ("mul", "a z", "b"), ("transpose", "b", "y", LAST)]
    before = bound_of(nodes, inputs={**X, "z": (2, 3, 5, 4)})
    after, _ = assign_layouts(before, OPS, TARGET)
    assert ops_of(after) == "transpose add mul identity"
    assert_same(before, after)


def blocks(count):
    """Blocks as ConvNeXt has them: a convolution of channels in front, a product of channels at the end, a sum."""
    nodes, x = [("conv2d", "x w", "s0", {"padding": (1,)})], "s0"
    for i in range(count):
        nodes += [
            ("conv2d", f"{x} deep", f"d{i}", {"groups": 4, "padding": (1,)}),
            ("transpose", f"d{i}", f"l{i}", LAST),
            ("matmul", f"l{i} square", f"m{i}"),
            ("transpose", f"m{i}", f"f{i}", FIRST),
            ("mul", f"f{i} scale", f"p{i}"),
            ("add", f"p{i} {x}", f"s{i + 1}"),
        ]
        x = f"s{i + 1}"
    nodes += [("transpose", x, "last", LAST), ("layer_norm", "last channels channels", "y")]
    constants = {**CONSTANTS, "deep": f32(4, 1, 3, 3), "square": f32(4, 4), "scale": f32(4, 1, 1, seed=7)}
    return make_bound({"x": (2, 3, 5, 4)}, nodes, "y", constants)


def test_sums_of_shortcuts_are_part_of_the_products_before_them():
    before = blocks(3)
    after, _ = rewritten(before, made_up_device("lavapipe"), Options())
    first, next_one = "conv2d conv2d transpose transpose matmul", "transpose conv2d transpose matmul"
    assert ops_of(after) == f"{first} {next_one} {next_one} layer_norm"
    assert sum("residual" in node.reads for node in after.nodes) == 3
    for want, got in zip(*(evaluate(graph, draw(before.inputs)) for graph in (before, after)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nodes", KEPT.values(), ids=KEPT)
def test_graphs_that_would_not_move_less_are_kept(nodes):
    before = bound_of(nodes, inputs={**X, "z": (2, 3, 5, 4)})
    after, remarks = assign_layouts(before, OPS, TARGET)
    assert after is before and not remarks


def with_numbers(**numbers: float) -> Target:
    said = {name: Number(value, "assumed", "a test") for name, value in numbers.items()}
    return dataclasses.replace(TARGET, numbers={**TARGET.numbers, **said})


def test_two_small_copies_stand_for_a_large_one_where_launches_cost_less_than_what_it_moves():
    parts = [{"starts": (at,), "ends": (at + 4,), "axes": (3,), "steps": (1,)} for at in (0, 8)]
    cut = [("slice", "t", "a", parts[0]), ("slice", "t", "b", parts[1])]
    nodes = [IN, *cut, ("conv2d", "a w", "y"), ("conv2d", "b w", "z")]
    before = bound_of(nodes, "y z", {"x": (2, 5, 400, 3)})
    nbytes = 2 * 4 * 2 * 5 * 400 * 3
    dear, cheap = with_numbers(launch_us=100, bandwidth_gbs=100), with_numbers(launch_us=0.01, bandwidth_gbs=1)
    assert transposing_us(before, dear) == pytest.approx(100 + nbytes / 1e5)
    assert assign_layouts(before, OPS, dear) == (before, {})
    after, remarks = assign_layouts(before, OPS, cheap)
    assert ops_of(after) == "slice slice transpose conv2d transpose conv2d" and len(remarks) == 2
    assert_same(before, after)


PERMS = [(0, 2, 3, 1), (0, 3, 1, 2), (3, 1, 0, 2), (0, 1, 3, 2), (0, 1, 2, 3)]


@st.composite
def graphs(draw):
    """Operations and permutations in any order on values of four dimensions, each of the last few read again."""
    values, nodes = {"x": (2, 3, 4, 5)}, []
    for i in range(draw(st.integers(2, 10))):
        source = draw(st.sampled_from(list(values)[-3:]))
        shape, axis, y = values[source], draw(st.integers(0, 3)), f"v{i}"
        kind = draw(
            st.sampled_from(["transpose"] * 4 + ["tanh", "add", "both", "softmax", "pad", "sum", "concat", "slice"])
        )
        if kind == "transpose":
            perm = draw(st.sampled_from(PERMS))
            nodes.append(("transpose", source, y, {"perm": perm}))
            shape = tuple(shape[p] for p in perm)
        elif kind == "add":
            nodes.append(("add", f"{source} one{axis}", y))
        elif kind == "both":
            partner = draw(st.sampled_from([v for v in values if values[v] == shape]))
            nodes.append(("sub", f"{source} {partner}", y))
        elif kind == "pad":
            pads = [0] * 8
            pads[axis], pads[4 + (axis + 1) % 4] = 1, 2
            nodes.append(("pad", source, y, {"pads": tuple(pads), "value": 0.5}))
            shape = tuple(d + pads[k] + pads[k + 4] for k, d in enumerate(shape))
        elif kind == "sum":
            nodes.append(("reduce", source, y, {"op": "sum", "axes": (axis,)}))
            shape = (*shape[:axis], 1, *shape[axis + 1 :])
        elif kind == "concat":
            nodes.append(("concat", f"{source} {source}", y, {"axis": axis}))
            shape = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
        elif kind == "slice":
            nodes.append(("slice", source, y, {"starts": (0,), "ends": (1,), "axes": (axis,)}))
            shape = (*shape[:axis], 1, *shape[axis + 1 :])
        else:
            nodes.append((kind, source, y, {"axis": axis} if kind == "softmax" else {}))
        values[y] = shape
    outputs = dict.fromkeys([list(values)[-1], draw(st.sampled_from(list(values)))])
    ones = {f"one{k}": f32(*(1,) * k, 1, *(1,) * (3 - k), seed=k) for k in range(4)}
    return make_bound({"x": (2, 3, 4, 5)}, nodes, " ".join(outputs), ones)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(graphs())
def test_any_graph_computes_the_same_and_moves_no_more(before):
    after, _ = assign_layouts(before, OPS, TARGET)
    assert transposing_us(after, TARGET) <= transposing_us(before, TARGET)
    assert_same(before, after)


def laid_out_convolutions(layout, shape, w, w4, w_layout=""):
    """Two convolutions in a layout, relu between, and their graph after its passes."""
    own = {"layout": layout, **({"w_layout": w_layout} if w_layout else {})}
    nodes = [("conv2d", "x w", "c", {"padding": (1,), **own}), ("relu", "c", "r"), ("conv2d", "r w4", "y", own)]
    before = make_bound({"x": shape}, nodes, "y", {"w": w, "w4": w4})
    return before, rewritten(before, made_up_device("lavapipe"), Options())[0]


def test_neighbours_in_one_layout_meet():
    before, after = laid_out_convolutions("NHWC", (2, 5, 4, 3), CONSTANTS["w"], CONSTANTS["w4"])
    assert ops_of(after) == "transpose conv2d conv2d transpose"
    assert_same(before, after)


def test_groups_apart_are_spelled_with_their_weights_turned_when_it_is_planned():
    before, after = laid_out_convolutions("NHWGC", (2, 5, 4, 2, 3), f32(2, 4, 3, 3, 3), f32(2, 5, 1, 1, 4), "GKYXC")
    assert ops_of(after).split().count("conv2d") == 2 and before.outputs == after.outputs
    assert not any("layout" in node.call.attrs for node in after.nodes)
    assert_same(before, after)


def test_a_call_alone_keeps_its_layout():
    nodes = [("conv2d", "x w", "y", {"layout": "NHWC"})]
    before = make_bound({"x": (2, 5, 4, 3)}, nodes, "y", {"w": CONSTANTS["w"]})
    (node,) = rewritten(before, made_up_device("lavapipe"), Options())[0].nodes
    assert node.call["layout"] == "NHWC"
    half = Options(dtype="f16")
    assert "conv2d" in ops_of(rewritten(before, made_up_device("h200"), half)[0])
