"""From an ONNX model to a `Graph`: names, inputs, constants, node order, and one error for all that is missing."""

import dataclasses
import heapq
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import onnx
import onnx.defs

from vkconv.core import MAX_RANK, GraphError, ModelError, UnsupportedError, VkconvWarning, did_you_mean
from vkconv.graph.ir import Declared, Dim, Graph, TensorSpec
from vkconv.graph.onnx import contrib, contrib_kept, contrib_rules, worker
from vkconv.graph.onnx.bodies import expanded
from vkconv.graph.onnx.bodies_by_values import CONTROL, import_control, reads
from vkconv.graph.onnx.contrib import rewritten
from vkconv.graph.onnx.control import unrolled
from vkconv.graph.onnx.doubles import in_f32
from vkconv.graph.onnx.functions import MAX_DEPTH
from vkconv.graph.onnx.narrow import ELEMENTS, NARROW, TAKERS
from vkconv.graph.onnx.proto import (
    DTYPES,
    RefusedError,
    RunTask,
    infer_types,
    inlined,
    narrow_types,
    parsed,
    read_attribute,
    read_model,
    read_tensor,
    stored_as,
)
from vkconv.graph.onnx.rules import RULES
from vkconv.graph.onnx.signature import NEWEST_OPSET, check_signature
from vkconv.graph.onnx.view import Builder, NodeView
from vkconv.graph.problems import NAMES_SHOWN, report

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One place in the model that vkconv has no equivalent for."""

    kind: str  # the op type, or "input", "initializer"
    name: str
    reason: str
    index: int = -1  # among the nodes in order, where it is one


def import_model(path: Path, newer_opset: bool = False, f64_as_f32: bool = False) -> Graph:
    """See `vkconv.graph.onnx.load_onnx`."""
    return _imported(read_model(path), path, newer_opset, f64_as_f32)


def import_bytes(data: bytes, name: str, newer_opset: bool = False, f64_as_f32: bool = False) -> Graph:
    """See `vkconv.graph.onnx.load_onnx_bytes`."""
    path = Path(name)
    return _imported(parsed(data, path), path, newer_opset, f64_as_f32)


def _imported(model: onnx.ModelProto, path: Path, newer_opset: bool, f64_as_f32: bool) -> Graph:
    if f64_as_f32:
        model = _named(path, in_f32, model, path.parent)
    model = _named(path, _straightened, model)
    return _named(path, _convert, model, path, None, newer_opset)


def import_proto(model: onnx.ModelProto, name: str) -> Graph:
    """See `vkconv.graph.onnx.load_onnx_proto`."""
    path = Path(name)
    return _named(path, _convert, _named(path, in_rules, model, worker.run), path, worker.run)


def read_expanded(path: Path) -> onnx.ModelProto:
    """The model of a file in nodes that have rules, where functions say what they are made of. Raises ModelError."""
    return _named(path, _straightened, read_model(path))


def in_rules(model: onnx.ModelProto, run: RunTask | None = None) -> onnx.ModelProto:
    """The same of a model in memory; ``run`` is who computes what onnx has in C++."""
    return _straightened(inlined(model, run), run)


def _straightened(model: onnx.ModelProto, run: RunTask | None = None) -> onnx.ModelProto:
    """The model in ONNX's operators that have rules, as far as can be: one in another, until nothing changes."""
    for _ in range(MAX_DEPTH):
        model = expanded(rewritten(_sorted(model)), RULES, run)
        straight = unrolled(model, run)
        if straight is None:
            return model
        model = straight
    raise ModelError(f"control flow lies {MAX_DEPTH} deep or more in control flow; export the model without it")


def _sorted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each node behind those it reads: ONNX's inference knows nothing of a value that is made later,
    and rules take what is not known for f32."""
    made_later = {name for node in model.graph.node for name in node.output if name}
    for node in model.graph.node:
        if not made_later.isdisjoint(reads(node)):
            break
        made_later.difference_update(node.output)
    else:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend(in_order(model.graph))
    return made


def refused_nodes(model: onnx.ModelProto, path: Path) -> dict[int, str]:
    """Why vkconv has no equivalent for nodes of a model without local functions, by their place in `in_order`.

    Raises ModelError for a damaged model, and UnsupportedError for what is refused but no node: inputs, constants.
    """
    problems = _named(path, _build, model, path)[1]
    others = [problem for problem in problems if problem.index < 0]
    if others:
        raise UnsupportedError(_report(path, others))
    return {problem.index: problem.reason for problem in problems}


def _named(path: Path, function: Callable[..., _Result], *arguments: object) -> _Result:
    """What the function gives; errors that do not name the model do so then."""
    try:
        return function(*arguments)
    except UnsupportedError:
        raise
    except (GraphError, ModelError) as error:
        raise ModelError(f"{path}: {error}") from None


def _convert(model: onnx.ModelProto, path: Path, run: RunTask | None = None, newer_opset: bool = False) -> Graph:
    (builder, inputs, results), problems = _build(model, path, run, newer_opset)
    if problems:
        raise UnsupportedError(_report(path, problems))
    used = {name for node in builder.nodes for name in node.inputs if name} | set(results)
    return Graph(
        inputs=inputs,
        outputs=results,
        nodes=tuple(builder.nodes),
        constants={name: array for name, array in builder.constants.items() if name in used},
        name=model.graph.name or path.stem,
        metadata=_metadata(model, path, _opset(model)),
        bodies=builder.bodies,
        declared={info.name: spec for info in model.graph.output if (spec := _declared(info)) is not None},
    )


def _as_declared(dim: onnx.TensorShapeProto.Dimension) -> Dim | None:
    return int(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or None


def _declared(info: onnx.ValueInfoProto) -> Declared | None:
    """What the model says of an output, as far as it says anything."""
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or tensor.elem_type not in onnx.TensorProto.DataType.values():
        return None
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    known = {number: narrow.stored for number, narrow in NARROW.items()} | DTYPES
    dtype = "" if tensor.elem_type == onnx.TensorProto.UNDEFINED else str(known.get(tensor.elem_type, name))
    dims = tuple(int(d.dim_value) if d.dim_value > 0 else None for d in tensor.shape.dim)
    return Declared(dtype, dims if tensor.HasField("shape") else None)


_Built = tuple[Builder, dict[str, TensorSpec], tuple[str, ...]]


def _build(
    model: onnx.ModelProto, path: Path, run: RunTask | None = None, newer_opset: bool = False
) -> tuple[_Built, list[Problem]]:
    """Nodes and constants, the inputs and the names of the outputs, and all that has no equivalent."""
    graph, folder = model.graph, path.parent
    opset = _opset(model)
    _check_known(opset, newer_opset)
    nodes = in_order(graph)
    problems: list[Problem] = []
    results = tuple(output.name for output in graph.output)
    builder = Builder(
        infer=partial(infer_types, model, run),
        consumed=frozenset(name for node in nodes for name in node.input) | frozenset(results),
        results=frozenset(results),
        taken={name for node in nodes for name in node.output} | {i.name for i in graph.input},
        has_narrow=narrow_types(model),
        declared={info.name: tuple(map(_as_declared, info.type.tensor_type.shape.dim)) for info in graph.output},
        kept=partial(contrib_kept.kept, constants={tensor.name: tensor for tensor in graph.initializer}),
    )
    for tensor in graph.initializer:
        if tensor.name in builder.constants:
            raise ModelError(f"two initializers are named {tensor.name!r}; names must differ")
        try:
            builder.constants[tensor.name] = read_tensor(tensor, folder, f"initializer {tensor.name!r}")
        except RefusedError as refused:
            problems.append(Problem("initializer", tensor.name, str(refused)))
    for sparse in graph.sparse_initializer:
        problems.append(Problem("initializer", sparse.values.name, "it is sparse; vkconv reads dense tensors"))
    builder.taken.update(builder.constants)
    initializers = {t.name for t in graph.initializer}

    def convert(body: onnx.ModelProto) -> Graph:
        return _convert(_straightened(body, run), path, run, newer_opset)

    inputs = _inputs([i for i in graph.input if i.name not in initializers], problems)
    for index, node in enumerate(nodes):
        name = builder.node_name(node.name or f"{node.op_type}_{index}")
        try:
            if node.op_type in CONTROL and node.domain in ("", "ai.onnx"):
                import_control(builder, node, name, model, convert)
            else:
                _import_node(builder, node, name, opset, folder)
        except RefusedError as refused:
            problems.append(Problem(node.op_type, name, str(refused), index))
    return (builder, inputs, results), problems


def _opset(model: onnx.ModelProto) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions and all(node.domain not in ("", "ai.onnx") for node in model.graph.node):
        return NEWEST_OPSET  # no node depends on it, and each is refused for its domain
    if not versions:
        raise ModelError("does not say which opset of the default domain it uses; export the model again")
    if len(set(versions)) > 1:
        raise ModelError(f"uses the opsets {', '.join(map(str, versions))} of one domain; leave one of them")
    return int(versions[0])


def _check_known(opset: int, newer: bool) -> None:
    """Raises ModelError for an opset that came after what is known, or warns, where the user takes ``newer`` ones."""
    known = min(NEWEST_OPSET, onnx.defs.onnx_opset_version())
    if opset <= known:
        return
    if not newer:
        who = f"onnx {onnx.__version__}, which is installed," if known < NEWEST_OPSET else "vkconv"
        raise ModelError(
            f"uses opset {opset}, and {who} knows those up to {known}; export it with an older one, or let "
            "`vkconv convert --newer-opset MODEL.onnx MODEL.vkc` take its nodes for what they were then"
        )
    warnings.warn(
        f"opset {opset} is taken for opset {known}, the newest that is known: a node whose meaning changed since gives "
        "wrong results",
        VkconvWarning,
        stacklevel=2,
    )


def _metadata(model: onnx.ModelProto, path: Path, opset: int) -> dict[str, str]:
    producer = f"{model.producer_name} {model.producer_version}".strip()
    own = {"onnx.source": path.name, "onnx.producer": producer, "onnx.opset": str(opset)}
    for info in (*model.graph.input, *model.graph.output):
        if info.type.tensor_type.elem_type in NARROW:
            own[ELEMENTS + info.name] = NARROW[info.type.tensor_type.elem_type].name
    return {prop.key: prop.value for prop in model.metadata_props} | own


def in_order(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes so that each comes after those it reads, otherwise in the model's order."""
    outside = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    outside |= {i.name for i in graph.input} | {""}
    maker: dict[str, int] = {}
    for i, node in enumerate(graph.node):
        for name in node.output:
            if name in maker:
                other = _title(graph.node[maker[name]], maker[name])
                raise ModelError(f"{_title(node, i)} writes {name!r}, which {other} writes too")
            if name in outside and name:
                raise ModelError(f"{_title(node, i)} writes {name!r}, which is an input or initializer")
            if name:
                maker[name] = i
    waiting: list[int] = []
    readers: dict[int, list[int]] = defaultdict(list)
    for i, node in enumerate(graph.node):
        makers = {maker[name] for name in reads(node) if name in maker}
        for name in node.input:
            if name not in maker and name not in outside:
                near = did_you_mean(name, [*maker, *outside])
                raise ModelError(f"{_title(node, i)} reads {name!r}, which nothing in the model makes{near}")
        waiting.append(len(makers))
        for j in makers:
            readers[j].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in readers[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, j)
    if len(order) < len(graph.node):
        stuck = [_title(graph.node[i], i) for i, count in enumerate(waiting) if count]
        raise ModelError(f"nodes depend on each other in a circle, among them {', '.join(stuck[:NAMES_SHOWN])}")
    return [graph.node[i] for i in order]


def _title(node: onnx.NodeProto, index: int) -> str:
    return f"{node.op_type} node {node.name!r}" if node.name else f"{node.op_type} node number {index}"


def _inputs(infos: Sequence[onnx.ValueInfoProto], problems: list[Problem]) -> dict[str, TensorSpec]:
    """Specs of the graph's inputs. Open dimensions become names that are unique unless the model shares them."""
    symbols: dict[str, str] = {}  # the model's name to ours
    inputs: dict[str, TensorSpec] = {}
    for info in infos:
        if not info.name:
            raise ModelError("an input has an empty name; export the model again")
        if info.name in inputs:
            raise ModelError(f"two inputs are named {info.name!r}; names must differ")
        kind, tensor = info.type.WhichOneof("value"), info.type.tensor_type
        if kind == "optional_type" and info.type.optional_type.elem_type.WhichOneof("value") == "tensor_type":
            kind, tensor = "tensor_type", info.type.optional_type.elem_type.tensor_type  # a run is always given it
        if kind != "tensor_type":
            problems.append(
                Problem(
                    "input", info.name, f"its type is {(kind or 'open').removesuffix('_type')}; vkconv has tensors only"
                )
            )
            continue
        if not tensor.HasField("shape"):
            problems.append(Problem("input", info.name, "its rank is open; export with a shape, named where open"))
            continue
        if len(tensor.shape.dim) > MAX_RANK:
            raise ModelError(f"input {info.name!r} has {len(tensor.shape.dim)} dimensions; at most {MAX_RANK} can be")
        try:
            dtype = stored_as(tensor.elem_type, "holds")
        except RefusedError as refused:
            problems.append(Problem("input", info.name, str(refused)))
            continue
        inputs[info.name] = TensorSpec(
            tuple(_dim(d, f"{info.name}_d{i}", symbols) for i, d in enumerate(tensor.shape.dim)), dtype
        )
    return inputs


def _dim(dim: onnx.TensorShapeProto.Dimension, default: str, symbols: dict[str, str]) -> Dim:
    if dim.dim_value > 0:
        return int(dim.dim_value)
    named = dim.dim_param not in ("", "?", "-1")
    key = f"named {dim.dim_param}" if named else f"open {default}"
    if key not in symbols:
        stem = re.sub(r"[^A-Za-z0-9_.]", "_", dim.dim_param if named else default)
        stem = stem if stem[0].isalpha() or stem[0] == "_" else f"d_{stem}"
        name, i = stem, 1
        while name in symbols.values():
            i += 1
            name = f"{stem}_{i}"
        symbols[key] = name
    return symbols[key]


def _import_node(builder: Builder, node: onnx.NodeProto, name: str, opset: int, folder: Path) -> None:
    """Run the node's rule. Raises RefusedError with the reason where vkconv has no equivalent."""
    if node.domain == f"{contrib_kept.DOMAIN}.nchwc":
        raise RefusedError("it is laid out for one CPU; save the model with ORT_ENABLE_EXTENDED, not ORT_ENABLE_ALL")
    own = contrib_kept.is_own(node)
    if own and not builder.kept(node):
        raise RefusedError(contrib.why_not(node, opset))
    if node.domain not in ("", "ai.onnx") and not own:
        raise RefusedError(
            f"it belongs to the domain {node.domain!r}; vkconv has ONNX's default domain and {contrib_kept.DOMAIN}"
        )
    rule = (contrib_rules.RULES if own else RULES).get(node.op_type)
    if rule is None:
        # Of an op that ONNX has, no other one is meant.
        hint = "" if onnx.defs.has(node.op_type) else did_you_mean(node.op_type, RULES)
        raise RefusedError(f"vkconv has no such op{hint}")
    what = f"{node.op_type} node {name!r}"
    if not own:
        check_signature(node, opset, what)
    view = NodeView(
        builder=builder,
        name=name,
        op_type=node.op_type,
        version=opset,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attrs={a.name: read_attribute(a, folder, what) for a in node.attribute},
    )
    if node.op_type not in TAKERS:
        for i in range(len(node.input)):
            if (narrow := view.narrow(i)) is not None:
                raise RefusedError(f"input {i} is {narrow.name}, of which vkconv computes nothing; cast it before")
    rule(view)
    left = sorted(set(view.attrs) - view.read)
    if left:
        raise RefusedError(f"attribute {', '.join(map(repr, left))} is one that vkconv does not have")


def _report(path: Path, problems: Sequence[Problem]) -> str:
    return report(
        str(path),
        "model",
        [(problem.kind, problem.name, problem.reason) for problem in problems],
        "Run `vkconv ops` for what there is; a model exported without these, or simplified, will load.",
        '`vkconv run --fallback onnxruntime`, and in Python load(fallback="onnxruntime"), runs them on the host (pip '
        "install 'vkconv[fallback]').",
    )
