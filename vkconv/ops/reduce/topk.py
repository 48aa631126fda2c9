"""topk: the k largest or smallest elements along an axis, in order, and where they are."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import loop_iterations, operands_in
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.program import Program
from vkconv.route import Params, Route

TOPK_SHADERS = {dtype: Shader(shaders.reduce.TOPK, dtype) for dtype in (DType.F32, DType.I32, DType.I64)}


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.number_operand(specs, "x", "topk")
    axis, counts = shapes.axis_of("topk", attrs["axis"], len(x.dims)), shapes.ints(attrs["k"])
    if len(counts) != 1 or not 0 <= counts[0] <= x.dims[axis]:
        raise GraphError(f"topk: k is {list(counts)}; axis {axis} of x ({x}) has {x.dims[axis]} elements")
    out = (*x.dims[:axis], counts[0], *x.dims[axis + 1 :])
    canonical: Attrs = {**attrs, "axis": axis, "k": counts[0]}
    return canonical, (TensorSpec(out, x.dtype), TensorSpec(out, DType.I64))


def _program(call: Call, device: Device, params: Params) -> Program:
    x, axis = call.shape("x"), call["axis"]
    shader, total, n = TOPK_SHADERS[call.outputs["values"].dtype], math.prod(x), x[axis]
    push = {"total": total, "length": n, "inner": math.prod(x[axis + 1 :]), "k": call["k"]}
    constants = {"LARGEST": call["largest"]}
    return Program((dispatch_each(shader, total, device, params, push, constants, loop_iterations=n),))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, axis = shapes.given(arrays, "x"), call["axis"]
    # Sorting is stable, and puts NaN last: from the back, for the largest, also of equal elements the last one.
    order = np.argsort(np.flip(x, axis) if call["largest"] else x, axis, kind="stable")
    if call["largest"]:
        order = x.shape[axis] - 1 - np.flip(order, axis)
    order = np.take(order, np.arange(call["k"]), axis)
    return [np.take_along_axis(x, order, axis), order.astype(np.int64)]


TOPK = Op(
    "topk",
    (Operand("x"), Operand("k", host=True)),
    _resolve,
    _reference,
    outputs=("values", "indices"),
    attrs=(
        Attr("k", "k", int),
        Attr("axis", "axis", int, -1),
        Attr("largest", "largest", bool, True),
    ),
    routes=(
        Route(
            "count",
            _program,
            tuple(TOPK_SHADERS.values()),
            "an invocation per element counts those before it: no sorting steps, no shared memory, equal elements in "
            "order; the square of the axis' length",
            must=(
                operands_in("x", *TOPK_SHADERS),
                loop_iterations(lambda call, device: call.shape("x")[call["axis"]]),
            ),
            params=local_params,
        ),
    ),
    cases=(
        "topk:x=5x67,k=7",
        "topk:x=3x11x5,k=4,axis=1,largest=0",
        "topk:x=131:i32,k=131",
        "topk:x=4x9:i64,k=3,axis=0",
        "topk:x=4x9,k=1,axis=-2,largest=0",
    ),
    doc="The k largest (or smallest) elements of x along axis, the most extreme first and equal ones by index, and "
    "their indices as i64; NaN counts as larger than every number.",
)
