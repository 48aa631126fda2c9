"""One layout for each region of a graph: permutations of dimensions move through operations that work in any order.

Frameworks that keep channels last write a transpose before and after each convolution. Here a transpose is remembered,
not made: what follows is computed in the layout that its operands had before, with axes renamed, until a node needs the
layout itself; there the transpose is made, or, where it and one before cancel, none. The other operand of a sum, which
nothing has transposed, may be put into that layout, or keeps the sum out of it: the same way all over the graph. Of the
graph as it was and these two, the one is taken whose transposes take the target the least time (vkconv/cost.py).
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError
from vkconv.cost import moving_us
from vkconv.device import Target
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.activation import ACTIVATIONS
from vkconv.ops.core.base import Op
from vkconv.ops.pointwise.binary import ROWS as BINARIES
from vkconv.plan.bound import BoundGraph, BoundNode

Perm = tuple[int, ...]
Attributes = dict[str, AttrValue]


@dataclasses.dataclass(frozen=True, slots=True)
class _Held:
    """A value as another one whose dimensions are permuted: dimension k of it is dimension ``perm[k]`` of that."""

    root: str
    perm: Perm


def _same(call: Call, perm: Perm) -> Attributes:
    return dict(call.attrs)


def _axis(call: Call, perm: Perm) -> Attributes:
    return {**call.attrs, "axis": perm[call["axis"]]}


def _axes(call: Call, perm: Perm) -> Attributes:
    return {**call.attrs, "axes": tuple(perm[axis] for axis in call["axes"])}


def _pads(call: Call, perm: Perm) -> Attributes:
    rank, pads = len(perm), [0] * (2 * len(perm))
    for axis, place in enumerate(perm):
        pads[place], pads[place + rank] = call["pads"][axis], call["pads"][axis + rank]
    return {**call.attrs, "pads": tuple(pads)}


# The attributes of an operation that works in any layout when its operands are as they were before a permutation.
_RENAMED: Mapping[str, Callable[[Call, Perm], Attributes]] = {
    **dict.fromkeys((*ACTIVATIONS, *BINARIES, "cast", "identity"), _same),
    **dict.fromkeys(("concat", "split", "softmax"), _axis),
    **dict.fromkeys(("reduce", "slice"), _axes),
    "pad": _pads,
}


def assign_layouts(graph: BoundGraph, ops: Mapping[str, Op], target: Target) -> tuple[BoundGraph, Mapping[str, str]]:
    """The graph with its permutations at the borders of regions alone, if they take less time there, and what there is
    to say of its nodes by name. The outputs are the same under the same names."""
    if not any(node.call.op == "transpose" for node in graph.nodes):
        return graph, {}
    before = transposing_us(graph, target)
    us, found, remarks = before, graph, dict[str, str]()
    for turns in (False, True):
        assignment = _Assignment(graph, ops, turns)
        made = assignment.graph()
        if (after := transposing_us(made, target)) < us:
            us, found, remarks = after, made, assignment.remarks
    saved = f"; transposes of the graph take an estimated {us:.3g} us, as it was {before:.3g}"
    return found, {name: said + saved for name, said in remarks.items()}


def transposing_us(graph: BoundGraph, target: Target) -> float:
    """Microseconds of the transposes of a graph, each of which reads and writes a tensor in a launch; none where only
    dimensions of 1 change place."""
    moved = [node.call.specs["x"].nbytes for node in graph.nodes if node.call.op == "transpose" and _moves(node)]
    return moving_us(2 * sum(moved), target, len(moved))


def _moves(node: BoundNode) -> bool:
    shape = node.call.shape("x")
    order = [p for p in node.call["perm"] if shape[p] != 1]
    return order != sorted(order)


class _Assignment:
    """One walk over a graph. With ``turns``, what meets a permuted value in an operation on two is permuted too."""

    def __init__(self, graph: BoundGraph, ops: Mapping[str, Op], turns: bool) -> None:
        self.remarks: dict[str, str] = {}
        self._before = graph
        self._ops = ops
        self._specs: dict[str, TensorSpec] = dict(graph.specs)
        self._constants = dict(graph.constants)
        self._nodes: list[BoundNode] = []
        self._held: dict[str, _Held] = {}
        self._made: set[str] = set()
        self._transposes: dict[str, str] = {}
        self._names = {node.name for node in graph.nodes}
        self._turns = turns
        # By value and permutation, the value before it that was made for this.
        self._turned: dict[tuple[str, Perm], str] = {}

    def graph(self) -> BoundGraph:
        for node in self._before.nodes:
            if node.call.op == "transpose":
                self._hold(node)
            elif not self._moved(node):
                reads = {operand: self._as_it_is(value) for operand, value in node.reads.items()}
                self._nodes.append(dataclasses.replace(node, reads=reads))
        for value in dict.fromkeys(self._before.outputs):
            if self._as_it_is(value) != value:
                self._add("identity", {"x": self._as_it_is(value)}, {}, value, f"{value}/copy")
        made = dataclasses.replace(self._before, nodes=tuple(self._nodes), constants=self._constants, specs=self._specs)
        return made.pruned()

    def _hold(self, node: BoundNode) -> None:
        """A transpose, of what may be one itself: not made until something needs it."""
        x, perm, y = node.reads["x"], node.call["perm"], node.writes["y"]
        inner = self._held.get(x)
        root, perm = (inner.root, tuple(inner.perm[p] for p in perm)) if inner else (x, perm)
        self._held[y] = _Held(root, perm)
        self._transposes[y] = node.name

    def _as_it_is(self, value: str) -> str:
        """The name under which a value is to be read in its own layout; makes the transpose that it takes."""
        held = self._held.get(value)
        if held is None or value in self._made:
            return value
        if held.perm == tuple(range(len(held.perm))):
            return held.root
        self._made.add(value)
        name = self._transposes.get(value, f"{value}/transpose")
        self._add("transpose", {"x": held.root}, {"perm": held.perm}, value, name)
        return value

    def _moved(self, node: BoundNode) -> bool:
        """Whether the node is now computed in the layout that its operands had before a permutation."""
        perm = self._perm_of(node)
        renamed = _RENAMED.get(node.call.op)
        if perm is None or renamed is None:
            return False
        reads, apart = dict(node.reads), set[str]()
        for operand, value in node.reads.items():
            before = self._before_of(value, perm)
            if before is not None:
                reads[operand] = before
            elif self._turns and node.call.op in BINARIES and len(self._specs[value].dims) == len(perm):
                apart.add(operand)
            else:
                return False
        reads |= {operand: self._turn(value, perm) for operand, value in reads.items() if operand in apart}
        try:
            call = self._call(node.call.op, reads, renamed(node.call, perm))
        except GraphError:  # more dimensions than stay apart in this order
            return False
        after = _after(node.call, perm)
        writes = {}
        for (output, value), spec in zip(node.writes.items(), call.outputs.values(), strict=True):
            writes[output] = self._fresh(f"{value}/moved", spec)
            self._held[value] = _Held(writes[output], after)
        self._nodes.append(BoundNode(node.name, call, reads, writes))
        self.remarks[node.name] = f"in the layout before the transpose {' '.join(map(str, perm))} of its operands"
        return True

    def _perm_of(self, node: BoundNode) -> Perm | None:
        """The one permutation that all operands have that have any, if it changes something."""
        perms = {self._held[value].perm for value in node.reads.values() if value in self._held}
        perm = perms.pop() if len(perms) == 1 else None
        if perm is None or perm == tuple(range(len(perm))):
            return None
        ranks = {len(self._specs[value].dims) for value in node.writes.values()}
        return perm if node.call.op == "reduce" or ranks == {len(perm)} else None

    def _before_of(self, value: str, perm: Perm) -> str | None:
        """An operand as it was before the permutation: the root, a constant that is permuted here, or a value of one
        element, which has no order."""
        if value in self._held:
            return self._held[value].root
        spec = self._specs[value]
        if value in self._constants:
            array = self._constants[value]
            full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
            back = np.ascontiguousarray(np.transpose(full, np.argsort(perm)))
            name = self._fresh(f"{value}/moved", TensorSpec(back.shape, spec.dtype))
            self._constants[name] = back
            return name
        return value if spec.size == 1 else None

    def _turn(self, value: str, perm: Perm) -> str:
        """What a value is the permutation of, by a transpose that is made for it."""
        if (value, perm) not in self._turned:
            back = tuple(int(place) for place in np.argsort(perm))
            spec = self._specs[value]
            made = self._fresh(f"{value}/turned", TensorSpec(tuple(spec.dims[place] for place in back), spec.dtype))
            self._add("transpose", {"x": value}, {"perm": back}, made, f"{value}/turn")
            self._turned[value, perm] = made
        return self._turned[value, perm]

    def _call(self, op: str, reads: Mapping[str, str], attrs: Mapping[str, AttrValue]) -> Call:
        operands: dict[str, TensorSpec | None] = {
            operand.name: None for operand in self._ops[op].operands if not (operand.host or operand.variadic)
        }
        return self._ops[op].call(operands | {name: self._specs[value] for name, value in reads.items()}, attrs)

    def _add(self, op: str, reads: Mapping[str, str], attrs: Attributes, to: str, name: str) -> None:
        while name in self._names and name != self._transposes.get(to):
            name += "_"
        self._names.add(name)
        call = self._call(op, reads, attrs)
        self._nodes.append(BoundNode(name, call, reads, {next(iter(call.outputs)): to}))

    def _fresh(self, stem: str, spec: TensorSpec) -> str:
        while stem in self._specs:
            stem += "_"
        self._specs[stem] = spec
        return stem


def _after(call: Call, perm: Perm) -> Perm:
    """The permutation of what an operation makes: that of its operands, without the dimensions that it takes out."""
    if call.op != "reduce" or call["keepdims"]:
        return perm
    kept = [perm[axis] for axis in range(len(perm)) if axis not in call["axes"]]
    return tuple(sorted(kept).index(place) for place in kept)
