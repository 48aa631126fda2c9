"""grid_sample: x at the places that a grid names; affine_grid: such a grid from affine maps."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import GraphError, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.ops.spatial.resize_geometry import weight_at
from vkconv.program import Argument, Program
from vkconv.route import Params, Route

SAMPLE_SHADER, AFFINE_SHADER = Shader(shaders.spatial.GRID_SAMPLE), Shader(shaders.spatial.AFFINE_GRID)
MODES = ("nearest", "linear", "cubic")  # index is the shader's MODE
PADDINGS = ("zeros", "border", "reflection")  # index is the shader's PADDING
_REACH = (1, 2, 4)  # taps along an axis, by mode


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, grid = (shapes.operand(specs, name, "grid_sample") for name in ("x", "grid"))
    shapes.one_of("grid_sample", attrs, "mode", MODES)
    shapes.one_of("grid_sample", attrs, "padding", PADDINGS)
    shapes.same_dtype("grid_sample", {"x": x, "grid": grid})
    rank = len(x.dims) - 2
    if rank not in (2, 3) or not x.dtype.is_float:
        raise GraphError(f"grid_sample: x is {x}; it takes (n, c, h, w) or (n, c, d, h, w) of a float type")
    if len(grid.dims) != rank + 2 or grid.dims[0] != x.dims[0] or grid.dims[-1] != rank:
        raise GraphError(
            f"grid_sample: grid is {shape_str(grid.dims)} and x {shape_str(x.dims)}; it has {rank} numbers for each of "
            f"{rank} spatial dimensions of places, for each of {x.dims[0]} images"
        )
    if 0 in x.dims[2:]:
        raise GraphError(f"grid_sample: x is {x}; it has no pixel")
    return attrs, (TensorSpec((*x.dims[:2], *grid.dims[1:-1]), x.dtype),)


def _program(call: Call, device: Device, params: Params) -> Program:
    x, y = call.shape("x"), call.outputs["y"]
    spatial = x[2:]
    extents = {"total": y.size, "channels": x[1], "places": math.prod(y.dims[2:])}
    constants = {
        "RANK": len(spatial),
        "MODE": MODES.index(call["mode"]),
        "PADDING": PADDINGS.index(call["padding"]),
        "ALIGN_CORNERS": call["align_corners"],
    }
    iterations = _taps(call) * (1 + len(spatial))
    push = {**extents, "n": _three(spatial)}
    return Program((dispatch_each(SAMPLE_SHADER, y.size, device, params, push, constants, loop_iterations=iterations),))


def _three(spatial: Sequence[int]) -> Argument:
    """The spatial extents as three."""
    return (*spatial, *(1,) * (3 - len(spatial)))


def _taps(call: Call) -> int:
    return int(_REACH[MODES.index(call["mode"])] ** (len(call.shape("x")) - 2))


def _reflect(v: F64, extent: int, align: bool) -> F64:
    low, span = (0.0, extent - 1.0) if align else (-0.5, float(extent))
    if span <= 0:
        return np.full_like(v, low)
    turns, rest = np.divmod(np.abs(v - low), span)
    return np.asarray(np.where(turns % 2 == 0, low + rest, low + span - rest), np.float64)


def _mirrored(i: npt.NDArray[Any], extent: int, align: bool) -> npt.NDArray[Any]:
    """The pixel that `_reflect` of an index is."""
    span, away = (max(1, extent - 1), np.abs(i)) if align else (extent, np.where(i < 0, -1 - i, i))
    turns, rest = np.divmod(away, span)
    return np.where(turns % 2 == 0, rest, extent - 1 - rest) if extent > 1 else np.zeros_like(i)


def _places(call: Call, grid: F64, axis: int, extent: int) -> F64:
    """Coordinates along a spatial axis, in pixels; the grid has the last axis first."""
    align, rank = bool(call["align_corners"]), grid.shape[-1]
    v = grid[..., rank - 1 - axis]
    v = (v + 1) / 2 * (extent - 1) if align else ((v + 1) * extent - 1) / 2
    v = np.rint(v) if call["mode"] == "nearest" else v
    if call["padding"] == "border" and call["mode"] != "cubic":  # cubic clamps each pixel that it reads
        v = np.clip(v, 0, extent - 1)
    elif call["padding"] == "reflection":
        edge = 0.0 if align else 0.5
        v = np.where((v < -edge) | (v > extent - 1 + edge), _reflect(v, extent, align), v)
    return np.clip(np.nan_to_num(v, nan=-1e9), -1e9, 1e9)


def _pixels(call: Call, i: npt.NDArray[Any], extent: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The pixel that each index stands for, and whether it is one."""
    inside = (i >= 0) & (i < extent)
    if call["padding"] == "reflection":
        return _mirrored(i, extent, bool(call["align_corners"])), np.ones_like(inside)
    return np.clip(i, 0, extent - 1), inside | (call["padding"] == "border")


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, grid = shapes.given(arrays, "x"), shapes.given(arrays, "grid")
    spatial = x.shape[2:]
    places = [_places(call, grid, axis, extent) for axis, extent in enumerate(spatial)]
    images = np.arange(x.shape[0]).reshape(-1, *(1,) * (grid.ndim - 2))
    reach = _REACH[MODES.index(call["mode"])]
    steps = range(-1, 3) if call["mode"] == "cubic" else range(reach)
    y = np.zeros((x.shape[0], *grid.shape[1:-1], x.shape[1]))
    for taps in itertools.product(steps, repeat=len(spatial)):
        weight, inside, at = np.ones(grid.shape[:-1]), np.ones(grid.shape[:-1], bool), []
        for v, extent, step in zip(places, spatial, taps, strict=True):
            low = np.floor(v)
            if call["mode"] != "nearest":
                weight = weight * weight_at(step - (v - low), call["mode"], -0.75)
            index, real = _pixels(call, low.astype(int) + step, extent)
            at.append(index)
            inside &= real
        used = (inside & (weight != 0))[..., None]
        picked: F64 = np.moveaxis(x, 1, -1)[(images, *at)]
        y += np.where(used, weight[..., None] * np.where(used, picked, 0.0), 0.0)
    return [np.moveaxis(y, -1, 1)]


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """Of the sum, and of what a coordinate, which rounds with its own size, moves along the steepest slope there is:
    twice the largest element, per pixel."""
    x, grid = np.abs(shapes.given(arrays, "x")), np.abs(shapes.given(arrays, "grid"))
    most = float(x[np.isfinite(x)].max(initial=0.0))
    far = float(grid[np.isfinite(grid)].max(initial=0.0)) + 1
    slopes = 0 if call["mode"] == "nearest" else 2 * far * sum(x.shape[2:])
    return np.full(reference.shape, most * (1 + slopes))


def _affine_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    theta, size = shapes.operand(specs, "theta", "affine_grid"), shapes.ints(attrs["size"])
    rank = len(size) - 2
    if rank not in (2, 3) or min(size) < 1:
        raise GraphError(f"affine_grid: size is {list(size)}; it is (n, c, h, w) or (n, c, d, h, w), each at least 1")
    if theta.dims != (size[0], rank, rank + 1) or not theta.dtype.is_float:
        raise GraphError(f"affine_grid: theta is {theta}; size {list(size)} takes {size[0]}x{rank}x{rank + 1} floats")
    return {**attrs, "size": size}, (TensorSpec((size[0], *size[2:], rank), theta.dtype),)


def _affine_program(call: Call, device: Device, params: Params) -> Program:
    y, spatial = call.outputs["y"], call["size"][2:]
    push = {"total": y.size, "places": math.prod(spatial), "n": _three(spatial)}
    constants = {"RANK": len(spatial), "ALIGN_CORNERS": call["align_corners"]}
    return Program((dispatch_each(AFFINE_SHADER, y.size, device, params, push, constants),))


def _affine_reference(call: Call, arrays: Arrays) -> Outputs:
    theta, spatial = shapes.given(arrays, "theta"), call["size"][2:]
    # The coordinates of a place from the last axis to the first, then 1.
    lines = [_line(extent, bool(call["align_corners"])) for extent in spatial]
    base = np.stack([*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(spatial)], -1)
    return [np.einsum("nkj,...j->n...k", theta, base)]


def _line(extent: int, align: bool) -> F64:
    """A single pixel lies in the middle, as torch has it; ONNX divides by zero there."""
    i = np.arange(extent, dtype=np.float64)
    return -1 + 2.0 * i / (extent - 1) if align and extent > 1 else -1 + (2.0 * i + 1) / extent


def _affine_magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    rows = np.abs(shapes.given(arrays, "theta")).sum(-1)
    return np.broadcast_to(rows.reshape(rows.shape[0], *(1,) * (reference.ndim - 2), -1), reference.shape)


GRID_SAMPLE = Op(
    "grid_sample",
    (Operand("x"), Operand("grid")),
    _resolve,
    _reference,
    attrs=(
        Attr("mode", "mode", str, "linear"),
        Attr("padding", "pad", str, "zeros"),
        Attr("align_corners", "align", bool, False),
    ),
    routes=(
        Route(
            "sample", _program, (SAMPLE_SHADER,), "an invocation per element of y", must=(FLOATS,), params=local_params
        ),
    ),
    terms=_taps,
    flops=lambda call: 2 * _taps(call) * call.outputs["y"].size,
    magnitude=_magnitude,
    cases=(
        "grid_sample:x=2x3x5x7,grid=2x4x3x2",
        "grid_sample:x=2x3x5x7,grid=2x4x3x2,mode=nearest,pad=border,align=1",
        "grid_sample:x=1x2x5x7,grid=1x3x4x2,mode=cubic,pad=reflection",
        "grid_sample:x=1x2x5x7,grid=1x3x4x2,mode=cubic,pad=border,align=1",
        "grid_sample:x=1x2x3x5x4,grid=1x2x3x4x3,pad=reflection,align=1",
        "grid_sample:x=1x2x3x5x4,grid=1x2x3x4x3,mode=nearest",
    ),
    doc="x (n, c, spatial...) at places of a grid (n, places..., coordinates), from -1 to 1 across x and the last axis "
    "first; outside x it is zeros, its border or its mirror image. ONNX GridSample.",
)
AFFINE_GRID = Op(
    "affine_grid",
    (Operand("theta"), Operand("size", host=True)),
    _affine_resolve,
    _affine_reference,
    attrs=(Attr("size", "size", tuple[int, ...]), Attr("align_corners", "align", bool, False)),
    routes=(
        Route(
            "direct", _affine_program, (AFFINE_SHADER,), "an invocation per number", must=(FLOATS,), params=local_params
        ),
    ),
    terms=lambda call: len(call["size"]) - 1,
    magnitude=_affine_magnitude,
    cases=(
        "affine_grid:theta=2x2x3,size=2x3x5x7",
        "affine_grid:theta=1x3x4,size=1x1x3x5x4,align=1",
        "affine_grid:theta=2x2x3,size=2x3x1x7,align=1",
    ),
    doc="The grid of places that theta (n, rank, rank + 1) maps the pixels of an image of size to. ONNX AffineGrid.",
)
