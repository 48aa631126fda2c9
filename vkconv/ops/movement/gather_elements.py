"""gather_elements and gather_nd: elements, or slices, of x picked by an index each, or by a tuple of indices each."""

import math
from collections.abc import Mapping

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, DType, GraphError, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import operands_in
from vkconv.ops.kernels.strided import MAX_RANK, by_width, dispatch_each, local_params, tables
from vkconv.ops.movement.gather import check_axis_indices, checked_indices, outside_bits
from vkconv.program import Program
from vkconv.route import Params, Route

ELEMENTS_SHADERS = by_width(shaders.movement.GATHER_ELEMENTS)
ND_SHADERS = by_width(shaders.movement.GATHER_ND)
MOVED = (DType.F32, DType.I32, DType.U32, DType.I64)


def index_operands(op: str, specs: Specs) -> tuple[TensorSpec, TensorSpec]:
    """x and indices; GraphError unless the indices are integers and x has few enough dimensions."""
    x, indices = shapes.operand(specs, "x", op), shapes.index_operand(specs, "indices", op)
    if not 1 <= len(x.dims) <= MAX_RANK:
        raise GraphError(f"{op}: x is {x}; it takes a rank from 1 to {MAX_RANK}")
    return x, indices


def check_elements(op: str, x: TensorSpec, indices: TensorSpec, axis: int) -> None:
    """GraphError unless the indices are within x along every axis but ``axis``."""
    if len(indices.dims) != len(x.dims) or any(
        i > d for a, (i, d) in enumerate(zip(indices.dims, x.dims, strict=True)) if a != axis
    ):
        raise GraphError(
            f"{op}: indices are {shape_str(indices.dims)} and x is {shape_str(x.dims)}; they have one rank, and "
            f"indices are no longer along any axis but {axis}"
        )


def tuple_depth(op: str, x: TensorSpec, indices: TensorSpec, batch_dims: int) -> int:
    """Indices in a tuple; GraphError unless they fit x behind its batch dimensions."""
    if not 0 <= batch_dims < min(len(x.dims), len(indices.dims)):
        raise GraphError(f"{op}: batch_dims is {batch_dims}; x is {x} and indices are {indices}")
    if not indices.dims or not 1 <= indices.dims[-1] <= len(x.dims) - batch_dims:
        raise GraphError(
            f"{op}: indices are {shape_str(indices.dims)}; their last dimension is 1 to {len(x.dims) - batch_dims}, "
            f"as x is {shape_str(x.dims)}"
        )
    if indices.dims[:batch_dims] != x.dims[:batch_dims]:
        raise GraphError(
            f"{op}: the first {batch_dims} dimensions of indices ({shape_str(indices.dims)}) are not those of x "
            f"({shape_str(x.dims)})"
        )
    return indices.dims[-1]


def check_tuples(call: Call, arrays: Mapping[str, Array]) -> None:
    """GraphError for constant tuples of indices of which one is outside its axis of x."""
    indices = arrays.get("indices")
    if indices is None:
        return
    batch_dims = call.attrs.get("batch_dims", 0)
    assert isinstance(batch_dims, int)
    for k, n in enumerate(call.shape("x")[batch_dims : batch_dims + indices.shape[-1]]):
        checked_indices(call.op, indices[..., k], n)


def _elements_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, indices = index_operands("gather_elements", specs)
    axis = shapes.axis_of("gather_elements", attrs["axis"], len(x.dims))
    check_elements("gather_elements", x, indices, axis)
    return {"axis": axis}, (TensorSpec(indices.shape, x.dtype),)


def _wide(call: Call) -> bool:
    """Whether indices have 64 bits."""
    return call.specs["indices"].dtype is DType.I64


def _elements_program(call: Call, device: Device, params: Params) -> Program:
    x, axis, y = call.shape("x"), call["axis"], call.outputs["y"]
    strides, shader = shapes.row_major(x), ELEMENTS_SHADERS[y.dtype.nbytes]
    read_strides = tuple(0 if d == axis else s for d, s in enumerate(strides))
    push = {"total": y.size, "n_axis": x[axis], "axis_stride": strides[axis], **outside_bits(y.dtype)}
    push |= tables(shader, y.dims, read_strides)
    return Program((dispatch_each(shader, y.size, device, params, push, {"WIDE": _wide(call), "RANK": len(x)}),))


def _elements_reference(call: Call, arrays: Arrays) -> Outputs:
    x, axis = shapes.given(arrays, "x"), call["axis"]
    indices = checked_indices("gather_elements", shapes.given(arrays, "indices"), x.shape[axis])
    # numpy wants equal extents where it broadcasts: x is cut to those of the indices.
    cut = tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(indices.shape))
    return [np.take_along_axis(x[cut], indices, axis)]


def _nd_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, indices = index_operands("gather_nd", specs)
    batch = shapes.ints(attrs["batch_dims"])[0]
    depth = tuple_depth("gather_nd", x, indices, batch)
    return {"batch_dims": batch}, (TensorSpec((*indices.dims[:-1], *x.dims[batch + depth :]), x.dtype),)


def _nd_program(call: Call, device: Device, params: Params) -> Program:
    x, indices, batch, y = call.shape("x"), call.shape("indices"), call["batch_dims"], call.outputs["y"]
    depth, shader = indices[-1], ND_SHADERS[y.dtype.nbytes]
    picked = slice(batch, batch + depth)
    push = {
        "total": y.size,
        "inner": math.prod(x[batch + depth :]),
        "tuples": math.prod(indices[batch:-1]),
        "batch_stride": math.prod(x[batch:]),
        **outside_bits(y.dtype),
        **tables(shader, x[picked], shapes.row_major(x)[picked]),
    }
    return Program((dispatch_each(shader, y.size, device, params, push, {"WIDE": _wide(call), "DEPTH": depth}),))


def _nd_reference(call: Call, arrays: Arrays) -> Outputs:
    x, indices, batch = shapes.given(arrays, "x"), shapes.given(arrays, "indices"), call["batch_dims"]
    at = [checked_indices("gather_nd", indices[..., d], x.shape[batch + d]) for d in range(indices.shape[-1])]
    own = np.indices(indices.shape[:batch]).reshape(batch, *indices.shape[:batch], *(1,) * (indices.ndim - 1 - batch))
    return [x[(*own, *at)]]


GATHER_ELEMENTS = Op(
    "gather_elements",
    (Operand("x", partial=True), Operand("indices")),
    _elements_resolve,
    _elements_reference,
    attrs=(Attr("axis", "axis", int, 0),),
    routes=(
        Route(
            "gather",
            _elements_program,
            tuple(ELEMENTS_SHADERS.values()),
            "an invocation per element of y",
            must=(operands_in("x", *MOVED),),
            params=local_params,
        ),
    ),
    cases=(
        "gather_elements:x=5x7,indices=5x11:i64,axis=1",
        "gather_elements:x=4x7x5,indices=9x3x5:i32",
        "gather_elements:x=5x7:i64,indices=2x7:i32,axis=-2",
        "gather_elements:x=67,indices=131:i64",
    ),
    check_constants=check_axis_indices,
    doc="y[i, j, ...] = x[..., indices[i, j, ...], ...] with the index along axis; an index outside it as in gather.",
)
GATHER_ND = Op(
    "gather_nd",
    (Operand("x", partial=True), Operand("indices")),
    _nd_resolve,
    _nd_reference,
    attrs=(Attr("batch_dims", "batch", int, 0),),
    routes=(
        Route(
            "gather",
            _nd_program,
            tuple(ND_SHADERS.values()),
            "an invocation per element of y",
            must=(operands_in("x", *MOVED),),
            params=local_params,
        ),
    ),
    cases=(
        "gather_nd:x=4x5x6,indices=7x2:i64",
        "gather_nd:x=4x5x6,indices=3x2x3:i32",
        "gather_nd:x=4x5x6:i32,indices=4x3x1:i64,batch=1",
        "gather_nd:x=4x5x7:i64,indices=1:i32",
    ),
    check_constants=check_tuples,
    doc="y[t] = x[indices[t]]: each tuple of indices along the last axis picks a slice, within its batch where x and "
    "indices share their first batch_dims dimensions; an index outside its axis as in gather.",
)
