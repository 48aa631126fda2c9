"""Ops on 8-bit integers that no kernel has in bytes, as ops on 32-bit integers with casts around them."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from vkconv.core import Array, DType
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode, fresh
from vkconv.route import judge

BYTES = (DType.I8, DType.U8)
# What moves values and makes none: of bytes it gives bytes, so that the next such op reads them as they are.
_MOVES = frozenset(
    {
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
# Ops whose result of 32 bits has, in its lowest 8, the result of bytes: arithmetic modulo 2^8 is that modulo 2^32, and
# quotients, comparisons and shifts to the right are those of the numbers themselves.
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
        "greater",
        "greater_equal",
        "less",
        "less_equal",
        "mod",
        "mul",
        "neg",
        "pad",
        "scatter_elements",
        "scatter_nd",
        "shift_left",
        "shift_right",
        "sign",
        "sub",
        "topk",
    }
)


def widen_bytes(bound: BoundGraph, ops: Mapping[str, Op], device: Device) -> tuple[BoundGraph, dict[str, str]]:
    """The graph where each node of bytes that the device has no route for computes in i32, if its op gives the same;
    and what to say of these nodes, by name."""
    wide = [node for node in bound.nodes if _is_without_route(node, ops, device)]
    if not wide:
        return bound, {}
    made = _Widened(bound, ops)
    names = {node.name for node in wide}
    for node in bound.nodes:
        if node.name in names:
            made.widen(node)
        else:
            made.nodes.append(node)
    graph = dataclasses.replace(bound, nodes=tuple(made.nodes), constants=made.constants, specs=made.specs)
    return graph.pruned(), dict.fromkeys(names, "in i32: no kernel of it has bytes")


def _is_without_route(node: BoundNode, ops: Mapping[str, Op], device: Device) -> bool:
    call, op = node.call, ops[node.call.op]
    if op.name not in _WIDENED or call.is_empty or not any(spec.dtype in BYTES for spec in call.specs.values()):
        return False
    return not any(judge(route, call, device).allowed for route in op.routes)


class _Widened:
    def __init__(self, bound: BoundGraph, ops: Mapping[str, Op]) -> None:
        self.ops = ops
        self.nodes: list[BoundNode] = []
        self.constants: dict[str, Array] = dict(bound.constants)
        self.specs: dict[str, TensorSpec] = dict(bound.specs)
        self.taken = {*bound.specs, *(node.name for node in bound.nodes)}
        self.names: dict[str, str] = {}  # values of bytes, and what holds the same numbers in 32 bits

    def widen(self, node: BoundNode) -> None:
        """The node in i32, its operands cast before it and its outputs behind it."""
        reads = {operand: self._in_i32(value) for operand, value in node.reads.items()}
        operands = {name: None if spec is None else _widened(spec) for name, spec in node.call.operands.items()}
        call = self.ops[node.call.op].call(operands, node.call.attrs)
        writes, casts = {}, []
        for output, value in node.writes.items():
            spec = self.specs[value]
            writes[output] = value
            if spec.dtype in BYTES:
                writes[output] = self._fresh(value)
                casts.append((writes[output], value))
                if node.call.op in _MOVES:
                    self.names[value] = writes[output]
        self.nodes.append(BoundNode(node.name, call, reads, writes))
        for source, value in casts:
            self._cast(source, value)

    def _in_i32(self, value: str) -> str:
        spec = self.specs[value]
        if spec.dtype not in BYTES:
            return value
        if value not in self.names:
            self.names[value] = name = self._fresh(value)
            if value in self.constants:
                self.constants[name] = np.asarray(self.constants[value]).astype(np.int32)
            else:
                self._cast(value, name)
        return self.names[value]

    def _fresh(self, value: str) -> str:
        name = fresh(f"{value}.{DType.I32}", self.taken)
        self.specs[name] = TensorSpec(self.specs[value].shape, DType.I32)
        return name

    def _cast(self, source: str, target: str) -> None:
        to = self.specs[target].dtype
        call = self.ops["cast"].call({"x": self.specs[source]}, {"to": str(to)})
        name = fresh(f"{source} to {to}", self.taken)
        self.nodes.append(BoundNode(name, call, {"x": source}, {"y": target}))


def _widened(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, DType.I32) if spec.dtype in BYTES else spec
