"""A graph in other float types: which nodes compute from 16-bit floats, and the casts between them and the others.

It comes after the passes that fold and fuse, which are done in f32, so that every constant is rounded once. A graph's
inputs and outputs keep their types, or have one of their own: they are cast where they come in and go out, if nodes
have others.
"""

import dataclasses
from collections.abc import Collection, Container, Mapping

import numpy as np

from vkconv.call import Call
from vkconv.core import FLOAT_TYPES, Array, DType, GraphError, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import Graph, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode, fresh, value_inputs
from vkconv.route import may_take


def checked_type(wanted: DType | str | None, what: str) -> DType | None:
    """The type, also where it is given as a word. UsageError for one that is no float."""
    if wanted is not None and not (isinstance(wanted, str) and wanted in FLOAT_TYPES):
        raise UsageError(f"dtype {wanted} for {what}: floats are one of {', '.join(FLOAT_TYPES)}")
    return DType(wanted) if wanted else None


def input_specs(graph: Graph, ops: Mapping[str, Op], io_dtype: DType | str | None) -> dict[str, TensorSpec]:
    """What a session takes: the graph's inputs, their floats in ``io_dtype`` if that is given. Those that steer the
    graph keep their types, since planning reads them. UsageError for a type that is no float."""
    wanted = checked_type(io_dtype, "inputs and outputs")
    kept = value_inputs(graph, ops) if wanted else ()
    return {name: spec if name in kept else _in_float(spec, wanted) for name, spec in graph.inputs.items()}


def _in_float(spec: TensorSpec, wanted: DType | None) -> TensorSpec:
    return TensorSpec(spec.shape, wanted) if wanted and spec.dtype in FLOAT_TYPES else spec


def checked_types(
    dtype: DType | str | None, dtypes: Mapping[str, DType | str], nodes: Collection[str], ops: Mapping[str, Op]
) -> tuple[DType | None, dict[str, DType]]:
    """The types, also where they are given as words. UsageError for one that is no float, or that is asked for an op or
    one of ``nodes`` (``node:NAME``) that is not there."""
    for key, wanted in {"the graph": dtype, **dtypes}.items():
        checked_type(wanted, key)
    for key, wanted in dtypes.items():
        if wanted is None:
            raise UsageError(f"dtype {key} is None; leave {key!r} out, or name one of {', '.join(FLOAT_TYPES)}")
        known = nodes if key.startswith("node:") else list(ops)
        if key not in known:
            raise UsageError(f"dtype {key}={dtypes[key]}: there is no {key!r} here{did_you_mean(key, known)}")
    return DType(dtype) if dtype else None, {key: DType(wanted) for key, wanted in dtypes.items()}


def in_types(
    bound: BoundGraph,
    ops: Mapping[str, Op],
    device: Device,
    dtype: DType | None,
    dtypes: Mapping[str, DType],
    io_dtype: DType | None = None,
    kept: Container[str] = (),
) -> BoundGraph:
    """The graph with floats of ``dtype``, or of what ``dtypes`` has for an op or ``node:NAME``; without either a node
    keeps its own, and so do nodes that no route of the device can compute in another, and those in ``kept`` that
    ``dtypes`` does not name. Floats that are inputs or outputs have ``io_dtype``, or else their own types."""
    made = _Retyped(bound, ops, device, io_dtype)
    for node in bound.nodes:
        own = None if node.name in kept else dtype
        wanted = dtypes.get(f"node:{node.name}", dtypes.get(node.call.op, own))
        made.add(node, wanted)
    return made.finished()


class _Retyped:
    """Nodes one by one, each value in the types that somebody asked for."""

    def __init__(self, bound: BoundGraph, ops: Mapping[str, Op], device: Device, io_dtype: DType | None) -> None:
        self.bound = bound
        self.ops = ops
        self.device = device
        self.nodes: list[BoundNode] = []
        self.constants: dict[str, Array] = dict(bound.constants)
        interface = {value: _in_float(bound.specs[value], io_dtype) for value in (*bound.inputs, *bound.outputs)}
        self.specs: dict[str, TensorSpec] = {**bound.specs, **interface}
        self.taken = {*bound.specs, *(node.name for node in bound.nodes)}
        # By value and type, the name under which it is there; the type that it was made in comes first.
        self.names: dict[str, dict[DType, str]] = {}
        for value in (*bound.inputs, *bound.constants):
            # A constant that goes out in another type leaves its name to that.
            dtype = (bound.specs if value in bound.constants else self.specs)[value].dtype
            name = self._named(value, dtype)
            self.names[value] = {dtype: name}
            if value in bound.constants:
                self.constants[name] = self.constants.pop(value)

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
        """The graph, its outputs in the types that they go out in."""
        for value in self.bound.outputs:
            self._as(value, self.specs[value].dtype)
        return dataclasses.replace(
            self.bound,
            inputs={name: self.specs[name] for name in self.bound.inputs},
            nodes=tuple(self.nodes),
            constants=self.constants,
            specs=self.specs,
        ).pruned()

    def _in_type(self, call: Call, wanted: DType) -> Call | None:
        """The call with its floats in the wanted type; None where it takes none or the device has no route for it."""

        def retyped(spec: TensorSpec | None) -> TensorSpec | None:
            return None if spec is None else _in_float(spec, wanted)

        op = self.ops[call.op]
        # What an op makes of nothing, or of integers, may be a float that it was asked for by name.
        floats = {name: str(wanted) for name in ("dtype", "to") if call.attrs.get(name) in FLOAT_TYPES}
        try:
            made = op.call({name: retyped(spec) for name, spec in call.operands.items()}, {**call.attrs, **floats})
        except GraphError:
            return None
        able = op.alias or made.is_empty or any(may_take(route, made, self.device) for route in op.routes)
        return made if able else None

    def _named(self, value: str, dtype: DType) -> str:
        """The name that a value has in a type: its own where that is its type in the graph, or at its interface."""
        spec = self.specs[value]
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
