"""Ops that give the same bytes another shape: reshape, squeeze, unsqueeze, flatten, identity. Nothing runs."""

import math
from collections.abc import Mapping, Sequence

from vkconv.core import Array, GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops import shapes
from vkconv.ops.base import Attr, Attrs, Op, Operand, Specs
from vkconv.route import Call

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
