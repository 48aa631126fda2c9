"""The route of conv2d by patches of the input in shared memory."""

import dataclasses
import functools
import itertools
import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import align, bytes_str, ceil_div, shape_str
from vkconv.cost import Issued, issue_rate, lanes_of, launch_us, resident_workgroups, spills
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.conv.common import GROUPS_1, LARGER_THAN_1X1, buffers, push
from vkconv.ops.conv.conv2d.direct import packing
from vkconv.ops.core.base import first, local_sizes, most_shared_bytes, over_workgroups
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import MOST_SPAN, PACK_TILES, short_span
from vkconv.ops.kernels.windows import spanned
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

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
# Lanes side by side along a row at most; of the kernel, lanes that copy a row of the input and elements that each has
# in flight: ACROSS and IN_FLIGHT of conv2d_patch.comp.
_MOST_ACROSS, _COPY_LANES, _IN_FLIGHT = 32, 32, 8


@dataclasses.dataclass(frozen=True, slots=True)
class Patches:
    """Lanes of a workgroup at most, the default first, and bytes of shared memory that the rule gives one; the tiles
    that it chooses from for kernels of at most so many ``taps``. Without being asked for the route is taken for such
    kernels in f32 of at most so many input ``channels`` (0: none), with strides up to ``stride``: windows that lie
    farther apart share less of a patch; and of at most ``narrow`` output channels up to ``narrow_pixels``. Cycles until
    a stage is copied; instructions of a subgroup for itself, for a load of a stage and for an output. Workgroups that a
    compute unit holds at a time, by rule, at the least."""

    local: tuple[int, ...]
    most_bytes: int
    turn: float
    invocation: float
    copy: float
    output: float
    least_held: int
    channels: int = 0
    stride: int = 0
    tiles: tuple[str, ...] = ()
    taps: int = 0
    narrow: int = 0
    narrow_pixels: int = 0


_PATCHES = Policy("conv2d.patch", Patches)


@dataclasses.dataclass(frozen=True, slots=True)
class _Windows:
    """What of a call decides about its workgroups; pairs are of rows and columns."""

    n: int
    c_in: int
    c_out: int
    out: tuple[int, int]
    taps: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    @classmethod
    def of(cls, call: Call) -> "_Windows":
        n, c_out, oh, ow = call.shape("y")
        c_in, kh, kw = call.shape("w")[1:]
        return cls(n, c_in, c_out, (oh, ow), (kh, kw), call["stride"], call["dilation"])

    def span(self, axis: int, outputs: int) -> int:
        """Inputs along an axis from the first to the last that so many neighbouring outputs read."""
        return spanned(outputs, self.stride[axis], self.taps[axis], self.dilation[axis])

    def touched(self, columns: int) -> int:
        """Inputs of a row that so many neighbouring outputs read."""
        stride, dilation = self.stride[1], self.dilation[1]
        return len({p * stride + k * dilation for p in range(columns) for k in range(self.taps[1])})


@dataclasses.dataclass(frozen=True)
class _Tile:
    """What a workgroup makes of a call: output channels, rows and columns of a lane; lanes along columns, along rows
    and along channels; input channels of a stage. Shared memory has so many ``banks``."""

    windows: _Windows
    banks: int
    channels: int
    rows: int
    columns: int
    across: int = 1
    down: int = 1
    teams: int = 1
    stage: int = 1

    @property
    def local(self) -> int:
        return self.across * self.down * self.teams

    @property
    def sums(self) -> int:
        return self.channels * self.rows * self.columns

    @functools.cached_property
    def touched(self) -> int:
        """Inputs of a row that a lane reads."""
        return self.windows.touched(self.columns)

    @property
    def registers(self) -> int:
        """An estimate of the 32-bit registers of an invocation: sums, a row of inputs for each row of outputs, two
        vec4 of weights, and what addresses take."""
        return self.sums + self.rows * self.touched + 8 + 24

    @property
    def lines(self) -> int:
        """Rows of the patch."""
        return self.windows.span(0, self.down * self.rows)

    @property
    def width(self) -> int:
        """Columns of the patch."""
        return self.windows.span(1, self.across * self.columns)

    @functools.cached_property
    def _line(self) -> int:
        """Words of a row of the patch, by which lanes find theirs."""
        return align(self.width, self.columns * self.windows.stride[1])

    @functools.cached_property
    def between(self) -> int:
        """Words between two rows of the patch, so that lanes of neighbouring rows read from banks side by side."""
        stride, banks = self.windows.stride[0], self.banks
        return next((pad for pad in range(banks) if (stride * (self._line + pad) - self.across) % banks == 0), 0)

    @functools.cached_property
    def shared_bytes(self) -> int:
        """The patch and the weights of a stage, f32: these in vec4, where one begins."""
        patch = self.stage * self.lines * (self._line + self.between)
        weights = self.stage * self.teams * self.channels * math.prod(self.windows.taps)
        return 4 * (align(patch, 4) + weights)

    @functools.cached_property
    def blocks(self) -> int:
        """Workgroups of the call."""
        oh, ow = self.windows.out
        rows, columns = ceil_div(oh, self.down * self.rows), ceil_div(ow, self.across * self.columns)
        return self.windows.n * ceil_div(self.windows.c_out, self.channels * self.teams) * rows * columns


def _evenly(count: int, most: int) -> int:
    """The size of parts of at most ``most`` that divide ``count`` as evenly as they can."""
    return ceil_div(count, ceil_div(count, max(1, most)))


def _least_bytes(windows: _Windows, device: Device, sizes: tuple[int, int, int] = _SMALLEST) -> int:
    """Shared memory of the smallest workgroup of such invocations."""
    return _Tile(windows, lanes_of(device), *sizes).shared_bytes


@functools.lru_cache(maxsize=4096)  # of a call on all devices, whose numbers are mostly alike
def _tile(windows: _Windows, banks: int, most_bytes: int, sizes: tuple[int, int, int], local: int, stage: int) -> _Tile:
    """The workgroup of at most so many lanes: a row of the output first, then all channels, then more rows. What does
    not fit into shared memory has shorter stages, then fewer lanes along rows, channels and columns."""
    oh, ow = windows.out
    channels, rows, columns = sizes
    across = _evenly(ceil_div(ow, columns), min(_MOST_ACROSS, local))
    teams = _evenly(ceil_div(windows.c_out, channels), local // across)
    down = _evenly(ceil_div(oh, rows), local // (across * teams))
    tile = _Tile(windows, banks, channels, rows, columns, across, down, teams, _evenly(windows.c_in, stage))
    while tile.shared_bytes > most_bytes:
        if tile.stage > 1:
            tile = dataclasses.replace(tile, stage=ceil_div(tile.stage, 2))
        elif tile.down > 1:
            tile = dataclasses.replace(tile, down=ceil_div(tile.down, 2))
        elif tile.teams > 1:
            tile = dataclasses.replace(tile, teams=ceil_div(tile.teams, 2))
        elif tile.across > 1:
            tile = dataclasses.replace(tile, across=ceil_div(tile.across, 2))
        else:
            break
    return tile


def _us(device: Device, tile: _Tile) -> float:
    """Microseconds of the compute unit with the most workgroups. Its schedulers issue instructions; all share what
    shared memory and stores give and take, a word of each lane at a time, and those of a vec4 that all lanes read too.
    The workgroups that a unit holds wait for their copies together."""
    windows, costs = tile.windows, _PATCHES.of(device)
    c_in, (kh, kw) = windows.c_in, windows.taps
    inputs, weights = c_in * kh * tile.rows * tile.touched, c_in * kh * kw * tile.channels
    loads = c_in * tile.lines * align(tile.width, _COPY_LANES) + tile.teams * weights / 4
    copied = loads / tile.local
    issued = costs.invocation + c_in * kh * kw * tile.sums + inputs + weights / 4
    issued += costs.copy * copied + costs.output * tile.sums
    whole = windows.out[1] % 4 == 0 and tile.columns % 4 == 0
    words = inputs + weights + copied + tile.sums * (1 if whole else tile.columns)
    each = ceil_div(tile.local, lanes_of(device)) * max(issued / issue_rate(device), words)
    held = resident_workgroups(device, tile.local, tile.shared_bytes, tile.registers)
    unit = Issued(each, issued, ceil_div(c_in, tile.stage) * costs.turn, held)
    return launch_us(unit, tile.blocks, 1, target_of(device), launches=1)


def _sizes(windows: _Windows, device: Device) -> list[str]:
    """The tiles of an invocation that a workgroup holds and compilers take in good time."""
    kw, most = windows.taps[1], most_shared_bytes(device)

    def kept(sizes: tuple[int, int, int]) -> bool:
        unrolled = math.prod(sizes) * kw <= _MOST_UNROLLED and windows.span(1, sizes[2]) <= MOST_SPAN
        return unrolled and _least_bytes(windows, device, sizes) <= most

    return [name for name, sizes in _TILES.items() if sizes == _SMALLEST or kept(sizes)]


def _stages(windows: _Windows) -> tuple[int, ...]:
    """Input channels of a stage: each number that divides them otherwise."""
    return tuple(dict.fromkeys(_evenly(windows.c_in, stage) for stage in _STAGES))


def _params(call: Call, device: Device) -> Legal:
    policy, windows, banks = _PATCHES.of(device), _Windows.of(call), lanes_of(device)
    tiles, stages, local = _sizes(windows, device), _stages(windows), local_sizes(device, *policy.local)
    most = min(policy.most_bytes, most_shared_bytes(device))

    def cost(choice: tuple[str, int, int]) -> tuple[bool, float]:
        name, size, stage = choice
        tile = _tile(windows, banks, most, _TILES[name], size, stage)
        over = tile.shared_bytes > most or tile.stage < stage
        # One workgroup of a compute unit computes while another copies.
        alone = resident_workgroups(device, tile.local, tile.shared_bytes, tile.registers) < policy.least_held
        return over or alone or spills(tile.registers, device), _us(device, tile)

    few = math.prod(windows.taps) <= policy.taps
    rule = [name for name in policy.tiles if few and name in tiles] or tiles
    # Where nothing was timed the estimate is good for a tile alone.
    others = None if policy.channels else 1
    name, size, stage = min(itertools.product(rule, local[:others], stages[:others]), key=cost)
    return {"tile": first(name, tiles), "local": first(size, local), "stage": first(stage, stages)}


def _tile_of(call: Call, device: Device, params: Params) -> _Tile:
    sizes, most = _TILES[params["tile"]], most_shared_bytes(device)
    return _tile(_Windows.of(call), lanes_of(device), most, sizes, params["local"], params["stage"])


def _build(call: Call, device: Device, params: Params) -> Program:
    tile = _tile_of(call, device, params)
    (c_in, kh, kw), stage = call.shape("w")[1:], tile.stage
    (sh, sw), (dh, dw) = call["stride"], call["dilation"]
    y_vec4 = call.shape("y")[3] % 4 == 0 and tile.columns % 4 == 0
    copiers = min(tile.local, _COPY_LANES)
    lines = ceil_div(stage * tile.lines, tile.local // copiers)
    copies = lines * (1 + ceil_div(tile.width, _IN_FLIGHT * copiers))
    weights = ceil_div(tile.teams * stage * kh * kw * tile.channels // 4, tile.local)
    pack, e = packing(call, {"channels": tile.channels}), Epilogue.of(call, device)
    step = Dispatch(
        e.variant(PATCH),
        buffers(e, "packed"),
        *over_workgroups(tile.blocks, tile.local, device),
        push(call, e),
        {
            **e.constants,
            **{"CO": tile.channels, "RY": tile.rows, "PX": tile.columns},
            **{"TW": tile.across, "TH": tile.down, "CG": tile.teams, "CI": stage, "BETWEEN": tile.between},
            **{"KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw, "Y_VEC4": y_vec4},
        },
        tile.shared_bytes,
        ceil_div(c_in, stage) * (1 + copies + weights + stage * (1 + kh)),
    )
    return e.complete(pack.program(device, step), call.shape("y"), device)


def _note(call: Call, device: Device, params: Params) -> str:
    tile = _tile_of(call, device, params)
    rows, columns = tile.rows * tile.down, tile.columns * tile.across
    nbytes = bytes_str(tile.shared_bytes)
    return f"{tile.channels * tile.teams} channels of {rows}x{columns} outputs, {tile.local} lanes, {nbytes}"


_HOLDS = Requirement(
    "shared memory that holds a patch and its weights",
    lambda call, device: _least_bytes(_Windows.of(call), device) <= most_shared_bytes(device),
    lambda call, device: (
        f"{bytes_str(_least_bytes(_Windows.of(call), device))} of {bytes_str(most_shared_bytes(device))}"
    ),
)
_FEW_CHANNELS = Requirement(
    "f32 of as few input channels as such devices are expected to take by patches",
    lambda call, device: call.half is None and call.shape("w")[1] <= _PATCHES.of(device).channels,
    lambda call, device: f"{call.shape('w')[1]} channels of {_PATCHES.of(device).channels}, {call.specs['x'].dtype}",
)


def _overlap(call: Call, device: Device) -> bool:
    overlap = all(taps > step for taps, step in zip(call.shape("w")[2:], call["stride"], strict=True))
    return overlap and max(call["stride"]) <= _PATCHES.of(device).stride


_OVERLAP = Requirement(
    "windows that overlap along both axes, with strides as small as pay",
    _overlap,
    lambda call, device: (
        f"{shape_str(call.shape('w')[2:])}, stride {shape_str(call['stride'])}, at most {_PATCHES.of(device).stride}"
    ),
)
_FEW_TAPS = Requirement(
    "a kernel of as few taps as are timed to pay",
    lambda call, device: math.prod(call.shape("w")[2:]) <= _PATCHES.of(device).taps,
    lambda call, device: f"{math.prod(call.shape('w')[2:])} of {_PATCHES.of(device).taps}",
)


def _output_pixels(call: Call) -> int:
    n, _, oh, ow = call.shape("y")
    return n * oh * ow


_WIDE = Requirement(
    "more output channels than subgroup_tile takes faster, or few pixels",
    lambda call, device: (
        call.shape("y")[1] > _PATCHES.of(device).narrow or _output_pixels(call) <= _PATCHES.of(device).narrow_pixels
    ),
    lambda call, device: (
        f"{call.shape('y')[1]} channels of {_PATCHES.of(device).narrow}, {_output_pixels(call)} pixels of "
        f"{_PATCHES.of(device).narrow_pixels}"
    ),
)
_SHORT_SPAN = short_span("a row of taps over", lambda call: _Windows.of(call).span(1, 1))

SHARED_PATCH = Route(
    "shared_patch",
    _build,
    finishing(PATCH, PACK_TILES),
    why="with few input channels a product has too few factors to share for tiles of a matrix: a patch of the input in "
    "shared memory serves all taps and output channels, and nothing is gathered for each tap",
    must=(FLOATS, GROUPS_1, _SHORT_SPAN, _HOLDS),
    prefer=(_FEW_CHANNELS, LARGER_THAN_1X1, _FEW_TAPS, _OVERLAP, _WIDE),
    params=_params,
    note=_note,
    estimated_us=lambda call, device, params: _us(device, _tile_of(call, device, params)),
)
