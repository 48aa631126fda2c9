"""cumulative: running sums and products along an axis."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import NUMBERS, loop_iterations
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.program import Program
from vkconv.route import Params, Route

CUMULATIVE_SHADERS = {dtype: Shader(shaders.reduce.CUMULATIVE, dtype) for dtype in (DType.F32, DType.I32, DType.I64)}
KINDS = ("sum", "prod")  # index is the shader's KIND


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.number_operand(specs, "x", "cumulative")
    shapes.one_of("cumulative", attrs, "op", KINDS)
    return {**attrs, "axis": shapes.axis_of("cumulative", shapes.ints(attrs["axis"])[0], len(x.dims))}, (x,)


def _lines(call: Call) -> tuple[int, int, int]:
    """(outer, length, inner): what lies before the axis, along it, and behind it."""
    x, axis = call.shape("x"), call["axis"]
    return math.prod(x[:axis]), x[axis], math.prod(x[axis + 1 :])


def _program(call: Call, device: Device, params: Params) -> Program:
    outer, length, inner = _lines(call)
    lines, shader = outer * inner, CUMULATIVE_SHADERS[call.outputs["y"].dtype]
    push = {"lines": lines, "length": length, "inner": inner}
    constants = {"KIND": KINDS.index(call["op"]), "EXCLUSIVE": call["exclusive"], "REVERSE": call["reverse"]}
    return Program((dispatch_each(shader, lines, device, params, push, constants, loop_iterations=length),))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, axis = shapes.given(arrays, "x"), call["axis"]
    x = np.flip(x, axis) if call["reverse"] else x
    if call["exclusive"]:
        start = np.full_like(np.take(x, [0] if x.shape[axis] else [], axis), KINDS.index(call["op"]))
        x = np.concatenate([start, np.delete(x, -1, axis) if x.shape[axis] else x], axis)
    y = (np.cumsum if call["op"] == "sum" else np.cumprod)(x, axis, dtype=x.dtype)
    return [np.flip(y, axis) if call["reverse"] else y]


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """Of a sum, that of what was added on the way; a product rounds with its own size."""
    if call["op"] == "prod":
        return np.abs(reference)
    absolute = {"x": np.abs(shapes.given(arrays, "x"))}
    return np.asarray(_reference(call, absolute)[0], np.float64)


CUMULATIVE = Op(
    "cumulative",
    (Operand("x"), Operand("axis", host=True)),
    _resolve,
    _reference,
    attrs=(
        Attr("axis", "axis", int),
        Attr("op", "op", str, "sum"),
        Attr("exclusive", "exclusive", bool, False),
        Attr("reverse", "reverse", bool, False),
    ),
    routes=(
        Route(
            "serial",
            _program,
            tuple(CUMULATIVE_SHADERS.values()),
            "an invocation per line: the order of additions is that of the definition",
            must=(NUMBERS, loop_iterations(lambda call, device: _lines(call)[1])),
            params=local_params,
        ),
    ),
    terms=lambda call: max(1, _lines(call)[1]),
    flops=lambda call: call.outputs["y"].size,
    magnitude=_magnitude,
    cases=(
        "cumulative:x=67,axis=0",
        "cumulative:x=3x5x7,axis=1,reverse=1",
        "cumulative:x=3x5x7,axis=-1,exclusive=1",
        "cumulative:x=4x9,axis=0,op=prod,exclusive=1,reverse=1",
        "cumulative:x=5x11:i32,axis=1",
        "cumulative:x=5x11:i32,axis=1,op=prod",
        "cumulative:x=5x11:i64,axis=1,reverse=1",
        "cumulative:x=5x11:i64,axis=0,op=prod,exclusive=1",
    ),
    doc="Sums (op=sum) or products (op=prod) of x up to each element along axis; exclusive leaves the element out, "
    "reverse goes from the back.",
)
