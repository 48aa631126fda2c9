"""The gradient by 3x3 weights by Winograd's minimal filtering: tiles of x and of dy are transformed, the products of
all tiles are summed as a batch of matrix products, and the sums are transformed to taps.

dw = G^T [sum over tiles of (B^T x B) * (A dy A^T)] G: the forward algorithm, transposed (Lavin and Gray 2015).
"""

from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad.cost import SLICES, cheapest, most_in_scratch, tiles_by_cost
from vkconv.ops.conv.wgrad.kernels import Output, evenly, launch
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import TILES
from vkconv.ops.core.base import first, linear_groups
from vkconv.ops.kernels.winograd import WinogradTiles, inputs, local_size
from vkconv.program import Dispatch, Program
from vkconv.route import Legal, Params

GRADIENTS, TAPS = Shader(shaders.kernels.WINOGRAD_OUTPUT_GRADIENT), Shader(shaders.kernels.WINOGRAD_WEIGHT_GRADIENT)
# The rounding error of m = 4 grows with the transforms, not with the sum: a short one may not have so much.
_LEAST_PIXELS = 64
# Scratch of one pass over some of the tiles, MiB, the default first: passes cost slices. H200, us, 32x64x56x56 to 64:
# one pass of 110 MiB 160, two 190, four 255.
_SCRATCH_MIB: Mapping[str, tuple[int, ...]] = {"discrete": (256, 64)}
_OTHER_SCRATCH_MIB = (64, 16)


def _tiles(p: WeightGradient, m: int) -> WinogradTiles:
    return WinogradTiles.of(m, p.n, p.out[1:])


def transformed_bytes(p: WeightGradient) -> int:
    """What the tiles of x and dy take once they are transformed, for tiles of 4 x 4."""
    tiles = _tiles(p, 4)
    return 4 * tiles.points * tiles.total * (p.c_in + p.c_out)


def products(p: WeightGradient, m: int, count: int) -> WeightGradient:
    """The (m + 2)^2 products of each group, (c_out x count) by (count x c_in), as the gradient of a 1x1 convolution
    with that many times the groups."""
    points = (m + 2) ** 2
    ones, zeros, line = (1, 1, 1), (0, 0, 0), (1, 1, count)
    return WeightGradient(1, points * p.c_in, line, points * p.c_out, line, points * p.groups, ones, ones, ones, zeros)


def params(call: Call, device: Device) -> Legal:
    """Outputs on a side of a tile, scratch of a pass, the tile of the products and their split-K slices."""
    p = WeightGradient.of(call)
    outputs = (4, 2) if p.pixels >= _LEAST_PIXELS else (2,)
    tiles = _tiles(p, outputs[0])
    sizes = tiles.scratch_sizes(p.c_in + p.c_out, _SCRATCH_MIB.get(device.kind, _OTHER_SCRATCH_MIB))
    step = tiles.chunk(p.c_in + p.c_out, sizes[0])
    inner, passes = products(p, outputs[0], step), ceil_div(tiles.total, step)
    most = max(1, most_in_scratch(inner, device) // max(passes, 1))  # each pass leaves its slices behind the others'
    return {
        "outputs": outputs,
        "scratch_mib": sizes,
        "tile": tiles_by_cost(inner, device),
        "split_k": first(min(cheapest(inner, device)[1], most), (s for s in SLICES if s <= most)),
    }


def build(call: Call, device: Device, params: Params) -> Program:
    """The launches: of each pass inputs, gradients and products, and after all passes the taps."""
    p, m = WeightGradient.of(call), params["outputs"]
    tiles, tile, slices = _tiles(p, m), TILES[params["tile"]], params["split_k"]
    step = tiles.chunk(p.c_in + p.c_out, params["scratch_mib"])
    buffers = {"x": "inputs", "dy": "gradients", "add": None, "result": "parts"}
    steps: list[Dispatch] = []
    total = 0
    for start in range(0, tiles.total, step):
        count = min(step, tiles.total - start)
        inner = products(p, m, count)
        split = evenly(inner, min(slices, tile.k_tiles(inner)))
        steps += (
            inputs(tiles, (p.n, p.c_in, *p.extent[1:]), p.before[1:], start, count, device),
            _gradients(p, tiles, start, count, device),
            launch(tile, inner, split, Output(to_scratch=True, first=total), buffers, device),
        )
        total += split.per_box
    scratch = {"inputs": p.c_in * step, "gradients": p.c_out * step, "parts": p.c_out * p.channels * total}
    return Program(
        (*steps, _taps(call, m, total, device)),
        scratch={name: 4 * tiles.points * size for name, size in scratch.items() if total},
    )


def _gradients(p: WeightGradient, tiles: WinogradTiles, start: int, count: int, device: Device) -> Dispatch:
    local = local_size(device)
    return Dispatch(
        GRADIENTS,
        buffers={"dy": "dy", "u": "gradients"},
        groups=linear_groups(p.c_out * count, local, device),
        local=(local, 1, 1),
        push={
            "c_out": p.c_out,
            "oh": p.out[1],
            "ow": p.out[2],
            "tiles_y": tiles.rows,
            "tiles_x": tiles.columns,
            "first": start,
            "count": count,
        },
        constants={"M": tiles.m},
    )


def _taps(call: Call, m: int, slices: int, device: Device) -> Dispatch:
    """Slices of the products of all passes to dw."""
    p, local, has_add = WeightGradient.of(call), local_size(device), call.has("add")
    pairs = p.c_out * p.channels
    return Dispatch(
        TAPS,
        buffers={"parts": "parts" if slices else None, "add": "add" if has_add else None, "dw": "dw"},
        groups=linear_groups(pairs, local, device),
        local=(local, 1, 1),
        push={"pairs": pairs, "part_count": slices, "scale": float(call["scale"]), "beta": float(call["beta"])},
        constants={"M": m, "HAS_ADD": has_add},
        loop_iterations=slices,
    )


def _default(call: Call, device: Device) -> Program:
    return build(call, device, {name: values[0] for name, values in params(call, device).items()})


def iterations(call: Call, device: Device) -> int:
    """Loop iterations of an invocation."""
    return max(step.loop_iterations for step in _default(call, device).steps)


def scratch_elements(call: Call, device: Device) -> int:
    """Of the largest buffer of scratch."""
    return max(_default(call, device).scratch.values(), default=0) // 4


def slices_bytes(call: Call, device: Device) -> int:
    """Bytes of the split-K slices of all passes."""
    return _default(call, device).scratch.get("parts", 0)


def note(call: Call, device: Device, params: Params) -> str:
    """What `explain` says of the choice."""
    tiles = _tiles(WeightGradient.of(call), params["outputs"])
    scratch = sum(build(call, device, params).scratch.values())
    side = params["outputs"]
    return (
        f"{tiles.total} tiles of {side}x{side}, {params['split_k']} slices of each pass; {bytes_str(scratch)} scratch; "
        f"{params['tile']}"
    )
