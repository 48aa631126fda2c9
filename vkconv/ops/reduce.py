"""reduce: sums, means, extremes, products and norms over any set of axes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.core import Array, DType, GraphError, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops import shapes
from vkconv.ops.base import F64, Attr, Attrs, Op, Operand, Specs
from vkconv.ops.needs import F32_OR_I32
from vkconv.ops.rows import row_dispatch, row_routes
from vkconv.ops.strided import Walk, merge
from vkconv.ops.tolerance import largest
from vkconv.route import Call
from vkconv.shader import Program

Values = npt.NDArray[Any]
_PART_RANK = 4  # kept and reduced dims of a rank-8 operand alternate: four of each after merging


def _log_sum_exp(x: Values, axes: tuple[int, ...]) -> Values:
    peak = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(peak), peak, 0.0)
    return np.asarray(np.log(np.sum(np.exp(x - shift), axis=axes)) + np.squeeze(shift, axes))


def _mean(x: Values, axes: tuple[int, ...]) -> Values:
    if x.dtype.kind == "f":
        return np.asarray(np.sum(x, axis=axes) / np.float64(math.prod(x.shape[a] for a in axes)))
    total, count = np.sum(x, axis=axes), max(1, math.prod(x.shape[a] for a in axes))
    return np.asarray(np.sign(total) * (np.abs(total) // count))


def _lowest(x: Values) -> float:
    return -np.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype).min)


def _highest(x: Values) -> float:
    return np.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype).max)


# name: (id in shaders/reduce.comp, whether integers have it, definition)
FUNCTIONS: Mapping[str, tuple[int, bool, Callable[[Values, tuple[int, ...]], Values]]] = {
    "sum": (0, True, lambda x, axes: np.asarray(np.sum(x, axis=axes))),
    "mean": (1, True, _mean),
    "max": (2, True, lambda x, axes: np.asarray(np.max(x, axis=axes, initial=_lowest(x)))),
    "min": (3, True, lambda x, axes: np.asarray(np.min(x, axis=axes, initial=_highest(x)))),
    "prod": (4, True, lambda x, axes: np.asarray(np.prod(x, axis=axes))),
    "sum_square": (5, True, lambda x, axes: np.asarray(np.sum(x * x, axis=axes))),
    "l1": (6, True, lambda x, axes: np.asarray(np.sum(np.abs(x), axis=axes))),
    "l2": (7, False, lambda x, axes: np.asarray(np.sqrt(np.sum(x * x, axis=axes)))),
    "log_sum": (8, False, lambda x, axes: np.asarray(np.log(np.sum(x, axis=axes)))),
    "log_sum_exp": (9, False, _log_sum_exp),
}

# One of the elements comes out as it is; sums of addends of both signs, and logarithms, may be smaller than what was
# rounded on the way. The other functions are off by what is relative to their result.
_EXACT = ("max", "min")
_CANCELLING = ("sum", "mean", "log_sum", "log_sum_exp")


def _resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
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
    kept, reduced = _parts(x.dims, axes)
    if max(kept.rank, reduced.rank) > _PART_RANK:
        raise GraphError(
            f"reduce: {kept.rank} kept and {reduced.rank} reduced dimensions after merging; at most {_PART_RANK} each"
        )
    keepdims = bool(attrs["keepdims"])
    out = tuple(1 if i in axes else d for i, d in enumerate(x.dims) if keepdims or i not in axes)
    return {"op": name, "axes": axes, "keepdims": keepdims}, (TensorSpec(out, x.dtype),)


def _parts(dims: Sequence[int], axes: Sequence[int]) -> tuple[Walk, Walk]:
    """The kept and the reduced dimensions of x, each merged, with their strides in x."""
    strides = shapes.row_major(dims)
    kept, reduced = (
        [(d, s) for i, (d, s) in enumerate(zip(dims, strides, strict=True)) if (i in axes) is inside]
        for inside in (False, True)
    )
    return _walk(kept), _walk(reduced)


def _walk(pairs: Sequence[tuple[int, int]]) -> Walk:
    return merge([n for n, _ in pairs], [s for _, s in pairs])


def _rows(call: Call) -> int:
    return call.outputs["y"].size


def _row_length(call: Call) -> int:
    return math.prod(call.shape("x")[a] for a in call["axes"])


def _iterations(call: Call) -> int:
    """Each element takes a step of the row's loop and one per dimension of its index; log-sum-exp visits it twice."""
    reduced = _parts(call.shape("x"), call["axes"])[1]
    return _row_length(call) * (2 + reduced.rank) * (2 if call["op"] == "log_sum_exp" else 1)


def _build(call: Call, device: Device, local: int, cooperative: bool) -> Program:
    kept, reduced = _parts(call.shape("x"), call["axes"])
    return row_dispatch(
        "reduce",
        call.outputs["y"].dtype,
        ["x"],
        _rows(call),
        device,
        local=local,
        cooperative=cooperative,
        iterations=_iterations(call),
        push=(_row_length(call), *kept.padded(_PART_RANK), *reduced.padded(_PART_RANK)),
        spec=(FUNCTIONS[call["op"]][0], kept.rank, reduced.rank),
    )


def _reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    x = shapes.given(arrays, "x")
    with np.errstate(all="ignore"):
        y = FUNCTIONS[call["op"]][2](x, call["axes"])
    return [(y.astype(x.dtype) if x.dtype.kind in "iu" else y).reshape(call.shape("y"))]


def _terms(call: Call) -> int:
    return 1 if call["op"] in _EXACT else max(1, _row_length(call))


def _magnitude(call: Call, arrays: Mapping[str, Array | None], reference: F64) -> F64:
    return largest(reference) if call["op"] in _CANCELLING else np.abs(reference)


REDUCE = Op(
    "reduce",
    (Operand("x"), Operand("axes", optional=True, host=True)),
    ("y",),
    _resolve,
    _reference,
    attrs=(
        Attr("op", "op", str, "sum"),
        Attr("axes", "axes", tuple[int, ...], ()),
        Attr("keepdims", "keep", bool, True),
    ),
    routes=row_routes("reduce", (DType.F32, DType.I32), _build, _rows, _row_length, _iterations, (F32_OR_I32,)),
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
        *(f"reduce:x=13x67:i32,op={name},axes=1" for name in ("sum", "mean", "max", "min", "l1")),
    ),
    doc="One function over axes (none given: all of them). Integers: mean truncates; l2 and the logs are for floats.",
)
