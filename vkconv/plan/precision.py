"""A graph in other float types: which nodes compute from 16-bit floats, and the casts between them and the others.

It comes after the passes that fold and fuse, which are done in f32, so that every constant is rounded once. A graph's
inputs and outputs keep their types: they are cast where they come in and go out.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from vkconv.core import FLOAT_TYPES, Array, DType, GraphError, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode, fresh
from vkconv.route import Call, judge


def checked_types(
    dtype: DType | str | None, dtypes: Mapping[str, DType | str], bound: BoundGraph, ops: Mapping[str, Op]
) -> tuple[DType | None, dict[str, DType]]:
    """The types, also where they are given as words. UsageError for one that is no float, or that is asked for an op or
    a node that is not there."""
    for key, wanted in {"the graph": dtype, **dtypes}.items():
        if wanted is not None and wanted not in FLOAT_TYPES:
            raise UsageError(f"dtype {wanted} for {key}: floats are one of {', '.join(FLOAT_TYPES)}")
    names = [f"node:{node.name}" for node in bound.nodes]
    for key in dtypes:
        known = names if key.startswith("node:") else list(ops)
        if key not in known:
            raise UsageError(f"dtype {key}={dtypes[key]}: there is no {key!r} here{did_you_mean(key, known)}")
    return DType(dtype) if dtype else None, {key: DType(wanted) for key, wanted in dtypes.items()}


def in_types(
    bound: BoundGraph, ops: Mapping[str, Op], device: Device, dtype: DType | None, dtypes: Mapping[str, DType]
) -> BoundGraph:
    """The graph with floats of ``dtype``, or of what ``dtypes`` has for an op or ``node:NAME``; without either a node
    keeps its own, and so do nodes that no route of the device can compute in another."""
    made = _Retyped(bound, ops, device)
    for node in bound.nodes:
        wanted = dtypes.get(f"node:{node.name}", dtypes.get(node.call.op, dtype))
        made.add(node, wanted)
    return made.finished()


class _Retyped:
    """Nodes one by one, each value in the types that somebody asked for."""

    def __init__(self, bound: BoundGraph, ops: Mapping[str, Op], device: Device) -> None:
        self.bound = bound
        self.ops = ops
        self.device = device
        self.nodes: list[BoundNode] = []
        self.constants: dict[str, Array] = dict(bound.constants)
        self.specs: dict[str, TensorSpec] = dict(bound.specs)
        # By value and type, the name under which it is there; the type that it was made in comes first.
        self.names: dict[str, dict[DType, str]] = {
            value: {bound.specs[value].dtype: value} for value in (*bound.inputs, *bound.constants)
        }
        self.taken = {*bound.specs, *(node.name for node in bound.nodes)}

    def add(self, node: BoundNode, wanted: DType | None) -> None:
        """One node, in the wanted type where that can be."""
        call = (self._in_type(node.call, wanted) if wanted else None) or node.call
        specs = call.specs
        reads = {operand: self._as(value, specs[operand].dtype) for operand, value in node.reads.items()}
        writes = {}
        for output, value in node.writes.items():
            writes[output] = self._named(value, specs[output].dtype)
            self.names[value] = {specs[output].dtype: writes[output]}
        self.nodes.append(BoundNode(node.name, call, reads, writes))

    def finished(self) -> BoundGraph:
        """The graph, its outputs in their own types again."""
        for value in self.bound.outputs:
            self._as(value, self.bound.specs[value].dtype)
        nodes, constants = tuple(self.nodes), self.constants
        return dataclasses.replace(self.bound, nodes=nodes, constants=constants, specs=self.specs).pruned()

    def _in_type(self, call: Call, wanted: DType) -> Call | None:
        """The call with its floats in the wanted type; None where it takes none or the device has no route for it."""

        def retyped(spec: TensorSpec | None) -> TensorSpec | None:
            return spec if spec is None or spec.dtype not in FLOAT_TYPES else TensorSpec(spec.shape, wanted)

        op = self.ops[call.op]
        # What an op makes of nothing, or of integers, may be a float that it was asked for by name.
        floats = {name: str(wanted) for name in ("dtype", "to") if call.attrs.get(name) in FLOAT_TYPES}
        try:
            made = op.call({name: retyped(spec) for name, spec in call.operands.items()}, {**call.attrs, **floats})
        except GraphError:
            return None
        able = op.alias or made.is_empty or any(judge(route, made, self.device).allowed for route in op.routes)
        return made if able else None

    def _named(self, value: str, dtype: DType) -> str:
        """The name that a value has in a type: its own where that is its type in the graph."""
        spec = self.bound.specs[value]
        if dtype is spec.dtype:
            return value
        name = fresh(f"{value}.{dtype}", self.taken)
        self.specs[name] = TensorSpec(spec.shape, dtype)
        return name

    def _as(self, value: str, dtype: DType) -> str:
        """The name of a value in a type; it is cast, or a constant converted, where it is not yet there."""
        known = self.names[value]
        if dtype not in known:
            name = self._named(value, dtype)
            source = next(iter(known.values()))
            if value in self.bound.constants:
                with np.errstate(over="ignore", invalid="ignore"):
                    self.constants[name] = np.asarray(self.bound.constants[value]).astype(dtype.numpy)
            else:
                call = self.ops["cast"].call({"x": self.specs[source]}, {"to": str(dtype)})
                node = fresh(f"{value} to {dtype}", self.taken)
                self.nodes.append(BoundNode(node, call, {"x": source}, {"y": name}))
            known[dtype] = name
        return known[dtype]
