"""Arithmetic of two operands with numpy broadcasting: one op per row of a table, all on one shader."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import NUMBERS
from vkconv.ops.kernels.strided import broadcast, merge, walk_dispatch, walk_params
from vkconv.program import Program
from vkconv.route import Params, Route

Values = npt.NDArray[Any]
BINARY = {dtype: Shader(shaders.pointwise.BINARY, dtype) for dtype in (DType.F32, DType.I32, DType.I64)}


@dataclasses.dataclass(frozen=True, slots=True)
class Binary:
    """One function: ``id`` selects it in shaders/binary.comp; ``reference`` is numpy's definition of it, for
    float64 and for integers; ``kinds`` says of which it is one: f for floats, i for integers."""

    name: str
    id: int
    reference: Callable[[Values, Values], Values]
    operands: tuple[str, str] = ("a", "b")
    kinds: str = "fi"
    doc: str = ""


def _div(a: Values, b: Values) -> Values:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    # ONNX: integer division truncates toward zero; numpy floors. By zero it is 0 here, a crash elsewhere.
    divisor = np.where(b == 0, 1, b).astype(a.dtype)
    with np.errstate(over="ignore"):  # the smallest number by -1 wraps
        quotient, rest = np.divmod(a, divisor)
    towards_zero = quotient + ((rest != 0) & ((a < 0) != (divisor < 0)))
    return np.asarray(np.where(b == 0, 0, towards_zero).astype(a.dtype))


def _integer_zero(function: Callable[[Values, Values], Values]) -> Callable[[Values, Values], Values]:
    """The function, with 0 where an integer divisor is 0 (floats give NaN by themselves)."""

    def guarded(a: Values, b: Values) -> Values:
        if a.dtype.kind == "f":
            return function(a, b)
        return np.asarray(np.where(b == 0, 0, function(a, np.where(b == 0, 1, b))).astype(a.dtype))

    return guarded


def _pow(a: Values, b: Values) -> Values:
    if a.dtype.kind == "f":
        # numpy takes the root where b is one number, a half; that of -0 is -0, and of -infinity NaN.
        return np.where((b == 0.5) & ((a == 0) | np.isinf(a)), np.abs(a), np.power(a, b))
    # By squaring, which wraps as integers do; numpy refuses negative exponents, of which 1 and -1 have a power.
    one = np.ones_like(a)
    sign = np.where(b % 2 == 0, one, -one)
    below = np.where(a == 1, one, np.where(a == -1, sign, 0 * one))
    return np.asarray(np.where(b < 0, below, np.power(a, np.maximum(b, 0))).astype(a.dtype))


def _shifted(shift: Callable[[Values, Values], Values], beyond: Callable[[Values], Values]) -> Callable[..., Values]:
    """A shift by 0 to all bits but one; ``beyond`` is the result for any other count (ONNX BitShift-28)."""

    def guarded(a: Values, b: Values) -> Values:
        inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
        return np.asarray(np.where(inside, shift(a, np.where(inside, b, 0)), beyond(a)).astype(a.dtype))

    return guarded


def _prelu(x: Values, slope: Values) -> Values:
    return np.where(x < 0, x * slope, x)


TABLE: tuple[Binary, ...] = (
    Binary("add", 0, lambda a, b: np.add(a, b), doc="a + b"),
    Binary("sub", 1, lambda a, b: np.subtract(a, b), doc="a - b"),
    Binary("mul", 2, lambda a, b: np.multiply(a, b), doc="a * b"),
    Binary("div", 3, _div, doc="a / b; integers truncate toward zero, and give 0 for a divisor of 0"),
    Binary("pow", 4, _pow, doc="a to the power b, with numpy's special values; integers round toward zero and wrap"),
    Binary("minimum", 5, lambda a, b: np.minimum(a, b), doc="the smaller one; NaN where either is"),
    Binary("maximum", 6, lambda a, b: np.maximum(a, b), doc="the larger one; NaN where either is"),
    Binary("fmod", 7, _integer_zero(lambda a, b: np.fmod(a, b)), doc="remainder with the sign of a, exact"),
    Binary("mod", 8, _integer_zero(lambda a, b: np.mod(a, b)), doc="remainder with the sign of b"),
    Binary("prelu", 9, _prelu, ("x", "slope"), kinds="f", doc="x, times slope where x is negative"),
    Binary("bit_and", 10, lambda a, b: np.bitwise_and(a, b), kinds="i", doc="the bits that are set in a and b"),
    Binary("bit_or", 11, lambda a, b: np.bitwise_or(a, b), kinds="i", doc="the bits that are set in a or b"),
    Binary("bit_xor", 12, lambda a, b: np.bitwise_xor(a, b), kinds="i", doc="the bits in which a and b differ"),
    Binary(
        "shift_left",
        13,
        _shifted(lambda a, b: np.left_shift(a, b), lambda a: np.zeros_like(a)),
        kinds="i",
        doc="a shifted left by b bits; 0 where b is negative or as many as a has",
    ),
    Binary(
        "shift_right",
        14,
        _shifted(lambda a, b: np.right_shift(a, b), lambda a: np.where(a < 0, -1, 0)),
        kinds="i",
        doc="a shifted right by b bits, its sign kept; all sign where b is negative or as many as a has",
    ),
)
ROWS: Mapping[str, Binary] = {row.name: row for row in TABLE}


def _program(call: Call, device: Device, params: Params) -> Program:
    row, out = ROWS[call.op], call.shape("y")
    strides = [shapes.broadcast_strides(call.shape(name), out) for name in row.operands]
    shader, walk = BINARY[call.outputs["y"].dtype], merge(out, *strides)
    buffers = dict(zip("ab", row.operands, strict=True))
    return Program((walk_dispatch(shader, walk, device, params, {}, {"FUNCTION": row.id}, buffers),))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    row = ROWS[call.op]
    a, b = (shapes.given(arrays, name) for name in row.operands)
    with np.errstate(all="ignore"):
        return [np.asarray(row.reference(a, b))]


def _cases(row: Binary) -> tuple[str, ...]:
    a, b = row.operands
    shared = (f"{a}=3x67,{b}=3x67", f"{a}=2x5x3x7,{b}=5x1x1") if "f" in row.kinds else ()
    both_ways = (f"{a}=scalar,{b}=5x7", f"{a}=4x1x9,{b}=7x1") if "f" in row.kinds and row.name != "prelu" else ()
    integers = (f"{a}=3x67:i32,{b}=67:i32", f"{a}=2x5x3:i64,{b}=5x1:i64") if "i" in row.kinds else ()
    extra = (f"{a}=2x1x3x1x5x1,{b}=1x4x1x2x1x3", f"{a}=70001,{b}=1") if row.name == "add" else ()
    return tuple(f"{row.name}:{text}" for text in (*shared, *both_ways, *integers, *extra))


def _op(row: Binary) -> Op:
    def resolve(specs: Specs, attrs: Attrs) -> Resolved:
        named = {name: shapes.operand(specs, name, row.name) for name in row.operands}
        first, second = named.values()
        shapes.same_dtype(row.name, named)
        kind = "f" if first.dtype.is_float else "i"
        if first.dtype is DType.BOOL or kind not in row.kinds:
            raise GraphError(
                f"{row.name}: operands are {first.dtype}; cast them to {'f32' if 'f' in row.kinds else 'i32'} first"
            )
        out = broadcast(row.name, named.values())
        if row.name == "prelu" and out != first.dims:
            raise GraphError(f"prelu: slope {second} does not broadcast to the shape of x, {first}")
        return {}, (TensorSpec(out, first.dtype),)

    return Op(
        row.name,
        tuple(Operand(name) for name in row.operands),
        resolve,
        _reference,
        routes=(
            Route(
                "broadcast",
                _program,
                tuple(BINARY.values()),
                "one pass over the merged index space; equal shapes and scalars need no index division",
                must=(NUMBERS,),
                params=walk_params,
            ),
        ),
        flops=lambda call: call.outputs["y"].size,
        cases=_cases(row),
        doc=f"y = {row.doc}; operands broadcast as in numpy.",
    )


BINARY_OPS: tuple[Op, ...] = tuple(_op(row) for row in TABLE)
