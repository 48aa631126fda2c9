"""One graph for all lengths of a dimension that grows, up to a bound.

The graph is bound at several lengths. What differs says what grows: a dimension that is longer by as much as the past
is, numbers of nodes, constants that follow from shapes. Then the graph of the longest is rewritten, so that it is right
for all: rows behind the end, which hold zeros or what nobody meant, never reach a row before it. Where a node sums over
rows, or compares them, those behind the end are masked first; what it takes from the end, or appends there, it takes
from places that the host counts. A node that no rule here covers is refused by name.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkconv.core import Array, DType, GraphError, InputError, Shape, UnsupportedError, shape_str
from vkconv.graph.ir import AttrValue, Dim, Graph, Node, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.ops.pointwise.binary import BINARY_OPS
from vkconv.ops.pointwise.logic import LOGIC_OPS
from vkconv.ops.pointwise.select import COMPARE_OPS
from vkconv.ops.pointwise.unary import UNARY_OPS
from vkconv.plan.bound import BoundGraph, BoundNode, bind, bind_shapes, fresh
from vkconv.plan.caches import (
    CachePair,
    Counted,
    FromEnd,
    Grown,
    HostInput,
    Meant,
    Steering,
    grows,
    in_place,
    steering_graph,
    terms,
)

_ELEMENTWISE = {op.name for op in (*UNARY_OPS, *BINARY_OPS, *LOGIC_OPS, *COMPARE_OPS)} | {"cast", "where", "trilu"}
_RESHAPES = {"reshape", "squeeze", "unsqueeze", "flatten", "merge"}
# Nodes that do with each row what they do with it alone, as long as their own axis is another one.
_BY_AXIS = {"gather_elements", "hardmax", "topk", "split", "dequantize_linear", "quantize_linear"}
_NORMS = {"layer_norm", "rms_norm"}
# What does not change a reduction, by its op.
_NEUTRAL = {"sum": 0.0, "l1": 0.0, "l2": 0.0, "sum_square": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_EXTREMES = {"max": -math.inf, "min": math.inf}

Offsets = dict[int, int]


class _NoRuleError(Exception):
    """Why a node is not right for all lengths."""


def grow(
    graph: Graph,
    ops: Mapping[str, Op],
    pairs: Sequence[CachePair],
    shapes_at: Callable[[int], Mapping[str, Shape]],
    capacity: int,
) -> Grown:
    """The graph for caches of ``capacity`` rows; ``shapes_at`` has the shapes of its inputs by the length of the past.

    Raises UnsupportedError naming each node, and why, that is not right for all lengths; InputError for more rows than
    there is room for, and whatever binding the graph raises.
    """
    first = bind(graph, ops, shapes_at(1))
    pair = next(pair for pair in pairs if pair.appends)
    rows = first.specs[pair.present].dims[pair.axis] - 1
    most = capacity - rows
    if most < 0:
        raise InputError(f"graph {graph.name!r}: a run brings {rows} rows, and the caches hold {capacity}")
    others = [length for length in (most - 1, most // 2, 1, most + 1, most + 2) if length > 0 and length != most][:2]
    full = bind(graph, ops, shapes_at(most))
    bound = {length: first if length == 1 else bind(graph, ops, shapes_at(length)) for length in others}
    return _Grower(graph, ops, pairs, full, most, bound, rows).run()


class _Grower:
    def __init__(
        self,
        graph: Graph,
        ops: Mapping[str, Op],
        pairs: Sequence[CachePair],
        full: BoundGraph,
        most: int,
        others: Mapping[int, BoundGraph],
        rows: int,
    ) -> None:
        self.graph, self.ops, self.full, self.most, self.others, self.rows = graph, ops, full, most, others, rows
        self.pairs = {pair.node: pair for pair in pairs}
        self.pasts = {pair.past for pair in pairs}
        self.makers = {value: node for node in full.nodes for value in node.writes.values()}
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.host: dict[str, HostInput] = {}
        self.hosted: dict[HostInput | tuple[object, ...], str] = {}
        # By value, the axes along which it is zero behind its end.
        self.zero: dict[str, frozenset[int]] = {}
        self.masks = 0
        self.taken = {*full.specs, *(node.name for node in full.nodes)}
        self.refused: list[str] = []

    def run(self) -> Grown:
        try:
            return self._grown()
        except _NoRuleError as error:
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
                raise _NoRuleError(f"it has other nodes at a past of {length} rows than at one of {self.most}")
        read = {value for node in full.nodes for value in node.reads.values()} | set(full.outputs)
        steered = [name for name, array in full.constants.items() if name in read and not self._is_steady(name, array)]
        given = [name for name in full.inputs if name not in self.pasts]
        for name in (*full.inputs, *steered):
            if name not in self.pasts:
                self.zero[name] = frozenset(self._offsets(name))
        for i, node in enumerate(full.nodes):
            try:
                self._rewrite(node, [other.nodes[i] for other in self.others.values()])
            except _NoRuleError as error:
                self.refused.append(f"{node}: {error}")
        if self.refused:
            raise _NoRuleError("; ".join(self.refused))
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
        offsets = {name: self._offsets(name) for name in (*given, *full.outputs)}
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
        offsets = {name: self._offsets(name) for name in specs if not self._problem(name)}
        return steering_graph(self.graph, self.ops, steered, specs, offsets)

    def _is_steady(self, name: str, array: Array) -> bool:
        """Whether a constant is the same at all lengths."""
        others = [other.constants.get(name) for other in self.others.values()]
        return all(
            found is array or (found is not None and found.shape == array.shape and found.tobytes() == array.tobytes())
            for found in others
        )

    def _problem(self, value: str) -> str:
        """How a value differs from one length to another, where that is not by as much as the length."""
        dims = self.full.specs[value].shape
        for length, other in self.others.items():
            found = other.specs[value].shape
            same = len(found) == len(dims)
            if not same or any(
                int(a) - int(b) not in (0, self.most - length) for a, b in zip(dims, found, strict=True)
            ):
                return (
                    f"{value!r} is {shape_str(found)} at a past of {length} rows and {shape_str(dims)} at one of "
                    f"{self.most}; a dimension that grows is longer by as much as the past"
                )
        return ""

    def _offsets(self, value: str) -> Offsets:
        """By axis along which a value grows, how much longer than the past it is."""
        if problem := self._problem(value):
            raise _NoRuleError(problem)
        dims = self.full.specs[value].dims
        found = [other.specs[value].dims for other in self.others.values()]
        if self.most == 0 and not found:
            return {}
        growing = [axis for axis in range(len(dims)) if any(d[axis] != dims[axis] for d in found)]
        if any(d[axis] == dims[axis] for axis in growing for d in found):
            raise _NoRuleError(f"{value!r} grows at some lengths only")
        return {axis: dims[axis] - self.most for axis in growing}

    def _rewrite(self, node: BoundNode, others: Sequence[BoundNode]) -> None:
        """Add what a node becomes."""
        op = node.call.op
        growing = {name: found for name, value in node.reads.items() if (found := self._offsets(value))}
        made = {value: self._offsets(value) for value in node.writes.values()}
        differing = {
            name for other in others for name, value in node.call.attrs.items() if other.call.attrs[name] != value
        }
        if node.name in self.pairs and self.pairs[node.name].appends:
            self._append(node)
        elif op == "slice":
            self._slice(node, others, growing.get("x", {}), differing)
        elif differing - {"shape"} or (differing and op not in ("reshape", "expand")):
            raise _NoRuleError(f"its {', '.join(sorted(differing))} depends on the length")
        elif node.name in self.pairs:
            self._add(node, attrs={**node.call.attrs, "in_place": True})
        elif not growing and not any(made.values()):
            self._add(node)
        elif op in _ELEMENTWISE or op == "expand":
            self._add(node)
            if op in ("cast", "expand"):
                more = len(node.call.shape("y")) - len(node.call.shape("x"))
                self.zero[node.writes["y"]] = frozenset(a + more for a in self.zero.get(node.reads["x"], frozenset()))
        elif op in _RESHAPES or op == "identity":
            self._reshape(node)
        else:
            rule = getattr(self, f"_{op}", None) if op in _RULES else None
            if rule is not None:
                rule(node, growing)
            elif op in _BY_AXIS:
                self._not_along(node, growing)
                self._add(node)
            elif op in _NORMS:
                self._normalize(node, growing)
            else:
                raise _NoRuleError(f"its operand {next(iter(growing), 'y')} grows, and there is no rule for {op}")

    def _add(
        self,
        node: BoundNode,
        reads: Mapping[str, str] | None = None,
        attrs: Mapping[str, AttrValue] | None = None,
    ) -> None:
        """Add a node as it is, but for what it reads and its attributes."""
        op = self.ops[node.call.op]
        named = {**node.reads, **(reads or {})}
        inputs: list[str] = []
        for operand in op.operands:
            if operand.variadic:
                inputs += [value for name, value in named.items() if name.removeprefix(operand.name).isdigit()]
            else:
                inputs.append(named.get(operand.name, ""))
        while inputs and not inputs[-1]:
            inputs.pop()
        given = node.call.attrs if attrs is None else attrs
        self.nodes.append(Node(node.name, op.name, tuple(inputs), tuple(node.writes.values()), given))

    def _emit(self, like: BoundNode, op: str, *inputs: str, **attrs: AttrValue) -> str:
        """Add a node in front of another one; its output."""
        name = fresh(f"{like.name}/{op}", self.taken)
        self.nodes.append(Node(name, op, inputs, (name,), attrs))
        return name

    def _from_host(self, source: HostInput, stem: str) -> str:
        """The input in which the host says something of the length."""
        key = (
            source if not isinstance(source, FromEnd) else (source.offset, source.places.tobytes(), source.places.shape)
        )
        if key not in self.hosted:
            self.hosted[key] = fresh(stem, self.taken)
            self.host[self.hosted[key]] = source
        return self.hosted[key]

    def _masked_scores(self, node: BoundNode, axis: int) -> str:
        """Scores of an attention with -inf behind their end, where the mask that is added to them can have it: so that
        they stay what the pass `fuse_attention` knows. Empty where they are no such scores.

        What is behind the end of scores is a product with zeros: 0, or NaN where those of the whole row are NaN too.
        """
        x = node.reads["x"]
        last = self.makers.get(x)
        if last is None or axis != len(self.full.specs[x].dims) - 1:
            return ""
        if last.call.op == "add":
            for scores, mask in (("a", "b"), ("b", "a")):
                value = last.reads[mask]
                own = len(self.full.specs[value].dims) - 1
                if self._is_product(last.reads[scores]) and own in self._offsets(value):
                    return self._emit(node, "add", last.reads[scores], self._masked(node, value, own, -math.inf))
        return self._emit(node, "add", x, self._row_mask(node, x, axis)) if self._is_product(x) else ""

    def _is_product(self, value: str) -> bool:
        """Whether a value is a product, scaled or not, with zeros behind the end of its last axis."""
        maker = self.makers.get(value)
        if maker is None:
            return False
        if maker.call.op in ("mul", "div"):
            by = self.full.constants.get(maker.reads["b"])
            return (
                by is not None and by.size == 1 and bool(np.isfinite(by).all()) and self._is_product(maker.reads["a"])
            )
        if maker.call.op != "matmul" or set(maker.reads) != {"a", "b"}:
            return False
        b = maker.reads["b"]
        columns = len(maker.call.shape("b")) - (2 if maker.call["trans_b"] else 1)
        return columns in self.zero.get(b, frozenset())

    def _row_mask(self, node: BoundNode, value: str, axis: int) -> str:
        """A row of what is added to a value along an axis: 0, and -inf behind its end."""
        spec, offset = self.full.specs[value], self._offsets(value)[axis]
        meant = self._from_host(Meant((spec.dims[axis],), offset), "rows/meant")
        numbers = [self._number(fill, spec.dtype) for fill in (0.0, -math.inf)]
        self.masks += 1
        return self._emit(node, "where", meant, *numbers)

    def _number(self, number: float, dtype: DType) -> str:
        """A constant of one number."""
        name = f"rows/{number:g}:{dtype}"
        self.constants[name] = np.asarray(number, dtype.numpy)
        return name

    def _masked(self, node: BoundNode, value: str, axis: int, fill: float) -> str:
        """A value that a node reads, with ``fill`` behind its end along an axis."""
        spec, offset = self.full.specs[value], self._offsets(value)[axis]
        if fill == 0 and axis in self.zero.get(value, frozenset()):
            return value
        if not spec.dtype.is_float and not math.isfinite(fill):
            raise _NoRuleError(f"{value!r} is {spec.dtype}, whose rows behind the end have no number that is ignored")
        shape = (spec.dims[axis], *(1,) * (len(spec.dims) - 1 - axis))
        meant = self._from_host(Meant(shape, offset), "rows/meant")
        self.masks += 1
        return self._emit(node, "where", meant, value, self._number(fill, spec.dtype))

    def _append(self, node: BoundNode) -> None:
        """The concat that appends rows to a cache: they are written behind those that are there."""
        pair, y = self.pairs[node.name], node.writes["y"]
        if self._offsets(node.reads["x1"]):
            raise _NoRuleError(f"what it appends, {node.reads['x1']!r}, grows")
        place = self._from_host(Counted(0, 1), "rows/past")
        attrs: dict[str, AttrValue] = {"axis": pair.axis, "in_place": True}
        self.nodes.append(Node(node.name, "tensor_scatter", (pair.past, node.reads["x1"], place), (y,), attrs))
        self.zero[y] = frozenset({pair.axis})

    def _reshape(self, node: BoundNode) -> None:
        x, y = node.reads["x"], node.writes["y"]
        before, after = self._offsets(x), self._offsets(y)
        places = [
            [(offsets[axis], math.prod(self.full.specs[value].dims[axis + 1 :])) for axis in sorted(offsets)]
            for value, offsets in ((x, before), (y, after))
        ]
        if places[0] != places[1]:
            raise _NoRuleError(f"it takes apart or joins a dimension of {x!r} that grows")
        self._add(node)
        axes = dict(zip(sorted(before), sorted(after), strict=True))
        self.zero[y] = frozenset(axes[axis] for axis in self.zero.get(x, frozenset()))

    def _transpose(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        self._add(node)
        zero, perm = self.zero.get(node.reads["x"], frozenset()), node.call["perm"]
        self.zero[node.writes["y"]] = frozenset(to for to, axis in enumerate(perm) if axis in zero)

    def _matmul(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        reads = {}
        for name, summed in (("a", -2 if node.call["trans_a"] else -1), ("b", -1 if node.call["trans_b"] else -2)):
            rank = len(node.call.shape(name))
            axis = rank + summed if rank > 1 else 0
            if axis in growing.get(name, {}):
                reads[name] = self._masked(node, node.reads[name], axis, 0.0)
        self._add(node, reads)

    def _softmax(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        axis = node.call["axis"]
        if axis not in growing["x"]:
            self._add(node)
            return
        masked = self._masked_scores(node, axis) or self._masked(node, node.reads["x"], axis, -math.inf)
        self._add(node, {"x": masked})
        if not node.call["log"]:
            self.zero[node.writes["y"]] = frozenset({axis})

    def _reduce(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        rank = len(node.call.shape("x"))
        axes = [axis for axis in node.call["axes"] or range(rank) if axis in growing["x"]]
        self._folded(node, axes, _NEUTRAL)

    def _arg_reduce(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        self._folded(node, [axis for axis in growing["x"] if axis == node.call["axis"]], _EXTREMES)

    def _folded(self, node: BoundNode, axes: Sequence[int], neutral: Mapping[str, float]) -> None:
        """A node that makes one of many along some axes that grow."""
        if not axes:
            self._add(node)
            return
        op = node.call["op"]
        if op not in neutral or len(axes) > 1:
            raise _NoRuleError(f"it takes the {op} of rows that grow" + " along two axes" * (len(axes) > 1))
        self._add(node, {"x": self._masked(node, node.reads["x"], axes[0], neutral[op])})

    def _cumulative(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        if node.call["axis"] in growing["x"] and node.call["reverse"]:
            raise _NoRuleError("it adds rows up from the end")
        self._add(node)

    def _normalize(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        if set(growing) != {"x"} or max(growing["x"]) >= node.call["axis"]:
            raise _NoRuleError("it normalizes over rows that grow")
        self._add(node)

    def _not_along(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        axis = node.call["axis"]
        if any(axis in offsets for offsets in growing.values()):
            raise _NoRuleError("it works along the axis that grows")

    def _pad(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        self._same_offsets(node, growing["x"])

    def _tile(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        self._same_offsets(node, growing["x"])

    def _same_offsets(self, node: BoundNode, before: Offsets) -> None:
        if self._offsets(node.writes["y"]) != before:
            raise _NoRuleError("it makes more rows of those that grow")
        self._add(node)

    def _concat(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        axis, values = node.call["axis"], list(node.reads)
        along = [name for name, offsets in growing.items() if axis in offsets]
        if along and along != values[-1:]:
            raise _NoRuleError("it puts something behind rows that grow, which is no cache of the graph")
        self._add(node)

    def _gather(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        axis, indices = node.call["axis"], node.reads["indices"]
        offset = growing.get("x", {}).get(axis)
        if offset is None:
            self._add(node)
            return
        known = self.full.constants.get(indices)
        if known is None:
            raise _NoRuleError(f"it picks rows that grow by {indices!r}, which may count from the end")
        if self._is_steady(indices, known):
            if known.size and int(known.max()) >= offset:
                raise _NoRuleError(f"it picks row {known.max()}, which is not there where the past is empty")
            if known.size and int(known.min()) < 0:
                self._add(node, {"indices": self._from_host(FromEnd(known, offset), "rows/from_end")})
                return
        self._add(node)

    def _attention(self, node: BoundNode, growing: Mapping[str, Offsets]) -> None:
        if node.call["causal"]:
            raise _NoRuleError("it is causal, which counts queries from the first key on")
        rank, keys = len(node.call.shape("k")), -1 if node.call["trans_k"] else -2
        reads = {}
        for name, axis in (("k", rank + keys), ("v", rank - 2)):
            if growing.get(name, {}) not in ({}, {axis: growing.get(name, {}).get(axis)}):
                raise _NoRuleError(f"its {name} grows in more than its keys")
            if axis in growing.get(name, {}):
                reads[name] = self._masked(node, node.reads[name], axis, 0.0)
        if set(reads) != {"k", "v"} or "q" in growing:
            raise _NoRuleError("keys and values alone can grow")
        if "mask" in node.reads:
            last = len(node.call.shape("mask")) - 1
            if last not in growing.get("mask", {}):
                raise _NoRuleError("its mask does not grow with its keys")
            reads["mask"] = self._masked(node, node.reads["mask"], last, -math.inf)
        else:
            row = self._row_mask(node, node.reads["k"], rank + keys)
            reads["mask"] = self._emit(node, "unsqueeze", row, axes=(0,))
        self._add(node, reads)

    def _slice(self, node: BoundNode, others: Sequence[BoundNode], growing: Offsets, differing: set[str]) -> None:
        x, y, lengths = node.reads["x"], node.writes["y"], list(self.others)
        after = self._offsets(y)
        attrs = {name: list(node.call[name]) for name in ("starts", "ends", "axes", "steps")}
        moved: list[tuple[int, int, int]] = []  # axis, first row behind the past, rows
        if differing - {"starts", "ends"}:
            raise _NoRuleError(f"its {', '.join(sorted(differing))} depends on the length")
        for i, axis in enumerate(node.call["axes"]):
            starts = [node.call["starts"][i], *(other.call["starts"][i] for other in others)]
            behind = [start - length for start, length in zip(starts, (self.most, *lengths), strict=True)]
            rows = self.full.specs[y].dims[axis]
            if len(set(starts)) == 1:
                fixed = axis in growing and axis not in after
                if node.call["steps"][i] < 0 and axis in growing:
                    raise _NoRuleError("it takes rows that grow from the end on")
                if fixed and starts[0] + (rows - 1) * node.call["steps"][i] >= growing[axis]:
                    raise _NoRuleError(f"it takes {rows} rows, which are not all there where the past is empty")
            elif len(set(behind)) == 1 and axis not in after and node.call["steps"][i] == 1:
                moved.append((axis, behind[0], rows))
            else:
                raise _NoRuleError("where it starts depends on the length, and what it takes too")
        if not moved:
            self._add(node)
            if all(starts == 0 for starts in attrs["starts"]) and growing == after:
                self.zero[y] = self.zero.get(x, frozenset())
            return
        axes = [axis for axis, _, _ in moved]
        kept = [i for i, axis in enumerate(attrs["axes"]) if axis not in axes]
        value = x
        if kept:
            value = self._emit(node, "slice", x, **{name: tuple(row[i] for i in kept) for name, row in attrs.items()})
        for place, (axis, first, rows) in enumerate(moved):
            indices = self._from_host(Counted(first, rows), "rows/places")
            if place < len(moved) - 1:
                value = self._emit(node, "gather", value, indices, axis=axis)
            else:
                self.nodes.append(Node(node.name, "gather", (value, indices), (y,), {"axis": axis}))


# Ops whose rule is the method of their name.
_RULES = {
    "arg_reduce",
    "attention",
    "concat",
    "cumulative",
    "gather",
    "matmul",
    "pad",
    "reduce",
    "softmax",
    "tile",
    "transpose",
}


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
) -> Grown:
    """The graph for caches with bounds, of the ``shapes`` that its other inputs have behind a past of ``length`` rows;
    ``dims`` are named dimensions that none of them has. Raises as `grow` does."""
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
        return grow(graph, ops, pairs, shapes_at, min(bounds.values()))
    except (GraphError, UnsupportedError) as error:
        named = dict.fromkeys(dim for name in shapes for dim in specs[name].shape if isinstance(dim, str))
        summed = {term for dim in named if grows(dim, bounds) for term in terms(dim)}
        others = [dim for dim in named if not grows(dim, bounds) and dim not in summed]
        hint = f"; if {' or '.join(others)} grows with the past, give it a bound too" if others else ""
        raise type(error)(f"{error}{hint}") from None
