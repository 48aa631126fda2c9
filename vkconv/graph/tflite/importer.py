"""From a TensorFlow Lite model to a `Graph`: one rule for each operator, and one error for all that is missing."""

import dataclasses
from collections.abc import Mapping, Sequence

from vkconv.core import Array, DType, GraphError, ModelError, UnsupportedError, did_you_mean
from vkconv.graph.ir import Declared, Dim, Graph, Node, TensorSpec
from vkconv.graph.problems import report
from vkconv.graph.tflite import elementwise, movement, quantized, state, windows
from vkconv.graph.tflite.reader import Model, guarded, read
from vkconv.graph.tflite.view import Builder, OpView, RefusedError, Rule

RULES: Mapping[str, Rule] = {**elementwise.RULES, **movement.RULES, **quantized.RULES, **state.RULES, **windows.RULES}

# Of the graph's metadata: by the input of a variable, the output that it becomes, and the number that it begins with.
STATE, INITIAL = "tflite.state.", "tflite.initial."

_FLEX = "it runs TensorFlow itself (Select TF ops); convert the model with TensorFlow Lite's own operators only"
_CONTROL = "control flow; vkconv runs straight-line graphs: convert a model whose loops are unrolled"
_STATE = "it keeps a state between runs; convert the model with its state as inputs and outputs"
_RECURRENT = (
    "TensorFlow Lite's fused recurrent cells; export the model to ONNX (python -m tf2onnx.convert --tflite FILE), "
    "whose LSTM, GRU and RNN vkconv has"
)
_DETECTION = "it sorts boxes on the host; cut the model before it, and filter its boxes there"
_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("IF", "WHILE", "CALL"), _CONTROL),
    "SVDF": _STATE,
    **dict.fromkeys(
        ("LSTM", "RNN", "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_LSTM"),
        _RECURRENT,
    ),
    "custom TFLite_Detection_PostProcess": _DETECTION,
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Problem:
    op: str
    name: str
    reason: str


def import_bytes(data: bytes, name: str) -> Graph:
    """See `vkconv.graph.tflite.load_tflite_bytes`."""
    try:
        return _convert(read(data), name)
    except UnsupportedError:
        raise
    except (GraphError, ModelError) as error:
        raise ModelError(f"{name}: {error}") from None


def _convert(model: Model, name: str) -> Graph:
    builder, problems = Builder(model), list[_Problem]()
    inputs = _inputs(builder, problems)
    for op in model.operators:
        view = OpView(builder, op, (model.tensors[op.outputs[0]].name if op.outputs else "") or op.name.lower())
        try:
            if op.outputs and all(builder.array(i) is not None for i in op.outputs):
                raise ModelError(f"{op.name} {view.title!r} writes a constant; the file is damaged")
            if any(i in builder.stored for i in op.outputs):
                raise ModelError(f"{op.name} {view.title!r} writes what another operator makes; the file is damaged")
            guarded(f"{op.name} {view.title!r}", lambda view=view: _rule(view)(view))  # type: ignore[misc]
        except RefusedError as refused:
            problems.append(_Problem(op.name, view.title, str(refused)))
            for i in op.outputs:  # so that what reads it is not refused too
                builder.stored.setdefault(i, builder.fresh(model.tensors[i].name))
    if problems:
        raise UnsupportedError(_report(name, problems))
    inputs |= dict(kept.input for kept in builder.states.values() if kept.input)
    try:
        return _graph(builder, inputs, name)
    except RefusedError as refused:
        raise ModelError(f"an output: {refused}") from None


def _rule(view: OpView) -> Rule:
    name = view.op.name
    if name.startswith("custom Flex"):
        raise RefusedError(_FLEX)
    if name not in RULES:
        hint = "" if name.startswith(("custom ", "number ")) else did_you_mean(name, RULES)
        raise RefusedError(_REASONS.get(name) or f"vkconv has no such operator{hint}")
    return RULES[name]


def _inputs(builder: Builder, problems: list[_Problem]) -> dict[str, TensorSpec]:
    """Specs of the graph's inputs by unique names; an open dimension is named after its input."""
    found: dict[str, TensorSpec] = {}
    for index in builder.model.inputs:
        tensor = builder.model.tensors[index]
        if index in builder.stored:
            raise ModelError(f"tensor {tensor.name!r} is an input twice; the file is damaged")
        name = builder.fresh(tensor.name or "input")
        builder.stored[index] = name
        if tensor.dtype is None:
            problems.append(_Problem("input", name, f"it is {tensor.type_name}, a type that vkconv does not have"))
            continue
        stem = "".join(c if c.isalnum() or c in "_." else "_" for c in name)
        dims: list[Dim] = [f"d_{stem}_{i}" if d is None else d for i, d in enumerate(tensor.dims)]
        found[name] = TensorSpec(tuple(dims), tensor.dtype)
    return found


def _graph(builder: Builder, inputs: dict[str, TensorSpec], name: str) -> Graph:
    """The graph, its values under the names of the model's tensors where they have one of their own."""
    model = builder.model
    names, outputs = dict[str, str](), list[str]()
    made = {value for node in builder.nodes for value in node.outputs}
    for index in model.outputs:
        value, wanted = builder.value(index, real=False), model.tensors[index].name
        if value not in made or value in names or not wanted or wanted in inputs or wanted in names.values():
            value = builder.emit(wanted or "output", "identity", value)
        names[value] = wanted if wanted and wanted not in inputs and wanted not in names.values() else value
        outputs.append(names[value])
    others = {value for value in made if value not in names} | set(builder.constants)
    for clash in sorted(others & set(names.values())):
        names[clash] = builder.fresh(f"{clash}/inner")
    nodes = tuple(
        Node(n.name, n.op, tuple(names.get(v, v) for v in n.inputs), tuple(names.get(v, v) for v in n.outputs), n.attrs)
        for n in builder.nodes
    )
    used = {value for node in nodes for value in node.inputs}
    constants: dict[str, Array] = {
        names.get(v, v): array for v, array in builder.constants.items() if names.get(v, v) in used
    }
    # A shape without dimensions may be one that the converter did not know.
    declared = {
        value: Declared(str(tensor.dtype or DType.F32), tensor.dims or None)
        for value, tensor in zip(outputs, (model.tensors[i] for i in model.outputs), strict=True)
    }
    metadata = {"tflite.source": name, "tflite.description": model.description}
    for variable, kept in builder.states.items():
        if kept.input is None:
            continue
        given, following = kept.input[0], builder.fresh(f"{kept.input[0]}/next")
        nodes = (*nodes, Node(following, "identity", (names.get(kept.value, kept.value),), (following,)))
        outputs.append(following)
        initial = model.initial.get(variable)
        metadata[f"{STATE}{given}"] = following
        metadata[f"{INITIAL}{given}"] = "0" if initial is None else str(initial.reshape(-1)[0])
    return Graph(inputs, tuple(outputs), nodes, constants, name, metadata, declared)


def _report(name: str, problems: Sequence[_Problem]) -> str:
    advice = "Convert the model without these, or to ONNX (python -m tf2onnx.convert --tflite FILE --output FILE)."
    return report(name, "model", [(problem.op, problem.name, problem.reason) for problem in problems], advice)
