"""What an import rule sees: one call of an operator with typed access to its arguments, and ways to emit nodes. Whose
call it is, a node's of an FX graph or one of a compiled program, is left to `CallView`'s subclasses; torch is not
needed here."""

import abc
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from vkconv.core import Array, DType
from vkconv.graph.ir import AttrValue, Graph, Node, TensorSpec

Value = str | tuple[str, ...]


class RefusedError(Exception):
    """Something well-formed that vkconv does not have."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """Type and shape of a tensor. A size is an int, or anything else where it is open. ``in_order`` says that its
    elements lie in memory in the order of their indices."""

    shape: tuple[Any, ...]
    dtype: DType
    in_order: bool = True

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclasses.dataclass
class Builder:
    """The graph while it grows; ``values`` has what each call makes, several names where it makes several, by
    whatever a view's arguments name it with."""

    nodes: list[Node] = dataclasses.field(default_factory=list)
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    values: dict[Hashable, Value] = dataclasses.field(default_factory=dict)
    _count: int = 0

    def fresh(self, stem: str) -> str:
        """A name that no call or input has: theirs are identifiers."""
        self._count += 1
        return f"{stem}/{self._count}"

    def constant(self, stem: str, array: Array) -> str:
        name = self.fresh(f"{stem}/const")
        self.constants[name] = array
        return name

    def emit(self, stem: str, op: str, /, *inputs: str, **attrs: AttrValue) -> str:
        """A node with one output; returns the value's name."""
        value = self.fresh(f"{stem}/{op}")
        self.nodes.append(Node(value, op, inputs, (value,), attrs))
        return value

    def graph(
        self, inputs: Mapping[str, TensorSpec], outputs: Sequence[str], title: str, names: Sequence[str] = ()
    ) -> Graph:
        """The graph called ``title`` that makes these values, each as an output of its own, of these names where they
        are given. Constants that nothing reads are left out."""
        to = dict[str, str]()
        for i, value in enumerate(outputs):
            if value in inputs or value in self.constants or value in to:
                value = self.emit("y", "identity", value)
            name = names[i] if names else value
            to[value] = name if name not in inputs and name not in to.values() else value
        nodes = tuple(
            Node(n.name, n.op, tuple(to.get(v, v) for v in n.inputs), tuple(to.get(v, v) for v in n.outputs), n.attrs)
            for n in self.nodes
        )
        used = {value for node in nodes for value in node.inputs}
        constants = {name: array for name, array in self.constants.items() if name in used}
        return Graph(inputs, tuple(to.values()), nodes, constants, title)


class CallView(abc.ABC):
    """One call of an operator of ATen. Arguments are read by their place in the operator's schema."""

    builder: Builder
    name: str
    """Of the call: what its nodes are named after."""
    operator: str
    """As `rules.RULES` has it: name and overload."""

    # What a subclass knows.

    @abc.abstractmethod
    def arg(self, i: int, default: Any = None) -> Any:
        """Argument i of the operator's schema, or the default where the call does not give it."""

    @abc.abstractmethod
    def option(self, name: str, i: int, default: Any = None) -> Any:
        """Argument i of the schema, which is given by ``name`` alone."""

    @abc.abstractmethod
    def tensor_type(self, given: Any) -> TensorType | None:
        """Of what an argument is, if it is a tensor. RefusedError where vkconv has no such element type."""

    @property
    @abc.abstractmethod
    def made(self) -> Any:
        """The `TensorType` of what the call makes, or a tuple of them."""

    @abc.abstractmethod
    def used(self) -> set[int]:
        """Which outputs of several anything reads."""

    @abc.abstractmethod
    def finish(self, value: Value) -> None:
        """What the call makes; of several outputs those that are not made are ``""``."""

    # What rules ask.

    def refuse(self, reason: str) -> NoReturn:
        raise RefusedError(reason)

    def has(self, i: int) -> bool:
        return self.arg(i) is not None

    def type_of(self, given: Any) -> TensorType:
        """The type and shape of an argument, or of a member of one, that must be a tensor."""
        found = self.tensor_type(given)
        if found is None:
            self.refuse("it reads a value that is no tensor")
        return found

    def meta(self, i: int) -> TensorType:
        """The type and shape of tensor argument i."""
        return self.type_of(self.arg(i))

    def dtype(self, i: int) -> DType:
        return self.meta(i).dtype

    def rank(self, i: int) -> int:
        return self.meta(i).rank

    def int_of(self, value: Any) -> int:
        """A whole number that is known; refused where it is a size that is open."""
        if not isinstance(value, int):
            self.refuse("a size that it takes is open; export the program with that size fixed")
        return int(value)

    def ints(self, i: int, count: int | None = None, default: Sequence[int] = ()) -> tuple[int, ...]:
        """A list of whole numbers; one stands for all of ``count``."""
        given = self.arg(i, default)
        values = tuple(self.int_of(v) for v in (given if isinstance(given, list | tuple) else (given,)))
        return values * count if count is not None and len(values) == 1 else values

    def dims(self, shape: Sequence[Any]) -> tuple[int, ...]:
        """Sizes to reshape to, of which one may be open."""
        sizes = tuple(v if type(v) is int else -1 for v in shape)
        if sizes.count(-1) > 1:
            self.refuse("more than one size of what it makes is open; export the program with all but one fixed")
        return sizes

    def axis(self, value: Any, rank: int) -> int:
        return self.int_of(value) % max(rank, 1)

    # Values.

    def x(self, i: int) -> str:
        """The value of tensor argument i."""
        return self.value(self.arg(i))

    def value(self, given: Any) -> str:
        held = self.builder.values.get(given) if isinstance(given, Hashable) else None
        if not isinstance(held, str):
            self.refuse("it reads a value that is no tensor")
        return held

    def operand(self, i: int, dtype: DType) -> str:
        """Argument i, a tensor or a number, in an element type."""
        given = self.arg(i)
        found = self.tensor_type(given)
        if found is not None:
            return self.cast(self.value(given), found.dtype, dtype)
        if not isinstance(given, int | float):
            self.refuse("it computes with a size that is open; export the program with that size fixed")
        return self.number(given, dtype)

    def cast(self, value: str, given: DType, to: DType) -> str:
        return value if given is to else self.emit("cast", value, to=str(to))

    def number(self, value: Any, dtype: DType) -> str:
        """A constant of what is given, rounded as torch does; refused where integers cannot hold it."""
        given = np.asarray(value)
        with np.errstate(all="ignore"):
            made: Array = given.astype(dtype.numpy)
            if given.dtype.kind == "f" and not dtype.is_float:
                held = bool((np.abs(made.astype(np.float64) - given) < 1).all())
            else:
                held = dtype.is_float or bool((made == given).all())
        if not held and dtype is not DType.BOOL:
            self.refuse(f"it takes a number that {dtype} does not hold")
        return self.builder.constant(self.name, made)

    def emit(self, op: str, /, *inputs: str, **attrs: AttrValue) -> str:
        """A node with one output; returns the value's name."""
        return self.builder.emit(self.name, op, *inputs, **attrs)

    def emit_many(self, op: str, count: int, /, *inputs: str, **attrs: AttrValue) -> tuple[str, ...]:
        values = tuple(self.builder.fresh(f"{self.name}/{op}") for _ in range(count))
        self.builder.nodes.append(Node(values[0], op, inputs, values, attrs))
        return values


Rule = Callable[[CallView], None]
