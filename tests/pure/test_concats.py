"""Concats that begin with the parts of another one read that one: what is nested, and what it saves."""

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, make_bound, make_graph

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.plan.concats import ConcatNesting
from vkconv.plan.planner import Options, plan

H200 = load_device("h200")
INPUTS = dict.fromkeys("abcd", (1, 8, 4, 4))
ALONG = {"axis": 1}


def nested(nodes, outputs):
    """The parts of each concat after the pass, which computes the same."""
    before = make_bound(INPUTS, nodes, outputs, {})
    after = ConcatNesting().run(before, OPS)
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    return [" ".join(node.reads.values()) for node in after.nodes if node.call.op == "concat"]


def test_each_reads_the_longest_before_it():
    nodes = [("concat", "a b", "p", ALONG), ("concat", "a b c", "q", ALONG), ("concat", "a b c d", "r", ALONG)]
    assert nested(nodes, "p q r") == ["a b", "p c", "q d"]


def test_one_between_may_be_missing():
    nodes = [("concat", "a b", "p", ALONG), ("concat", "a b c d", "r", ALONG), ("concat", "a b c d a b", "s", ALONG)]
    assert nested(nodes, "p r s") == ["a b", "p c d", "r a b"]


@pytest.mark.parametrize(
    "nodes",
    [
        [("concat", "a b", "p", ALONG), ("concat", "a b c", "q", {"axis": 2})],
        [("concat", "a b", "p", ALONG), ("concat", "b a c", "q", ALONG)],
        [("concat", "b c", "p", ALONG), ("concat", "a b c", "q", ALONG)],
        [("concat", "a b c", "p", ALONG), ("concat", "a b", "q", ALONG)],
    ],
    ids=["another axis", "another order", "not at the beginning", "the longer one comes first"],
)
def test_others_stay(nodes):
    assert nested(nodes, "p q") == [node[1] for node in nodes]


def dense_block(layers, images=1):
    """A dense block as exporters write it: each layer joins the input and what all layers before it made."""
    nodes = [("concat", "x", "joined0", ALONG)]
    for layer in range(layers):
        nodes.append(("conv2d", f"joined{layer} w{layer}", f"c{layer}"))
        made = " ".join(f"c{i}" for i in range(layer + 1))
        nodes.append(("concat", f"x {made}", f"joined{layer + 1}", ALONG))
    weights = {f"w{i}": f32(8, 8 * (i + 1), 1, 1, seed=i) for i in range(layers)}
    return make_graph({"x": (images, 8, 8, 8)}, [*nodes, ("relu", f"joined{layers}", "y")], "y", weights)


@pytest.mark.parametrize(("images", "copies"), [(1, 1), (3, 10)], ids=["one image", "three images"])
def test_a_dense_block_copies_each_part_once_at_the_most(images, copies):
    made = plan(dense_block(5, images), H200, Options()).plan
    assert sum(node.dispatches for node in made.nodes if node.call.op == "concat") == copies
    without = plan(dense_block(5, images), H200, Options(skip_passes=("nest_concats",))).plan
    assert sum(node.dispatches for node in without.nodes if node.call.op == "concat") > copies
