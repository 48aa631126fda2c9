"""Binding a graph to shapes: every symbolic dimension gets a value, everything known folds to a constant.

What remains is a `BoundGraph`: calls with static specs and canonical attributes, in order.
"""

import dataclasses
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import (
    Array,
    DType,
    GraphError,
    InputError,
    Shape,
    UnsupportedError,
    did_you_mean,
    shape_problem,
    shape_str,
)
from vkconv.graph.ir import AttrValue, Graph, Node, TensorSpec
from vkconv.ops.core.base import Op

# A constant that folding would create may not be larger than this and than four times what it is made from, and
# all of them together not larger than this and 16 times what the graph holds: a few bytes of ConstantOfShape, or
# a row of Tiles, must not become gigabytes on the host.
FOLD_LIMIT_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class BoundNode:
    """One call of a bound graph and the values it reads (by operand) and writes (by output, every one of them)."""

    name: str
    call: Call
    reads: Mapping[str, str]
    writes: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.call.op} node {self.name!r}"


@dataclasses.dataclass(frozen=True)
class Pieces:
    """First nodes by images: the input ``x`` arrives as ``value``, in so many pieces; ``of`` has, by name, nodes with
    the number of the piece that each waits for, from 0 on. ``joints`` are the slices and concats around them."""

    x: str
    value: str
    count: int
    of: Mapping[str, int]
    joints: frozenset[str]


@dataclasses.dataclass(frozen=True)
class BoundGraph:
    """A graph with static shapes: what passes rewrite and the planner lays out. ``pieces`` says which nodes stand first
    and need only some of the images of an input."""

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: tuple[str, ...]
    nodes: tuple[BoundNode, ...]
    constants: Mapping[str, Array]
    specs: Mapping[str, TensorSpec]
    pieces: Pieces | None = None

    def users(self) -> dict[str, list[BoundNode]]:
        """Nodes that read each value."""
        users: dict[str, list[BoundNode]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.reads.values()):
                users.setdefault(value, []).append(node)
        return users

    def pruned(self) -> "BoundGraph":
        """Without the nodes and constants that no output needs; inputs stay, they are the interface."""
        needed = set(self.outputs)
        kept: list[BoundNode] = []
        for node in reversed(self.nodes):
            if needed.intersection(node.writes.values()):
                kept.append(node)
                needed.update(node.reads.values())
        constants = {name: array for name, array in self.constants.items() if name in needed}
        return dataclasses.replace(self, nodes=tuple(reversed(kept)), constants=constants)


def named_shapes(
    inputs: Mapping[str, TensorSpec], shapes: Mapping[str, Shape], dims: Mapping[str, int]
) -> dict[str, Shape]:
    """Shapes by input, of those that are given and those that follow from named dimensions; inputs of which neither
    says all are left out.

    Raises InputError for a dimension that no input has, or that a shape contradicts.
    """
    symbols = dict.fromkeys(dim for spec in inputs.values() for dim in spec.shape if isinstance(dim, str))
    for name, size in dims.items():
        if name not in symbols:
            known = f"the open dimensions are {', '.join(symbols)}" if symbols else "all are known"
            raise InputError(f"no input has a dimension {name!r}{did_you_mean(name, symbols)}; {known}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InputError(f"the dimension {name!r} is {size!r}; it takes a whole number from 0 on")
    found = dict(shapes)
    for name, spec in inputs.items():
        given = found.get(name, ())
        for want, got in zip(spec.shape, given if isinstance(given, Sequence) else (), strict=False):
            if isinstance(want, str) and dims.get(want, got) != got:
                raise InputError(
                    f"input {name!r} is {shape_str(spec.shape)}: its shape says {want} = {got}, and the dimension "
                    f"given is {dims[want]}"
                )
        if name not in found and not spec.is_static and all(isinstance(d, int) or d in dims for d in spec.shape):
            found[name] = tuple(d if isinstance(d, int) else dims[d] for d in spec.shape)
    return found


def bind_shapes(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, TensorSpec]:
    """Static input specs from run-time shapes; a symbol must mean the same number wherever it stands.

    Raises InputError naming the input, both shapes and the symbol at fault.
    """
    for name in shapes:
        if name not in graph.inputs:
            raise InputError(
                f"graph {graph.name!r} has no input {name!r}{did_you_mean(name, graph.inputs)}; "
                f"it takes {', '.join(graph.inputs)}"
            )
    symbols: dict[str, int] = {}
    bound: dict[str, TensorSpec] = {}
    for name, spec in graph.inputs.items():
        if name not in shapes:
            if not spec.is_static:
                raise InputError(
                    f"input {name!r} of graph {graph.name!r} is {shape_str(spec.shape)}: give its shape, "
                    f"for example shapes={{{name!r}: {tuple(d if isinstance(d, int) else 1 for d in spec.shape)}}}"
                )
            bound[name] = spec
            continue
        try:
            shape = tuple(operator.index(d) for d in shapes[name])
        except TypeError:
            raise InputError(
                f"the shape given for input {name!r} of graph {graph.name!r} is {shapes[name]!r}; "
                "it takes a tuple of whole numbers"
            ) from None
        wrong = len(shape) != len(spec.shape)
        for want, got in zip(spec.shape, shape, strict=False):
            expected = symbols.setdefault(want, got) if isinstance(want, str) else want
            wrong |= expected != got or got < 0
        if wrong:
            known = ", ".join(f"{k}={v}" for k, v in symbols.items())
            raise InputError(
                f"input {name!r} of graph {graph.name!r} has shape {shape_str(shape)}, "
                f"but the graph takes {shape_str(spec.shape)}" + (f" (with {known})" if known else "")
            )
        bound[name] = TensorSpec(shape, spec.dtype)
    for name, spec in bound.items():
        if problem := shape_problem(spec.dims, spec.dtype):
            raise InputError(f"input {name!r} of graph {graph.name!r} cannot be {shape_str(spec.shape)}: {problem}")
    return bound


def value_inputs(graph: Graph, ops: Mapping[str, Op]) -> tuple[str, ...]:
    """Inputs whose values, not only shapes, a plan depends on: what shapes, axes and other host operands come from.

    Only inputs of rank 0 and 1: whatever computes such an operand from more is tensor work, which runs on no host.
    """
    needed: set[str] = set()
    for node in reversed(graph.nodes):
        op = ops.get(node.op)
        if op is None:
            continue
        needed |= host_operands(node, op)
        if op.fold_from_specs is None and not op.counts and needed.intersection(node.outputs):
            needed.update(node.inputs)
    return tuple(name for name, spec in graph.inputs.items() if name in needed and len(spec.shape) <= 1)


def host_operands(node: Node, op: Op) -> set[str]:
    """What a node reads that must be known when the graph is planned: what becomes an attribute of its call, or all of
    it where the op exists only on the host."""
    alone = not (op.routes or op.alias) and op.fold_from_specs is None
    names = _operand_names(op, len(node.inputs))
    return {value for (_, host), value in zip(names, node.inputs, strict=False) if (host or alone) and value}


def with_values(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """The graph with these inputs as constants."""
    if not values:
        return graph
    return graph.replace(
        inputs={name: spec for name, spec in graph.inputs.items() if name not in values},
        constants={**graph.constants, **values},
    )


def steered(graph: Graph, ops: Mapping[str, Op], inputs: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The graph with the given values of the inputs that steer it as constants, and the other inputs."""
    values = {name: inputs[name] for name in value_inputs(graph, ops) if name in inputs}
    return with_values(graph, values), {name: array for name, array in inputs.items() if name not in values}


def bind(graph: Graph, ops: Mapping[str, Op], shapes: Mapping[str, Shape] | None = None) -> BoundGraph:
    """Bind a graph: infer every shape, fold every node whose operands are known, drop what no output needs.

    Raises InputError for shapes that do not fit the inputs, UnsupportedError for op names the registry lacks
    (all at once) and GraphError, naming the node, for everything that contradicts itself.
    """
    control = next((node for node in graph.nodes if node.name in graph.bodies), None)
    if control is not None:
        raise UnsupportedError(
            f"graph {graph.name!r} has control flow by values ({control}), which the host drives; vkconv.load and "
            "vkconv run take it, what plans a whole graph does not"
        )
    missing = sorted({n.op for n in graph.nodes if n.op not in ops})
    if missing:
        where = "; ".join(f"{n} ({n.op}{did_you_mean(n.op, ops)})" for n in graph.nodes if n.op in missing)
        raise UnsupportedError(f"graph {graph.name!r} uses ops that vkconv does not have: {where}; see vkconv ops")
    inputs = bind_shapes(graph, shapes or {})
    specs: dict[str, TensorSpec] = dict(inputs)
    constants: dict[str, Array] = {}
    for name, array in graph.constants.items():
        constants[name] = array
        try:
            specs[name] = TensorSpec(tuple(array.shape), DType.of(array.dtype))
        except GraphError as error:
            raise GraphError(f"graph {graph.name!r}, constant {name!r}: {error}") from None
    nodes: list[BoundNode] = []
    taken = {*specs, *(value for node in graph.nodes for value in node.outputs)}
    left_bytes = FOLD_LIMIT_BYTES + 16 * sum(array.nbytes for array in constants.values())
    for node in graph.nodes:
        op = ops[node.op]
        try:
            bound = _bind_node(node, op, specs, constants, taken)
            if op.check_constants is not None:
                fixed = {name: constants[value] for name, value in bound.reads.items() if value in constants}
                op.check_constants(bound.call, fixed)
        except GraphError as error:
            raise GraphError(f"graph {graph.name!r}, {node}: {error}") from None
        for output, value in bound.writes.items():
            specs[value] = bound.call.outputs[output]
        try:
            folded = _fold(bound, op, constants, left_bytes)
        except (GraphError, IndexError, ValueError) as error:  # the last two: values that a reference refuses
            raise GraphError(f"graph {graph.name!r}, {node}: cannot be computed from its constants: {error}") from None
        if folded is not None:
            constants.update(folded)
            left_bytes -= 0 if op.alias else sum(array.nbytes for array in folded.values())
            for value, array in folded.items():
                specs[value] = TensorSpec(tuple(array.shape), DType.of(array.dtype))
        elif not (op.routes or op.alias):
            raise GraphError(f"graph {graph.name!r}, {node}: {_why_not_folded(bound, op, constants, left_bytes)}")
        else:
            nodes.append(bound)
    for name, declared in graph.declared.items():
        if name in specs and (problem := declared.contradiction(specs[name], with_dims=graph.is_static)):
            raise GraphError(f"graph {graph.name!r}: output {name!r} {problem}; export the model again")
    return BoundGraph(graph.name, inputs, graph.outputs, tuple(nodes), constants, specs).pruned()


def _why_not_folded(node: BoundNode, op: Op, constants: Mapping[str, Array], left_bytes: int) -> str:
    unknown = [value for value in node.reads.values() if value not in constants]
    if not unknown or op.fold_from_specs is not None:
        return (
            f"it would make a constant of {_made_bytes(node)} bytes, and {_fold_limit(node, constants, left_bytes)} "
            "is the most that may be made here when the graph is planned"
        )
    return (
        f"{node.call.op} is computed when the graph is planned, so its operands must be known by then, "
        f"but {', '.join(map(repr, unknown))} depends on the values of an input"
    )


def _operand_names(op: Op, count: int) -> Iterator[tuple[str, bool]]:
    """(operand name, host?) for each node input position; a variadic operand takes the rest as x0, x1, ..."""
    for position, operand in enumerate(op.operands):
        if operand.variadic:
            for i in range(count - position):
                yield f"{operand.name}{i}", operand.host
            return
        yield operand.name, operand.host


def _bind_node(
    node: Node, op: Op, specs: Mapping[str, TensorSpec], constants: Mapping[str, Array], taken: set[str]
) -> BoundNode:
    names = list(_operand_names(op, len(node.inputs)))
    if len(node.inputs) > len(names):
        raise GraphError(f"{op.name} takes {len(names)} inputs, this node has {len(node.inputs)}")
    attrs: dict[str, AttrValue] = dict(node.attrs)
    operands: dict[str, TensorSpec | None] = {name: None for name, host in names if not host}
    reads: dict[str, str] = {}
    for (name, host), value in zip(names, node.inputs, strict=False):
        if not value:
            continue
        if not host:
            operands[name] = specs[value]
            reads[name] = value
        else:
            if name in attrs:
                raise GraphError(f"its {name} comes twice, as an attribute and from {value!r}; keep one of them")
            if value not in constants:
                raise GraphError(
                    f"its {name} comes from {value!r}, which depends on the values of an input; "
                    f"vkconv needs {name} when the graph is planned: vkconv.load and vkconv run do that in stages"
                )
            attrs[name] = _attr_of(constants[value])
    call = op.call(operands, attrs)
    if len(node.outputs) > len(call.outputs):
        raise GraphError(f"{op.name} makes {len(call.outputs)} outputs here, the node names {len(node.outputs)}")
    # A kernel writes every output, so that those which nothing reads need a place too.
    named = itertools.zip_longest(call.outputs, node.outputs, fillvalue="")
    writes = {name: value or fresh(f"{node.name}/{name}", taken) for name, value in named}
    return BoundNode(node.name, call, reads, writes)


def fresh(stem: str, taken: set[str]) -> str:
    """A name that the graph does not have, which is taken then."""
    name = next(n for i in itertools.count() for n in [f"{stem}_{i}" if i else stem] if n not in taken)
    taken.add(name)
    return name


def _attr_of(array: Array) -> AttrValue:
    values = array.ravel().tolist()
    return values[0] if array.ndim == 0 else tuple(values)


def widen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An operand as a reference takes it: floats as float64, integers and bools as they are."""
    if array.dtype.kind != "f" and array.dtype != DType.BF16.numpy:
        return array
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return array.astype(np.float64)


def _made_bytes(node: BoundNode) -> int:
    return sum(spec.nbytes for spec in node.call.outputs.values())


def _fold_limit(node: BoundNode, constants: Mapping[str, Array], left_bytes: int) -> int:
    used_bytes = sum(constants[value].nbytes for value in node.reads.values() if value in constants)
    return min(max(FOLD_LIMIT_BYTES, 4 * used_bytes), left_bytes)


def _fold(node: BoundNode, op: Op, constants: Mapping[str, Array], left_bytes: int) -> dict[str, Array] | None:
    """The node's outputs as constants, or None when they are not known or would be too large to keep."""
    if op.fold_from_specs is None and any(value not in constants for value in node.reads.values()):
        return None
    if not op.alias and _made_bytes(node) > _fold_limit(node, constants, left_bytes):
        return None
    if op.fold_from_specs is not None:
        results: Sequence[Array] = op.fold_from_specs(node.call)
    else:
        arrays = dict.fromkeys(node.call.operands) | {
            name: constants[value] if op.alias else widen(constants[value]) for name, value in node.reads.items()
        }
        with np.errstate(all="ignore"):
            results = op.reference(node.call, arrays)
    named = dict(zip(node.call.outputs, results, strict=True))
    with np.errstate(all="ignore"):  # signalling NaNs
        return {
            value: np.ascontiguousarray(named[name])
            .astype(node.call.outputs[name].dtype.numpy, copy=False)
            .reshape(node.call.outputs[name].dims)
            for name, value in node.writes.items()
        }
