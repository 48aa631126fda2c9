"""What export rules work with: the model while it grows, and one node of the graph with ways to write ONNX nodes."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper

from vkconv.core import Array, DType
from vkconv.graph.ir import Node, TensorSpec
from vkconv.graph.onnx.proto import DTYPES
from vkconv.ops import OPS

# Widely read, and with every op of the rules but some that came later: a rule that needs one of those says so.
OPSET = 20
# Of ONNX Runtime's own operators.
CONTRIB = "com.microsoft"
ELEMENT_TYPES: Mapping[DType, int] = {dtype: number for number, dtype in DTYPES.items()}


class RefusedError(Exception):
    """A node that ONNX has no equivalent for, and why."""


@dataclasses.dataclass
class Export:
    """The model while it grows."""

    taken: set[str]
    dtypes: dict[str, DType]
    constants: dict[str, Array]
    specs: Mapping[str, TensorSpec]
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    opset: int = OPSET

    def fresh(self, stem: str) -> str:
        """A value name that nothing in the model uses."""
        name, i = stem, 1
        while name in self.taken:
            i += 1
            name = f"{stem}_{i}"
        self.taken.add(name)
        return name


Rule = Callable[["View"], None]


@dataclasses.dataclass
class View:
    """One node for a rule: its operands and attributes, defaults filled in, and ways to write ONNX nodes."""

    export: Export
    node: Node
    attrs: Mapping[str, Any] = dataclasses.field(init=False)
    _named: bool = False

    def __post_init__(self) -> None:
        self.attrs = {a.name: self.node.attrs.get(a.name, a.default) for a in OPS[self.node.op].attrs}

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.node.inputs

    @property
    def output(self) -> str:
        return self.node.outputs[0]

    def input(self, name: str) -> str:
        """The value of an operand, "" where it is absent."""
        place = [operand.name for operand in OPS[self.node.op].operands].index(name)
        return self.node.inputs[place] if place < len(self.node.inputs) else ""

    def host(self, name: str, dtype: DType = DType.I64, *, scalar: bool = False) -> str:
        """An operand that steers the op: the value that the node reads, or its attribute as a constant; "" where that
        is empty and may be left out."""
        if self.input(name):
            return self.input(name)
        value = self.attrs[name]
        operand = next(operand for operand in OPS[self.node.op].operands if operand.name == name)
        if isinstance(value, tuple) and not value and operand.optional:
            return ""
        return self.number(value if scalar or isinstance(value, tuple) else (value,), dtype)

    def rank(self, value: str) -> int | None:
        """The rank of a value, where the graph's shapes are all known."""
        spec = self.export.specs.get(value)
        return len(spec.shape) if spec else None

    def indices(self, value: str) -> str:
        """The value in 64 bits, which some ops of ONNX want of indices."""
        if self.dtype(value) is DType.I64:
            return value
        return self.emit("Cast", value, to=ELEMENT_TYPES[DType.I64])

    def dtype(self, value: str) -> DType:
        """The element type of a value."""
        return self.export.dtypes[value]

    def number(self, value: npt.ArrayLike, dtype: DType) -> str:
        """A new constant."""
        name = self.export.fresh(f"{self.output}/const")
        self.export.constants[name] = np.asarray(value, dtype.numpy)
        return name

    def value(self) -> str:
        """A name for a value in between."""
        return self.export.fresh(f"{self.output}/part")

    def emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        """A node that makes a value in between; returns the value."""
        return self.write(op, inputs, (self.value(),), **attrs)

    def finish(self, op: str, *inputs: str, **attrs: Any) -> None:
        """The node that writes the outputs; the last one a rule emits."""
        self.write(op, inputs, self.node.outputs, **attrs)

    def write(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> str:
        """A node; returns its first output. Inputs at the end that are absent are left out, attributes of None too."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        name = self.node.name if not self._named else f"{self.node.name}/{op}_{len(self.export.nodes)}"
        self._named = True
        given = {key: value for key, value in attrs.items() if value is not None}
        self.export.nodes.append(onnx.helper.make_node(op, list(inputs), list(outputs), name, **given))
        return outputs[0]

    def refuse(self, reason: str) -> None:
        raise RefusedError(reason)

    def needs_opset(self, version: int) -> None:
        """Say that what the rule writes came with this opset."""
        self.export.opset = max(self.export.opset, version)
