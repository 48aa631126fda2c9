"""The pass that makes one node of a matrix product or convolution and a reduction of its result, where that pays.

What pays is the fused op's own rule: the pass asks which route the op would take, and leaves the two nodes where that
is the one that runs them in turn.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vkconv.call import Call
from vkconv.core import GraphError, RouteError
from vkconv.ops.core.activation import ACTIVATIONS
from vkconv.ops.core.base import Attrs, Op
from vkconv.ops.core.requirements import ON_CPU, ON_GPU
from vkconv.ops.fused.gemm_reduce_routes import AXES, axes_named
from vkconv.ops.fused.in_turn import UNFUSED
from vkconv.ops.fused.reduction import FUNCTIONS
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.rewrite import Rewriter
from vkconv.route import Choice

# By the op that makes the result: the one that also reduces it.
_FUSED = {"matmul": "gemm_reduce", "conv2d": "conv_reduce"}
_POOLED = {"avg": "mean", "max": "max"}
_BETWEEN = (*ACTIVATIONS, "prelu", "add", "sub", "mul", "div")

# The route that the planner takes for a call at a node of that name.
Chooser = Callable[[Call, str], Choice]


def is_given(given: Mapping[str, str | None], node: BoundNode) -> bool:
    """Whether the caller sets a route or parameters of a node, or of its op: it stays as it is then."""
    return any(key == f"node:{node.name}" or key.partition(":")[0] == node.call.op for key in given)


class ReduceFusion:
    """One run of the pass over a graph; ``remarks`` says by node what was made one and what was not, and why.

    ``given`` has the routes and parameters that the caller sets, by op or node as `Options` names them, with the name
    of the route or None. A node for which there are some stays as it is, but where a product is given a route that only
    the fused op has, the two become one.
    """

    def __init__(self, choose: Chooser, given: Mapping[str, str | None]) -> None:
        self.remarks: dict[str, str] = {}
        self._choose = choose
        self._given = given

    def run(self, graph: BoundGraph, ops: Mapping[str, Op]) -> BoundGraph:
        """The graph after the pass: the same outputs under the same names."""
        return Rewriter(graph, ops).run(self._rule)

    def _rule(self, rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
        reduction = reduction_of(node)
        if reduction is None:
            return None
        value = node.reads["x"]
        maker = rewriter.maker(value, *_FUSED)
        if maker is None:
            self._say_what_lies_between(rewriter, node, value)
            return None
        axes, attrs = reduction
        made, why_not = self._fused(rewriter, node, maker, axes, attrs)
        if made is None:
            self._refuse(node, maker, why_not)
            return None
        self.remarks[made.name] = f"{node.call.op} {node.name!r} is part of it"
        return made

    def _fused(
        self, rewriter: Rewriter, node: BoundNode, maker: BoundNode, axes: tuple[int, ...], attrs: Attrs
    ) -> tuple[BoundNode | None, str]:
        value = node.reads["x"]
        rank = len(rewriter.specs[value].dims)
        if not rewriter.only_reader(value):
            also = "is an output of the graph too" if value in rewriter.graph.outputs else "has other readers"
            return None, f"its result {also}"
        if maker.call.op == "conv2d":
            attrs = {**attrs, "axes": axes}
        else:
            named = next((name for name in AXES if axes_named(name, rank) == axes), None)
            if named is None:
                return None, f"only all of its batches can be reduced with it, and here it is {_numbers(axes)}"
            attrs = {**attrs, "axis": named}
        op = _FUSED[maker.call.op]
        asked = self._given.get(f"node:{maker.name}") in [route.name for route in rewriter.ops[op].routes]
        if is_given(self._given, node) or (is_given(self._given, maker) and not asked):
            return None, "the route or parameters of one of them are set"
        try:
            made = rewriter.node(node, op, maker.reads, {**maker.call.attrs, **attrs}, maker.name)
            choice = self._choose(made.call, made.name)
        except (GraphError, RouteError) as error:
            return None, str(error)
        return (made, "") if asked or choice.route.name != UNFUSED else (None, _why_unfused(choice))

    def _say_what_lies_between(self, rewriter: Rewriter, node: BoundNode, value: str) -> None:
        between = rewriter.maker(value, *_BETWEEN)
        for operand in ("x", "a", "b") if between else ():
            assert between is not None
            maker = rewriter.maker(between.reads.get(operand, ""), *_FUSED)
            if maker is not None:
                self._refuse(node, maker, f"{between} lies between them, which it does not apply before it stores")
                return

    def _refuse(self, node: BoundNode, maker: BoundNode, why_not: str) -> None:
        self.remarks[node.name] = f"not in one with {maker}: {why_not}"


def reduction_of(node: BoundNode) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """The axes that a node reduces and the attributes that say how; None where it does something else."""
    call = node.call
    if call.op == "reduce" and call["op"] in FUNCTIONS:
        return call["axes"], {"op": call["op"], "keepdims": call["keepdims"]}
    if call.op != "pool2d" or call["kind"] not in _POOLED:
        return None
    if call["kernel"] == call.shape("x")[2:] and not any(call["padding"]):
        return (2, 3), {"op": _POOLED[call["kind"]], "keepdims": True}
    return None


def _why_unfused(choice: Choice) -> str:
    """What kept the fused routes of a call from being taken, apart from the kind of device that they are for."""
    if choice.by != "rule":
        return f"{UNFUSED} is {choice.by}"
    of_kind = (ON_GPU.text, ON_CPU.text)
    refused = {v.refused_by: v for v in reversed(choice.verdicts) if v.refused_by and v.refused_by not in of_kind}
    reasons = [f"{v.route.name} needs {v.refused_by}, and here it is {v.actual}" for v in refused.values()]
    return "; ".join(reversed(reasons))


def _numbers(axes: tuple[int, ...]) -> str:
    return " and ".join(map(str, axes))
