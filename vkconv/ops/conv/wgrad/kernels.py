"""The kernels of a convolution's gradient by its weights: their tiles, and the launch over split-K slices."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Protocol

from vkconv import shaders
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Kernel, Shader
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.base import holds_workgroup, most_invocations, over_invocations
from vkconv.ops.core.requirements import shuffles
from vkconv.ops.kernels.cpu_cost import COSTS
from vkconv.ops.kernels.gemm_tile import GemmTile, pushes
from vkconv.ops.kernels.prepack import MOST_SPAN
from vkconv.ops.kernels.windows import spanned
from vkconv.program import Argument, Dispatch, Word

ATOMIC_CAS, ATOMIC_FLOAT, SUBGROUPS = (("ATOMIC_CAS", ""),), (("ATOMIC_FLOAT", ""),), (("SUBGROUPS", ""),)
Defines = tuple[tuple[str, str], ...]

_MOST_TAPS = 8
_MOST_SUMS = 192
_MOST_UNROLLED = 1152
_MOST_MEETING = 16
_MOST_COLUMN = 12  # inputs of a column that a lane of the skinny kernel meets: one of 17 took three times one of 9


@dataclasses.dataclass(frozen=True, slots=True)
class SplitK:
    """Slices of the sum: boxes of ``box`` (images, d, h, w of dy; a last one may be smaller), ``per_box`` of each."""

    box: tuple[int, int, int, int]
    per_box: int = 1

    def count(self, p: WeightGradient) -> int:
        return self.boxes(p) * self.per_box

    def boxes(self, p: WeightGradient) -> int:
        return math.prod(max(ceil_div(extent, box), 1) for extent, box in zip(p.reduction, self.box, strict=True))

    @property
    def pixels(self) -> int:
        """Of the largest box."""
        return math.prod(self.box)

    @property
    def lines(self) -> int:
        """Rows of dy of the largest box."""
        return math.prod(self.box[:3])


def evenly(p: WeightGradient, slices: int = 1) -> SplitK:
    """Equal slices of all pixels in a row, wherever an image ends."""
    n, d, h, w = (max(extent, 1) for extent in p.reduction)
    return SplitK((n, d, h, w), slices)


class Tile(Protocol):
    """What one workgroup of a kernel makes of dw."""

    kernel: ClassVar[Kernel]

    @property
    def name(self) -> str:
        """The value of the parameter ``tile``."""

    @property
    def local(self) -> int:
        """Invocations of a workgroup."""

    @property
    def shared_bytes(self) -> int: ...

    def fits(self, device: Device) -> bool:
        """Whether a workgroup of the device can hold it."""

    def takes(self, p: WeightGradient) -> bool:
        """Whether its registers hold what the gradient needs, and the gradient is not far smaller than the tile."""

    def blocks(self, p: WeightGradient) -> int:
        """Workgroups of one split-K slice."""

    def k_tiles(self, p: WeightGradient) -> int:
        """Steps of the whole sum. A slice has some of them."""

    def iterations(self, p: WeightGradient, split: SplitK) -> int:
        """Loop iterations of one invocation."""

    def sums(self, p: WeightGradient) -> int:
        """Accumulators of an invocation."""

    def gathers(self, p: WeightGradient) -> bool:
        """Whether a lane computes where each element lies that it loads."""

    def cost(self, p: WeightGradient, device: Device) -> float:
        """Cost of the whole sum, in multiply-adds of an invocation or a SIMD vector."""

    def reloads(self, p: WeightGradient) -> float:
        """Elements of the whole sum that come from beyond a unit's own cache and of which few products are made."""

    def specialization(self, p: WeightGradient, split: SplitK, device: Device) -> Mapping[str, Word]:
        """The specialization constants of its kernel alone."""

    def defines(self, device: Device) -> Defines:
        """The variant of its shader for the device."""


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """Where a slice goes. With ``to_scratch`` it is stored as it is, else as scale * sum + beta * add; with the
    ``defines`` of an atomic, scale * sum is added to dw. ``first`` is the place of the launch's first slice in the
    scratch."""

    scale: float = 1.0
    beta: float = 0.0
    has_add: bool = False
    to_scratch: bool = False
    defines: Defines = ()
    first: int = 0


def push_block(p: WeightGradient, split: SplitK) -> Mapping[str, Argument]:
    """The push constants BACKWARD_WEIGHT_SUM_PUSH of vkconv/shaders/wgrad.py."""
    return {
        **dict(zip(("d", "h", "w"), p.extent, strict=True)),
        **dict(zip(("od", "oh", "ow"), p.out, strict=True)),
        **dict(zip(("kd", "kh", "kw"), p.kernel, strict=True)),
        **dict(zip(("sd", "sh", "sw"), p.stride, strict=True)),
        **dict(zip(("dd", "dh", "dw"), p.dilation, strict=True)),
        **dict(zip(("pf", "pt", "pl"), p.before, strict=True)),
        **dict(zip(("tile_n", "tile_d", "tile_h", "tile_w"), split.box, strict=True)),
        **{"n": p.n, "c_in": p.c_in, "c_out": p.c_out, "groups": p.groups, "per_box": split.per_box},
    }


def launch(
    tile: Tile,
    p: WeightGradient,
    split: SplitK,
    output: Output,
    buffers: Mapping[str, str | None],
    device: Device,
) -> Dispatch:
    """The launch of a tile's kernel over all slices; ``buffers`` maps x, dy, add and result."""
    threads = split.count(p) * tile.blocks(p) * tile.local
    shader = Shader(tile.kernel, defines=(*output.defines, *tile.defines(device)))
    numbers = {"scale": output.scale, "beta": output.beta, "first_slice": output.first}
    common = {"TO_SCRATCH": output.to_scratch, "HAS_ADD": output.has_add, "PADDED": p.padded}
    return Dispatch(
        shader,
        shader.taking(buffers),
        *over_invocations(threads, tile.local, device),
        push=shader.taking({**push_block(p, split), **numbers}),
        constants=shader.taking({**common, **tile.specialization(p, split, device)}),
        shared_bytes=tile.shared_bytes,
        loop_iterations=tile.iterations(p, split),
        pushes=isinstance(tile, GemmTile) and pushes(tile, tile.kernel, device),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Gemm(GemmTile):
    """Implicit GEMM in shared memory: rows are output channels, columns input channels and taps, k-tiles pixels."""

    kernel: ClassVar[Kernel] = shaders.wgrad.BACKWARD_WEIGHT_GEMM

    @property
    def name(self) -> str:
        return f"gemm_{self.short}_{self.lane_rows}x{self.lane_columns}"

    @property
    def shared_bytes(self) -> int:
        return 4 * self.buffers * self.depth * (self.rows + 4 + self.columns + 4)

    def takes(self, p: WeightGradient) -> bool:
        return True

    def blocks(self, p: WeightGradient) -> int:
        return p.groups * ceil_div(p.rows, self.rows) * ceil_div(p.columns, self.columns)

    def k_tiles(self, p: WeightGradient) -> int:
        return ceil_div(p.pixels, self.depth)

    def iterations(self, p: WeightGradient, split: SplitK) -> int:
        return self.loop_iterations(ceil_div(ceil_div(split.pixels, self.depth), split.per_box) + 1)

    def sums(self, p: WeightGradient) -> int:
        return self.lane_rows * self.lane_columns

    def _vec4(self, p: WeightGradient) -> bool:
        return p.pointwise and math.prod(p.out) % 4 == 0 and self.depth % 4 == 0

    def gathers(self, p: WeightGradient) -> bool:
        return not (p.by_channel or self._vec4(p))

    def reloads(self, p: WeightGradient) -> float:
        return 0.0

    def cost(self, p: WeightGradient, device: Device) -> float:
        # A multiply-add is 1, a number read from shared memory 1, one loaded, placed and stored 30.
        tile, side = self.lane_rows * self.lane_columns, self.lane_rows + self.lane_columns
        of_pixel = self.local * (tile + side) + 30 * (self.rows + self.columns)
        return float(self.blocks(p) * self.k_tiles(p) * self.depth * of_pixel)

    def specialization(self, p: WeightGradient, split: SplitK, device: Device) -> Mapping[str, Word]:
        # Neither a vec4 nor a slice may begin within four pixels.
        vec4 = not p.by_channel and self._vec4(p) and split.box[1:] == p.out
        taps = dict(zip(("KD", "KH", "KW"), p.kernel, strict=True))
        loads = {"VEC4": vec4, "BY_CHANNEL": p.by_channel}
        return {**self.constants, **taps, **loads, "Y_VEC4": p.columns % 4 == 0, "DEEP": p.deep}

    def defines(self, device: Device) -> Defines:
        return ()


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Registers alone. ``rows`` output channels by ``runs`` of an invocation, a run being neighbouring taps of a row
    of the kernel, of an input channel; ``pixels`` of dy at a time. ``across`` groups each lane loads its own dy, within
    one all load the same."""

    rows: int
    runs: int
    pixels: int
    across: bool = False
    local: int = 8
    kernel: ClassVar[Kernel] = shaders.wgrad.BACKWARD_WEIGHT_ROWS
    shared_bytes: ClassVar[int] = 0

    @property
    def name(self) -> str:
        return f"rows_{self.rows}x{self.runs}x{self.pixels}{'_across' if self.across else ''}"

    def fits(self, device: Device) -> bool:
        return self.local <= most_invocations(device)

    def takes(self, p: WeightGradient) -> bool:
        taps = _taps(p)
        inputs = self.runs * _span(p, 2, self.pixels, taps)
        unrolled = self.sums(p) * self.pixels
        spills = self.rows * self.runs > 1 and (
            inputs > 2 * MOST_SPAN or self.sums(p) > _MOST_SUMS or unrolled > _MOST_UNROLLED
        )
        runs = self._runs_of_group(p)
        within = not self.across or (p.groups > 1 and runs % self.runs == 0)
        small = self.rows < max(2, 2 * p.rows) and self.runs < max(2, 2 * runs)
        small = small and (self.pixels != 7 or p.out[2] % 7 == 0)
        return within and small and not spills and _span(p, 2, self.pixels, taps) <= MOST_SPAN

    def _runs_of_group(self, p: WeightGradient) -> int:
        return p.channels * p.kernel[0] * p.kernel[1] * ceil_div(p.kernel[2], _taps(p))

    def blocks(self, p: WeightGradient) -> int:
        groups = 1 if self.across else p.groups
        runs = self._runs_of_group(p) * (p.groups if self.across else 1)
        return groups * ceil_div(p.rows, self.rows) * ceil_div(runs, self.local * self.runs)

    def k_tiles(self, p: WeightGradient) -> int:
        line, rest = divmod(p.out[2], self.pixels)
        return p.n * p.out[0] * p.out[1] * max(line, rest)

    def iterations(self, p: WeightGradient, split: SplitK) -> int:
        line, rest = divmod(split.box[3], self.pixels)
        return ceil_div(split.lines * line, split.per_box) + ceil_div(split.lines * rest, split.per_box)

    def sums(self, p: WeightGradient) -> int:
        return self.rows * self.runs * _taps(p)

    def gathers(self, p: WeightGradient) -> bool:
        return True

    def reloads(self, p: WeightGradient) -> float:
        return 0.0

    def cost(self, p: WeightGradient, device: Device) -> float:
        taps, sums, costs = _taps(p), self.sums(p), COSTS.of(device)
        line, rest = divmod(p.out[2], self.pixels)

        def step(pixels: int, met: int) -> float:
            values = self.rows * pixels
            shared = costs.load * ceil_div(values, self.local) + costs.share * values
            dy = costs.load * values if self.across else shared
            return dy + costs.load * self.runs * met + costs.multiply_add * sums * (pixels + 1) + costs.iteration

        of_line = line * step(self.pixels, _met(p, 2, self.pixels, taps)) + rest * step(1, taps)
        return float(self.blocks(p) * p.n * p.out[0] * p.out[1] * of_line)

    def specialization(self, p: WeightGradient, split: SplitK, device: Device) -> Mapping[str, Word]:
        sizes = {"ROWS": self.rows, "RUNS": self.runs, "PX": self.pixels, "ACROSS_GROUPS": self.across}
        lanes = min(device.subgroup_size, self.local)
        return {**sizes, "TAPS_X": _taps(p), "SW": p.stride[2], "DW": p.dilation[2], "SUBGROUP": lanes}

    def defines(self, device: Device) -> Defines:
        full = self.local % device.subgroup_size == 0 and not self.across
        return SUBGROUPS if full and shuffles(device) else ()


@dataclasses.dataclass(frozen=True, slots=True)
class Skinny:
    """A reduction by the lanes of a workgroup. ``rows`` are its output channels, ``pixels`` those of a column of dy
    that a lane takes at a time, ``local`` its lanes."""

    rows: int
    pixels: int
    local: int
    kernel: ClassVar[Kernel] = shaders.wgrad.BACKWARD_WEIGHT_SKINNY

    @property
    def name(self) -> str:
        return f"skinny_{self.rows}x{self.pixels}x{self.local}"

    @property
    def shared_bytes(self) -> int:
        return 4 * _MOST_MEETING * self.local

    def fits(self, device: Device) -> bool:
        return holds_workgroup(device, self.local, self.shared_bytes)

    def takes(self, p: WeightGradient) -> bool:
        return _span(p, 1, self.pixels, self._taps(p)[0]) <= _MOST_COLUMN

    def _taps(self, p: WeightGradient) -> tuple[int, int]:
        """Taps of an invocation along h and w: up to 5 x 5, and one row of them where there are several rows of dw."""
        across = ceil_div(p.kernel[2], ceil_div(p.kernel[2], _MOST_TAPS))
        most = max(1, (72 if self.rows > 1 else 32) // (across * self.rows))
        down = min(p.kernel[1], most)
        return (down if _span(p, 1, 1, down) <= _MOST_COLUMN else 1), across

    def blocks(self, p: WeightGradient) -> int:
        y, x = self._taps(p)
        taps = p.kernel[0] * ceil_div(p.kernel[1], y) * ceil_div(p.kernel[2], x)
        return ceil_div(p.rows, self.rows) * p.c_in * taps

    def _columns(self, extents: tuple[int, int, int, int]) -> int:
        n, d, h, w = extents
        return n * d * ceil_div(h, self.pixels) * w

    def k_tiles(self, p: WeightGradient) -> int:
        return ceil_div(self._columns(p.reduction), self.local)

    def _meeting(self, p: WeightGradient) -> int:
        """Sums that lanes add together at a time, a power of two."""
        return min(1 << (self.sums(p) - 1).bit_length(), _MOST_MEETING, self.local)

    def iterations(self, p: WeightGradient, split: SplitK) -> int:
        meeting = self._meeting(p)
        tail = ceil_div(self.sums(p), meeting) * (meeting + self.local // meeting + 2)
        return ceil_div(ceil_div(self._columns(split.box), split.per_box), self.local) + tail

    def sums(self, p: WeightGradient) -> int:
        y, x = self._taps(p)
        return self.rows * y * x

    def gathers(self, p: WeightGradient) -> bool:
        return True

    def reloads(self, p: WeightGradient) -> float:
        column = self.rows * self.pixels + _met(p, 1, self.pixels, self._taps(p)[0])
        return float(self.blocks(p) * self._columns(p.reduction) * column)

    def cost(self, p: WeightGradient, device: Device) -> float:
        # A multiply-add is 1, a load 6: it comes from a cache.
        y, x = self._taps(p)
        loads = self.rows * self.pixels + x * _met(p, 1, self.pixels, y)
        return float(self.blocks(p) * self._columns(p.reduction) * (self.pixels * self.rows * y * x + 6 * loads))

    def specialization(self, p: WeightGradient, split: SplitK, device: Device) -> Mapping[str, Word]:
        taps = dict(zip(("TAPS_Y", "TAPS_X"), self._taps(p), strict=True))
        sizes = {"ROWS": self.rows, "PX": self.pixels, "LANES": self.local, "MEET": self._meeting(p)}
        return {**sizes, **taps, "SH": p.stride[1], "DH": p.dilation[1], "DEEP": p.deep}

    def defines(self, device: Device) -> Defines:
        return ()


def _span(p: WeightGradient, axis: int, pixels: int, taps: int) -> int:
    """Inputs along an axis (1: h, 2: w) that so many neighbouring pixels of dy and taps meet, from the first to the
    last."""
    return spanned(pixels, p.stride[axis], taps, p.dilation[axis])


def _met(p: WeightGradient, axis: int, pixels: int, taps: int) -> int:
    """How many of those inputs are met at all."""
    return len({q * p.stride[axis] + t * p.dilation[axis] for q in range(pixels) for t in range(taps)})


def _taps(p: WeightGradient) -> int:
    """Taps of a row of the kernel that an invocation takes: even shares that are not far apart."""
    taps = ceil_div(p.kernel[2], ceil_div(p.kernel[2], _MOST_TAPS))
    return taps if _span(p, 2, 1, taps) <= MOST_SPAN // 2 else 1
