"""The kernels of a convolution's gradient by its weights: what a workgroup makes of dw, and how each is launched."""

import dataclasses
import math
from typing import Protocol

from vkconv import kernel as declared
from vkconv import shaders
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad.problem import Problem
from vkconv.ops.core.base import linear_groups, most_invocations
from vkconv.ops.core.requirements import shuffles
from vkconv.ops.kernels.cpu_cost import COSTS
from vkconv.ops.kernels.gemm_tile import GemmTile
from vkconv.ops.kernels.prepack import MOST_SPAN
from vkconv.ops.kernels.windows import spanned
from vkconv.program import Bind, Dispatch, Word, positional

ATOMIC_CAS, ATOMIC_FLOAT, SUBGROUPS = (("ATOMIC_CAS", ""),), (("ATOMIC_FLOAT", ""),), (("SUBGROUPS", ""),)
Defines = tuple[tuple[str, str], ...]

_MOST_TAPS = 8
_MOST_SUMS = 192
_MOST_UNROLLED = 1152
_MOST_MEETING = 16
_MOST_COLUMN = 12  # inputs of a column that a lane of the narrow kernel meets: one of 17 took three times one of 9


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """How the sum is cut: boxes of ``tile`` (images, d, h, w of dy; a last one may be smaller), each in ``cuts``."""

    tile: tuple[int, int, int, int]
    cuts: int = 1

    def count(self, p: Problem) -> int:
        return self.boxes(p) * self.cuts

    def boxes(self, p: Problem) -> int:
        return math.prod(max(ceil_div(extent, tile), 1) for extent, tile in zip(p.reduction, self.tile, strict=True))

    @property
    def pixels(self) -> int:
        """Of the largest box."""
        return math.prod(self.tile)

    @property
    def lines(self) -> int:
        """Rows of dy of the largest box."""
        return math.prod(self.tile[:3])


def whole(p: Problem, cuts: int = 1) -> Parts:
    """The whole sum as one box."""
    n, d, h, w = (max(extent, 1) for extent in p.reduction)
    return Parts((n, d, h, w), cuts)


class Kernel(Protocol):
    """One shader with its tile sizes."""

    @property
    def declared(self) -> declared.Kernel: ...

    @property
    def local(self) -> int:
        """Invocations of a workgroup."""

    @property
    def shared_bytes(self) -> int: ...

    @property
    def half_busy(self) -> int:
        """Subgroups of 32 with which a unit of a GPU works at half its rate, since they wait for what they load."""

    def fits(self, device: Device) -> bool:
        """Whether a workgroup of the device can hold it."""

    def takes(self, p: Problem) -> bool:
        """Whether its registers hold what the problem needs of them, and the problem is not far smaller than it."""

    def blocks(self, p: Problem) -> int:
        """Workgroups that make one part of dw."""

    def slices(self, p: Problem) -> int:
        """Steps that the whole sum takes, into which it may be cut."""

    def iterations(self, p: Problem, parts: Parts) -> int:
        """Loop iterations of one invocation."""

    def sums(self, p: Problem) -> int:
        """Running sums that an invocation holds in registers."""

    def cost(self, p: Problem) -> float:
        """An estimate of the time of the whole sum, in multiply-adds of an invocation or a SIMD vector."""

    def spec(self, p: Problem, parts: Parts, device: Device) -> tuple[Word, ...]:
        """The specialization constants that its shader has of its own."""

    def defines(self, device: Device) -> Defines:
        """The variant of its shader that suits the device."""


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """What becomes of a part: with ``to_parts`` it is stored as it is, else as scale * part + beta * add, or where
    ``defines`` say so, scale * part is added to dw by an atomic operation. ``first`` is where the parts of this launch
    begin among those of the scratch."""

    scale: float = 1.0
    beta: float = 0.0
    has_add: bool = False
    to_parts: bool = False
    defines: Defines = ()
    first: int = 0


def push_block(p: Problem, parts: Parts, output: Output) -> tuple[Word, ...]:
    """The push block of shaders/include/backward_weight_sum.glsl."""
    call = (p.n, p.c_in, *p.extent, p.c_out, *p.out, p.groups, *p.kernel, *p.stride, *p.dilation, *p.before)
    return (*call, *parts.tile, parts.cuts, output.first, output.scale, output.beta)


def launch(
    kernel: Kernel, p: Problem, parts: Parts, output: Output, binds: tuple[Bind, ...], device: Device
) -> Dispatch:
    """The launch of a kernel over all parts; bindings are x, dy, add and the output."""
    groups = parts.count(p) * kernel.blocks(p)
    return positional(
        Shader(kernel.declared, defines=(*output.defines, *kernel.defines(device))),
        binds,
        linear_groups(groups * kernel.local, kernel.local, device),
        (kernel.local, 1, 1),
        push_block(p, parts, output),
        (output.to_parts, output.has_add, p.deep, p.padded, *kernel.spec(p, parts, device)),
        kernel.shared_bytes,
        kernel.iterations(p, parts),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Gemm(GemmTile):
    """A tile of output channels x columns, slices of pixels deep."""

    @property
    def declared(self) -> declared.Kernel:
        return shaders.wgrad.BACKWARD_WEIGHT_GEMM

    def __str__(self) -> str:
        return f"gemm {self.rows}x{self.columns}x{self.depth} by {self.lane_rows}x{self.lane_columns}" + (
            f", {self.buffers} buffers" if self.buffers > 1 else ""
        )

    @property
    def half_busy(self) -> int:
        return 1

    @property
    def shared_bytes(self) -> int:
        return 4 * self.buffers * self.depth * (self.rows + 4 + self.columns + 4)

    def takes(self, p: Problem) -> bool:
        return True

    def blocks(self, p: Problem) -> int:
        return p.groups * ceil_div(p.rows, self.rows) * ceil_div(p.columns, self.columns)

    def slices(self, p: Problem) -> int:
        return ceil_div(p.pixels, self.depth)

    def iterations(self, p: Problem, parts: Parts) -> int:
        return ceil_div(ceil_div(parts.pixels, self.depth), parts.cuts) + 1

    def sums(self, p: Problem) -> int:
        return self.lane_rows * self.lane_columns

    def cost(self, p: Problem) -> float:
        # A multiply-add is 1, a number read from shared memory 1, one loaded, placed and stored 30.
        tile, side = self.lane_rows * self.lane_columns, self.lane_rows + self.lane_columns
        of_pixel = self.local * (tile + side) + 30 * (self.rows + self.columns)
        return float(self.blocks(p) * self.slices(p) * self.depth * of_pixel)

    def spec(self, p: Problem, parts: Parts, device: Device) -> tuple[Word, ...]:
        # By fours, neither a load nor a part may begin within one.
        fours = p.pointwise and math.prod(p.out) % 4 == 0 and self.depth % 4 == 0 and parts.tile[1:] == p.out
        return (*self.sizes, *p.kernel, fours)

    def defines(self, device: Device) -> Defines:
        return ()


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Output channels and units (an input channel, a row of the kernel, neighbouring taps) of an invocation, pixels it
    takes at a time, and invocations. ``across`` groups, each lane loads what it needs of dy; within one, all load the
    same."""

    rows: int
    units: int
    pixels: int
    across: bool = False
    local: int = 8

    @property
    def declared(self) -> declared.Kernel:
        return shaders.wgrad.BACKWARD_WEIGHT_ROWS

    def __str__(self) -> str:
        across = " across groups" if self.across else ""
        return f"rows {self.rows} by {self.units} units{across}, {self.pixels} pixels"

    @property
    def half_busy(self) -> int:
        return 1

    @property
    def shared_bytes(self) -> int:
        return 0

    def fits(self, device: Device) -> bool:
        return self.local <= most_invocations(device)

    def takes(self, p: Problem) -> bool:
        taps = _taps(p, _MOST_TAPS)
        inputs = self.units * _span(p, 2, self.pixels, taps)
        unrolled = self.sums(p) * self.pixels
        spread = self.rows * self.units > 1 and (
            inputs > 2 * MOST_SPAN or self.sums(p) > _MOST_SUMS or unrolled > _MOST_UNROLLED
        )
        units = self._units_of_group(p)
        within = not self.across or (p.groups > 1 and units % self.units == 0)
        small = self.rows < max(2, 2 * p.rows) and self.units < max(2, 2 * units)
        small = small and (self.pixels != 7 or p.out[2] % 7 == 0)
        return within and small and not spread and _span(p, 2, self.pixels, taps) <= MOST_SPAN

    def _units_of_group(self, p: Problem) -> int:
        return p.channels * p.kernel[0] * p.kernel[1] * ceil_div(p.kernel[2], _taps(p, _MOST_TAPS))

    def blocks(self, p: Problem) -> int:
        groups = 1 if self.across else p.groups
        units = self._units_of_group(p) * (p.groups if self.across else 1)
        return groups * ceil_div(p.rows, self.rows) * ceil_div(units, self.local * self.units)

    def slices(self, p: Problem) -> int:
        line, rest = divmod(p.out[2], self.pixels)
        return p.n * p.out[0] * p.out[1] * max(line, rest)

    def iterations(self, p: Problem, parts: Parts) -> int:
        line, rest = divmod(parts.tile[3], self.pixels)
        return ceil_div(parts.lines * line, parts.cuts) + ceil_div(parts.lines * rest, parts.cuts)

    def sums(self, p: Problem) -> int:
        return self.rows * self.units * _taps(p, _MOST_TAPS)

    def cost(self, p: Problem) -> float:
        taps, sums = _taps(p, _MOST_TAPS), self.sums(p)
        line, rest = divmod(p.out[2], self.pixels)

        def step(pixels: int, met: int) -> float:
            values = self.rows * pixels
            dy = (
                COSTS.load * values if self.across else COSTS.load * ceil_div(values, self.local) + COSTS.share * values
            )
            return dy + COSTS.load * self.units * met + COSTS.multiply_add * sums * (pixels + 1) + COSTS.iteration

        of_line = line * step(self.pixels, _met(p, 2, self.pixels, taps)) + rest * step(1, taps)
        return float(self.blocks(p) * p.n * p.out[0] * p.out[1] * of_line)

    def spec(self, p: Problem, parts: Parts, device: Device) -> tuple[Word, ...]:
        taps = _taps(p, _MOST_TAPS)
        subgroup = min(device.subgroup_size, self.local)
        return (self.rows, self.units, self.pixels, self.across, taps, p.stride[2], p.dilation[2], subgroup)

    def defines(self, device: Device) -> Defines:
        full = self.local % device.subgroup_size == 0 and not self.across
        return SUBGROUPS if full and shuffles(device) else ()


@dataclasses.dataclass(frozen=True, slots=True)
class Narrow:
    """Output channels of a workgroup, pixels of a column of dy that a lane takes at a time, and lanes."""

    rows: int
    pixels: int
    local: int

    @property
    def declared(self) -> declared.Kernel:
        return shaders.wgrad.BACKWARD_WEIGHT_NARROW

    def __str__(self) -> str:
        return f"narrow {self.rows}, {self.pixels} pixels, {self.local} lanes"

    @property
    def half_busy(self) -> int:
        return 6

    @property
    def shared_bytes(self) -> int:
        return 4 * _MOST_MEETING * self.local

    def fits(self, device: Device) -> bool:
        shared = device.limit("maxComputeSharedMemorySize")
        return self.local <= most_invocations(device) and self.shared_bytes <= shared

    def takes(self, p: Problem) -> bool:
        return _span(p, 1, self.pixels, self._taps(p)[0]) <= _MOST_COLUMN

    def _taps(self, p: Problem) -> tuple[int, int]:
        """Taps of an invocation along h and w: up to 5 x 5, and one row of them where there are several rows of dw."""
        across = ceil_div(p.kernel[2], ceil_div(p.kernel[2], _MOST_TAPS))
        most = max(1, (72 if self.rows > 1 else 32) // (across * self.rows))
        down = min(p.kernel[1], most)
        return (down if _span(p, 1, 1, down) <= _MOST_COLUMN else 1), across

    def blocks(self, p: Problem) -> int:
        y, x = self._taps(p)
        taps = p.kernel[0] * ceil_div(p.kernel[1], y) * ceil_div(p.kernel[2], x)
        return ceil_div(p.rows, self.rows) * p.c_in * taps

    def _units(self, extents: tuple[int, int, int, int]) -> int:
        n, d, h, w = extents
        return n * d * ceil_div(h, self.pixels) * w

    def slices(self, p: Problem) -> int:
        return ceil_div(self._units(p.reduction), self.local)

    def _meeting(self, p: Problem) -> int:
        """Sums that lanes add together at a time, a power of two."""
        return min(1 << (self.sums(p) - 1).bit_length(), _MOST_MEETING, self.local)

    def iterations(self, p: Problem, parts: Parts) -> int:
        meeting = self._meeting(p)
        tail = ceil_div(self.sums(p), meeting) * (meeting + self.local // meeting + 2)
        return ceil_div(ceil_div(self._units(parts.tile), parts.cuts), self.local) + tail

    def sums(self, p: Problem) -> int:
        y, x = self._taps(p)
        return self.rows * y * x

    def cost(self, p: Problem) -> float:
        # A multiply-add is 1, a load 6: it comes from a cache.
        y, x = self._taps(p)
        loads = self.rows * self.pixels + x * _met(p, 1, self.pixels, y)
        return float(self.blocks(p) * self._units(p.reduction) * (self.pixels * self.rows * y * x + 6 * loads))

    def spec(self, p: Problem, parts: Parts, device: Device) -> tuple[Word, ...]:
        taps = self._taps(p)
        return (self.rows, self.pixels, *taps, p.stride[1], p.dilation[1], self.local, self._meeting(p))

    def defines(self, device: Device) -> Defines:
        return ()


def _span(p: Problem, axis: int, pixels: int, taps: int) -> int:
    """Inputs along an axis (1: h, 2: w) that so many neighbouring pixels of dy and taps meet, from the first to the
    last."""
    return spanned(pixels, p.stride[axis], taps, p.dilation[axis])


def _met(p: Problem, axis: int, pixels: int, taps: int) -> int:
    """How many of those inputs are met at all."""
    return len({q * p.stride[axis] + t * p.dilation[axis] for q in range(pixels) for t in range(taps)})


def _taps(p: Problem, most: int) -> int:
    """Taps of a row of the kernel that an invocation takes: even shares of at most ``most`` that are not far apart."""
    taps = ceil_div(p.kernel[2], ceil_div(p.kernel[2], most))
    return taps if _span(p, 2, 1, taps) <= MOST_SPAN // 2 else 1
