"""layer_norm, rms_norm, instance_norm and group_norm: normalization by statistics of each image."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.tolerance import of_sum
from vkconv.ops.norm import rows
from vkconv.ops.norm.row_programs import RowKernel
from vkconv.ops.norm.row_routes import row_routes
from vkconv.ops.norm.row_sets import along

_OPERANDS = (Operand("x"), Operand("scale", optional=True), Operand("bias", optional=True))


# ---- over the dimensions from an axis on


def _trailing(op: str, specs: Specs, attrs: Attrs) -> tuple[Attrs, TensorSpec]:
    x, eps = rows.checked(op, specs, attrs)
    axis = shapes.axis_of(op, attrs["axis"], len(x.dims))
    named = {name: spec for name in ("scale", "bias") for spec in [specs.get(name)] if spec is not None}
    shapes.same_dtype(op, {"x": x, **named})
    for name, spec in named.items():
        if spec.dims != x.dims[axis:]:
            raise GraphError(
                f"{op}: {name} is {shape_str(spec.dims)}; from axis {axis} on, x is {shape_str(x.dims[axis:])}"
            )
    return {"axis": axis, "eps": eps}, x


def _layer_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    found, x = _trailing("layer_norm", specs, attrs)
    axis, stats = int(str(found["axis"])), bool(attrs["stats"])
    reduced = TensorSpec((*x.dims[:axis], *(1,) * (len(x.dims) - axis)), x.dtype)
    return {**found, "stats": stats}, (x, reduced, reduced) if stats else (x,)


def _rms_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    found, x = _trailing("rms_norm", specs, attrs)
    return found, (x,)


def _layer_kernel(call: Call) -> RowKernel:
    x = call.shape("x")
    return rows.kernel(call, along(x, call["axis"], len(x) - 1), rows.Parameters(), statistics=bool(call["stats"]))


def _rms_kernel(call: Call) -> RowKernel:
    x = call.shape("x")
    return rows.kernel(call, along(x, call["axis"], len(x) - 1), rows.Parameters(), centred=False)


def _layer_reference(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x").astype(np.float64)
    y, mean, variance = rows.normalized(x, tuple(range(call["axis"], x.ndim)), call["eps"])
    made = rows.scaled(y, arrays, x.shape[call["axis"] :])
    with np.errstate(all="ignore"):
        return [made, mean, 1 / np.sqrt(variance + call["eps"])] if call["stats"] else [made]


def _mean_magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    x = shapes.given(arrays, "x").astype(np.float64)
    return of_sum(call, reference, rows.sizes_in_mean(x, tuple(range(call["axis"], x.ndim))), _trailing_terms(call))


def _rms_reference(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x").astype(np.float64)
    y, _, _ = rows.normalized(x, tuple(range(call["axis"], x.ndim)), call["eps"], centred=False)
    return [rows.scaled(y, arrays, x.shape[call["axis"] :])]


def _trailing_terms(call: Call) -> int:
    return max(1, math.prod(call.shape("x")[call["axis"] :]))


# ---- over channels and pixels of each image


def _instance_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, eps = rows.checked("instance_norm", specs, attrs)
    rows.check_vectors("instance_norm", specs, ("scale", "bias"), {rows.channels_of("instance_norm", x): "channel"})
    return {"eps": eps}, (x,)


def _group_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, eps = rows.checked("group_norm", specs, attrs)
    channels, groups = rows.channels_of("group_norm", x), int(str(attrs["groups"]))
    if groups < 1 or channels % groups:
        raise GraphError(f"group_norm: {channels} channels do not divide into {groups} groups")
    rows.check_vectors("group_norm", specs, ("scale", "bias"), {channels: "channel", groups: "group"})
    return {"groups": groups, "eps": eps}, (x,)


def _by_group(call: Call) -> tuple[int, ...]:
    """The shape of x with the channels of a group as a dimension."""
    n, channels, *rest = call.shape("x")
    groups = max(1, int(call["groups"]) if call.op == "group_norm" else channels)
    return n, groups, channels // groups, *rest


def _group_kernel(call: Call) -> RowKernel:
    dims = _by_group(call)
    of_group = along(dims, 2, len(dims) - 1)
    given = next((call.shape(name)[0] for name in ("scale", "bias") if call.has(name)), 0)
    if given == dims[1]:
        return rows.kernel(call, of_group, rows.Parameters("row", dims[1], 1, of_group.count))
    return rows.kernel(call, of_group, rows.Parameters("run", dims[1], dims[2], math.prod(dims[3:])))


def _group_reference(call: Call, arrays: Arrays) -> Outputs:
    dims = _by_group(call)
    x = shapes.given(arrays, "x").astype(np.float64).reshape(dims)
    y, _, _ = rows.normalized(x, tuple(range(2, len(dims))), call["eps"])
    given = next((a.size for name in ("scale", "bias") for a in [arrays.get(name)] if a is not None), 0)
    by_channel = given == dims[1] * dims[2] and given != dims[1]
    shape = (1, dims[1], dims[2] if by_channel else 1, *(1,) * (len(dims) - 3))
    return [rows.scaled(y, arrays, shape).reshape(call.shape("x"))]


def _group_terms(call: Call) -> int:
    return max(1, math.prod(_by_group(call)[2:]))


LAYER_NORM = Op(
    "layer_norm",
    _OPERANDS,
    _layer_resolve,
    _layer_reference,
    outputs=("y", "mean", "inv_std"),
    attrs=(Attr("axis", "axis", int, -1), rows.EPS, Attr("stats", "stats", bool, False)),
    routes=row_routes(shaders.norm.NORMALIZE, _layer_kernel, (rows.PLAIN, rows.STATISTICS)),
    terms=_trailing_terms,
    magnitudes={"mean": _mean_magnitude},
    flops=lambda call: 8 * call.outputs["y"].size,
    cases=(
        "layer_norm:x=3x40,scale=40,bias=40",
        "layer_norm:x=2x5x67,scale=67",
        "layer_norm:x=2x5x64,stats=1",
        "layer_norm:x=2x3x5x7,scale=5x7,bias=5x7,axis=2,stats=1",
        "layer_norm:x=1x1031,scale=1031,bias=1031,eps=0.001",
        "layer_norm:x=2x8192,bias=8192,stats=1",
        "layer_norm:x=1x40009,scale=40009,bias=40009",
    ),
    doc="(x - mean) / sqrt(var + eps) * scale + bias with mean and variance over the dimensions from axis on; with "
    "stats also the mean and 1 / sqrt(var + eps).",
)

RMS_NORM = Op(
    "rms_norm",
    (Operand("x"), Operand("scale", optional=True)),
    _rms_resolve,
    _rms_reference,
    attrs=(Attr("axis", "axis", int, -1), rows.EPS),
    routes=row_routes(shaders.norm.NORMALIZE, _rms_kernel),
    terms=_trailing_terms,
    flops=lambda call: 5 * call.outputs["y"].size,
    cases=(
        "rms_norm:x=3x40,scale=40",
        "rms_norm:x=2x3x5x7,scale=3x5x7,axis=1",
        "rms_norm:x=5x131,eps=0.5",
        "rms_norm:x=2x20480,scale=20480",
    ),
    doc="x / sqrt(mean of x^2 + eps) * scale over the dimensions from axis on.",
)

INSTANCE_NORM = Op(
    "instance_norm",
    _OPERANDS,
    _instance_resolve,
    _group_reference,
    attrs=(rows.EPS,),
    routes=row_routes(shaders.norm.NORMALIZE, _group_kernel),
    terms=_group_terms,
    flops=lambda call: 8 * call.outputs["y"].size,
    cases=(
        "instance_norm:x=2x3x5x7,scale=3,bias=3",
        "instance_norm:x=2x5x64",
        "instance_norm:x=3x4x13x2x3,bias=4,eps=0.01",
        "instance_norm:x=1x2x120x140,scale=2,bias=2",
    ),
    doc="(x - mean) / sqrt(var + eps) * scale + bias with mean and variance of each channel of each image.",
)

GROUP_NORM = Op(
    "group_norm",
    _OPERANDS,
    _group_resolve,
    _group_reference,
    attrs=(Attr("groups", "g", int, 1), rows.EPS),
    routes=row_routes(shaders.norm.NORMALIZE, _group_kernel),
    terms=_group_terms,
    flops=lambda call: 8 * call.outputs["y"].size,
    cases=(
        "group_norm:x=2x6x5x7,scale=6,bias=6,g=2",
        "group_norm:x=2x6x4x8,scale=6,bias=6,g=3",
        "group_norm:x=2x6x5x7,scale=3,bias=3,g=3",
        "group_norm:x=3x8x17,g=4",
        "group_norm:x=2x6,scale=6,bias=6,g=2",
        "group_norm:x=1x12x60x61,scale=12,bias=12,g=2",
    ),
    doc="(x - mean) / sqrt(var + eps) * scale + bias with mean and variance of each group of channels of each image; "
    "scale and bias are given by channel or by group.",
)
