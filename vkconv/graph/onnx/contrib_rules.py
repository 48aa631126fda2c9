"""Import rules of the operators that ONNX Runtime adds to ONNX and that kernels compute as they are."""

from collections.abc import Mapping
from functools import partial

from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx import contrib_attention
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


def _has_operands(n: NodeView, count: int) -> None:
    missing = [i for i in range(count) if not n.has(i)]
    if missing:
        n.refuse(f"it has no input {missing[0]}; ONNX Runtime needs the first {count}")


def _rms_norm(n: NodeView) -> None:
    """SimplifiedLayerNormalization(x, scale)"""
    _has_operands(n, 2)
    n.ignore("stash_type")  # sums are f32 whatever it asks for
    n.only_outputs(1, "its statistics are used; vkconv makes the result")
    n.finish("rms_norm", n.input(0), n.input(1), axis=n.attr_int("axis", -1), eps=n.attr_float("epsilon", 1e-5))


def _skip_norm(op: str, bias: int, n: NodeView) -> None:
    """A normalization of input + skip, and the bias at input ``bias``; output 3 is that sum."""
    if any(output and output in n.builder.consumed for output in n.outputs[1:3]):
        n.refuse("its statistics are used; vkconv makes the result and the sum")
    total = n.outputs[3] if len(n.outputs) > 3 else ""
    _has_operands(n, 3)
    terms = [n.input(i) for i in (0, 1, bias) if n.has(i)]
    for term in terms[1:-1]:
        terms[0] = n.emit("add", terms[0], term)
    if total and total in n.builder.consumed:
        n.write(3, "add", terms[0], terms[-1])
    else:
        total = n.emit("add", terms[0], terms[-1])
    operands = [n.input(i) for i in range(2, bias) if n.has(i)]
    attrs: dict[str, AttrValue] = {"axis": -1, "eps": n.attr_float("epsilon", 1e-12)}
    n.outputs = n.outputs[:1]
    n.finish(op, total, *operands, **attrs)


RULES: Mapping[str, Rule] = {
    **contrib_attention.RULES,
    "MatMulNBits": _matmul_nbits,
    "SimplifiedLayerNormalization": _rms_norm,
    "SkipLayerNormalization": partial(_skip_norm, "layer_norm", 4),
    "SkipSimplifiedLayerNormalization": partial(_skip_norm, "rms_norm", 3),
}
