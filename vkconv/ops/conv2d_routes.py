"""The routes of conv2d: how each lays out its work, what it needs, and tile sizes as data."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.core import align, ceil_div, shape_str
from vkconv.device import Device
from vkconv.ops.activation import activation
from vkconv.ops.base import linear_groups
from vkconv.ops.needs import F32
from vkconv.ops.packing import PACK_TILES, pack_tiles
from vkconv.route import Call, Need, Route
from vkconv.shader import Bind, Dispatch, Program, Shader, Word, read, write


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """Outputs of one invocation: ``co`` channels x ``px`` columns or pixels (depthwise: ``ry`` rows x ``px``)."""

    local: int
    tile_co: int
    tile_px: int
    pointwise_co: int
    pointwise_px: int
    depthwise_ry: int
    depthwise_px: int


_GPU_TILES = Tiles(local=64, tile_co=8, tile_px=4, pointwise_co=8, pointwise_px=4, depthwise_ry=1, depthwise_px=4)
_TILES: Mapping[str, Tiles] = {
    "cpu": Tiles(local=8, tile_co=8, tile_px=8, pointwise_co=8, pointwise_px=16, depthwise_ry=2, depthwise_px=8),
}


def tiles(device: Device) -> Tiles:
    """Tile sizes for a kind of device."""
    return _TILES.get(device.kind, _GPU_TILES)


def _push(call: Call) -> tuple[Word, ...]:
    t, left, _, _ = call["padding"]
    n, c_in, h, w = call.shape("x")
    _, c_out, oh, ow = call.shape("y")
    shapes = (n, c_in, h, w, c_out, oh, ow, call["groups"], *call.shape("w")[2:])
    return (*shapes, *call["stride"], *call["dilation"], t, left, float(call["act_a"]), float(call["act_b"]))


def _binds(call: Call, weight: str) -> tuple[Bind, ...]:
    # A call without bias binds the weight there: HAS_BIAS is false and the shader never reads it.
    return (*read("x", weight, "b" if call.has("b") else weight), *write("y"))


def _spec(call: Call) -> tuple[Word, ...]:
    return activation(call["act"]).id, call.has("b")


DIRECT = Shader("conv2d_direct")
TILE = Shader("conv2d_tile")
POINTWISE = Shader("conv2d_pointwise")
DEPTHWISE = Shader("conv2d_depthwise")


def _build_direct(call: Call, device: Device) -> Program:
    local = 64
    groups = linear_groups(math.prod(call.shape("y")), local, device)
    return Program((Dispatch(DIRECT, _binds(call, "w"), groups, (local, 1, 1), _push(call), _spec(call)),))


def _packed(call: Call, device: Device, shader: Shader, co: int, units: int, spec: tuple[Word, ...]) -> Program:
    """A kernel over (image, c_out tile, block of ``local`` units) that reads weights packed by ``co`` channels."""
    n, c_out = call.shape("y")[:2]
    taps = math.prod(call.shape("w")[1:])
    local = tiles(device).local
    workgroups = n * ceil_div(c_out, co) * ceil_div(units, local)
    groups = linear_groups(workgroups * local, local, device)
    step = Dispatch(shader, _binds(call, "packed"), groups, (local, 1, 1), _push(call), (*_spec(call), co, *spec))
    pack = pack_tiles("w", "packed", c_out, taps, (taps, 1), co, device)
    return Program((step,), (pack,), {"packed": 4 * align(c_out, co) * taps})


def _build_tile(call: Call, device: Device) -> Program:
    t = tiles(device)
    _, _, oh, ow = call.shape("y")
    sizes = (call.shape("w")[3], call["stride"][1], call["dilation"][1])
    return _packed(call, device, TILE, t.tile_co, oh * ceil_div(ow, t.tile_px), (t.tile_px, *sizes))


def _build_pointwise(call: Call, device: Device) -> Program:
    t = tiles(device)
    pixels = math.prod(call.shape("y")[2:])
    return _packed(call, device, POINTWISE, t.pointwise_co, ceil_div(pixels, t.pointwise_px), (t.pointwise_px,))


def _build_depthwise(call: Call, device: Device) -> Program:
    t = tiles(device)
    n, c_out, oh, ow = call.shape("y")
    units = ceil_div(oh, t.depthwise_ry) * ceil_div(ow, t.depthwise_px)
    groups = linear_groups(n * c_out * ceil_div(units, t.local) * t.local, t.local, device)
    sizes = (t.depthwise_ry, t.depthwise_px, *call.shape("w")[2:], *call["stride"], *call["dilation"])
    spec = (*_spec(call), *sizes)
    return Program((Dispatch(DEPTHWISE, _binds(call, "w"), groups, (t.local, 1, 1), _push(call), spec),))


def _span(call: Call, device: Device) -> int:
    return 7 * int(call["stride"][1]) + int(call["dilation"][1]) * (call.shape("w")[3] - 1) + 1


def _reach(call: Call, device: Device) -> int:
    return int(call["stride"][0]) + int(call["dilation"][0]) * (call.shape("w")[2] - 1) + 1


GROUPS_1 = Need("groups 1", lambda call, device: call["groups"] == 1, lambda call, device: f"{call['groups']} groups")
ONE_CHANNEL_PER_GROUP = Need(
    "one input channel per group",
    lambda call, device: call.shape("w")[1] == 1,
    lambda call, device: f"{call.shape('w')[1]} channels per group",
)
GROUPED = Need(
    "more than one group", lambda call, device: call["groups"] > 1, lambda call, device: f"{call['groups']} groups"
)
KERNEL_1X1 = Need(
    "a 1x1 kernel",
    lambda call, device: call.shape("w")[2:] == (1, 1),
    lambda call, device: shape_str(call.shape("w")[2:]),
)
NO_PADDING = Need(
    "no padding", lambda call, device: not any(call["padding"]), lambda call, device: shape_str(call["padding"])
)
# An unrolled row of inputs lies in registers.
SHORT_SPAN = Need(
    "at most 40 input columns for 8 output columns",
    lambda call, device: _span(call, device) <= 40,
    lambda call, device: f"{_span(call, device)} columns",
)
SHORT_REACH = Need(
    "at most 16 input rows for 2 output rows",
    lambda call, device: _reach(call, device) <= 16,
    lambda call, device: f"{_reach(call, device)} rows",
)

ROUTES: tuple[Route, ...] = (
    Route(
        "depthwise",
        _build_depthwise,
        (DEPTHWISE,),
        why="with one input channel per group there is nothing to sum over channels: a block of outputs of one "
        "channel reuses the rows it loads across taps",
        must=(F32, ONE_CHANNEL_PER_GROUP, SHORT_SPAN, SHORT_REACH),
        prefer=(GROUPED,),
    ),
    Route(
        "pointwise",
        _build_pointwise,
        (POINTWISE, PACK_TILES),
        why="1x1 without padding is a GEMM over pixels: no window, no bounds tests, packed weights",
        must=(F32, GROUPS_1, KERNEL_1X1, NO_PADDING),
    ),
    Route(
        "direct_tile",
        _build_tile,
        (TILE, PACK_TILES),
        why="a register tile of output channels x columns reuses each input across channels and taps and each "
        "weight across columns, without shared memory or scratch",
        must=(F32, GROUPS_1, SHORT_SPAN),
    ),
    Route(
        "direct",
        _build_direct,
        (DIRECT,),
        why="one output per invocation by definition: takes every legal call, groups included",
        must=(F32,),
    ),
)
