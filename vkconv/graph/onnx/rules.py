"""The table of ONNX ops: one rule each, and the reasons for those that have none."""

from vkconv.graph.onnx import (
    elementwise,
    indexing,
    layout,
    losses,
    normalize,
    pooling,
    reductions,
    sampling,
    sequences,
    windows,
)
from vkconv.graph.onnx.elementwise import Rule

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **indexing.RULES,
    **layout.RULES,
    **losses.RULES,
    **normalize.RULES,
    **pooling.RULES,
    **reductions.RULES,
    **sampling.RULES,
    **sequences.RULES,
    **windows.RULES,
}

_CONTROL = "control flow; vkconv runs straight-line graphs, so export the model with fixed control flow"
_QUANTIZED = "quantized arithmetic; export the model in float32"

# Ops that models do contain, with more to say than that there is no rule.
REASONS: dict[str, str] = {
    "If": _CONTROL,
    "Loop": _CONTROL,
    "Scan": _CONTROL,
    "ConvInteger": _QUANTIZED,
    "DequantizeLinear": _QUANTIZED,
    "DynamicQuantizeLinear": _QUANTIZED,
    "MatMulInteger": _QUANTIZED,
    "QLinearConv": _QUANTIZED,
    "QLinearMatMul": _QUANTIZED,
    "QuantizeLinear": _QUANTIZED,
}
