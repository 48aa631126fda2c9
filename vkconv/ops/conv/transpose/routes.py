"""The routes of conv_transpose2d: how each lays out its work, what it needs, and tile sizes as data."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import buffers, push
from vkconv.ops.conv.transpose.blocks import TRANSPOSED_BLOCKS, TRANSPOSED_PHASES, packing
from vkconv.ops.conv.transpose.gemm import TRANSPOSED_GEMM
from vkconv.ops.conv.transpose.phases import FEW_PHASES, Axis, axes, reaching
from vkconv.ops.core.base import linear_groups, local_sizes
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.prepack import MOST_SPAN, PACK_TILES, PACKED_WEIGHTS, Sizes, short_span
from vkconv.ops.kernels.strided import STRIDED_COPY, local_params
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Route


@dataclasses.dataclass(frozen=True, slots=True)
class TransposeTiles:
    """Lanes of a workgroup, the default first, and output channels x outputs of a phase of one invocation."""

    local: tuple[int, ...]
    channels: Sizes
    columns: Sizes


# lavapipe (2 cores, Mesa 22.3), 64->32 over 28x28, 4x4 kernel, stride 2, channels x columns, GFLOP/s: 16x16 15.0,
# 12x16 12.4, 8x16 11.8, 16x8 10.4, 8x8 9.2, 16x4 6.8, 4x16 8.3.
_TILES: Mapping[str, TransposeTiles] = {
    "cpu": TransposeTiles((8, 16, 32), Sizes((16, 12, 8, 4, 2, 1)), Sizes((16, 8, 4, 1)))
}
_GPU_TILES = TransposeTiles((64, 32, 128, 256), Sizes((8, 4, 2, 1), (16,)), Sizes((4, 1), (8, 2)))

DIRECT = Shader(shaders.transpose.CONV_TRANSPOSE2D_DIRECT)
TILE = Shader(shaders.transpose.CONV_TRANSPOSE2D_TILE)


def _direct(call: Call, e: Epilogue, device: Device, local: int, only_empty: bool = False) -> Dispatch:
    h, w = axes(call)
    groups = linear_groups(math.prod(call.shape("y")), local, device)
    in_group = call.shape("w")[0] // call["groups"]
    iterations = in_group * (1 + h.most_taps * (1 + w.most_taps))
    return Dispatch(
        DIRECT,
        buffers(e, "w"),
        groups,
        (local, 1, 1),
        push(call, e),
        {**e.constants, **reaching(h, w), "ONLY_EMPTY": only_empty},
        loop_iterations=0 if only_empty else iterations,
    )


def _build_direct(call: Call, device: Device, params: Params) -> Program:
    e = Epilogue.of(call, device)
    return e.complete(Program((_direct(call, e, device, params["local"]),)), call.shape("y"), device)


def _tile_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t, w = _TILES.get(device.kind, _GPU_TILES), axes(call)[1]
    columns = t.columns.values(ceil_div(w.outputs, w.stride))
    return {
        "channels": t.channels.values(call.shape("w")[1]),
        "columns": tuple(px for px in columns if _span(w, px) <= MOST_SPAN),
        "local": local_sizes(device, *t.local),
    }


def _build_tile(call: Call, device: Device, params: Params) -> Program:
    h, w = axes(call)
    co, px, local = params["channels"], params["columns"], params["local"]
    c_in, out_group = call.shape("w")[:2]
    groups = call["groups"]
    in_group = c_in // groups
    pack = packing(call, co)
    units = ceil_div(h.outputs, h.stride) * ceil_div(ceil_div(w.outputs, w.stride), px)
    workgroups = call.shape("x")[0] * groups * ceil_div(out_group, co) * h.tap_step * ceil_div(units, local)
    sizes = {"CO": co, "PX": px}
    sizes |= {"TAP_STEP_H": h.tap_step, "TAP_STEP_W": w.tap_step, "STEP_H": h.step, "STEP_W": w.step}
    e = Epilogue.of(call, device)
    steps = [
        Dispatch(
            TILE,
            buffers(e, "packed"),
            linear_groups(workgroups * phases * local, local, device),
            (local, 1, 1),
            push(call, e),
            {**e.constants, **sizes, "TAPS": taps, "FIRST": first, "PHASES": phases},
            loop_iterations=in_group * (1 + h.most_taps),
        )
        for taps, first, phases in w.phases
    ]
    if h.gcd > 1 or w.gcd > 1:
        steps.append(_direct(call, e, device, local, only_empty=True))
    prepack, packed = (pack.dispatch("w", "packed", device),), {"packed": 4 * pack.size}
    made = Program(tuple(steps), prepack, packed, elements=PACKED_WEIGHTS)
    return e.complete(made, call.shape("y"), device)


def _span(axis: Axis, outputs: int) -> int:
    """Inputs from the first to the last that so many neighbouring outputs of a phase take."""
    return outputs + (axis.most_taps - 1) * axis.step


SHORT_SPAN = short_span("8 outputs of a phase from", lambda call: _span(axes(call)[1], 8))

TRANSPOSED_TILE = Route(
    "transposed_tile",
    _build_tile,
    (TILE, DIRECT, PACK_TILES, STRIDED_COPY),
    why="outputs one stride apart are a convolution of stride 1 by the taps that reach them: register tiles as in "
    "direct_tile, without tests per tap, scratch or a second pass over the products",
    must=(FLOATS, SHORT_SPAN, FEW_PHASES),
    params=_tile_params,
)
TRANSPOSED_DIRECT = Route(
    "transposed_direct",
    _build_direct,
    (DIRECT, STRIDED_COPY),
    why="one output per invocation, which sums exactly the taps that reach it: takes every call of floats",
    must=(FLOATS,),
    params=local_params,
)
ROUTES: tuple[Route, ...] = (
    TRANSPOSED_GEMM,
    TRANSPOSED_BLOCKS,
    TRANSPOSED_TILE,
    TRANSPOSED_PHASES,
    TRANSPOSED_DIRECT,
)
