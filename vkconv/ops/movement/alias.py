"""Ops that give the same bytes another shape or type: reshape, squeeze, unsqueeze, flatten, merge, bitcast, identity.
Nothing runs."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.call import Call
from vkconv.core import Array, DType, GraphError, did_you_mean, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Attr, Attrs, Op, Operand, Specs

_Resolved = tuple[Attrs, tuple[TensorSpec, ...]]


def _reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    return [shapes.given(arrays, "x").reshape(call.shape("y"))]


def _reshape(specs: Specs, attrs: Attrs) -> _Resolved:
    x = shapes.operand(specs, "x", "reshape")
    wanted = shapes.ints(attrs["shape"])
    where = f"reshape of {shape_str(x.dims)} to {list(wanted)}"
    out = list(wanted)
    if not attrs["allowzero"]:
        for i, d in enumerate(wanted):
            if d == 0 and i >= len(x.dims):
                raise GraphError(f"{where}: the 0 at position {i} copies a dimension that x does not have")
            out[i] = x.dims[i] if d == 0 else d
    if min(out, default=0) < -1 or out.count(-1) > 1:
        raise GraphError(f"{where}: one -1 at most, and no other negative dimension")
    if -1 in out:
        rest = math.prod(d for d in out if d != -1)
        if rest == 0 or x.size % rest:
            raise GraphError(f"{where}: {x.size} elements do not divide by {rest}, the product of the other dimensions")
        out[out.index(-1)] = x.size // rest
    if math.prod(out) != x.size:
        raise GraphError(f"{where}: {shape_str(out)} has {math.prod(out)} elements and x has {x.size}")
    return {"shape": tuple(out), "allowzero": 0 in out}, (TensorSpec(tuple(out), x.dtype),)


def _squeeze(specs: Specs, attrs: Attrs) -> _Resolved:
    x = shapes.operand(specs, "x", "squeeze")
    axes = shapes.axes_of("squeeze", attrs["axes"], len(x.dims)) or tuple(i for i, d in enumerate(x.dims) if d == 1)
    for axis in axes:
        if x.dims[axis] != 1:
            raise GraphError(f"squeeze: axis {axis} of {shape_str(x.dims)} is {x.dims[axis]}; only a 1 can be dropped")
    out = tuple(d for i, d in enumerate(x.dims) if i not in axes)
    return {"axes": axes}, (TensorSpec(out, x.dtype),)


def _unsqueeze(specs: Specs, attrs: Attrs) -> _Resolved:
    x = shapes.operand(specs, "x", "unsqueeze")
    axes = shapes.axes_of("unsqueeze", attrs["axes"], len(x.dims) + len(shapes.ints(attrs["axes"])))
    out = list(x.dims)
    for axis in axes:
        out.insert(axis, 1)
    return {"axes": axes}, (TensorSpec(tuple(out), x.dtype),)


def _flatten(specs: Specs, attrs: Attrs) -> _Resolved:
    x = shapes.operand(specs, "x", "flatten")
    axis = shapes.axis_of("flatten", attrs["axis"], len(x.dims), after_last=True)
    return {"axis": axis}, (TensorSpec((math.prod(x.dims[:axis]), math.prod(x.dims[axis:])), x.dtype),)


def _merge(specs: Specs, attrs: Attrs) -> _Resolved:
    x = shapes.operand(specs, "x", "merge")
    first, last = (shapes.axis_of("merge", attrs[name], len(x.dims)) for name in ("first", "last"))
    if first > last:
        raise GraphError(f"merge: axes {first} to {last} of {shape_str(x.dims)}; first is not behind last")
    out = (*x.dims[:first], math.prod(x.dims[first : last + 1]), *x.dims[last + 1 :])
    return {"first": first, "last": last}, (TensorSpec(out, x.dtype),)


def _bitcast(specs: Specs, attrs: Attrs) -> _Resolved:
    x, to = shapes.operand(specs, "x", "bitcast"), str(attrs["to"])
    if to not in list(DType):
        raise GraphError(f"bitcast: to={to!r} is no element type{did_you_mean(to, map(str, DType))}")
    if DType(to).nbytes != x.dtype.nbytes:
        raise GraphError(
            f"bitcast: x is {x.dtype}, of {x.dtype.nbytes} bytes, and {to} has {DType(to).nbytes}; they are as many"
        )
    return {"to": to}, (TensorSpec(x.shape, DType(to)),)


def _bitcast_reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    spec = call.operands["x"]
    assert spec is not None
    x = np.ascontiguousarray(shapes.given(arrays, "x").astype(spec.dtype.numpy))
    return [x.view(call.outputs["y"].dtype.numpy).reshape(call.shape("y"))]


def _dropout(specs: Specs, attrs: Attrs) -> _Resolved:
    if attrs["training"] and attrs["ratio"] != 0:
        raise GraphError(
            f"dropout: training with a ratio of {attrs['ratio']} drops elements at random; run the model for inference"
        )
    return attrs, (shapes.operand(specs, "x", "dropout"),)


def _identity(specs: Specs, attrs: Attrs) -> _Resolved:
    return {}, (shapes.operand(specs, "x", "identity"),)


RESHAPE = Op(
    "reshape",
    (Operand("x"), Operand("shape", host=True)),
    ("y",),
    _reshape,
    _reference,
    attrs=(Attr("shape", "shape", tuple[int, ...]), Attr("allowzero", "zero", bool, False)),
    alias=True,
    cases=("reshape:x=2x3x4,shape=0x-1", "reshape:x=6,shape=3x2x1"),
    doc="x under another shape: -1 takes what is left, 0 copies x's dimension unless allowzero.",
)
SQUEEZE = Op(
    "squeeze",
    (Operand("x"), Operand("axes", host=True, optional=True)),
    ("y",),
    _squeeze,
    _reference,
    attrs=(Attr("axes", "axes", tuple[int, ...], ()),),
    alias=True,
    cases=("squeeze:x=1x3x1x5,axes=-2", "squeeze:x=1x3x1x5"),
    doc="x without the dimensions axes, all of which are 1 (default: every dimension of 1).",
)
UNSQUEEZE = Op(
    "unsqueeze",
    (Operand("x"), Operand("axes", host=True)),
    ("y",),
    _unsqueeze,
    _reference,
    attrs=(Attr("axes", "axes", tuple[int, ...]),),
    alias=True,
    cases=("unsqueeze:x=3x5,axes=0x-1",),
    doc="x with dimensions of 1 so that they stand at axes of y.",
)
FLATTEN = Op(
    "flatten",
    (Operand("x"),),
    ("y",),
    _flatten,
    _reference,
    attrs=(Attr("axis", "axis", int, 1),),
    alias=True,
    cases=("flatten:x=2x3x4x5,axis=2", "flatten:x=2x3"),
    doc="x as a matrix: dimensions before axis are rows, the others columns.",
)
IDENTITY = Op(
    "identity",
    (Operand("x"),),
    ("y",),
    _identity,
    _reference,
    alias=True,
    cases=("identity:x=2x3",),
    doc="x itself (also what dropout is at inference).",
)
MERGE = Op(
    "merge",
    (Operand("x"),),
    ("y",),
    _merge,
    _reference,
    attrs=(Attr("first", "first", int), Attr("last", "last", int)),
    alias=True,
    cases=("merge:x=2x3x4x5,first=1,last=2", "merge:x=2x3,first=-2,last=-2"),
    doc="x with the dimensions first to last as one.",
)
BITCAST = Op(
    "bitcast",
    (Operand("x"),),
    ("y",),
    _bitcast,
    _bitcast_reference,
    attrs=(Attr("to", "to", str),),
    alias=True,
    cases=("bitcast:x=2x3,to=i32", "bitcast:x=scalar:i32,to=f32"),
    doc="The bits of x as another element type of as many bytes.",
)
DROPOUT = Op(
    "dropout",
    (Operand("x"), Operand("ratio", host=True), Operand("training", host=True)),
    ("y",),
    _dropout,
    _reference,
    attrs=(Attr("ratio", "ratio", float, 0.5), Attr("training", "training", bool, False)),
    alias=True,
    cases=("dropout:x=2x3", "dropout:x=2x3,ratio=0,training=1"),
    doc="x itself, as at inference; refused for training that would drop something.",
)
