"""softmax and log-softmax along one axis. A row of nothing but -inf becomes NaN or, with zero_rows, 0."""

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import GraphError
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.norm.row_programs import RowKernel
from vkconv.ops.norm.row_routes import row_routes
from vkconv.ops.norm.row_sets import along


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.float_operand(specs, "x", "softmax")
    axis = shapes.axis_of("softmax", attrs["axis"], len(x.dims))
    log, zero_rows = bool(attrs["log"]), bool(attrs["zero_rows"])
    if log and zero_rows:
        raise GraphError("softmax: zero_rows is for weights, and with log they are logarithms; give one of them")
    return {"axis": axis, "log": log, "zero_rows": zero_rows}, (x,)


def _kernel(call: Call) -> RowKernel:
    rows = along(call.shape("x"), call["axis"], call["axis"])
    # The peak, the sum, the quotients.
    buffers, constants = {"x": "x", "y": "y"}, {"LOG": bool(call["log"]), "ZERO_ROWS": bool(call["zero_rows"])}
    return RowKernel(rows, buffers, {}, constants, (), passes=3, part_words=2, kind="softmax")


def _count(call: Call) -> int:
    return call.shape("x")[int(call["axis"])]


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, axis = shapes.given(arrays, "x").astype(np.float64), call["axis"]
    with np.errstate(all="ignore"):
        shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
        total = np.sum(np.exp(shifted), axis=axis, keepdims=True)
        if call["log"]:
            return [np.asarray(shifted - np.log(total))]
        nothing = np.all(x == -np.inf, axis=axis, keepdims=True) if call["zero_rows"] else False
        return [np.where(nothing, 0.0, np.exp(shifted) / total)]


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """Addends of one sign do not cancel. Rounding x - max, once for all terms, is relative to that difference in its
    exponential; the relative error of the sum is an absolute one of its logarithm."""
    if call["log"]:
        return np.asarray(np.abs(reference) + 1.0)
    x, axis = shapes.given(arrays, "x").astype(np.float64), call["axis"]
    shifted = np.abs(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(reference * (1 + shifted / _count(call)))


SOFTMAX = Op(
    "softmax",
    (Operand("x"),),
    _resolve,
    _reference,
    attrs=(Attr("axis", "axis", int, -1), Attr("log", "log", bool, False), Attr("zero_rows", "zero", bool, False)),
    routes=row_routes(shaders.norm.SOFTMAX, _kernel),
    terms=lambda call: max(1, _count(call)),
    magnitude=_magnitude,
    flops=lambda call: 5 * call.outputs["y"].size,
    cases=(
        "softmax:x=7",
        "softmax:x=3x40",
        "softmax:x=2x3x5x7,axis=1",
        "softmax:x=2x300x3,axis=-2,log=1",
        "softmax:x=3x67,log=1",
        "softmax:x=1x5x6625,axis=2",
        "softmax:x=67x1,axis=1",
        "softmax:x=2x5x3,axis=1,log=1",
        "softmax:x=3x128",
        "softmax:x=2x30011",
        "softmax:x=1x65536,log=1",
        "softmax:x=37x3,zero=1",
        "softmax:x=3x41x49,zero=1",
        "softmax:x=5x4x27,log=1",
        "softmax:x=5x301,zero=1",
    ),
    doc="exp(x - max) / sum exp(x - max) along axis; log gives its logarithm.",
)
