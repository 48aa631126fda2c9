"""Operators that ONNX Runtime adds to ONNX and that kernels compute as they are: which nodes, and what says their types
to onnx, which does not know them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.helper

DOMAIN = "com.microsoft"
# ONNX Runtime has it in ONNX's own domain.
_IN_ONNX_DOMAIN = ("SimplifiedLayerNormalization",)
StandIn = tuple[list[onnx.NodeProto], list[onnx.ValueInfoProto]]
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_LEAST_BLOCK = 16


def is_own(node: onnx.NodeProto) -> bool:
    """Whether an operator is ONNX Runtime's."""
    return node.domain == DOMAIN or (node.op_type in _IN_ONNX_DOMAIN and node.domain in ("", "ai.onnx"))


def kept(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a rule takes the node; ``constants`` are the model's, by name. What is left is written in ONNX's
    operators, or refused there. A node with too few inputs or outputs to be one is none of them."""
    if not is_own(node) or not node.output or not node.output[0] or not node.input:
        return False
    if node.op_type == "MatMulNBits":
        return _is_plain_nbits(node, constants)
    return node.op_type in TYPES


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _is_plain_nbits(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Constant weights, in blocks of a power of two in their order, with zero points packed as they are."""
    given = _attributes(node)
    bits, block, n, k = (given.get(name, d) for name, d in (("bits", 4), ("block_size", 0), ("N", 0), ("K", 0)))
    if not all(isinstance(value, int) for value in (bits, block, n, k)):
        return False
    inputs = [*node.input, *[""] * 6][:6]
    weights, scales, zeros = (constants.get(inputs[i]) for i in (1, 2, 3))
    if bits not in (2, 4, 8) or block < _LEAST_BLOCK or block & (block - 1) or min(n, k) < 1 or inputs[4]:
        return False
    if weights is None or scales is None or scales.data_type not in _FLOATS or (inputs[3] and zeros is None):
        return False
    blocks = -(-k // block)
    sizes = (weights, n * blocks * block * bits // 8), (zeros, n * -(-blocks * bits // 8))
    packed = all(
        t is None or (t.data_type == onnx.TensorProto.UINT8 and int(np.prod(t.dims)) == size) for t, size in sizes
    )
    return packed and int(np.prod(scales.dims)) == n * blocks and len(node.output) == 1


def stand_in(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> StandIn:
    """Nodes of ONNX whose outputs have the types of those of a node that is `kept`, and operands that they read."""
    if node.op_type == "MatMulNBits":
        return _as_product(node, constants)
    return TYPES[node.op_type](node)


def _as_product(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> StandIn:
    given = _attributes(node)
    weights = f"{node.output[0]}/weights"
    info = onnx.helper.make_tensor_value_info(weights, constants[node.input[2]].data_type, [given["K"], given["N"]])
    return [onnx.helper.make_node("MatMul", [node.input[0], weights], node.output[:1], node.name)], [info]


def _as_first_input(node: onnx.NodeProto) -> StandIn:
    """Output 0, and the sum that is output 3, are as the first input."""
    outputs = [output for output in (node.output[0], *node.output[3:4]) if output]
    return [onnx.helper.make_node("Identity", node.input[:1], [output]) for output in outputs], []


def _as_attention(node: onnx.NodeProto) -> StandIn:
    """The first output is as the queries, or narrower where keys and values are packed in them; caches are as those of
    the past, or of rank 4, of other lengths."""
    inputs, ends = [*node.input, *[""] * 6][:6], f"{node.output[0]}/ends"
    nodes: list[onnx.NodeProto] = []
    if inputs[1]:
        nodes.append(onnx.helper.make_node("Identity", inputs[:1], node.output[:1]))
    else:
        nodes.append(onnx.helper.make_node("Slice", [inputs[0], ends, ends], node.output[:1]))
    for i, output in enumerate(node.output[1:3]):
        source = inputs[3 + i]
        if output and not source:
            source = f"{output}/heads"
            nodes.append(onnx.helper.make_node("Concat", [f"{ends}/rank", f"{ends}/rank"], [f"{source}/shape"], axis=0))
            nodes.append(onnx.helper.make_node("Reshape", [inputs[0], f"{source}/shape"], [source]))
        if output:
            nodes.append(onnx.helper.make_node("Slice", [source, ends, ends], [output]))
    infos = {ends: [1], f"{ends}/rank": [2]}
    return nodes, [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.INT64, dims) for n, dims in infos.items()]


# By operator that a rule takes in all forms, what has the types of its outputs.
TYPES: Mapping[str, Callable[[onnx.NodeProto], StandIn]] = {
    "GroupQueryAttention": _as_attention,
    "RotaryEmbedding": _as_first_input,
    "SimplifiedLayerNormalization": _as_first_input,
    "SkipLayerNormalization": _as_first_input,
    "SkipSimplifiedLayerNormalization": _as_first_input,
}
