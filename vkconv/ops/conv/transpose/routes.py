"""The routes of conv_transpose2d: how each lays out its work, what it needs, and tile sizes as data."""

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
from vkconv.ops.core.base import local_sizes, over_invocations, over_workgroups
from vkconv.ops.core.requirements import FLOATS, TILES_KEPT
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.prepack import MOST_SPAN, PACK_TILES, InvocationTiles, short_span
from vkconv.ops.kernels.strided import STRIDED_COPY, local_params
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Route

_TILES = Policy("transpose.tiles", InvocationTiles)

DIRECT = Shader(shaders.transpose.CONV_TRANSPOSE2D_DIRECT)
TILE = Shader(shaders.transpose.CONV_TRANSPOSE2D_TILE)


def _direct(call: Call, e: Epilogue, device: Device, local: int, only_empty: bool = False) -> Dispatch:
    h, w = axes(call)
    in_group = call.shape("w")[0] // call["groups"]
    iterations = in_group * (1 + h.most_taps * (1 + w.most_taps))
    return Dispatch(
        DIRECT,
        buffers(e, "w"),
        *over_invocations(math.prod(call.shape("y")), local, device),
        push(call, e),
        {**e.constants, **reaching(h, w), "ONLY_EMPTY": only_empty},
        loop_iterations=0 if only_empty else iterations,
    )


def _build_direct(call: Call, device: Device, params: Params) -> Program:
    e = Epilogue.of(call, device)
    return e.complete(Program((_direct(call, e, device, params["local"]),)), call.shape("y"), device)


def _tile_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t, w = _TILES.of(device), axes(call)[1]
    columns = t.columns.values(ceil_div(w.outputs, w.stride), device)
    return {
        "channels": t.rows.values(call.shape("w")[1], device),
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
            *over_workgroups(workgroups * phases, local, device),
            push(call, e),
            {**e.constants, **sizes, "TAPS": taps, "FIRST": first, "PHASES": phases},
            loop_iterations=in_group * (1 + h.most_taps),
        )
        for taps, first, phases in w.phases
    ]
    if h.gcd > 1 or w.gcd > 1:
        steps.append(_direct(call, e, device, local, only_empty=True))
    return e.complete(pack.program(device, *steps), call.shape("y"), device)


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
    prefer=(TILES_KEPT,),
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
