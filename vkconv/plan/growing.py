"""A graph on its way to one for all lengths of a dimension that grows (`vkconv.plan.growth`): what is known of its
values, and the nodes that rules have made."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.core import Array, DType, shape_str
from vkconv.graph.ir import AttrValue, Graph, Node
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode, fresh
from vkconv.plan.caches import CachePair, FromEnd, HostInput, Meant

Offsets = dict[int, int]
"""By axis along which a value grows, how much longer than the past it is."""


class NoRuleError(Exception):
    """Why a node is not right for all lengths."""


class Growing:
    """``full`` is the graph bound at ``most`` rows of past, ``others`` what it is at other lengths."""

    def __init__(
        self,
        graph: Graph,
        ops: Mapping[str, Op],
        pairs: Sequence[CachePair],
        full: BoundGraph,
        most: int,
        others: Mapping[int, BoundGraph],
        rows: int,
    ) -> None:
        self.graph, self.ops, self.full, self.most, self.others, self.rows = graph, ops, full, most, others, rows
        self.pairs = {pair.node: pair for pair in pairs}
        # By the node that appends rows: itself or, where another one places them behind it, the Concat before that.
        self.appends = {pair.joins or pair.node: pair for pair in pairs if pair.appends}
        self.pasts = {pair.past for pair in pairs}
        self.makers = {value: node for node in full.nodes for value in node.writes.values()}
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.host: dict[str, HostInput] = {}
        self.hosted: dict[HostInput | tuple[object, ...], str] = {}
        # By value, the axes along which it is zero behind its end.
        self.zero: dict[str, frozenset[int]] = {}
        self.masks = 0
        self.taken = {*full.specs, *(node.name for node in full.nodes)}
        self.refused: list[str] = []

    def is_steady(self, name: str, array: Array) -> bool:
        """Whether a constant is the same at all lengths."""
        others = [other.constants.get(name) for other in self.others.values()]
        return all(
            found is array or (found is not None and found.shape == array.shape and found.tobytes() == array.tobytes())
            for found in others
        )

    def problem(self, value: str) -> str:
        """How a value differs from one length to another, where that is not by as much as the length."""
        dims = self.full.specs[value].shape
        for length, other in self.others.items():
            found = other.specs[value].shape
            same = len(found) == len(dims)
            if not same or any(
                int(a) - int(b) not in (0, self.most - length) for a, b in zip(dims, found, strict=True)
            ):
                return (
                    f"{value!r} is {shape_str(found)} at a past of {length} rows and {shape_str(dims)} at one of "
                    f"{self.most}; a dimension that grows is longer by as much as the past"
                )
        return ""

    def offsets(self, value: str) -> Offsets:
        """By axis along which a value grows, how much longer than the past it is."""
        if problem := self.problem(value):
            raise NoRuleError(problem)
        dims = self.full.specs[value].dims
        found = [other.specs[value].dims for other in self.others.values()]
        if self.most == 0 and not found:
            return {}
        growing = [axis for axis in range(len(dims)) if any(d[axis] != dims[axis] for d in found)]
        if any(d[axis] == dims[axis] for axis in growing for d in found):
            raise NoRuleError(f"{value!r} grows at some lengths only")
        return {axis: dims[axis] - self.most for axis in growing}

    def add(
        self,
        node: BoundNode,
        reads: Mapping[str, str] | None = None,
        attrs: Mapping[str, AttrValue] | None = None,
    ) -> None:
        """Add a node as it is, but for what it reads and its attributes."""
        op = self.ops[node.call.op]
        named = {**node.reads, **(reads or {})}
        inputs: list[str] = []
        for operand in op.operands:
            if operand.variadic:
                inputs += [value for name, value in named.items() if name.removeprefix(operand.name).isdigit()]
            else:
                inputs.append(named.get(operand.name, ""))
        while inputs and not inputs[-1]:
            inputs.pop()
        given = node.call.attrs if attrs is None else attrs
        self.nodes.append(Node(node.name, op.name, tuple(inputs), tuple(node.writes.values()), given))

    def emit(self, like: BoundNode, op: str, *inputs: str, **attrs: AttrValue) -> str:
        """Add a node in front of another one; its output."""
        name = fresh(f"{like.name}/{op}", self.taken)
        self.nodes.append(Node(name, op, inputs, (name,), attrs))
        return name

    def from_host(self, source: HostInput, stem: str) -> str:
        """The input in which the host says something of the length."""
        key = (
            source if not isinstance(source, FromEnd) else (source.offset, source.places.tobytes(), source.places.shape)
        )
        if key not in self.hosted:
            self.hosted[key] = fresh(stem, self.taken)
            self.host[self.hosted[key]] = source
        return self.hosted[key]

    def row_mask(self, node: BoundNode, value: str, axis: int) -> str:
        """A row of what is added to a value along an axis: 0, and -inf behind its end."""
        spec, offset = self.full.specs[value], self.offsets(value)[axis]
        meant = self.from_host(Meant((spec.dims[axis],), offset), "rows/meant")
        numbers = [self._number(fill, spec.dtype) for fill in (0.0, -math.inf)]
        self.masks += 1
        return self.emit(node, "where", meant, *numbers)

    def _number(self, number: float, dtype: DType) -> str:
        """A constant of one number."""
        name = f"rows/{number:g}:{dtype}"
        self.constants[name] = np.asarray(number, dtype.numpy)
        return name

    def masked(self, node: BoundNode, value: str, axis: int, fill: float) -> str:
        """A value that a node reads, with ``fill`` behind its end along an axis."""
        spec, offset = self.full.specs[value], self.offsets(value)[axis]
        if fill == 0 and axis in self.zero.get(value, frozenset()):
            return value
        if not spec.dtype.is_float and not math.isfinite(fill):
            raise NoRuleError(f"{value!r} is {spec.dtype}, whose rows behind the end have no number that is ignored")
        shape = (spec.dims[axis], *(1,) * (len(spec.dims) - 1 - axis))
        meant = self.from_host(Meant(shape, offset), "rows/meant")
        self.masks += 1
        return self.emit(node, "where", meant, value, self._number(fill, spec.dtype))
