"""The gradient by 3x3 and 5x5 weights by Winograd's minimal filtering: tiles of x and of dy are transformed, the
products of all tiles are summed as a batch of matrix products, and the sums are transformed to taps.

dw = G^T [sum over tiles of (B^T x B) * (A dy A^T)] G: the forward algorithm, transposed (Lavin and Gray 2015).
"""

import dataclasses
from collections.abc import Sequence

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import align, bytes_str, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad import cost
from vkconv.ops.conv.wgrad.cost import SLICES, Timed, cheapest, most_in_scratch, tiles_by_cost
from vkconv.ops.conv.wgrad.kernels import Gemm, Output, evenly, launch
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import TILES
from vkconv.ops.core.base import defaults, first, over_invocations
from vkconv.ops.kernels import compiled
from vkconv.ops.kernels.tile_costs import TileCosts, Work
from vkconv.ops.kernels.winograd import (
    TRANSFORMS,
    WinogradTiles,
    by_channel,
    counted_outputs,
    inputs,
    local_size,
    outputs_of,
)
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.route import Legal, Params

GRADIENTS, TAPS = Shader(shaders.kernels.WINOGRAD_OUTPUT_GRADIENT), Shader(shaders.kernels.WINOGRAD_WEIGHT_GRADIENT)
# The rounding error of six and eight points grows with the transforms, not with the sum: a short one may not have so
# much. Largest error over the allowed one, lavapipe, 48 channels to 64: 3x3 with m = 4 0.7 of 64 pixels and 0.4 of 128,
# 5x5 with m = 2 and 4 1.5 and 1.2 of 64, 1.0 and 0.7 of 144, 0.6 and 0.5 of 256, 0.5 and 0.3 of 392.
LEAST_PIXELS, LEAST_PIXELS_5X5 = 64, 256
# What transformed operands have in a row: tiles, so that products transpose them on their way to shared memory, or
# channels, which transforms by way of shared memory. Only tiles of products in shared memory take the latter.
IN_A_ROW = TILES_IN_A_ROW, CHANNELS_IN_A_ROW = "tiles", "channels"


@dataclasses.dataclass(frozen=True, slots=True)
class Least:
    """The least channels of a group and pixels of dy, and channels where what is transformed is beyond the cache; taps
    on a side of the kernels that it is taken for; scratch of a pass, MiB, the default first. ``staged``: taps go to dw
    by way of shared memory. ``by_channel``: taps on a side of kernels whose transformed operands have channels in a row
    by default, not tiles."""

    taps: tuple[int, ...]
    channels: int
    pixels: int
    uncached_channels: int
    cache_mib: int
    scratch_mib: tuple[int, ...]
    staged: bool = False
    by_channel: tuple[int, ...] = ()


LEAST = Policy("wgrad.winograd", Least)
# Of products whose slices are added up as they become taps, which costs them no launch.
_COSTS: Timed = Policy("wgrad.winograd_costs", TileCosts)


def _tiles(p: WeightGradient, m: int) -> WinogradTiles:
    return WinogradTiles.of(m, p.kernel[2], p.n, p.out[1:])


def _outputs(call: Call, device: Device) -> tuple[int, ...]:
    """Of a tile, on a side, the default first: the largest that may be and whose sums stay in registers as they become
    taps; of others those of which the scratch holds a slice of each pass."""
    p = WeightGradient.of(call)

    def us(m: int) -> float | None:
        return _estimated_us(call, device, m) if _most_slices(p, device, m) else None

    by = outputs_of(p.kernel[2], p.pixels >= LEAST_PIXELS, device, us)
    kept = (m for m in by if m <= by[0] and _parts(_tiles(p, m), p.element, device))
    default = next(kept, min(by))
    return first(default, (m for m in by if _most_slices(p, device, m)))


def counted_bytes(p: WeightGradient) -> int:
    """What the tiles of x and dy take once they are transformed, those that thresholds count."""
    tiles = _tiles(p, counted_outputs(p.kernel[2]))
    return 4 * tiles.points * tiles.total * (p.c_in + p.c_out)


def products(p: WeightGradient, points: int, count: int, by_channel: bool = False) -> WeightGradient:
    """The products of each group at so many points, (c_out x count) by (count x c_in), as the gradient of a 1x1
    convolution with that many times the groups."""
    ones, zeros, line = (1, 1, 1), (0, 0, 0), (1, 1, count)
    channels = points * p.c_in, line, points * p.c_out, line
    return WeightGradient(1, *channels, points * p.groups, ones, ones, ones, zeros, by_channel=by_channel)


def params(call: Call, device: Device) -> Legal:
    """Outputs on a side of a tile, scratch of a pass, the tile of the products and their split-K slices, and what the
    products' operands have in a row."""
    p, outputs = WeightGradient.of(call), _outputs(call, device)
    by_channel = p.kernel[2] in LEAST.of(device).by_channel
    return {
        "outputs": outputs,
        **_of_outputs(p, device, outputs),
        "layout": first(CHANNELS_IN_A_ROW if by_channel else TILES_IN_A_ROW, IN_A_ROW),
    }


def _scratch_sizes(p: WeightGradient, device: Device, m: int) -> tuple[int, ...]:
    return _tiles(p, m).scratch_sizes(p.c_in + p.c_out, LEAST.of(device).scratch_mib)


def _step(p: WeightGradient, device: Device, m: int) -> int:
    """Tiles of a pass of the default size."""
    return _tiles(p, m).chunk(p.c_in + p.c_out, _scratch_sizes(p, device, m)[0])


def _most_slices(p: WeightGradient, device: Device, m: int) -> int:
    """Slices of each pass that the scratch holds: they lie behind those of the others."""
    tiles, step = _tiles(p, m), _step(p, device, m)
    inner = products(p, tiles.points, step)
    return most_in_scratch(inner, device) // max(ceil_div(tiles.total, step), 1)


def _of_outputs(p: WeightGradient, device: Device, outputs: Sequence[int]) -> Legal:
    """Scratch of a pass, and tile and slices of the products of the first of the tiles; slices that all may make."""
    inner = products(p, _tiles(p, outputs[0]).points, _step(p, device, outputs[0]))
    most = max(1, min(_most_slices(p, device, m) for m in outputs))
    return {
        "scratch_mib": _scratch_sizes(p, device, outputs[0]),
        "tile": tiles_by_cost(inner, device, timed=_COSTS),
        "split_k": first(min(cheapest(inner, device, timed=_COSTS)[1], most), (s for s in SLICES if s <= most)),
    }


def follow(call: Call, device: Device, given: Params) -> Params:
    """Of tiles of other outputs their own defaults, and of products of operands with channels in a row, a tile that
    takes them."""
    outputs = _outputs(call, device)
    m, by_channel = given.get("outputs", outputs[0]), given.get("layout") == CHANNELS_IN_A_ROW
    other = m in outputs[1:]
    if not other and not by_channel:
        return {}
    p, m = WeightGradient.of(call), m if other else outputs[0]
    legal = _of_outputs(p, device, first(m, outputs))
    followed = defaults(legal) if other else {}
    return {**followed, "tile": _gemm_of(p, m, legal["tile"], device)} if by_channel else followed


def _gemm_of(p: WeightGradient, m: int, names: Sequence[str], device: Device) -> str:
    """The first tile, or that of the least cost of those that take channels in a row."""
    tiles = _tiles(p, m)
    inner = products(p, tiles.points, tiles.total)
    gemms = [name for name in names if isinstance(TILES[name], Gemm)]
    return names[0] if names[0] in gemms else min(gemms, key=lambda name: TILES[name].cost(inner, device))


def _is_by_channel(params: Params) -> bool:
    return params["layout"] == CHANNELS_IN_A_ROW and isinstance(TILES[params["tile"]], Gemm)


def product_work(call: Call, name: str, outputs: int | None = None) -> Work:
    """What a tile makes of the products of all tiles, of so many outputs on a side (None: of those that thresholds
    count)."""
    p = WeightGradient.of(call)
    tiles = _tiles(p, outputs or counted_outputs(p.kernel[2]))
    return cost.gemm_work(products(p, tiles.points, tiles.total), name)


def transforms_us(call: Call, device: Device, outputs: int | None = None) -> float:
    """Microseconds of what is not products, by tiles of so many outputs on a side (None: of those that thresholds
    count): x, dy and these once transformed, the sums and dw."""
    p = WeightGradient.of(call)
    tiles = _tiles(p, outputs or counted_outputs(p.kernel[2]))
    sums = p.size + tiles.points * p.c_out * p.channels
    moved = call.specs["x"].size + call.specs["dy"].size + tiles.points * tiles.total * (p.c_in + p.c_out) + sums
    return TRANSFORMS.of(device).us(4 * moved, device)


def estimated_us(call: Call, device: Device, params: Params) -> float | None:
    """What its cost model says of transforms and products, microseconds; None where transforms were not timed."""
    p, outputs = WeightGradient.of(call), params["outputs"]
    tiles = _tiles(p, outputs)
    inner = products(p, tiles.points, tiles.total)
    product_us = cost.estimated_us(params["tile"], inner, device, params["split_k"], _COSTS)
    return product_us + transforms_us(call, device, outputs) if product_us and TRANSFORMS.of(device).timed_on else None


def _estimated_us(call: Call, device: Device, m: int) -> float | None:
    """The same by tiles of so many outputs on a side, and the defaults that follow from them."""
    followed = defaults(_of_outputs(WeightGradient.of(call), device, (m,)))
    return estimated_us(call, device, {"outputs": m, **followed})


def _parts(tiles: WinogradTiles, element: str, device: Device) -> int | None:
    """Parts that the last launch adds the sums up in: the fewest that the GPU's compiler is not known to spill; None
    where it spills all of them."""
    by = (1, 2)
    kept = (n for n in by if compiled.fits(TAPS.kernel, {**tiles.constants, "PARTS": n}, element, device) is not False)
    return next(kept, None)


def build(call: Call, device: Device, params: Params) -> Program:
    """The launches: of each pass inputs, gradients and products, and after all passes the taps."""
    p = WeightGradient.of(call)
    tiles, tile, slices = _tiles(p, params["outputs"]), TILES[params["tile"]], params["split_k"]
    step, channels_in_a_row = tiles.chunk(p.c_in + p.c_out, params["scratch_mib"]), _is_by_channel(params)
    buffers = {"x": "inputs", "dy": "gradients", "add": None, "result": "slices"}
    transforms = _by_channel if channels_in_a_row else _by_tile
    steps: list[Dispatch] = []
    total = 0
    for start in range(0, tiles.total, step):
        count = min(step, tiles.total - start)
        inner = products(p, tiles.points, count, channels_in_a_row)
        split = evenly(inner, min(slices, tile.k_tiles(inner)))
        output = Output(to_scratch=True, first=total)
        steps += (*transforms(p, tiles, start, count, device), launch(tile, inner, split, output, buffers, device))
        total += split.per_box
    inputs_size, gradients_size = _in_scratch(p) if channels_in_a_row else (p.c_in, p.c_out)
    scratch = {"inputs": inputs_size * step, "gradients": gradients_size * step, "slices": p.c_out * p.channels * total}
    return Program(
        (*steps, _taps(call, tiles, total, device)),
        scratch={name: 4 * tiles.points * size for name, size in scratch.items() if total},
    )


_Transforms = tuple[Dispatch, Dispatch]  # of x and of dy


def _in_scratch(p: WeightGradient) -> tuple[int, int]:
    """Elements of a point of a tile of x and of dy, the channels of each group to whole vec4."""
    return p.groups * align(p.channels, 4), p.groups * align(p.rows, 4)


def _by_channel(p: WeightGradient, tiles: WinogradTiles, start: int, count: int, device: Device) -> _Transforms:
    x, dy = (p.n, p.c_in, *p.extent[1:]), (p.n, p.c_out, *p.out[1:])
    some = p.groups, start, count, device
    return (
        by_channel(tiles, ("x", "inputs"), x, p.before[1:], *some),
        by_channel(tiles, ("dy", "gradients"), dy, (0, 0), *some, gradient=True),
    )


def _by_tile(p: WeightGradient, tiles: WinogradTiles, start: int, count: int, device: Device) -> _Transforms:
    return (
        inputs(tiles, (p.n, p.c_in, *p.extent[1:]), p.before[1:], start, count, device),
        _gradients(p, tiles, start, count, device),
    )


def _gradients(p: WeightGradient, tiles: WinogradTiles, start: int, count: int, device: Device) -> Dispatch:
    local = local_size(device)
    return Dispatch(
        GRADIENTS,
        {"dy": "dy", "u": "gradients"},
        *over_invocations(p.c_out * count, local, device),
        push={"c_out": p.c_out, "oh": p.out[1], "ow": p.out[2], **tiles.push, "first": start, "count": count},
        constants=tiles.constants,
    )


def _staged(device: Device) -> int:
    """Pairs of channels whose taps a workgroup has in shared memory; 0: each goes to dw at once."""
    return local_size(device) if LEAST.of(device).staged else 0


def _taps(call: Call, tiles: WinogradTiles, slices: int, device: Device) -> Dispatch:
    """Slices of the products of all passes to dw."""
    p, local, has_add = WeightGradient.of(call), local_size(device), call.has("add")
    pairs, parts = p.c_out * p.channels, _parts(tiles, p.element, device) or 1
    staged = _staged(device)
    return Dispatch(
        TAPS,
        {"slices": "slices" if slices else None, "add": "add" if has_add else None, "dw": "dw"},
        *over_invocations(pairs, local, device),
        push={"pairs": pairs, "slice_count": slices, "scale": float(call["scale"]), "beta": float(call["beta"])},
        constants={**tiles.constants, "PARTS": parts, "HAS_ADD": has_add, "STAGED": staged},
        shared_bytes=4 * (staged * p.kernel[2] ** 2 + 1),
        loop_iterations=parts * slices + p.kernel[2] ** 2,
    )


def _default(call: Call, device: Device) -> Program:
    return build(call, device, defaults(params(call, device)))


def scratch_elements(call: Call, device: Device) -> int:
    """Of the largest buffer of scratch, where channels are in a row, which takes as much or more."""
    given = {"layout": CHANNELS_IN_A_ROW}
    made = build(call, device, {**defaults(params(call, device)), **given, **follow(call, device, given)})
    return max(made.scratch.values(), default=0) // 4


def slices_bytes(call: Call, device: Device) -> int:
    """Bytes of the split-K slices of all passes."""
    return _default(call, device).scratch.get("slices", 0)


def note(call: Call, device: Device, params: Params) -> str:
    """What `explain` says of the choice."""
    tiles = _tiles(WeightGradient.of(call), params["outputs"])
    scratch = sum(build(call, device, params).scratch.values())
    side = params["outputs"]
    in_a_row = CHANNELS_IN_A_ROW if _is_by_channel(params) else TILES_IN_A_ROW
    return (
        f"{tiles.total} tiles of {side}x{side}, {params['split_k']} slices of each pass; {bytes_str(scratch)} scratch; "
        f"{params['tile']}, {in_a_row} in a row"
    )
