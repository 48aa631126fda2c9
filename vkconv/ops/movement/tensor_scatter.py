"""tensor_scatter: a cache with rows of it replaced by new ones, from a row on that each batch has of its own."""

import math
from collections.abc import Mapping

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, DType, GraphError, shape_str
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import operands_in
from vkconv.ops.kernels.strided import STRIDED_COPIES, dispatch_rows, strided_copy, walk_params
from vkconv.ops.movement.gather import checked_indices
from vkconv.program import Program
from vkconv.route import Params, Route

_DTYPES = (DType.F32, DType.I32, DType.I64)
SHADERS = {dtype: Shader(shaders.movement.TENSOR_SCATTER, dtype) for dtype in _DTYPES}


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, updates = (shapes.operand(specs, name, "tensor_scatter") for name in ("x", "updates"))
    at = shapes.index_operand(specs, "at", "tensor_scatter")
    shapes.same_dtype("tensor_scatter", {"x": x, "updates": updates})
    axis = shapes.axis_of("tensor_scatter", attrs["axis"], len(x.dims))
    rows = updates.dims[axis] if axis < len(updates.dims) else 0
    if updates.dims != (*x.dims[:axis], rows, *x.dims[axis + 1 :]) or rows > x.dims[axis]:
        raise GraphError(
            f"tensor_scatter: updates are {shape_str(updates.dims)} and x is {shape_str(x.dims)}; they differ along "
            f"axis {axis} alone, where x has at least as many rows"
        )
    if at.dims != (1,) and (axis == 0 or at.dims != x.dims[:1]):
        raise GraphError(
            f"tensor_scatter: at is {shape_str(at.dims)}; it has a first row for each of the {x.dims[0]} batches, the "
            "first dimension of x, or one for all"
        )
    return {**attrs, "axis": axis}, (x,)


def _program(call: Call, device: Device, params: Params) -> Program:
    y, updates, at, axis = call.outputs["y"], call.shape("updates"), call.specs["at"], call["axis"]
    strides = shapes.row_major(y.dims)
    copies = strided_copy(device, params, "x", "y", y.dims, strides, strides, nbytes=y.dtype.nbytes)
    steps = () if call["in_place"] else copies
    rows, outer, inner = updates[axis], math.prod(y.dims[:axis]), math.prod(y.dims[axis + 1 :])
    if not math.prod(updates):
        return Program(steps)
    batches = at.size if at.size else 1
    push = {"n_rows": rows, "n_axis": y.dims[axis], "inner": inner, "outer_of_batch": outer // batches}
    constants = {"WIDE": at.dtype is DType.I64, "WHOLE": at.size == 1, "CIRCULAR": call["circular"]}
    shader = SHADERS[y.dtype if y.dtype in SHADERS else DType.F32]
    return Program((*steps, dispatch_rows(shader, outer * rows, inner, device, params, push, constants)))


def _check(call: Call, arrays: Mapping[str, Array]) -> None:
    """GraphError for a first row outside the axis."""
    if "at" in arrays:
        checked_indices("tensor_scatter", arrays["at"], call.shape("x")[call["axis"]])


def _reference(call: Call, arrays: Arrays) -> Outputs:
    y, axis = shapes.given(arrays, "x").copy(), call["axis"]
    firsts = checked_indices("tensor_scatter", shapes.given(arrays, "at"), y.shape[axis])
    rows, updates = (np.moveaxis(array, axis, 0) for array in (y, shapes.given(arrays, "updates")))
    for batch, first in enumerate(firsts):
        places = int(first) + np.arange(len(updates))
        kept = places < (2 if call["circular"] else 1) * len(rows)
        which = (slice(None), batch) if len(firsts) > 1 else (slice(None),)
        rows[(places[kept] % len(rows), *which[1:])] = updates[which][kept]
    return [y]


TENSOR_SCATTER = Op(
    "tensor_scatter",
    (Operand("x"), Operand("updates"), Operand("at")),
    _resolve,
    _reference,
    attrs=(
        Attr("axis", "axis", int, -2),
        Attr("circular", "circular", bool, False),
        Attr("in_place", "in_place", bool, False),
    ),
    routes=(
        Route(
            "rows",
            _program,
            (*STRIDED_COPIES.values(), *SHADERS.values()),
            "a copy of x, which in_place does without, and a pass over the updates",
            must=(operands_in("x", *_DTYPES),),
            params=walk_params,
        ),
    ),
    cases=(
        "tensor_scatter:x=3x2x7x5,updates=3x2x3x5,at=3:i64",
        "tensor_scatter:x=3x7x13,updates=3x4x13,at=3:i32,axis=1,circular=1",
        "tensor_scatter:x=7x5:i64,updates=3x5:i64,at=1:i64,axis=0",
        "tensor_scatter:x=2x3x11:i32,updates=2x3x1:i32,at=1:i32,axis=2",
        "tensor_scatter:x=2x3x7x5,updates=2x3x1x5,at=1:i64,in_place=1",
    ),
    check_constants=_check,
    doc="x with rows along axis replaced by updates, from row at[b] on in batch b (one number is for all batches); "
    "circular goes on at row 0 behind the last. With in_place y is the memory of x, of which only these rows are "
    "written: nothing else may read x. Rows behind the last are not written. A negative at counts from the back; one "
    "outside the axis is a GraphError where it is constant, an InputError where it is an input, and nothing is written "
    "where it is computed.",
)
