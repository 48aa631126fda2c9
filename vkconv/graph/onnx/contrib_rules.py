"""Import rules of the operators that ONNX Runtime adds to ONNX and that kernels compute as they are."""

from collections.abc import Mapping

from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView


def _matmul_nbits(n: NodeView) -> None:
    bits, block = n.attr_int("bits", 4), n.attr_int("block_size", 0)
    rows, blocks = n.attr_int("N", 0), -(-n.attr_int("K", 0) // block)
    n.ignore("accuracy_level", "weight_prepacked")
    shapes = {1: (rows, blocks, block * bits // 8), 2: (rows, blocks), 3: (rows, -(-blocks * bits // 8))}
    operands = [n.input(0)]
    for i, shape in shapes.items():
        value = n.const(i)
        if value is None or value.shape == shape:
            operands.append(n.input(i))
        else:  # files of older versions have them flat
            operands.append(n.builder.constant(f"{n.input(i)}/blocks", value.reshape(shape)))
    if n.has(5):
        operands.append(n.input(5))
    while not operands[-1]:
        operands.pop()
    if n.rank(0) == 1:
        operands[0] = n.emit("unsqueeze", operands[0], axes=(0,))
        n.finish("squeeze", n.emit("matmul_nbits", *operands, bits=bits), axes=(0,))
    else:
        n.finish("matmul_nbits", *operands, bits=bits)


RULES: Mapping[str, Rule] = {"MatMulNBits": _matmul_nbits}
