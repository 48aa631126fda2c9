"""Comparisons and where: bool tensors are one byte per element, packed four to the word on the device."""

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
from vkconv.ops.core.requirements import operands_in
from vkconv.ops.kernels.strided import broadcast, merge, walk_dispatch, walk_params
from vkconv.ops.pointwise.logic import of_two
from vkconv.program import Program
from vkconv.route import Params, Route

Values = npt.NDArray[Any]

COMPARE = {dtype: Shader(shaders.pointwise.COMPARE, dtype) for dtype in (DType.F32, DType.I32, DType.I64)}
WHERE, WHERE_PAIRS = Shader(shaders.pointwise.WHERE, DType.U32), Shader(shaders.pointwise.WHERE, DType.I64)
WHERE_RANK = 6  # dimensions after merging; four index tables share the push constants

_COMPARISONS: Mapping[str, tuple[int, Callable[[Values, Values], Values]]] = {
    "equal": (0, lambda a, b: np.equal(a, b)),
    "less": (1, lambda a, b: np.less(a, b)),
    "less_equal": (2, lambda a, b: np.less_equal(a, b)),
    "greater": (3, lambda a, b: np.greater(a, b)),
    "greater_equal": (4, lambda a, b: np.greater_equal(a, b)),
}


def _where_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    cond, a, b = (shapes.operand(specs, name, "where") for name in ("cond", "a", "b"))
    if cond.dtype is not DType.BOOL:
        raise GraphError(f"where: cond is {cond.dtype}; it must be bool")
    shapes.same_dtype("where", {"a": a, "b": b})
    out = broadcast("where", (cond, a, b), WHERE_RANK)
    return {}, (TensorSpec(out, a.dtype),)


def _where_program(call: Call, device: Device, params: Params) -> Program:
    out = call.shape("y")
    inputs = ("cond", "a", "b")
    walk = merge(out, *(shapes.broadcast_strides(call.shape(name), out) for name in inputs))
    shader = WHERE_PAIRS if call.outputs["y"].dtype is DType.I64 else WHERE
    return Program((walk_dispatch(shader, walk, device, params, buffers={"condition": "cond"}),))


def _where_reference(call: Call, arrays: Arrays) -> Outputs:
    cond, a, b = (shapes.given(arrays, name) for name in ("cond", "a", "b"))
    return [np.where(cond, a, b)]


_CASES = ("a=3x7,b=3x7", "a=5x1x3,b=2x3", "a=67:i32,b=scalar:i32", "a=67:i64,b=67:i64")
COMPARE_OPS: tuple[Op, ...] = tuple(
    of_two(
        name,
        number,
        function,
        COMPARE,
        _CASES,
        f"y = {name.replace('_', ' or ')}(a, b) as bool; operands broadcast, NaN compares false.",
    )
    for name, (number, function) in _COMPARISONS.items()
)

WHERE_OP = Op(
    "where",
    (Operand("cond"), Operand("a"), Operand("b")),
    _where_resolve,
    _where_reference,
    routes=(
        Route(
            "broadcast",
            _where_program,
            (WHERE, WHERE_PAIRS),
            "one pass over the merged index space; values move as words",
            must=(operands_in("a", DType.F32, DType.I32, DType.U32, DType.I64),),
            params=walk_params,
        ),
    ),
    cases=(
        "where:cond=3x67:bool,a=3x67,b=3x67",
        "where:cond=5x1:bool,a=7,b=scalar",
        "where:cond=2x1x3x1:bool,a=1x5x1x7,b=2x5x3x7",
        "where:cond=4x9:bool,a=4x9:i32,b=1:i32",
        "where:cond=4x1:bool,a=4x9:i64,b=9:i64",
    ),
    doc="y = a where cond, else b; all three broadcast.",
)
