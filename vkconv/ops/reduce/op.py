"""reduce: sums, means, extremes, products and norms over any set of axes."""

import math

import numpy as np

from vkconv.call import Call
from vkconv.core import DType, GraphError, did_you_mean
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.tolerance import addends, of_sum
from vkconv.ops.reduce.problem import FUNCTIONS, LOG_SUM_EXP, PART_RANK, PICKS, parts_of
from vkconv.ops.reduce.published import PUBLISHED
from vkconv.ops.reduce.routes import ROUTES


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "reduce")
    name = str(attrs["op"])
    if name not in FUNCTIONS:
        raise GraphError(
            f"reduce: there is no op={name!r}{did_you_mean(name, FUNCTIONS)}; one of {', '.join(FUNCTIONS)}"
        )
    if x.dtype is DType.BOOL or not (x.dtype.is_float or FUNCTIONS[name][1]):
        raise GraphError(f"reduce {name}: x is {x.dtype}; cast it to f32 first")
    rank = len(x.dims)
    axes = shapes.axes_of("reduce", attrs["axes"], rank) or tuple(range(rank))
    kept, reduced = parts_of(x.dims, axes)
    if max(kept.rank, reduced.rank) > PART_RANK:
        raise GraphError(
            f"reduce: {kept.rank} kept and {reduced.rank} reduced dimensions after merging; at most {PART_RANK} each"
        )
    keepdims = bool(attrs["keepdims"])
    out = tuple(1 if i in axes else d for i, d in enumerate(x.dims) if keepdims or i not in axes)
    return {"op": name, "axes": axes, "keepdims": keepdims}, (TensorSpec(out, x.dtype),)


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x")
    with np.errstate(all="ignore"):
        y = FUNCTIONS[call["op"]][2](x, call["axes"])
    return [(y.astype(x.dtype) if x.dtype.kind in "iu" else y).reshape(call.shape("y"))]


def _terms(call: Call) -> int:
    return 1 if call["op"] in PICKS else max(1, math.prod(call.shape("x")[a] for a in call["axes"]))


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """Sums of addends of both signs may be smaller than what was rounded on the way. The relative error of a sum is an
    absolute one of its logarithm, and is larger by what cancelled in it. The other functions are off by what is
    relative to their result."""
    if call["op"] in ("sum", "mean"):
        return of_sum(call, reference, addends(_reference, call, arrays), _terms(call))
    if call["op"] == LOG_SUM_EXP:
        return np.asarray(np.abs(reference) + 1.0)
    if call["op"] == "log_sum":
        x, axes = shapes.given(arrays, "x").astype(np.float64), call["axes"]
        of_sizes, of_values = np.sum(np.abs(x), axis=axes), np.abs(np.sum(x, axis=axes))
        return np.asarray(np.abs(reference) + np.reshape(of_sizes / of_values, reference.shape))
    return np.abs(reference)


REDUCE = Op(
    "reduce",
    (Operand("x"), Operand("axes", optional=True, host=True)),
    _resolve,
    _reference,
    attrs=(
        Attr("op", "op", str, "sum"),
        Attr("axes", "axes", tuple[int, ...], ()),
        Attr("keepdims", "keep", bool, True),
    ),
    routes=ROUTES,
    published=PUBLISHED,
    terms=_terms,
    magnitude=_magnitude,
    flops=lambda call: sum(s.size for s in call.operands.values() if s is not None),
    cases=(
        *(f"reduce:x=3x5x7,op={name},axes=1" for name in ("sum", "mean", "max", "min", "prod", "sum_square", "l1")),
        *(f"reduce:x=3x5x7,op={name},axes=0x2,keep=0" for name in ("l2", "log_sum", "log_sum_exp")),
        "reduce:x=1x48x3x160,op=mean,axes=2x3",
        "reduce:x=1031,op=sum",
        "reduce:x=1x9973,op=log_sum_exp,axes=1",
        "reduce:x=2x3x2x3x2x3x2x3,op=sum,axes=0x2x4x6",
        "reduce:x=2x3x2x3x2x3x2x3,op=max,axes=1x3x5x7",
        "reduce:x=scalar,op=mean",
        "reduce:x=4x0x3,op=max,axes=1",
        "reduce:x=5x1x7,op=mean,axes=1",
        "reduce:x=70001x2,op=sum,axes=1",
        "reduce:x=2x40009,op=sum,axes=1",
        "reduce:x=67x24,op=sum,axes=0",
        "reduce:x=67x24:i32,op=max,axes=0",
        "reduce:x=67x13:i32,op=sum,axes=0",
        "reduce:x=2x9001:i32,op=min,axes=1",
        *(f"reduce:x=13x67:i32,op={name},axes=1" for name in ("sum", "mean", "max", "min", "l1")),
        *(f"reduce:x=13x67:i64,op={name},axes=1" for name, (_, of_integers, _) in FUNCTIONS.items() if of_integers),
        "reduce:x=3x5x2x331:i64,op=min,axes=1x3",
        "reduce:x=4x0x3:i64,op=max,axes=1",
    ),
    doc="One function over axes (none given: all of them). Integers: sums wrap at their width, and with "
    "them mean, which truncates; l2 and the logs are for floats.",
)
