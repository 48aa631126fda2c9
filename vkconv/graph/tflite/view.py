"""What an import rule sees: one operator with typed access to its parts, and ways to emit vkconv nodes."""

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from vkconv.core import Array, DType, ModelError, shape_str
from vkconv.graph.ir import AttrValue, Node, TensorSpec
from vkconv.graph.tflite.reader import Model, Operator, Quantization, Tensor, guarded

# From channels last to channels first, and back.
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
# Constants may be made of shared ones, but no model becomes so many times as large.
_GROWTH, _SPARE_BYTES = 16, 1 << 30
BYTES = (DType.I8, DType.U8)
# Activations at the end of an operator, by the schema's number.
_FUSED: dict[int, tuple[str, dict[str, AttrValue]]] = {
    1: ("relu", {}),
    2: ("clip", {"a": -1.0, "b": 1.0}),
    3: ("relu6", {}),
    4: ("tanh", {}),
}


class RefusedError(Exception):
    """Something well-formed that vkconv does not have; the importer collects these into one error."""


@dataclasses.dataclass
class State:
    """A variable, which a model keeps between runs: the graph's input that it comes in by with its type, None where it
    is written before it is read, and the value that it has by now."""

    input: tuple[str, TensorSpec] | None
    value: str


@dataclasses.dataclass
class Builder:
    """The graph while it grows. A tensor's value is held as it is ``stored``, which may be quantized, and as ``real``
    numbers once something computes with those."""

    model: Model
    nodes: list[Node] = dataclasses.field(default_factory=list)
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    stored: dict[int, str] = dataclasses.field(default_factory=dict)
    real: dict[int, str] = dataclasses.field(default_factory=dict)
    first: dict[str, str] = dataclasses.field(default_factory=dict)  # values with their channels first
    known: dict[int, Array] = dataclasses.field(default_factory=dict)  # constants that rules computed
    handles: dict[int, str] = dataclasses.field(default_factory=dict)  # variables that tensors stand for
    states: dict[str, State] = dataclasses.field(default_factory=dict)  # of variables, by their names
    _taken: dict[str, int] = dataclasses.field(default_factory=dict)
    _nodes_taken: dict[str, int] = dataclasses.field(default_factory=dict)
    _made_bytes: int = 0

    def fresh(self, stem: str) -> str:
        """A value name that nothing has."""
        return _unique(stem or "value", self._taken)

    def constant(self, stem: str, array: Array) -> str:
        """A new constant; returns its name."""
        self._made_bytes += array.nbytes
        most = _GROWTH * self.model.nbytes + _SPARE_BYTES
        if self._made_bytes > most:
            raise ModelError(
                f"its constants would be more than {most} bytes, in a file of {self.model.nbytes}; the file is damaged"
            )
        name = self.fresh(stem)
        self.constants[name] = array
        return name

    def emit(self, title: str, op: str, /, *inputs: str, **attrs: AttrValue) -> str:
        """A node with one output; returns the value's name."""
        value = self.fresh(f"{title}/{op}")
        self.nodes.append(Node(_unique(f"{title}/{op}", self._nodes_taken), op, inputs, (value,), attrs))
        return value

    def array(self, index: int) -> Array | None:
        """What a tensor holds as stored, where the model fixes it."""
        known = self.known.get(index)
        return self.model.tensors[index].data if known is None else known

    def scales(self, title: str, q: Quantization, dtype: DType) -> tuple[str, str]:
        """Constants of scale and zero point: numbers for the tensor, or vectors."""
        shape = () if q.per_tensor else q.scale.shape
        scale = self.constant(f"{title}/scale", q.scale.reshape(shape))
        return scale, self.constant(f"{title}/zero", whole(q.zero.reshape(shape), dtype))

    def value(self, index: int, real: bool) -> str:
        """The name of a tensor's value."""
        tensor, held = self.model.tensors[index], self.real if real else self.stored
        if index in held:
            return held[index]
        array = self.array(index)
        if array is None and index not in self.stored:
            what = "of a state that is kept between runs" if tensor.is_variable else "that nothing before it makes"
            raise RefusedError(f"it reads {tensor.name!r}, a value {what}; convert the model without it")
        if tensor.dtype is None:
            raise RefusedError(f"it reads {tensor.type_name} ({tensor.name!r}), a type that vkconv does not have")
        q = tensor.quantization
        if array is not None:
            held[index] = self.constant(tensor.name, dequantized(array, q) if real and q is not None else array)
        elif not real or q is None or tensor.dtype.is_float:
            held[index] = self.stored[index]
        elif tensor.dtype in BYTES:
            scales = self.scales(tensor.name, q, tensor.dtype)
            held[index] = self.emit(tensor.name, "dequantize_linear", self.stored[index], *scales, axis=q.axis)
        else:
            raise RefusedError(
                f"it computes with {tensor.dtype} quantized by a scale ({tensor.name!r}); vkconv has i8 and u8: "
                "convert with full integer quantization of 8 bits"
            )
        return held[index]


def _unique(stem: str, taken: dict[str, int]) -> str:
    name, number = stem, taken.get(stem, 0)
    while name in taken:
        number += 1
        name = f"{stem}_{number + 1}"
    taken[stem] = number
    taken.setdefault(name, 0)
    return name


def whole(values: npt.ArrayLike, dtype: DType) -> Array:
    """Whole numbers as ``dtype``; ModelError where they do not fit."""
    given = np.asarray(values)
    made: Array = given.astype(dtype.numpy)
    if (made != given).any():
        raise ModelError(f"a zero point or bias does not fit into {dtype}; the file is damaged")
    return made


def dequantized(array: Array, q: Quantization) -> Array:
    """The real numbers of a constant, in f32."""
    if array.dtype.kind == "f":
        return array
    shape = (1,) * array.ndim if q.per_tensor else tuple(-1 if i == q.axis else 1 for i in range(array.ndim))
    centred = array.astype(np.float64) - q.zero.astype(np.float64).reshape(shape)
    made: Array = (centred * q.scale.astype(np.float64).reshape(shape)).astype(np.float32)
    return made


@dataclasses.dataclass
class OpView:
    """One operator. A rule reads operands by number and ends with ``finish``."""

    builder: Builder
    op: Operator
    title: str

    def refuse(self, reason: str) -> NoReturn:
        raise RefusedError(reason)

    # Options and operands.

    def option(self, name: str, default: Any = 0) -> Any:
        """A field of the operator's table of options, or the default where it has none."""
        if self.op.options is None:
            return default
        read = getattr(self.op.options, name, None)
        if read is None:
            kind = type(self.op.options).__name__
            raise ModelError(f"{self.op.name} {self.title!r} has {kind}, which have no {name}; the file is damaged")
        return guarded(f"{self.op.name} {self.title!r}", read)

    def has(self, i: int) -> bool:
        return i < len(self.op.inputs) and self.op.inputs[i] >= 0

    def index(self, i: int) -> int:
        if not self.has(i):
            raise ModelError(f"{self.op.name} {self.title!r} lacks its operand {i}; the file is damaged")
        return self.op.inputs[i]

    def tensor(self, i: int) -> Tensor:
        return self.builder.model.tensors[self.index(i)]

    def output(self, i: int = 0) -> Tensor:
        return self.builder.model.tensors[self.op.outputs[i]]

    def rank(self, i: int) -> int:
        return self.tensor(i).rank

    def need_rank(self, i: int, rank: int) -> None:
        if self.rank(i) != rank:
            raise ModelError(f"{self.op.name} {self.title!r}: operand {i} is {shape_str_of(self.tensor(i))}, of rank "
                             f"{self.rank(i)} where {rank} is due; the file is damaged")  # fmt: skip

    def dtype(self, i: int) -> DType:
        """The type that the real numbers of operand i are computed in."""
        tensor = self.tensor(i)
        return DType.F32 if tensor.quantization is not None or tensor.dtype is None else tensor.dtype

    def const(self, i: int) -> Array | None:
        """Operand i as stored, where the model fixes it."""
        return self.builder.array(self.index(i)) if self.has(i) else None

    def ints(self, i: int, what: str) -> tuple[int, ...]:
        """A constant operand of integers; refused where it is computed."""
        array = self.const(i)
        if array is None:
            self.refuse(f"its {what} are computed; vkconv has constant ones there")
        if array.dtype.kind not in "iu":
            raise ModelError(f"{self.op.name} {self.title!r}: its {what} are {array.dtype}, no integers; it is damaged")
        return tuple(int(v) for v in array.reshape(-1))

    def host(self, **positions: int) -> tuple[list[str], dict[str, AttrValue]]:
        """Operands that steer an op: constants as attributes, others as i64 inputs, in vkconv's operand order."""
        inputs, attrs = list[str](), dict[str, AttrValue]()
        for name, i in positions.items():
            if self.const(i) is not None:
                attrs[name] = self.ints(i, name)
                inputs.append("")
            else:
                inputs.append(self.emit("cast", self.stored(i), to="i64"))
        while inputs and not inputs[-1]:
            inputs.pop()
        return inputs, attrs

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= value < rank:
            raise ModelError(f"{self.op.name} {self.title!r}: axis {value} of rank {rank}; the file is damaged")
        return value % rank

    # Values.

    def x(self, i: int) -> str:
        """Operand i in real numbers."""
        return self.builder.value(self.index(i), real=True)

    def stored(self, i: int) -> str:
        """Operand i as it is stored."""
        return self.builder.value(self.index(i), real=False)

    def first(self, value: str) -> str:
        """A value of rank 4 with its channels first."""
        held = self.builder.first
        if value not in held:
            held[value] = self.permuted(value, TO_FIRST)
        return held[value]

    def permuted(self, value: str, perm: tuple[int, ...]) -> str:
        """A value with its dimensions in another order; of a constant, now."""
        array = self.builder.constants.get(value)
        if array is None:
            return self.emit("transpose", value, perm=perm)
        if array.ndim != len(perm):
            raise ModelError(f"{value!r} has rank {array.ndim} where {len(perm)} is due; the file is damaged")
        return self.builder.constant(f"{value}/moved", np.ascontiguousarray(np.transpose(array, perm)))

    def last(self, value: str) -> str:
        """A value that was made with its channels first, as the model has it."""
        made = self.emit("transpose", value, perm=TO_LAST)
        self.builder.first[made] = value
        return made

    def number(self, value: npt.ArrayLike, dtype: DType) -> str:
        return self.builder.constant(f"{self.title}/const", np.asarray(value, dtype.numpy))

    def emit(self, op: str, /, *inputs: str, **attrs: AttrValue) -> str:
        return self.builder.emit(self.title, op, *inputs, **attrs)

    # Results.

    def fused(self, value: str, activation: int | None = None) -> str:
        """A value behind the activation that the operator ends with."""
        code = self.option("FusedActivationFunction") if activation is None else activation
        if not code:
            return value
        if code not in _FUSED:
            self.refuse(f"its fused activation is number {code}; vkconv has {', '.join(map(str, _FUSED))}")
        op, attrs = _FUSED[code]
        return self.emit(op, value, **attrs)

    def finish(self, value: str, i: int = 0) -> None:
        """Real numbers as output i, which are quantized where the model stores it so."""
        tensor, index = self.output(i), self.op.outputs[i]
        q = tensor.quantization
        if q is None or tensor.dtype is None or tensor.dtype.is_float:
            self.finish_stored(value, i)
            return
        if tensor.dtype not in BYTES:
            self.refuse(f"it makes {tensor.dtype} quantized by a scale; vkconv has i8 and u8")
        scales = self.builder.scales(tensor.name, q, tensor.dtype)
        self.builder.stored[index] = self.emit("quantize_linear", value, *scales, axis=q.axis)

    def finish_stored(self, value: str, i: int = 0) -> None:
        """A value as output i is stored."""
        self.builder.stored[self.op.outputs[i]] = value

    def finish_constant(self, array: Array, i: int = 0) -> None:
        """Output i is the same at every run."""
        self.builder.known[self.op.outputs[i]] = array


def shape_str_of(tensor: Tensor) -> str:
    return shape_str("?" if d is None else d for d in tensor.dims)


Rule = Callable[[OpView], None]
