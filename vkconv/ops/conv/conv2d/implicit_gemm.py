"""Implicit GEMM for conv2d: matrix tiles in shared memory, for GPUs."""

import dataclasses
import math
from collections.abc import Callable, Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import align, ceil_div
from vkconv.cost import compute_units
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.conv.common import buffers, is_matrix, push
from vkconv.ops.conv.tiles import FITS_SMALLEST, SLICED_TILES, TILES, split_k, tiles_by_rule
from vkconv.ops.core.base import defaults, first, over_workgroups
from vkconv.ops.core.requirements import FLOATS, ON_GPU
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.f16_accumulation import ACCUMULATION_DEPTH, F16, F32, Arithmetic, in_f16
from vkconv.ops.kernels.gemm import VEC4
from vkconv.ops.kernels.gemm_tile import Compilers, GemmTile
from vkconv.ops.kernels.prepack import PACK_TILES, Packing
from vkconv.ops.kernels.prologue import Prologue, with_prologue
from vkconv.ops.kernels.split_k import split_k_by_rule
from vkconv.ops.kernels.tile_costs import TileCosts, Work, least_time
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.route import Legal, Params, Route

GEMM_KERNEL = shaders.conv2d.CONV2D_GEMM
GEMM = Shader(GEMM_KERNEL)
_COSTS = Policy("conv2d.gemm_costs", TileCosts)
_ONE_SUM = Policy("conv2d.one_sum", float)
# Forms by what they cost: taps and channels as one sum, and four pixels of a 1x1 loaded at once.
AS_ONE_SUM, FOUR_PIXELS = "linear", "vec4"
_SLICED_K, _VEC4_COLUMNS = ("SLICED_K", ""), ("VEC4_COLUMNS", "")
_FORMS = tuple(GEMM.having(*forms) for forms in ((_SLICED_K,), (_VEC4_COLUMNS,), (_SLICED_K, _VEC4_COLUMNS)))


def _blocks(call: Call, tile: GemmTile) -> int:
    n, c_out, oh, ow = call.shape("y")
    groups: int = call["groups"]
    return groups * ceil_div(c_out // groups, tile.rows) * ceil_div(n * oh * ow, tile.columns)


def steps_of(call: Call, tile: GemmTile, linear: bool) -> int:
    """k-tiles that a workgroup multiplies."""
    c_in, kh, kw = call.shape("w")[1:]
    return ceil_div(c_in * kh * kw, tile.depth) if linear else kh * kw * ceil_div(c_in, tile.depth)


def _tiles(call: Call, compilers: Compilers) -> tuple[str, ...]:
    """The tiles that the device holds, first the one that keeps it busy."""
    groups: int = call["groups"]
    rows, depth = call.shape("y")[1] // groups, math.prod(call.shape("w")[1:])
    return tiles_by_rule(rows, depth, groups, lambda tile: _blocks(call, tile), compilers)


def params_by_rule(call: Call, device: Device, form: str = "") -> Legal:
    """The parameters of the kernel, or of a form of it that needs more registers (`vkconv.ops.kernels.compiled`)."""
    return _parameters(call, device, form, lambda tile: form, {})


def _parameters(
    call: Call,
    device: Device,
    form: str,
    costing: Callable[[str], str],
    more: Mapping[str, GemmTile],
    whole: bool = False,
) -> Legal:
    """The same by the form that each tile's costs are of, with ``more`` tiles that costs alone may choose; ``whole``:
    without split-K."""
    compilers = Compilers(GEMM_KERNEL, device, element_of(call), form)
    tiles = _tiles(call, compilers)
    name, costs = tiles[0], _COSTS.of(device)
    steps = steps_of(call, TILES[name], _linear(call, TILES[name].depth, device, costs))
    slices = (1,) if whole else split_k_by_rule(_blocks(call, TILES[name]), steps, device)
    kept = [one for one in tiles if compilers.keep(TILES[one])]
    fitting = [one for one, tile in more.items() if tile.fits(device)]

    def work(one: str) -> Work:
        linear = _linear(call, every_tile(one).depth, device, costs)
        return gemm_work(call, one, linear, costing(one))

    best, count = least_time(costs, (name, slices[0]), [*kept, *fitting], slices, work, device)
    linear = _linear(call, every_tile(best).depth, device, costs)
    return {
        "tile": first(best, (*tiles, *fitting)),
        "linear": (int(linear), int(not linear)),
        "split_k": first(count, slices),
    }


def every_tile(name: str) -> GemmTile:
    """The tile of that name, of one team or several."""
    return SLICED_TILES[name] if name in SLICED_TILES else TILES[name]


def _linear(call: Call, depth: int, device: Device, costs: TileCosts) -> bool:
    """Whether taps and channels are one sum, whose k-tiles cost more: where channels alone are padded to so many times
    as many or more. How much more is the cost of that form, or the policy's where it has none."""
    channels, most = call.shape("w")[1], costs.forms.get(AS_ONE_SUM)
    return align(channels, depth) >= (_ONE_SUM.of(device) if most is None else most) * channels


def gemm_work(call: Call, name: str, linear: bool, form: str = "") -> Work:
    """What the tile of that name makes of a convolution, by the kernel or a form of it."""
    tile = every_tile(name)
    window = AS_ONE_SUM if linear and not is_matrix(call) else ""
    blocks, k_tiles = _blocks(call, tile), steps_of(call, tile, linear)
    return Work(blocks, k_tiles, call.outputs["y"].size, form or window, tile.products, call.nbytes)


def _has_vec4(call: Call) -> bool:
    return math.prod(call.shape("x")[2:]) % VEC4 == 0


@dataclasses.dataclass(frozen=True, slots=True)
class Vec4Columns:
    """Whether four pixels of a 1x1 are loaded at once; ``most`` bounds a tile's workgroups for each compute unit."""

    loads: bool
    most: Mapping[str, float] = dataclasses.field(default_factory=dict)


_VEC4 = Policy("conv2d.vec4_columns", Vec4Columns)


def _loads_vec4(call: Call, device: Device, tile: str) -> bool:
    policy = _VEC4.of(device)
    if not policy.loads or not is_matrix(call) or not _has_vec4(call):
        return False
    return tile not in policy.most or _blocks(call, every_tile(tile)) <= policy.most[tile] * compute_units(device)


def _params(call: Call, device: Device, whole: bool = False) -> Legal:
    """Those of the rule, tiles that teams divide, and of a 1x1 whether four pixels are loaded at once where planes are
    whole vec4. Legal for other planes too: what is chosen for a call holds for the rest of it that a range leaves."""

    def form(tile: str) -> str:
        return FOUR_PIXELS if _loads_vec4(call, device, tile) else ""

    legal = _parameters(call, device, "", form, SLICED_TILES, whole)
    if not is_matrix(call):
        return legal
    return {**legal, "vec4_columns": first(int(_loads_vec4(call, device, legal["tile"][0])), (0, 1))}


def in_k_tiles(call: Call, rows: int, depth: int, linear: bool) -> Packing:
    """Weights for tiles of so many rows and k-tiles of so many products: [group][tile][taps][channels up to whole
    k-tiles][rows], or with ``linear`` all taps of all channels as one K."""
    c_in, kh, kw = call.shape("w")[1:]
    taps = kh * kw
    inner = Packing(
        call.shape("y")[1] // call["groups"], c_in * taps, rows, c_in * taps, 1, inner_step=depth, groups=call["groups"]
    )
    return inner if linear else dataclasses.replace(inner, inner=c_in, inner_stride=taps, outer=taps, outer_stride=1)


def packing(call: Call, params: Params) -> Packing:
    """How the weights lie."""
    tile = every_tile(params["tile"])
    return in_k_tiles(call, tile.rows, tile.depth, bool(params["linear"]))


def implicit_gemm(
    call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32, prologue: Prologue | None = None
) -> Program:
    """The program of a convolution by tiles in shared memory, of its input as the prologue leaves it."""
    tile, linear, slices = every_tile(params["tile"]), bool(params["linear"]), params["split_k"]
    kh, kw = call.shape("w")[2:]
    pack, epilogue = packing(call, params), Epilogue.of(call, device)
    shader = arithmetic.variant(GEMM)
    shader = with_prologue(shader) if prologue else shader
    shader = shader.having(_SLICED_K) if tile.teams > 1 else shader
    shader = shader.having(_VEC4_COLUMNS) if params.get("vec4_columns") and _has_vec4(call) else shader

    def product(e: Epilogue) -> Dispatch:
        return Dispatch(
            e.variant(shader),
            {**buffers(e, "packed"), **(prologue.buffers if prologue else {})},
            *over_workgroups(slices * _blocks(call, tile), tile.local, device),
            push(call, e),
            {
                **e.constants,
                **tile.constants,
                **arithmetic.constants(tile.depth),
                **(prologue.constants if prologue else {}),
                "SPLIT_K": slices,
                "LINEAR": linear,
                "KH": kh,
                "KW": kw,
                "Y_VEC4": math.prod(call.shape("y")[2:]) % VEC4 == 0,
            },
            arithmetic.shared_bytes(tile.shared_bytes),
            tile.loop_iterations(steps_of(call, tile, linear) + 1),
        )

    steps, scratch = split_k(call, epilogue, slices, device, product)
    return epilogue.complete(pack.program(device, *steps, scratch=scratch), call.shape("y"), device)


def _estimated_us(call: Call, device: Device, params: Params) -> float | None:
    costs, tile = _COSTS.of(device), params["tile"]
    if tile not in costs.costs:
        return None
    form = FOUR_PIXELS if params.get("vec4_columns") else ""
    work = gemm_work(call, tile, bool(params["linear"]), form)
    return costs.us(tile, work, params["split_k"], target_of(device))


IMPLICIT_GEMM = Route(
    "implicit_gemm",
    implicit_gemm,
    finishing(
        GEMM,
        *_FORMS,
        PACK_TILES,
    ),
    why="tiles of a matrix product in shared memory, the input gathered as they need it: each element that is loaded "
    "serves a tile of outputs, without an im2col buffer",
    must=(FLOATS, *FITS_SMALLEST),
    prefer=(ON_GPU,),
    params=_params,
    estimated_us=_estimated_us,
)
# Of many products at once, as they lie.
WHOLE_SUMS = dataclasses.replace(
    IMPLICIT_GEMM, params=lambda call, device: {**_params(call, device, True), "linear": (0,)}
)
IMPLICIT_GEMM_F16 = in_f16(
    dataclasses.replace(IMPLICIT_GEMM, params=params_by_rule),
    implicit_gemm,
    finishing(F16.variant(GEMM), PACK_TILES),
    lambda call: min(ACCUMULATION_DEPTH, math.prod(call.shape("w")[1:])),
)


def estimated_us(call: Call, device: Device, route: Route = IMPLICIT_GEMM) -> float | None:
    """What the costs of a device say of a call by the default parameters, in microseconds; None without costs."""
    return _estimated_us(call, device, defaults(route.params(call, device))) if _COSTS.of(device).costs else None
