"""reverse_sequence: the first elements along one axis in reverse order, as many as are told for each of another."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError
from vkconv.device import Device
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import operands_in
from vkconv.ops.kernels.strided import by_width, dispatch_each, local_params
from vkconv.program import Program
from vkconv.route import Params, Route

REVERSE_SHADERS = by_width(shaders.movement.REVERSE_SEQUENCE)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, lengths = (shapes.operand(specs, name, "reverse_sequence") for name in ("x", "lengths"))
    time, batch = attrs["time_axis"], attrs["batch_axis"]
    if {time, batch} != {0, 1} or len(x.dims) < 2:
        raise GraphError(
            f"reverse_sequence: time_axis is {time} and batch_axis {batch}, x is {x}; they are axes 0 and 1 of a "
            "tensor of rank 2 or more"
        )
    if lengths.dtype not in (DType.I32, DType.I64) or lengths.dims != (x.dims[int(batch == 1)],):
        raise GraphError(f"reverse_sequence: lengths are {lengths}; there is an i32 or i64 for each batch of x ({x})")
    return attrs, (x,)


def _program(call: Call, device: Device, params: Params) -> Program:
    x, y, lengths = call.shape("x"), call.outputs["y"], call.specs["lengths"]
    push = {"total": y.size, "n0": x[0], "n1": x[1], "inner": math.prod(x[2:])}
    constants = {"WIDE": lengths.dtype is DType.I64, "TIME_FIRST": call["time_axis"] == 0}
    return Program((dispatch_each(REVERSE_SHADERS[y.dtype.nbytes], y.size, device, params, push, constants),))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, lengths, time = shapes.given(arrays, "x"), shapes.given(arrays, "lengths"), call["time_axis"]
    n = x.shape[time]
    steps, ends = np.arange(n)[:, None], np.clip(lengths, 0, n)[None, :]
    source = np.where(steps < ends, ends - 1 - steps, steps)  # time x batch
    own = np.arange(x.shape[1 - time])[None, :]
    return [x[source, own] if time == 0 else x[own.T, source.T]]


REVERSE_SEQUENCE = Op(
    "reverse_sequence",
    (Operand("x"), Operand("lengths")),
    _resolve,
    _reference,
    attrs=(Attr("time_axis", "time", int, 0), Attr("batch_axis", "batch", int, 1)),
    routes=(
        Route(
            "gather",
            _program,
            tuple(REVERSE_SHADERS.values()),
            "an invocation per element of y",
            must=(operands_in("x", DType.F32, DType.I32, DType.U32, DType.I64),),
            params=local_params,
        ),
    ),
    cases=(
        "reverse_sequence:x=3x5,lengths=5:i64",
        "reverse_sequence:x=5x3x7,lengths=5:i32,time=1,batch=0",
        "reverse_sequence:x=2x3x2:i64,lengths=3:i32",
    ),
    doc="y[t] = x[length - 1 - t] for t below the length of its batch, which counts as one from 0 to all, else x[t].",
)
