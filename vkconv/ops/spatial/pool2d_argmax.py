"""pool2d_argmax: where the maxima of pool2d lie, as ONNX's MaxPool tells it."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import operands_in
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.ops.kernels.windows import windows
from vkconv.ops.spatial.pool2d import POOL2D, window_push
from vkconv.program import Program
from vkconv.route import Params, Route

ARGMAX_SHADER = Shader(shaders.spatial.POOL2D_ARGMAX)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    own: Attrs = {"kind": "max", "norm": 2.0, "count_include_pad": False}
    canonical, (y,) = POOL2D.resolve(specs, {**attrs, **own})
    assert y is not None
    return {name: canonical[name] for name in attrs}, (TensorSpec(y.shape, DType.I64),)


def _program(call: Call, device: Device, params: Params) -> Program:
    (kh, kw), outputs, push = call["kernel"], call.outputs["y"].size, window_push(call, ARGMAX_SHADER)
    constants, iterations = {"COLUMN_MAJOR": call["column_major"]}, kh * (1 + kw)
    return Program(
        (dispatch_each(ARGMAX_SHADER, outputs, device, params, push, constants, loop_iterations=iterations),)
    )


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x = np.asarray(shapes.given(arrays, "x"), np.float64)
    n, c, h, w = x.shape
    oh, ow = call.shape("y")[2:]

    def view(array: F64, fill: float) -> F64:
        over = windows(array, call["kernel"], call["stride"], call["padding"], call["dilation"], (oh, ow), fill)
        return over.reshape(*over.shape[:4], math.prod(call["kernel"]))

    seen = view(x, -np.inf)
    rows, columns = np.indices((h, w))
    place = columns * h + rows if call["column_major"] else rows * w + columns
    places = (np.arange(n * c).reshape(n, c, 1, 1) * h * w + place).astype(np.float64)
    # Padding is nowhere: -1 there, so that it is not taken for the first of equal elements.
    at = view(places, -1.0)
    order = np.where(at < 0, -np.inf, np.where(np.isneginf(seen), -np.finfo(np.float64).max, seen))
    best = np.argmax(order, -1)[..., None]
    return [np.take_along_axis(at, best, -1)[..., 0].astype(np.int64)]


POOL2D_ARGMAX = Op(
    "pool2d_argmax",
    (Operand("x"),),
    _resolve,
    _reference,
    attrs=(
        *(attr for attr in POOL2D.attrs if attr.name not in ("kind", "count_include_pad", "norm")),
        Attr("column_major", "column", bool, False),
    ),
    routes=(
        Route(
            "window",
            _program,
            (ARGMAX_SHADER,),
            "one output per invocation, as pool2d has it",
            must=(operands_in("x", DType.F32),),
            params=local_params,
        ),
    ),
    cases=(
        "pool2d_argmax:x=2x3x13x17,k=2,s=2",
        "pool2d_argmax:x=1x5x11x9,k=3x2,s=2x1,p=1x0x2x1,ceil=1,column=1",
        "pool2d_argmax:x=1x2x12x10,k=3,s=2,p=1,d=2x3",
        "pool2d_argmax:x=3x7x1x5,k=2,s=1x2,d=2x1,p=1x0x1x1",
    ),
    doc="The index of each maximum that pool2d gives, counted over all of x row by row, or column by column within a "
    "plane; the first of equal ones, or the first NaN; -1 for a window that holds nothing of x.",
)
