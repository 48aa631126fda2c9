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
from vkconv.ops.conv.wgrad.kernels import Output, Parts, launch, whole
from vkconv.ops.conv.wgrad.policy import KERNELS, SPLITS, kernels_for, least_time, most_in_scratch
from vkconv.ops.conv.wgrad.problem import Problem
from vkconv.ops.core.base import linear_groups
from vkconv.ops.kernels.winograd import WinogradTiles, inputs, local_size
from vkconv.program import Bind, Dispatch, Program, positional, read, write
from vkconv.route import Params

GRADIENTS, TAPS = Shader(shaders.kernels.WINOGRAD_OUTPUT_GRADIENT), Shader(shaders.kernels.WINOGRAD_WEIGHT_GRADIENT)
# The rounding error of m = 4 grows with the transforms, not with the sum: a short one may not have so much.
_LEAST_PIXELS = 64
# Scratch of one pass over some of the tiles, MiB, the default first: passes cost parts (H200, us: 32x64x56x56 to 64 in
# one pass of 110 MiB 160, in two 190, in four 255).
_SCRATCH_MIB: Mapping[str, tuple[int, ...]] = {"discrete": (256, 64)}
_OTHER_SCRATCH_MIB = (64, 16)


def _tiles(p: Problem, m: int) -> WinogradTiles:
    return WinogradTiles.of(m, p.n, p.out[1:])


def transformed_bytes(p: Problem) -> int:
    """What the tiles of x and dy take once they are transformed, for tiles of 4 x 4."""
    tiles = _tiles(p, 4)
    return 4 * tiles.points * tiles.total * (p.c_in + p.c_out)


def products(p: Problem, m: int, count: int) -> Problem:
    """The (m + 2)^2 products of each group, (c_out x count) by (count x c_in), as the gradient of a 1x1 convolution
    with that many times the groups."""
    points = (m + 2) ** 2
    ones, zeros, line = (1, 1, 1), (0, 0, 0), (1, 1, count)
    return Problem(1, points * p.c_in, line, points * p.c_out, line, points * p.groups, ones, ones, ones, zeros)


def params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """Outputs on a side of a tile, scratch of a pass, the kernel of the products and the parts each is summed in."""
    p = Problem.of(call)
    outputs = (4, 2) if p.pixels >= _LEAST_PIXELS else (2,)
    tiles = _tiles(p, outputs[0])
    sizes = tiles.scratch_sizes(p.c_in + p.c_out, _SCRATCH_MIB.get(device.kind, _OTHER_SCRATCH_MIB))
    step = tiles.chunk(p.c_in + p.c_out, sizes[0])
    inner, passes = products(p, outputs[0], step), ceil_div(tiles.total, step)
    most = max(1, most_in_scratch(inner, device) // max(passes, 1))  # each pass leaves its parts behind the others'
    split: int = call["split"]
    parts = split or min(least_time(inner, device, 0)[1], most)
    return {
        "outputs": outputs,
        "scratch_mib": sizes,
        "tile": tuple(kernels_for(inner, device, split)),
        "splits": (parts, *(s for s in SPLITS if s != parts and s <= most)),
    }


def build(call: Call, device: Device, params: Params) -> Program:
    """The launches: of each pass inputs, gradients and products, and after all passes the taps."""
    p, m = Problem.of(call), params["outputs"]
    tiles, kernel, cuts = _tiles(p, m), KERNELS[params["tile"]], params["splits"]
    step = tiles.chunk(p.c_in + p.c_out, params["scratch_mib"])
    binds = (*read("inputs", "gradients", None), Bind("parts", "w"))
    steps: list[Dispatch] = []
    total = 0
    for first in range(0, tiles.total, step):
        count = min(step, tiles.total - first)
        inner = products(p, m, count)
        parts = Parts(whole(inner).tile, min(cuts, kernel.slices(inner)))
        steps += (
            inputs(tiles, (p.n, p.c_in, *p.extent[1:]), p.before[1:], first, count, device),
            _gradients(p, tiles, first, count, device),
            launch(kernel, inner, parts, Output(to_parts=True, first=total), binds, device),
        )
        total += parts.cuts
    local, pairs = local_size(device), p.c_out * p.channels
    taps = positional(
        TAPS,
        (*read("parts" if total else None, "add" if call.has("add") else None), *write("dw")),
        linear_groups(pairs, local, device),
        (local, 1, 1),
        (pairs, total, float(call["scale"]), float(call["beta"])),
        (m, call.has("add")),
        loop_iterations=total,
    )
    scratch = {"inputs": p.c_in * step, "gradients": p.c_out * step, "parts": pairs * total}
    return Program((*steps, taps), scratch={name: 4 * tiles.points * size for name, size in scratch.items() if total})


def _default(call: Call, device: Device) -> Program:
    return build(call, device, {name: values[0] for name, values in params(call, device).items()})


def iterations(call: Call, device: Device) -> int:
    """Loop iterations of an invocation."""
    return max(step.loop_iterations for step in _default(call, device).steps)


def scratch_elements(call: Call, device: Device) -> int:
    """Of the largest buffer of scratch."""
    return max(_default(call, device).scratch.values(), default=0) // 4


def parts_bytes(call: Call, device: Device) -> int:
    """Bytes of the partial results of all passes."""
    return _default(call, device).scratch.get("parts", 0)


def _gradients(p: Problem, tiles: WinogradTiles, first: int, count: int, device: Device) -> Dispatch:
    local = local_size(device)
    return positional(
        GRADIENTS,
        (*read("dy"), *write("gradients")),
        linear_groups(p.c_out * count, local, device),
        (local, 1, 1),
        (p.c_out, *p.out[1:], tiles.rows, tiles.columns, first, count),
        (tiles.m,),
    )


def note(call: Call, device: Device, params: Params) -> str:
    """What `explain` says of the choice."""
    tiles = _tiles(Problem.of(call), params["outputs"])
    scratch = sum(build(call, device, params).scratch.values())
    side = params["outputs"]
    return (
        f"{tiles.total} tiles of {side}x{side}, {params['splits']} parts of each pass; {bytes_str(scratch)} scratch; "
        f"{KERNELS[params['tile']]}"
    )
