"""Scalar functions of one variable: one table for the unary op and for the epilogues of conv2d and matmul.

The same rows stand in shaders/include/activation.glsl; a test holds the two together. Ids are part of compiled
specialization data, so a row is only ever added at the end.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from vkconv.core import GraphError, did_you_mean
from vkconv.graph.ir import AttrValue

F64 = npt.NDArray[np.float64]

_erf = np.frompyfunc(math.erf, 1, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Activation:
    """One function: ``id`` selects it in the shader, ``params`` names its float parameters (at most two, in the
    order ``a``, ``b``), ``reference(x, a, b)`` is its definition in float64. ``cancelled(x, a, b)`` is the size of what
    f32 adds and subtracts on the way where the result may be smaller (None: nowhere). Without ``epilogue`` it is an op
    of its own only."""

    name: str
    id: int
    params: tuple[str, ...]
    reference: Callable[[F64, float, float], F64]
    cancelled: Callable[[F64, float, float], F64] | None = None
    epilogue: bool = True


def _sigmoid(x: F64) -> F64:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _erf64(x: F64) -> F64:
    return np.asarray(_erf(x), np.float64)


def _elu(x: F64, alpha: float) -> F64:
    return np.where(x < 0, alpha * np.expm1(x), x)


def _celu(x: F64, alpha: float) -> F64:
    """With an infinite alpha the limit, x."""
    below = x if math.isinf(alpha) else alpha * np.expm1(x / alpha)
    return np.where(x < 0, below, x)


def _celu_rounding(x: F64, alpha: float) -> F64:
    """Where alpha is negative, e^(x / alpha) moves by as much as that grows when x / alpha rounds."""
    return np.where((x < 0) & (alpha < 0), np.abs(x) * np.exp(x / alpha), 0.0)


def _hard_sigmoid(x: F64, alpha: float, beta: float) -> F64:
    return np.clip(alpha * x + beta, 0.0, 1.0)


def _shrink(x: F64, lambda_: float, bias: float) -> F64:
    return np.where(x > lambda_, x - bias, np.where(x < -lambda_, x + bias, np.where(np.isnan(x), x, 0.0)))


def _clip(x: F64, lo: float, hi: float) -> F64:
    """np.clip, where a zero at a bound is the bound: relu of -0 is 0."""
    return np.where(np.isnan(x), x, np.where((x >= hi) | (lo > hi), hi, np.where(x <= lo, lo, x)))


def _clip3(x: F64) -> F64:
    return np.clip(np.abs(x), 0.0, 3.0)


def _gelu_tanh(x: F64) -> F64:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _softplus(x: F64) -> F64:
    return np.logaddexp(0.0, x)


_ROWS: tuple[Activation, ...] = (
    Activation("none", 0, (), lambda x, a, b: x),
    Activation("relu", 1, (), lambda x, a, b: _clip(x, 0.0, np.inf)),
    Activation("relu6", 2, (), lambda x, a, b: _clip(x, 0.0, 6.0)),
    Activation("clip", 3, ("lo", "hi"), lambda x, a, b: _clip(x, a, b)),
    # x / 6 + 1/2 goes through 0 at -3, and beyond -3 and 3 is clipped.
    Activation("hard_swish", 4, (), lambda x, a, b: x * _hard_sigmoid(x, 1 / 6, 0.5), lambda x, a, b: _clip3(x) / 2),
    Activation("hard_sigmoid", 5, ("alpha", "beta"), _hard_sigmoid, lambda x, a, b: np.full_like(x, abs(b))),
    Activation("sigmoid", 6, (), lambda x, a, b: _sigmoid(x)),
    Activation("silu", 7, (), lambda x, a, b: x * _sigmoid(x)),
    Activation("leaky_relu", 8, ("alpha",), lambda x, a, b: np.where(x < 0, a * x, x)),
    # 1 + erf and 1 + tanh: for a negative x both addends are larger than what they leave.
    Activation("gelu", 9, (), lambda x, a, b: 0.5 * x * (1 + _erf64(x / math.sqrt(2))), lambda x, a, b: np.abs(x) / 2),
    Activation("gelu_tanh", 10, (), lambda x, a, b: _gelu_tanh(x), lambda x, a, b: np.abs(x) / 2),
    Activation("tanh", 11, (), lambda x, a, b: np.tanh(x)),
    Activation("elu", 12, ("alpha",), lambda x, a, b: _elu(x, a)),
    Activation("selu", 13, ("alpha", "gamma"), lambda x, a, b: b * _elu(x, a)),
    Activation("celu", 14, ("alpha",), lambda x, a, b: _celu(x, a), lambda x, a, b: _celu_rounding(x, a)),
    Activation("softplus", 15, (), lambda x, a, b: _softplus(x)),
    Activation("softsign", 16, (), lambda x, a, b: x / (1 + np.abs(x))),
    Activation("mish", 17, (), lambda x, a, b: x * np.tanh(_softplus(x))),
    Activation("thresholded_relu", 18, ("alpha",), lambda x, a, b: np.where(x <= a, 0.0, x)),
    Activation("exp", 19, (), lambda x, a, b: np.exp(x)),
    Activation("log", 20, (), lambda x, a, b: np.log(x)),
    Activation("sqrt", 21, (), lambda x, a, b: np.sqrt(x)),
    Activation("reciprocal", 22, (), lambda x, a, b: np.asarray(1.0 / x)),
    Activation("abs", 23, (), lambda x, a, b: np.abs(x)),
    Activation("neg", 24, (), lambda x, a, b: -x),
    Activation("floor", 25, (), lambda x, a, b: np.floor(x)),
    Activation("ceil", 26, (), lambda x, a, b: np.ceil(x)),
    Activation("round", 27, (), lambda x, a, b: np.rint(x)),
    Activation("sign", 28, (), lambda x, a, b: np.sign(x)),
    Activation("erf", 29, (), lambda x, a, b: _erf64(x)),
    Activation("sin", 30, (), lambda x, a, b: np.sin(x)),
    Activation("cos", 31, (), lambda x, a, b: np.cos(x)),
    Activation("tan", 32, (), lambda x, a, b: np.tan(x), epilogue=False),
    Activation("asin", 33, (), lambda x, a, b: np.arcsin(x), epilogue=False),
    Activation("acos", 34, (), lambda x, a, b: np.arccos(x), epilogue=False),
    Activation("atan", 35, (), lambda x, a, b: np.arctan(x), epilogue=False),
    Activation("sinh", 36, (), lambda x, a, b: np.sinh(x), epilogue=False),
    Activation("cosh", 37, (), lambda x, a, b: np.cosh(x), epilogue=False),
    Activation("asinh", 38, (), lambda x, a, b: np.arcsinh(x), epilogue=False),
    Activation("acosh", 39, (), lambda x, a, b: np.arccosh(x), epilogue=False),
    Activation("atanh", 40, (), lambda x, a, b: np.arctanh(x), epilogue=False),
    Activation("shrink", 41, ("lambda", "bias"), _shrink, lambda x, a, b: np.full_like(x, abs(b)), False),
)

ACTIVATIONS: Mapping[str, Activation] = {row.name: row for row in _ROWS}


def check_numbers(name: str, *numbers: AttrValue) -> None:
    """GraphError for a parameter of the function that is NaN: comparisons with a NaN bound would let all through."""
    if any(isinstance(number, float) and math.isnan(number) for number in numbers):
        raise GraphError(f"{name} with the parameters {', '.join(map(str, numbers))}: one of them is no number")


def activation(name: str) -> Activation:
    """The row with this name, of an epilogue; GraphError with a suggestion otherwise."""
    known = [row.name for row in _ROWS if row.epilogue]
    if name not in known:
        own = "; it is an op of its own" if name in ACTIVATIONS else did_you_mean(name, known)
        raise GraphError(f"there is no activation {name!r}{own}")
    return ACTIVATIONS[name]


def apply(name: str, x: F64, a: float = 0.0, b: float = 0.0) -> F64:
    """The named function of ``x`` elementwise in float64; overflow, NaN and infinity as IEEE 754 says."""
    with np.errstate(all="ignore"):
        return ACTIVATIONS[name].reference(x, a, b)
