"""deform_conv2d: a convolution whose taps are moved by offsets, pixel by pixel, and may be weighted."""

import itertools
import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs, over_invocations
from vkconv.ops.core.requirements import FLOATS, loop_iterations
from vkconv.ops.kernels.strided import local_params
from vkconv.ops.kernels.windows import resolve_convolution
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Route

DEFORM_SHADER = Shader(shaders.conv.DEFORM_CONV2D)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    named = {name: specs.get(name) for name in ("x", "w", "offset", "b", "mask")}
    x, w, _ = (shapes.operand(specs, name, "deform_conv2d") for name in ("x", "w", "offset"))
    shapes.same_dtype("deform_conv2d", {name: spec for name, spec in named.items() if spec is not None})
    canonical, (n, m, *out) = resolve_convolution("deform_conv2d", x, w, {**attrs, "auto_pad": "explicit"})
    channels, taps, parts = x.dims[1], math.prod(w.dims[2:]), int(str(attrs["offset_groups"]))
    if not x.dtype.is_float or parts < 1 or channels % parts:
        raise GraphError(
            f"deform_conv2d: x is {x}, and there are {parts} groups of offsets; it takes a float type, and groups that "
            f"divide the {channels} channels"
        )
    for name, want in (
        ("offset", (n, parts * taps * 2, *out)),
        ("mask", (n, parts * taps, *out)),
        ("b", (m,)),
    ):
        spec = named[name]
        if spec is not None and spec.dims != want:
            raise GraphError(f"deform_conv2d: {name} is {spec}; this call takes {'x'.join(map(str, want))}")
    return {name: canonical[name] for name in attrs}, (TensorSpec((n, m, *out), x.dtype),)


def _program(call: Call, device: Device, params: Params) -> Program:
    y = call.outputs["y"]
    _, c, h, width = call.shape("x")
    m, per_group, kh, kw = call.shape("w")
    (oh, ow), (sh, sw), (dh, dw), (pt, pl) = y.dims[2:], call["stride"], call["dilation"], call["padding"][:2]
    sizes = {"total": y.size, "c": c, "h": h, "width": width, "m": m, "per_group": per_group, "kh": kh, "kw": kw}
    sizes |= {"oh": oh, "ow": ow, "sh": sh, "sw": sw, "dh": dh, "dw": dw, "pt": pt, "pl": pl}
    sizes |= {"m_per_group": m // call["groups"], "c_per_offset_group": c // call["offset_groups"]}
    bias, mask = ("b" if call.has("b") else None), ("mask" if call.has("mask") else None)
    step = Dispatch(
        DEFORM_SHADER,
        {"x": "x", "w": "w", "offset": "offset", "bias": bias, "mask": mask, "y": "y"},
        *over_invocations(y.size, params["local"], device),
        push=sizes,
        constants={"HAS_BIAS": call.has("b"), "HAS_MASK": call.has("mask")},
        loop_iterations=_taps(call) * 2,
    )
    return Program((step,))


def _taps(call: Call) -> int:
    return math.prod(call.shape("w")[1:])


def _bilinear(x: F64, rows: F64, columns: F64) -> F64:
    """x (n, c, h, w) at places (n, oh, ow), zeros around it: (n, c, oh, ow). A place a pixel or more away, or that is
    no number, has 0 whatever the nearest pixels are."""
    h, w = x.shape[2:]
    near = (rows > -1) & (rows < h) & (columns > -1) & (columns < w)
    rows, columns = np.where(near, rows, 0.0), np.where(near, columns, 0.0)
    images = np.arange(x.shape[0]).reshape(-1, 1, 1)
    y = np.zeros((*rows.shape, x.shape[1]))
    for dy, dx in itertools.product((0, 1), repeat=2):
        top, left = np.floor(rows), np.floor(columns)
        weight = (1 - np.abs(rows - top - dy)) * (1 - np.abs(columns - left - dx))
        i, j = top.astype(int) + dy, left.astype(int) + dx
        inside = near & (i >= 0) & (i < h) & (j >= 0) & (j < w)
        picked = x[images, :, np.clip(i, 0, h - 1), np.clip(j, 0, w - 1)]
        y += np.where(inside[..., None], weight[..., None] * picked, 0.0)
    return np.moveaxis(y, -1, 1)


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, w, offset = (np.asarray(shapes.given(arrays, name), np.float64) for name in ("x", "w", "offset"))
    (m, per_group, kh, kw), (oh, ow) = w.shape, call.shape("y")[2:]
    parts, groups = call["offset_groups"], call["groups"]
    offset = offset.reshape(x.shape[0], parts, kh, kw, 2, oh, ow)
    ones = np.ones((x.shape[0], parts * kh * kw, oh, ow))
    mask = (shapes.given(arrays, "mask") if call.has("mask") else ones).reshape(-1, parts, kh, kw, oh, ow)
    per_part = x.shape[1] // parts
    rows = np.arange(oh)[:, None] * call["stride"][0] - call["padding"][0]
    columns = np.arange(ow)[None, :] * call["stride"][1] - call["padding"][1]
    y = np.zeros((x.shape[0], groups, m // groups, oh, ow))
    for i, j in itertools.product(range(kh), range(kw)):
        seen = np.zeros((x.shape[0], x.shape[1], oh, ow))
        for part in range(parts):
            own = slice(part * per_part, (part + 1) * per_part)
            at_row = rows + i * call["dilation"][0] + offset[:, part, i, j, 0]
            at_column = columns + j * call["dilation"][1] + offset[:, part, i, j, 1]
            seen[:, own] = _bilinear(x[:, own], at_row, at_column) * mask[:, part, i, j][:, None]
        grouped = seen.reshape(x.shape[0], groups, per_group, oh, ow)
        y += np.einsum("ngchw,gmc->ngmhw", grouped, w[:, :, i, j].reshape(groups, m // groups, per_group))
    y = y.reshape(call.shape("y"))
    return [y + shapes.given(arrays, "b")[:, None, None] if call.has("b") else y]


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """Of the sum, and of what a coordinate, which rounds with its own size, moves along the steepest slope there is:
    twice the largest element, per pixel. What is not finite rounds nothing."""
    given = {name: array for name, array in arrays.items() if array is not None}
    size = {name: np.abs(np.where(np.isfinite(array), array, 0.0)) for name, array in given.items()}
    per_output = size["w"].sum(axis=(1, 2, 3)).max(initial=0.0) * size["x"].max(initial=0.0)
    per_output = per_output * (size["mask"].max(initial=0.0) if "mask" in size else 1.0)
    far = sum(call.shape("x")[2:]) + sum(call["padding"]) + 2 * float(size["offset"].max(initial=0.0))
    most = per_output * (1 + 2 * far) + (size["b"].max(initial=0.0) if "b" in size else 0.0)
    return np.full(reference.shape, float(most) / max(1, _taps(call)))


DEFORM_CONV2D = Op(
    "deform_conv2d",
    (Operand("x"), Operand("w"), Operand("offset"), Operand("b", optional=True), Operand("mask", optional=True)),
    _resolve,
    _reference,
    attrs=(
        Attr("stride", "s", tuple[int, ...], (1, 1)),
        Attr("padding", "p", tuple[int, ...], (0, 0, 0, 0)),
        Attr("dilation", "d", tuple[int, ...], (1, 1)),
        Attr("groups", "g", int, 1),
        Attr("offset_groups", "og", int, 1),
    ),
    routes=(
        Route(
            "direct",
            _program,
            (DEFORM_SHADER,),
            "an invocation per output: every tap lies elsewhere, so that none is shared",
            must=(FLOATS, loop_iterations(lambda call, device: 2 * _taps(call))),
            params=local_params,
        ),
    ),
    terms=_taps,
    flops=lambda call: 2 * _taps(call) * call.outputs["y"].size,
    magnitude=_magnitude,
    cases=(
        "deform_conv2d:x=2x3x5x7,w=4x3x3x3,offset=2x18x5x7,p=1",
        "deform_conv2d:x=1x4x7x8,w=6x2x2x3,offset=1x24x3x3,b=6,mask=1x12x3x3,s=2,d=1x1,g=2,og=2",
        "deform_conv2d:x=1x2x6x6,w=1x2x2x2,offset=1x8x4x4,d=2",
    ),
    doc="A convolution of x (n, c, h, w) with w (m, c / groups, kh, kw), each tap moved by offset (pairs of h, w per "
    "group of offsets and tap), read by linear interpolation with zeros around x, and times mask. ONNX DeformConv.",
)
