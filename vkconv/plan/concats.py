"""The pass that lets a concat read the concat before it in place of that one's parts.

Exporters write a dense block as a concat of all features so far at each layer: a block of L layers copies L * L / 2
parts. Nested, each concat joins the last one and one part more; where both lie in a row in memory, neither is copied.
"""

from collections.abc import Mapping

from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.rewrite import Rewriter

_FEWEST = 2  # parts of a concat that another begins with


class ConcatNesting:
    """One run of the pass over a graph."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, ...], str] = {}

    def run(self, graph: BoundGraph, ops: Mapping[str, Op]) -> BoundGraph:
        """The graph after the pass: the same outputs under the same names."""
        return Rewriter(graph, ops).run(self._rule)

    def _rule(self, rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
        if node.call.op != "concat":
            return None
        parts, axis = tuple(node.reads.values()), str(node.call["axis"])
        made = None
        for count in range(len(parts) - 1, _FEWEST - 1, -1):
            first = self._made.get((axis, *parts[:count]))
            if first is not None and rewriter.readers(first):
                reads = {f"x{i}": value for i, value in enumerate((first, *parts[count:]))}
                made = rewriter.node(node, "concat", reads, node.call.attrs)
                break
        self._made.setdefault((axis, *parts), node.writes["y"])
        return made
