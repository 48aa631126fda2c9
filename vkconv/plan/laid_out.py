"""Graphs of nodes in layouts of their own: what such a node reorders becomes transposes around it.

A transpose of a graph can meet another one, where a launch inside of a route cannot; and no pass needs to know of
layouts. A graph of one node is a call, whose route reorders.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from vkconv.call import Call
from vkconv.core import Array
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.ops.kernels.layout import Layout
from vkconv.ops.kernels.op_layouts import Layouts
from vkconv.plan.bound import BoundGraph, BoundNode, fresh


def spell_layouts(graph: BoundGraph, ops: Mapping[str, Op], layouts: Mapping[str, Layouts]) -> BoundGraph:
    """The graph with transposes around its nodes of other layouts, unless it is one of these alone."""
    apart = [n for n in graph.nodes if n.call.op in layouts and layouts[n.call.op].first(n.call) is not n.call]
    if not apart or len(graph.nodes) == 1:
        return graph
    spelling = _Spelling(ops, dict(graph.constants), dict(graph.specs), set(graph.specs))
    for node in graph.nodes:
        if node in apart:
            spelling.spell(node, layouts[node.call.op])
        else:
            spelling.nodes.append(node)
    made = dataclasses.replace(graph, nodes=tuple(spelling.nodes), constants=spelling.constants, specs=spelling.specs)
    return made.pruned()


@dataclasses.dataclass
class _Spelling:
    ops: Mapping[str, Op]
    constants: dict[str, Array]
    specs: dict[str, TensorSpec]
    taken: set[str]
    nodes: list[BoundNode] = dataclasses.field(default_factory=list)

    def spell(self, node: BoundNode, layouts: Layouts) -> None:
        call = layouts.first(node.call)
        reads, writes = dict(node.reads), dict(node.writes)
        for name, value in node.reads.items():
            layout = layouts.of(name, node.call.attrs)
            if layout is not None and not layout.is_first:
                reads[name] = self._to_first(node, name, value, layout, call)
        behind = []
        for name, value in node.writes.items():
            layout = layouts.of(name, node.call.attrs)
            if layout is not None and not layout.is_first:
                writes[name] = self._value(f"{value}/first", call.outputs[name])
                behind.append((name, value, layout))
        self.nodes.append(BoundNode(node.name, call, reads, writes))
        for name, value, layout in behind:
            self._to_here(node, name, writes[name], value, layout)

    def _to_first(self, node: BoundNode, name: str, value: str, layout: Layout, call: Call) -> str:
        if value in self.constants:
            constant = self._value(f"{value}/first", TensorSpec(call.shape(name), self.specs[value].dtype))
            self.constants[constant] = np.ascontiguousarray(layout.to_first(self.constants[value]))
            return constant
        for op, attrs in layout.steps_to_first(node.call.shape(name)):
            value = self._node(f"{node.name}/{name}/{op}", op, value, attrs)
        return value

    def _to_here(self, node: BoundNode, name: str, made: str, value: str, layout: Layout) -> None:
        *others, (op, attrs) = layout.steps_to_here(node.call.shape(name))
        for first, own in others:
            made = self._node(f"{node.name}/{name}/{first} back", first, made, own)
        self._node(f"{node.name}/{name}/{op} back", op, made, attrs, value)

    def _node(self, name: str, op: str, x: str, attrs: Mapping[str, AttrValue], y: str = "") -> str:
        call = self.ops[op].call({"x": self.specs[x]}, attrs)
        (output,) = call.outputs
        made = y or self._value(name, call.outputs[output])
        self.nodes.append(BoundNode(name, call, {"x": x}, {output: made}))
        return made

    def _value(self, stem: str, spec: TensorSpec) -> str:
        name = fresh(stem, self.taken)
        self.specs[name] = spec
        return name
