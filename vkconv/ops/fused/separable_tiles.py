"""Tiles of a depthwise and a 1x1 convolution in one launch: sizes, what fits, what a tile costs."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.cost import Issued, launch_us, spills
from vkconv.device import Device, target_of
from vkconv.kernel import Kernel
from vkconv.ops.core.base import first, holds_workgroup
from vkconv.ops.kernels import compiled
from vkconv.ops.kernels.gemm_tile import GemmTile
from vkconv.ops.kernels.windows import spanned
from vkconv.policy import Policy

# Outputs of a column that an invocation convolves at a time: heights are multiples of it.
_COLUMN = 4
_VEC4 = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """Of each k-tile, in multiply-adds of a product: one of the depthwise and of the expanding convolution, an element
    that is loaded from memory, and the barriers of an invocation."""

    depthwise: float
    expand: float
    load: float
    barriers: float


_COSTS = Policy("fused.separable_costs", Costs)


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """What of a call the tiles depend on: images, output channels, rows and columns of outputs, channels between and of
    the input, the window, and whether the channels between are made from the input's by a product."""

    images: int
    channels: int
    rows: int
    columns: int
    between: int
    inputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    expands: bool = False

    @classmethod
    def of(cls, call: Call, expands: bool = False) -> "Problem":
        """That of a call with depthwise weights ``wd`` and the attributes of a convolution."""
        n, c_out, oh, ow = call.shape("y")
        between, _, kh, kw = call.shape("wd")
        window = (kh, kw), call["stride"], call["dilation"]
        return cls(n, c_out, oh, ow, between, call.shape("x")[1], *window, expands=expands)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)


@dataclasses.dataclass(frozen=True, slots=True)
class SeparableTile:
    """Output channels, rows and columns of pixels of a workgroup, channels between of a k-tile, and channels x pixels
    of an invocation."""

    channels: int
    high: int
    wide: int
    depth: int
    lane_channels: int
    lane_pixels: int

    @property
    def name(self) -> str:
        """``64x8x7x16_8x4``"""
        sizes = f"{self.channels}x{self.high}x{self.wide}x{self.depth}"
        return f"{sizes}_{self.lane_channels}x{self.lane_pixels}"

    @property
    def pixels(self) -> int:
        return self.high * self.wide

    @property
    def gemm(self) -> GemmTile:
        """The product of it."""
        return GemmTile(self.channels, self.pixels, self.depth, self.lane_channels, self.lane_pixels)

    @property
    def local(self) -> int:
        return self.gemm.local

    def window(self, p: Problem) -> int:
        """Elements of a channel that the windows of its pixels touch."""
        sides = zip((self.high, self.wide), p.stride, p.kernel, p.dilation, strict=True)
        return math.prod(spanned(*side) for side in sides)

    def vecs(self, p: Problem) -> int:
        """vec4 of channels that an invocation expands of a pixel at a time: as many as leave each one some."""
        window, most = self.window(p), self.depth // _VEC4
        return max((v for v in (1, 2, 4) if most % v == 0 and most // v * window >= self.local), default=1)

    def shared_bytes(self, p: Problem) -> int:
        return self.gemm.shared_bytes + 4 * self.depth * (self.window(p) + p.taps)

    def registers(self, p: Problem) -> int:
        """An estimate of the 32-bit registers of an invocation: the sums, the larger of the operands of the product and
        of what expands, addresses. Mali-G610's compiler takes 49 to 62 for 4x4 and spills of 8x4 where windows are
        large (Mesa's PanVK); taps and windows come from shared memory as they are needed."""
        sums = self.lane_channels * self.lane_pixels
        expand = _VEC4 * self.vecs(p) if p.expands else 0
        return sums + max(self.lane_channels + self.lane_pixels, expand) + 24

    def fits(self, p: Problem, device: Device) -> bool:
        """Whether a workgroup of the device can hold it."""
        return holds_workgroup(device, self.local, self.shared_bytes(p))

    def workgroups(self, p: Problem) -> int:
        tiles = ceil_div(p.rows, self.high) * ceil_div(p.columns, self.wide)
        return p.images * tiles * ceil_div(p.channels, self.channels)

    def k_tiles(self, p: Problem) -> int:
        return ceil_div(p.between, self.depth)

    def multiply_adds(self, p: Problem) -> int:
        """Of all workgroups, with what they repeat."""
        expanded = self.window(p) * p.inputs if p.expands else 0
        each = self.channels * self.pixels + self.pixels * p.taps + expanded
        return self.workgroups(p) * self.k_tiles(p) * self.depth * each

    def us(self, p: Problem, device: Device) -> float:
        """Microseconds of the compute unit that has the most to do."""
        c, target, window = _COSTS.of(device), target_of(device), self.window(p)
        work = self.pixels * (self.channels + c.depthwise * p.taps) + c.load * self.channels / _VEC4
        work += window * (c.expand * p.inputs if p.expands else c.load)
        work = self.k_tiles(p) * (self.depth * work + c.barriers * self.local)
        lanes = target.value("fma_per_unit")
        return launch_us(Issued(work / lanes, work / min(self.local, lanes)), self.workgroups(p), 1, target, launches=1)

    def loop_iterations(self, p: Problem) -> int:
        """Of an invocation: for each k-tile what it loads, expands and convolves."""
        loads = ceil_div(self.depth * self.window(p), self.local) + ceil_div(self.depth * p.taps, self.local)
        expand = ceil_div(self.depth // _VEC4 * self.window(p), self.local) * (1 + p.inputs) if p.expands else 0
        return self.k_tiles(p) * (1 + loads + expand + ceil_div(self.depth * self.pixels // _COLUMN, self.local))

    def constants(self, p: Problem) -> dict[str, int]:
        """The specialization constants of the kernel that are sizes."""
        (kh, kw), (sh, sw), (dh, dw) = p.kernel, p.stride, p.dilation
        sizes = {"TILE_H": self.high, "TILE_W": self.wide, "KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw}
        return {**self.gemm.constants, **sizes, **({"VECS": self.vecs(p)} if p.expands else {})}


_ALL = (
    SeparableTile(16, 8, 8, 16, 4, 4),
    SeparableTile(24, 8, 8, 16, 4, 4),
    SeparableTile(32, 8, 8, 16, 4, 4),
    SeparableTile(32, 8, 7, 16, 4, 4),
    SeparableTile(32, 4, 8, 16, 4, 4),
    SeparableTile(48, 4, 8, 16, 4, 4),
    SeparableTile(64, 8, 7, 16, 8, 4),
    SeparableTile(64, 4, 8, 16, 4, 4),
    SeparableTile(64, 4, 7, 16, 4, 4),
    SeparableTile(80, 4, 7, 16, 8, 4),
    SeparableTile(96, 4, 8, 16, 8, 4),
    SeparableTile(112, 4, 7, 16, 8, 4),
    SeparableTile(128, 4, 7, 16, 8, 4),
    SeparableTile(160, 4, 4, 16, 8, 4),
    SeparableTile(32, 8, 8, 8, 4, 4),
    SeparableTile(64, 4, 8, 8, 4, 4),
    SeparableTile(32, 4, 4, 4, 4, 4),
)
TILES: Mapping[str, SeparableTile] = {tile.name: tile for tile in _ALL}


def _keeps(tile: SeparableTile, p: Problem, kernel: Kernel, element: str, device: Device) -> bool:
    """Whether it stays in registers: as the GPU's compiler had it, else by estimate."""
    known = compiled.fits(kernel, tile.constants(p), element, device, "EXPAND" if p.expands else "")
    return not spills(tile.registers(p), device) if known is None else known


def tiles_by_rule(p: Problem, kernel: Kernel, element: str, device: Device) -> tuple[str, ...]:
    """The tiles that a device can hold, first the one that costs least of those that stay in registers."""
    fitting = {name: tile for name, tile in TILES.items() if tile.fits(p, device)}
    kept = [name for name, tile in fitting.items() if _keeps(tile, p, kernel, element, device)] or list(fitting)
    return first(min(kept, key=lambda name: fitting[name].us(p, device)), fitting) if fitting else ()


def needed(p: Problem, image: int) -> int:
    """Multiply-adds of the convolutions by themselves, of an input of so many pixels."""
    outputs = p.images * p.rows * p.columns * p.between * (p.channels + p.taps)
    return outputs + (p.images * image * p.between * p.inputs if p.expands else 0)


def repeated(tile: SeparableTile, p: Problem, image: int) -> int:
    """Multiply-adds of the tile beside those: channels and pixels beyond the last ones among them."""
    return max(0, tile.multiply_adds(p) - needed(p, image))
