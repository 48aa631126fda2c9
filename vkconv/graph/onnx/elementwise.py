"""Import rules for functions of one value and for arithmetic with broadcasting."""

from collections.abc import Callable
from functools import partial

import numpy as np

from vkconv.core import DType
from vkconv.graph.onnx.view import NodeView

Rule = Callable[[NodeView], None]

# ONNX op: vkconv op and its float attributes with ONNX's defaults, which become a and b in this order.
UNARY: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "Abs": ("abs", ()),
    "Acos": ("acos", ()),
    "Acosh": ("acosh", ()),
    "Asin": ("asin", ()),
    "Asinh": ("asinh", ()),
    "Atan": ("atan", ()),
    "Atanh": ("atanh", ()),
    "Ceil": ("ceil", ()),
    "Celu": ("celu", (("alpha", 1.0),)),
    "Cos": ("cos", ()),
    "Cosh": ("cosh", ()),
    "Elu": ("elu", (("alpha", 1.0),)),
    "Erf": ("erf", ()),
    "Exp": ("exp", ()),
    "Floor": ("floor", ()),
    "HardSigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "HardSwish": ("hard_swish", ()),
    "LeakyRelu": ("leaky_relu", (("alpha", 0.01),)),
    "IsNaN": ("is_nan", ()),
    "Log": ("log", ()),
    "Mish": ("mish", ()),
    "Neg": ("neg", ()),
    "Not": ("logical_not", ()),
    "Reciprocal": ("reciprocal", ()),
    "Relu": ("relu", ()),
    "Round": ("round", ()),
    "Selu": ("selu", (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))),
    "Shrink": ("shrink", (("lambd", 0.5), ("bias", 0.0))),
    "Sigmoid": ("sigmoid", ()),
    "Sign": ("sign", ()),
    "Sin": ("sin", ()),
    "Sinh": ("sinh", ()),
    "Softplus": ("softplus", ()),
    "Softsign": ("softsign", ()),
    "Sqrt": ("sqrt", ()),
    "Tan": ("tan", ()),
    "Tanh": ("tanh", ()),
    "ThresholdedRelu": ("thresholded_relu", (("alpha", 1.0),)),
}
BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bit_and",
    "BitwiseOr": "bit_or",
    "BitwiseXor": "bit_xor",
    "Div": "div",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "mul",
    "Or": "logical_or",
    "Sub": "sub",
    "Xor": "logical_xor",
}
_FOLDED = {"Min": "minimum", "Max": "maximum", "Sum": "add"}


def _unary(op: str, params: tuple[tuple[str, float], ...], n: NodeView) -> None:
    values = {key: n.attr_float(name, default) for key, (name, default) in zip("ab", params, strict=False)}
    n.finish(op, n.input(0), **values)


def _binary(op: str, n: NodeView) -> None:
    n.finish(op, n.input(0), _second(n))


def _second(n: NodeView) -> str:
    """The second operand, as it broadcasts in numpy. In opset 6 it may begin at an axis of the first one, and the slope
    of PRelu lies along the channels."""
    if n.version >= 7:
        return n.input(1)
    given = n.attr_int("axis", -1) if n.attr_flag("broadcast") else -1
    axis, rank = (1 if n.op_type == "PRelu" else given), n.rank(1)
    trailing = n.need_rank(0) - axis - rank if axis >= 0 and rank else 0
    return n.emit("unsqueeze", n.input(1), axes=tuple(range(-trailing, 0))) if trailing > 0 else n.input(1)


def _prelu(n: NodeView) -> None:
    x, slope, dtype = n.input(0), _second(n), n.dtype(0)
    if dtype.is_float:
        n.finish("prelu", x, slope)
    else:
        n.finish("where", n.emit("less", x, n.number(0, dtype)), n.emit("mul", x, slope), x)


def _equal(n: NodeView) -> None:
    n.finish("logical_equal" if n.dtype(0) is DType.BOOL else "equal", n.input(0), _second(n))


def _folded(op: str, n: NodeView) -> None:
    """Any number of operands, from left to right."""
    if len(n.inputs) == 1:
        n.finish("identity", n.input(0))
        return
    total = n.input(0)
    for i in range(1, len(n.inputs) - 1):
        total = n.emit(op, total, n.input(i))
    n.finish(op, total, n.input(len(n.inputs) - 1))


def _mean(n: NodeView) -> None:
    total = n.input(0)
    for i in range(1, len(n.inputs)):
        total = n.emit("add", total, n.input(i))
    n.finish("div", total, n.number(len(n.inputs), n.dtype(0)))


def _pow(n: NodeView) -> None:
    base, exponent = n.input(0), n.const(1)
    if n.version < 7:
        _binary("pow", n)
        return
    dtype = n.dtype(0)
    if exponent is not None and exponent.ndim == 0 and exponent == 2:
        n.finish("mul", base, base)
    elif n.dtype(1) == dtype:
        n.finish("pow", base, n.input(1))
    elif exponent is not None and dtype.is_float:
        n.finish("pow", base, n.number(exponent, dtype))
    elif dtype.is_float or not n.dtype(1).is_float:
        n.finish("pow", base, n.emit("cast", n.input(1), to=str(dtype)))
    else:  # the power of a float is cut to a whole number
        wide = n.emit("cast", base, to=str(n.dtype(1)))
        n.finish("cast", n.emit("pow", wide, n.input(1)), to=str(dtype))


def _clip(n: NodeView) -> None:
    """Bounds the model fixes become attributes of clip; bounds computed at run time are two nodes."""
    if n.version < 11:
        lo, hi = n.attr_float("min", -np.inf), n.attr_float("max", np.inf)
        n.finish("clip", n.input(0), a=lo, b=hi)
        return
    bounds = [n.const_scalar(i) for i in (1, 2)]
    absent = [not n.has(i) for i in (1, 2)]
    if n.dtype(0).is_float and all(b is not None or a for b, a in zip(bounds, absent, strict=True)):
        low, high = bounds
        n.finish("clip", n.input(0), a=-np.inf if low is None else low, b=np.inf if high is None else high)
        return
    value = n.input(0) if absent[0] else n.emit("maximum", n.input(0), n.input(1))
    if absent[1]:
        n.finish("identity", value)
    else:
        n.finish("minimum", value, n.input(2))


def _gelu(n: NodeView) -> None:
    approximate = n.attr_str("approximate", "none")
    if approximate not in ("none", "tanh"):
        n.refuse(f"approximate={approximate!r}; vkconv has none and tanh")
    n.finish("gelu" if approximate == "none" else "gelu_tanh", n.input(0))


def _swish(n: NodeView) -> None:
    alpha = n.attr_float("alpha", 1.0)
    if alpha == 1.0:
        n.finish("silu", n.input(0))
    else:
        n.finish("mul", n.input(0), _gate(n, alpha))


def _gate(n: NodeView, alpha: float) -> str:
    """sigmoid(alpha x)"""
    return n.emit("sigmoid", n.emit("mul", n.input(0), n.number(alpha, n.dtype(0))))


def _swiglu(n: NodeView) -> None:
    n.finish("mul", n.emit("mul", n.input(0), _gate(n, n.attr_float("alpha", 1.0))), n.input(1))


def _bitwise_not(n: NodeView) -> None:
    dtype = n.dtype(0)
    n.finish("bit_xor", n.input(0), n.number(np.array(-1).astype(dtype.numpy), dtype))


def _bit_shift(n: NodeView) -> None:
    direction = n.attr_str("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        n.refuse(f"direction={direction!r}; ONNX has LEFT and RIGHT")
    n.finish("shift_left" if direction == "LEFT" else "shift_right", n.input(0), n.input(1))


def _is_inf(n: NodeView) -> None:
    negative, positive = n.attr_flag("detect_negative", True), n.attr_flag("detect_positive", True)
    if negative and positive:
        n.finish("is_inf", n.input(0))
    elif negative or positive:
        n.finish("is_positive_inf" if positive else "is_negative_inf", n.input(0))
    else:
        infinite = n.emit("is_inf", n.input(0))
        n.finish("logical_xor", infinite, infinite)


def _mod(n: NodeView) -> None:
    """fmod has the sign of the dividend, its absence that of the divisor."""
    n.finish("fmod" if n.attr_flag("fmod") else "mod", n.input(0), n.input(1))


def _where(n: NodeView) -> None:
    n.finish("where", n.input(0), n.input(1), n.input(2))


RULES: dict[str, Rule] = {
    **{name: partial(_unary, op, params) for name, (op, params) in UNARY.items()},
    **{name: partial(_binary, op) for name, op in BINARY.items()},
    **{name: partial(_folded, op) for name, op in _FOLDED.items()},
    "BitShift": _bit_shift,
    "BitwiseNot": _bitwise_not,
    "Equal": _equal,
    "IsInf": _is_inf,
    "Mean": _mean,
    "PRelu": _prelu,
    "Pow": _pow,
    "Mod": _mod,
    "Clip": _clip,
    "Gelu": _gelu,
    "SwiGLU": _swiglu,
    "Swish": _swish,
    "Where": _where,
}
