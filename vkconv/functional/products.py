"""Matrix products as functions."""

from __future__ import annotations  # help() shows npt.ArrayLike, not what it stands for

import numpy.typing as npt

from vkconv.backend.given import flag
from vkconv.core import Array, InputError
from vkconv.functional.arguments import Activation, activation_attrs, arrays, number, without_axis
from vkconv.functional.cache import run
from vkconv.graph.ir import AttrValue


def matmul(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: Activation | None = None,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """activation(alpha a b + beta bias), with batches as numpy's matmul has them.

    a is (..., M, K) or, with ``trans_a``, (..., K, M); b is (..., K, N) or, with ``trans_b``, (..., N, K); bias is (N);
    the result is (..., M, N). An operand of rank 1 is a row in place of a and a column in place of b, however it is
    transposed, and its dimension is none of the result's: of two, that is a number. Raises what `conv2d` raises.
    """
    operands = arrays("matmul", a=a, b=b, bias=bias)
    attrs: dict[str, AttrValue] = {"trans_a": flag("trans_a", trans_a), "trans_b": flag("trans_b", trans_b)}
    attrs |= {"alpha": number("alpha", alpha), "beta": number("beta", beta)}
    if activation is not None:
        attrs |= activation_attrs(activation)
    for name in ("a", "b"):
        if operands[name].ndim == 0:
            raise InputError(
                f"matmul: {name} is a scalar, of rank 0; it takes a vector, a matrix or batches of matrices, and "
                "multiplies by a number with alpha, or functional.mul"
            )
    is_row, is_column = operands["a"].ndim == 1, operands["b"].ndim == 1
    if is_row:
        operands["a"], attrs["trans_a"] = operands["a"].reshape(1, -1), False
    if is_column:
        operands["b"], attrs["trans_b"] = operands["b"].reshape(-1, 1), False
    y = run("matmul", operands, attrs, route, device, out=out)
    y = without_axis(y, y.ndim - 1) if is_column else y
    return without_axis(y, y.ndim - 1 if is_column else y.ndim - 2) if is_row else y
