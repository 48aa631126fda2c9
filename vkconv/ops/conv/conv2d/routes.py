"""The routes of conv2d: how each lays out its work, what it needs, and tile sizes as data."""

import dataclasses
import itertools
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import (
    FEW_TAPS,
    GROUPED,
    GROUPS_1,
    KERNEL_1X1,
    LARGER_THAN_1X1,
    NO_PADDING,
    ONE_CHANNEL_PER_GROUP,
    buffers,
    push,
    span,
)
from vkconv.ops.conv.conv2d.implicit_gemm import IMPLICIT_GEMM
from vkconv.ops.conv.conv2d.subgroup import SUBGROUP_TILE
from vkconv.ops.core.base import linear_groups, local_sizes
from vkconv.ops.core.requirements import FLOATS, narrow_groups
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import MOST_SPAN, PACK_TILES, PACKED_WEIGHTS, Packing, Sizes, short_span
from vkconv.ops.kernels.strided import local_params
from vkconv.program import Dispatch, Program, Word
from vkconv.route import Params, Requirement, Route


@dataclasses.dataclass(frozen=True, slots=True)
class ConvTiles:
    """Lanes of a workgroup, the default first, and tile sizes to choose from: output channels and columns (or
    pixels) of one invocation, and the rows and columns of the depthwise route."""

    local: tuple[int, ...]
    channels: Sizes
    columns: Sizes
    depthwise_rows: Sizes
    depthwise_columns: Sizes


# lavapipe (2 cores, Mesa 22.3; GFLOP/s by CPU time), channels x columns: 1x1 240->240 over 6x160: 16x8 14.4, 8x16 12.2,
# 8x8 11.1, 4x16 8.0, 16x4 under 10; 3x3 64->64 over 56x56: 8x16 15.3, 16x8 14.4, 8x8 12.6, 16x4 8.9. Depthwise rows x
# columns: 5x5 over 240x6x160: 3x8 8.7, 4x8 7.6, 2x8 6.7, 1x8 4.8. Larger tiles spill and compile in seconds.
_TILES: Mapping[str, ConvTiles] = {
    "cpu": ConvTiles(
        (8, 16, 32), Sizes((16, 12, 8, 4)), Sizes((8, 4, 1), (16,)), Sizes((3, 2, 1), (4,)), Sizes((8, 4, 1), (16,))
    )
}
# H200, us, depthwise rows x columns with 64 lanes, 3x3 over 32x144x56x56: 3x2 53.9, 2x2 62.5, 1x4 69.6, 3x1 78.5; over
# 1x144x56x56: 2x2 6.3, 3x2 6.5, 1x4 7.1.
_GPU_TILES = ConvTiles(
    (64, 32, 128, 256), Sizes((8, 4), (16, 2)), Sizes((4, 1), (8, 2)), Sizes((3, 1), (2,)), Sizes((2, 1), (4, 8))
)


# Groups have few channels: narrow tiles that are long. lavapipe, ms, channels x columns, 3x3: 32 groups of 8->8 over
# 28x28 8x16 3.7, 4x16 2.9, 8x8 5.8; 32 of 4->4 over 56x56 4x16 6.3, 2x16 4.6, 4x8 7.1; 4 of 16->16 over 28x28 8x16 1.0,
# 16x16 1.1, 16x8 1.2, 8x8 1.4.
_GROUPED_TILES: Mapping[str, ConvTiles] = {
    "cpu": dataclasses.replace(_TILES["cpu"], channels=Sizes((12, 8, 4, 2, 1), (16,)), columns=Sizes((16, 8, 4, 1)))
}
_GPU_GROUPED_TILES = dataclasses.replace(_GPU_TILES, channels=Sizes((8, 4, 2, 1), (16,)))


def tiles(device: Device) -> ConvTiles:
    """Tile sizes for a kind of device."""
    return _TILES.get(device.kind, _GPU_TILES)


DIRECT = Shader(shaders.conv2d.CONV2D_DIRECT)
TILE = Shader(shaders.conv2d.CONV2D_TILE)
POINTWISE = Shader(shaders.conv2d.CONV2D_POINTWISE)
DEPTHWISE = Shader(shaders.conv2d.CONV2D_DEPTHWISE)


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


def _packed(
    call: Call,
    device: Device,
    params: Params,
    shader: Shader,
    units: int,
    sizes: Mapping[str, Word],
    iterations: int,
) -> Program:
    """A kernel over (image, group, tile of output channels, block of ``local`` units) that reads packed weights."""
    n, c_out = call.shape("y")[:2]
    groups: int = call["groups"]
    local, co = params["local"], params["channels"]
    workgroups = n * groups * ceil_div(c_out // groups, co) * ceil_div(units, local)
    grid = linear_groups(workgroups * local, local, device)
    pack, e = packing(call, params), Epilogue.of(call, device)
    step = Dispatch(
        e.variant(shader),
        buffers(e, "packed"),
        grid,
        (local, 1, 1),
        push(call, e),
        {**e.constants, "CO": co, **sizes},
        loop_iterations=iterations,
    )
    made = Program((step,), (pack.dispatch("w", "packed", device),), {"packed": 4 * pack.size}, elements=PACKED_WEIGHTS)
    return e.complete(made, call.shape("y"), device)


def _tile_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = tiles(device) if call["groups"] == 1 else _GROUPED_TILES.get(device.kind, _GPU_GROUPED_TILES)
    columns = tuple(px for px in t.columns.values(call.shape("y")[3]) if span(call, 1, px) <= MOST_SPAN)
    channels = t.channels.values(call.shape("y")[1] // call["groups"])
    return {"channels": channels, "columns": columns, "local": local_sizes(device, *t.local)}


def _build_tile(call: Call, device: Device, params: Params) -> Program:
    oh, ow = call.shape("y")[2:]
    px = params["columns"]
    sizes = {"PX": px, "KW": call.shape("w")[3], "SW": call["stride"][1], "DW": call["dilation"][1]}
    c_in, kh = call.shape("w")[1:3]
    return _packed(call, device, params, TILE, oh * ceil_div(ow, px), sizes, c_in * (1 + kh))


def _pointwise_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = tiles(device)
    pixels = math.prod(call.shape("y")[2:])
    columns = t.columns.values(ceil_div(pixels, t.local[0]))
    channels = t.channels.values(call.shape("y")[1] // call["groups"])
    return {"channels": channels, "columns": columns, "local": local_sizes(device, *t.local)}


def _build_pointwise(call: Call, device: Device, params: Params) -> Program:
    px = params["columns"]
    units = ceil_div(math.prod(call.shape("y")[2:]), px)
    return _packed(call, device, params, POINTWISE, units, {"PX": px}, call.shape("w")[1])


def _depthwise_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = tiles(device)
    oh, ow = call.shape("y")[2:]
    rows = tuple(ry for ry in t.depthwise_rows.values(oh) if span(call, 0, ry) <= _MOST_REACH)
    columns = tuple(px for px in t.depthwise_columns.values(ow) if span(call, 1, px) <= MOST_SPAN)

    def cost(block: tuple[int, int]) -> int:
        """Of a plane, in workgroups: small planes leave lanes without a block where blocks are large."""
        ry, px = block
        return ceil_div(ceil_div(oh, ry) * ceil_div(ow, px), t.local[0]) * (ry * px + 4)

    by_rule = itertools.product(
        [ry for ry in rows if ry in t.depthwise_rows.rule], [px for px in columns if px in t.depthwise_columns.rule]
    )
    ry, px = min(by_rule, key=cost)
    return {
        "rows": (ry, *(r for r in rows if r != ry)),
        "columns": (px, *(c for c in columns if c != px)),
        "local": local_sizes(device, *t.local),
    }


def _build_depthwise(call: Call, device: Device, params: Params) -> Program:
    n, c_out, oh, ow = call.shape("y")
    ry, px, local = params["rows"], params["columns"], params["local"]
    units = ceil_div(oh, ry) * ceil_div(ow, px)
    groups = linear_groups(n * c_out * ceil_div(units, local) * local, local, device)
    (kh, kw), (sh, sw), (dh, dw) = call.shape("w")[2:], call["stride"], call["dilation"]
    sizes = {"RY": ry, "PX": px, "KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw}
    e = Epilogue.of(call, device)
    step = Dispatch(
        e.variant(DEPTHWISE), buffers(e, "w"), groups, (local, 1, 1), push(call, e), {**e.constants, **sizes}
    )
    return e.complete(Program((step,)), call.shape("y"), device)


# As `MOST_SPAN`, of rows.
_MOST_REACH = 20
SHORT_SPAN = short_span("8 outputs of a row from", lambda call: span(call, 1, 8))
SHORT_REACH = Requirement(
    f"3 outputs of a column from at most {_MOST_REACH} input rows",
    lambda call, device: span(call, 0, 3) <= _MOST_REACH,
    lambda call, device: f"{span(call, 0, 3)} rows",
)

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

ROUTES: tuple[Route, ...] = (
    Route(
        "depthwise",
        _build_depthwise,
        finishing(DEPTHWISE),
        why="with one input channel per group there is nothing to sum over channels: a block of outputs of one "
        "channel reuses the rows it loads across taps",
        must=(FLOATS, ONE_CHANNEL_PER_GROUP, SHORT_SPAN, SHORT_REACH, FEW_TAPS),
        prefer=(GROUPED,),
        params=_depthwise_params,
    ),
    SUBGROUP_TILE,
    Route(
        "grouped",
        _build_tile,
        finishing(TILE, PACK_TILES),
        why="the register tiles of direct_tile within each group: a tile as wide as the group's output channels wastes "
        "nothing on those of its neighbours",
        must=(FLOATS, GROUPED, SHORT_SPAN),
        prefer=(LARGER_THAN_1X1, NARROW_GROUPS),
        params=_tile_params,
    ),
    IMPLICIT_GEMM,
    POINTWISE_ROUTE,
    Route(
        "direct_tile",
        _build_tile,
        finishing(TILE, PACK_TILES),
        why="a register tile of output channels x columns reuses each input across channels and taps and each "
        "weight across columns, without shared memory or scratch",
        must=(FLOATS, GROUPS_1, SHORT_SPAN),
        params=_tile_params,
    ),
    Route(
        "direct",
        _build_direct,
        finishing(DIRECT),
        why="one output per invocation by definition: takes every call of floats, groups included",
        must=(FLOATS,),
        params=local_params,
    ),
)
