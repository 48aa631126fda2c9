"""Export rules for 8-bit integers with scales and zero points."""

from collections.abc import Mapping
from functools import partial

from vkconv.core import DType
from vkconv.onnx_export.view import ELEMENT_TYPES, Rule, View
from vkconv.onnx_export.windows import window


def _conv(op: str, v: View) -> None:
    v.finish(op, *v.inputs, **window(v), group=v.attrs["groups"])


def _matmul(op: str, v: View) -> None:
    v.finish(op, *v.inputs)


def _quantize(v: View) -> None:
    to = DType(v.attrs["to"])
    more: dict[str, object] = {}
    if not v.input("y_zero") and to is not DType.U8:
        v.needs_opset(21)
        more["output_dtype"] = ELEMENT_TYPES[to]
    v.finish("QuantizeLinear", *v.inputs, axis=v.attrs["axis"], **more)


def _dequantize(v: View) -> None:
    v.finish("DequantizeLinear", *v.inputs, axis=v.attrs["axis"])


RULES: Mapping[str, Rule] = {
    "conv_integer": partial(_conv, "ConvInteger"),
    "dequantize_linear": _dequantize,
    "dynamic_quantize_linear": lambda v: v.finish("DynamicQuantizeLinear", *v.inputs),
    "matmul_integer": partial(_matmul, "MatMulInteger"),
    "qlinear_conv": partial(_conv, "QLinearConv"),
    "qlinear_matmul": partial(_matmul, "QLinearMatMul"),
    "quantize_linear": _quantize,
}
