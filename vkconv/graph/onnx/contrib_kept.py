"""Operators that ONNX Runtime adds to ONNX and that kernels compute as they are: which nodes, and what says their types
to onnx, which does not know them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.helper

DOMAIN = "com.microsoft"
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_LEAST_BLOCK = 16


def kept(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a rule takes the node; ``constants`` are the model's, by name. What is left is written in ONNX's
    operators, or refused there."""
    return node.domain == DOMAIN and node.op_type == "MatMulNBits" and _is_plain_nbits(node, constants)


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


def stand_in(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> tuple[onnx.NodeProto, onnx.ValueInfoProto]:
    """A node of ONNX whose output has the type of the output of one that is `kept`, and an operand that it reads."""
    given = _attributes(node)
    weights = f"{node.output[0]}/weights"
    info = onnx.helper.make_tensor_value_info(weights, constants[node.input[2]].data_type, [given["K"], given["N"]])
    return onnx.helper.make_node("MatMul", [node.input[0], weights], node.output[:1], node.name), info
