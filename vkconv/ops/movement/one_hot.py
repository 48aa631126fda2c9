"""one_hot: one value where an index points along a new axis, another elsewhere."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import HALVES, Call
from vkconv.core import DType, GraphError, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import operands_in
from vkconv.ops.kernels.strided import by_width, dispatch_each, local_params
from vkconv.program import Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route
from vkconv.storage import PACKED, stores_natively

ONE_HOT_SHADERS = by_width(shaders.movement.ONE_HOT)
# Of values of two bytes, on devices that store them by themselves and on others.
_OF_HALVES = {
    native: Shader(shaders.movement.ONE_HOT, DType.U16, () if native else (PACKED,)) for native in (True, False)
}
_INDEX = (DType.F32, DType.I32, DType.I64, DType.F16, DType.BF16)  # index is the shader's INDEX


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    indices, values = (shapes.operand(specs, name, "one_hot") for name in ("indices", "values"))
    if values.dims != (2,):
        raise GraphError(f"one_hot: values is {shape_str(values.dims)}; it holds two, that for off and that for on")
    depths = attrs["depth"] if isinstance(attrs["depth"], tuple) else (attrs["depth"],)
    if len(depths) != 1 or not 0 <= float(depths[0]) < 1 << 31:
        raise GraphError(f"one_hot: depth is {depths}; it is one number from 0 to {(1 << 31) - 1}")
    depth = int(float(depths[0]))
    axis = shapes.axis_of("one_hot", attrs["axis"], len(indices.dims) + 1)
    out = (*indices.dims[:axis], depth, *indices.dims[axis:])
    return {"depth": float(depth), "axis": axis}, (TensorSpec(out, values.dtype),)


def _program(call: Call, device: Device, params: Params) -> Program:
    indices, y = call.specs["indices"], call.outputs["y"]
    push = {"total": y.size, "depth": int(call["depth"]), "inner": math.prod(indices.dims[call["axis"] :])}
    constants = {"INDEX": _INDEX.index(indices.dtype)}
    shader = _OF_HALVES[stores_natively(device)] if y.dtype.nbytes == 2 else ONE_HOT_SHADERS[y.dtype.nbytes]
    return Program((dispatch_each(shader, y.size, device, params, push, constants),))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    indices, values = shapes.given(arrays, "indices"), shapes.given(arrays, "values")
    depth = int(call["depth"])
    places = np.expand_dims(np.where(indices < 0, indices + depth, indices), call["axis"])
    steps = np.arange(depth).reshape((-1, *(1,) * (indices.ndim - call["axis"])))
    return [np.where(places == steps, values[1], values[0])]


_MOVED = (DType.F32, DType.I32, DType.U32, DType.I64)


def _are_halves(call: Call, device: Device) -> bool:
    return call.specs["indices"].dtype in HALVES and call.specs["values"].dtype in (*HALVES, *_MOVED)


# Of 16-bit floats alone, which the program knows of by itself: it is none for f32 in another form.
_HALF_INDICES = Requirement(
    f"indices of f16 or bf16 elements, values of {', '.join((*HALVES, *_MOVED))}",
    _are_halves,
    lambda call, device: f"{call.specs['indices']} and {call.specs['values']}",
    halves=False,
)

ONE_HOT = Op(
    "one_hot",
    (Operand("indices"), Operand("values"), Operand("depth", host=True)),
    _resolve,
    _reference,
    attrs=(Attr("depth", "depth", float), Attr("axis", "axis", int, -1)),
    routes=(
        Route(
            "half_indices",
            _program,
            (*ONE_HOT_SHADERS.values(), *_OF_HALVES.values()),
            "an invocation per element of y, of indices that are 16-bit floats, which values need not be",
            must=(_HALF_INDICES,),
            params=local_params,
        ),
        Route(
            "one_hot",
            _program,
            tuple(ONE_HOT_SHADERS.values()),
            "an invocation per element of y",
            must=(
                operands_in("indices", *_INDEX[:3], halves=False),
                operands_in("values", *_MOVED),
            ),
            params=local_params,
        ),
    ),
    cases=(
        "one_hot:indices=5x3:i64,values=2,depth=4",
        "one_hot:indices=5x3:i32,values=2:i32,depth=3,axis=0",
        "one_hot:indices=5x3,values=2:i64,depth=2,axis=1",
        "one_hot:indices=5x3:f16,values=2:f32,depth=2,axis=1",
        "one_hot:indices=7x3:bf16,values=2:i32,depth=3",
        "one_hot:indices=5x3:bf16,values=2:f16,depth=2",
        "one_hot:indices=scalar:i64,values=2,depth=3",
    ),
    doc="A new axis of depth elements: values[1] where it is at the index, values[0] elsewhere; negative indices count "
    "from the back, and one outside the axis, or that is no whole number, points nowhere.",
)
