"""Products whose weights no storage buffer binding can hold, as several with some of the columns each.

Vulkan promises bindings of 128 MiB, and phones and lavapipe have no more: the first fully connected layer of VGG has
392 MiB of weights.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from vkconv.core import Array, ceil_div
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode

# Columns of a part are a multiple of this, so that tiles have no more tails than before.
_COLUMNS = 64


def in_parts(bound: BoundGraph, ops: Mapping[str, Op], device: Device) -> BoundGraph:
    """The graph with every matmul whose right operand is too large for a binding of the device in parts, which a concat
    joins under the node's name. Only constants, and what constant_of_shape fills, can be cut; others stay."""
    # Packing may add to the weights, and half of the limit leaves room for it.
    most = device.limit("maxStorageBufferRange") // 2
    wide = [node for node in bound.nodes if node.call.op == "matmul" and _is_wide(node, bound, 2 * most)]
    if not wide:
        return bound
    cut = _Cut(bound, ops, most)
    nodes = [made for node in bound.nodes for made in (cut.parts(node) if node in wide else (node,))]
    graph = dataclasses.replace(bound, nodes=tuple(nodes), constants=cut.constants, specs=cut.specs)
    return graph.pruned()


def _is_wide(node: BoundNode, bound: BoundGraph, most: int) -> bool:
    b = bound.specs[node.reads["b"]]
    return len(b.dims) == 2 and b.nbytes > most and _source(node.reads["b"], bound) is not None


def _source(value: str, bound: BoundGraph) -> Array | BoundNode | None:
    """The constant of that name, or the node that fills it."""
    if value in bound.constants:
        return bound.constants[value]
    makers = (n for n in bound.nodes if n.call.op == "constant_of_shape" and value in n.writes.values())
    return next(makers, None)


class _Cut:
    def __init__(self, bound: BoundGraph, ops: Mapping[str, Op], most: int) -> None:
        self.bound = bound
        self.ops = ops
        self.most = most
        self.constants: dict[str, Array] = dict(bound.constants)
        self.specs: dict[str, TensorSpec] = dict(bound.specs)

    def parts(self, node: BoundNode) -> Sequence[BoundNode]:
        """What stands for a matmul: fills, products, and the concat of their columns."""
        axis = 0 if node.call["trans_b"] else 1
        b, y = self.bound.specs[node.reads["b"]], next(iter(node.writes.values()))
        columns = b.dims[axis]
        most = max(1, self.most // (b.nbytes // columns))
        step = most // _COLUMNS * _COLUMNS or most
        made: list[BoundNode] = []
        joined: dict[str, str] = {}
        for i in range(ceil_div(columns, step)):
            chosen = slice(i * step, min(columns, (i + 1) * step))
            reads = dict(node.reads)
            reads["b"], fills = self._weights(f"{node.name}/b{i}", node.reads["b"], axis, chosen)
            made += fills
            if "bias" in reads:
                reads["bias"], fills = self._weights(f"{node.name}/bias{i}", node.reads["bias"], 0, chosen)
                made += fills
            if "residual" in reads:
                rank = len(self.specs[y].dims)
                bounds = {"starts": (chosen.start,), "ends": (chosen.stop,), "axes": (rank - 1,)}
                name, reads["residual"] = f"{node.name}/residual{i}", self._fresh(f"{node.name}/residual{i}")
                made.append(self._node(name, "slice", {"x": node.reads["residual"]}, bounds, reads["residual"]))
            made.append(self._node(f"{node.name}/{i}", "matmul", reads, dict(node.call.attrs), self._fresh(f"{y}/{i}")))
            joined[f"x{i}"] = next(iter(made[-1].writes.values()))
        made.append(self._node(node.name, "concat", joined, {"axis": -1}, y))
        return made

    def _weights(self, name: str, value: str, axis: int, chosen: slice) -> tuple[str, list[BoundNode]]:
        """The value with the chosen columns alone, and the nodes that make it so."""
        source, part = _source(value, self.bound), self._fresh(name)
        if isinstance(source, BoundNode):
            shape = list(self.bound.specs[value].dims)
            shape[axis] = chosen.stop - chosen.start
            return part, [self._node(name, source.call.op, {}, {**source.call.attrs, "shape": tuple(shape)}, part)]
        if source is None:  # a bias that is computed
            bounds = {"starts": (chosen.start,), "ends": (chosen.stop,), "axes": (axis,)}
            return part, [self._node(name, "slice", {"x": value}, bounds, part)]
        array = source[chosen] if axis == 0 else source[:, chosen]
        self.constants[part], self.specs[part] = array, TensorSpec(tuple(array.shape), self.bound.specs[value].dtype)
        return part, []

    def _node(self, name: str, op: str, reads: Mapping[str, str], attrs: Mapping[str, AttrValue], to: str) -> BoundNode:
        variadic = any(operand.variadic for operand in self.ops[op].operands)
        absent = () if variadic else (operand.name for operand in self.ops[op].operands if not operand.host)
        operands: dict[str, TensorSpec | None] = dict.fromkeys(absent)
        operands |= {name: self.specs[value] for name, value in reads.items()}
        call = self.ops[op].call(operands, attrs)
        output = next(iter(call.outputs))
        self.specs[to] = call.outputs[output]
        return BoundNode(name, call, reads, {output: to})

    def _fresh(self, stem: str) -> str:
        name = stem
        while name in self.specs:
            name += "_"
        return name
