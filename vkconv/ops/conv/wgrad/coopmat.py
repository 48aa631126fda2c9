"""The gradient by cooperative matrices, for 16-bit floats: implicit GEMM of any window, f32 split-K slices."""

import functools
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, bytes_str, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad.combine import combine
from vkconv.ops.conv.wgrad.cost import SLICES, most_in_scratch
from vkconv.ops.conv.wgrad.kernels import Output, evenly, push_block
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.base import first, linear_groups
from vkconv.ops.core.occupancy import compute_units
from vkconv.ops.kernels.coopmat import EIGHT, CooperativeTile
from vkconv.ops.kernels.gemm_tile import by_name
from vkconv.program import Dispatch, Program
from vkconv.route import Legal, Params, Requirement

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

# Cost model, in cycles of a compute unit, from its rates of instructions, shared memory and matrix units. To be fitted
# to times.
_GATHER = 0.1  # of an element
_PRODUCT = 1 / 600  # of two elements
_SLICE_ELEMENT = 1.5  # stored and read back
_K_TILE_WAIT = 600
_RESIDENT = 2  # workgroups that a compute unit holds at a time
_LEAST_K_TILES = 4  # of a slice


def takes(tile: CooperativeTile, device: Device) -> bool:
    """Whether the device can hold it, and a lane has one pixel of a k-tile."""
    return tile.fits(device) and tile.local(device) % tile.depth == 0


def _columns(p: WeightGradient) -> int:
    """Taps by input channels, these up to whole loads."""
    return math.prod(p.kernel) * align(p.channels, EIGHT)


def _blocks(p: WeightGradient, tile: CooperativeTile) -> int:
    return p.groups * ceil_div(p.rows, tile.rows) * ceil_div(_columns(p), tile.columns)


def _k_tiles(p: WeightGradient, tile: CooperativeTile) -> int:
    return max(ceil_div(p.pixels, tile.depth), 1)


def _cycles(p: WeightGradient, tile: CooperativeTile, slices: int, units: int) -> float:
    full, rest = divmod(ceil_div(_blocks(p, tile) * slices, units), _RESIDENT)
    of_k_tile = tile.depth * (_GATHER * (tile.rows + tile.columns) + _PRODUCT * tile.rows * tile.columns)

    def at_a_time(count: int) -> float:  # one workgroup keeps a compute unit half busy
        return max((count + 1) * of_k_tile, _K_TILE_WAIT) if count else 0.0

    of_slice = ceil_div(_k_tiles(p, tile), slices) * (full * at_a_time(_RESIDENT) + at_a_time(rest))
    return of_slice + _SLICE_ELEMENT * slices * p.size / units


def _counts(p: WeightGradient, tile: CooperativeTile, device: Device) -> list[int]:
    """Numbers of slices that may be worth it: those of a table, and those that fill the compute units evenly."""
    most = max(1, min(_k_tiles(p, tile) // _LEAST_K_TILES, most_in_scratch(p, device)))
    even = (compute_units(device) * deep // _blocks(p, tile) for deep in (1, 2, 3, 4, 6, 8))
    return sorted(c for c in {*SLICES, *even} if 1 <= c <= most)


@functools.lru_cache(maxsize=256)
def _best(p: WeightGradient, device: Device) -> tuple[str, int]:
    """The tile and the number of slices that cost least."""
    fitting = {name: tile for name, tile in TILES.items() if takes(tile, device)}
    return min(
        ((name, slices) for name, tile in fitting.items() for slices in _counts(p, tile, device)),
        key=lambda pick: _cycles(p, TILES[pick[0]], pick[1], compute_units(device)),
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
        buffers={"x": "x", "dy": "dy", "parts": "parts"},
        groups=linear_groups(_blocks(p, tile) * slices * local, local, device),
        local=(local, 1, 1),
        push=push_block(p, evenly(p, slices), Output()),
        constants={
            "PADDED": p.padded,
            "WHOLE": not (p.rows % EIGHT or p.channels % EIGHT),
            "DEEP": p.deep,
            **tile.constants(device, True, False),
            **dict(zip(("KD", "KH", "KW"), p.kernel, strict=True)),
        },
        shared_bytes=tile.shared_bytes,
        loop_iterations=ceil_div(_k_tiles(p, tile), slices),
    )
    return Program((step, combine(call, slices, device, by_taps=True)), scratch={"parts": 4 * p.size * slices})


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
_LEAST_ROWS, _LEAST_COLUMNS, _LEAST_PIXELS = 32, 32, 256
FILLS_TILES = Requirement(
    f"at least {_LEAST_ROWS} output channels of a group, {EIGHT} input channels, {_LEAST_COLUMNS} of these and taps, "
    f"and {_LEAST_PIXELS} pixels",
    lambda call, device: _fills(WeightGradient.of(call)),
    lambda call, device: _extent(WeightGradient.of(call)),
)


def _fills(p: WeightGradient) -> bool:
    wide = p.channels >= EIGHT and p.columns >= _LEAST_COLUMNS
    return wide and p.rows >= _LEAST_ROWS and p.pixels >= _LEAST_PIXELS


def _extent(p: WeightGradient) -> str:
    return f"{p.rows} out, {p.channels} in, {math.prod(p.kernel)} taps, {p.pixels} pixels"
