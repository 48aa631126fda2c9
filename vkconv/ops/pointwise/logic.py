"""Logic on bool tensors, which are one byte per element, and tests for NaN and infinities, which make them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError, ceil_div
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import operands_in
from vkconv.ops.kernels.strided import broadcast, dispatch_each, local_params, merge
from vkconv.program import Program
from vkconv.route import Params, Route

Values = npt.NDArray[Any]

LOGIC, CLASSIFY = Shader(shaders.pointwise.LOGIC, DType.U32), Shader(shaders.pointwise.CLASSIFY, DType.U32)

# Name: number in the shader, definition.
_OF_TWO: Mapping[str, tuple[int, Callable[[Values, Values], Values]]] = {
    "logical_and": (0, lambda a, b: np.logical_and(a, b)),
    "logical_or": (1, lambda a, b: np.logical_or(a, b)),
    "logical_xor": (2, lambda a, b: np.logical_xor(a, b)),
    "logical_equal": (3, lambda a, b: np.equal(a, b)),
}
# Name: number in the shader, element type of x, definition, what it says.
_OF_ONE: Mapping[str, tuple[int, DType, Callable[[Values], Values], str]] = {
    "logical_not": (0, DType.BOOL, lambda x: np.logical_not(x), "not x"),
    "is_nan": (1, DType.F32, lambda x: np.isnan(x), "whether x is NaN"),
    "is_inf": (2, DType.F32, lambda x: np.isinf(x), "whether x is infinite"),
    "is_positive_inf": (3, DType.F32, lambda x: np.isposinf(x), "whether x is positive infinity"),
    "is_negative_inf": (4, DType.F32, lambda x: np.isneginf(x), "whether x is negative infinity"),
}


def _packed(
    program: Callable[[Call, Device, Params], Program], operand: str, shaders_of: Mapping[DType, Shader]
) -> tuple[Route, ...]:
    return (
        Route(
            "packed",
            program,
            tuple(shaders_of.values()),
            "one word of four results per invocation: no 8-bit storage, no two writers of a word",
            must=(operands_in(operand, *shaders_of),),
            params=local_params,
        ),
    )


def of_two(
    name: str,
    number: int,
    function: Callable[[Values, Values], Values],
    shaders_of: Mapping[DType, Shader],
    cases: tuple[str, ...],
    doc: str,
) -> Op:
    """An op that makes bools of two operands of one type, which broadcast."""

    def resolve(specs: Specs, attrs: Attrs) -> Resolved:
        named = {key: shapes.operand(specs, key, name) for key in "ab"}
        for key, spec in named.items():
            if DType.BOOL in shaders_of and spec.dtype is not DType.BOOL:
                raise GraphError(f"{name}: {key} is {spec.dtype}; it must be bool")
        shapes.same_dtype(name, named)
        return {}, (TensorSpec(broadcast(name, named.values()), DType.BOOL),)

    def program(call: Call, device: Device, params: Params) -> Program:
        out, count, shader = call.shape("y"), call.outputs["y"].size, shaders_of[call.specs["a"].dtype]
        walk = merge(out, *(shapes.broadcast_strides(call.shape(key), out) for key in "ab"))
        push, constants = {"count": count, **walk.tables(shader)}, {"RANK": walk.rank, "FUNCTION": number}
        return Program((dispatch_each(shader, ceil_div(count, 4), device, params, push, constants),))

    return Op(
        name,
        (Operand("a"), Operand("b")),
        resolve,
        lambda call, arrays: [function(shapes.given(arrays, "a"), shapes.given(arrays, "b"))],
        routes=_packed(program, "a", shaders_of),
        cases=tuple(f"{name}:{case}" for case in cases),
        doc=doc,
    )


def _of_one(name: str) -> Op:
    number, dtype, function, meaning = _OF_ONE[name]

    def resolve(specs: Specs, attrs: Attrs) -> Resolved:
        x = shapes.operand(specs, "x", name)
        if x.dtype is not dtype and not (dtype.is_float and x.dtype.is_float):
            raise GraphError(f"{name}: x is {x.dtype}; it must be {'a float type' if dtype.is_float else dtype}")
        return {}, (TensorSpec(x.shape, DType.BOOL),)

    def program(call: Call, device: Device, params: Params) -> Program:
        count = call.outputs["y"].size
        push, constants = {"count": count}, {"FUNCTION": number}
        return Program((dispatch_each(CLASSIFY, ceil_div(count, 4), device, params, push, constants),))

    def reference(call: Call, arrays: Arrays) -> Outputs:
        return [np.asarray(function(shapes.given(arrays, "x")))]

    return Op(
        name,
        (Operand("x"),),
        resolve,
        reference,
        routes=_packed(program, "x", {dtype: CLASSIFY}),
        cases=tuple(f"{name}:x={shape}{'' if dtype.is_float else ':bool'}" for shape in ("3x67", "scalar", "2x3x5x7")),
        doc=f"y = {meaning}, as bool.",
    )


_CASES = ("a=3x7:bool,b=3x7:bool", "a=5x1x3:bool,b=2x3:bool", "a=67:bool,b=scalar:bool")
LOGIC_OPS: tuple[Op, ...] = (
    *(
        of_two(
            name,
            number,
            function,
            {DType.BOOL: LOGIC},
            _CASES,
            f"y = a {name.removeprefix('logical_')} b, of bools; operands broadcast.",
        )
        for name, (number, function) in _OF_TWO.items()
    ),
    *(_of_one(name) for name in _OF_ONE),
)
