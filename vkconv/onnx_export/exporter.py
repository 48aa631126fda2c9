"""The walk over a graph that makes ONNX nodes of vkconv's, and what export rules have to do it with."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

import vkconv
from vkconv.core import Array, DType, UnsupportedError, did_you_mean
from vkconv.graph.ir import Graph, Node, TensorSpec
from vkconv.graph.onnx.proto import DTYPES
from vkconv.ops import OPS
from vkconv.plan.bound import bind, value_inputs

# Widely read, and with every op of the rules but some that came later: a rule that needs one of those says so.
OPSET = 20
_IR_VERSION = 10
_NAMES_SHOWN = 8
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


def export(graph: Graph) -> onnx.ModelProto:
    """See `vkconv.onnx_export.to_onnx`; the model is not checked yet."""
    from vkconv.onnx_export.rules import RULES

    taken = {*graph.inputs, *graph.constants, *(value for node in graph.nodes for value in node.outputs)}
    dtypes = {name: spec.dtype for name, spec in graph.inputs.items()}
    dtypes |= {name: DType.of(array.dtype) for name, array in graph.constants.items()}
    specs = bind(graph, OPS).specs if graph.is_static and not value_inputs(graph, OPS) else {}
    made = Export(taken, dtypes, dict(graph.constants), specs)
    refused: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in graph.nodes:
        try:
            if node.op not in RULES:
                raise RefusedError(f"ONNX has no such op{did_you_mean(node.op, RULES) if node.op not in OPS else ''}")
            view = View(made, node)
            dtypes |= {name: _dtype_of(view, i) for i, name in enumerate(node.outputs) if name}
            RULES[node.op](view)
        except RefusedError as error:
            refused[node.op, str(error)].append(node.name)
    outside = {name: dtype for name, dtype in dtypes.items() if dtype not in ELEMENT_TYPES}
    if outside:
        refused["values", "ONNX models of vkconv have no such element type"] = [
            f"{n} ({d})" for n, d in outside.items()
        ]
    if refused:
        lines = [f"graph {graph.name!r} cannot be written as ONNX:"]
        for (op, reason), names in refused.items():
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            lines.append(f"  {op} ({', '.join(names[:_NAMES_SHOWN])}{more}): {reason}")
        raise UnsupportedError("\n".join(lines))
    read = {name for node in made.nodes for name in node.input} | set(graph.outputs)
    proto = onnx.helper.make_graph(
        made.nodes,
        graph.name,
        [_info(name, spec) for name, spec in graph.inputs.items()],
        [onnx.helper.make_tensor_value_info(name, ELEMENT_TYPES[dtypes[name]], None) for name in graph.outputs],
        [onnx.numpy_helper.from_array(a, name) for name, a in made.constants.items() if name in read],
    )
    model = onnx.helper.make_model(
        proto,
        opset_imports=[onnx.helper.make_opsetid("", made.opset)],
        ir_version=_IR_VERSION,
        producer_name="vkconv",
        producer_version=vkconv.__version__,
    )
    onnx.helper.set_model_props(model, dict(graph.metadata))
    return _with_shapes_of_outputs(model, specs)


def _info(name: str, spec: TensorSpec) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, ELEMENT_TYPES[spec.dtype], spec.shape)


def _with_shapes_of_outputs(model: onnx.ModelProto, specs: Mapping[str, TensorSpec]) -> onnx.ModelProto:
    """The model with the shapes of its outputs, which the checker wants: as the graph has them, or as inferred."""
    inferred = onnx.shape_inference.infer_shapes(model)
    for mine, found in zip(model.graph.output, inferred.graph.output, strict=True):
        if mine.name in specs:
            mine.CopyFrom(_info(mine.name, specs[mine.name]))
        elif found.type.tensor_type.HasField("shape"):
            mine.CopyFrom(found)
        else:
            mine.type.tensor_type.shape.SetInParent()
            mine.type.tensor_type.ClearField("shape")
    return model


def _dtype_of(view: View, place: int) -> DType:
    """The element type of an output."""
    attrs, op = view.attrs, view.node.op
    if op in _BY_ZERO_POINT and view.input("y_zero"):
        return view.dtype(view.input("y_zero"))
    if op in _OWN_TYPES:
        return _OWN_TYPES[op][place]
    named = attrs.get("to") or attrs.get("dtype")
    if isinstance(named, str):
        return DType(named)
    if op in ("shape", "size") or (op == "topk" and place) or op == "pool2d_argmax":
        return DType.I64
    if op in _TO_BOOL:
        return DType.BOOL
    values = [view.inputs[1] if op in ("where", "one_hot") else view.inputs[0]] if view.inputs else []
    return view.dtype(values[0]) if values and values[0] else DType.F32


_BY_ZERO_POINT = ("qlinear_conv", "qlinear_matmul", "quantize_linear")
_OWN_TYPES: Mapping[str, tuple[DType, ...]] = {
    "conv_integer": (DType.I32,),
    "dequantize_linear": (DType.F32,),
    "dynamic_quantize_linear": (DType.U8, DType.F32, DType.U8),
    "matmul_integer": (DType.I32,),
}
_TO_BOOL = (
    *("equal", "greater", "greater_equal", "less", "less_equal", "is_inf", "is_nan", "is_negative_inf"),
    *("is_positive_inf", "logical_and", "logical_equal", "logical_not", "logical_or", "logical_xor"),
)
