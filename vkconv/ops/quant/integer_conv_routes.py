"""The routes of convolutions of 8-bit integers.

All of them sum products of signed bytes in 32 bits, from a table of what each output channel needs (zero point, sum of
weights, factor, bias), which is made once. Bytes are written by words: where the planes are not whole words, or the
rows of a route that walks along them, sums go to scratch and a second launch makes bytes of them.
"""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import local_sizes, over_invocations
from vkconv.ops.core.requirements import INT32, lane_by_lane, shuffles
from vkconv.ops.core.workgroups import alone_by_default
from vkconv.ops.kernels.gemm_tile import Compilers
from vkconv.ops.kernels.prepack import MOST_SPAN, InvocationTiles, short_span
from vkconv.ops.kernels.strided import local_params
from vkconv.ops.quant.integer import TILES, is_signed, result_of, routes_by_tiles, tiles_by_rule
from vkconv.ops.quant.integer_conv_problem import CHANNELS, PACK, Geometry, channel_table, packed_weights
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route
from vkconv.shaders import quant

DIRECT, TILE, GEMM, FINISH = (
    Shader(kernel, DType.U32)
    for kernel in (quant.INTEGER_DIRECT, quant.INTEGER_TILE, quant.INTEGER_GEMM, quant.INTEGER_FINISH)
)
TILE_VEC4 = TILE.having(("VEC4", ""))
TILE_SHUFFLE = TILE_VEC4.having(("SHUFFLE", ""))


def _program(
    call: Call,
    device: Device,
    shader: Shader,
    invocations: int,
    local: int,
    constants: Mapping[str, Word],
    by_words: bool,
    packed: tuple[Dispatch, int] | None = None,
    shared_bytes: int = 0,
    loop_iterations: int = 0,
) -> Program:
    """The launch of ``shader``, which sums, and what it needs. ``packed`` makes its weights; ``by_words`` says that it
    can write bytes."""
    g, result, count = Geometry.of(call), result_of(call), math.prod(call.shape("y"))
    sums = bool(result) and not by_words
    made = {"channels": channel_table(call, device), **({"packed": packed} if packed else {})}
    prepack, sizes = tuple(launch for launch, _ in made.values()), {name: nbytes for name, (_, nbytes) in made.items()}
    step = Dispatch(
        shader,
        {
            "x": "x",
            "weight": "packed" if packed else "w",
            "x_zero_word": "x_zero" if call.has("x_zero") else None,
            "channels": "channels",
            "y": "sums" if sums else "y",
        },
        *over_invocations(invocations, local, device),
        g._asdict(),
        {
            "X_SIGNED": is_signed(call, "x"),
            "HAS_X_ZERO": call.has("x_zero"),
            "RESULT": 0 if sums else result,
            **constants,
        },
        shared_bytes,
        loop_iterations,
    )
    if not sums:
        return Program((step,), prepack, sizes)
    finish = Dispatch(
        FINISH,
        {"x": "sums", "channels": "channels", "y": "y"},
        *over_invocations(ceil_div(count, 4), alone_by_default(device), device),
        {"n": g.n, "c_out": g.c_out, "oh": g.oh, "ow": g.ow},
        {"RESULT": result},
    )
    return Program((step, finish), prepack, sizes, {"sums": 4 * count})


def _build_direct(call: Call, device: Device, params: Params) -> Program:
    g, each = Geometry.of(call), 4 if result_of(call) else 1
    return _program(
        call,
        device,
        DIRECT,
        ceil_div(math.prod(call.shape("y")), each),
        params["local"],
        {"W_SIGNED": is_signed(call, "w")},
        by_words=True,
        loop_iterations=each * g.in_group * (1 + g.kh * (1 + g.kw)),
    )


_TILES = Policy("quant.tiles", InvocationTiles)
_MOST_TERMS = 514  # MOST_TERMS of integer_tile.comp


def _tile_params(call: Call, device: Device) -> Legal:
    t, g = _TILES.of(device), Geometry.of(call)
    columns = tuple(px for px in t.columns.values(g.ow, device) if g.span(px) <= MOST_SPAN)
    return {"channels": t.rows.values(g.out_group, device), "columns": columns, "local": local_sizes(device, *t.local)}


def _build_tile(call: Call, device: Device, params: Params) -> Program:
    g = Geometry.of(call)
    co, px, local = params["channels"], params["columns"], params["local"]
    tiles = g.oh * ceil_div(g.ow, px)
    workgroups = g.n * g.groups * ceil_div(g.out_group, co) * ceil_div(tiles, local)
    is_fixed = g.w % 4 == 0 and px * g.sw % 4 == 0
    shader = TILE
    if co == 16:
        # A row of taps is what one load brings; sharing it by shuffles pays where loads go lane by lane.
        many = lane_by_lane(device) and shuffles(device) and 1 < g.kw <= device.subgroup_size
        shader = TILE_SHUFFLE if many and local % device.subgroup_size == 0 else TILE_VEC4
    constants = {
        **{"CO": co, "PX": px, "KW": g.kw, "SW": g.sw, "DW": g.dw},
        "OFFSET": -g.pl % 4 if is_fixed else -1,
        "PAST_ROWS": any(call["padding"][1::2]),
        "LONG": g.terms > _MOST_TERMS,
    }
    return _program(
        call,
        device,
        shader,
        workgroups * local,
        local,
        constants,
        by_words=g.ow % 4 == 0,
        packed=packed_weights(call, device, co, quads=False),
        loop_iterations=g.in_group * (1 + g.kh),
    )


def _gemm_params(call: Call, compilers: Compilers) -> Legal:
    g = Geometry.of(call)
    return {"tile": tiles_by_rule(g.out_group, g.blocks, compilers)}


def _build_gemm(call: Call, device: Device, params: Params, shader: Shader) -> Program:
    g, tile = Geometry.of(call), TILES[params["tile"]]
    return _program(
        call,
        device,
        shader,
        g.blocks(tile) * tile.local,
        tile.local,
        tile.constants,
        by_words=g.oh * g.ow % 4 == 0,
        packed=packed_weights(call, device, tile.rows, quads=True),
        shared_bytes=tile.shared_bytes,
        loop_iterations=tile.iterations(g.k_words),
    )


SHORT_SPAN = short_span("4 outputs of a row from", lambda call: Geometry.of(call).span(4))


@dataclasses.dataclass(frozen=True, slots=True)
class Wide:
    """Output and input channels of a group from which on tiles in shared memory are taken."""

    out_channels: int
    in_channels: int


_WIDE = Policy("quant.wide_groups", Wide)


def _is_wide(g: Geometry, least: Wide) -> bool:
    return g.out_group >= least.out_channels and g.in_group >= least.in_channels


def _wide(g: Geometry, least: Wide) -> str:
    return f"{g.out_group} out of {least.out_channels}, {g.in_group} in of {least.in_channels}"


WIDE_GROUPS = Requirement(
    "as many output channels of a group, and input channels, as fill tiles in shared memory",
    lambda call, device: _is_wide(Geometry.of(call), _WIDE.of(device)),
    lambda call, device: _wide(Geometry.of(call), _WIDE.of(device)),
)

ROUTES: tuple[Route, ...] = (
    *routes_by_tiles(
        "gemm",
        _build_gemm,
        _gemm_params,
        (GEMM, PACK, CHANNELS, FINISH),
        "tiles of a matrix product in shared memory, four channels to a word",
        prefer=(WIDE_GROUPS,),
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
