"""Routes of conv2d in registers: tiles of output channels x columns, and one output per invocation."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import (
    GROUPED,
    GROUPS_1,
    KERNEL_1X1,
    LARGER_THAN_1X1,
    NO_PADDING,
    buffers,
    push,
    span,
)
from vkconv.ops.core.base import linear_groups, local_sizes
from vkconv.ops.core.requirements import FLOATS, narrow_groups
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.f16_accumulation import ACCUMULATION_DEPTH, F16, F32, Arithmetic, in_f16
from vkconv.ops.kernels.prepack import MOST_SPAN, PACK_TILES, PACKED_WEIGHTS, Packing, Sizes, short_span
from vkconv.ops.kernels.strided import local_params
from vkconv.program import Dispatch, Program, Word
from vkconv.route import Params, Route


@dataclasses.dataclass(frozen=True, slots=True)
class RegisterTiles:
    """Lanes of a workgroup, the default first, and the tiles of an invocation to choose from: output channels and
    columns (or pixels)."""

    local: tuple[int, ...]
    channels: Sizes
    columns: Sizes


# lavapipe (2 cores, Mesa 22.3), GFLOP/s by CPU time, channels x columns; larger tiles spill and compile in seconds:
#                              16x8   8x16   8x8    4x16   16x4
#   1x1 240->240, 6x160        14.4   12.2   11.1   8.0    <10
#   3x3 64->64, 56x56          14.4   15.3   12.6          8.9
_TILES: Mapping[str, RegisterTiles] = {
    "cpu": RegisterTiles((8, 16, 32), Sizes((16, 12, 8, 4)), Sizes((8, 4, 1), (16,)))
}
_GPU_TILES = RegisterTiles((64, 32, 128, 256), Sizes((8, 4), (16, 2)), Sizes((4, 1), (8, 2)))
# Groups have few channels: tiles of few channels that are long. lavapipe, ms, channels x columns:
#                              16x16  16x8   8x16   8x8    4x16   4x8    2x16
#   32 x 8->8, 28x28                         3.7    5.8    2.9
#   32 x 4->4, 56x56                                       6.3    7.1    4.6
#   4 x 16->16, 28x28          1.1    1.2    1.0    1.4
_GROUPED_TILES: Mapping[str, RegisterTiles] = {
    "cpu": RegisterTiles((8, 16, 32), Sizes((12, 8, 4, 2, 1), (16,)), Sizes((16, 8, 4, 1)))
}
_GPU_GROUPED_TILES = RegisterTiles((64, 32, 128, 256), Sizes((8, 4, 2, 1), (16,)), Sizes((4, 1), (8, 2)))

DIRECT = Shader(shaders.conv2d.CONV2D_DIRECT)
TILE = Shader(shaders.conv2d.CONV2D_TILE)
POINTWISE = Shader(shaders.conv2d.CONV2D_POINTWISE)


def _build_direct(call: Call, device: Device, params: Params) -> Program:
    local = params["local"]
    groups = linear_groups(math.prod(call.shape("y")), local, device)
    c_group, kh, kw = call.shape("w")[1:]
    e, iterations = Epilogue.of(call, device), c_group * (1 + kh * (1 + kw))
    step = Dispatch(
        e.variant(DIRECT),
        buffers(e, "w"),
        groups,
        (local, 1, 1),
        push(call, e),
        e.constants,
        loop_iterations=iterations,
    )
    return e.complete(Program((step,)), call.shape("y"), device)


def packing(call: Call, params: Params) -> Packing:
    """How the weights of the register tiles lie: [group][tile of channels][taps][channels of a tile]."""
    taps = math.prod(call.shape("w")[1:])
    rows = call.shape("y")[1] // call["groups"]
    return Packing(rows, taps, params["channels"], taps, 1, groups=call["groups"])


def _launched(
    call: Call,
    device: Device,
    params: Params,
    shader: Shader,
    units: int,
    sizes: Mapping[str, Word],
    turns: int,
    arithmetic: Arithmetic,
    products: int,
) -> Program:
    """A kernel over (image, group, tile of output channels, block of ``local`` units) that reads packed weights. Its
    loops make so many ``turns``, each of so many ``products`` of a sum."""
    n, c_out = call.shape("y")[:2]
    groups: int = call["groups"]
    local, co = params["local"], params["channels"]
    workgroups = n * groups * ceil_div(c_out // groups, co) * ceil_div(units, local)
    grid = linear_groups(workgroups * local, local, device)
    pack, e = packing(call, params), Epilogue.of(call, device)
    step = Dispatch(
        e.variant(arithmetic.variant(shader)),
        buffers(e, "packed"),
        grid,
        (local, 1, 1),
        push(call, e),
        {**e.constants, "CO": co, **sizes, **arithmetic.constants(products)},
        loop_iterations=turns,
    )
    made = Program((step,), (pack.dispatch("w", "packed", device),), {"packed": 4 * pack.size}, elements=PACKED_WEIGHTS)
    return e.complete(made, call.shape("y"), device)


def _tile_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = _TILES.get(device.kind, _GPU_TILES)
    if call["groups"] > 1:
        t = _GROUPED_TILES.get(device.kind, _GPU_GROUPED_TILES)
    columns = tuple(px for px in t.columns.values(call.shape("y")[3]) if span(call, 1, px) <= MOST_SPAN)
    channels = t.channels.values(call.shape("y")[1] // call["groups"])
    return {"channels": channels, "columns": columns, "local": local_sizes(device, *t.local)}


def _build_tile(call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program:
    oh, ow = call.shape("y")[2:]
    px, (c_in, kh, kw) = params["columns"], call.shape("w")[1:]
    sizes = {"PX": px, "KW": kw, "SW": call["stride"][1], "DW": call["dilation"][1]}
    units, turns = oh * ceil_div(ow, px), c_in * (1 + kh)
    return _launched(call, device, params, TILE, units, sizes, turns, arithmetic, kw)


def _pointwise_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = _TILES.get(device.kind, _GPU_TILES)
    pixels = math.prod(call.shape("y")[2:])
    columns = t.columns.values(ceil_div(pixels, t.local[0]))
    channels = t.channels.values(call.shape("y")[1] // call["groups"])
    return {"channels": channels, "columns": columns, "local": local_sizes(device, *t.local)}


def _build_pointwise(call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program:
    px = params["columns"]
    units = ceil_div(math.prod(call.shape("y")[2:]), px)
    return _launched(call, device, params, POINTWISE, units, {"PX": px}, call.shape("w")[1], arithmetic, 1)


SHORT_SPAN = short_span("8 outputs of a row from", lambda call: span(call, 1, 8))
# implicit_gemm makes at least 32 output channels of a group at a time. H200, us, 32 groups of 8->8 over 28x28: 32
# images grouped 80, implicit_gemm 296; one image 13.8 and 17.5.
NARROW_GROUPS = narrow_groups(16, lambda call: call.shape("y")[1] // int(call["groups"]))

POINTWISE_ROUTE = Route(
    "pointwise",
    _build_pointwise,
    finishing(POINTWISE, PACK_TILES),
    why="1x1 without padding is a GEMM over pixels, one for each group: no window, no bounds tests, packed weights",
    must=(FLOATS, KERNEL_1X1, NO_PADDING),
    params=_pointwise_params,
)

GROUPED_TILE = Route(
    "grouped",
    _build_tile,
    finishing(TILE, PACK_TILES),
    why="the register tiles of direct_tile within each group: a tile as wide as the group's output channels wastes "
    "nothing on those of its neighbours",
    must=(FLOATS, GROUPED, SHORT_SPAN),
    prefer=(LARGER_THAN_1X1, NARROW_GROUPS),
    params=_tile_params,
)
DIRECT_TILE = Route(
    "direct_tile",
    _build_tile,
    finishing(TILE, PACK_TILES),
    why="a register tile of output channels x columns reuses each input across channels and taps and each "
    "weight across columns, without shared memory or scratch",
    must=(FLOATS, GROUPS_1, SHORT_SPAN),
    params=_tile_params,
)
DIRECT_ROUTE = Route(
    "direct",
    _build_direct,
    finishing(DIRECT),
    why="one output per invocation by definition: takes every call of floats, groups included",
    must=(FLOATS,),
    params=local_params,
)


def _row_depth(call: Call) -> int:
    """Products that direct_tile_f16 sums in f16: whole rows of taps."""
    kw = call.shape("w")[3]
    return min(kw * F16.turns(kw), math.prod(call.shape("w")[1:]))


DIRECT_TILE_F16 = in_f16(
    DIRECT_TILE,
    _build_tile,
    finishing(F16.variant(TILE), PACK_TILES),
    _row_depth,
    whole=("channels", 4),
    drops=(GROUPS_1,),
    prefer=(GROUPED, LARGER_THAN_1X1, NARROW_GROUPS),
)
POINTWISE_F16 = in_f16(
    POINTWISE_ROUTE,
    _build_pointwise,
    finishing(F16.variant(POINTWISE), PACK_TILES),
    lambda call: min(ACCUMULATION_DEPTH, call.shape("w")[1]),
    whole=("channels", 4),
)
