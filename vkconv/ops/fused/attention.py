"""Scaled dot-product attention: softmax(scale q k^T + mask) v for each head.

q is (N, H, L, D), k (N, Hk, S, D) or, with trans_k, (N, Hk, D, S), v (N, Hk, S, Dv), y (N, H, L, Dv). Hk divides H, and
head h reads keys and values h // (H / Hk). All may be without heads: (N, L, D). The mask broadcasts to (N, H, L, S),
and its first dimension may be a divisor of N: image i takes that of i % M, as windows of an image have it. With causal
query i sees keys 0 to i only; NaN and infinities in those that it does not see may still reach it. Where all scores of
a row are -inf it becomes 0, as torch and ONNX have it, or NaN without zero_rows, as softmax by itself does.
"""

import math

import numpy as np

from vkconv.call import HALVES, Call
from vkconv.core import DType, GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.shapes import given, one_float_dtype
from vkconv.ops.core.tolerance import of_error, relative_tolerance, rounding_of_storing, rounding_of_sum
from vkconv.ops.fused.attention_problem import AttentionProblem
from vkconv.ops.fused.attention_routes import ROUTES

# What scores round by in f32 beside their sums, relative to their size: scaled, masked, taken from the largest; and
# exponentials and quotients.
_OF_SCORES, _OF_WEIGHTS = 3 * 2.0**-23, 8 * 2.0**-23
# Larger exponents than these leave nothing of a weight that could be wrong by less.
_MOST_EXPONENT = 80.0


def _check_shapes(q: TensorSpec, k: TensorSpec, v: TensorSpec, trans_k: bool) -> tuple[int, int]:
    """Keys, and elements of a value; GraphError where the three do not go together."""
    said = f"q ({shape_str(q.shape)}), k ({shape_str(k.shape)}) and v ({shape_str(v.shape)})"
    rank = len(q.shape)
    if rank not in (3, 4) or len(k.shape) != rank or len(v.shape) != rank:
        raise GraphError(f"attention takes {said} of rank 4, with heads, or 3, without; reshape them")
    if q.dims[0] != k.dims[0] or q.dims[0] != v.dims[0]:
        raise GraphError(f"attention: {said} have other first dimensions; they are the images of all three")
    head_size, (keys, of_key) = q.dims[-1], k.dims[:-3:-1] if trans_k else k.dims[-2:]
    if of_key != head_size:
        where = "rows, with trans_k," if trans_k else "rows"
        raise GraphError(
            f"attention: queries have {head_size} elements, and {where} of k ({shape_str(k.shape)}) differ"
        )
    if v.dims[-2] != keys:
        raise GraphError(f"attention: k has {keys} keys, and v ({shape_str(v.shape)}) {v.dims[-2]} values")
    if rank == 4 and (k.dims[1] != v.dims[1] or not k.dims[1] or q.dims[1] % k.dims[1]):
        raise GraphError(
            f"attention: {q.dims[1]} heads of q, {k.dims[1]} of k and {v.dims[1]} of v; those of k and v are as many, "
            "and divide those of q"
        )
    if not (keys and head_size):
        raise GraphError(f"attention: {said} leave no {'keys' if head_size else 'elements'} to attend to")
    return keys, v.dims[-1]


def _check_mask(mask: TensorSpec, scores: tuple[int, ...]) -> None:
    dims = (1,) * (len(scores) - len(mask.shape)) + mask.dims
    fits = len(dims) == len(scores) and all(m in (1, s) for m, s in zip(dims[1:], scores[1:], strict=True))
    if not fits or not dims[0] or scores[0] % dims[0]:
        raise GraphError(
            f"attention: the mask is {shape_str(mask.shape)}, and the scores are {shape_str(scores)}; aligned at the "
            "right its dimensions agree with them or are 1, and the first may divide theirs"
        )


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    q, k, v, mask = (specs.get(name) for name in ("q", "k", "v", "mask"))
    assert q is not None and k is not None and v is not None
    one_float_dtype("attention", q, k, v, mask)
    keys, value_size = _check_shapes(q, k, v, bool(attrs["trans_k"]))
    if mask is not None:
        _check_mask(mask, (*q.dims[:-1], keys))
    scale = attrs["scale"]
    assert isinstance(scale, float)
    if not math.isfinite(scale) or abs(scale) > float(np.finfo(np.float32).max):
        raise GraphError(f"attention: scale is {scale}; it is a number of f32, or 0 for 1 / sqrt({q.dims[-1]})")
    return {**attrs, "scale": scale or q.dims[-1] ** -0.5}, (TensorSpec((*q.dims[:-1], value_size), q.dtype),)


def _parts(call: Call, arrays: Arrays) -> tuple[F64, F64, F64]:
    """q (N, H, L, D), k^T (N, H, D, S) and v (N, H, S, Dv) in float64."""
    q, k, v = (np.asarray(given(arrays, name), np.float64) for name in ("q", "k", "v"))
    k = k if call["trans_k"] else np.swapaxes(k, -1, -2)
    q, k, v = (array if array.ndim == 4 else array[:, None] for array in (q, k, v))
    shared = AttentionProblem.of(call).heads_of_keys
    return q, np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)


def _scores(call: Call, arrays: Arrays, products: F64) -> F64:
    """Scores (N, H, L, S) of scaled products: masked, and -inf where a query does not see a key."""
    p = AttentionProblem.of(call)
    if call.has("mask"):
        mask = np.asarray(given(arrays, "mask"), np.float64)
        mask = mask[:, None] if len(call.shape("q")) == 3 and mask.ndim == 3 else mask
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        products = products + np.tile(mask, (p.images // mask.shape[0], 1, 1, 1))
    later = np.arange(p.keys) > np.arange(p.queries)[:, None]
    return np.where(later, -np.inf, products) if call["causal"] else products


def _weights(call: Call, scores: F64) -> F64:
    """softmax of scores."""
    shifted = scores - np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(shifted) / np.sum(np.exp(shifted), axis=-1, keepdims=True)
    nothing = np.all(scores == -np.inf, axis=-1, keepdims=True)
    return np.asarray(np.where(nothing, 0.0 if call["zero_rows"] else np.nan, weights))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    with np.errstate(all="ignore"):
        q, k, v = _parts(call, arrays)
        weights = _weights(call, _scores(call, arrays, float(call["scale"]) * (q @ k)))
        return [(weights @ v).reshape(call.shape("y"))]


def _terms(call: Call) -> int:
    p = AttentionProblem.of(call)
    return p.head_size + p.keys


def _magnitude(call: Call, arrays: Arrays, result: F64) -> F64:
    """What the rounding of an output is relative to. A score that is off by e makes its weight off by the factor
    exp(e), and the sum of all weights by what they are off by together; each of these errors is multiplied by a value.
    In calls of 16-bit floats scores and weights may be stored as such on the way."""
    p, out = AttentionProblem.of(call), call.outputs["y"].dtype
    with np.errstate(all="ignore"):
        q, k, v = _parts(call, arrays)
        scale = float(call["scale"])
        products = scale * (q @ k)
        scores = _scores(call, arrays, products)
        largest = np.max(scores, axis=-1, keepdims=True)
        error = rounding_of_sum(abs(scale) * (np.abs(q) @ np.abs(k)), p.head_size)
        sizes = np.abs(products) + np.abs(scores) + np.abs(scores - largest)
        error = error + _OF_SCORES * np.where(np.isfinite(sizes), sizes, 0.0)
        if out in HALVES:
            error = error + rounding_of_storing(products, out) + rounding_of_storing(scores, out)
        weights = np.nan_to_num(_weights(call, scores), nan=0.0)
        together = np.sum(weights * error, axis=-1, keepdims=True)
        off = weights * (np.expm1(np.minimum(error + together, _MOST_EXPONENT)) + _OF_WEIGHTS)
        off = off + weights * relative_tolerance(p.keys, DType.F32)
        if out in HALVES:
            off = off + rounding_of_storing(weights, out)
        values = np.where(np.isfinite(v), np.abs(v), 0.0)
        total = off @ values + rounding_of_sum(weights @ values, p.keys)
        return of_error(call, result, total.reshape(result.shape), _terms(call))


def _flops(call: Call) -> int:
    p = AttentionProblem.of(call)
    return 2 * p.batches * p.queries * p.keys * (p.head_size + p.value_size)


ATTENTION = Op(
    "attention",
    operands=(Operand("q"), Operand("k"), Operand("v"), Operand("mask", optional=True)),
    resolve=_resolve,
    reference=_reference,
    attrs=(
        Attr("scale", "scale", float, 0.0),
        Attr("causal", "causal", bool, False),
        Attr("trans_k", "tk", bool, False),
        Attr("zero_rows", "zero", bool, True),
    ),
    routes=ROUTES,
    terms=_terms,
    magnitude=_magnitude,
    flops=_flops,
    cases=(
        "attention:q=1x2x64x64,k=1x2x64x64,v=1x2x64x64",
        "attention:q=2x3x49x32,k=2x3x49x32,v=2x3x49x32,mask=3x49x49",
        "attention:q=6x2x49x33,k=6x2x49x33,v=6x2x49x33,mask=3x2x49x49,zero=0",
        "attention:q=2x4x67x80,k=2x2x67x80,v=2x2x67x80,causal=1",
        "attention:q=1x6x5x16,k=1x1x131x16,v=1x1x131x20,mask=131",
        "attention:q=1x2x1x64,k=1x2x77x64,v=1x2x77x64,scale=0.25",
        "attention:q=2x1x13x256,k=2x1x37x256,v=2x1x37x256,mask=2x1x1x37",
        "attention:q=3x19x1,k=3x23x1,v=3x23x1,mask=3x19x23",
        "attention:q=2x35x12,k=2x12x35,v=2x35x7,tk=1,mask=35x35,causal=1",
        "attention:q=1x2x40x24,k=1x2x24x36,v=1x2x36x130,tk=1",
        "attention:q=1x1x197x64,k=1x1x197x64,v=1x1x197x64,mask=1x1x197x1",
        "attention:q=1x2x70x33,k=1x2x3x33,v=1x2x3x5,causal=1,mask=2x1x3",
    ),
    doc="Attention: softmax(scale q k^T + mask) v, with a mask that broadcasts or a causal one.",
)
