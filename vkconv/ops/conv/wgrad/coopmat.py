"""The gradient by cooperative matrices, for 16-bit floats: implicit GEMM of any window, f32 split-K slices."""

import dataclasses
import functools
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, bytes_str, ceil_div
from vkconv.cost import Waves, launch_us
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad.combine import combine
from vkconv.ops.conv.wgrad.cost import most_in_scratch, slice_counts
from vkconv.ops.conv.wgrad.kernels import evenly, push_block
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.base import first, over_workgroups
from vkconv.ops.kernels.coopmat import EIGHT, CooperativeTile, blocks
from vkconv.ops.kernels.gemm_tile import by_name
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params

GRADIENT = Shader(shaders.wgrad.BACKWARD_WEIGHT_COOPERATIVE, DType.F16)

# rows, columns, k-tile, rows and columns of a subgroup. 144 columns are 3x3 taps of 16 channels. H200, us, IREE's
# 16x16x225x225 by 64 in bf16 (cuDNN 134): the first 139, the second 176, the third 178.
TILES: Mapping[str, CooperativeTile] = by_name(
    CooperativeTile(64, 144, 32, 32, 48),
    CooperativeTile(64, 144, 64, 32, 48),
    CooperativeTile(64, 144, 32, 64, 48),
    CooperativeTile(128, 144, 32, 64, 48),
    CooperativeTile(128, 128, 32, 64, 32),
    CooperativeTile(128, 64, 32, 32, 32),
    CooperativeTile(64, 128, 32, 32, 64),
    CooperativeTile(64, 96, 32, 32, 48),
    CooperativeTile(64, 64, 32, 32, 32),
    CooperativeTile(32, 144, 32, 32, 48),
    CooperativeTile(32, 144, 32, 16, 48),
    CooperativeTile(16, 144, 32, 16, 48),
    CooperativeTile(16, 80, 32, 16, 16),
    CooperativeTile(32, 64, 32, 16, 32),
    CooperativeTile(32, 32, 32, 16, 16),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """Cycles of a compute unit to gather an element, to multiply two, to store an element of a slice and read it back,
    and to wait for a k-tile; workgroups that it holds at a time, and those whose time no number of them fills."""

    gather: float
    product: float
    slice_element: float
    k_tile_wait: float
    resident: int
    idle: float


_COSTS = Policy("wgrad.cooperative_cost", Costs)


@dataclasses.dataclass(frozen=True, slots=True)
class Least:
    """Output channels of a group, input channels by taps, and pixels from which on matrix units are used; k-tiles of a
    slice."""

    rows: int
    columns: int
    pixels: int
    k_tiles: int


_LEAST = Policy("wgrad.cooperative_least", Least)


def takes(tile: CooperativeTile, device: Device) -> bool:
    """Whether the device can hold it, and a lane has one pixel of a k-tile."""
    return tile.fits(device) and tile.local(device) % tile.depth == 0


def _blocks(p: WeightGradient, tile: CooperativeTile) -> int:
    columns = math.prod(p.kernel) * align(p.channels, EIGHT)  # taps by input channels, these up to whole loads
    return blocks(tile, p.rows, columns, p.groups)


def _k_tiles(p: WeightGradient, tile: CooperativeTile) -> int:
    return max(ceil_div(p.pixels, tile.depth), 1)


def _us(p: WeightGradient, tile: CooperativeTile, slices: int, device: Device) -> float:
    target, costs = target_of(device), _COSTS.of(device)
    gathered, products = tile.rows + tile.columns, tile.rows * tile.columns
    of_k_tile = tile.depth * (costs.gather * gathered + costs.product * products)
    k_tiles = ceil_div(_k_tiles(p, tile), slices)
    cost = Waves(k_tiles * of_k_tile, costs.resident, costs.idle, costs.k_tile_wait)
    stored = costs.slice_element * slices * p.size / target.compute_units / target.value("clock_mhz")
    return launch_us(cost, _blocks(p, tile) * slices, k_tiles, target, launches=2) + stored


def _counts(p: WeightGradient, tile: CooperativeTile, device: Device) -> list[int]:
    most = max(1, min(_k_tiles(p, tile) // _LEAST.of(device).k_tiles, most_in_scratch(p, device)))
    return slice_counts(_blocks(p, tile), (1, 2, 3, 4, 6, 8), most, device)


@functools.lru_cache(maxsize=256)
def _best(p: WeightGradient, device: Device) -> tuple[str, int]:
    """The tile and the number of slices that cost least."""
    fitting = {name: tile for name, tile in TILES.items() if takes(tile, device)}
    return min(
        ((name, slices) for name, tile in fitting.items() for slices in _counts(p, tile, device)),
        key=lambda pick: _us(p, TILES[pick[0]], pick[1], device),
    )


def params(call: Call, device: Device) -> Legal:
    """The tile and the number of split-K slices."""
    p = WeightGradient.of(call)
    best, slices = _best(p, device)
    return {
        "tile": first(best, (name for name, tile in TILES.items() if takes(tile, device))),
        "split_k": first(slices, _counts(p, TILES[best], device)),
    }


def build(call: Call, device: Device, params: Params) -> Program:
    """Slices by tiles of matrices, and their sum."""
    p, tile, slices = WeightGradient.of(call), TILES[params["tile"]], params["split_k"]
    local = tile.local(device)
    step = Dispatch(
        GRADIENT,
        {"x": "x", "dy": "dy", "slices": "slices"},
        *over_workgroups(_blocks(p, tile) * slices, local, device),
        push=push_block(p, evenly(p, slices)),
        constants={
            "PADDED": p.padded,
            "WHOLE": not (p.rows % EIGHT or p.channels % EIGHT),
            "DEEP": p.deep,
            **tile.constants(device, True, False),
            **dict(zip(("KD", "KH", "KW"), p.kernel, strict=True)),
        },
        shared_bytes=tile.workgroup_bytes(device),
        loop_iterations=ceil_div(_k_tiles(p, tile), slices),
    )
    return Program((step, combine(call, slices, device, by_taps=True)), scratch={"slices": 4 * p.size * slices})


def estimated_us(call: Call, device: Device, params: Params) -> float:
    """Microseconds by the values of the parameters, both launches included."""
    return _us(WeightGradient.of(call), TILES[params["tile"]], params["split_k"], device)


def scratch_bytes(call: Call, device: Device) -> int:
    """Of as many slices as the cost model has."""
    p = WeightGradient.of(call)
    return 4 * p.size * _best(p, device)[1]


def iterations(call: Call, device: Device) -> int:
    """Loop iterations of an invocation, of either pass."""
    p = WeightGradient.of(call)
    best, slices = _best(p, device)
    return max(ceil_div(_k_tiles(p, TILES[best]), slices), slices)


def note(call: Call, device: Device, params: Params) -> str:
    """What the parameters come to."""
    slices = params["split_k"]
    return f"{slices} slices, {bytes_str(4 * WeightGradient.of(call).size * slices)} scratch; {params['tile']}"


SOME_TILE = Requirement(
    "a workgroup that holds a tile of whole matrices, and no fewer lanes than its k-tiles have pixels",
    lambda call, device: any(takes(tile, device) for tile in TILES.values()),
    lambda call, device: f"subgroups of {device.subgroup_size}",
)


def _fills(call: Call, device: Device) -> bool:
    p, least = WeightGradient.of(call), _LEAST.of(device)
    wide = p.channels >= EIGHT and p.columns >= least.columns
    return wide and p.rows >= least.rows and p.pixels >= least.pixels


def _filled(call: Call, device: Device) -> str:
    p, least = WeightGradient.of(call), _LEAST.of(device)
    return (
        f"{p.rows} channels of {least.rows}, {p.channels} in, {p.columns} by taps of {least.columns}, {p.pixels} "
        f"pixels of {least.pixels}"
    )


FILLS_TILES = Requirement(
    f"enough output channels of a group, {EIGHT} input channels, and enough of these by taps, and pixels, for tiles of "
    "matrices",
    _fills,
    _filled,
)
