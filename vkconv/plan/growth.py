"""One graph for all lengths of a dimension that grows, up to a bound.

The graph is bound at several lengths. What differs says what grows: a dimension that is longer by as much as the past
is, numbers of nodes, constants that follow from shapes. Then the graph of the longest is rewritten, so that it is right
for all: rows behind the end, which hold zeros or what nobody meant, never reach a row before it. Where a node sums over
rows, or compares them, those behind the end are masked first; what it takes from the end, or appends there, it takes
from places that the host counts. A node that no rule of `vkconv.plan.growth_rules` covers is refused by name.
"""

from collections.abc import Callable, Mapping, Sequence

from vkconv.core import Array, DType, GraphError, InputError, Shape, UnsupportedError, shape_str
from vkconv.graph.ir import Dim, Graph, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import bind, bind_shapes
from vkconv.plan.caches import CachePair, Grown, Steering, grows, in_place, steering_graph, terms
from vkconv.plan.growing import Growing, NoRuleError
from vkconv.plan.growth_rules import rewrite


def grow(
    graph: Graph,
    ops: Mapping[str, Op],
    pairs: Sequence[CachePair],
    shapes_at: Callable[[int], Mapping[str, Shape]],
    capacity_for: Callable[[int], int],
) -> Grown:
    """The graph for caches of as many rows as ``capacity_for`` says where a run brings so many; ``shapes_at`` has the
    shapes of its inputs by the length of the past.

    Raises UnsupportedError naming each node, and why, that is not right for all lengths; InputError for more rows than
    there is room for, and whatever binding the graph raises.
    """
    first = bind(graph, ops, shapes_at(1))
    pair = next(pair for pair in pairs if pair.appends)
    rows = first.specs[pair.present].dims[pair.axis] - 1
    capacity = capacity_for(rows)
    most = capacity - rows
    if most < 0:
        raise InputError(f"graph {graph.name!r}: a run brings {rows} rows, and the caches hold {capacity}")
    others = [length for length in (most - 1, most // 2, 1, most + 1, most + 2) if length > 0 and length != most][:2]
    full = bind(graph, ops, shapes_at(most))
    bound = {length: first if length == 1 else bind(graph, ops, shapes_at(length)) for length in others}
    return _Grower(graph, ops, pairs, full, most, bound, rows).run()


class _Grower(Growing):
    def run(self) -> Grown:
        try:
            return self._grown()
        except NoRuleError as error:
            raise UnsupportedError(self._refusal(str(error))) from None

    def _refusal(self, reasons: str) -> str:
        return (
            f"graph {self.graph.name!r} cannot be planned once for all lengths: {reasons}; leave bounds out, and each "
            "length is planned by itself"
        )

    def _grown(self) -> Grown:
        full = self.full
        for length, other in self.others.items():
            if [n.name for n in other.nodes] != [n.name for n in full.nodes]:
                raise NoRuleError(f"it has other nodes at a past of {length} rows than at one of {self.most}")
        read = {value for node in full.nodes for value in node.reads.values()} | set(full.outputs)
        steered = [name for name, array in full.constants.items() if name in read and not self.is_steady(name, array)]
        given = [name for name in full.inputs if name not in self.pasts]
        for name in (*full.inputs, *steered):
            if name not in self.pasts:
                self.zero[name] = frozenset(self.offsets(name))
        for i, node in enumerate(full.nodes):
            try:
                rewrite(self, node, [other.nodes[i] for other in self.others.values()])
            except NoRuleError as error:
                self.refused.append(f"{node}: {error}")
        if self.refused:
            raise NoRuleError("; ".join(self.refused))
        specs = full.specs
        inputs = {name: specs[name] for name in (*self.graph.inputs, *steered)}
        inputs |= {pair.past: specs[pair.present] for pair in self.pairs.values() if pair.appends}
        inputs |= {name: _spec(source.at(self.most)) for name, source in self.host.items()}
        constants = {name: array for name, array in full.constants.items() if name not in steered}
        made = Graph(
            inputs,
            self.graph.outputs,
            tuple(self.nodes),
            constants | self.constants,
            self.graph.name,
            self.graph.metadata,
        )
        offsets = {name: self.offsets(name) for name in (*given, *full.outputs)}
        return Grown(
            made,
            tuple(pair.past for pair in self.pairs.values()),
            self.rows,
            self.most,
            {name: found for name, found in offsets.items() if found},
            self.host,
            self._steering(steered) if steered else None,
            self.masks,
        )

    def _steering(self, steered: Sequence[str]) -> Steering:
        specs = self.full.specs
        offsets = {name: self.offsets(name) for name in specs if not self.problem(name)}
        return steering_graph(self.graph, self.ops, steered, specs, offsets)


def _spec(array: Array) -> TensorSpec:
    return TensorSpec(array.shape, DType.of(array.dtype))


def grown_graph(
    graph: Graph,
    ops: Mapping[str, Op],
    pairs: Sequence[CachePair],
    bounds: Mapping[str, int],
    shapes: Mapping[str, Shape],
    dims: Mapping[str, int],
    length: int = 0,
    capacity_for: Callable[[int], int] | None = None,
) -> Grown:
    """The graph for caches with bounds, of the ``shapes`` that its other inputs have behind a past of ``length`` rows;
    ``dims`` are named dimensions that none of them has. The caches have all rows of the bound, or as many as
    ``capacity_for`` says where a run brings so many. Raises as `grow` does."""
    specs = graph.inputs
    sizes = dict(dims)
    for name, shape in shapes.items():
        sizes |= {dim: n for dim, n in zip(specs[name].shape, shape, strict=True) if isinstance(dim, str)}
    for pair in pairs:
        for axis, dim in enumerate(specs[pair.past].shape):
            if isinstance(dim, str) and dim not in sizes and not (pair.appends and axis == pair.axis):
                raise InputError(
                    f"the cache {pair.past!r} of {graph.name!r} is {shape_str(specs[pair.past].shape)}, and no other "
                    f"input says what {dim!r} is; load with dims={{{dim!r}: 1}}"
                )

    def size(pair: CachePair, axis: int, dim: Dim, past: int) -> int:
        return past if pair.appends and axis == pair.axis else sizes[dim] if isinstance(dim, str) else dim

    def shapes_at(past: int) -> dict[str, Shape]:
        found = {
            name: tuple(
                n - length + past if grows(dim, bounds) else n for dim, n in zip(specs[name].shape, shape, strict=True)
            )
            for name, shape in shapes.items()
        }
        return found | {
            pair.past: tuple(size(pair, axis, dim, past) for axis, dim in enumerate(specs[pair.past].shape))
            for pair in pairs
        }

    if not any(pair.appends for pair in pairs):
        return in_place(graph.replace(inputs=bind_shapes(graph, shapes_at(0))), pairs)
    try:
        return grow(graph, ops, pairs, shapes_at, capacity_for or (lambda rows: min(bounds.values())))
    except (GraphError, UnsupportedError) as error:
        named = dict.fromkeys(dim for name in shapes for dim in specs[name].shape if isinstance(dim, str))
        summed = {term for dim in named if grows(dim, bounds) for term in terms(dim)}
        others = [dim for dim in named if not grows(dim, bounds) and dim not in summed]
        hint = f"; if {' or '.join(others)} grows with the past, give it a bound too" if others else ""
        raise type(error)(f"{error}{hint}") from None
