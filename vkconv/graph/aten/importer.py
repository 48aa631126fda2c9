"""From FX graphs of ATen's operators to a `Graph`: of a whole exported program, or of a part of a graph that
torch.compile gives. One rule for each operator; one that refuses a call says why."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from vkconv.core import Array, ModelError, UnsupportedError
from vkconv.graph.aten.fx import FxView, array_of, dtype_of, rule_name
from vkconv.graph.aten.rules import RULES
from vkconv.graph.aten.view import Builder, RefusedError
from vkconv.graph.ir import Dim, Graph, TensorSpec
from vkconv.graph.problems import NAMES_SHOWN, report

STATE, INITIAL = "torch.state.", "torch.initial."
"""Of metadata: the output that a state becomes and, where it is one, the number that all of it begins with, by the
input that it is."""
# What torch would take apart and vkconv has whole.
_KEPT = (
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "pixel_shuffle",
    "silu",
    "mish",
    "elu",
    "gelu",
    "prelu",
    "split_with_sizes",
)
_KEPT_FORMS = (
    "scaled_dot_product_attention.default",
    *("upsample_bilinear2d.vec", "upsample_nearest2d.vec"),
    *(f"{name}.default" for name in _KEPT),
)


def decompositions(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """Of torch's decompositions to Core ATen those that vkconv wants."""
    kept = {_operator(form) for form in _KEPT_FORMS}
    return {op: how for op, how in table.items() if op not in kept}


def _operator(form: str) -> Any:
    name, _, overload = form.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload)


def import_node(builder: Builder, node: torch.fx.Node) -> None:
    """The vkconv nodes of one call. Raises RefusedError where there are none."""
    if node.target is operator.getitem:
        held, index = builder.values.get(node.args[0]), node.args[1]
        if not isinstance(held, tuple) or not isinstance(index, int) or not held[index]:
            raise RefusedError("it takes an output that vkconv does not make")
        builder.values[node] = held[index]
        return
    rule = RULES.get(rule_name(node))
    if rule is None:
        raise RefusedError("vkconv has no such operator")
    for made in node.meta["val"] if isinstance(node.meta["val"], tuple | list) else (node.meta["val"],):
        if not isinstance(made, torch.Tensor):
            raise RefusedError("it makes a value that is no tensor")
        dtype_of(made.dtype)
    rule(FxView(builder, node))


def refusals(graph: torch.fx.Graph) -> dict[torch.fx.Node, str]:
    """Why vkconv has no equivalent for calls of a graph, each by itself."""
    found: dict[torch.fx.Node, str] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            builder = Builder()
            for given in node.all_input_nodes:
                val = given.meta.get("val")
                several = isinstance(val, tuple | list)
                builder.values[given] = tuple("x" for _ in val) if several else "x"
                if any(isinstance(v, torch.Tensor) and not _is_static(v) for v in (val if several else (val,))):
                    found[node] = "a size of its input is open; compile with dynamic=False"
            try:
                import_node(builder, node)
            except RefusedError as refused:
                found.setdefault(node, str(refused))
    return found


def _is_check(node: torch.fx.Node) -> bool:
    """Whether a call makes sizes, or nothing, as checks do: what needs a size finds it in its own shape, or refuses."""
    made = node.meta.get("val")
    return (made is None and not node.users) or isinstance(made, torch.SymInt | torch.SymBool | torch.SymFloat)


def _is_static(value: torch.Tensor) -> bool:
    return all(type(d) is int for d in value.shape)


def import_part(
    nodes: Iterable[torch.fx.Node], constants: Mapping[str, Array], name: str, names: Sequence[str] = ()
) -> Graph:
    """The graph of an FX graph whose calls all have rules. ``constants`` are the values of some of its placeholders, by
    their names; the others are inputs. Outputs have the ``names`` where they are given."""
    builder, inputs, results = Builder(), dict[str, TensorSpec](), list[str]()
    problems = list[tuple[str, str, str]]()
    for node in nodes:
        if node.op == "placeholder":
            builder.values[node] = node.name
            if node.name in constants:
                builder.constants[node.name] = constants[node.name]
            else:
                inputs[node.name] = _spec(node, name)
        elif node.op == "call_function" and not _is_check(node):
            try:
                import_node(builder, node)
            except RefusedError as refused:
                problems.append((rule_name(node), node.name, str(refused)))
                val = node.meta.get("val")
                builder.values[node] = tuple("x" for _ in val) if isinstance(val, tuple | list) else "x"
        elif node.op == "output":
            given = node.args[0]
            for value in given if isinstance(given, tuple | list) else (given,):
                if not isinstance(value, torch.fx.Node):
                    problems.append(("output", str(value), "it is no tensor"))
                    continue
                results.append(str(builder.values[value]))
    if problems:
        raise UnsupportedError(_report(name, problems))
    return builder.graph(inputs, results, name, names)


def import_program(program: Any, name: str) -> Graph:
    """See `vkconv.graph.aten.load_exported`."""
    if not isinstance(program, ExportedProgram):
        raise ModelError(f"{name}: a {type(program).__name__} is no torch.export.ExportedProgram")
    # torch runs a decomposition of its own for what is in neither table.
    program = program.run_decompositions(decompositions(torch.export.default_decompositions()))
    outputs = program.graph_signature.output_specs
    changed = [s.target for s in outputs if s.kind is not OutputKind.USER_OUTPUT]
    kept = [s.target for s in outputs if s.kind is OutputKind.BUFFER_MUTATION and not _is_statistic(s.target)]
    if len(kept) < len(changed):
        raise UnsupportedError(
            f"{name}: running it changes {', '.join(map(str, changed[:NAMES_SHOWN]))}; export the model after eval()"
        )
    constants, states, metadata = dict[str, Array](), dict[str, str](), dict[str, str]()
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            continue
        held = {**program.state_dict, **program.constants}.get(spec.target or "")
        if not isinstance(held, torch.Tensor):
            raise UnsupportedError(f"{name}: input {spec.arg.name!r} is a {spec.kind.name}; vkconv has tensors")
        try:
            array = array_of(held)
        except RefusedError as refused:
            raise UnsupportedError(f"{name}: {spec.target}: {refused}") from None
        if spec.target not in kept:
            constants[spec.arg.name] = array
            continue
        states[str(spec.target)] = spec.arg.name
        metadata[f"{STATE}{spec.arg.name}"] = f"{spec.arg.name}/next"
        if len(numbers := np.unique(array)) == 1:
            metadata[f"{INITIAL}{spec.arg.name}"] = str(numbers[0].item())
    names = [f"{states[str(s.target)]}/next" if s.target in kept else s.arg.name for s in outputs]
    return import_part(program.graph.nodes, constants, name, names).replace(metadata=metadata)


def _is_statistic(target: str | None) -> bool:
    """Whether a buffer is one that normalizations change in training alone."""
    return str(target).rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


def _spec(node: torch.fx.Node, name: str) -> TensorSpec:
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        raise UnsupportedError(f"{name}: input {node.name!r} is a {type(val).__name__}; vkconv has tensors only")
    dims: list[Dim] = [d if type(d) is int else f"d_{d}".replace(" ", "") for d in val.shape]
    if any(isinstance(d, str) and not d.isidentifier() for d in dims):
        raise UnsupportedError(f"{name}: input {node.name!r} has the size {tuple(val.shape)}, which vkconv cannot name")
    try:
        return TensorSpec(tuple(dims), dtype_of(val.dtype))
    except RefusedError as refused:
        raise UnsupportedError(f"{name}: input {node.name!r}: {refused}") from None


def _report(name: str, problems: list[tuple[str, str, str]]) -> str:
    advice = 'torch.compile(model, backend="vkconv") runs these in torch; torch.onnx.export may write them otherwise.'
    return report(name, "program", problems, advice)
