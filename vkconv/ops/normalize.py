"""layer_norm (statistics of the row) and batch_norm (given statistics, per channel)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.core import Array, DType, GraphError, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops import shapes
from vkconv.ops.base import F64, Attr, Attrs, Op, Operand, Specs
from vkconv.ops.needs import F32
from vkconv.ops.rows import row_dispatch, row_routes
from vkconv.ops.strided import lanes, walk_params
from vkconv.route import Call, Params, Route
from vkconv.shader import Dispatch, Program, Shader, read, write

BATCH_NORM_SHADER = Shader("batch_norm")
_STATISTICS = ("scale", "bias", "mean", "var")


def _check_eps(op: str, x: TensorSpec, attrs: Attrs) -> float:
    if not x.dtype.is_float:
        raise GraphError(f"{op}: x is {x.dtype}; it takes a float type, cast first")
    eps = shapes.held_in(op, "eps", float(str(attrs["eps"])), x.dtype)
    if not (eps >= 0 and math.isfinite(eps)):
        raise GraphError(f"{op}: eps is {eps}; it must be finite and 0 or more")
    return eps


def _layer_resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
    x, scale, bias = shapes.operand(specs, "x", "layer_norm"), specs.get("scale"), specs.get("bias")
    eps = _check_eps("layer_norm", x, attrs)
    axis = shapes.axis_of("layer_norm", attrs["axis"], len(x.dims))
    named = {"x": x} | {name: s for name, s in (("scale", scale), ("bias", bias)) if s is not None}
    shapes.same_dtype("layer_norm", named)
    for name, spec in named.items():
        if name != "x" and spec.dims != x.dims[axis:]:
            raise GraphError(
                f"layer_norm: {name} is {shape_str(spec.dims)}; from axis {axis} on, x is {shape_str(x.dims[axis:])}"
            )
    return {"axis": axis, "eps": eps}, (x,)


def _count(call: Call) -> int:
    return math.prod(call.shape("x")[call["axis"] :])


def _rows(call: Call) -> int:
    return math.prod(call.shape("x")[: call["axis"]])


def _iterations(call: Call) -> int:
    return 3 * _count(call)  # the mean, the variance, the quotients


def _layer_build(call: Call, device: Device, local: int, cooperative: bool) -> Program:
    has_bias = call.has("bias")
    return row_dispatch(
        "layer_norm",
        DType.F32,
        # Without a bias the scale fills its binding, which the shader then leaves alone.
        ["x", "scale", "bias" if has_bias else "scale"],
        _rows(call),
        device,
        local=local,
        cooperative=cooperative,
        iterations=_iterations(call),
        push=(_count(call), float(call["eps"])),
        spec=(has_bias,),
    )


def _layer_reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    x, scale, bias = shapes.given(arrays, "x").astype(np.float64), shapes.given(arrays, "scale"), arrays.get("bias")
    axes = tuple(range(call["axis"], x.ndim))
    with np.errstate(all="ignore"):
        centered = x - np.mean(x, axis=axes, keepdims=True)
        variance = np.mean(centered**2, axis=axes, keepdims=True)
        y = centered / np.sqrt(variance + call["eps"]) * scale.astype(np.float64)
        return [y if bias is None else y + bias.astype(np.float64)]


def _batch_resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
    x = shapes.operand(specs, "x", "batch_norm")
    eps = _check_eps("batch_norm", x, attrs)
    if len(x.dims) < 2:
        raise GraphError(f"batch_norm: x is {shape_str(x.dims)}; it needs n and c dimensions at least")
    channels = x.dims[1]
    named = {name: shapes.operand(specs, name, "batch_norm") for name in _STATISTICS}
    shapes.same_dtype("batch_norm", {"x": x, **named})
    for name, spec in named.items():
        if spec.dims != (channels,):
            raise GraphError(f"batch_norm: {name} is {shape_str(spec.dims)} and x has {channels} channels")
    return {"eps": eps}, (x,)


def _batch_program(call: Call, device: Device, params: Params) -> Program:
    n, channels, *rest = call.shape("x")
    inner = math.prod(rest)
    spread = lanes(n * channels, inner, device, params)
    step = Dispatch(
        BATCH_NORM_SHADER,
        read("x", *_STATISTICS) + write("y"),
        groups=spread.groups,
        local=(params["local"], 1, 1),
        push=(spread.invocations, spread.chunk, channels, inner, float(call["eps"])),
        spec=(spread.items,),
    )
    return Program((step,))


def _batch_reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    x = shapes.given(arrays, "x").astype(np.float64)
    per_channel = (1, -1, *(1,) * (x.ndim - 2))
    scale, bias, mean, var = (shapes.given(arrays, k).astype(np.float64).reshape(per_channel) for k in _STATISTICS)
    with np.errstate(all="ignore"):
        return [np.asarray((x - mean) / np.sqrt(var + call["eps"]) * scale + bias)]


def _batch_magnitude(call: Call, arrays: Mapping[str, Array | None], reference: F64) -> F64:
    """The scaled difference and the bias, which may cancel."""
    bias = np.abs(shapes.given(arrays, "bias")).reshape(1, -1, *(1,) * (reference.ndim - 2))
    scaled = _batch_reference(call, {**arrays, "bias": np.zeros(bias.size)})[0]
    return np.asarray(np.abs(scaled) + bias, np.float64)


LAYER_NORM = Op(
    "layer_norm",
    (Operand("x"), Operand("scale"), Operand("bias", optional=True)),
    ("y",),
    _layer_resolve,
    _layer_reference,
    attrs=(Attr("axis", "axis", int, -1), Attr("eps", "eps", float, 1e-5)),
    routes=row_routes("layer_norm", (DType.F32,), _layer_build, _rows, _count, _iterations, (F32,)),
    terms=lambda call: max(1, _count(call)),
    flops=lambda call: 8 * call.outputs["y"].size,
    cases=(
        "layer_norm:x=3x40,scale=40,bias=40",
        "layer_norm:x=2x5x67,scale=67",
        "layer_norm:x=2x3x5x7,scale=5x7,bias=5x7,axis=2",
        "layer_norm:x=1x1031,scale=1031,bias=1031,eps=0.001",
        "layer_norm:x=66000x4,scale=4,bias=4",
    ),
    doc="(x - mean) / sqrt(var + eps) * scale + bias with mean and variance over the dimensions from axis on.",
)

BATCH_NORM = Op(
    "batch_norm",
    (Operand("x"), *(Operand(name) for name in _STATISTICS)),
    ("y",),
    _batch_resolve,
    _batch_reference,
    attrs=(Attr("eps", "eps", float, 1e-5),),
    routes=(
        Route(
            "channels",
            _batch_program,
            (BATCH_NORM_SHADER,),
            "one pass; each invocation works within one channel and forms its factor once",
            must=(F32,),
            params=walk_params,
        ),
    ),
    # The difference, var + eps, the product and the sum round; root and division are in the units on top.
    terms=lambda call: 4,
    magnitude=_batch_magnitude,
    flops=lambda call: 2 * call.outputs["y"].size,
    cases=(
        "batch_norm:x=2x3x5x7,scale=3,bias=3,mean=3,var=3,eps=6",
        "batch_norm:x=2x67,scale=67,bias=67,mean=67,var=67,eps=6",
        "batch_norm:x=1x5x13x2x3,scale=5,bias=5,mean=5,var=5,eps=6",
    ),
    doc="(x - mean) / sqrt(var + eps) * scale + bias per channel (dimension 1): the inference form.",
)
