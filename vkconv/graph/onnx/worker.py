"""What onnx computes in C++, as a program: ``python worker.py TASK``, with a model on standard input and output.

It runs in a process of its own, because ONNX aborts on some damaged models and never ends on others. Imports nothing of
vkconv. Exit code `REFUSED` with a reason on standard error where onnx raises.
"""

import contextlib
import resource
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import onnx
import onnx.defs
import onnx.inliner
import onnx.shape_inference

Task = Literal["infer", "inline", "bodies"]

REFUSED = 3
# The domain of calls to bodies of ONNX's own functions.
BODIES = "vkconv.bodies"
# No model has tensors of more dimensions; a damaged one may say so.
_MAX_RANK = 64
# What damaged models may make of it; less where the user's own limit (``ulimit -v``) is less.
_MEMORY_BYTES = 8 << 30


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types that shape inference can tell; as it was where inference raises."""
    inferred = model
    # It raises several types, and without it fewer ranks are known, no more.
    with contextlib.suppress(Exception):
        while True:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
            if not _add_computed_shapes(model.graph, inferred.graph):
                break
    return inferred


def _add_computed_shapes(slim: onnx.GraphProto, inferred: onnx.GraphProto) -> bool:
    """Write down the ranks that follow from the length of a computed shape, which ONNX leaves open.

    Returns whether there was one, so that inference can go on from it.
    """
    infos = {info.name: info.type.tensor_type for info in value_infos(inferred)}
    told = {info.name for info in slim.value_info}
    added = False
    for node in slim.node:
        position = {"Reshape": 1, "ConstantOfShape": 0}.get(node.op_type)
        if position is None or len(node.input) <= position or not node.output:
            continue
        output, shape = infos.get(node.output[0]), infos.get(node.input[position])
        if output is None or output.HasField("shape") or shape is None or node.output[0] in told:
            continue
        dims = shape.shape.dim
        rank = dims[0].dim_value if len(dims) == 1 else 0
        if 0 < rank <= _MAX_RANK:
            slim.value_info.append(onnx.helper.make_tensor_value_info(node.output[0], output.elem_type, [None] * rank))
            added = True
    return added


def value_infos(graph: onnx.GraphProto) -> Iterable[onnx.ValueInfoProto]:
    """What a graph says of the types of its values."""
    yield from graph.value_info
    yield from graph.output
    yield from graph.input


def own_domain(node: onnx.NodeProto) -> str:
    """The domain of a node, that of ONNX's own operators by its short name."""
    return "" if node.domain == "ai.onnx" else node.domain


def opset_versions(model: onnx.ModelProto) -> dict[str, int]:
    """The opset of each domain of a model, as `own_domain` calls it."""
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        name = "" if entry.domain == "ai.onnx" else entry.domain
        versions[name] = max(entry.version, versions.get(name, 0))
    return versions


def bodies(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model where each node of a function of ONNX calls a function that says its body, in the domain `BODIES`; the
    types of what they read are those of the graph's inputs. A node for which ONNX builds no body stays."""
    types = {info.name: info.type.SerializeToString() for info in model.graph.input}
    opsets = opset_versions(model)
    opset = opsets.get("", 0)
    for i, node in enumerate(model.graph.node):
        schema = onnx.defs.get_schema(node.op_type, opsets[own_domain(node)], own_domain(node))
        given = {attribute.name for attribute in node.attribute}
        for name, attribute in schema.attributes.items():
            if name not in given and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
                node.attribute.add().CopyFrom(attribute.default_value)
        body = onnx.FunctionProto()
        # Before a revision of the op: an older body is not taken where the ops in it may mean something else by now.
        with contextlib.suppress(Exception):
            body.ParseFromString(_body(schema, opset, node, [types.get(name, b"") for name in node.input]))
        if not body.node:
            continue
        body.domain, body.name = BODIES, f"{node.op_type}_{i}"
        del body.attribute[:], body.attribute_proto[:]
        body.attribute.extend(attribute.name for attribute in node.attribute)
        for entry in body.opset_import:
            entry.version = opset if entry.domain in ("", "ai.onnx") else entry.version
        for j, inner in enumerate(body.node):
            inner.name = f"{node.name or body.name}/{inner.op_type}_{j}"
        model.functions.append(body)
        node.domain, node.op_type = body.domain, body.name
    if model.functions:
        model.opset_import.add(domain=BODIES, version=1)
    return model


def _body(schema: Any, opset: int, node: onnx.NodeProto, types: list[bytes]) -> bytes:
    """The serialized body of a node's op as of an opset, empty where there is none of that opset or an older one."""
    versions = [version for version in schema.function_opset_versions if version <= opset]
    if versions:
        return bytes(schema.get_function_with_opset_version(max(versions)))
    versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    if versions:
        serialized = node.SerializeToString()
        return bytes(schema.get_context_dependent_function_with_opset_version(max(versions), serialized, types))
    return b""


TASKS: Mapping[Task, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "infer": infer,
    "inline": onnx.inliner.inline_local_functions,
    "bodies": bodies,
}


def run(task: Task, model: onnx.ModelProto) -> onnx.ModelProto:
    """The model after a task, in this process: for models that onnx's checker has passed."""
    return TASKS[task](model)


def _main(task: Task) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [limit for limit in (soft, hard, _MEMORY_BYTES) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    model = onnx.ModelProto()
    model.ParseFromString(sys.stdin.buffer.read())
    try:
        result = TASKS[task](model)
    except Exception as error:  # what the C++ binding raises for a malformed model is not specified
        print(error, file=sys.stderr)
        return REFUSED
    sys.stdout.buffer.write(result.SerializeToString())
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))  # type: ignore[arg-type]
