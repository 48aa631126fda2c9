"""Rules of passes that recognise functions which exporters spell in parts: each function as the patterns of its
spellings."""

import math
from collections.abc import Sequence

from vkconv.call import Call
from vkconv.plan.bound import BoundNode
from vkconv.plan.patterns import Made, Named, Pattern, Product, find
from vkconv.plan.rewrite import Rewriter


def _is_hard_swish_gate(call: Call) -> bool:
    """hard_sigmoid as hard_swish has it: clip(x / 6 + 1/2, 0, 1)."""
    numbers = zip((float(call["a"]), float(call["b"])), (1 / 6, 0.5), strict=True)
    return all(math.isclose(number, wanted, rel_tol=1e-6) for number, wanted in numbers)


def _is_relu6(call: Call) -> bool:
    return (float(call["a"]), float(call["b"])) == (0.0, 6.0)


def _is_mean_of_last(call: Call) -> bool:
    return bool(call["op"] == "mean" and call["axes"] == (len(call.shape("x")) - 1,) and call["keepdims"])


# x * hard_sigmoid(x), and x * clip(x + 3, 0, 6) / 6
_SHIFTED = Made("add", ("x", 3.0))
_HARD_SWISH = (
    Product(1.0, ("x", Made("hard_sigmoid", ("x",), _is_hard_swish_gate))),
    Product(1 / 6, ("x", Made("clip", (_SHIFTED,), _is_relu6))),
    Product(1 / 6, ("x", Made("relu6", (_SHIFTED,)))),
)

_SILU = (Product(1.0, ("x", Made("sigmoid", ("x",)))),)

# Exporters write constants in f32, and some with six digits.
_SIX_DIGITS = 1e-5


def _half_x_times_one_plus(inner: Pattern) -> Product:
    return Product(0.5, ("x", Made("add", (1.0, inner))), _SIX_DIGITS)


# x / 2 * (1 + erf(x / sqrt(2)))
_GELU = (_half_x_times_one_plus(Made("erf", (Product(math.sqrt(0.5), ("x",), _SIX_DIGITS),))),)


def _gelu_tanh(*cube: Pattern) -> Product:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))"""
    cubic = Made("add", ("x", Product(0.044715, cube, _SIX_DIGITS)))
    return _half_x_times_one_plus(Made("tanh", (Product(math.sqrt(2 / math.pi), (cubic,), _SIX_DIGITS),)))


_GELU_TANH = (_gelu_tanh(Made("pow", ("x", 3.0))), _gelu_tanh("x", "x", "x"))


def _layer_norm(square: Pattern) -> Made:
    """(x - mean) / sqrt(mean((x - mean)^2) + eps) * scale + bias over the last axis"""
    centred = Named("centred", Made("sub", ("x", Made("reduce", ("x",), _is_mean_of_last))))
    variance = Made("reduce", (square,), _is_mean_of_last)
    normal = Made("div", (centred, Made("sqrt", (Made("add", (variance, "eps")),))))
    return Made("add", (Made("mul", (normal, "scale")), "bias"))


_LAYER_NORM = (_layer_norm(Made("pow", ("centred", 2.0))), _layer_norm(Made("mul", ("centred", "centred"))))


def recognise_hard_swish(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """What exporters spell hard_swish(x) as."""
    return _function_of_x(rewriter, node, "hard_swish", _HARD_SWISH)


def recognise_silu(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """x * sigmoid(x) is silu(x)."""
    return _function_of_x(rewriter, node, "silu", _SILU)


def recognise_gelu(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """What exporters spell gelu(x) and gelu_tanh(x) as."""
    made = _function_of_x(rewriter, node, "gelu", _GELU)
    return made or _function_of_x(rewriter, node, "gelu_tanh", _GELU_TANH)


def _function_of_x(
    rewriter: Rewriter, node: BoundNode, op: str, patterns: Sequence[Made | Product]
) -> BoundNode | None:
    found = find(rewriter, patterns, node)
    return rewriter.node(node, op, {"x": found["x"]}) if found else None


def recognise_layer_norm(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """What exporters spell layer_norm as, where scale and bias are vectors along the last axis."""
    found = find(rewriter, _LAYER_NORM, node)
    eps = rewriter.scalar(found["eps"]) if found else None
    if found is None or eps is None:
        return None
    last = rewriter.specs[found["x"]].shape[-1:]
    if any(rewriter.specs[found[vector]].shape != last for vector in ("scale", "bias")):
        return None
    reads = {operand: found[operand] for operand in ("x", "scale", "bias")}
    return rewriter.node(node, "layer_norm", reads, {"axis": -1, "eps": eps})
