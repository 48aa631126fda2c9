"""The route of conv2d by patches of the input in shared memory."""

import dataclasses
import itertools
import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import align, bytes_str, ceil_div, shape_str
from vkconv.cost import compute_units, resident_workgroups, spills
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import GROUPS_1, LARGER_THAN_1X1, buffers, push, span
from vkconv.ops.conv.conv2d.direct import packing
from vkconv.ops.core.base import first, local_sizes, most_shared_bytes, over_workgroups
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import MOST_SPAN, PACK_TILES, short_span
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.route import Legal, Params, Requirement, Route

PATCH = Shader(shaders.conv2d.CONV2D_PATCH)
# Output channels, rows and columns of an invocation.
_TILES = {
    "x".join(map(str, sizes)): sizes
    for sizes in (
        *((8, 2, 4), (8, 1, 8), (8, 1, 4), (12, 1, 4), (12, 2, 4), (16, 1, 4), (4, 2, 4), (4, 4, 4), (4, 1, 4)),
        *((16, 1, 8), (16, 2, 4), (8, 2, 8), (8, 4, 4), (12, 1, 8), (8, 1, 2), (4, 1, 2)),
        *((8, 8, 1), (8, 4, 1), (16, 4, 1), (8, 2, 1), (4, 1, 1)),
    )
}
_SMALLEST = _TILES["4x1x1"]
# Input channels of a stage at most.
_STAGES = (4, 1, 2, 8, 16)
# Multiply-adds of an unrolled row of taps of the tiles but for the smallest: more compile for seconds.
_MOST_UNROLLED = 1024
# Lanes side by side along a row at most, lanes that copy a row of the input, and elements that each has in flight.
_MOST_ACROSS, _COPY_LANES, _IN_FLIGHT = 32, 32, 8
# Words that shared memory gives out at a time, each from a bank of its own.
_BANKS = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Patches:
    """Lanes of a workgroup at most, the default first, and bytes of shared memory that the rule gives one; the tiles
    that it chooses from for kernels of at most so many ``taps``. Without being asked for the route is taken for
    convolutions in f32 of at most so many input ``channels`` (0: none). Cycles until a stage is copied; instructions of
    a subgroup for itself, for a load of a stage and for an output."""

    local: tuple[int, ...]
    most_bytes: int
    turn: float
    invocation: float
    copy: float
    output: float
    channels: int = 0
    tiles: tuple[str, ...] = ()
    taps: int = 0


# Workgroups that a compute unit holds at a time, at the least.
_LEAST_HELD = 2
_PATCHES = Policy("conv2d.patch", Patches)


@dataclasses.dataclass(frozen=True, slots=True)
class _Tile:
    """What a workgroup makes of a call: output channels, rows and columns of a lane; lanes along columns, along rows
    and along channels; input channels of a stage."""

    channels: int
    rows: int
    columns: int
    across: int
    down: int
    teams: int
    stage: int

    @property
    def local(self) -> int:
        return self.across * self.down * self.teams

    @property
    def sums(self) -> int:
        return self.channels * self.rows * self.columns

    def registers(self, call: Call) -> int:
        """An estimate of the 32-bit registers of an invocation: sums, a row of inputs for each row of outputs, two
        vec4 of weights, and what addresses take."""
        return self.sums + self.rows * _touched(call, self.columns) + 8 + 24

    def lines(self, call: Call) -> int:
        """Rows of the patch."""
        return span(call, 0, self.down * self.rows)

    def width(self, call: Call) -> int:
        """Columns of the patch."""
        return span(call, 1, self.across * self.columns)

    def between(self, call: Call) -> int:
        """Words between two rows of the patch, so that lanes of neighbouring rows read from banks side by side."""
        period, stride = self.columns * int(call["stride"][1]), int(call["stride"][0])
        line = align(self.width(call), period)
        return next((pad for pad in range(_BANKS) if (stride * (line + pad) - self.across) % _BANKS == 0), 0)

    def shared_bytes(self, call: Call) -> int:
        """The patch and the weights of a stage, f32: these in vec4, where one begins."""
        period = self.columns * int(call["stride"][1])
        patch = self.stage * self.lines(call) * (align(self.width(call), period) + self.between(call))
        weights = self.stage * self.teams * self.channels * math.prod(call.shape("w")[2:])
        return 4 * (align(patch, 4) + weights)

    def blocks(self, call: Call) -> int:
        """Workgroups of the call."""
        n, c_out, oh, ow = call.shape("y")
        rows, columns = ceil_div(oh, self.down * self.rows), ceil_div(ow, self.across * self.columns)
        return n * ceil_div(c_out, self.channels * self.teams) * rows * columns


def _evenly(count: int, most: int) -> int:
    """The size of parts of at most ``most`` that divide ``count`` as evenly as they can."""
    return ceil_div(count, ceil_div(count, max(1, most)))


def _touched(call: Call, columns: int) -> int:
    """Inputs of a row that so many neighbouring outputs read."""
    taps, stride, dilation = call.shape("w")[3], int(call["stride"][1]), int(call["dilation"][1])
    return len({p * stride + k * dilation for p in range(columns) for k in range(taps)})


def _least_bytes(call: Call, sizes: tuple[int, int, int] = _SMALLEST) -> int:
    """Shared memory of the smallest workgroup of such invocations."""
    return _Tile(*sizes, 1, 1, 1, 1).shared_bytes(call)


def _tile(call: Call, most_bytes: int, sizes: tuple[int, int, int], local: int, stage: int) -> _Tile:
    """The workgroup of at most so many lanes: a row of the output first, then all channels, then more rows. What does
    not fit into shared memory has shorter stages, then fewer lanes along rows, channels and columns."""
    c_out, oh, ow = call.shape("y")[1:]
    channels, rows, columns = sizes
    across = _evenly(ceil_div(ow, columns), min(_MOST_ACROSS, local))
    teams = _evenly(ceil_div(c_out, channels), local // across)
    down = _evenly(ceil_div(oh, rows), local // (across * teams))
    tile = _Tile(channels, rows, columns, across, down, teams, _evenly(call.shape("w")[1], stage))
    while tile.shared_bytes(call) > most_bytes:
        for name in ("stage", "down", "teams", "across"):
            if (size := getattr(tile, name)) > 1:
                tile = dataclasses.replace(tile, **{name: ceil_div(size, 2)})
                break
        else:
            return tile
    return tile


def _cycles(call: Call, device: Device, tile: _Tile) -> float:
    """Estimated cycles of the compute unit with the most workgroups. Four schedulers issue instructions; all share what
    shared memory and stores give and take, a word of each lane at a time, and those of a vec4 that all lanes read too.
    The workgroups that a unit holds wait for their copies together."""
    (c_in, kh, kw), lanes, costs = call.shape("w")[1:], max(1, device.subgroup_size), _PATCHES.of(device)
    inputs, weights = c_in * kh * tile.rows * _touched(call, tile.columns), c_in * kh * kw * tile.channels
    loads = c_in * tile.lines(call) * align(tile.width(call), _COPY_LANES) + tile.teams * weights / 4
    copied = loads / tile.local
    issued = costs.invocation + c_in * kh * kw * tile.sums + inputs + weights / 4
    issued += costs.copy * copied + costs.output * tile.sums
    whole = call.shape("y")[3] % 4 == 0 and tile.columns % 4 == 0
    words = inputs + weights + copied + tile.sums * (1 if whole else tile.columns)
    each = ceil_div(tile.local, lanes) * max(issued / 4, words)
    per_unit = ceil_div(tile.blocks(call), compute_units(device))
    held = resident_workgroups(device, tile.local, tile.shared_bytes(call), tile.registers(call))
    return max(per_unit * each, issued) + ceil_div(per_unit, held) * ceil_div(c_in, tile.stage) * costs.turn


def _sizes(call: Call, device: Device) -> list[str]:
    """The tiles of an invocation that a workgroup holds and compilers take in good time."""
    kw, most = call.shape("w")[3], most_shared_bytes(device)

    def kept(sizes: tuple[int, int, int]) -> bool:
        unrolled = math.prod(sizes) * kw <= _MOST_UNROLLED and span(call, 1, sizes[2]) <= MOST_SPAN
        return unrolled and _least_bytes(call, sizes) <= most

    return [name for name, sizes in _TILES.items() if sizes == _SMALLEST or kept(sizes)]


def _stages(call: Call) -> tuple[int, ...]:
    """Input channels of a stage: each number that divides them otherwise."""
    c_in = call.shape("w")[1]
    return tuple(dict.fromkeys(_evenly(c_in, stage) for stage in _STAGES))


def _params(call: Call, device: Device) -> Legal:
    policy = _PATCHES.of(device)
    tiles, stages, local = _sizes(call, device), _stages(call), local_sizes(device, *policy.local)
    most = min(policy.most_bytes, most_shared_bytes(device))

    def cost(choice: tuple[str, int, int]) -> tuple[bool, float]:
        name, size, stage = choice
        tile = _tile(call, most, _TILES[name], size, stage)
        registers = tile.registers(call)
        over = tile.shared_bytes(call) > most or tile.stage < stage
        # One workgroup of a compute unit computes while another copies.
        alone = resident_workgroups(device, tile.local, tile.shared_bytes(call), registers) < _LEAST_HELD
        return over or alone or spills(registers, device), _cycles(call, device, tile)

    few = math.prod(call.shape("w")[2:]) <= policy.taps
    rule = [name for name in policy.tiles if few and name in tiles] or tiles
    name, size, stage = min(itertools.product(rule, local, stages), key=cost)
    return {"tile": first(name, tiles), "local": first(size, local), "stage": first(stage, stages)}


def _build(call: Call, device: Device, params: Params) -> Program:
    sizes = _TILES[params["tile"]]
    tile = _tile(call, most_shared_bytes(device), sizes, params["local"], params["stage"])
    (c_in, kh, kw), stage = call.shape("w")[1:], tile.stage
    (sh, sw), (dh, dw) = call["stride"], call["dilation"]
    y_vec4 = call.shape("y")[3] % 4 == 0 and tile.columns % 4 == 0
    copiers = min(tile.local, _COPY_LANES)
    lines = ceil_div(stage * tile.lines(call), tile.local // copiers)
    copies = lines * (1 + ceil_div(tile.width(call), _IN_FLIGHT * copiers))
    weights = ceil_div(tile.teams * stage * kh * kw * tile.channels // 4, tile.local)
    pack, e = packing(call, {"channels": tile.channels}), Epilogue.of(call, device)
    step = Dispatch(
        e.variant(PATCH),
        buffers(e, "packed"),
        *over_workgroups(tile.blocks(call), tile.local, device),
        push(call, e),
        {
            **e.constants,
            **{"CO": tile.channels, "RY": tile.rows, "PX": tile.columns},
            **{"TW": tile.across, "TH": tile.down, "CG": tile.teams, "CI": stage, "BETWEEN": tile.between(call)},
            **{"KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw, "Y_VEC4": y_vec4},
        },
        tile.shared_bytes(call),
        ceil_div(c_in, stage) * (1 + copies + weights + stage * (1 + kh)),
    )
    return e.complete(pack.program(device, step), call.shape("y"), device)


def _note(call: Call, device: Device, params: Params) -> str:
    tile = _tile(call, most_shared_bytes(device), _TILES[params["tile"]], params["local"], params["stage"])
    rows, columns = tile.rows * tile.down, tile.columns * tile.across
    nbytes = bytes_str(tile.shared_bytes(call))
    return f"{tile.channels * tile.teams} channels of {rows}x{columns} outputs, {tile.local} lanes, {nbytes}"


_HOLDS = Requirement(
    "shared memory that holds a patch and its weights",
    lambda call, device: _least_bytes(call) <= most_shared_bytes(device),
    lambda call, device: f"{bytes_str(_least_bytes(call))} of {bytes_str(most_shared_bytes(device))}",
)
_FEW_CHANNELS = Requirement(
    "f32 of as few input channels as such devices are expected to take by patches",
    lambda call, device: call.half is None and call.shape("w")[1] <= _PATCHES.of(device).channels,
    lambda call, device: f"{call.shape('w')[1]} channels of {_PATCHES.of(device).channels}, {call.specs['x'].dtype}",
)


def _overlap(call: Call, device: Device) -> bool:
    return all(taps > step for taps, step in zip(call.shape("w")[2:], call["stride"], strict=True))


_OVERLAP = Requirement(
    "windows that overlap along both axes",
    _overlap,
    lambda call, device: f"{shape_str(call.shape('w')[2:])}, stride {shape_str(call['stride'])}",
)
_SHORT_SPAN = short_span("a row of taps over", lambda call: span(call, 1, 1))

SHARED_PATCH = Route(
    "shared_patch",
    _build,
    finishing(PATCH, PACK_TILES),
    why="with few input channels a product has too few factors to share for tiles of a matrix: a patch of the input in "
    "shared memory serves all taps and output channels, and nothing is gathered for each tap",
    must=(FLOATS, GROUPS_1, _SHORT_SPAN, _HOLDS),
    prefer=(_FEW_CHANNELS, LARGER_THAN_1X1, _OVERLAP),
    params=_params,
    note=_note,
)
