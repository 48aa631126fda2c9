"""ONNX ops that are functions: a node of one that has no rule, or none for its form, becomes the nodes of its body, as
ONNX defines it, within the limits that functions of the model have."""

from collections.abc import Container, Mapping
from typing import Any

import onnx
import onnx.defs

from vkconv.core import ModelError
from vkconv.graph.onnx.functions import MAX_DEPTH
from vkconv.graph.onnx.proto import RunTask, infer_infos, inlined, run_apart
from vkconv.graph.onnx.rules import BODY_INSTEAD
from vkconv.graph.onnx.worker import BODIES, opset_versions, own_domain

_DEFAULT_DOMAIN = ("", "ai.onnx")
# Domains of ONNX itself in which ops are functions.
_DOMAINS = (*_DEFAULT_DOMAIN, "ai.onnx.preview")


def expanded(model: onnx.ModelProto, rules: Container[str], run: RunTask | None = None) -> onnx.ModelProto:
    """The model where each node that has no rule and whose op is a function is the body of that; ``run`` is who builds
    and inlines it. Bodies are expanded too, down to `MAX_DEPTH`. A node whose body ONNX cannot build, for want of the
    types of its inputs, stays.

    Raises ModelError where that makes more nodes or bytes than `vkconv.graph.onnx.functions` allows.
    """
    for _ in range(MAX_DEPTH):
        opsets = opset_versions(model)
        places = [i for i, node in enumerate(model.graph.node) if _is_function(node, opsets, rules)]
        made = _with_bodies(model, places, run) if places else None
        if made is None:
            return model
        model = inlined(made, run)
        kept = [entry for entry in model.opset_import if entry.domain != BODIES]
        del model.opset_import[:]
        model.opset_import.extend(kept)
    raise ModelError(f"ONNX's functions contain functions {MAX_DEPTH} deep or more; export the model without them")


def _is_function(node: onnx.NodeProto, opsets: Mapping[str, int], rules: Container[str]) -> bool:
    if node.domain not in _DOMAINS:
        return False
    ruled = node.domain in _DEFAULT_DOMAIN and node.op_type in rules
    if ruled and not (node.op_type in BODY_INSTEAD and BODY_INSTEAD[node.op_type](node)):
        return False
    domain = own_domain(node)
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opsets.get(domain, 0), domain)  # its stubs lack functions
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _with_bodies(model: onnx.ModelProto, places: list[int], run: RunTask | None) -> onnx.ModelProto | None:
    """The model where these nodes call functions of its own; None where ONNX builds no body for any of them."""
    infos = infer_infos(model, run)
    asked = onnx.ModelProto(ir_version=max(8, model.ir_version), opset_import=model.opset_import)
    asked.graph.name = "bodies"
    asked.graph.node.extend(model.graph.node[i] for i in places)
    asked.graph.input.extend(infos[name] for name in _reads(asked.graph) if name in infos)
    answer = (run or run_apart)("bodies", asked)
    calls = {i: node for i, node in zip(places, answer.graph.node, strict=True) if node.domain == BODIES}
    if not calls:
        return None
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for i, node in calls.items():
        made.graph.node[i].CopyFrom(node)
    made.functions.extend(answer.functions)
    made.opset_import.add(domain=BODIES, version=1)
    made.ir_version = max(8, made.ir_version)
    return made


def _reads(graph: onnx.GraphProto) -> list[str]:
    return list(dict.fromkeys(name for node in graph.node for name in node.input if name))
