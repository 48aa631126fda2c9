"""Control flow that values decide, as the host drives it: which body runs, how often, and with what."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vkconv.core import Array, DType, GraphError, LimitError
from vkconv.graph.ir import Graph, Node

CONTROL = frozenset({"if", "loop", "scan"})
# More than a network has; what does not end stops there.
MAX_STEPS = 1 << 20

# Runs a body, by its position, with values in the order of its inputs, and gives those of its outputs.
RunBody = Callable[[int, Sequence[Any]], Sequence[Any]]


def steers(node: Node) -> tuple[str, ...]:
    """What the host must know before such a node: a condition, a number of steps."""
    count = {"if": 1, "loop": 2, "scan": 0}[node.op]
    return tuple(value for value in node.inputs[:count] if value)


def run_control(node: Node, bodies: Sequence[Graph], values: Mapping[str, Any], run: RunBody) -> dict[str, Any]:
    """The outputs of a node by name; ``values`` has what it reads. Rows that a loop or scan gathers are arrays of the
    host, all else is what the bodies give.

    Raises GraphError for a condition of more than one element, and where nothing tells the shape of rows of no step;
    LimitError for a loop that has not ended after `MAX_STEPS` steps.
    """
    given = [values[value] if value else None for value in node.inputs]
    if node.op == "if":
        taken = 0 if _flag(node, given[0]) else 1
        first = 1 + (len(bodies[0].inputs) if taken else 0)
        made = run(taken, given[first : first + len(bodies[taken].inputs)])
    elif node.op == "loop":
        made = _loop(node, bodies[0], given, run)
    else:
        made = _scan(node, bodies[0], given, run)
    return {name: value for name, value in zip(node.outputs, made, strict=True) if name}


def _loop(node: Node, body: Graph, given: Sequence[Any], run: RunBody) -> list[Any]:
    trips = MAX_STEPS + 1 if given[0] is None else int(_one(node, given[0]))
    goes_on = True if given[1] is None else _flag(node, given[1])
    count = _count(node, "states")
    states, outside = list(given[2 : 2 + count]), given[2 + count :]
    rows: list[list[Array]] = [[] for _ in range(len(body.outputs) - 1 - count)]
    step = 0
    while goes_on and step < trips:
        if step == MAX_STEPS:
            raise LimitError(f"{node} has not ended after {MAX_STEPS} steps; vkconv takes as many")
        going, *made = run(0, [np.array(step, np.int64), np.array(True), *states, *outside])
        goes_on = _flag(node, going)
        states = made[:count]
        for row, value in zip(rows, made[count:], strict=True):
            row.append(np.array(value))
        step += 1
    names = body.outputs[1 + count :]
    return [*states, *(_stacked(node, body, name, row, 0) for name, row in zip(names, rows, strict=True))]


def _count(node: Node, name: str) -> int:
    value = node.attrs[name]
    assert isinstance(value, int)
    return value


def _scan(node: Node, body: Graph, given: Sequence[Any], run: RunBody) -> list[Any]:
    attrs: Mapping[str, Any] = node.attrs
    scanned, count = _count(node, "scanned"), _count(node, "states")
    states, outside = list(given[:count]), given[count + scanned :]
    columns = [
        np.flip(np.moveaxis(np.array(value), axis, 0), 0) if backwards else np.moveaxis(np.array(value), axis, 0)
        for value, axis, backwards in zip(
            given[count : count + scanned], attrs["input_axes"], attrs["input_backwards"], strict=True
        )
    ]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise GraphError(f"{node} scans values of {sorted(lengths)} steps; they have as many")
    rows: list[list[Array]] = [[] for _ in range(len(body.outputs) - count)]
    for parts in _together(columns):
        made = list(run(0, [*states, *parts, *outside]))
        states = made[:count]
        for row, value in zip(rows, made[count:], strict=True):
            row.append(np.array(value))
    stacked = [
        _stacked(node, body, name, row[::-1] if backwards else row, axis)
        for name, row, axis, backwards in zip(
            body.outputs[count:], rows, attrs["output_axes"], attrs["output_backwards"], strict=True
        )
    ]
    return [*states, *stacked]


def _together(columns: Sequence[Array]) -> Iterator[list[Array]]:
    for parts in zip(*columns, strict=True):
        yield [np.ascontiguousarray(part) for part in parts]


def _stacked(node: Node, body: Graph, name: str, rows: Sequence[Array], axis: int) -> Array:
    """Rows side by side along a new axis."""
    if rows:
        if len({row.shape for row in rows}) > 1:
            raise GraphError(f"{node}: rows {name!r} have different shapes {sorted({row.shape for row in rows})}")
        return np.stack(rows, axis)
    declared = body.declared.get(name)
    if declared is None or not declared.dtype or declared.dims is None or None in declared.dims:
        raise GraphError(f"{node} has no step, and the model does not say the shape of its rows {name!r}")
    dims = [d for d in declared.dims if d is not None]
    return np.zeros((0, *dims), DType(declared.dtype).numpy)


def _one(node: Node, value: Any) -> Any:
    array = np.array(value)
    if array.size != 1:
        raise GraphError(f"{node} is steered by an array of shape {array.shape}; it takes one number")
    return array.reshape(-1)[0]


def _flag(node: Node, value: Any) -> bool:
    return bool(_one(node, value))
