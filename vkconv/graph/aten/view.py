"""What an import rule sees: one node of an FX graph with typed access to its arguments, and ways to emit nodes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from vkconv.core import Array, DType
from vkconv.graph.ir import AttrValue, Node

DTYPES: dict[torch.dtype, DType] = {
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int64: DType.I64,
    torch.int32: DType.I32,
    torch.int16: DType.I16,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.bool: DType.BOOL,
}
Value = str | tuple[str, ...]


class RefusedError(Exception):
    """Something well-formed that vkconv does not have."""


def dtype_of(dtype: torch.dtype) -> DType:
    """vkconv's element type for torch's; RefusedError where there is none."""
    if dtype not in DTYPES:
        raise RefusedError(f"it has {str(dtype).removeprefix('torch.')}; vkconv has {', '.join(DTYPES.values())}")
    return DTYPES[dtype]


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor's elements on the host, as they lie there if they lie in order."""
    held = tensor.detach().cpu().contiguous()
    dtype = dtype_of(held.dtype)
    if dtype is DType.BF16:
        held = held.view(torch.uint16)
    made: Array = held.numpy()
    return made.view(dtype.numpy)


@dataclasses.dataclass
class Builder:
    """The graph while it grows; ``values`` has what each FX node makes, several names where it makes several."""

    nodes: list[Node] = dataclasses.field(default_factory=list)
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    values: dict[torch.fx.Node, Value] = dataclasses.field(default_factory=dict)
    _count: int = 0

    def fresh(self, stem: str) -> str:
        """A name that no FX node has: theirs are identifiers."""
        self._count += 1
        return f"{stem}/{self._count}"

    def constant(self, stem: str, array: Array) -> str:
        name = self.fresh(f"{stem}/const")
        self.constants[name] = array
        return name


@dataclasses.dataclass
class FxView:
    """One call of an operator. Arguments are read by place, or by name behind the given ones."""

    builder: Builder
    node: torch.fx.Node

    def refuse(self, reason: str) -> NoReturn:
        raise RefusedError(reason)

    def arg(self, i: int, default: Any = None) -> Any:
        """Argument i of the operator's schema, or the default where the call does not give it."""
        if i < len(self.node.args):
            return self.node.args[i]
        schema = getattr(self.node.target, "_schema", None)
        name = schema.arguments[i].name if schema is not None and i < len(schema.arguments) else ""
        return self.node.kwargs.get(name, default)

    def option(self, name: str, default: Any = None) -> Any:
        """An argument that is given by name alone."""
        return self.node.kwargs.get(name, default)

    def has(self, i: int) -> bool:
        return self.arg(i) is not None

    def meta(self, i: int) -> torch.Tensor:
        """The type and shape of tensor argument i."""
        made: torch.Tensor = self.arg(i).meta["val"]
        return made

    @property
    def made(self) -> Any:
        """The type and shape of what the node makes."""
        return self.node.meta["val"]

    def dtype(self, i: int) -> DType:
        return dtype_of(self.meta(i).dtype)

    def rank(self, i: int) -> int:
        return int(self.meta(i).dim())

    def int_of(self, value: Any) -> int:
        """A whole number that is known; refused where it is a size that is open."""
        if isinstance(value, torch.fx.Node) or not isinstance(value, int):
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

    def value(self, node: Any) -> str:
        held = self.builder.values.get(node)
        if not isinstance(held, str):
            self.refuse("it reads a value that is no tensor")
        return held

    def operand(self, i: int, dtype: DType) -> str:
        """Argument i, a tensor or a number, in an element type."""
        given = self.arg(i)
        if isinstance(given, torch.fx.Node):
            if not isinstance(given.meta.get("val"), torch.Tensor):
                self.refuse("it computes with a size that is open; export the program with that size fixed")
            return self.cast(self.value(given), dtype_of(given.meta["val"].dtype), dtype)
        return self.number(given, dtype)

    def cast(self, value: str, given: DType, to: DType) -> str:
        return value if given is to else self.emit("cast", value, to=str(to))

    def number(self, value: Any, dtype: DType) -> str:
        return self.builder.constant(self.node.name, np.asarray(value).astype(dtype.numpy))

    def emit(self, op: str, /, *inputs: str, **attrs: AttrValue) -> str:
        """A node with one output; returns the value's name."""
        value = self.builder.fresh(f"{self.node.name}/{op}")
        self.builder.nodes.append(Node(value, op, inputs, (value,), attrs))
        return value

    def emit_many(self, op: str, count: int, /, *inputs: str, **attrs: AttrValue) -> tuple[str, ...]:
        values = tuple(self.builder.fresh(f"{self.node.name}/{op}") for _ in range(count))
        self.builder.nodes.append(Node(values[0], op, inputs, values, attrs))
        return values

    def finish(self, value: Value) -> None:
        self.builder.values[self.node] = value


Rule = Callable[[FxView], None]
