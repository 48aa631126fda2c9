"""Where a graph is cut: what has a size that depends on values comes after what finds the size out."""

import numpy as np
import pytest
from graph_kit import draw, make_graph, run_stages

from vkconv.core import DType
from vkconv.graph import TensorSpec
from vkconv.ops import OPS
from vkconv.plan.bound import value_inputs
from vkconv.plan.stages import cut_stages

I64 = DType.I64
FIRST = {"starts": (0,), "axes": (1,)}
PLACES = [("nonzero", "x", "p n"), ("slice", "p - n", "q", FIRST)]


def ops_of(stages):
    return [[node.op for node in stage.nodes] for stage in stages]


def test_a_graph_of_known_sizes_is_one_stage():
    graph = make_graph({"x": (2, 3)}, [("shape", "x", "s"), ("relu", "x", "r"), ("reshape", "r s", "y")], "y")
    (stage,) = cut_stages(graph, OPS)
    assert stage.nodes == graph.nodes and stage.outputs == ("y",) and not stage.steered_by


def test_an_input_that_steers_a_graph_needs_no_stage():
    graph = make_graph({"x": (2, 3), "n": TensorSpec((1,), I64)}, [("slice", "x - n", "y", FIRST)], "y")
    assert len(cut_stages(graph, OPS)) == 1


def test_what_follows_a_count_is_another_stage():
    graph = make_graph({"x": (2, 3)}, [("relu", "x", "r"), *PLACES, ("neg", "r", "z"), ("neg", "q", "y")], "y z")
    first, second = cut_stages(graph, OPS)
    assert ops_of((first, second)) == [["relu", "nonzero", "neg"], ["slice", "neg"]]
    assert first.inputs == ("x",) and first.outputs == ("p", "n", "z")
    assert second.inputs == ("p", "n") and second.steered_by == ("n",) and second.outputs == ("y",)
    x = draw(graph.inputs)
    x["x"][0, 1] = 0
    y, z = run_stages(graph, x)
    np.testing.assert_array_equal(y, -np.array(np.nonzero(x["x"])))
    np.testing.assert_array_equal(z, -np.maximum(x["x"], 0))


def test_counts_of_what_was_counted_take_a_stage_each():
    """The odd ones among the columns of what is not zero; shapes of later stages steer within them."""
    nodes = [
        *PLACES,
        ("bit_and", "q one", "b"),
        ("nonzero", "b", "p2 n2"),
        ("slice", "p2 - n2", "q2", FIRST),
        ("shape", "q2", "s"),
        ("add", "s s", "t"),
        ("constant_of_shape", "t", "y", {"dtype": "f32"}),
    ]
    graph = make_graph({"x": (3, 5)}, nodes, "y q2", {"one": np.ones(1, np.int64)})
    stages = cut_stages(graph, OPS)
    assert [len(ops) for ops in ops_of(stages)] == [1, 3, 4] and stages[1].steered_by == ("n",)
    x = draw(graph.inputs)
    x["x"][0, :2] = 0
    odd = np.array(np.nonzero(np.array(np.nonzero(x["x"])) & 1))
    y, q2 = run_stages(graph, x)
    np.testing.assert_array_equal(q2, odd)
    assert y.shape == (4, 2 * odd.shape[1])


def test_whatever_a_run_computes_can_steer():
    """A size from the largest element of a matrix: no op that counts, and no input that is read when it is planned."""
    nodes = [
        ("reduce", "x", "m", {"op": "max", "axes": (0, 1), "keepdims": False}),
        ("cast", "m", "k", {"to": "i64"}),
        ("topk", "x k", "y i"),
    ]
    graph = make_graph({"x": (4, 5)}, nodes, "y")
    assert ops_of(cut_stages(graph, OPS)) == [["reduce", "cast"], ["topk"]]
    x = np.arange(20, dtype=np.float32).reshape(4, 5) % 4
    np.testing.assert_array_equal(run_stages(graph, {"x": x})[0], -np.sort(-x, 1)[:, :3])


def test_one_dimension_that_is_counted_does_not_steer():
    """The count stays on the device, also where the host could compute it from an input of one dimension."""
    graph = make_graph({"x": (7,)}, PLACES, "q")
    assert value_inputs(graph, OPS) == () and len(cut_stages(graph, OPS)) == 2


def test_outputs_that_no_stage_makes_and_inputs_that_none_reads_are_the_firsts():
    graph = make_graph({"x": (2, 3), "u": (4,)}, PLACES, "x c q", {"c": np.ones(2, np.float32)})
    first, second = cut_stages(graph, OPS)
    assert first.inputs == ("x", "u") and first.outputs == ("x", "c", "p", "n") and second.outputs == ("q",)
    x = draw(graph.inputs)
    got = run_stages(graph, x)
    np.testing.assert_array_equal(got[0], x["x"])
    assert got[1].tolist() == [1, 1]


@pytest.mark.parametrize("depth", [1, 40])
def test_values_pass_stages_that_do_not_read_them(depth):
    nodes, last = [], "x"
    for i in range(depth):
        nodes += [("nonzero", last, f"p{i} n{i}"), ("slice", f"p{i} - n{i}", f"q{i}", FIRST)]
        last = f"q{i}"
    graph = make_graph({"x": (2, 2)}, [("relu", "x", "r"), *nodes, ("gather", f"r {last}", "y")], "y")
    stages = cut_stages(graph, OPS)
    assert len(stages) == depth + 1 and stages[0].outputs == ("r", "p0", "n0") and "r" in stages[-1].inputs
    assert all("r" not in stage.inputs for stage in stages[:-1])
