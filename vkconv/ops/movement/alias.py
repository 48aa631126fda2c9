"""Ops that give the same bytes another shape or type: reshape, squeeze, unsqueeze, flatten, merge, bitcast, identity.
Nothing runs."""

import math
from collections.abc import Callable

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs


def _reference(call: Call, arrays: Arrays) -> Outputs:
    return [shapes.given(arrays, "x").reshape(call.shape("y"))]


def _reshape(specs: Specs, attrs: Attrs) -> Resolved:
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


def _squeeze(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "squeeze")
    axes = shapes.axes_of("squeeze", attrs["axes"], len(x.dims)) or tuple(i for i, d in enumerate(x.dims) if d == 1)
    for axis in axes:
        if x.dims[axis] != 1:
            raise GraphError(f"squeeze: axis {axis} of {shape_str(x.dims)} is {x.dims[axis]}; only a 1 can be dropped")
    out = tuple(d for i, d in enumerate(x.dims) if i not in axes)
    return {"axes": axes}, (TensorSpec(out, x.dtype),)


def _unsqueeze(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "unsqueeze")
    axes = shapes.axes_of("unsqueeze", attrs["axes"], len(x.dims) + len(shapes.ints(attrs["axes"])))
    out = list(x.dims)
    for axis in axes:
        out.insert(axis, 1)
    return {"axes": axes}, (TensorSpec(tuple(out), x.dtype),)


def _flatten(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "flatten")
    axis = shapes.axis_of("flatten", attrs["axis"], len(x.dims), after_last=True)
    return {"axis": axis}, (TensorSpec((math.prod(x.dims[:axis]), math.prod(x.dims[axis:])), x.dtype),)


def _merge(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "merge")
    first, last = (shapes.axis_of("merge", attrs[name], len(x.dims)) for name in ("first", "last"))
    if first > last:
        raise GraphError(f"merge: axes {first} to {last} of {shape_str(x.dims)}; first is not behind last")
    out = (*x.dims[:first], math.prod(x.dims[first : last + 1]), *x.dims[last + 1 :])
    return {"first": first, "last": last}, (TensorSpec(out, x.dtype),)


def _bitcast(specs: Specs, attrs: Attrs) -> Resolved:
    x, to = shapes.operand(specs, "x", "bitcast"), shapes.element_type("bitcast", attrs, "to")
    if to.nbytes != x.dtype.nbytes:
        raise GraphError(
            f"bitcast: x is {x.dtype}, of {x.dtype.nbytes} bytes, and {to} has {to.nbytes}; they are as many"
        )
    return {"to": str(to)}, (TensorSpec(x.shape, to),)


def _bitcast_reference(call: Call, arrays: Arrays) -> Outputs:
    x = np.ascontiguousarray(shapes.given(arrays, "x").astype(call.specs["x"].dtype.numpy))
    return [x.view(call.outputs["y"].dtype.numpy).reshape(call.shape("y"))]


def _dropout(specs: Specs, attrs: Attrs) -> Resolved:
    if attrs["training"] and attrs["ratio"] != 0:
        raise GraphError(
            f"dropout: training with a ratio of {attrs['ratio']} drops elements at random; run the model for inference"
        )
    return attrs, (shapes.operand(specs, "x", "dropout"),)


def _alias(
    name: str,
    resolve: Callable[[Specs, Attrs], Resolved],
    *,
    operands: tuple[Operand, ...] = (),
    attrs: tuple[Attr, ...] = (),
    reference: Callable[[Call, Arrays], Outputs] = _reference,
    cases: tuple[str, ...],
    doc: str,
) -> Op:
    every = (Operand("x"), *operands)
    return Op(name, every, resolve, reference, attrs=attrs, alias=True, cases=cases, doc=doc)


RESHAPE = _alias(
    "reshape",
    _reshape,
    operands=(Operand("shape", host=True),),
    attrs=(Attr("shape", "shape", tuple[int, ...]), Attr("allowzero", "zero", bool, False)),
    cases=("reshape:x=2x3x4,shape=0x-1", "reshape:x=6,shape=3x2x1"),
    doc="x under another shape: -1 takes what is left, 0 copies x's dimension unless allowzero.",
)
SQUEEZE = _alias(
    "squeeze",
    _squeeze,
    operands=(Operand("axes", host=True, optional=True),),
    attrs=(Attr("axes", "axes", tuple[int, ...], ()),),
    cases=("squeeze:x=1x3x1x5,axes=-2", "squeeze:x=1x3x1x5"),
    doc="x without the dimensions axes, all of which are 1 (default: every dimension of 1).",
)
UNSQUEEZE = _alias(
    "unsqueeze",
    _unsqueeze,
    operands=(Operand("axes", host=True),),
    attrs=(Attr("axes", "axes", tuple[int, ...]),),
    cases=("unsqueeze:x=3x5,axes=0x-1",),
    doc="x with dimensions of 1 so that they stand at axes of y.",
)
FLATTEN = _alias(
    "flatten",
    _flatten,
    attrs=(Attr("axis", "axis", int, 1),),
    cases=("flatten:x=2x3x4x5,axis=2", "flatten:x=2x3"),
    doc="x as a matrix: dimensions before axis are rows, the others columns.",
)
IDENTITY = _alias(
    "identity",
    lambda specs, attrs: ({}, (shapes.operand(specs, "x", "identity"),)),
    cases=("identity:x=2x3",),
    doc="x itself (also what dropout is at inference).",
)
MERGE = _alias(
    "merge",
    _merge,
    attrs=(Attr("first", "first", int), Attr("last", "last", int)),
    cases=("merge:x=2x3x4x5,first=1,last=2", "merge:x=2x3,first=-2,last=-2"),
    doc="x with the dimensions first to last as one.",
)
BITCAST = _alias(
    "bitcast",
    _bitcast,
    reference=_bitcast_reference,
    attrs=(Attr("to", "to", str),),
    cases=("bitcast:x=2x3,to=i32", "bitcast:x=scalar:i32,to=f32"),
    doc="The bits of x as another element type of as many bytes.",
)
DROPOUT = _alias(
    "dropout",
    _dropout,
    operands=(Operand("ratio", host=True), Operand("training", host=True)),
    attrs=(Attr("ratio", "ratio", float, 0.5), Attr("training", "training", bool, False)),
    cases=("dropout:x=2x3", "dropout:x=2x3,ratio=0,training=1"),
    doc="x itself, as at inference; refused for training that would drop something.",
)
