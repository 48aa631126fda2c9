"""gather: slices of x picked by index along one axis (embedding look-up, shape arithmetic)."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, DType, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import operands_in
from vkconv.ops.kernels.strided import by_width, dispatch_rows, walk_params
from vkconv.program import Program
from vkconv.route import Params, Route

GATHER_SHADERS = by_width(shaders.movement.GATHER)
_NAN_BITS, _INT_MIN_BITS = 0x7FC00000, 0x80000000


def outside_bits(dtype: DType) -> dict[str, int]:
    """Push constants: the words of an element that an index outside the axis gives, NaN or the smallest integer."""
    if dtype is DType.I64:
        return {"outside_low": 0, "outside_high": _INT_MIN_BITS}
    return {"outside_low": _NAN_BITS if dtype.is_float else _INT_MIN_BITS}


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, indices = shapes.operand(specs, "x", "gather"), shapes.index_operand(specs, "indices", "gather")
    axis = shapes.axis_of("gather", attrs["axis"], len(x.dims))
    if x.dims[axis] == 0 and indices.size:
        raise GraphError(
            f"gather: axis {axis} of x ({x}) is empty; there is nothing to pick {indices.size} slices from"
        )
    return {"axis": axis}, (TensorSpec((*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :]), x.dtype),)


def _program(call: Call, device: Device, params: Params) -> Program:
    x, axis, indices = call.shape("x"), call["axis"], call.specs["indices"]
    outer, inner = math.prod(x[:axis]), math.prod(x[axis + 1 :])
    y, rows = call.outputs["y"], outer * indices.size
    push = {"n_indices": max(1, indices.size), "n_axis": x[axis], "inner": inner, **outside_bits(y.dtype)}
    constants = {"WIDE": indices.dtype is DType.I64}
    return Program((dispatch_rows(GATHER_SHADERS[y.dtype.nbytes], rows, inner, device, params, push, constants),))


def checked_indices(op: str, indices: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """Indices counted from the front; GraphError for one outside an axis of n."""
    if indices.size and not (-n <= int(indices.min()) and int(indices.max()) < n):
        raise GraphError(f"{op}: indices span {indices.min()} to {indices.max()}; the axis has {n}")
    return np.where(indices < 0, indices + n, indices)


def check_axis_indices(call: Call, arrays: Mapping[str, Array]) -> None:
    """GraphError for constant indices outside the axis of x that they pick from."""
    if "indices" in arrays:
        checked_indices(call.op, arrays["indices"], call.shape("x")[call["axis"]])


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, indices = shapes.given(arrays, "x"), shapes.given(arrays, "indices")
    return [np.take(x, checked_indices("gather", indices, call.shape("x")[call["axis"]]), call["axis"])]


GATHER = Op(
    "gather",
    (Operand("x", partial=True), Operand("indices")),
    _resolve,
    _reference,
    attrs=(Attr("axis", "axis", int, 0),),
    routes=(
        Route(
            "gather",
            _program,
            tuple(GATHER_SHADERS.values()),
            "one pass; the index is read once per run of the inner dimensions",
            must=(operands_in("x", DType.F32, DType.I32, DType.U32, DType.I64),),
            params=walk_params,
        ),
    ),
    cases=(
        "gather:x=7,indices=3:i32",
        "gather:x=11x5,indices=2x3:i64",
        "gather:x=3x7x13,indices=4:i32,axis=1",
        "gather:x=2x3x9,indices=scalar:i64,axis=-1",
        "gather:x=8x1x3:i32,indices=5:i32",
        "gather:x=8x3:i64,indices=5:i64",
    ),
    check_constants=check_axis_indices,
    doc="y[o, j, i] = x[o, indices[j], i] along axis; negative indices count from the back. An index outside the axis "
    "is a GraphError where it is constant, an InputError where it is an input, and NaN (the smallest integer) in y "
    "where it is computed.",
)
