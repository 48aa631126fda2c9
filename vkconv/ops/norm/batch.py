"""batch_norm by given statistics, and its training form, which takes those of the batch."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.core.tolerance import of_sum
from vkconv.ops.kernels.strided import dispatch_rows, walk_params
from vkconv.ops.norm import rows
from vkconv.ops.norm.row_programs import RowKernel
from vkconv.ops.norm.row_routes import row_routes
from vkconv.ops.norm.row_sets import across
from vkconv.program import Program
from vkconv.route import Params, Route

BATCH_NORM_SHADER = Shader(shaders.norm.BATCH_NORM)
_VECTORS = ("scale", "bias", "mean", "var")
_OPERANDS = (Operand("x"), *(Operand(name) for name in _VECTORS))


def _checked(op: str, specs: Specs, attrs: Attrs) -> tuple[TensorSpec, float]:
    x, eps = rows.checked(op, specs, attrs)
    for name in _VECTORS:
        shapes.operand(specs, name, op)
    rows.check_vectors(op, specs, _VECTORS, {rows.channels_of(op, x): "channel"})
    return x, eps


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, eps = _checked("batch_norm", specs, attrs)
    return {"eps": eps}, (x,)


def _program(call: Call, device: Device, params: Params) -> Program:
    n, channels, *rest = call.shape("x")
    inner = math.prod(rest)
    push = {"channels": channels, "inner": inner, "eps": float(call["eps"])}
    return Program((dispatch_rows(BATCH_NORM_SHADER, n * channels, inner, device, params, push),))


def _per_channel(array: Array, rank: int) -> F64:
    return array.astype(np.float64).reshape(1, -1, *(1,) * (rank - 2))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x").astype(np.float64)
    scale, bias, mean, var = (_per_channel(shapes.given(arrays, name), x.ndim) for name in _VECTORS)
    with np.errstate(all="ignore"):
        return [np.asarray((x - mean) / np.sqrt(var + call["eps"]) * scale + bias)]


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """The scaled difference and the bias, which may cancel."""
    bias = np.abs(_per_channel(shapes.given(arrays, "bias"), reference.ndim))
    without = _reference(call, {**arrays, "bias": np.zeros(bias.size)})[0]
    return np.asarray(np.abs(without) + bias, np.float64)


def _training_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, eps = _checked("batch_norm_training", specs, attrs)
    momentum = shapes.held_in("batch_norm_training", "momentum", attrs["momentum"], x.dtype)
    if not 0 <= momentum <= 1:
        raise GraphError(f"batch_norm_training: momentum is {momentum}; it is from 0 to 1")
    statistic = TensorSpec((x.dims[1],), x.dtype)
    return {"eps": eps, "momentum": momentum}, (x, statistic, statistic)


def _training_kernel(call: Call) -> RowKernel:
    channels = call.shape("x")[1]
    by_row = rows.Parameters("row", max(1, channels), 1)
    return rows.kernel(call, across(call.shape("x"), channels), by_row, statistics=True, running=True)


def _training_reference(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x").astype(np.float64)
    y, mean, var = rows.normalized(x, (0, *range(2, x.ndim)), call["eps"])
    momentum, made = np.float64(np.float32(call["momentum"])), [rows.scaled(y, arrays, (1, -1, *(1,) * (x.ndim - 2)))]
    for name, batch in (("mean", mean), ("var", var)):
        old = shapes.given(arrays, name).astype(np.float64)
        made.append(old * momentum + batch.reshape(-1) * (1 - momentum))
    return made


def _mean_magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """The old mean and what the new one adds, which may cancel."""
    x, old = (shapes.given(arrays, name).astype(np.float64) for name in ("x", "mean"))
    momentum = float(np.float32(call["momentum"]))
    new = rows.sizes_in_mean(x, (0, *range(2, x.ndim))).reshape(-1)
    return of_sum(call, reference, np.abs(old) * momentum + new * (1 - momentum), max(1, _samples(call)))


def _samples(call: Call) -> int:
    n, _, *rest = call.shape("x")
    return n * math.prod(rest)


BATCH_NORM = Op(
    "batch_norm",
    _OPERANDS,
    _resolve,
    _reference,
    attrs=(rows.EPS,),
    routes=(
        Route(
            "channels",
            _program,
            (BATCH_NORM_SHADER,),
            "one pass; each invocation works within one channel and forms its factor once",
            must=(FLOATS,),
            params=walk_params,
        ),
    ),
    # The difference, var + eps, the product and the sum round; root and division are in the units on top.
    terms=lambda call: 4,
    magnitude=_magnitude,
    flops=lambda call: 2 * call.outputs["y"].size,
    cases=(
        "batch_norm:x=2x3x5x7,scale=3,bias=3,mean=3,var=3,eps=6",
        "batch_norm:x=2x67,scale=67,bias=67,mean=67,var=67,eps=6",
        "batch_norm:x=1x5x13x2x3,scale=5,bias=5,mean=5,var=5,eps=6",
    ),
    doc="(x - mean) / sqrt(var + eps) * scale + bias per channel (dimension 1): the inference form.",
)

BATCH_NORM_TRAINING = Op(
    "batch_norm_training",
    _OPERANDS,
    _training_resolve,
    _training_reference,
    outputs=("y", "running_mean", "running_var"),
    attrs=(rows.EPS, Attr("momentum", "momentum", float, 0.9)),
    routes=row_routes(shaders.norm.NORMALIZE, _training_kernel, (rows.STATISTICS,)),
    terms=lambda call: max(1, _samples(call)),
    magnitudes={"running_mean": _mean_magnitude},
    flops=lambda call: 8 * call.outputs["y"].size,
    cases=(
        "batch_norm_training:x=2x3x5x7,scale=3,bias=3,mean=3,var=3",
        "batch_norm_training:x=2x3x4x8,scale=3,bias=3,mean=3,var=3,momentum=0.5",
        "batch_norm_training:x=67x5,scale=5,bias=5,mean=5,var=5",
        "batch_norm_training:x=1x3x16x16,scale=3,bias=3,mean=3,var=3,eps=0.01",
        "batch_norm_training:x=3x2x60x61,scale=2,bias=2,mean=2,var=2",
    ),
    doc="batch_norm by mean and variance of the batch; mean and var move towards these: old * momentum + new * (1 - "
    "momentum), with the variance of the population.",
)
