"""Arithmetic of two operands with numpy broadcasting: one op per row of a table, all on one shader."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.core import Array, DType, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops import shapes
from vkconv.ops.base import Attrs, Op, Operand, Specs
from vkconv.ops.needs import F32_OR_I32
from vkconv.ops.strided import MAX_RANK, merge, walk_dispatch, walk_params
from vkconv.route import Call, Params, Route
from vkconv.shader import Program, Shader

Values = npt.NDArray[Any]
BINARY = {dtype: Shader("binary", dtype) for dtype in (DType.F32, DType.I32)}


@dataclasses.dataclass(frozen=True, slots=True)
class Binary:
    """One function: ``id`` selects it in shaders/binary.comp; ``reference`` is numpy's definition of it, for
    float64 and for integers (``integer`` False: floats only)."""

    name: str
    id: int
    reference: Callable[[Values, Values], Values]
    operands: tuple[str, str] = ("a", "b")
    integer: bool = True
    doc: str = ""


def _div(a: Values, b: Values) -> Values:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    # ONNX: integer division truncates toward zero; numpy floors. By zero it is 0 here, a crash elsewhere.
    quotient = np.floor_divide(np.abs(a), np.maximum(np.abs(b), 1)) * np.sign(a) * np.sign(b)
    return np.asarray(quotient.astype(a.dtype))


def _integer_zero(function: Callable[[Values, Values], Values]) -> Callable[[Values, Values], Values]:
    """The function, with 0 where an integer divisor is 0 (floats give NaN by themselves)."""

    def guarded(a: Values, b: Values) -> Values:
        if a.dtype.kind == "f":
            return function(a, b)
        return np.asarray(np.where(b == 0, 0, function(a, np.where(b == 0, 1, b))).astype(a.dtype))

    return guarded


def _prelu(x: Values, slope: Values) -> Values:
    return np.where(x < 0, x * slope, x)


TABLE: tuple[Binary, ...] = (
    Binary("add", 0, lambda a, b: np.add(a, b), doc="a + b"),
    Binary("sub", 1, lambda a, b: np.subtract(a, b), doc="a - b"),
    Binary("mul", 2, lambda a, b: np.multiply(a, b), doc="a * b"),
    Binary("div", 3, _div, doc="a / b; integers truncate toward zero, and give 0 for a divisor of 0"),
    Binary("pow", 4, lambda a, b: np.power(a, b), integer=False, doc="a to the power b, with numpy's special values"),
    Binary("minimum", 5, lambda a, b: np.minimum(a, b), doc="the smaller one; NaN where either is"),
    Binary("maximum", 6, lambda a, b: np.maximum(a, b), doc="the larger one; NaN where either is"),
    Binary("fmod", 7, _integer_zero(lambda a, b: np.fmod(a, b)), doc="remainder with the sign of a, exact"),
    Binary("mod", 8, _integer_zero(lambda a, b: np.mod(a, b)), doc="remainder with the sign of b"),
    Binary("prelu", 9, _prelu, ("x", "slope"), integer=False, doc="x, times slope where x is negative"),
)
ROWS: Mapping[str, Binary] = {row.name: row for row in TABLE}


def _program(call: Call, device: Device, params: Params) -> Program:
    row, out = ROWS[call.op], call.shape("y")
    strides = [shapes.broadcast_strides(call.shape(name), out) for name in row.operands]
    shader = BINARY[call.outputs["y"].dtype]
    walk = merge(out, *strides)
    return Program((walk_dispatch(shader, walk, device, params, row.operands, "y", spec=(row.id,)),))


def _reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    row = ROWS[call.op]
    a, b = (shapes.given(arrays, name) for name in row.operands)
    with np.errstate(all="ignore"):
        return [np.asarray(row.reference(a, b))]


def _cases(row: Binary) -> tuple[str, ...]:
    a, b = row.operands
    shared = (f"{a}=3x67,{b}=3x67", f"{a}=2x5x3x7,{b}=5x1x1")
    both_ways = () if row.name == "prelu" else (f"{a}=scalar,{b}=5x7", f"{a}=4x1x9,{b}=7x1")
    integers = (f"{a}=3x67:i32,{b}=67:i32",) if row.integer else ()
    extra = (f"{a}=2x1x3x1x5x1,{b}=1x4x1x2x1x3", f"{a}=70001,{b}=1") if row.name == "add" else ()
    return tuple(f"{row.name}:{text}" for text in (*shared, *both_ways, *integers, *extra))


def _op(row: Binary) -> Op:
    def resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
        named = {name: shapes.operand(specs, name, row.name) for name in row.operands}
        first, second = named.values()
        shapes.same_dtype(row.name, named)
        if first.dtype is DType.BOOL or not (first.dtype.is_float or row.integer):
            raise GraphError(f"{row.name}: operands are {first.dtype}; cast them to f32 first")
        out = shapes.broadcast_shape(row.name, first.dims, second.dims)
        if row.name == "prelu" and out != first.dims:
            raise GraphError(f"prelu: slope {second} does not broadcast to the shape of x, {first}")
        rank = merge(out, *(shapes.broadcast_strides(s.dims, out) for s in named.values())).rank
        if rank > MAX_RANK:
            raise GraphError(f"{row.name}: {rank} dimensions stay after merging; at most {MAX_RANK} can")
        return {}, (TensorSpec(out, first.dtype),)

    return Op(
        row.name,
        tuple(Operand(name) for name in row.operands),
        ("y",),
        resolve,
        _reference,
        routes=(
            Route(
                "broadcast",
                _program,
                tuple(BINARY.values()),
                "one pass over the merged index space; equal shapes and scalars need no index division",
                must=(F32_OR_I32,),
                params=walk_params,
            ),
        ),
        flops=lambda call: call.outputs["y"].size,
        cases=_cases(row),
        doc=f"y = {row.doc}; operands broadcast as in numpy.",
    )


BINARY_OPS: tuple[Op, ...] = tuple(_op(row) for row in TABLE)
