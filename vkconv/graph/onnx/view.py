"""What an import rule sees: one ONNX node with typed access to its parts, and ways to emit vkconv nodes."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import onnx

from vkconv.core import Array, DType, ModelError, shape_str
from vkconv.graph.ir import AttrValue, Graph, Node
from vkconv.graph.onnx.narrow import Narrow
from vkconv.graph.onnx.proto import AttrData, Opaque, RefusedError, ValueType

_Kind = TypeVar("_Kind", bound=AttrData)


@dataclasses.dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence of tensors: the values in it, or a value that is ``split`` along an axis, into parts of ``sizes`` (a
    value of its own) or of one each, which keep that axis or lose it."""

    items: tuple[str, ...]
    split: str | None = None
    sizes: str = ""
    axis: int = 0
    keepdims: bool = True


@dataclasses.dataclass
class Builder:
    """The graph while it grows: nodes, constants, names taken, and what is known of each value."""

    infer: Callable[[], Mapping[str, ValueType]]
    consumed: frozenset[str]  # values that a node or the graph's outputs read
    results: frozenset[str]  # the graph's outputs
    taken: set[str]
    kept: Callable[[onnx.NodeProto], bool] = lambda node: False  # of nodes outside ONNX's domain
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    nodes: list[Node] = dataclasses.field(default_factory=list)
    # Identity of a constant is the constant itself: exporters share weights that way.
    alias: dict[str, str] = dataclasses.field(default_factory=dict)
    node_names: set[str] = dataclasses.field(default_factory=set)
    sequences: dict[str, Sequence] = dataclasses.field(default_factory=dict)
    bodies: dict[str, tuple[Graph, ...]] = dataclasses.field(default_factory=dict)
    # Values that a rule makes once for all nodes that would make the same, by what they are.
    shared: dict[tuple[object, ...], str] = dataclasses.field(default_factory=dict)
    # Dimensions of the graph's outputs as the model declares them: sizes, names, None for neither.
    declared: Mapping[str, tuple[int | str | None, ...]] = dataclasses.field(default_factory=dict)
    has_narrow: bool = False  # whether anything is of a type that no kernel has
    numbers: dict[str, int] = dataclasses.field(default_factory=dict)
    node_numbers: dict[str, int] = dataclasses.field(default_factory=dict)

    @cached_property
    def types(self) -> Mapping[str, ValueType]:
        """Types of values by name, inferred when a rule first asks: most models get by without."""
        return self.infer()

    def fresh(self, stem: str) -> str:
        """A value name that nothing in the model uses."""
        return _unique(stem, self.taken, self.numbers)

    def node_name(self, stem: str) -> str:
        return _unique(stem, self.node_names, self.node_numbers)

    def constant(self, stem: str, array: Array) -> str:
        """A new constant; returns its name."""
        name = self.fresh(stem)
        self.constants[name] = array
        return name


def _unique(stem: str, taken: set[str], last: dict[str, int]) -> str:
    """A name that is not taken, and is then; ``last`` keeps the number given last to each stem, so that a million of
    one name take no longer than as many different ones."""
    name = stem
    while name in taken:
        last[stem] = last.get(stem, 1) + 1
        name = f"{stem}_{last[stem]}"
    taken.add(name)
    return name


@dataclasses.dataclass
class NodeView:
    """One ONNX node. Attribute reads are recorded: one that no rule read is refused, never dropped."""

    builder: Builder
    name: str
    op_type: str
    version: int  # the opset of the model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, AttrData]
    read: set[str] = dataclasses.field(default_factory=set)

    def refuse(self, reason: str) -> NoReturn:
        raise RefusedError(reason)

    # Attributes, by the kind ONNX gives them.

    def has_attr(self, name: str) -> bool:
        return name in self.attrs

    def attr_int(self, name: str, default: int) -> int:
        return self._attr(name, int, default)

    def attr_flag(self, name: str, default: bool = False) -> bool:
        return bool(self._attr(name, int, int(default)))

    def attr_float(self, name: str, default: float) -> float:
        return self._attr(name, float, default)

    def attr_str(self, name: str, default: str) -> str:
        return self._attr(name, str, default)

    def attr_ints(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        values: tuple[Any, ...] = self._attr(name, tuple, default)
        if not all(isinstance(v, int) for v in values):
            self._mistyped(name, values, "integers")
        return values

    def attr_floats(self, name: str) -> tuple[float, ...]:
        values: tuple[Any, ...] = self._attr(name, tuple, ())
        if not all(isinstance(v, float) for v in values):
            self._mistyped(name, values, "floats")
        return values

    def attr_strs(self, name: str) -> tuple[str, ...]:
        values: tuple[Any, ...] = self._attr(name, tuple, ())
        if not all(isinstance(v, str) for v in values):
            self._mistyped(name, values, "strings")
        return values

    def attr_tensor(self, name: str) -> Array:
        """A tensor attribute that is known to be there."""
        return self._attr(name, np.ndarray, np.empty(0))

    def ignore(self, *names: str) -> None:
        """Declare attributes without effect on inference."""
        self.read.update(names)

    def _attr(self, name: str, kind: type[_Kind], default: _Kind) -> _Kind:
        self.read.add(name)
        value = self.attrs.get(name, default)
        if isinstance(value, Opaque):
            self.refuse(f"attribute {name!r} is {value.what}")
        if not isinstance(value, kind):
            self._mistyped(name, value, kind.__name__)
        return value

    def _mistyped(self, name: str, value: object, kind: str) -> NoReturn:
        raise ModelError(f"{self.op_type} node {self.name!r}: attribute {name!r} is {value!r}, ONNX wants {kind}")

    # Operands.

    def input(self, i: int) -> str:
        """Name of input i, "" where absent."""
        name = self.inputs[i] if i < len(self.inputs) else ""
        return self.builder.alias.get(name, name)

    def has(self, i: int) -> bool:
        return bool(self.input(i))

    def const(self, i: int) -> Array | None:
        """The array of input i where the model fixes it, else None."""
        return self.builder.constants.get(self.input(i))

    def const_ints(self, i: int) -> tuple[int, ...] | None:
        array = self.const(i)
        if array is None:
            return None
        if array.dtype.kind not in "iu":
            raise ModelError(
                f"{self.op_type} node {self.name!r}: input {i} ({self.input(i)!r}) holds {array.dtype}, not integers"
            )
        return tuple(int(v) for v in array.reshape(-1))

    def const_scalar(self, i: int) -> float | None:
        """The single number of a constant input; refuses constants with several."""
        array = self.const(i)
        if array is None:
            return None
        if array.size != 1:
            self.refuse(f"input {i} must be one number, it has shape {shape_str(array.shape)}")
        return float(array.reshape(-1)[0])

    def _exact_scalar(self, i: int) -> float | None:
        """`const_scalar`; refuses an integer that a float rounds."""
        array, value = self.const(i), self.const_scalar(i)
        if array is not None and array.dtype.kind in "iu" and array.reshape(-1)[0].item() != value:
            self.refuse(f"input {i} is {array.reshape(-1)[0]}, not exact as a float, which is how vkconv holds it")
        return value

    def rank(self, i: int) -> int | None:
        """Rank of input i where it can be told from the model."""
        array = self.const(i)
        if array is not None:
            return array.ndim
        known = self.builder.types.get(self.input(i))
        return known.rank if known else None

    def dims(self, i: int) -> tuple[int | None, ...]:
        """Dimensions of input i, None for those that cannot be told from the model; none where its rank cannot."""
        array = self.const(i)
        if array is not None:
            return array.shape
        known = self.builder.types.get(self.input(i))
        return known.dims if known else ()

    def size(self, i: int, axis: int) -> int | str | None:
        """A dimension of input i: a number, the name that the model has for it, or None where it cannot be told."""
        array = self.const(i)
        if array is not None:
            return array.shape[axis] if axis < array.ndim else None
        known = self.builder.types.get(self.input(i))
        if known is None or axis >= len(known.dims):
            return None
        return known.dims[axis] if known.dims[axis] is not None else known.symbols[axis] or None

    def is_as_long(self, i: int, output: int, axis: int) -> bool:
        """Whether the model declares that an output has as many rows along an axis as input i."""
        declared = self.builder.declared.get(self.outputs[output], ()) if output < len(self.outputs) else ()
        return axis < len(declared) and declared[axis] is not None and declared[axis] == self.size(i, axis)

    def need_rank(self, i: int) -> int:
        rank = self.rank(i)
        if rank is None:
            self.refuse(f"the rank of input {i} ({self.input(i)!r}) cannot be told from the model")
        return rank

    def dtype(self, i: int) -> DType:
        """Element type of input i; f32 where it cannot be told."""
        array = self.const(i)
        if array is not None:
            return DType.of(array.dtype)
        known = self.builder.types.get(self.input(i))
        return (known.dtype if known else None) or DType.F32

    def narrow(self, i: int) -> Narrow | None:
        """The type of input i where no kernel has it, and the graph has it as bytes."""
        if not self.builder.has_narrow or not self.has(i):
            return None
        known = self.builder.types.get(self.inputs[i])
        return known.narrow if known else None

    def host(self, number: str = "", **positions: int) -> tuple[list[str], dict[str, AttrValue]]:
        """Operands that steer an op (shape, axes, value): constants as attributes, others as node inputs.

        ``positions`` maps vkconv's operand name to the ONNX input, in vkconv's operand order. The operand
        named ``number`` is one float, all others are lists of integers.
        """
        inputs: list[str] = []
        attrs: dict[str, AttrValue] = {}
        for name, i in positions.items():
            value = self._exact_scalar(i) if name == number else self.const_ints(i)
            inputs.append(self.input(i) if value is None else "")
            if value is not None:
                attrs[name] = value
        while inputs and not inputs[-1]:
            inputs.pop()
        return inputs, attrs

    def only_outputs(self, count: int, reason: str) -> None:
        """Refuse the node where an output beyond ``count`` is used."""
        for output in self.outputs[count:]:
            if output and output in self.builder.consumed:
                self.refuse(reason)
        self.outputs = self.outputs[:count]

    # Emitting.

    def emit(self, op: str, /, *inputs: str, **attrs: AttrValue) -> str:
        """An intermediate node with one output; returns the value's name."""
        value = self.builder.fresh(f"{self.outputs[0]}/{op}")
        self.builder.nodes.append(Node(self.builder.node_name(f"{self.name}/{op}"), op, inputs, (value,), attrs))
        return value

    def emit_counted(self, op: str, /, *inputs: str, **attrs: AttrValue) -> tuple[str, str]:
        """An intermediate node of an op that makes as much as there can be, and counts what of it is meant: both."""
        return self.emit_pair(op, *inputs, **attrs)

    def emit_pair(self, op: str, /, *inputs: str, **attrs: AttrValue) -> tuple[str, str]:
        """An intermediate node with two outputs: both."""
        outputs = tuple(self.builder.fresh(f"{self.outputs[0]}/{name}") for name in (op, "second"))
        self.builder.nodes.append(Node(self.builder.node_name(f"{self.name}/{op}"), op, inputs, outputs, attrs))
        return outputs[0], outputs[1]

    def write(self, i: int, op: str, /, *inputs: str, **attrs: AttrValue) -> None:
        """A node that writes output i of an ONNX node with several; nothing where the model leaves it out."""
        if i < len(self.outputs) and self.outputs[i]:
            name = self.name if i == 0 else self.builder.node_name(f"{self.name}/{i}")
            self.builder.nodes.append(Node(name, op, inputs, (self.outputs[i],), attrs))

    def finish(self, op: str, /, *inputs: str, **attrs: AttrValue) -> None:
        """The node that writes the ONNX node's outputs and bears its name; the last one a rule emits."""
        self.builder.nodes.append(Node(self.name, op, inputs, self.outputs, attrs))

    def ints(self, *values: int) -> str:
        """A new constant of rank 1, as shapes are."""
        return self.number(values, DType.I64)

    def number(self, value: npt.ArrayLike, dtype: DType) -> str:
        """A new constant. A whole number that the type does not hold is refused."""
        given = np.asarray(value)
        made = given.astype(dtype.numpy)
        if given.dtype.kind in "iu" and not dtype.is_float and (made != given).any():
            self.refuse(f"{given} does not fit into {dtype}")
        return self.builder.constant(f"{self.outputs[0]}/const", made)
