"""Operators that ONNX Runtime adds to ONNX (domain com.microsoft), in files that it optimised or quantized: nodes are
written in ONNX's own operators before the model is read.

Definitions: onnxruntime, docs/ContribOperators.md. Integers are scaled as ONNX Runtime does: what 8-bit operands stand
for is computed in f32 and rounded once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper

from vkconv.graph.onnx.contrib_kept import DOMAIN, TYPES, kept

_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


class CannotError(Exception):
    """Why a node cannot be written in ONNX's operators."""


class _Node:
    """One node to be rewritten: its parts, and what takes its place."""

    def __init__(self, node: onnx.NodeProto, taken: set[str], opset: int) -> None:
        self.node, self.taken, self.opset = node, taken, opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.attributes = {a.name: a for a in node.attribute}
        self.read: set[str] = set()

    def input(self, i: int) -> str:
        return self.node.input[i] if i < len(self.node.input) else ""

    def get(self, name: str, default: Any) -> Any:
        """An attribute's value, text as text."""
        self.read.add(name)
        if name not in self.attributes:
            return default
        value = onnx.helper.get_attribute_value(self.attributes[name])
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def keep(self, *names: str) -> dict[str, Any]:
        """Attributes that mean in ONNX's operator what they mean here."""
        return {name: self.get(name, None) for name in names if name in self.attributes}

    def name(self, stem: str) -> str:
        base = name = f"{self.node.output[0] or self.node.name or self.node.op_type}/{stem}"
        count = 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def add(self, op: str, *inputs: str, into: str = "", **attributes: Any) -> str:
        """A node of ONNX's default domain; returns the value that it makes."""
        made = into or self.name(op)
        own = bool(into) and into == self.node.output[0]
        label = self.node.name if own else f"{self.node.name or self.node.op_type}/{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, inputs, [made], name=label, **attributes))
        return made

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        name = self.name("const")
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def finish(self, op: str, *inputs: str, **attributes: Any) -> None:
        """The node that makes the first output."""
        self.add(op, *inputs, into=self.node.output[0], **attributes)

    def only(self, count: int) -> None:
        """Raises CannotError where an output beyond ``count`` is there."""
        if any(self.node.output[count:]):
            raise CannotError(f"its output {self.node.output[count:][0]!r} is used; vkconv makes the first {count}")

    def real(self, i: int) -> str:
        """What the 8-bit operand i stands for, by the scale and zero point behind it."""
        return self.add("DequantizeLinear", *_trimmed(self.input(i), self.input(i + 1), self.input(i + 2)))

    def quantized(self, value: str, scale: int, like: int) -> None:
        """The first output: a value by the scale and zero point from input ``scale`` on; without a zero point 0, of the
        type of the zero point at input ``like``."""
        zero = self.input(scale + 1)
        if not zero and self.input(like):
            zero = self.add("Sub", self.input(like), self.input(like))
        self.finish("QuantizeLinear", *_trimmed(value, self.input(scale), zero))


def _trimmed(*names: str) -> Sequence[str]:
    return names if names[-1] else names[:-1]


def _activation(n: _Node, value: str, name: str, numbers: Sequence[float]) -> None:
    """The first output: a function of a value, by its ONNX name and parameters in ONNX Runtime's order."""
    parameters = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Relu": (), "Tanh": (), "Sigmoid": ()}
    if not name:
        n.finish("Identity", value)
    elif name == "Clip":
        n.finish("Min", n.add("Max", value, n.constant(numbers[0])), n.constant(numbers[1]))
    elif name in parameters:
        n.finish(name, value, **dict(zip(parameters[name], numbers, strict=False)))
    else:
        raise CannotError(f"the activation {name!r}; vkconv has Clip, {', '.join(parameters)}")


def _fused_conv(n: _Node) -> None:
    sums = n.add("Conv", *_trimmed(n.input(0), n.input(1), n.input(2)), **n.keep(*_CONV))
    if n.input(3):
        sums = n.add("Add", sums, n.input(3))
    numbers = n.get("activation_params", ())
    _activation(n, sums, str(n.get("activation", "")), list(numbers))


def _fused_matmul(n: _Node) -> None:
    if n.get("transBatchA", 0) or n.get("transBatchB", 0):
        raise CannotError("transBatchA or transBatchB; vkconv has transA and transB")
    a, b = ("ki" if n.get("transA", 0) else "ik"), ("jk" if n.get("transB", 0) else "kj")
    alpha = float(n.get("alpha", 1.0))
    if (a, b) == ("ik", "kj"):
        made = n.add("MatMul", n.input(0), n.input(1))
    else:
        made = n.add("Einsum", n.input(0), n.input(1), equation=f"...{a},...{b}->...ij")
    n.finish(*(("Identity", made) if alpha == 1 else ("Mul", made, _like(n, alpha, n.input(0)))))


def _like(n: _Node, value: float, other: str) -> str:
    """A number of the type of another value."""
    return n.add("CastLike", n.constant(value), other) if n.opset >= 15 else n.constant(value)


def _fused_gemm(n: _Node) -> None:
    made = n.add("Gemm", *_trimmed(n.input(0), n.input(1), n.input(2)), **n.keep("alpha", "beta", "transA", "transB"))
    numbers = [n.get(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    given = [float(number) for number in numbers if number is not None]
    _activation(n, made, str(n.get("activation", "")), given)


def _gelu(n: _Node, biased: bool = False) -> None:
    """x/2 (1 + erf(x / sqrt 2))"""
    x = n.add("Add", n.input(0), n.input(1)) if biased else n.input(0)
    erf = n.add("Erf", n.add("Div", x, _like(n, float(np.sqrt(2)), x)))
    half = n.add("Mul", x, n.add("Add", erf, _like(n, 1.0, x)))
    n.finish("Mul", half, _like(n, 0.5, x))


def _fast_gelu(n: _Node) -> None:
    """x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))"""
    x = n.add("Add", n.input(0), n.input(1)) if n.input(1) else n.input(0)
    cube = n.add("Mul", n.add("Mul", x, x), x)
    inside = n.add("Add", x, n.add("Mul", cube, _like(n, 0.044715, x)))
    tanh = n.add("Tanh", n.add("Mul", inside, _like(n, float(np.sqrt(2 / np.pi)), x)))
    half = n.add("Mul", x, n.add("Add", tanh, _like(n, 1.0, x)))
    n.finish("Mul", half, _like(n, 0.5, x))


def _quick_gelu(n: _Node) -> None:
    alpha = float(n.get("alpha", 1.702))
    x = n.input(0)
    n.finish("Mul", x, n.add("Sigmoid", n.add("Mul", x, _like(n, alpha, x))))


def _qlinear_binary(op: str, n: _Node) -> None:
    n.quantized(n.add(op, n.real(0), n.real(3)), 6, 2)


def _qlinear_unary(op: str, names: Sequence[str], n: _Node) -> None:
    """ONNX Runtime's opset attribute of softmax says which version it is."""
    if op == "Softmax" and int(n.get("opset", n.opset)) < 13 <= n.opset:
        raise CannotError("its softmax is that of an opset below 13, and the model's is newer")
    n.quantized(n.add(op, n.real(0), **n.keep(*names)), 3, 2)


def _qlinear_pool(op: str, names: Sequence[str], n: _Node) -> None:
    if n.get("channels_last", 0):
        raise CannotError("channels_last=1; vkconv has channels behind the batch")
    n.quantized(n.add(op, n.real(0), **n.keep(*names)), 3, 2)


def _qlinear_concat(n: _Node) -> None:
    parts = [n.real(i) for i in range(2, len(n.node.input), 3)]
    n.quantized(n.add("Concat", *parts, **n.keep("axis")), 0, 4)


def _qlinear_where(n: _Node) -> None:
    n.quantized(n.add("Where", n.input(0), n.real(1), n.real(4)), 7, 3)


def _integer_product(n: _Node, a: str, b: str, a_zero: str, b_zero: str) -> str:
    """An exact product of 8-bit matrices, as floats."""
    zeros = [a_zero, b_zero]
    if b_zero and not a_zero:
        zeros[0] = n.constant(0, np.uint8)
    inputs = (a, b, *(zeros if b_zero else filter(None, zeros)))
    return n.add("Cast", n.add("MatMulInteger", *inputs), to=onnx.TensorProto.FLOAT)


def _qgemm(n: _Node) -> None:
    """alpha a_scale b_scale (A B + C), C in the integers of the product; quantized where an output scale is given."""
    a, b = (
        n.add("Transpose", n.input(i), perm=[1, 0]) if n.get(name, 0) else n.input(i)
        for i, name in ((0, "transA"), (3, "transB"))
    )
    zeros = [zero for zero in (n.input(2), n.input(5)) if zero]
    sums = n.add("MatMulInteger", a, b, *zeros)
    if n.input(6):
        sums = n.add("Add", sums, n.input(6))
    scale = n.add("Mul", n.input(1), n.input(4))
    if (alpha := float(n.get("alpha", 1.0))) != 1:
        scale = n.add("Mul", scale, n.constant(alpha))
    floats = n.add("Cast", sums, to=onnx.TensorProto.FLOAT)
    if not n.input(7):
        n.finish("Mul", floats, scale)
        return
    n.quantized(n.add("Mul", floats, scale), 7, 2)


def _matmul_to_float(n: _Node) -> None:
    """MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero, b_zero, bias)"""
    product = _integer_product(n, n.input(0), n.input(1), n.input(4), n.input(5))
    _scaled(n, product, n.add("Mul", n.input(2), n.input(3)), n.input(6))


def _dynamic_matmul(n: _Node) -> None:
    """DynamicQuantizeMatMul(A, B, b_scale, b_zero, bias)"""
    values, scale, zero = (n.name(word) for word in ("quantized", "scale", "zero"))
    n.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [n.input(0)], [values, scale, zero]))
    product = _integer_product(n, values, n.input(1), zero, n.input(3))
    _scaled(n, product, n.add("Mul", scale, n.input(2)), n.input(4))


def _scaled(n: _Node, product: str, scale: str, bias: str) -> None:
    if bias:
        n.finish("Add", n.add("Mul", product, scale), bias)
    else:
        n.finish("Mul", product, scale)


def _matmul_nbits(n: _Node) -> None:
    """MatMulNBits(A, B, scales, zero_points, g_idx, bias) where no rule takes it as it is: A by the transpose of B, in
    blocks of a row of 2, 4 or 8 bits, which are unpacked and scaled before the product."""
    bits, block, rows, depth = (
        int(n.get(name, value)) for name, value in (("bits", 4), ("block_size", 0), ("N", 0), ("K", 0))
    )
    n.read.add("accuracy_level")
    if bits not in (2, 4, 8) or block < 16 or min(rows, depth) < 1 or n.opset < 14:
        raise CannotError(
            f"bits={bits}, block_size={block}, N={rows}, K={depth} in opset {n.opset}; vkconv has 2, 4 and 8 bits"
        )
    if n.input(4):
        raise CannotError("g_idx, the order of its groups; vkconv has blocks in order")
    blocks, x = -(-depth // block), n.input(0)
    shape = n.constant([rows, blocks, 1], np.int64)
    weights = _like_value(
        n, n.add("Reshape", _unpacked(n, n.input(1), bits), n.constant([rows, blocks, block], np.int64)), x
    )
    if not n.input(3):
        zero = _like(n, 1 << (bits - 1), x)
    else:
        packed = n.add("Max", n.input(3), n.constant(0, np.uint8))  # of floats it is refused: those are not packed
        row = n.add("Reshape", packed, n.constant([rows, -1], np.int64))
        ends = [n.constant([value], np.int64) for value in (0, blocks, 1)]
        row = n.add("Slice", n.add("Reshape", _unpacked(n, row, bits), n.constant([rows, -1], np.int64)), *ends)
        zero = _like_value(n, n.add("Reshape", row, shape), x)
    scaled = n.add("Mul", n.add("Sub", weights, zero), n.add("Reshape", n.input(2), shape))
    flat = n.add("Reshape", scaled, n.constant([rows, blocks * block], np.int64))
    ends = [n.constant([value], np.int64) for value in (0, depth, 1)]
    columns = n.add("Transpose", n.add("Slice", flat, *ends), perm=[1, 0])
    if n.input(5):
        n.finish("Add", n.add("MatMul", x, columns), n.input(5))
    else:
        n.finish("MatMul", x, columns)


def _like_value(n: _Node, value: str, other: str) -> str:
    return n.add("CastLike", value, other) if n.opset >= 15 else n.add("Cast", value, to=onnx.TensorProto.FLOAT)


def _unpacked(n: _Node, value: str, bits: int) -> str:
    """The numbers in bytes, as i32 along a new last axis, the lowest bits first."""
    whole = n.add("Cast", value, to=onnx.TensorProto.INT32)
    parts = n.add(
        "Div", n.add("Unsqueeze", whole, n.constant([-1], np.int64)), n.constant(2 ** np.arange(0, 8, bits), np.int32)
    )
    return n.add("Mod", parts, n.constant(1 << bits, np.int32))


def _same(op: str, n: _Node) -> None:
    """An operator that ONNX has too."""
    n.finish(op, *n.node.input, **n.keep(*n.attributes))


REWRITES: Mapping[str, Callable[[_Node], None]] = {
    "BiasGelu": partial(_gelu, biased=True),
    "DequantizeLinear": partial(_same, "DequantizeLinear"),
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "MatMulIntegerToFloat": _matmul_to_float,
    "MatMulNBits": _matmul_nbits,
    "QGemm": _qgemm,
    "QLinearAdd": partial(_qlinear_binary, "Add"),
    "QLinearAveragePool": partial(_qlinear_pool, "AveragePool", _POOL),
    "QLinearConcat": _qlinear_concat,
    "QLinearGlobalAveragePool": partial(_qlinear_pool, "GlobalAveragePool", ()),
    "QLinearLeakyRelu": partial(_qlinear_unary, "LeakyRelu", ("alpha",)),
    "QLinearMul": partial(_qlinear_binary, "Mul"),
    "QLinearSigmoid": partial(_qlinear_unary, "Sigmoid", ()),
    "QLinearSoftmax": partial(_qlinear_unary, "Softmax", ("axis",)),
    "QLinearWhere": _qlinear_where,
    "QuantizeLinear": partial(_same, "QuantizeLinear"),
    "QuickGelu": _quick_gelu,
    "TransposeMatMul": _fused_matmul,
}


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in ONNX's operators, as far as `REWRITES` goes; a node that cannot be written so stays."""
    if not any(map(_is_known, model.graph.node)):
        return model
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
    taken |= {info.name for info in model.graph.input} | {tensor.name for tensor in model.graph.initializer}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if _is_known(node) and not kept(node, constants) and not why_not(node, opset):
            view = _rewrite(node, taken, opset)
            made.graph.node.extend(view.nodes)
            made.graph.initializer.extend(view.constants)
        else:
            made.graph.node.append(node)
    return made


def _is_known(node: onnx.NodeProto) -> bool:
    return node.domain == DOMAIN and node.op_type in REWRITES


def why_not(node: onnx.NodeProto, opset: int) -> str:
    """Why a node of the domain cannot be written in ONNX's operators; empty where it can."""
    if node.op_type not in REWRITES:
        return f"vkconv has no such op of ONNX Runtime; it has {', '.join(sorted({*REWRITES, *TYPES}))}"
    try:
        _rewrite(node, set(), opset)
    except CannotError as error:
        return str(error)
    return ""


def _rewrite(node: onnx.NodeProto, taken: set[str], opset: int) -> _Node:
    view = _Node(node, taken, opset)
    try:
        REWRITES[node.op_type](view)
    except (IndexError, OverflowError, TypeError, ValueError) as error:
        raise CannotError(f"it is not as ONNX Runtime defines {node.op_type} ({error})") from None
    left = sorted(set(view.attributes) - view.read)
    if left:
        raise CannotError(f"attribute {', '.join(map(repr, left))} is one that vkconv does not have")
    return view
