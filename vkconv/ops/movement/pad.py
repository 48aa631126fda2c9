"""pad: constant, reflect, edge or wrap padding of any dimensions; negative pads crop. center_crop_pad: to a size."""

import math
from collections.abc import Sequence

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import WORDS_OR_PAIRS
from vkconv.ops.kernels.strided import MAX_RANK, dispatch_rows, tables, walk_params
from vkconv.program import Program, word_bits
from vkconv.route import Params, Route

PAD_SHADER, PAD_PAIRS = Shader(shaders.movement.PAD, DType.U32), Shader(shaders.movement.PAD, DType.I64)
MODES = ("constant", "reflect", "edge", "wrap")  # index is the shader's MODE


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "pad")
    rank, mode = len(x.dims), shapes.one_of("pad", attrs, "mode", MODES)
    given = shapes.ints(attrs["pads"])
    axes = shapes.ints(attrs["axes"]) or tuple(range(rank))
    if len(given) != 2 * len(axes):
        raise GraphError(f"pad: {len(given)} pads for {len(axes)} axes of {shape_str(x.dims)}; need begin and end each")
    shapes.axes_of("pad", axes, rank)
    pads = [0] * (2 * rank)
    for i, axis in enumerate(shapes.axis_of("pad", a, rank) for a in axes):
        pads[axis], pads[axis + rank] = given[i], given[i + len(axes)]
    out = tuple(d + pads[i] + pads[i + rank] for i, d in enumerate(x.dims))
    for i, (d, o) in enumerate(zip(x.dims, out, strict=True)):
        most = max(pads[i], pads[i + rank])
        if o < 0:
            raise GraphError(
                f"pad: axis {i} of {shape_str(x.dims)} has {d}; pads {pads[i]}, {pads[i + rank]} crop more"
            )
        if mode == "reflect" and most > max(0, d - 1):
            raise GraphError(
                f"pad: axis {i} of {shape_str(x.dims)} has {d}; reflect can pad {max(0, d - 1)}, not {most}"
            )
        if mode in ("edge", "wrap") and d == 0 and most > 0:
            raise GraphError(f"pad: axis {i} of {shape_str(x.dims)} is empty; there is nothing to repeat")
    merged = len(_merge(x.dims, out, pads))
    if merged > MAX_RANK:
        raise GraphError(f"pad: {merged} dimensions stay after merging; at most {MAX_RANK} can")
    value = shapes.held_in("pad", "value", attrs["value"], x.dtype)
    return {"pads": tuple(pads), "mode": mode, "value": value, "axes": ()}, (TensorSpec(out, x.dtype),)


def _merge(dims: Sequence[int], out: Sequence[int], pads: Sequence[int]) -> list[tuple[int, int, int]]:
    """(y dim, x dim, padding before) with neighbouring dimensions that have no padding joined."""
    rows: list[tuple[int, int, int]] = []
    free = False
    for i, (d, o) in enumerate(zip(dims, out, strict=True)):
        plain = pads[i] == 0 and pads[i + len(dims)] == 0
        if plain and free:
            rows[-1] = (rows[-1][0] * o, rows[-1][1] * d, 0)
        else:
            rows.append((o, d, pads[i]))
        free = plain
    return rows or [(1, 1, 0)]


def _program(call: Call, device: Device, params: Params) -> Program:
    out = call.shape("y")
    rows = _merge(call.shape("x"), out, call["pads"])
    value, dtype = call["value"], call.outputs["y"].dtype
    shader = PAD_PAIRS if dtype is DType.I64 else PAD_SHADER
    low, high = (word_bits(float(value)), 0) if dtype.is_float else (int(value) & 0xFFFFFFFF, int(value) >> 32)
    outer, inner = math.prod(r[0] for r in rows[:-1]), rows[-1][0]
    fill = shader.taking({"fill": low, "fill_high": high & 0xFFFFFFFF})
    push = {**fill, **tables(shader, *zip(*rows, strict=True))}
    constants = {"RANK": len(rows), "MODE": MODES.index(call["mode"])}
    return Program((dispatch_rows(shader, outer, inner, device, params, push, constants),))


def _center_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "center_crop_pad")
    rank, sizes = len(x.dims), shapes.ints(attrs["shape"])
    axes = tuple(shapes.axis_of("center_crop_pad", a, rank) for a in shapes.ints(attrs["axes"]) or range(rank))
    if len(sizes) != len(axes) or len(set(axes)) != len(axes) or min(sizes, default=0) < 0:
        raise GraphError(
            f"center_crop_pad: shape {list(sizes)} for axes {list(axes)} of {shape_str(x.dims)}; each has one size, "
            "of 0 or more"
        )
    call = Call("center_crop_pad", specs, {}, {"shape": sizes, "axes": axes})
    return dict(call.attrs), tuple(_centered(call).outputs.values())


def _centered(call: Call) -> Call:
    """The call as one of pad. The odd one of what goes, or is added, is at the end."""
    x = call.shape("x")
    pads = [0] * (2 * len(x))
    for size, axis in zip(call["shape"], call["axes"], strict=True):
        more = size - x[axis]
        pads[axis] = more // 2 if more > 0 else -(-more // 2)
        pads[axis + len(x)] = more - pads[axis]
    return PAD.call(call.operands, {"pads": tuple(pads)})


def _reference(call: Call, arrays: Arrays) -> Outputs:
    y, rank = shapes.given(arrays, "x"), len(call.shape("x"))
    pairs = [(call["pads"][i], call["pads"][i + rank]) for i in range(rank)]
    for axis, (begin, end) in enumerate(pairs):
        if begin or end:
            # Padded first: a side may lose more than x has, and what the other side gained goes then.
            widths = (max(0, begin), max(0, end))
            more = [widths if i == axis else (0, 0) for i in range(rank)]
            kind = {"constant_values": call["value"]} if call["mode"] == "constant" else {"mode": call["mode"]}
            padded = np.pad(y, more, **kind) if any(widths) else y
            y = np.take(padded, np.arange(max(0, -begin), padded.shape[axis] - max(0, -end)), axis)
    return [y]


PAD = Op(
    "pad",
    (
        Operand("x"),
        Operand("pads", host=True),
        Operand("value", optional=True, host=True),
        Operand("axes", optional=True, host=True),
    ),
    _resolve,
    _reference,
    attrs=(
        Attr("pads", "pads", tuple[int, ...]),
        Attr("value", "value", float, 0.0),
        Attr("axes", "axes", tuple[int, ...], ()),
        Attr("mode", "mode", str, "constant"),
    ),
    routes=(
        Route(
            "pad",
            _program,
            (PAD_SHADER, PAD_PAIRS),
            "one pass that computes each element's source or fills it",
            (WORDS_OR_PAIRS,),
            params=walk_params,
        ),
    ),
    cases=(
        "pad:x=5,pads=2x3",
        "pad:x=2x3x5x7,pads=0x0x1x2x0x0x3x0",
        "pad:x=2x3x5x7,pads=0x0x2x3x0x0x4x6,mode=reflect",
        "pad:x=2x3x5x7,pads=0x1x2x3x0x1x9x1,mode=edge",
        "pad:x=4x6,pads=-1x2x1x-3,value=-2.5",
        "pad:x=3x2,pads=-4x5x3x-6,value=-2.5",
        "pad:x=3x5x4,pads=0x7x1x0x6x13,mode=wrap",
        "pad:x=3x5x4,pads=0x2x-1x0x-2x1,mode=wrap",
        "pad:x=4x6,pads=-1x2x1x-3,mode=reflect",
        "pad:x=3x5x4,pads=1x2,axes=-2,value=inf",
        "pad:x=3x5:i32,pads=1x1x1x1,value=7",
        "pad:x=3x5:i32,pads=1x1x1x1,value=-7",
        "pad:x=3x5:i64,pads=1x1x1x1,value=-1099511627777",
        "pad:x=3x5:i64,pads=0x2x0x3,mode=reflect",
        "pad:x=2x1x2x3x2x1x2x3,pads=1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1",
    ),
    doc="x with pads (all begins, then all ends) per axis; mode constant fills value, reflect mirrors without the "
    "edge, edge repeats it, wrap goes on at the other end; negative pads crop.",
)

CENTER_CROP_PAD = Op(
    "center_crop_pad",
    (Operand("x"), Operand("shape", host=True)),
    _center_resolve,
    lambda call, arrays: _reference(_centered(call), arrays),
    attrs=(Attr("shape", "shape", tuple[int, ...]), Attr("axes", "axes", tuple[int, ...], ())),
    routes=(
        Route(
            "pad",
            lambda call, device, params: _program(_centered(call), device, params),
            (PAD_SHADER, PAD_PAIRS),
            "what pad does, with the pads that put x in the middle",
            (WORDS_OR_PAIRS,),
            params=walk_params,
        ),
    ),
    cases=(
        "center_crop_pad:x=5x8x3,shape=8x5x3",
        "center_crop_pad:x=4x7:i32,shape=9,axes=-1",
        "center_crop_pad:x=4x7:i64,shape=9,axes=-1",
    ),
    doc="x cropped or padded with zeros to shape along axes (default: all), around its middle.",
)
