"""Caches of a graph: inputs that come back as outputs with rows appended or replaced, such as keys and values of a
decoder. They stay on the device from run to run, and a run writes its own rows alone.

Where rows are appended, a dimension grows with each run. One graph serves all lengths of it up to a bound
(`vkconv.plan.growth`): caches and all else that grows have the most rows there can be, and the host says in each run
how many are meant.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.core import Array, InputError, Shape, UnsupportedError, counted, did_you_mean
from vkconv.graph.ir import Dim, Graph, Node, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import bind
from vkconv.plan.planner import Options
from vkconv.policy import Policy

APPENDS, REPLACES = "concat", "tensor_scatter"
FIRST_ROWS = Policy("plan.cache_rows", int)
# What a growing dimension of a steering graph is called there.
_ROWS = "rows"


@dataclasses.dataclass(frozen=True, slots=True)
class CachePair:
    """An input of the past, the output that it becomes, and the node between them that appends rows along ``axis``, or
    replaces some there (``appends`` off). Where ``joins`` names a Concat, that one appends the rows, and the node
    writes them once more, from a place on that each batch has of its own."""

    past: str
    present: str
    node: str
    axis: int
    appends: bool
    joins: str = ""


# Between the terms of a sum, as exporters name a dimension that is one (``past_sequence_length + sequence_length``):
# of such a name the importer leaves letters, digits and ``_``.
_PLUS = re.compile(r"___|\s*\+\s*")


def terms(dim: str) -> list[str]:
    """The terms of a dimension whose name is a sum; itself where it is none."""
    return _PLUS.split(dim)


def grows(dim: Dim, bounds: Mapping[str, int]) -> bool:
    """Whether a dimension of an input is one that has a bound, or a sum with one."""
    return isinstance(dim, str) and (dim in bounds or any(term in bounds for term in terms(dim)))


def when_empty(dim: str, bounds: Mapping[str, int], sizes: Mapping[str, int]) -> int | None:
    """How large a dimension that grows is while the past is empty, from the ``sizes`` of those that it is a sum with;
    None where they do not say."""
    others = [term for term in terms(dim) if term not in bounds]
    known = [int(term) if term.isdecimal() else sizes.get(term) for term in others]
    return sum(n for n in known if n is not None) if known and None not in known else None


def step_of(rows: int, first: int, bound: int) -> int:
    """How many rows caches have that hold so many: of ``first``, twice that and so on the least, the bound at most."""
    step = max(first, 1)
    while step < rows:
        step *= 2
    return min(step, bound)


def find_pairs(graph: Graph, ops: Mapping[str, Op], bounds: Mapping[str, int]) -> tuple[CachePair, ...]:
    """The caches of a graph, those that grow in a dimension that has a bound.

    Raises InputError for a bound of no dimension, UnsupportedError, with reasons, where there is no cache.
    """
    symbols = dict.fromkeys(
        term.strip()
        for spec in graph.inputs.values()
        for dim in spec.shape
        if isinstance(dim, str)
        for term in (dim, *terms(dim))
    )
    for name in bounds:
        if name not in symbols:
            known = f"the open dimensions are {', '.join(symbols)}" if symbols else "all are known"
            raise InputError(
                f"no input of {graph.name!r} has a dimension {name!r}{did_you_mean(name, symbols)}; {known}"
            )
    ends = _outputs_of(graph)
    pairs: list[CachePair] = []
    refused: list[str] = []
    for node in graph.nodes:
        past = node.inputs[0] if node.inputs and node.op in (APPENDS, REPLACES) else ""
        if past not in graph.inputs:
            continue
        shape = graph.inputs[past].shape
        axis = int(node.attrs.get("axis", -2 if node.op == REPLACES else 0)) % max(1, len(shape))  # type: ignore[arg-type]
        if node.op == APPENDS and (not grows(shape[axis], bounds) or len(node.inputs) != 2):
            continue
        readers = _readers(graph, ops, past)
        present = ends.get(node.outputs[0], "")
        placed = None if present or node.op == REPLACES else _placing(graph, ops, node, axis)
        if placed is not None and readers == [node] and placed.outputs[0] in ends:
            pairs.append(CachePair(past, ends[placed.outputs[0]], placed.name, axis, True, node.name))
        elif present and readers == [node]:
            pairs.append(CachePair(past, present, node.name, axis, node.op == APPENDS))
        else:
            other = [str(n) for n in readers if n is not node]
            why = f"{', '.join(other)} reads it too" if other else f"what {node} makes of it is no output"
            refused.append(f"{past!r}: {why}")
    if not pairs or (bounds and not any(pair.appends for pair in pairs)):
        reasons = f" ({'; '.join(refused)})" if refused else ""
        what = f"a Concat appends rows to along {', '.join(bounds)}" if bounds else "a TensorScatter writes rows of"
        raise UnsupportedError(
            f"graph {graph.name!r} has no cache, an input that {what} and that is an output then{reasons}; leave "
            "bounds and caches out, and each length is planned by itself"
        )
    return tuple(pairs)


def _readers(graph: Graph, ops: Mapping[str, Op], value: str) -> list[Node]:
    """The nodes that read a value, and not its shape alone."""
    return [n for n in graph.nodes if value in n.inputs and n.op in ops and ops[n.op].fold_from_specs is None]


def _placing(graph: Graph, ops: Mapping[str, Op], concat: Node, axis: int) -> Node | None:
    """The node that writes the rows which a Concat appends where each batch has its own; None where there is none, or
    something else reads what the Concat makes."""
    found = _readers(graph, ops, concat.outputs[0])
    if len(found) != 1 or found[0].op != REPLACES or found[0].inputs[:2] != (concat.outputs[0], concat.inputs[1]):
        return None
    return found[0] if found[0].attrs.get("axis", -2) == axis and not found[0].attrs.get("circular") else None


def _outputs_of(graph: Graph) -> dict[str, str]:
    """By value, the output of the graph that it is, by its own name or through identities."""
    ends = {name: name for name in graph.outputs}
    for node in reversed(graph.nodes):
        if node.op == "identity" and node.outputs[0] in ends:
            ends.setdefault(node.inputs[0], ends[node.outputs[0]])
    return ends


@dataclasses.dataclass(frozen=True, slots=True)
class Counted:
    """Numbers from ``first`` on, counted from the length of the past where ``from_past``: places of rows."""

    first: int
    count: int
    from_past: bool = True

    def at(self, length: int) -> Array:
        """The array for a length of the past."""
        return np.arange(self.count, dtype=np.int64) + self.first + (length if self.from_past else 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Meant:
    """Which of ``shape[0]`` rows are meant: those before the length of the past and ``offset`` more."""

    shape: Shape
    offset: int

    def at(self, length: int) -> Array:
        """The array for a length of the past."""
        rows: Array = np.arange(self.shape[0]) < length + self.offset
        return rows.reshape(self.shape)


@dataclasses.dataclass(frozen=True, slots=True)
class FromEnd:
    """Places along an axis that grows, of which negative ones count from its end."""

    places: npt.NDArray[Any]
    offset: int

    def at(self, length: int) -> Array:
        """The array for a length of the past."""
        end = np.asarray(length + self.offset, self.places.dtype)
        return np.where(self.places < 0, self.places + end, self.places)


HostInput = Counted | Meant | FromEnd


@dataclasses.dataclass(frozen=True)
class Steering:
    """What computes the constants of a graph that depend on the length: ``graph`` has no inputs but those whose shape
    alone is read. ``offsets`` are those of `Grown`, ``dims`` their shapes otherwise, ``full`` what is planned."""

    graph: Graph
    dims: Mapping[str, Shape]
    offsets: Mapping[str, Mapping[int, int]]
    full: Mapping[str, TensorSpec]

    def at(self, length: int, ops: Mapping[str, Op]) -> dict[str, Array]:
        """The constants for a length of the past, zeros behind their end."""
        shapes = {
            name: tuple(
                length + self.offsets[name][axis] if axis in self.offsets[name] else d for axis, d in enumerate(dims)
            )
            for name, dims in self.dims.items()
        }
        found = bind(self.graph, ops, shapes).constants
        return {name: padded(found[name], spec.dims) for name, spec in self.full.items()}


@dataclasses.dataclass(frozen=True)
class Grown:
    """A graph for all lengths of the past up to ``most``, the length that leaves room for the ``rows`` of a run.

    ``graph`` takes caches (``caches``, by input), the user's inputs and outputs, with zeros behind their end along
    axes that grow (``offsets`` says how much longer than the past they are), and what the host says of the length:
    ``host`` and ``steering``. ``masked`` counts the values whose unused rows are masked.
    """

    graph: Graph
    caches: tuple[str, ...]
    rows: int
    most: int
    offsets: Mapping[str, Mapping[int, int]]
    host: Mapping[str, HostInput]
    steering: Steering | None
    masked: int = 0

    def __str__(self) -> str:
        said = f"{len(self.caches)} caches stay on the device, updated in place"
        if not self.rows:
            return said
        following = len(self.host) + len(self.steering.full if self.steering else ())
        rows = counted(self.rows, "row")
        return (
            f"{said}: {rows} a run, {self.most + self.rows} at most, one plan for all lengths; {self.masked} "
            f"values are masked behind their end, {following} inputs follow from the length"
        )

    def host_inputs(self, length: int, ops: Mapping[str, Op]) -> dict[str, Array]:
        """What the host says for a length of the past."""
        found = {name: source.at(length) for name, source in self.host.items()}
        return found | (self.steering.at(length, ops) if self.steering else {})


def with_cache_types(options: Options, graph: Graph, pairs: Sequence[CachePair]) -> Options:
    """The options with caches in the types that they come and go in, whatever floats are stored in elsewhere."""
    types = {}
    for pair in pairs:
        dtype = graph.inputs[pair.past].dtype
        if dtype.is_float and (options.dtype or options.dtypes or options.io_dtype):
            for node in filter(None, (pair.node, pair.joins)):
                types[f"node:{node}"] = options.io_dtype or dtype
    return dataclasses.replace(options, dtypes={**options.dtypes, **types})


def padded(array: Array, dims: Sequence[int]) -> Array:
    """The array with zeros behind its end, up to ``dims``."""
    if array.shape == tuple(dims):
        return array
    made: Array = np.zeros(dims, array.dtype)
    made[tuple(slice(0, n) for n in array.shape)] = array
    return made


def cut(array: Array, offsets: Mapping[int, int], length: int) -> Array:
    """The rows of an array that are meant."""
    index = tuple(slice(0, length + offsets[axis]) if axis in offsets else slice(None) for axis in range(array.ndim))
    return np.ascontiguousarray(array[index])


def in_place(graph: Graph, pairs: Sequence[CachePair]) -> Grown:
    """The graph with caches that have all their rows from the start, which it updates in place."""
    named = {pair.node for pair in pairs}
    nodes = tuple(
        dataclasses.replace(node, attrs={**node.attrs, "in_place": True}) if node.name in named else node
        for node in graph.nodes
    )
    return Grown(graph.replace(nodes=nodes), tuple(pair.past for pair in pairs), 0, 0, {}, {}, None)


def steering_graph(
    graph: Graph,
    ops: Mapping[str, Op],
    wanted: Sequence[str],
    specs: Mapping[str, TensorSpec],
    offsets: Mapping[str, Mapping[int, int]],
) -> Steering:
    """What computes these values of a graph, which fold to constants: the nodes behind them, down to those that read
    shapes alone."""
    needed, nodes, shaped = set(wanted), list[Node](), dict[str, None]()
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        nodes.append(node)
        values = [value for value in node.inputs if value and value not in graph.constants]
        if ops[node.op].fold_from_specs is not None:
            shaped |= dict.fromkeys(values)
        else:
            needed.update(values)
    made = {value for node in nodes for value in node.outputs}
    inputs = {
        name: TensorSpec(
            tuple(
                f"{_ROWS}{offsets[name][axis]}" if axis in offsets.get(name, {}) else d
                for axis, d in enumerate(specs[name].dims)
            ),
            specs[name].dtype,
        )
        for name in shaped
        if name not in made
    }
    used = {value for node in nodes for value in node.inputs}
    part = Graph(
        inputs,
        tuple(wanted),
        tuple(reversed(nodes)),
        {name: array for name, array in graph.constants.items() if name in used},
        graph.name,
    )
    return Steering(
        part,
        {name: specs[name].dims for name in inputs},
        {name: offsets.get(name, {}) for name in inputs},
        {name: specs[name] for name in wanted},
    )
