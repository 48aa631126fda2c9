"""resize: nearest or linear sampling of the spatial dimensions of an NCW or NCHW tensor, per ONNX Resize-13.

Every coordinate mode is a fraction (step * o + offset) / unit of integers in the output index o. Kernel and
reference compute with it exactly: rounding modes decide at ties, and f32 scales put most indices near one.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from vkconv.core import Array, GraphError, ceil_div, did_you_mean, shape_str
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops import shapes
from vkconv.ops.base import Attr, Attrs, Op, Operand, Specs, linear_groups
from vkconv.ops.needs import F32
from vkconv.ops.strided import walk_params
from vkconv.route import Call, Params, Route
from vkconv.shader import Dispatch, Program, Shader, read, write

RESIZE_SHADER = Shader("resize")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("nearest", "linear"),
    "coordinate": ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"),
    "nearest": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
}


def _floats(value: AttrValue) -> tuple[float, ...]:
    return tuple(float(v) for v in value) if isinstance(value, tuple) else (float(value),)


def _resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
    x = shapes.operand(specs, "x", "resize")
    rank = len(x.dims)
    sizes, scales = shapes.ints(attrs["sizes"]), _floats(attrs["scales"])
    for name, choices in _CHOICES.items():
        if attrs[name] not in choices:
            hint = did_you_mean(str(attrs[name]), choices)
            raise GraphError(f"resize: {name}={attrs[name]!r} is not one of {', '.join(choices)}{hint}")
    if not x.dtype.is_float or rank not in (3, 4):
        raise GraphError(f"resize: x is {x}; it takes a float tensor of rank 3 (NCW) or 4 (NCHW)")
    if bool(sizes) == bool(scales):
        raise GraphError("resize needs either sizes or scales, and not both")
    given: Sequence[float] = sizes or scales
    if len(given) != rank or min(given) <= 0 or not np.isfinite(given).all():
        raise GraphError(f"resize: {list(given)} for {shape_str(x.dims)}; need {rank} finite values above 0")
    # The product rounds to f32 first, as in the runtimes that models are checked with: 10 * f32(0.7) is 7.
    out = sizes or tuple(int(np.float32(d) * np.float32(s)) for d, s in zip(x.dims, scales, strict=True))
    if out[:2] != x.dims[:2]:
        raise GraphError(f"resize: {shape_str(x.dims)} to {shape_str(out)} changes n or c; only spatial dims resize")
    if x.size == 0 or 0 in out:
        raise GraphError(f"resize: {shape_str(x.dims)} to {shape_str(out)} is empty")
    resolved: Attrs = {**attrs, "sizes": sizes, "scales": scales}
    for axis in range(2, rank):
        step, offset, unit = _coordinate(resolved, axis, x.dims[axis], out[axis])
        if max(abs(step) * out[axis] + abs(offset), unit) >= 1 << 31:
            raise GraphError(
                f"resize: axis {axis} from {x.dims[axis]} to {out[axis]} needs the fraction {step}/{unit} per pixel, "
                f"which passes 2^31 - 1 within the axis; take a size with a smaller ratio"
            )
    return resolved, (TensorSpec(out, x.dtype),)


def _pixel(attrs: Mapping[str, AttrValue], axis: int, n_in: int, n_out: int) -> Fraction:
    """Source pixels per output pixel. A scale that leads to n_out within f32 rounding is n_out / n_in."""
    scales = _floats(attrs["scales"])
    if not scales or abs(scales[axis] * n_in - n_out) <= n_out * 2.0**-22:
        return Fraction(n_in, n_out)
    return 1 / Fraction(scales[axis]).limit_denominator(1 << 12)


def _position(attrs: Mapping[str, AttrValue], axis: int, n_in: int, n_out: int) -> tuple[Fraction, Fraction]:
    """(slope, start): output index o looks at source coordinate slope * o + start."""
    mode, pixel = attrs["coordinate"], _pixel(attrs, axis, n_in, n_out)
    if mode == "align_corners":
        return (Fraction(n_in - 1, n_out - 1) if n_out > 1 else Fraction(0)), Fraction(0)
    if mode == "asymmetric":
        return pixel, Fraction(0)
    if mode == "pytorch_half_pixel" and n_out == 1:
        return Fraction(0), Fraction(0)
    return pixel, pixel / 2 - Fraction(1, 2)


def _coordinate(attrs: Mapping[str, AttrValue], axis: int, n_in: int, n_out: int) -> tuple[int, int, int]:
    """(step, offset, unit) whose floor((step o + offset) / unit) is the nearest, or the lower linear, source."""
    slope, start = _position(attrs, axis, n_in, n_out)
    half = Fraction(1, 2)
    if attrs["mode"] == "nearest" and str(attrs["nearest"]).startswith("round"):
        start += half
    unit = math.lcm(slope.denominator, start.denominator)
    step, offset = int(slope * unit), int(start * unit)
    if attrs["mode"] == "nearest":
        # ceil(a / u) = floor((a + u - 1) / u), and rounding half down is ceil(x - 1/2).
        offset += {"ceil": unit - 1, "round_prefer_floor": -1}.get(str(attrs["nearest"]), 0)
    return step, offset, unit


def _program(call: Call, device: Device, params: Params) -> Program:
    x, out = call.shape("x"), call.shape("y")
    rows = [_coordinate(call.attrs, axis, x[axis], out[axis]) for axis in range(2, len(x))]
    sources, targets = x[2:], out[2:]
    if len(x) == 3:
        rows, sources, targets = [(0, 0, 1), *rows], (1, *sources), (1, *targets)
    planes = x[0] * x[1]
    invocations = targets[0] * targets[1] * ceil_div(planes, params["items"])
    step = Dispatch(
        RESIZE_SHADER,
        read("x") + write("y"),
        groups=linear_groups(invocations, params["local"], device),
        local=(params["local"], 1, 1),
        push=(invocations, planes, *sources, *targets, *rows[0], *rows[1]),
        spec=(params["items"], call["mode"] == "linear"),
    )
    return Program((step,))


def _reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    y = shapes.given(arrays, "x")
    for axis in range(2, y.ndim):
        n_in, n_out = y.shape[axis], call.shape("y")[axis]
        slope, start = _position(call.attrs, axis, n_in, n_out)
        at = [slope * o + start for o in range(n_out)]
        if call["mode"] == "nearest":
            half = Fraction(1, 2)
            index = [_ROUND[call["nearest"]](p, half) for p in at]
            y = np.take(y, np.clip(index, 0, n_in - 1), axis)
            continue
        low = [p.__floor__() for p in at]
        weight = np.array([float(p - i) for p, i in zip(at, low, strict=True)])
        weight = weight.reshape((-1, *(1,) * (y.ndim - 1 - axis)))
        first, second = (np.take(y, np.clip(np.array(low) + d, 0, n_in - 1), axis) for d in (0, 1))
        with np.errstate(invalid="ignore"):
            y = np.where(weight == 0, first, first * (1 - weight) + second * weight)
    return [y]


_ROUND = {
    "floor": lambda p, half: p.__floor__(),
    "ceil": lambda p, half: p.__ceil__(),
    "round_prefer_floor": lambda p, half: (p - half).__ceil__(),
    "round_prefer_ceil": lambda p, half: (p + half).__floor__(),
}

RESIZE = Op(
    "resize",
    (Operand("x"), Operand("sizes", optional=True, host=True), Operand("scales", optional=True, host=True)),
    ("y",),
    _resolve,
    _reference,
    attrs=(
        Attr("sizes", "sizes", tuple[int, ...], ()),
        Attr("scales", "scales", tuple[float, ...], ()),
        Attr("mode", "mode", str, "nearest"),
        Attr("coordinate", "coord", str, "half_pixel"),
        Attr("nearest", "round", str, "round_prefer_floor"),
    ),
    routes=(
        Route(
            "gather",
            _program,
            (RESIZE_SHADER,),
            "each invocation computes one pixel's sources once, in integers, and serves several planes",
            must=(F32,),
            params=walk_params,
        ),
    ),
    # Four weighted pixels, and weights that are rounded twice.
    terms=lambda call: 4 if call["mode"] == "linear" else 1,
    flops=lambda call: 8 * call.outputs["y"].size if call["mode"] == "linear" else 0,
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
    ),
    doc="Spatial dims sampled to sizes, or by scales (output floor(in * scale)); modes and names are ONNX's.",
)
