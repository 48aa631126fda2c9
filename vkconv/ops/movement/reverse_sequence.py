"""reverse_sequence: the first elements along one axis in reverse order, as many as are told for each of another."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, DType, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Attr, Attrs, Op, Operand, Specs, linear_groups
from vkconv.ops.core.requirements import operands_in
from vkconv.ops.kernels.strided import local_params
from vkconv.program import Program, positional, read, write
from vkconv.route import Params, Route

REVERSE_SHADERS = {
    4: Shader(shaders.movement.REVERSE_SEQUENCE, DType.U32),
    8: Shader(shaders.movement.REVERSE_SEQUENCE, DType.I64),
}


def _resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
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
    x, y = call.shape("x"), call.outputs["y"]
    step = positional(
        REVERSE_SHADERS[y.dtype.nbytes],
        read("x", "lengths") + write("y"),
        groups=linear_groups(y.size, params["local"], device),
        local=(params["local"], 1, 1),
        push=(y.size, x[0], x[1], math.prod(x[2:])),
        spec=(call.operands["lengths"].dtype is DType.I64, call["time_axis"] == 0),  # type: ignore[union-attr]
    )
    return Program((step,))


def _reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    x, lengths, time = shapes.given(arrays, "x"), shapes.given(arrays, "lengths"), call["time_axis"]
    n = x.shape[time]
    steps, ends = np.arange(n)[:, None], np.clip(lengths, 0, n)[None, :]
    source = np.where(steps < ends, ends - 1 - steps, steps)  # time x batch
    own = np.arange(x.shape[1 - time])[None, :]
    return [x[source, own] if time == 0 else x[own.T, source.T]]


REVERSE_SEQUENCE = Op(
    "reverse_sequence",
    (Operand("x"), Operand("lengths")),
    ("y",),
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
