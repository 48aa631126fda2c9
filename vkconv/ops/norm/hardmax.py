"""hardmax: 1 at the first largest element along an axis, 0 elsewhere."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import FLOATS, loop_iterations
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.program import Program
from vkconv.route import Params, Route

HARDMAX_SHADER = Shader(shaders.norm.HARDMAX)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.float_operand(specs, "x", "hardmax")
    return {"axis": shapes.axis_of("hardmax", attrs["axis"], len(x.dims))}, (x,)


def _program(call: Call, device: Device, params: Params) -> Program:
    x, axis = call.shape("x"), call["axis"]
    inner = math.prod(x[axis + 1 :])
    lines = math.prod(x[:axis]) * inner
    push = {"lines": lines, "length": x[axis], "inner": inner}
    return Program((dispatch_each(HARDMAX_SHADER, lines, device, params, push, loop_iterations=2 * x[axis]),))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x")
    y = np.zeros(x.shape)
    if x.size:
        np.put_along_axis(y, np.expand_dims(np.argmax(x, call["axis"]), call["axis"]), 1.0, call["axis"])
    return [y]


HARDMAX = Op(
    "hardmax",
    (Operand("x"),),
    _resolve,
    _reference,
    attrs=(Attr("axis", "axis", int, -1),),
    routes=(
        Route(
            "serial",
            _program,
            (HARDMAX_SHADER,),
            "an invocation per line: one pass looks for the largest, one writes",
            must=(FLOATS, loop_iterations(lambda call, device: 2 * call.shape("x")[call["axis"]])),
            params=local_params,
        ),
    ),
    cases=("hardmax:x=5x67", "hardmax:x=3x5x7,axis=1", "hardmax:x=11,axis=0"),
    doc="1 at the first largest element of x along axis (the first NaN, where there is one), 0 elsewhere.",
)
