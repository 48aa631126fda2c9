"""Import rules for functions of one value, arithmetic with torch's promotion of types, and selections."""

import math
from functools import partial
from typing import Any

from vkconv.core import DType
from vkconv.graph.aten.promotion import promoted
from vkconv.graph.aten.view import CallView, Rule, TensorType

UNARY = {
    **{f"{name}.default": name for name in ("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos")},
    **{f"{name}.default": name for name in ("cosh", "erf", "exp", "floor", "log", "neg", "reciprocal", "relu")},
    **{f"{name}.default": name for name in ("round", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh")},
    "hardswish.default": "hard_swish",
    "isinf.default": "is_inf",
    "isnan.default": "is_nan",
    "mish.default": "mish",
    "silu.default": "silu",
}
ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "maximum": "maximum", "minimum": "minimum", "fmod": "fmod"}
COMPARED = {"eq": "equal", "ge": "greater_equal", "gt": "greater", "le": "less_equal", "lt": "less", "ne": "equal"}
_LOGIC = ("logical_and", "logical_or", "logical_xor")


def _unary(op: str, n: CallView) -> None:
    if not n.dtype(0).is_float and op not in ("abs", "neg", "sign"):
        n.refuse(f"it is of {n.dtype(0)}; vkconv has it for floats")
    n.finish(n.emit(op, n.x(0)))


def _promoted(n: CallView, *places: int) -> DType:
    """The type that torch computes in: that of all operands together, of which numbers count less."""
    values: list[Any] = []
    for i in places:
        given = n.arg(i)
        values.append(n.tensor_type(given) or given)
    if not all(isinstance(v, TensorType | int | float) for v in values):
        n.refuse("an operand is neither tensor nor number")
    return promoted(values)


def _arithmetic(op: str, n: CallView) -> None:
    """With alpha, by which the second operand counts."""
    dtype, alpha = _promoted(n, 0, 1), n.option("alpha", 2, 1)
    if dtype is DType.BOOL:
        n.refuse("it computes with bools")
    b = n.operand(1, dtype)
    if alpha != 1:
        b = n.emit("mul", b, n.number(alpha, dtype))
    n.finish(n.emit(op, n.operand(0, dtype), b))


def _div(n: CallView) -> None:
    mode, dtype = n.option("rounding_mode", 2), _promoted(n, 0, 1)
    if not dtype.is_float:
        if mode is not None:
            n.refuse(f"it divides integers with rounding_mode={mode!r}")
        dtype = DType.F32
    quotient = n.emit("div", n.operand(0, dtype), n.operand(1, dtype))
    if mode == "floor":
        quotient = n.emit("floor", quotient)
    elif mode is not None:
        n.refuse(f"rounding_mode={mode!r}; vkconv has floor")
    n.finish(quotient)


def _compare(name: str, n: CallView) -> None:
    dtype = _promoted(n, 0, 1)
    op = "logical_equal" if dtype is DType.BOOL and name in ("eq", "ne") else COMPARED[name]
    same = n.emit(op, n.operand(0, dtype), n.operand(1, dtype))
    n.finish(n.emit("logical_not", same) if name == "ne" else same)


def _logic(op: str, n: CallView) -> None:
    n.finish(n.emit(op, n.operand(0, DType.BOOL), n.operand(1, DType.BOOL)))


def _bits(op: str, n: CallView) -> None:
    """Of bools, which are bits too."""
    dtype = _promoted(n, 0, 1)
    if dtype is not DType.BOOL:
        n.refuse(f"it is of {dtype}; vkconv has it for bools")
    _logic(op, n)


def _log10(n: CallView) -> None:
    if not n.dtype(0).is_float:
        n.refuse(f"it is of {n.dtype(0)}; vkconv has it for floats")
    n.finish(n.emit("mul", n.emit("log", n.x(0)), n.number(1 / math.log(10), n.dtype(0))))


def _log1p(n: CallView) -> None:
    """log(1 + x), corrected for what 1 + x was rounded by: Goldberg, "What Every Computer Scientist Should Know About
    Floating-Point Arithmetic", theorem 4."""
    if not n.dtype(0).is_float:
        n.refuse(f"it is of {n.dtype(0)}; vkconv has it for floats")
    x, one = n.x(0), n.number(1.0, n.dtype(0))
    u = n.emit("add", x, one)
    taken, log = n.emit("sub", u, one), n.emit("log", u)
    corrected = n.emit("mul", log, n.emit("div", x, taken))
    large = n.emit("where", n.emit("equal", taken, x), log, corrected)  # also infinity
    n.finish(n.emit("where", n.emit("equal", taken, n.number(0.0, n.dtype(0))), x, large))


def _hard_shrink(n: CallView) -> None:
    n.finish(n.emit("shrink", n.x(0), a=float(n.arg(1, 0.5)), b=0.0))


def _not(n: CallView) -> None:
    if n.dtype(0) is not DType.BOOL:
        n.refuse(f"it is of {n.dtype(0)}; vkconv has it for bools")
    n.finish(n.emit("logical_not", n.x(0)))


def _pow(n: CallView) -> None:
    exponent = n.arg(1)
    if exponent == 2:
        n.finish(n.emit("mul", n.x(0), n.x(0)))
        return
    dtype = _promoted(n, 0, 1)
    n.finish(n.emit("pow", n.operand(0, dtype), n.operand(1, dtype)))


def _clip(n: CallView) -> None:
    """clamp, and hardtanh whose bounds are -1 and 1 where it says none."""
    hard = "hardtanh" in n.operator
    low, high = n.arg(1, -1.0 if hard else None), n.arg(2, 1.0 if hard else None)
    if not n.dtype(0).is_float or not all(v is None or isinstance(v, int | float) for v in (low, high)):
        n.refuse("its bounds are tensors, or it is of integers")
    n.finish(clipped(n, n.x(0), low, high))


def clipped(n: CallView, x: str, low: float | None, high: float | None) -> str:
    """A value between bounds that may be none."""
    inf = float("inf")
    a, b = -inf if low is None else float(low), inf if high is None else float(high)
    return n.emit("relu", x) if (a, b) == (0.0, inf) else n.emit("clip", x, a=a, b=b)


def _hard_sigmoid(n: CallView) -> None:
    n.finish(n.emit("hard_sigmoid", n.x(0), a=1 / 6, b=0.5))


def _leaky_relu(n: CallView) -> None:
    n.finish(n.emit("leaky_relu", n.x(0), a=float(n.arg(1, 0.01))))


def _elu(n: CallView) -> None:
    if n.arg(2, 1) != 1 or n.arg(3, 1) != 1:
        n.refuse("a scale of elu; vkconv has elu by alpha alone")
    n.finish(n.emit("elu", n.x(0), a=float(n.arg(1, 1.0))))


def _gelu(n: CallView) -> None:
    n.finish(n.emit("gelu_tanh" if n.option("approximate", 1, "none") == "tanh" else "gelu", n.x(0)))


def _prelu(n: CallView) -> None:
    slope, rank = n.x(1), n.rank(0)
    if rank > 2 and n.rank(1) == 1:
        slope = n.emit("unsqueeze", slope, axes=tuple(range(1, rank - 1)))
    n.finish(n.emit("prelu", n.x(0), slope))


def _rsqrt(n: CallView) -> None:
    n.finish(n.emit("reciprocal", n.emit("sqrt", n.x(0))))


def _where(n: CallView) -> None:
    dtype = _promoted(n, 1, 2)
    n.finish(n.emit("where", n.x(0), n.operand(1, dtype), n.operand(2, dtype)))


def _cast(n: CallView) -> None:
    to = n.made.dtype
    n.finish(n.emit("identity", n.x(0)) if to is n.dtype(0) else n.cast(n.x(0), n.dtype(0), to))


def _same(n: CallView) -> None:
    n.finish(n.x(0))


def _forms(name: str) -> tuple[str, ...]:
    return (f"{name}.default",) if name in ("maximum", "minimum") else (f"{name}.Tensor", f"{name}.Scalar")


RULES: dict[str, Rule] = {
    **{name: partial(_unary, op) for name, op in UNARY.items()},
    **{form: partial(_arithmetic, op) for name, op in ARITHMETIC.items() for form in _forms(name)},
    **{form: partial(_compare, name) for name in COMPARED for form in _forms(name)},
    **{f"{name}.default": partial(_logic, name) for name in _LOGIC},
    **dict.fromkeys(("alias.default", "detach.default", "lift_fresh_copy.default", "clone.default"), _same),
    **dict.fromkeys(("clamp.default", "hardtanh.default"), _clip),
    **dict.fromkeys(("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode"), _div),
    **dict.fromkeys(("pow.Tensor_Scalar", "pow.Tensor_Tensor"), _pow),
    **dict.fromkeys(("logical_not.default", "bitwise_not.default"), _not),
    **dict.fromkeys(("prelu.default", "_prelu_kernel.default"), _prelu),
    "_to_copy.default": _cast,
    "bitwise_and.Tensor": partial(_bits, "logical_and"),
    "bitwise_or.Tensor": partial(_bits, "logical_or"),
    "elu.default": _elu,
    "gelu.default": _gelu,
    "hardshrink.default": _hard_shrink,
    "hardsigmoid.default": _hard_sigmoid,
    "leaky_relu.default": _leaky_relu,
    "log10.default": _log10,
    "log1p.default": _log1p,
    "rsqrt.default": _rsqrt,
    "where.self": _where,
}
