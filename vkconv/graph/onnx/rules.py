"""The table of ONNX ops: one rule each, and the reasons for those that have none."""

from collections.abc import Callable, Mapping

import onnx

from vkconv.graph.onnx import (
    attention,
    casts,
    einsum,
    elementwise,
    indexing,
    layout,
    losses,
    normalize,
    pooling,
    quantized,
    random,
    recurrent,
    reductions,
    sampling,
    sequences,
    signals,
    unique,
    windows,
)
from vkconv.graph.onnx.elementwise import Rule

RULES: dict[str, Rule] = {
    **attention.RULES,
    **casts.RULES,
    **einsum.RULES,
    **elementwise.RULES,
    **indexing.RULES,
    **layout.RULES,
    **losses.RULES,
    **normalize.RULES,
    **pooling.RULES,
    **quantized.RULES,
    **recurrent.RULES,
    **random.RULES,
    **reductions.RULES,
    **sampling.RULES,
    **sequences.RULES,
    **signals.RULES,
    **unique.RULES,
    **windows.RULES,
}

# Of functions with a rule, the nodes that it is not for: they become their bodies, as those without a rule do.
BODY_INSTEAD: Mapping[str, Callable[[onnx.NodeProto], bool]] = {"Attention": attention.needs_body}
