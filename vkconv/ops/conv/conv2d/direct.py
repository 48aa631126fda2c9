"""Routes of conv2d in registers: tiles of output channels x columns, and one output per invocation."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv import common
from vkconv.ops.conv.conv2d.in_registers import NARROW_GROUPS
from vkconv.ops.core.base import local_sizes, over_invocations, over_workgroups
from vkconv.ops.core.requirements import FLOATS, TILES_KEPT
from vkconv.ops.kernels import compiled
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.f16_accumulation import ACCUMULATION_DEPTH, F16, F32, Arithmetic, in_f16
from vkconv.ops.kernels.prepack import MOST_SPAN, PACK_TILES, InvocationTiles, Packing, Sizes, short_span
from vkconv.ops.kernels.strided import local_params
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

_TILES = Policy("conv2d.tiles", InvocationTiles)
_GROUPED_TILES = Policy("conv2d.grouped_tiles", InvocationTiles)

DIRECT = Shader(shaders.conv2d.CONV2D_DIRECT)
TILE = Shader(shaders.conv2d.CONV2D_TILE)
POINTWISE = Shader(shaders.conv2d.CONV2D_POINTWISE)
POINTWISE_VEC4 = Shader(shaders.conv2d.CONV2D_POINTWISE_VEC4)


@dataclasses.dataclass(frozen=True, slots=True)
class Vec4Tiles:
    """What pointwise_vec4 may take: lanes of a workgroup, the default first, output channels of an invocation, and vec4
    of pixels. It is taken for at most so many channels in and out, and at least so many pixels of all images."""

    local: tuple[int, ...]
    rows: Sizes
    columns: Sizes
    most_c_in: int = 0
    most_c_out: int = 0
    least_pixels: int = 0


_VEC4 = Policy("conv2d.pointwise_vec4", Vec4Tiles)


def _build_direct(call: Call, device: Device, params: Params) -> Program:
    c_group, kh, kw = call.shape("w")[1:]
    e, iterations = Epilogue.of(call, device), c_group * (1 + kh * (1 + kw))
    step = Dispatch(
        e.variant(DIRECT),
        common.buffers(e, "w"),
        *over_invocations(math.prod(call.shape("y")), params["local"], device),
        common.push(call, e),
        e.constants,
        loop_iterations=iterations,
    )
    return e.complete(Program((step,)), call.shape("y"), device)


def packing(call: Call, params: Params) -> Packing:
    """How the weights of tiles in registers lie: [group][tile of channels][taps][channels of a tile]."""
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
    pack, e = packing(call, params), Epilogue.of(call, device)
    step = Dispatch(
        e.variant(arithmetic.variant(shader)),
        common.buffers(e, "packed"),
        *over_workgroups(workgroups, local, device),
        common.push(call, e),
        {**e.constants, "CO": co, **sizes, **arithmetic.constants(products)},
        loop_iterations=turns,
    )
    return e.complete(pack.program(device, step), call.shape("y"), device)


def _tile_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = _TILES.of(device)
    if call["groups"] > 1:
        t = _GROUPED_TILES.of(device)
    columns = tuple(px for px in t.columns.values(call.shape("y")[3], device) if common.span(call, 1, px) <= MOST_SPAN)
    channels = t.rows.values(call.shape("y")[1] // call["groups"], device)

    def kept(px: int) -> bool:
        sizes = {"CO": channels[0], "PX": px, "KW": call.shape("w")[3]}
        return compiled.fits(TILE.kernel, sizes, element_of(call), device) is not False

    columns = tuple(sorted(columns, key=lambda px: not kept(px)))
    return {"channels": channels, "columns": columns, "local": local_sizes(device, *t.local)}


def _build_tile(call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program:
    oh, ow = call.shape("y")[2:]
    px, (c_in, kh, kw) = params["columns"], call.shape("w")[1:]
    sizes = {"PX": px, "KW": kw, "SW": call["stride"][1], "DW": call["dilation"][1]}
    units, turns = oh * ceil_div(ow, px), c_in * (1 + kh)
    return _launched(call, device, params, TILE, units, sizes, turns, arithmetic, kw)


def _pointwise_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = _TILES.of(device)
    pixels = math.prod(call.shape("y")[2:])
    columns = t.columns.values(ceil_div(pixels, t.local[0]), device)
    channels = t.rows.values(call.shape("y")[1] // call["groups"], device)
    return {"channels": channels, "columns": columns, "local": local_sizes(device, *t.local)}


def _build_pointwise(call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program:
    px = params["columns"]
    units = ceil_div(math.prod(call.shape("y")[2:]), px)
    return _launched(call, device, params, POINTWISE, units, {"PX": px}, call.shape("w")[1], arithmetic, 1)


def _vec4_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = _VEC4.of(device)
    quads = t.columns.values(ceil_div(math.prod(call.shape("y")[2:]), 4 * t.local[0]), device)
    channels = t.rows.values(call.shape("y")[1] // call["groups"], device)
    return {"channels": channels, "quads": quads, "local": local_sizes(device, *t.local)}


def _build_vec4(call: Call, device: Device, params: Params) -> Program:
    quads = params["quads"]
    units = ceil_div(math.prod(call.shape("y")[2:]), 4 * quads)
    sizes = {"QUADS": quads}
    return _launched(call, device, params, POINTWISE_VEC4, units, sizes, call.shape("w")[1], F32, 1)


def _is_thin(call: Call, device: Device) -> bool:
    (c_in, c_out, pixels), policy = _thickness(call), _VEC4.of(device)
    return c_in <= policy.most_c_in and c_out <= policy.most_c_out and pixels >= policy.least_pixels


def _thickness(call: Call) -> tuple[int, int, int]:
    """Channels in and out, and pixels of all images."""
    n, c_out, oh, ow = call.shape("y")
    return call.shape("x")[1], c_out, n * oh * ow


def _thin_said(call: Call, device: Device) -> str:
    policy = _VEC4.of(device)
    return "{} to {} channels, {} pixels; at most {} to {}, at least {} ({})".format(
        *_thickness(call), policy.most_c_in, policy.most_c_out, policy.least_pixels, _VEC4.said(device)
    )


THIN = Requirement(
    "channels as few, and pixels as many, as this device takes by vectors of pixels", _is_thin, _thin_said
)
WHOLE_VEC4 = Requirement.of(
    "planes of whole vec4", lambda call: math.prod(call.shape("y")[2:]), lambda n: n % 4 == 0, "{} pixels".format
)
SHORT_SPAN = short_span("8 outputs of a row from", lambda call: common.span(call, 1, 8))


def _rows_and_pixels(call: Call) -> tuple[int, int]:
    """Output channels of a group, and pixels of an image."""
    return call.shape("y")[1] // int(call["groups"]), math.prod(call.shape("y")[2:])


def _fills_tiles(call: Call, device: Device) -> bool:
    """Whether outputs of a group are more than half of the first tile of a workgroup."""
    (rows, pixels), tile = _rows_and_pixels(call), {k: v[0] for k, v in _pointwise_params(call, device).items()}
    width = tile["local"] * tile["columns"]
    return 2 * min(rows, tile["channels"]) * min(pixels, width) > tile["channels"] * width


FILLS_TILES = Requirement(
    "a GPU, a CPU driver that unrolls loops over tiles, or outputs of a group that fill more than half of a tile",
    lambda call, device: TILES_KEPT.test(call, device) or _fills_tiles(call, device),
    lambda call, device: "{} channels of {} pixels".format(*_rows_and_pixels(call)),
)

POINTWISE_ROUTE = Route(
    "pointwise",
    _build_pointwise,
    finishing(POINTWISE, PACK_TILES),
    why="1x1 without padding is a GEMM over pixels, one for each group: no window, no bounds tests, packed weights",
    must=(FLOATS, common.KERNEL_1X1, common.NO_PADDING),
    prefer=(FILLS_TILES,),
    params=_pointwise_params,
)

POINTWISE_VEC4_ROUTE = Route(
    "pointwise_vec4",
    _build_vec4,
    finishing(POINTWISE_VEC4, PACK_TILES),
    why="a 1x1 of few input channels is bound by its loads and stores: four pixels at a time, and four weights, take "
    "the fewest of these",
    must=(FLOATS, common.KERNEL_1X1, common.NO_PADDING, common.STRIDE_1, WHOLE_VEC4),
    prefer=(THIN,),
    params=_vec4_params,
)

GROUPED_TILE = Route(
    "grouped",
    _build_tile,
    finishing(TILE, PACK_TILES),
    why="the register tiles of direct_tile within each group: a tile as wide as the group's output channels wastes "
    "nothing on those of its neighbours",
    must=(FLOATS, common.GROUPED, SHORT_SPAN),
    prefer=(common.LARGER_THAN_1X1, NARROW_GROUPS, TILES_KEPT),
    params=_tile_params,
)
DIRECT_TILE = Route(
    "direct_tile",
    _build_tile,
    finishing(TILE, PACK_TILES),
    why="a register tile of output channels x columns reuses each input across channels and taps and each "
    "weight across columns, without shared memory or scratch",
    must=(FLOATS, common.GROUPS_1, SHORT_SPAN),
    prefer=(TILES_KEPT,),
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
    drops=(common.GROUPS_1,),
    prefer=(common.GROUPED, common.LARGER_THAN_1X1, NARROW_GROUPS),
)
POINTWISE_F16 = in_f16(
    POINTWISE_ROUTE,
    _build_pointwise,
    finishing(F16.variant(POINTWISE), PACK_TILES),
    lambda call: min(ACCUMULATION_DEPTH, call.shape("w")[1]),
    whole=("channels", 4),
)
