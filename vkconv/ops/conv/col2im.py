"""col2im: blocks of pixels, as im2col cuts them, added up into the image that they lie in."""

import itertools
import math
from collections.abc import Mapping

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import GraphError, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs, over_invocations
from vkconv.ops.core.requirements import FLOATS, loop_iterations
from vkconv.ops.core.tolerance import addends
from vkconv.ops.kernels.strided import local_params
from vkconv.program import Argument, Dispatch, Program
from vkconv.route import Params, Route

COL2IM_SHADER = Shader(shaders.conv.COL2IM)
MOST_RANK = 3
_MOST = 1 << 30  # sums of two such numbers are within the 32 bits that shaders count with


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, image, block = shapes.operand(specs, "x", "col2im"), shapes.ints(attrs["image"]), shapes.ints(attrs["block"])
    rank = len(image)
    if not 1 <= rank <= MOST_RANK or len(block) != rank or min(*image, *block) < 1 or max(*image, *block) > _MOST:
        raise GraphError(
            f"col2im: image {list(image)} and block {list(block)}; each has as many sizes of 1 to {_MOST}, up to "
            f"{MOST_RANK}"
        )
    canonical: Attrs = {"image": image, "block": block}
    for name, default, least, count in (("stride", 1, 1, rank), ("dilation", 1, 1, rank), ("padding", 0, 0, 2 * rank)):
        values = shapes.ints(attrs[name]) or (default,) * count
        if len(values) != count or min(values) < least or max(values) > _MOST:
            raise GraphError(f"col2im: {name} is {list(values)}; it is {count} values of {least} to {_MOST}")
        canonical[name] = values
    call = Call("col2im", specs, {}, canonical)
    blocks, taps = _blocks(call), math.prod(block)
    if len(x.dims) != 3 or not x.dtype.is_float or x.dims[1] % taps or x.dims[2] != math.prod(blocks):
        raise GraphError(
            f"col2im: x is {x}; blocks {shape_str(block)} of an image {shape_str(image)} make (n, c x {taps}, "
            f"{math.prod(blocks)}) of a float type"
        )
    return canonical, (TensorSpec((x.dims[0], x.dims[1] // taps, *image), x.dtype),)


def _blocks(call: Call) -> list[int]:
    """Blocks along each axis."""
    rank, pads = len(call["image"]), call["padding"]
    return [
        max(0, (image + pads[i] + pads[i + rank] - call["dilation"][i] * (call["block"][i] - 1) - 1))
        // call["stride"][i]
        + 1
        for i, image in enumerate(call["image"])
    ]


def _program(call: Call, device: Device, params: Params) -> Program:
    rank, y = len(call["image"]), call.outputs["y"]
    missing = MOST_RANK - rank
    axes = {"image": call["image"], "kernel": call["block"], "blocks": _blocks(call)}
    axes |= {"stride": call["stride"], "dilation": call["dilation"]}
    geometry: dict[str, Argument] = {name: (*(1,) * missing, *values) for name, values in axes.items()}
    geometry["before"] = (*(0,) * missing, *call["padding"][:rank])
    return Program((blocks_added("x", "y", 0, y.size, math.prod(call["block"]), geometry, device, params["local"]),))


def blocks_added(
    x: str, y: str, first: int, total: int, taps: int, geometry: Mapping[str, Argument], device: Device, local: int
) -> Dispatch:
    """The launch that adds up blocks of ``taps`` elements into ``total`` ones of y from ``first`` on: whole planes.
    ``geometry`` has of three axes what shaders/conv/blocks.glsl reads."""
    return Dispatch(
        COL2IM_SHADER,
        {"x": x, "y": y},
        *over_invocations(total, local, device),
        push={"total": total, "first": first, **geometry},
        loop_iterations=taps,
    )


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, y = shapes.given(arrays, "x"), np.zeros(call.shape("y"))
    block, blocks = call["block"], _blocks(call)
    parts = x.reshape(x.shape[0], -1, *block, *blocks)
    for tap in itertools.product(*map(range, block)):
        at, kept = [], []
        for i, t in enumerate(tap):
            place = np.arange(blocks[i]) * call["stride"][i] + t * call["dilation"][i] - call["padding"][i]
            inside = np.flatnonzero((place >= 0) & (place < call["image"][i]))
            at.append(place[inside])
            kept.append(inside)
        part: F64 = np.moveaxis(parts, (0, 1), (-2, -1))[tap]
        part = np.moveaxis(part, (-2, -1), (0, 1))
        every = [np.arange(n) for n in y.shape[:2]]
        y[np.ix_(*every, *at)] += part[np.ix_(*every, *kept)]
    return [y]


COL2IM = Op(
    "col2im",
    (Operand("x"), Operand("image", host=True), Operand("block", host=True)),
    _resolve,
    _reference,
    attrs=(
        Attr("image", "image", tuple[int, ...]),
        Attr("block", "block", tuple[int, ...]),
        Attr("stride", "s", tuple[int, ...], ()),
        Attr("dilation", "d", tuple[int, ...], ()),
        Attr("padding", "p", tuple[int, ...], ()),
    ),
    routes=(
        Route(
            "gather",
            _program,
            (COL2IM_SHADER,),
            "an invocation per pixel adds what blocks have for it: no atomics, and always in the same order",
            must=(FLOATS, loop_iterations(lambda call, device: math.prod(call["block"]))),
            params=local_params,
        ),
    ),
    terms=lambda call: math.prod(call["block"]),
    flops=lambda call: call.specs["x"].size,
    magnitude=lambda call, arrays, result: addends(_reference, call, arrays),
    cases=(
        "col2im:x=2x12x9,image=4x4,block=2x2",
        "col2im:x=1x18x6,image=5x7,block=3x3,s=2x3,p=1x1x0x1",
        "col2im:x=2x6x8,image=12,block=3,d=2",
        "col2im:x=1x12x12,image=3x4x5,block=2x2x3,s=1x2x1,p=0x0x0x0x1x0",
    ),
    doc="x (n, c x block, blocks) added up into images (n, c, image): element k of a block lies k dilation behind its "
    "first one, and blocks are stride apart, beginning padding before the image. ONNX Col2Im.",
)
