"""resize: nearest, linear or cubic sampling along any axes, per ONNX Resize-19; `resize_geometry` says where."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import GraphError
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Resolved, Specs
from vkconv.ops.spatial import resize_geometry as geometry
from vkconv.ops.spatial.resize_routes import ROUTES

Integers = npt.NDArray[np.int64]
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": geometry.MODES,
    "coordinate": geometry.COORDINATES,
    "nearest": geometry.ROUNDINGS,
    "policy": geometry.POLICIES,
}


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "resize")
    for name, choices in _CHOICES.items():
        shapes.one_of("resize", attrs, name, choices)
    if not x.dtype.is_float or not x.dims:
        raise GraphError(f"resize: x is {x}; it takes a float tensor of rank 1 or more")
    axes = geometry.given_axes(attrs, len(x.dims)) if attrs["axes"] else ()
    sizes, scales = shapes.ints(attrs["sizes"]), geometry.floats(attrs["scales"])
    roi = geometry.floats(attrs["roi"]) if attrs["coordinate"] == "tf_crop_and_resize" else ()
    resolved: Attrs = {**attrs, "sizes": sizes, "scales": scales, "axes": axes, "roi": roi}
    sampled = geometry.resized(resolved, x.dims)
    for i, axis in enumerate(sampled):
        step, offset, unit = axis.integers(geometry.rounding(resolved))
        if max(abs(step) * axis.n_out + abs(offset), unit) >= 1 << 31:
            raise GraphError(
                f"resize: axis {i} from {axis.n_in} to {axis.n_out} needs the fraction {step}/{unit} per pixel, "
                f"which passes 2^31 - 1 within the axis; take a size with a smaller ratio"
            )
    return resolved, (TensorSpec(tuple(axis.n_out for axis in sampled), x.dtype),)


# Of a numerator and a denominator, which is positive.
_ROUND: Mapping[str, Callable[[Integers, int], Integers]] = {
    "floor": lambda p, unit: p // unit,
    "ceil": lambda p, unit: -(-p // unit),
    "round_prefer_floor": lambda p, unit: -((unit - 2 * p) // (2 * unit)),
    "round_prefer_ceil": lambda p, unit: (2 * p + unit) // (2 * unit),
}


def _taps(call: Call, axis: geometry.Axis) -> tuple[Integers, F64]:
    """Source pixels of each output pixel along an axis, and what each counts: two arrays, (n_out, taps)."""
    step, offset, unit = axis.integers()
    numerators = step * np.arange(axis.n_out, dtype=np.int64) + offset
    if call["mode"] == "nearest":
        places = _ROUND[axis.rounded(call["nearest"])](numerators, unit)[:, None]
        return np.clip(places, 0, axis.n_in - 1), np.ones(places.shape)
    first, count, squeeze = geometry.kernel(call, axis)
    low = numerators // unit
    fraction = (numerators - low * unit) / unit
    steps = first + np.arange(count)
    places = low[:, None] + steps
    counts = geometry.weight_at((steps - fraction[:, None]) * squeeze, call["mode"], float(call["cubic_a"]))
    if call["exclude_outside"]:
        counts = np.where((places < 0) | (places >= axis.n_in), 0.0, counts)
    if call["exclude_outside"] or call["antialias"]:
        counts = counts / counts.sum(-1, keepdims=True)
    return np.clip(places, 0, axis.n_in - 1), counts


def _sample(call: Call, x: npt.NDArray[Any], absolute: bool = False) -> npt.NDArray[Any]:
    """y; with ``absolute``, of weights without their signs."""
    y = x
    for i, axis in geometry.passes(call):
        places, counts = _taps(call, axis)
        source = np.moveaxis(y, i, -1)
        total = np.zeros((*source.shape[:-1], axis.n_out))
        for k in range(places.shape[1]):
            weight = np.abs(counts[:, k]) if absolute else counts[:, k]
            # A weight of 0 takes nothing, also not the NaN of 0 times infinity.
            picked = np.where(weight == 0, 0.0, source[..., places[:, k]])
            with np.errstate(invalid="ignore"):
                total += weight * picked
        if call["coordinate"] == "tf_crop_and_resize":
            step, offset, unit = axis.integers()
            at = step * np.arange(axis.n_out, dtype=np.int64) + offset
            total = np.where((at < 0) | (at > (axis.n_in - 1) * unit), call["beyond"], total)
        y = np.moveaxis(total, -1, i)
    return y


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    x = np.abs(shapes.given(arrays, "x"))
    most = float(x[np.isfinite(x)].max(initial=0.0))
    largest: F64 = np.maximum(np.full(reference.shape, most), np.abs(_sample(call, x, absolute=True)))
    return largest


def _terms(call: Call) -> int:
    if call["mode"] == "nearest":
        return 1
    return math.prod(geometry.kernel(call, axis)[1] for _, axis in geometry.passes(call))


RESIZE = Op(
    "resize",
    (
        Operand("x"),
        Operand("sizes", optional=True, host=True),
        Operand("scales", optional=True, host=True),
        Operand("roi", optional=True, host=True),
    ),
    _resolve,
    lambda call, arrays: [_sample(call, shapes.given(arrays, "x"))],
    attrs=(
        Attr("sizes", "sizes", tuple[int, ...], ()),
        Attr("scales", "scales", tuple[float, ...], ()),
        Attr("roi", "roi", tuple[float, ...], ()),
        Attr("axes", "axes", tuple[int, ...], ()),
        Attr("mode", "mode", str, "nearest"),
        Attr("coordinate", "coord", str, "half_pixel"),
        Attr("nearest", "round", str, "round_prefer_floor"),
        Attr("policy", "policy", str, "stretch"),
        Attr("cubic_a", "a", float, -0.75),
        Attr("exclude_outside", "exclude", bool, False),
        Attr("antialias", "antialias", bool, False),
        Attr("beyond", "beyond", float, 0.0),
    ),
    routes=ROUTES,
    terms=_terms,
    flops=lambda call: 0 if call["mode"] == "nearest" else 2 * _terms(call) * call.outputs["y"].size,
    magnitude=_magnitude,
    cases=(
        "resize:x=1x3x5x7,sizes=1x3x10x14,coord=asymmetric,round=floor",
        "resize:x=2x5x5x7,sizes=2x5x3x11",
        "resize:x=1x9x5x7,sizes=1x9x10x14,round=round_prefer_ceil",
        "resize:x=1x1x5x7,sizes=1x1x8x3,coord=align_corners,round=ceil",
        "resize:x=1x2x6x10,scales=1.0x1.0x0.6x0.7,coord=asymmetric,round=floor",
        "resize:x=1x2x3x5,scales=1.0x1.0x1.5x2.5",
        "resize:x=1x3x5x7,sizes=1x3x10x14,mode=linear",
        "resize:x=2x17x5x7,sizes=2x17x3x11,mode=linear,coord=align_corners",
        "resize:x=1x3x5x7,sizes=1x3x1x13,mode=linear,coord=pytorch_half_pixel",
        "resize:x=1x3x5x7,scales=1.0x1.0x2.3x0.45,mode=linear,coord=asymmetric",
        "resize:x=2x3x11,sizes=2x3x29,mode=linear",
        "resize:x=2x3x5x7,sizes=2x3x9x4,mode=cubic",
        "resize:x=2x3x5x7,sizes=11x3,axes=2x-1,mode=cubic,a=-0.5,exclude=1",
        "resize:x=1x2x9x13,sizes=1x2x4x5,mode=linear,antialias=1",
        "resize:x=1x2x9x13,scales=1.0x1.0x0.45x0.3,mode=cubic,antialias=1",
        "resize:x=3x4x5,sizes=5x3x4,mode=linear,coord=half_pixel_symmetric",
        "resize:x=1x2x6x7,sizes=4x9,axes=2x3,mode=linear,coord=tf_crop_and_resize,roi=0.25x-0.125x0.75x1.25,beyond=10",
        "resize:x=1x1x6x7,sizes=13x9,axes=2x3,policy=not_larger",
        "resize:x=2x3x4x5x6,sizes=2x3x7x4x6,mode=linear",
    ),
    doc="x sampled along axes (default: all) to sizes, or by scales (output floor(in * scale)), in a region of it for "
    "tf_crop_and_resize, which gives beyond outside x; modes and names are ONNX's.",
)
