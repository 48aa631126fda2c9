"""What passes share that make one node of several, where that pays: whom they ask, and what the caller sets."""

from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.rewrite import Rewriter
from vkconv.route import Choice

Chooser = Callable[[Call, str], Choice]
"""The route that the planner takes for a call at a node of that name."""


def is_given(given: Mapping[str, str | None], node: BoundNode) -> bool:
    """Whether the caller sets a route or parameters of a node, or of its op: it stays as it is then."""
    return any(key == f"node:{node.name}" or key.partition(":")[0] == node.call.op for key in given)


class Fusion:
    """One run of a pass over a graph; ``remarks`` says by node what was made one and what was not, and why.

    ``given`` has the routes and parameters that the caller sets, by op or node as `Options` names them, with the name
    of the route or None. A node for which there are some stays as it is, but where the node that the fused one stands
    for is given a route that only the fused op has, they become one.
    """

    def __init__(self, choose: Chooser, given: Mapping[str, str | None]) -> None:
        self.remarks: dict[str, str] = {}
        self._choose = choose
        self._given = given

    def run(self, graph: BoundGraph, ops: Mapping[str, Op]) -> BoundGraph:
        """The graph after the pass: the same outputs under the same names."""
        return Rewriter(graph, ops).run(self._rule)

    def _rule(self, rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
        raise NotImplementedError

    def _is_asked(self, node: BoundNode, op: Op) -> bool:
        """Whether the caller gives a node a route that only the fused op has."""
        return self._given.get(f"node:{node.name}") in [route.name for route in op.routes]
