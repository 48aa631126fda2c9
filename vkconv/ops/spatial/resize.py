"""resize: nearest, linear or cubic sampling along any axes, per ONNX Resize-19; `resize_geometry` says where."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, GraphError, ceil_div, did_you_mean, shape_str
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Attr, Attrs, Op, Operand, Specs
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.strided import dispatch_each, walk_params
from vkconv.ops.spatial.resize_geometry import COORDINATES, POLICIES, Axis, floats, given_axes, resized
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Requirement, Route

Integers = npt.NDArray[np.int64]

RESIZE_SHADER, RESAMPLE_SHADER = Shader(shaders.spatial.RESIZE), Shader(shaders.spatial.RESAMPLE)
MODES = ("nearest", "linear", "cubic")  # index is the shader's MODE
_PLACE = ("step", "offset", "unit")  # push constants of the place of an output, as `Axis.integers` has them
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": MODES,
    "coordinate": COORDINATES,
    "nearest": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "policy": POLICIES,
}


def _resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
    x = shapes.operand(specs, "x", "resize")
    for name, choices in _CHOICES.items():
        if attrs[name] not in choices:
            hint = did_you_mean(str(attrs[name]), choices)
            raise GraphError(f"resize: {name}={attrs[name]!r} is not one of {', '.join(choices)}{hint}")
    if not x.dtype.is_float or not x.dims:
        raise GraphError(f"resize: x is {x}; it takes a float tensor of rank 1 or more")
    axes = given_axes(attrs, len(x.dims)) if attrs["axes"] else ()
    sizes, scales = shapes.ints(attrs["sizes"]), floats(attrs["scales"])
    roi = floats(attrs["roi"]) if attrs["coordinate"] == "tf_crop_and_resize" else ()
    resolved: Attrs = {**attrs, "sizes": sizes, "scales": scales, "axes": axes, "roi": roi}
    geometry = resized(resolved, x.dims)
    for i, axis in enumerate(geometry):
        step, offset, unit = axis.integers(_rounding(resolved))
        if max(abs(step) * axis.n_out + abs(offset), unit) >= 1 << 31:
            raise GraphError(
                f"resize: axis {i} from {axis.n_in} to {axis.n_out} needs the fraction {step}/{unit} per pixel, "
                f"which passes 2^31 - 1 within the axis; take a size with a smaller ratio"
            )
    return resolved, (TensorSpec(tuple(axis.n_out for axis in geometry), x.dtype),)


def _rounding(attrs: Mapping[str, AttrValue]) -> str:
    return str(attrs["nearest"]) if attrs["mode"] == "nearest" else ""


def _kernel(call: Call, axis: Axis) -> tuple[int, int, float]:
    """First tap from the pixel at or below, number of taps, and how much the kernel is squeezed along the axis: with
    antialias it is as wide as an output pixel where that is the wider one."""
    squeeze = min(1.0, float(1 / axis.pixel)) if call["antialias"] else 1.0
    reach = {"nearest": 0, "linear": 1, "cubic": 2}[call["mode"]]
    first = math.floor(-reach / squeeze) + 1
    return first, 2 - 2 * first, squeeze


def _planar_program(call: Call, device: Device, params: Params) -> Program:
    x = call.shape("x")
    axes = resized(call.attrs, x)[2:]
    rows = [axis.integers(_rounding(call.attrs)) for axis in axes]
    sources, targets = x[2:], call.shape("y")[2:]
    if len(x) == 3:
        rows, sources, targets = [(0, 0, 1), *rows], (1, *sources), (1, *targets)
    planes = x[0] * x[1]
    invocations = targets[0] * targets[1] * ceil_div(planes, params["items"])
    push = {"invocations": invocations, "planes": planes}
    for side, n_in, n_out, row in zip("hw", sources, targets, rows, strict=True):
        push |= {f"in_{side}": n_in, f"out_{side}": n_out}
        push |= {f"{name}_{'y' if side == 'h' else 'x'}": word for name, word in zip(_PLACE, row, strict=True)}
    constants = {"ITEMS": params["items"], "LINEAR": call["mode"] == "linear"}
    return Program((dispatch_each(RESIZE_SHADER, invocations, device, params, push, constants),))


def _is_planar(call: Call) -> bool:
    x = call.shape("x")
    plain = not (call["antialias"] or call["exclude_outside"]) and call["coordinate"] != "tf_crop_and_resize"
    return (
        call["mode"] != "cubic"
        and plain
        and len(x) in (3, 4)
        and all(axis.is_identity for axis in resized(call.attrs, x)[:2])
    )


PLANAR = Requirement(
    "nearest or linear sampling of one or two spatial dimensions, all of it inside",
    lambda call, device: _is_planar(call),
    lambda call, device: (
        f"{call['mode']} of {shape_str(call.shape('x'))} to {shape_str(call.shape('y'))}, "
        f"{call['coordinate']}{', antialias' if call['antialias'] else ''}"
        f"{', exclude_outside' if call['exclude_outside'] else ''}"
    ),
)


def _passes(call: Call) -> list[tuple[int, Axis]]:
    """The axes that a pass is needed for; one, where none is."""
    axes = [(i, axis) for i, axis in enumerate(resized(call.attrs, call.shape("x"))) if not axis.is_identity]
    return axes or [(0, resized(call.attrs, call.shape("x"))[0])]


def _axis_program(call: Call, device: Device, params: Params) -> Program:
    dims = list(call.shape("x"))
    steps: list[Dispatch] = []
    scratch: dict[str, int] = {}
    passes = _passes(call)
    source = "x"
    for number, (i, axis) in enumerate(passes):
        target = "y" if number == len(passes) - 1 else f"pass{number}"
        dims[i] = axis.n_out
        if target != "y":
            scratch[target] = 4 * math.prod(dims)
        first, taps, squeeze = _kernel(call, axis)
        excluding = bool(call["exclude_outside"])
        total, buffers = math.prod(dims), {"x": source, "y": target}
        push = {
            "total": total,
            "n_in": axis.n_in,
            "n_out": axis.n_out,
            "inner": math.prod(dims[i + 1 :]),
            **dict(zip(_PLACE, axis.integers(_rounding(call.attrs)), strict=True)),
            "first": first,
            "taps": taps,
            "squeeze": float(squeeze),
            "a": float(call["cubic_a"]),
            "beyond": float(call["beyond"]),
        }
        constants = {
            "MODE": MODES.index(call["mode"]),
            "EXCLUDE_OUTSIDE": excluding,
            "NORMALIZE": excluding or bool(call["antialias"]),
            "EXTRAPOLATE": call["coordinate"] == "tf_crop_and_resize",
        }
        steps.append(dispatch_each(RESAMPLE_SHADER, total, device, params, push, constants, buffers, taps))
        source = target
    return Program(tuple(steps), scratch=scratch)


# Of a numerator and a denominator, which is positive.
_ROUND: Mapping[str, Callable[[Integers, int], Integers]] = {
    "floor": lambda p, unit: p // unit,
    "ceil": lambda p, unit: -(-p // unit),
    "round_prefer_floor": lambda p, unit: -((unit - 2 * p) // (2 * unit)),
    "round_prefer_ceil": lambda p, unit: (2 * p + unit) // (2 * unit),
}


def _taps(call: Call, axis: Axis) -> tuple[Integers, F64]:
    """Source pixels of each output pixel along an axis, and what each counts: two arrays, (n_out, taps)."""
    step, offset, unit = axis.integers()
    numerators = step * np.arange(axis.n_out, dtype=np.int64) + offset
    if call["mode"] == "nearest":
        places = _ROUND[call["nearest"]](numerators, unit)[:, None]
        return np.clip(places, 0, axis.n_in - 1), np.ones(places.shape)
    first, count, squeeze = _kernel(call, axis)
    low = numerators // unit
    fraction = (numerators - low * unit) / unit
    steps = first + np.arange(count)
    places = low[:, None] + steps
    counts = _kernel_at((steps - fraction[:, None]) * squeeze, call["mode"], float(call["cubic_a"]))
    if call["exclude_outside"]:
        counts = np.where((places < 0) | (places >= axis.n_in), 0.0, counts)
    if call["exclude_outside"] or call["antialias"]:
        counts = counts / counts.sum(-1, keepdims=True)
    return np.clip(places, 0, axis.n_in - 1), counts


def _kernel_at(distance: F64, mode: str, a: float) -> F64:
    d: F64 = np.abs(distance)
    if mode == "linear":
        return np.maximum(1 - d, 0.0)
    near, far = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _sample(call: Call, x: npt.NDArray[Any], absolute: bool = False) -> npt.NDArray[Any]:
    """y; with ``absolute``, of weights without their signs."""
    y = x
    for i, axis in _passes(call):
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


def _magnitude(call: Call, arrays: Mapping[str, Array | None], reference: F64) -> F64:
    x = np.abs(shapes.given(arrays, "x"))
    most = float(x[np.isfinite(x)].max(initial=0.0))
    return np.maximum(np.full(reference.shape, most), np.abs(_sample(call, x, absolute=True)))


def _terms(call: Call) -> int:
    return math.prod(1 if call["mode"] == "nearest" else _kernel(call, axis)[1] for _, axis in _passes(call))


RESIZE = Op(
    "resize",
    (
        Operand("x"),
        Operand("sizes", optional=True, host=True),
        Operand("scales", optional=True, host=True),
        Operand("roi", optional=True, host=True),
    ),
    ("y",),
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
    routes=(
        Route(
            "gather",
            _planar_program,
            (RESIZE_SHADER,),
            "each invocation computes one pixel's sources once, in integers, and serves several planes",
            must=(FLOATS, PLANAR),
            params=walk_params,
        ),
        Route(
            "axis_passes",
            _axis_program,
            (RESAMPLE_SHADER,),
            "kernels are products of one per axis: a pass along each axis reads only that axis' taps",
            must=(FLOATS,),
            params=walk_params,
        ),
    ),
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
