"""The graph checks itself when it is made."""

import numpy as np
import pytest

from vkconv.core import GraphError
from vkconv.graph import Graph, Node, TensorSpec

X = {"x": TensorSpec(("n", 3))}


def relu(name, source, target):
    return Node(name, "relu", (source,), (target,))


def test_a_graph_lists_its_symbols_in_order():
    graph = Graph({"a": TensorSpec(("n", 3, "w")), "b": TensorSpec(("n", "h"))}, ("a",), ())
    assert graph.symbols == ("n", "w", "h")
    assert not graph.is_static


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ([relu("r", "y", "z")], ("z",), "relu node 'r' reads 'y', which nothing before it makes"),
        ([relu("r", "x", "x")], ("x",), "relu node 'r' writes 'x', which already exists"),
        ([relu("r", "x", "y"), relu("r", "y", "z")], ("z",), "two nodes are named 'r'"),
        ([relu("r", "x", "logits")], ("logit",), r"output 'logit' is made by no node \(did you mean 'logits'\?\)"),
        ([relu("b", "y", "z"), relu("a", "x", "y")], ("z",), "relu node 'b' reads 'y'"),
    ],
)
def test_contradictions_are_named(nodes, outputs, message):
    with pytest.raises(GraphError, match=message):
        Graph(X, outputs, tuple(nodes))


def test_an_input_cannot_be_a_constant_too():
    with pytest.raises(GraphError, match="'x' is both an input and a constant"):
        Graph(X, ("x",), (), {"x": np.zeros(1, np.float32)})


def test_a_negative_dimension_is_refused():
    with pytest.raises(GraphError, match="input 'x' is 2x-4, and a dimension is not negative"):
        Graph({"x": TensorSpec((2, -4))}, ("x",), ())


def test_unbound_dimensions_have_no_size():
    with pytest.raises(GraphError, match=r"\[n, 3\] has unbound dimensions"):
        _ = X["x"].size
