"""The gradient by the weights by cooperative matrices, for calls of f16: windows of any kernel, gathered as tiles need
them, summed in parts of f32."""

import functools
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, bytes_str, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad.combine import combine
from vkconv.ops.conv.wgrad.kernels import Output, push_block, whole
from vkconv.ops.conv.wgrad.policy import SPLITS, most_in_scratch
from vkconv.ops.conv.wgrad.problem import Problem
from vkconv.ops.core.base import linear_groups
from vkconv.ops.core.occupancy import compute_units
from vkconv.ops.kernels.coopmat import EIGHT, CooperativeTile
from vkconv.program import Program, positional, read, write
from vkconv.route import Params, Requirement

GRADIENT = Shader(shaders.wgrad.BACKWARD_WEIGHT_COOPERATIVE, DType.F16)

# By number: the parameter ``tile``. 144 columns are 3x3 taps of 16 channels. H200, us, IREE's 16x16x225x225 by 64 in
# bf16 (cuDNN 134): the first 139, the second 176, the third 178.
TILES: tuple[CooperativeTile, ...] = (
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
# An estimate of cycles of a unit of a GPU, from its rates of instructions, shared memory and matrix units: to gather an
# element, to multiply two, to store an element of a part and read it back, to wait for a slice that was asked for, and
# workgroups that a unit holds at a time. To be fitted to times.
_GATHER, _PRODUCT, _PART_ELEMENT, _SLICE, _RESIDENT = 0.1, 1 / 600, 1.5, 600, 2
_LEAST_SLICES = 4


def takes(tile: CooperativeTile, device: Device) -> bool:
    """Whether the device can hold it, and a lane has one pixel of a slice."""
    return tile.fits(device) and tile.local(device) % tile.depth == 0


def _columns(p: Problem) -> int:
    """Taps by input channels, these up to whole loads."""
    return math.prod(p.kernel) * align(p.channels, EIGHT)


def _blocks(p: Problem, tile: CooperativeTile) -> int:
    return p.groups * ceil_div(p.rows, tile.rows) * ceil_div(_columns(p), tile.columns)


def _slices(p: Problem, tile: CooperativeTile) -> int:
    return max(ceil_div(p.pixels, tile.depth), 1)


def _time(p: Problem, tile: CooperativeTile, parts: int, units: int) -> float:
    slices = ceil_div(_slices(p, tile), parts)
    full, rest = divmod(ceil_div(_blocks(p, tile) * parts, units), _RESIDENT)
    of_slice = tile.depth * (_GATHER * (tile.rows + tile.columns) + _PRODUCT * tile.rows * tile.columns)

    def at_a_time(count: int) -> float:  # one workgroup keeps a unit half busy
        return max((count + 1) * of_slice, _SLICE) if count else 0.0

    return slices * (full * at_a_time(_RESIDENT) + at_a_time(rest)) + _PART_ELEMENT * parts * p.size / units


def _counts(p: Problem, tile: CooperativeTile, device: Device) -> list[int]:
    """Numbers of parts that may be worth it: those of a table, and those that fill the units evenly."""
    most = max(1, min(_slices(p, tile) // _LEAST_SLICES, most_in_scratch(p, device)))
    even = (compute_units(device) * deep // _blocks(p, tile) for deep in (1, 2, 3, 4, 6, 8))
    return sorted(c for c in {*SPLITS, *even} if 1 <= c <= most)


@functools.lru_cache(maxsize=256)
def _best(p: Problem, device: Device) -> tuple[int, int]:
    """The tile and the number of parts that are estimated to take the least time."""
    units = compute_units(device)
    fitting = [i for i, tile in enumerate(TILES) if takes(tile, device)]
    return min(
        ((i, parts) for i in fitting for parts in _counts(p, TILES[i], device)),
        key=lambda pick: _time(p, TILES[pick[0]], pick[1], units),
    )


def _parts(call: Call, device: Device) -> int:
    return int(call["split"]) or _best(Problem.of(call), device)[1]


def params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The tile, and how many parts the sum is cut into."""
    p, parts = Problem.of(call), _parts(call, device)
    best = _best(p, device)[0]
    more = (c for c in _counts(p, TILES[best], device) if c != parts)
    return {
        "tile": (best, *(i for i, tile in enumerate(TILES) if i != best and takes(tile, device))),
        "splits": (parts, *more),
    }


def build(call: Call, device: Device, params: Params) -> Program:
    """Parts by tiles of matrices, and their sum."""
    p, tile, parts = Problem.of(call), TILES[params["tile"]], params["splits"]
    local = tile.local(device)
    made_of = tile.constants(device, True, False).values()
    step = positional(
        GRADIENT,
        (*read("x", "dy"), *write("parts")),
        linear_groups(_blocks(p, tile) * parts * local, local, device),
        (local, 1, 1),
        push_block(p, whole(p, parts), Output()),
        (
            p.padded,
            not (p.rows % EIGHT or p.channels % EIGHT),
            p.deep,
            *made_of,
            *p.kernel,
        ),
        tile.shared_bytes,
        ceil_div(_slices(p, tile), parts),
    )
    return Program((step, combine(call, parts, device, by_taps=True)), scratch={"parts": 4 * p.size * parts})


def scratch_bytes(call: Call, device: Device) -> int:
    """Of the parts that the rule or the call asks for."""
    return 4 * Problem.of(call).size * _parts(call, device)


def iterations(call: Call, device: Device) -> int:
    """Loop iterations of an invocation, of either pass."""
    p, parts = Problem.of(call), _parts(call, device)
    return max(ceil_div(_slices(p, TILES[_best(p, device)[0]]), parts), parts)


def note(call: Call, device: Device, params: Params) -> str:
    """What the parameters come to."""
    p, tile, parts = Problem.of(call), TILES[params["tile"]], params["splits"]
    return (
        f"{parts} parts, {bytes_str(4 * p.size * parts)} scratch; {tile.rows}x{tile.columns}x{tile.depth} by "
        f"{tile.subgroup_rows}x{tile.subgroup_columns}"
    )


SOME_TILE = Requirement(
    "a workgroup that holds a tile of whole matrices, and no fewer lanes than its slices have pixels",
    lambda call, device: any(takes(tile, device) for tile in TILES),
    lambda call, device: f"subgroups of {device.subgroup_size}",
)
_LEAST_ROWS, _LEAST_COLUMNS, _LEAST_PIXELS = 32, 32, 256
FILLS_TILES = Requirement(
    f"at least {_LEAST_ROWS} output channels of a group, {EIGHT} input channels, {_LEAST_COLUMNS} of these and taps, "
    f"and {_LEAST_PIXELS} pixels",
    lambda call, device: _fills(Problem.of(call)),
    lambda call, device: _extent(Problem.of(call)),
)


def _fills(p: Problem) -> bool:
    wide = p.channels >= EIGHT and p.columns >= _LEAST_COLUMNS
    return wide and p.rows >= _LEAST_ROWS and p.pixels >= _LEAST_PIXELS


def _extent(p: Problem) -> str:
    return f"{p.rows} out, {p.channels} in, {math.prod(p.kernel)} taps, {p.pixels} pixels"
