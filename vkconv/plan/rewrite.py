"""Tools for passes: what a rewrite may ask of a bound graph, and how it replaces nodes."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from vkconv.core import Array, DType
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode, fresh

Rule = Callable[["Rewriter", BoundNode], BoundNode | None]


class Rewriter:
    """One walk over a bound graph: each node may be kept, replaced or dropped, later nodes see the result.

    A rule returns the node that takes a node's place (it writes the same values), or None to keep it. It may
    add constants, and mark a value as standing for another. A node that would give its value another shape or
    dtype is not taken: broadcasting against a constant of one element may have added dimensions. Nodes that lose
    all their readers are pruned. ``device`` is what the graph is planned for, where that is known.
    """

    def __init__(self, graph: BoundGraph, ops: Mapping[str, Op], device: Device | None = None) -> None:
        self.graph = graph
        self.ops = ops
        self.device = device
        self.constants: dict[str, Array] = dict(graph.constants)
        self.specs: dict[str, TensorSpec] = dict(graph.specs)
        self._maker: dict[str, BoundNode] = {}
        self._same: dict[str, str] = {}
        self._readers: dict[str, int] = {}
        self._names = {node.name for node in graph.nodes}
        self._before: list[BoundNode] = []
        self._place = {value: i for i, node in enumerate(graph.nodes) for value in node.writes.values()}
        for node in graph.nodes:
            for value in node.reads.values():
                self._readers[value] = self._readers.get(value, 0) + 1
        for value in graph.outputs:
            self._readers[value] = self._readers.get(value, 0) + 1

    def maker(self, value: str, *ops: str) -> BoundNode | None:
        """The node that makes a value, if its op is one of ``ops``."""
        node = self._maker.get(value)
        return node if node is not None and node.call.op in ops else None

    def place(self, value: str) -> int:
        """The number of the node that makes a value, -1 where none does."""
        return self._place.get(value, -1)

    def readers(self, value: str) -> int:
        """Operands and outputs of the graph that are the value."""
        return self._readers.get(value, 0)

    def only_reader(self, value: str) -> bool:
        """True when exactly one operand of the graph reads the value and it is no output."""
        return self._readers.get(value, 0) == 1

    def scalar(self, value: str | None) -> float | None:
        """The number in a constant of one element, else None."""
        array = self.constants.get(value) if value else None
        return float(array.ravel()[0]) if array is not None and array.size == 1 else None

    def constant(self, name: str, array: Array) -> str:
        """Add a float32 constant under a fresh name."""
        fresh = name
        while fresh in self.specs:
            fresh += "_"
        self.constants[fresh] = np.asarray(array, np.float32)
        self.specs[fresh] = TensorSpec(tuple(array.shape), DType.F32)
        return fresh

    def same(self, value: str, other: str) -> None:
        """From here on ``value`` is read as ``other``."""
        self._same[value] = other
        self._readers[other] = self._readers.get(other, 0) + self._readers.get(value, 0) - 1

    def node(
        self,
        like: BoundNode,
        op: str,
        reads: Mapping[str, str],
        attrs: Mapping[str, AttrValue] | None = None,
        name: str | None = None,
    ) -> BoundNode:
        """A node of another op that makes the first output of ``like``, under its name or that of a node that it
        absorbs: people look for the convolution, not for the activation behind it."""
        operands = {o.name: None for o in self.ops[op].operands if not (o.host or o.variadic)}
        call = self.ops[op].call(operands | {k: self.specs[v] for k, v in reads.items()}, attrs)
        written = next(iter(like.writes.values()))
        return BoundNode(name or like.name, call, dict(reads), {next(iter(call.outputs)): written})

    def before(self, op: str, reads: Mapping[str, str], attrs: Mapping[str, AttrValue], name: str) -> str:
        """Put a node in front of the one that takes the place of the node at hand; the value that it makes. It is
        dropped again where that one is not taken."""
        call = self.ops[op].call({k: self.specs[v] for k, v in reads.items()}, attrs)
        output, spec = next(iter(call.outputs.items()))
        value = fresh(f"{name}/{output}", set(self.specs))
        self.specs[value] = spec
        self._before.append(BoundNode(name, call, dict(reads), {output: value}))
        return value

    def name(self, stem: str) -> str:
        """A name that no node has."""
        return fresh(stem, self._names)

    def run(self, rule: Rule) -> BoundGraph:
        """Apply a rule to every node in order and prune what nothing reads any more."""
        nodes: list[BoundNode] = []
        for original in self.graph.nodes:
            reads = {k: self._same.get(v, v) for k, v in original.reads.items()}
            node = dataclasses.replace(original, reads=reads)
            self._before = []
            made = rule(self, node)
            if made is not None and all(made.call.outputs[k] == self.specs[v] for k, v in made.writes.items()):
                node = made
                nodes += self._before
            nodes.append(node)
            for value in node.writes.values():
                self._maker[value] = node
        outputs = set(self.graph.outputs)
        # An output keeps its name: where a value now stands for it, an identity node makes the copy.
        for value, other in self._same.items():
            if value in outputs:
                maker = self._maker[value]
                nodes[nodes.index(maker)] = self.node(maker, "identity", {"x": other})
        graph = dataclasses.replace(self.graph, nodes=tuple(nodes), constants=self.constants, specs=self.specs)
        return graph.pruned()
