"""roi_align: regions of images as planes of one size, sampled between the pixels."""

import math

import numpy as np
import numpy.typing as npt

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError, ceil_div
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import INT32, loop_iterations, operands_in
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.program import Program
from vkconv.route import Params, Route

MODES = ("avg", "max")
_SHADER = Shader(shaders.spatial.ROI_ALIGN, DType.F32)
# The most sides of the image's longer one that a region may have where it says itself how many samples it takes: loops
# end whatever the numbers of regions are.
_MOST_SIDES = 2


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, rois = (shapes.float_operand(specs, name, "roi_align") for name in ("x", "rois"))
    shapes.one_float_dtype("roi_align", x, rois)
    indices = shapes.operand(specs, "batch_indices", "roi_align")
    shapes.one_of("roi_align", attrs, "mode", MODES)
    cells, samples = shapes.ints(attrs["cells"]), attrs["samples"]
    if len(x.dims) != 4 or min(x.dims, default=0) < 1:
        raise GraphError(f"roi_align: x is {x}; it is n x c x h x w with elements")
    if len(rois.dims) != 2 or rois.dims[1] != 4 or indices.dims != rois.dims[:1] or indices.dtype is not DType.I64:
        raise GraphError(f"roi_align: rois are {rois} and batch_indices {indices}; they are r x 4, and r of i64")
    if len(cells) != 2 or min(cells) < 1 or not isinstance(samples, int) or samples < 0:
        raise GraphError(
            f"roi_align: cells are {list(cells)} and samples {samples}; they are two from 1 on, and 0 or more"
        )
    return {**attrs, "cells": cells}, (TensorSpec((rois.dims[0], x.dims[1], *cells), x.dtype),)


def _most_samples(call: Call) -> int:
    """Samples of a cell, the most that there can be."""
    if call["samples"]:
        return int(call["samples"]) ** 2
    side = _MOST_SIDES * max(call.shape("x")[2:])
    return math.prod(ceil_div(side, cells) for cells in call["cells"])


def _program(call: Call, device: Device, params: Params) -> Program:
    (images, channels, h, w), y = call.shape("x"), call.outputs["y"]
    push = {
        "total": y.size,
        "images": images,
        "channels": channels,
        "cells": call["cells"],
        "n": (h, w),
        "scale": call["scale"],
        "offset": call["offset"],
    }
    constants = {
        "SAMPLES": call["samples"],
        "MOST_SIDES": _MOST_SIDES,
        "LARGEST": call["mode"] == "max",
        "AT_LEAST_ONE": call["at_least_one"],
    }
    iterations = 2 * _most_samples(call) + 2
    return Program((dispatch_each(_SHADER, y.size, device, params, push, constants, loop_iterations=iterations),))


def _samples(call: Call, side: float, cells: int) -> int:
    """Samples along a side of a cell, -1 where they are too many."""
    if call["samples"]:
        return int(call["samples"])
    return math.ceil(max(side, 0.0) / cells) if side < _MOST_SIDES * max(call.shape("x")[2:]) else -1


def _near(v: F64, extent: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], F64]:
    """The pixel at or before each coordinate, the one behind it, and the share of the latter; of what is outside, the
    border."""
    v = np.clip(np.nan_to_num(v), 0.0, extent)
    low = np.minimum(v.astype(np.int64), extent - 1)
    high = np.minimum(low + 1, extent - 1)
    return low, high, np.where(low == high, 0.0, v - low)


def _cell_values(call: Call, image: F64, starts: F64, sides: F64, counts: tuple[int, int]) -> F64:
    """A region: c x cells. ``image`` is c x h x w."""
    h, w = image.shape[1:]
    at_y, at_x = (
        starts[d] + sides[d] * (np.arange(n * count) + 0.5) / (n * count)
        for d, (n, count) in enumerate(zip(call["cells"], counts, strict=True))
    )
    (y0, y1, sy), (x0, x1, sx) = _near(at_y, h), _near(at_x, w)
    inside = ((at_y >= -1) & (at_y <= h))[:, None] & ((at_x >= -1) & (at_x <= w))
    parts = [
        np.where(inside, image[:, rows[:, None], columns] * share_y[:, None] * share_x, 0.0)
        for rows, share_y in ((y0, 1 - sy), (y1, sy))
        for columns, share_x in ((x0, 1 - sx), (x1, sx))
    ]
    together = np.max(parts, 0) if call["mode"] == "max" else np.sum(parts, 0)
    cells = together.reshape(-1, call["cells"][0], counts[0], call["cells"][1], counts[1])
    made: F64 = cells.max((2, 4)) if call["mode"] == "max" else cells.sum((2, 4)) / (counts[0] * counts[1])
    return made


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x = np.asarray(shapes.given(arrays, "x"), np.float64)
    rois = np.asarray(shapes.given(arrays, "rois"), np.float64)
    y = np.full(call.shape("y"), np.nan)
    for i, (roi, image) in enumerate(zip(rois, shapes.given(arrays, "batch_indices"), strict=True)):
        corners = roi * np.float32(call["scale"]) - np.float32(call["offset"])
        starts, sides = corners[1::-1], corners[3:1:-1] - corners[1::-1]
        sides = np.maximum(sides, 1.0) if call["at_least_one"] else sides
        if not 0 <= image < len(x) or np.isnan(starts + sides).any():
            continue
        counts = tuple(_samples(call, float(side), n) for side, n in zip(sides, call["cells"], strict=True))
        if min(counts) >= 0:
            y[i] = _cell_values(call, x[image], starts, sides, (counts[0], counts[1])) if min(counts) else 0.0
    return [y]


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """Of the sum, and of what a coordinate, which rounds with its own size, moves along the steepest slope there is:
    twice the largest element, per pixel."""
    x, rois = np.abs(shapes.given(arrays, "x")), np.abs(shapes.given(arrays, "rois"))
    far = abs(call["scale"]) * float(rois[np.isfinite(rois)].max(initial=0.0)) + 1
    return np.full(reference.shape, float(x[np.isfinite(x)].max(initial=0.0)) * (1 + 4 * far))


ROI_ALIGN = Op(
    "roi_align",
    (Operand("x", partial=True), Operand("rois"), Operand("batch_indices")),
    _resolve,
    _reference,
    attrs=(
        Attr("cells", "cells", tuple[int, ...], (1, 1)),
        Attr("samples", "samples", int, 0),
        Attr("scale", "scale", float, 1.0),
        Attr("offset", "offset", float, 0.5),
        Attr("at_least_one", "one", bool, False),
        Attr("mode", "mode", str, "avg"),
    ),
    routes=(
        Route(
            "sample",
            _program,
            (_SHADER,),
            "an invocation per element of y",
            must=(
                operands_in("x", DType.F32),
                INT32,
                loop_iterations(lambda call, device: 2 * _most_samples(call) + 2),
            ),
            params=local_params,
        ),
    ),
    terms=lambda call: 4 * _most_samples(call),
    magnitude=_magnitude,
    cases=(
        "roi_align:x=2x3x13x11,rois=7x4,batch_indices=7:i64,cells=3x5,samples=2",
        "roi_align:x=1x5x7x9,rois=5x4,batch_indices=5:i64,cells=2x3,one=1,offset=0,scale=4",
        "roi_align:x=3x2x11x5,rois=11x4,batch_indices=11:i64,cells=3x4,scale=2.5,samples=3,mode=max",
        "roi_align:x=1x1x1x1,rois=1x4,batch_indices=1:i64,offset=0",
    ),
    doc="For each region (x1, y1, x2, y2, times scale and less offset) of the image that batch_indices names, cells "
    "that hold the average of samples between pixels, or their largest part with mode=max: samples x samples of them, "
    "or with 0 as many as a cell has pixels. at_least_one makes sides of less than 1 one. A region of NaN, of an image "
    f"that is not there, or with samples=0 of more than {_MOST_SIDES} sides of x gives NaN. ONNX RoiAlign.",
)
