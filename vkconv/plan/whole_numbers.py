"""Whole numbers that a graph computes in floats: sizes, indices and grids between a cast from integers and a cast back.
16-bit floats have whole numbers only up to 2048 (f16) or 256 (bf16), and f16 ends at 65504."""

from collections.abc import Mapping

from vkconv.core import DType
from vkconv.ops.core.base import Op
from vkconv.ops.pointwise.binary import BINARY_OPS
from vkconv.ops.pointwise.unary import UNARY_OPS
from vkconv.plan.bound import BoundGraph

# What these make of whole numbers is one, or is rounded to one; matrix products and windows are of data.
_ARITHMETIC = {op.name for op in (*UNARY_OPS, *BINARY_OPS)} | {"chain", "cumulative", "reduce", "where"}
_MOVES = {"concat", "expand", "gather", "gather_elements", "gather_nd", "pad", "slice", "split", "tile", "transpose"}
_KEEPS = _ARITHMETIC | _MOVES


def counting_nodes(graph: BoundGraph, ops: Mapping[str, Op]) -> frozenset[str]:
    """The names of the nodes that compute from casts of integers and constants alone, and whose results a cast back to
    integers needs: both casts and all that lies between them. Data may read the same results, cast to its own type."""

    def is_integer(value: str) -> bool:
        dtype = graph.specs[value].dtype
        return not dtype.is_float and dtype is not DType.BOOL

    counted: set[str] = set()
    for node in graph.nodes:
        if node.call.op == "cast":
            whole = is_integer(node.reads["x"]) or node.reads["x"] in counted
        else:
            floats = {value for value in node.reads.values() if graph.specs[value].dtype.is_float}
            own = node.call.op in _KEEPS or ops[node.call.op].alias
            whole = own and not counted.isdisjoint(floats) and floats <= counted | graph.constants.keys()
        if whole:
            counted.update(value for value in node.writes.values() if graph.specs[value].dtype.is_float)
    nodes, wanted = set[str](), set[str]()
    for node in reversed(graph.nodes):
        back = node.call.op == "cast" and is_integer(node.writes["y"])
        if back or not wanted.isdisjoint(node.writes.values()):
            sources = counted.intersection(node.reads.values())
            if sources or not back:
                nodes.add(node.name)
                wanted |= sources
    return frozenset(nodes)
