"""The reference of a whole graph: every node by its op's definition, in float64, nothing rounded in between."""

from collections.abc import Mapping

import numpy as np

from vkconv.core import Array, GraphError, InputError
from vkconv.graph import Graph
from vkconv.ops import OPS
from vkconv.plan.bound import bind, steered, widen


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
