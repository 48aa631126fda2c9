"""The reference of a whole graph: every node by its op's definition, in float64, nothing rounded in between; or node by
node, each from the values before it as the graph stores them."""

from collections.abc import Mapping

import numpy as np

from vkconv.check.calls import Expected, expect
from vkconv.core import Array, GraphError, InputError, given_array
from vkconv.graph import Graph
from vkconv.ops import OPS
from vkconv.plan.bound import BoundGraph, BoundNode, bind, steered, widen


def reference_outputs(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of a graph, in their own dtypes. Raises InputError naming the node where a reference refuses its values,
    and what `vkconv.plan.bound.bind` raises."""
    graph, inputs = steered(graph, OPS, inputs)
    bound = bind(graph, OPS, {name: array.shape for name, array in inputs.items()})
    values: dict[str, Array] = {name: widen(array) for name, array in {**bound.constants, **inputs}.items()}
    for node in bound.nodes:
        call = node.call
        operands = dict.fromkeys(call.operands) | {operand: values[value] for operand, value in node.reads.items()}
        if call.is_empty:
            results = [np.empty(spec.dims, spec.dtype.numpy) for spec in call.outputs.values()]
        else:
            try:
                with np.errstate(all="ignore"):
                    results = [np.asarray(made) for made in OPS[call.op].reference(call, operands)]
            except (GraphError, IndexError, ValueError) as error:
                raise InputError(f"{node}: its reference refuses what it is given: {error}") from None
        for (name, value), made in zip(node.writes.items(), results, strict=True):
            values[value] = widen(made).reshape(call.outputs[name].dims)
    with np.errstate(all="ignore"):
        return {name: values[name].astype(bound.specs[name].dtype.numpy) for name in graph.outputs}


class References:
    """The reference values of a graph as its nodes come one after the other; ``known`` are its inputs and constants."""

    def __init__(self, bound: BoundGraph, inputs: Mapping[str, Array]) -> None:
        self.bound = bound
        self.known: dict[str, Array] = {
            name: given_array(inputs[name], f"input {name!r}").astype(spec.dtype.numpy, copy=False)
            for name, spec in bound.inputs.items()
        } | dict(bound.constants)
        self._values = dict(self.known)
        self._last = {value: node.name for node in bound.nodes for value in node.reads.values()}

    def read_by(self, node: BoundNode) -> tuple[dict[str, Array], tuple[str, ...]]:
        """What a node reads by operand, and which of the operands are constants."""
        arrays = {operand: self._values[value] for operand, value in node.reads.items()}
        return arrays, tuple(operand for operand, value in node.reads.items() if value in self.bound.constants)

    def advance(self, node: BoundNode, route: str | None) -> Expected | None:
        """What a node must give on a route for the reference values that it reads; None where nothing runs for it
        (``route`` None). Raises GraphError, IndexError or ValueError where its reference refuses them."""
        call, (arrays, _) = node.call, self.read_by(node)
        wanted = None if route is None else expect(call, arrays, route)
        if wanted is not None:
            results = list(wanted.outputs)
        elif call.is_empty:
            results = [np.empty(spec.dims, spec.dtype.numpy) for spec in call.outputs.values()]
        else:
            results = list(OPS[call.op].reference(call, {**dict.fromkeys(call.operands), **arrays}))
        for (name, value), result in zip(node.writes.items(), results, strict=True):
            spec = call.outputs[name]
            with np.errstate(all="ignore"):
                self._values[value] = np.asarray(result).astype(spec.dtype.numpy).reshape(spec.dims)
        return wanted

    def forget(self, node: BoundNode) -> None:
        """Drop what nothing after a node reads: all values of a model do not fit."""
        for value in {*node.reads.values(), *node.writes.values()}:
            if self._last.get(value, node.name) == node.name and value not in self.known:
                self._values.pop(value, None)
