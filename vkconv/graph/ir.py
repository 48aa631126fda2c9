"""The graph: named values, nodes in order, constants. Plain data, checked when it is made."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.core import Array, DType, GraphError, Shape, did_you_mean, shape_str

Dim = int | str
_ONLY_INT = frozenset({int})
AttrValue = bool | int | float | str | tuple[int, ...] | tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and element type of a value. A dimension is an int, or a str naming one that is bound at run time."""

    shape: tuple[Dim, ...]
    dtype: DType = DType.F32

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def dims(self) -> Shape:
        """The shape as ints; raises GraphError while a dimension is symbolic."""
        # Asked for by every rule, many times: no loop in Python.
        if not _ONLY_INT.issuperset(map(type, self.shape)) and not self.is_static:
            raise GraphError(f"shape {shape_str(self.shape)} has unbound dimensions; bind them with shapes=")
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        """Number of elements (1 for rank 0)."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.nbytes

    def __str__(self) -> str:
        return f"{shape_str(self.shape)}:{self.dtype}"


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One op. ``inputs`` and ``outputs`` name values; an absent optional input is ``""``."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, AttrValue] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op} node {self.name!r}"


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """What a model says of one of its outputs: an element type, empty where it says none, and dimensions, None where
    they are open."""

    dtype: str
    dims: tuple[int | None, ...] | None

    def contradiction(self, found: TensorSpec, with_dims: bool) -> str:
        """How what was found out contradicts it; empty where it does not. Without dimensions their number counts."""
        fits = self.dims is None or (
            len(self.dims) == len(found.shape)
            and not (with_dims and any(d is not None and d != f for d, f in zip(self.dims, found.shape, strict=True)))
        )
        if fits and self.dtype in ("", found.dtype):
            return ""
        shape = "any shape" if self.dims is None else shape_str("?" if d is None else d for d in self.dims)
        return f"is declared as {shape}:{self.dtype or '?'}, and its nodes make {found}"


@dataclasses.dataclass(frozen=True)
class Graph:
    """A network: ``inputs`` (name to spec, in order), ``outputs`` (names), ``nodes`` in executable order,
    ``constants`` (name to array), free-text ``metadata`` that travels with the file, and what its file has ``declared``
    of outputs, which binding holds against what their nodes make. ``bodies`` has the graphs of each node of control
    flow, by its name: the branches of an ``if``, what a ``loop`` or ``scan`` repeats (`vkconv.plan.control`).

    Making one checks it: every name a node reads exists before that node, no value is written twice, node
    names are unique, outputs exist. Raises GraphError naming the node and the value.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    name: str = "graph"
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    declared: Mapping[str, Declared] = dataclasses.field(default_factory=dict)
    bodies: Mapping[str, tuple["Graph", ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        known = dict.fromkeys(self.inputs)
        for name, spec in self.inputs.items():
            if any(isinstance(d, int) and d < 0 for d in spec.shape):
                raise GraphError(
                    f"graph {self.name!r}: input {name!r} is {shape_str(spec.shape)}, and a dimension is not negative; "
                    "name the ones that are open"
                )
        for constant in self.constants:
            if constant in known:
                raise GraphError(f"graph {self.name!r}: {constant!r} is both an input and a constant")
            known[constant] = None
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise GraphError(f"graph {self.name!r}: two nodes are named {node.name!r}; names must differ")
            names.add(node.name)
            for value in node.inputs:
                if value and value not in known:
                    raise GraphError(
                        f"{node} reads {value!r}, which nothing before it makes{did_you_mean(value, known)}"
                    )
            for value in node.outputs:
                if value in known:
                    raise GraphError(f"{node} writes {value!r}, which already exists")
                if value:
                    known[value] = None
        for value in self.outputs:
            if value not in known:
                raise GraphError(
                    f"graph {self.name!r}: output {value!r} is made by no node{did_you_mean(value, known)}"
                )

    @property
    def is_static(self) -> bool:
        """True when every input's shape is all ints, so that a plan can be made without more to go on."""
        return all(spec.is_static for spec in self.inputs.values())

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the unbound dimensions, in order of appearance."""
        return tuple(dict.fromkeys(d for s in self.inputs.values() for d in s.shape if isinstance(d, str)))

    def replace(self, **changes: object) -> "Graph":
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
