"""Ops whose values are known when the graph is bound; constant_of_shape is filled on the device where it is large."""

import math

import numpy as np

from vkconv.call import Call
from vkconv.core import DType, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import WORDS
from vkconv.ops.kernels.strided import walk_params
from vkconv.ops.kernels.zero_insertion import FILL, fill
from vkconv.program import Program, word_bits
from vkconv.route import Params, Route


def _shape_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    rank = len(shapes.operand(specs, "x", "shape").dims)
    start, end = (v + rank if v < 0 else v for k in ("start", "end") for v in shapes.ints(attrs[k]))
    start, end = min(max(start, 0), rank), min(max(end, 0), rank)
    return {"start": start, "end": end}, (TensorSpec((max(0, end - start),), DType.I64),)


def _shape_fold(call: Call) -> Outputs:
    return [np.array(call.shape("x")[call["start"] : call["end"]], np.int64)]


def _size_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    shapes.operand(specs, "x", "size")
    return {}, (TensorSpec((), DType.I64),)


def _size_fold(call: Call) -> Outputs:
    return [np.array(math.prod(call.shape("x")), np.int64)]


def _constant_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    dims = shapes.ints(attrs["shape"])
    if any(d < 0 for d in dims):
        raise GraphError(f"constant_of_shape: shape {list(dims)} has a negative dimension")
    dtype = shapes.element_type("constant_of_shape", attrs, "dtype")
    shapes.held_in("constant_of_shape", "value", attrs["value"], dtype)
    return {**attrs, "shape": dims}, (TensorSpec(dims, dtype),)


def _constant_program(call: Call, device: Device, params: Params) -> Program:
    y, value = call.outputs["y"], call["value"]
    bits = word_bits(float(value) if y.dtype.is_float else int(value))
    return Program((fill(y.size, bits, device, params, "y"),))


def _range_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    start, limit, delta = (float(attrs[k]) for k in ("start", "limit", "delta"))  # type: ignore[arg-type]
    if delta == 0 or not all(map(math.isfinite, (start, limit, delta))):
        raise GraphError(f"range: start {start}, limit {limit}, delta {delta}; finite values and a delta other than 0")
    dtype = shapes.element_type("range", attrs, "dtype")
    count = max(0, math.ceil((limit - start) / delta))
    return {"start": start, "limit": limit, "delta": delta, "dtype": str(dtype)}, (TensorSpec((count,), dtype),)


def _range_reference(call: Call, arrays: Arrays) -> Outputs:
    y = call.outputs["y"]
    return [(call["start"] + call["delta"] * np.arange(y.size)).astype(y.dtype.numpy)]


def _eye_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "eye_like")
    if len(x.dims) != 2:
        raise GraphError(f"eye_like: x is {x}; it takes a matrix")
    dtype = shapes.element_type("eye_like", attrs, "dtype")
    k = min(max(shapes.ints(attrs["k"])[0], -x.dims[0]), x.dims[1])
    return {"k": k, "dtype": str(dtype)}, (TensorSpec(x.shape, dtype),)


def _eye_fold(call: Call) -> Outputs:
    rows, columns = call.shape("x")
    return [np.eye(rows, columns, call["k"], call.outputs["y"].dtype.numpy)]


SHAPE = Op(
    "shape",
    (Operand("x"),),
    _shape_resolve,
    lambda call, arrays: _shape_fold(call),
    attrs=(Attr("start", "start", int, 0), Attr("end", "end", int, 1 << 31)),
    fold_from_specs=_shape_fold,
    cases=("shape:x=2x3x5x7", "shape:x=2x3x5x7,start=-3,end=-1"),
    doc="Dimensions of x from start to end as i64; known from the shape alone.",
)
SIZE = Op(
    "size",
    (Operand("x"),),
    _size_resolve,
    lambda call, arrays: _size_fold(call),
    fold_from_specs=_size_fold,
    cases=("size:x=2x3x5",),
    doc="Number of elements of x as an i64 scalar; known from the shape alone.",
)
CONSTANT_OF_SHAPE = Op(
    "constant_of_shape",
    (Operand("shape", host=True),),
    _constant_resolve,
    lambda call, arrays: [np.full(call["shape"], call["value"], call.outputs["y"].dtype.numpy)],
    attrs=(
        Attr("shape", "shape", tuple[int, ...]),
        Attr("value", "value", float, 0.0),
        Attr("dtype", "to", str, "f32"),
    ),
    routes=(
        Route(
            "fill",
            _constant_program,
            (FILL,),
            "one word everywhere; for what is too large to be a constant that the host makes",
            must=(WORDS,),
            params=walk_params,
        ),
    ),
    cases=("constant_of_shape:shape=2x3,value=1.5", "constant_of_shape:shape=,value=7,to=i32"),
    doc="A tensor of the given shape, every element value, of element type dtype.",
)
RANGE = Op(
    "range",
    tuple(Operand(n, host=True) for n in ("start", "limit", "delta")),
    _range_resolve,
    _range_reference,
    attrs=(
        Attr("start", "start", float),
        Attr("limit", "limit", float),
        Attr("delta", "delta", float, 1.0),
        Attr("dtype", "to", str, "i64"),
    ),
    cases=("range:start=3,limit=11,delta=2", "range:start=1,limit=-1,delta=-0.75,to=f32"),
    doc="start, start + delta, ... below limit (above for a negative delta), of element type dtype.",
)
EYE_LIKE = Op(
    "eye_like",
    (Operand("x"),),
    _eye_resolve,
    lambda call, arrays: _eye_fold(call),
    attrs=(Attr("k", "k", int, 0), Attr("dtype", "to", str, "f32")),
    fold_from_specs=_eye_fold,
    cases=("eye_like:x=3x5,k=1", "eye_like:x=4x4,to=i64"),
    doc="A matrix of the shape of x with ones on diagonal k, zeros elsewhere; known from the shape alone.",
)
