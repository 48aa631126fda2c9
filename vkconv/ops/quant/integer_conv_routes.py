"""The routes of convolutions of 8-bit integers: their programs, tile sizes as data, and when each is right.

All of them sum products of signed bytes in 32 bits, from a table of what each output channel needs (zero point, sum of
weights, factor, bias), which is made once. Bytes are written by words: where the planes are no whole words, or the rows
of a route that walks along them, sums go to scratch and become bytes in a second step.
"""

import dataclasses
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import linear_groups, local_sizes
from vkconv.ops.core.requirements import INT32, ON_GPU, lane_by_lane, shuffles
from vkconv.ops.kernels.prepack import MOST_SPAN, Sizes, short_span
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.ops.kernels.windows import spanned
from vkconv.ops.quant.requirements import (
    DOT_PRODUCT,
    FITS_SMALLEST,
    TILES,
    IntegerTile,
    tile_blocks,
    tiles_by_rule,
)
from vkconv.program import Dispatch, Program, Word
from vkconv.route import Params, Requirement, Route

DIRECT, TILE = Shader(shaders.quant.INTEGER_DIRECT, DType.U32), Shader(shaders.quant.INTEGER_TILE, DType.U32)
TILE_VEC4 = TILE.having(("VEC4", ""))
TILE_SHUFFLE = TILE_VEC4.having(("SHUFFLE", ""))
GEMM = Shader(shaders.quant.INTEGER_GEMM, DType.U32)
GEMM_DOT = GEMM.having(("DOT", ""))
CHANNELS, PACK, FINISH = (
    Shader(kernel, DType.U32)
    for kernel in (shaders.quant.INTEGER_CHANNELS, shaders.quant.INTEGER_PACK, shaders.quant.INTEGER_FINISH)
)


_SIZES = ("n", "c_in", "h", "w", "c_out", "oh", "ow", "groups", "kh", "kw")


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution as the shaders see it: one by one, with stride 1 and without padding it is a single row."""

    n: int
    c_in: int
    h: int
    w: int
    c_out: int
    oh: int
    ow: int
    groups: int
    kh: int
    kw: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]

    @property
    def in_group(self) -> int:
        return self.c_in // self.groups

    @property
    def out_group(self) -> int:
        return self.c_out // self.groups

    @property
    def terms(self) -> int:
        return self.in_group * self.kh * self.kw

    @property
    def push(self) -> dict[str, int]:
        """Its push constants."""
        (sh, sw), (dh, dw), (pt, pl, *_) = self.stride, self.dilation, self.padding
        windows = {"sh": sh, "sw": sw, "dh": dh, "dw": dw, "pt": pt, "pl": pl}
        return {name: getattr(self, name) for name in _SIZES} | windows

    def span(self, outputs: int) -> int:
        """Inputs of a row from the first to the last that so many neighbouring outputs touch."""
        return spanned(outputs, self.stride[1], self.kw, self.dilation[1])


def geometry(call: Call) -> Geometry:
    n, c_in, h, w = call.shape("x")
    c_out, _, kh, kw = call.shape("w")
    oh, ow = call.shape("y")[2:]
    if (kh, kw) == (1, 1) and call["stride"] == (1, 1) and not any(call["padding"]):
        h, w, oh, ow = 1, h * w, 1, oh * ow
    top, left, bottom, right = call["padding"]
    return Geometry(
        *(n, c_in, h, w, c_out, oh, ow, call["groups"], kh, kw),
        stride=call["stride"],
        dilation=call["dilation"],
        padding=(top, left, bottom, right),
    )


def dtype_of(call: Call, operand: str) -> DType:
    spec = call.operands[operand]
    assert spec is not None
    return spec.dtype


def _result(call: Call) -> int:
    """RESULT of integer_conv.glsl."""
    dtype = call.outputs["y"].dtype
    return {DType.I32: 0, DType.U8: 1, DType.I8: 2}[dtype]


def _constants(call: Call, result: int) -> dict[str, Word]:
    return {"X_SIGNED": dtype_of(call, "x") is DType.I8, "HAS_X_ZERO": call.has("x_zero"), "RESULT": result}


def _buffers(call: Call, weight: str, target: str) -> dict[str, str | None]:
    zero = "x_zero" if call.has("x_zero") else None
    return {"x": "x", "weight": weight, "x_zero_word": zero, "channels": "channels", "y": target}


def _channels(call: Call, device: Device) -> tuple[Dispatch, int]:
    """The launch that makes the table of the output channels, and its bytes."""
    c_out = call.shape("y")[1]
    scaled = "y_scale" in call.operands
    bound = {name: name if call.has(name) else None for name in ("w_zero", "x_scale", "w_scale", "y_scale", "y_zero")}
    zero, scale = call.operands.get("w_zero"), call.operands.get("w_scale")
    terms = math.prod(call.shape("w")[1:])
    constants = {
        "W_SIGNED": dtype_of(call, "w") is DType.I8,
        "Y_SIGNED": call.outputs["y"].dtype is DType.I8,
        "HAS_W_ZERO": zero is not None,
        "HAS_BIAS": call.has("b"),
        "HAS_SCALES": scaled,
        "ZERO_PER_CHANNEL": zero is not None and zero.size == c_out > 1,
        "SCALE_PER_CHANNEL": scale is not None and scale.size == c_out > 1,
    }
    buffers = {"weight": "w", "bias": "b" if call.has("b") else None, **bound}
    push, iterations = {"c_out": c_out, "taps": terms}, max(terms, c_out) + 27
    step = dispatch_each(CHANNELS, c_out + 1, device, {"local": 32}, push, constants, buffers, iterations)
    return step, 16 * (c_out + 1)


def _program(
    call: Call,
    device: Device,
    step: Dispatch,
    packs: tuple[Dispatch, int] | None,
    by_words: bool,
) -> Program:
    """A program around the ``step`` that sums: ``packs`` makes ``packed``, ``by_words`` says that it writes bytes."""
    table, table_bytes = _channels(call, device)
    prepack = (table,) if packs is None else (table, packs[0])
    packed = {"channels": table_bytes} | ({} if packs is None else {"packed": packs[1]})
    result = _result(call)
    if by_words or not result:
        return Program((step,), prepack, packed)
    count = math.prod(call.shape("y"))
    buffers = {"x": "sums", "weight": "packed" if packs else "w", "x_zero_word": None}
    push = geometry(call).push
    finish = dispatch_each(FINISH, ceil_div(count, 4), device, {"local": 64}, push, {"RESULT": result}, buffers)
    return Program((step, finish), prepack, packed, {"sums": 4 * count})


def _pack(call: Call, device: Device, tile: int, quads: bool) -> tuple[Dispatch, int]:
    """The launch that packs the weights for tiles of so many rows, and the bytes of the result."""
    g = geometry(call)
    rows = align(g.out_group, tile) * g.groups
    words = rows * g.kh * g.kw * ceil_div(g.in_group, 4) if quads else ceil_div(rows * g.terms, 4)
    push = {"words": words, "rows": g.out_group, "in_group": g.in_group, "taps": g.kh * g.kw}
    constants = {"W_SIGNED": dtype_of(call, "w") is DType.I8, "QUADS": quads, "TILE": tile}
    step = dispatch_each(PACK, words, device, {"local": 64}, push, constants, {"weight": "w"})
    return step, align(4 * words, 16)


def _build_direct(call: Call, device: Device, params: Params) -> Program:
    g, result = geometry(call), _result(call)
    each = 4 if result else 1
    constants = {**_constants(call, result), "W_SIGNED": dtype_of(call, "w") is DType.I8}
    step = dispatch_each(
        DIRECT,
        ceil_div(math.prod(call.shape("y")), each),
        device,
        params,
        g.push,
        constants,
        _buffers(call, "w", "y"),
        each * g.in_group * (1 + g.kh * (1 + g.kw)),
    )
    return _program(call, device, step, None, True)


@dataclasses.dataclass(frozen=True, slots=True)
class RegisterTiles:
    """Lanes of a workgroup, the default first, and the tiles of one invocation to choose from."""

    local: tuple[int, ...]
    channels: Sizes
    columns: Sizes


_REGISTER_TILES: Mapping[str, RegisterTiles] = {
    "cpu": RegisterTiles((8, 16, 32), Sizes((16, 8, 4, 1)), Sizes((8, 4), (16,)))
}
_GPU_TILES = RegisterTiles((64, 32, 128), Sizes((8, 4, 1), (16,)), Sizes((4,), (8,)))


def _tile_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t, g = _REGISTER_TILES.get(device.kind, _GPU_TILES), geometry(call)
    columns = tuple(px for px in t.columns.values(g.ow) if g.span(px) <= MOST_SPAN)
    return {"channels": t.channels.values(g.out_group), "columns": columns, "local": local_sizes(device, *t.local)}


def _build_tile(call: Call, device: Device, params: Params) -> Program:
    g = geometry(call)
    co, px, local = params["channels"], params["columns"], params["local"]
    by_words = g.ow % 4 == 0
    units = g.oh * ceil_div(g.ow, px)
    workgroups = g.n * g.groups * ceil_div(g.out_group, co) * ceil_div(units, local)
    _, left, _, right = g.padding
    is_fixed = g.w % 4 == 0 and px * g.stride[1] % 4 == 0
    past_rows = left > 0 or right > 0
    shader = TILE
    if co == 16:
        # A row of taps is what one load brings; sharing it by shuffles pays where loads go lane by lane.
        many = lane_by_lane(device) and shuffles(device) and 1 < g.kw <= device.subgroup_size
        shader = TILE_SHUFFLE if many and local % device.subgroup_size == 0 else TILE_VEC4
    result = _result(call) if by_words else 0
    constants = {
        **_constants(call, result),
        **{"CO": co, "PX": px, "KW": g.kw, "SW": g.stride[1], "DW": g.dilation[1]},
        "OFFSET": -left % 4 if is_fixed else -1,
        "PAST_ROWS": past_rows,
        "LONG": g.terms > _MOST_TERMS,
    }
    buffers = _buffers(call, "packed", "y" if by_words or not _result(call) else "sums")
    iterations = g.in_group * (1 + g.kh)
    step = dispatch_each(shader, workgroups * local, device, params, g.push, constants, buffers, iterations)
    return _program(call, device, step, _pack(call, device, co, False), by_words)


_MOST_TERMS = 514  # MOST_TERMS of integer_tile.comp


def _blocks(call: Call, tile: IntegerTile) -> int:
    g = geometry(call)
    return g.groups * tile_blocks(tile, g.out_group, g.n * g.oh * g.ow)


def _gemm_params(call: Call, device: Device) -> Mapping[str, tuple[str, ...]]:
    return {"tile": tiles_by_rule(geometry(call).out_group, lambda tile: _blocks(call, tile), device)}


def _build_gemm(call: Call, device: Device, params: Params, shader: Shader) -> Program:
    g, tile = geometry(call), TILES[params["tile"]]
    by_words = g.oh * g.ow % 4 == 0
    steps = g.kh * g.kw * ceil_div(g.in_group, 4)
    step = Dispatch(
        shader,
        _buffers(call, "packed", "y" if by_words or not _result(call) else "sums"),
        linear_groups(_blocks(call, tile), 1, device),
        (tile.local, 1, 1),
        g.push,
        {**_constants(call, _result(call) if by_words else 0), **tile.constants},
        tile.shared_bytes,
        ceil_div(steps, tile.depth) * (1 + 3 * tile.depth),
    )
    return _program(call, device, step, _pack(call, device, tile.rows, True), by_words)


SHORT_SPAN = short_span("4 outputs of a row from", lambda call: geometry(call).span(4))
WIDE_GROUPS = Requirement(
    "at least 16 output channels in a group and 4 input channels",
    lambda call, device: geometry(call).out_group >= 16 and geometry(call).in_group >= 4,
    lambda call, device: f"{geometry(call).out_group} and {geometry(call).in_group}",
)
_GEMM_WHY = "tiles of a matrix product in shared memory, four channels to a word"

ROUTES: tuple[Route, ...] = (
    Route(
        "dot",
        lambda call, device, params: _build_gemm(call, device, params, GEMM_DOT),
        (GEMM_DOT, PACK, CHANNELS, FINISH),
        f"{_GEMM_WHY}, which one instruction multiplies and sums",
        must=(INT32, DOT_PRODUCT, *FITS_SMALLEST),
        prefer=(ON_GPU, WIDE_GROUPS),
        params=_gemm_params,
        source="SPV_KHR_integer_dot_product",
    ),
    Route(
        "gemm",
        lambda call, device, params: _build_gemm(call, device, params, GEMM),
        (GEMM, PACK, CHANNELS, FINISH),
        _GEMM_WHY,
        must=(INT32, *FITS_SMALLEST),
        prefer=(ON_GPU, WIDE_GROUPS),
        params=_gemm_params,
    ),
    Route(
        "tile",
        _build_tile,
        (TILE, TILE_VEC4, TILE_SHUFFLE, PACK, CHANNELS, FINISH),
        "a register tile of output channels x columns: a load brings four inputs or sixteen weights, products are of "
        "floats, and exact",
        must=(INT32, SHORT_SPAN),
        params=_tile_params,
    ),
    Route(
        "direct",
        _build_direct,
        (DIRECT, CHANNELS),
        "by definition, one sum or one word of bytes per invocation: takes every call",
        must=(INT32,),
        params=local_params,
    ),
)
