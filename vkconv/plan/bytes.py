"""Ops on bools, on integers of 8 and 16 bits, and on unsigned ones of 32, that no kernel has, as ops on wider integers
with casts around them."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from vkconv.call import Call
from vkconv.core import Array, DType
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode, fresh
from vkconv.route import may_take

# Integers, and bools, and those that hold all of their numbers.
WIDER = {
    DType.BOOL: DType.I32,
    DType.I8: DType.I32,
    DType.U8: DType.I32,
    DType.I16: DType.I32,
    DType.U16: DType.I32,
    DType.U32: DType.I64,
}
# What moves values and makes none: of small numbers it gives such, so that the next such op reads them as they are.
_MOVES = frozenset(
    {
        "center_crop_pad",
        "concat",
        "depth_to_space",
        "expand",
        "gather",
        "gather_elements",
        "gather_nd",
        "maximum",
        "minimum",
        "reverse_sequence",
        "slice",
        "space_to_depth",
        "split",
        "tile",
        "transpose",
        "trilu",
        "where",
    }
)
# Ops whose wider result has, in its lowest bits, the result of the narrow type: arithmetic modulo 2^8 is that modulo
# 2^32, and quotients, comparisons and shifts to the right are those of the numbers themselves.
_WIDENED = _MOVES | frozenset(
    {
        "abs",
        "add",
        "arg_reduce",
        "bit_and",
        "bit_or",
        "bit_xor",
        "cumulative",
        "div",
        "equal",
        "fmod",
        "greater",
        "greater_equal",
        "less",
        "less_equal",
        "mod",
        "mul",
        "neg",
        "nonzero",
        "one_hot",
        "pad",
        "pow",
        "reduce",
        "relu",
        "scatter_elements",
        "scatter_nd",
        "shift_left",
        "shift_right",
        "sign",
        "sub",
        "tensor_scatter",
        "topk",
    }
)


def widen_bytes(bound: BoundGraph, ops: Mapping[str, Op], device: Device) -> tuple[BoundGraph, dict[str, str]]:
    """The graph where each node of such integers that the device has no route for computes in wider ones, if its op
    gives the same; and what to say of these nodes, by name."""
    wide = [node for node in bound.nodes if _is_without_route(node, ops, device)]
    if not wide:
        return bound, {}
    made = _Widened(bound, ops)
    names = {node.name: f"in {_wider(node)}: no kernel of it has {_narrow(node)}" for node in wide}
    for node in bound.nodes:
        if node.name in names:
            made.widen(node)
        else:
            made.nodes.append(node)
    graph = dataclasses.replace(bound, nodes=tuple(made.nodes), constants=made.constants, specs=made.specs)
    return graph.pruned(), names


def _is_without_route(node: BoundNode, ops: Mapping[str, Op], device: Device) -> bool:
    call, op = node.call, ops[node.call.op]
    if op.name not in _WIDENED or call.is_empty or not _widened_operands(call):
        return False
    if any(may_take(route, call, device) for route in op.routes):
        return False
    wide = _wide_call(node, op)
    return any(may_take(route, wide, device) for route in op.routes)


def _widened_operands(call: Call) -> dict[str, DType]:
    """The operands that are computed with in wider integers, and their types: not the bools that conditions are."""
    operands = {name: spec.dtype for name, spec in call.operands.items() if spec is not None}
    return {name: dtype for name, dtype in operands.items() if dtype in WIDER and name != "cond"}


def _narrow(node: BoundNode) -> str:
    """What the integers of a node are that are widened, for people."""
    narrow = list(_widened_operands(node.call).values())
    return "bytes" if {*narrow} <= {DType.I8, DType.U8} else str(narrow[0])


def _wider(node: BoundNode) -> DType:
    """What holds all numbers of a node's integers."""
    wider = {WIDER[dtype] for dtype in _widened_operands(node.call).values()}
    return DType.I64 if DType.I64 in wider else DType.I32


def _wide_call(node: BoundNode, op: Op) -> Call:
    to, wide = _wider(node), _widened_operands(node.call)
    operands = {n: TensorSpec(s.shape, to) if s and n in wide else s for n, s in node.call.operands.items()}
    return op.call(operands, node.call.attrs)


class _Widened:
    def __init__(self, bound: BoundGraph, ops: Mapping[str, Op]) -> None:
        self.ops = ops
        self.nodes: list[BoundNode] = []
        self.constants: dict[str, Array] = dict(bound.constants)
        self.specs: dict[str, TensorSpec] = dict(bound.specs)
        self.taken = {*bound.specs, *(node.name for node in bound.nodes)}
        # Values of narrow integers, and what holds the same numbers in a wider type.
        self.names: dict[tuple[str, DType], str] = {}

    def widen(self, node: BoundNode) -> None:
        """The node in wider integers, its operands cast before it and its outputs behind it."""
        to, wide = _wider(node), _widened_operands(node.call)
        reads = {name: self._wide(value, to) if name in wide else value for name, value in node.reads.items()}
        call = _wide_call(node, self.ops[node.call.op])
        writes, casts = {}, []
        for output, value in node.writes.items():
            writes[output] = value
            if call.outputs[output].dtype is not self.specs[value].dtype:
                writes[output] = self._fresh(value, to)
                casts.append((writes[output], value))
                if node.call.op in _MOVES:
                    self.names[value, to] = writes[output]
        self.nodes.append(BoundNode(node.name, call, reads, writes))
        for source, value in casts:
            self._cast(source, value)

    def _wide(self, value: str, to: DType) -> str:
        if (value, to) not in self.names:
            self.names[value, to] = name = self._fresh(value, to)
            if value in self.constants:
                self.constants[name] = np.asarray(self.constants[value]).astype(to.numpy)
            else:
                self._cast(value, name)
        return self.names[value, to]

    def _fresh(self, value: str, to: DType) -> str:
        name = fresh(f"{value}.{to}", self.taken)
        self.specs[name] = TensorSpec(self.specs[value].shape, to)
        return name

    def _cast(self, source: str, target: str) -> None:
        to = self.specs[target].dtype
        call = self.ops["cast"].call({"x": self.specs[source]}, {"to": str(to)})
        name = fresh(f"{source} to {to}", self.taken)
        self.nodes.append(BoundNode(name, call, {"x": source}, {"y": target}))
