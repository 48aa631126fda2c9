"""The pass that makes one node of a matrix product or convolution and a reduction of its result, where that pays.

What pays is the fused op's own rule: the pass asks which route the op would take, and leaves the two nodes where that
is the one that runs them in turn.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from vkconv.core import GraphError, RouteError
from vkconv.ops.core.base import Attrs, Op
from vkconv.ops.core.requirements import ON_CPU, ON_GPU
from vkconv.ops.fused.gemm_reduce_routes import AXES, axes_named
from vkconv.ops.fused.in_turn import UNFUSED
from vkconv.ops.fused.reduction import FUNCTIONS
from vkconv.plan.added import Between, Finished, between, finished
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.fusion import Chooser, Fusion, is_given
from vkconv.plan.rewrite import Rewriter
from vkconv.route import Choice

# By the op that makes the result: the one that also reduces it.
_FUSED = {"matmul": "gemm_reduce", "conv2d": "conv_reduce"}
_POOLED = {"avg": "mean", "max": "max"}


class ReduceFusion(Fusion):
    """The pass: the product's node stands for both."""

    def __init__(self, choose: Chooser, given: Mapping[str, str | None]) -> None:
        super().__init__(choose, given)
        self._why_not: dict[str, str] = {}

    def run(self, graph: BoundGraph, ops: Mapping[str, Op]) -> BoundGraph:
        """The graph after the pass: the same outputs under the same names."""
        return Rewriter(self._with_more_outputs(graph, ops), ops).run(self._rule)

    def _with_more_outputs(self, graph: BoundGraph, ops: Mapping[str, Op]) -> BoundGraph:
        """The graph with one node, where a product stood, for it and its reductions, where it has two of them or is
        wanted itself too."""
        users, gone = graph.users(), set[str]()
        nodes: list[BoundNode] = []
        for node in graph.nodes:
            if node.name in gone:
                continue
            made, reductions = self._all_of(graph, ops, node, users)
            if made is not None:
                gone.update(reduction.name for reduction in reductions)
                parts = " and ".join(f"{each.call.op} {each.name!r}" for each in reductions)
                kept = ", and its product is kept" if made.call["product"] else ""
                self.remarks[made.name] = f"{parts} {'is' if len(reductions) == 1 else 'are'} part of it{kept}"
            nodes.append(made or node)
        return dataclasses.replace(graph, nodes=tuple(nodes)) if gone else graph

    def _all_of(
        self, graph: BoundGraph, ops: Mapping[str, Op], node: BoundNode, users: Mapping[str, list[BoundNode]]
    ) -> tuple[BoundNode | None, list[BoundNode]]:
        """The node that makes all that becomes of a product, and the reductions that it absorbs."""
        if node.call.op not in _FUSED:
            return None, []
        (value,) = node.writes.values()
        readers = users.get(value, [])
        reductions = _alike([reader for reader in readers if reduction_of(reader) is not None])
        wanted = len(readers) > len(reductions) or value in graph.outputs
        if not reductions or (len(reductions) == 1 and not wanted):
            return None, []
        (axes, attrs), also = reduction_of(reductions[0]) or ((), {}), ""
        if len(reductions) == 2:
            also = (reduction_of(reductions[1]) or ((), {}))[1]["op"]
        more: Attrs = {**attrs, "also": also, "product": wanted}
        made, why_not = self._made(graph, ops, node, reductions, axes, more)
        for reduction in reductions if made is None else ():
            self._why_not[reduction.name] = why_not
        return made, reductions

    def _made(
        self,
        graph: BoundGraph,
        ops: Mapping[str, Op],
        maker: BoundNode,
        reductions: list[BoundNode],
        axes: tuple[int, ...],
        attrs: Attrs,
    ) -> tuple[BoundNode | None, str]:
        """The fused node for a product and reductions of it, or why there is none."""
        (value,), op = maker.writes.values(), _FUSED[maker.call.op]
        named, why_not = _named_axes(maker, axes, len(graph.specs[value].dims))
        if why_not:
            return None, why_not
        asked = self._is_asked(maker, ops[op])
        if any(is_given(self._given, each) for each in reductions) or (is_given(self._given, maker) and not asked):
            return None, "the route or parameters of one of them are set"
        operands = dict(maker.call.operands)
        try:
            call = ops[op].call(operands, {**maker.call.attrs, **attrs, **named})
            choice = self._choose(call, maker.name)
        except (GraphError, RouteError) as error:
            return None, str(error)
        if not asked and choice.route.name == UNFUSED:
            return None, _why_unfused(choice)
        values = dict(zip(("y", "also"), (next(iter(each.writes.values())) for each in reductions), strict=False))
        writes = {**values, "product": value} if attrs["product"] else values
        return BoundNode(maker.name, call, maker.reads, {name: writes[name] for name in call.outputs}), ""

    def _rule(self, rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
        reduction = reduction_of(node)
        if reduction is None:
            return None
        ways = [(way, finished(rewriter, way)) for way in between(rewriter, node.reads["x"], *_FUSED)]
        if not ways:
            return None
        found, of = next((way for way in ways if isinstance(way[1], Finished)), ways[0])
        maker, too = found.maker, ""
        if found.steps:
            too = f"{found.last.call.op} {found.last.name!r} and "
        made, why_not = self._fused(rewriter, node, found, of, *reduction)
        if made is None:
            self._refuse(node, maker, why_not)
            return None
        self.remarks[made.name] = f"{too}{node.call.op} {node.name!r} {'are' if too else 'is'} part of it"
        return made

    def _fused(
        self,
        rewriter: Rewriter,
        node: BoundNode,
        found: Between,
        of: Finished | str,
        axes: tuple[int, ...],
        attrs: Attrs,
    ) -> tuple[BoundNode | None, str]:
        value, maker = node.reads["x"], found.maker
        rank = len(rewriter.specs[value].dims)
        if not rewriter.only_reader(value):
            also = "is an output of the graph too" if value in rewriter.graph.outputs else "has other readers"
            why_not = self._why_not.get(node.name)
            return None, f"its result {also}" + (f": {why_not}" if why_not else "")
        named, why_not = _named_axes(maker, axes, rank)
        if why_not:
            return None, why_not
        op, attrs = _FUSED[maker.call.op], {**attrs, **named}
        asked = self._is_asked(maker, rewriter.ops[op])
        others = (node, found.last) if found.steps else (node,)
        if any(is_given(self._given, each) for each in others) or (is_given(self._given, maker) and not asked):
            return None, "the route or parameters of one of them are set"
        if isinstance(of, str):
            return None, of
        try:
            made = rewriter.node(node, op, of.reads, {**of.attrs, **attrs}, maker.name)
            choice = self._choose(made.call, made.name)
        except (GraphError, RouteError) as error:
            return None, str(error)
        return (made, "") if asked or choice.route.name != UNFUSED else (None, _why_unfused(choice))

    def _refuse(self, node: BoundNode, maker: BoundNode, why_not: str) -> None:
        self.remarks[node.name] = f"not in one with {maker}: {why_not}"


def _named_axes(maker: BoundNode, axes: tuple[int, ...], rank: int) -> tuple[Attrs, str]:
    """Axes of what a node makes, of this rank, as the attribute of the op that reduces it, or why it has none."""
    if maker.call.op == "conv2d":
        return {"axes": axes}, ""
    named = next((name for name in AXES if axes_named(name, rank) == axes), None)
    if named is None:
        return {}, f"only all of its batches can be reduced with it, and here it is {_numbers(axes)}"
    return {"axis": named}, ""


def _alike(reductions: list[BoundNode]) -> list[BoundNode]:
    """The first of several reductions, and the next one by another function that reduces the same axes alike."""

    def shape(node: BoundNode) -> tuple[tuple[int, ...], bool]:
        axes, attrs = reduction_of(node) or ((), {})
        return axes, bool(attrs["keepdims"])

    def function(node: BoundNode) -> str:
        return str((reduction_of(node) or ((), {}))[1]["op"])

    if not reductions:
        return []
    one, *others = reductions
    second = (other for other in others if shape(other) == shape(one) and function(other) != function(one))
    return [one, *itertools.islice(second, 1)]


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
