"""The table of ONNX ops: one rule each, and the reasons for those that have none."""

from vkconv.graph.onnx import (
    einsum,
    elementwise,
    indexing,
    layout,
    losses,
    normalize,
    pooling,
    quantized,
    recurrent,
    reductions,
    sampling,
    sequences,
    windows,
)
from vkconv.graph.onnx.elementwise import Rule

RULES: dict[str, Rule] = {
    **einsum.RULES,
    **elementwise.RULES,
    **indexing.RULES,
    **layout.RULES,
    **losses.RULES,
    **normalize.RULES,
    **pooling.RULES,
    **quantized.RULES,
    **recurrent.RULES,
    **reductions.RULES,
    **sampling.RULES,
    **sequences.RULES,
    **windows.RULES,
}

_CONTROL = "control flow; vkconv runs straight-line graphs, so export the model with fixed control flow"

# Ops that models do contain, with more to say than that there is no rule.
REASONS: dict[str, str] = {
    "If": _CONTROL,
    "Loop": _CONTROL,
    "Scan": _CONTROL,
}
