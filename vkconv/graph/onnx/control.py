"""Control flow that is known when a model is read: an If of a constant condition is its branch, a Loop or Scan of a
known number of steps is its body so many times."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from vkconv.core import MAX_NODES, Array, ModelError
from vkconv.graph.onnx.functions import MAX_GROWTH_BYTES
from vkconv.graph.onnx.proto import RunTask, infer_infos

_OPS = ("If", "Loop", "Scan")
_DEFAULT_DOMAIN = ("", "ai.onnx")
# Scan had batches and lengths before, Unsqueeze its axes as an attribute.
_SCAN_SINCE, _AXES_SINCE = 9, 13


def unrolled(model: onnx.ModelProto, run: RunTask | None = None) -> onnx.ModelProto | None:
    """The model with the body in place of each node of control flow whose course is known; None where there is none.

    Nodes of control flow inside bodies stay, for the next call. Raises ModelError where that makes more than
    `MAX_NODES` nodes, or `MAX_GROWTH_BYTES` more bytes.
    """
    places = [i for i, n in enumerate(model.graph.node) if n.domain in _DEFAULT_DOMAIN and n.op_type in _OPS]
    if not places:
        return None
    unroll = _Unroll(model, run)
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in model.graph.node:
        made = unroll.node(node) if node.domain in _DEFAULT_DOMAIN and node.op_type in _OPS else None
        changed |= made is not None
        nodes += [node] if made is None else made
    if not changed:
        return None
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(unroll.constants)
    return result


class _Unroll:
    def __init__(self, model: onnx.ModelProto, run: RunTask | None) -> None:
        self.model, self.run = model, run
        self.opset = max((e.version for e in model.opset_import if e.domain in _DEFAULT_DOMAIN), default=0)
        self.taken = {name for node in model.graph.node for name in _all_names(node)}
        self.taken |= {info.name for info in (*model.graph.input, *model.graph.output)}
        self.taken |= {tensor.name for tensor in model.graph.initializer}
        self.numbers = {t.name: t for t in model.graph.initializer if _is_number(t)}
        for node in model.graph.node:
            if node.op_type == "Constant" and node.domain in _DEFAULT_DOMAIN and node.output:
                for attribute in node.attribute:
                    if attribute.name == "value" and _is_number(attribute.t):
                        self.numbers[node.output[0]] = attribute.t
        self.constants: list[onnx.TensorProto] = []
        self.whole = len(model.graph.node)
        self.added_bytes = 0
        self.infos: Mapping[str, onnx.ValueInfoProto] | None = None

    def node(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """What takes the place of a node; None where its course is not known."""
        by_op: dict[str, Callable[[onnx.NodeProto], list[onnx.NodeProto] | None]] = {
            "If": self._if,
            "Loop": self._loop,
            "Scan": self._scan,
        }
        try:
            return by_op[node.op_type](node)
        except (IndexError, KeyError, ValueError):  # a node that is none of ONNX's: the importer says what is wrong
            return None

    def _if(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        condition = self._number(node.input[0])
        if condition is None:
            return None
        branch = _graph(node, "then_branch" if condition else "else_branch")
        self._count(node, branch, 1)
        made, results = self._body(node, branch, {}, 0)
        return made + self._named(node.output, results)

    def _loop(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        body, given = _graph(node, "body"), [*node.input, ""][:2]
        trips = self._number(given[0]) if given[0] else None
        started = self._number(given[1]) if given[1] else np.True_
        if trips is None or started is None or not self._goes_on(body):
            return None
        states = list(node.input[2:])
        steps, scanned = int(trips) if started else 0, len(node.output) - len(states)
        if steps < 1 and scanned:
            return None
        self._count(node, body, max(0, steps))
        made: list[onnx.NodeProto] = []
        columns: list[list[str]] = [[] for _ in range(scanned)]
        for step in range(steps):
            operands = [self._constant(np.int64(step)), self._constant(np.True_), *states]
            more, (_, *results) = self._body(node, body, _bound(body, operands), step)
            made += more
            states = results[: len(states)]
            for column, value in zip(columns, results[len(states) :], strict=True):
                column.append(value)
        stacked = [self._stacked(node, column, 0, made) for column in columns]
        return made + self._named(node.output, [*states, *stacked])

    def _goes_on(self, body: onnx.GraphProto) -> bool:
        """Whether the condition that a body makes is true each time."""
        name = body.output[0].name
        makers = {value: node for node in body.node for value in node.output}
        constants = {t.name: t for t in body.initializer if _is_number(t)}
        while name in makers and makers[name].op_type in ("Identity", "Cast") and name != body.input[1].name:
            name = makers[name].input[0]
        if name == body.input[1].name:
            return True
        tensor = constants.get(name, self.numbers.get(name))
        if name in makers and makers[name].op_type == "Constant":
            tensor = next((a.t for a in makers[name].attribute if a.name == "value" and _is_number(a.t)), None)
        return tensor is not None and bool(onnx.numpy_helper.to_array(tensor).all())

    def _scan(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if self.opset < _SCAN_SINCE:
            return None
        body = _graph(node, "body")
        count = int(_attribute(node, "num_scan_inputs", 0))
        states, inputs = list(node.input[: len(node.input) - count]), node.input[len(node.input) - count :]
        scanned = len(node.output) - len(states)
        axes, backwards = (_attribute(node, name, [0] * count) for name in ("scan_input_axes", "scan_input_directions"))
        out_axes, out_backwards = (
            _attribute(node, name, [0] * scanned) for name in ("scan_output_axes", "scan_output_directions")
        )
        steps = self._size(inputs[0], axes[0])
        if not steps:
            return None
        self._count(node, body, steps)
        made: list[onnx.NodeProto] = []
        columns: list[list[str]] = [[] for _ in range(scanned)]
        for step in range(steps):
            operands = list(states)
            for value, axis, reverse in zip(inputs, axes, backwards, strict=True):
                at = self._constant(np.int64(steps - 1 - step if reverse else step))
                operands.append(self._fresh(f"{value}/{step}"))
                made.append(onnx.helper.make_node("Gather", [value, at], operands[-1:], axis=axis))
            more, results = self._body(node, body, _bound(body, operands), step)
            made += more
            states = results[: len(states)]
            for column, value in zip(columns, results[len(states) :], strict=True):
                column.append(value)
        stacked = [
            self._stacked(node, column[::-1] if reverse else column, axis, made)
            for column, axis, reverse in zip(columns, out_axes, out_backwards, strict=True)
        ]
        return made + self._named(node.output, [*states, *stacked])

    def _size(self, value: str, axis: int) -> int:
        """The size of a value along an axis, 0 where onnx cannot tell it."""
        if self.infos is None:
            self.infos = infer_infos(self.model, self.run)
        dims = self.infos[value].type.tensor_type.shape.dim if value in self.infos else []
        return int(dims[axis].dim_value) if -len(dims) <= axis < len(dims) else 0

    def _count(self, node: onnx.NodeProto, body: onnx.GraphProto, steps: int) -> None:
        """Raises ModelError where so many bodies are too much, before they are made."""
        what = f"{node.op_type} node {node.name!r} of {steps} steps"
        self.whole += steps * (len(body.node) + len(body.input)) + len(node.output)
        if self.whole > MAX_NODES:
            raise ModelError(f"the model has {self.whole} nodes once {what} is unrolled, vkconv takes {MAX_NODES}")
        self.added_bytes += steps * body.ByteSize()
        if self.added_bytes > MAX_GROWTH_BYTES:
            raise ModelError(f"{what} adds {self.added_bytes} bytes unrolled; vkconv takes {MAX_GROWTH_BYTES}")

    def _body(
        self, node: onnx.NodeProto, body: onnx.GraphProto, names: dict[str, str], step: int
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        """The nodes of a body under names of their own, its inputs under those given, and the values that it makes."""
        names = dict(names)
        for tensor in body.initializer:
            names[tensor.name] = self._fresh(f"{tensor.name}/{step}")
            self.constants.append(onnx.TensorProto())
            self.constants[-1].CopyFrom(tensor)
            self.constants[-1].name = names[tensor.name]
        made = []
        for i, inner in enumerate(body.node):
            names |= {value: self._fresh(f"{value}/{step}") for value in inner.output if value}
            copied = onnx.NodeProto()
            copied.CopyFrom(inner)
            copied.name = f"{node.name or node.op_type}/{step}/{inner.name or f'{inner.op_type}_{i}'}"
            _rename(copied, names)
            made.append(copied)
        return made, [names.get(output.name, output.name) for output in body.output]

    def _stacked(self, node: onnx.NodeProto, values: Sequence[str], axis: int, made: list[onnx.NodeProto]) -> str:
        """Values side by side along a new axis."""
        parts = [self._fresh(f"{value}/row") for value in values]
        for value, part in zip(values, parts, strict=True):
            if self.opset >= _AXES_SINCE:
                row = onnx.helper.make_node("Unsqueeze", [value, self._constant(np.array([axis], np.int64))], [part])
            else:
                row = onnx.helper.make_node("Unsqueeze", [value], [part], axes=[axis])
            made.append(row)
        result = self._fresh(f"{node.output[-1] or node.op_type}/rows")
        made.append(onnx.helper.make_node("Concat", parts, [result], axis=axis))
        return result

    def _named(self, outputs: Iterable[str], values: Sequence[str]) -> list[onnx.NodeProto]:
        pairs = zip(outputs, values, strict=True)
        return [onnx.helper.make_node("Identity", [value], [output]) for output, value in pairs if output]

    def _number(self, name: str) -> Array | None:
        """The one element of a constant; None for what is none."""
        tensor = self.numbers.get(name)
        return None if tensor is None else onnx.numpy_helper.to_array(tensor).reshape(-1)[0]

    def _constant(self, value: Array | np.generic) -> str:
        name = self._fresh("step")
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def _fresh(self, stem: str) -> str:
        name, count = stem, 1
        while name in self.taken:
            count += 1
            name = f"{stem}_{len(self.taken)}_{count}"
        self.taken.add(name)
        return name


def _is_number(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor is one number that the model itself holds."""
    return tensor.data_location != onnx.TensorProto.EXTERNAL and np.prod(tensor.dims, dtype=object) == 1


def _graph(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    graphs: dict[str, onnx.GraphProto] = {attribute.name: attribute.g for attribute in node.attribute}
    return graphs[name]


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = next((attribute for attribute in node.attribute if attribute.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def _bound(body: onnx.GraphProto, operands: Sequence[str]) -> dict[str, str]:
    return dict(zip((info.name for info in body.input), operands, strict=True))


def _all_names(node: onnx.NodeProto) -> Iterable[str]:
    yield from (*node.input, *node.output)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (info.name for info in graph.input)
            yield from (tensor.name for tensor in graph.initializer)
            for inner in graph.node:
                yield from _all_names(inner)


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Other names for values that a node reads and writes, and that its subgraphs read from outside."""
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
            own |= {value for inner in graph.node for value in inner.output}
            outside = {name: to for name, to in names.items() if name not in own}
            for inner in graph.node:
                _rename(inner, outside)
            for output in graph.output:
                output.name = outside.get(output.name, output.name)
