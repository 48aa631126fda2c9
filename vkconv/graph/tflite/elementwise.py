"""Import rules for functions of one value, arithmetic with broadcasting, comparisons and selections."""

from functools import partial

from vkconv.core import DType
from vkconv.graph.tflite.reader import DTYPES
from vkconv.graph.tflite.view import OpView, Rule

UNARY = {
    "ABS": "abs",
    "CEIL": "ceil",
    "COS": "cos",
    "ELU": "elu",
    "EXP": "exp",
    "FLOOR": "floor",
    "HARD_SWISH": "hard_swish",
    "LOG": "log",
    "LOGICAL_NOT": "logical_not",
    "LOGISTIC": "sigmoid",
    "NEG": "neg",
    "RELU": "relu",
    "RELU6": "relu6",
    "ROUND": "round",
    "SIGN": "sign",
    "SIN": "sin",
    "SQRT": "sqrt",
    "TANH": "tanh",
}
BINARY = {
    "ADD": "add",
    "DIV": "div",
    "FLOOR_MOD": "mod",
    "GREATER": "greater",
    "GREATER_EQUAL": "greater_equal",
    "LESS": "less",
    "LESS_EQUAL": "less_equal",
    "LOGICAL_AND": "logical_and",
    "LOGICAL_OR": "logical_or",
    "MAXIMUM": "maximum",
    "MINIMUM": "minimum",
    "MUL": "mul",
    "POW": "pow",
    "SUB": "sub",
}
FUSING = ("ADD", "DIV", "MUL", "SUB")
"""Those whose options have a fused activation; the tables of the others have no such field."""


def _unary(op: str, n: OpView) -> None:
    n.finish(n.emit(op, n.x(0)))


def _clip(low: float, high: float, n: OpView) -> None:
    n.finish(n.emit("clip", n.x(0), a=low, b=high))


def _leaky_relu(n: OpView) -> None:
    n.finish(n.emit("leaky_relu", n.x(0), a=float(n.option("Alpha", 0.0))))


def _gelu(n: OpView) -> None:
    n.finish(n.emit("gelu_tanh" if n.option("Approximate", False) else "gelu", n.x(0)))


def _square(n: OpView) -> None:
    n.finish(n.emit("mul", n.x(0), n.x(0)))


def _rsqrt(n: OpView) -> None:
    n.finish(n.emit("reciprocal", n.emit("sqrt", n.x(0))))


def _zeros(n: OpView) -> None:
    shape = n.emit("shape", n.x(0))
    n.finish(n.emit("constant_of_shape", shape, dtype=str(n.dtype(0))))


def _binary(op: str, n: OpView) -> None:
    y = n.emit(op, n.x(0), n.x(1))
    n.finish(n.fused(y) if n.op.name in FUSING else y)


def _floor_div(n: OpView) -> None:
    if n.dtype(0).is_float:
        n.finish(n.emit("floor", n.emit("div", n.x(0), n.x(1))))
    else:  # what is taken off makes the quotient whole
        rest = n.emit("mod", n.x(0), n.x(1))
        n.finish(n.emit("div", n.emit("sub", n.x(0), rest), n.x(1)))


def _squared_difference(n: OpView) -> None:
    difference = n.emit("sub", n.x(0), n.x(1))
    n.finish(n.emit("mul", difference, difference))


def _equal(differs: bool, n: OpView) -> None:
    same = n.emit("logical_equal" if n.dtype(0) is DType.BOOL else "equal", n.x(0), n.x(1))
    n.finish(n.emit("logical_not", same) if differs else same)


def _add_n(n: OpView) -> None:
    total = n.x(0)
    for i in range(1, len(n.op.inputs)):
        total = n.emit("add", total, n.x(i))
    n.finish(total)


def _cast(n: OpView) -> None:
    to = DTYPES.get(n.option("OutDataType"), n.output().dtype)
    if to is None:
        n.refuse(f"it casts to {n.output().type_name}, a type that vkconv does not have")
    n.finish_stored(n.emit("cast", n.stored(0), to=str(to)))


def _prelu(n: OpView) -> None:
    n.finish(n.emit("prelu", n.x(0), n.x(1)))


def _select(n: OpView) -> None:
    """SELECT takes a vector of conditions for whole rows too; SELECT_V2 broadcasts as numpy does."""
    condition, rank = n.stored(0), n.rank(1)
    if n.op.name == "SELECT" and n.rank(0) == 1 and rank > 1:
        condition = n.emit("unsqueeze", condition, axes=tuple(range(1, rank)))
    n.finish(n.emit("where", condition, n.x(1), n.x(2)))


def _softmax(n: OpView) -> None:
    beta = float(n.option("Beta", 1.0))
    x = n.x(0) if beta == 1.0 else n.emit("mul", n.x(0), n.number(beta, DType.F32))
    n.finish(n.emit("softmax", x, axis=-1))


def _log_softmax(n: OpView) -> None:
    n.finish(n.emit("softmax", n.x(0), axis=-1, log=True))


def _l2_normalization(n: OpView) -> None:
    """x / max(|x|, 1e-6) along the last axis."""
    x = n.x(0)
    length = n.emit("reduce", x, op="l2", axes=(n.rank(0) - 1,), keepdims=True)
    n.finish(n.fused(n.emit("div", x, n.emit("maximum", length, n.number(1e-6, DType.F32)))))


RULES: dict[str, Rule] = {
    **{name: partial(_unary, op) for name, op in UNARY.items()},
    **{name: partial(_binary, op) for name, op in BINARY.items()},
    "ADD_N": _add_n,
    "CAST": _cast,
    "EQUAL": partial(_equal, False),
    "FLOOR_DIV": _floor_div,
    "GELU": _gelu,
    "L2_NORMALIZATION": _l2_normalization,
    "LEAKY_RELU": _leaky_relu,
    "LOG_SOFTMAX": _log_softmax,
    "NOT_EQUAL": partial(_equal, True),
    "PRELU": _prelu,
    "RELU_0_TO_1": partial(_clip, 0.0, 1.0),
    "RELU_N1_TO_1": partial(_clip, -1.0, 1.0),
    "RSQRT": _rsqrt,
    "SELECT": _select,
    "SELECT_V2": _select,
    "SOFTMAX": _softmax,
    "SQUARE": _square,
    "SQUARED_DIFFERENCE": _squared_difference,
    "ZEROS_LIKE": _zeros,
}
