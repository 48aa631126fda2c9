"""What Winograd's minimal filtering for 3x3 and 5x5 kernels of stride 1 shares between conv2d and its gradient by the
weights.

F(m x m, r x r) makes m x m outputs with (m + r - 1)^2 products instead of (m r)^2: for r = 3 2.25 times fewer with
m = 2 and 4 times with m = 4, for r = 5 2.78 times with m = 2 and 6.25 times with m = 4 (Lavin and Gray 2015,
arXiv:1509.09308). The transforms are those of shaders/kernels/winograd.glsl.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

from vkconv import shaders
from vkconv.core import align, ceil_div
from vkconv.cost import Scale
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.core.base import divisor, first, over_invocations, over_workgroups
from vkconv.policy import Policy
from vkconv.program import Argument, Dispatch

# Outputs on a side of a tile for each number of taps on a side: larger tiles round worse.
OUTPUTS = {3: (4, 2), 5: (4, 2)}
# Thresholds of tiles and bytes count tiles of so many points on a side: of 4x4 outputs for 3x3, of 2x2 for 5x5.
_COUNTED_POINTS = 6
SOURCE = "Lavin and Gray 2015, arXiv:1509.09308"
INPUT = Shader(shaders.kernels.WINOGRAD_INPUT)
BY_CHANNEL = Shader(shaders.kernels.WINOGRAD_BY_CHANNEL)


_LOCAL = Policy("kernels.transform_local", int)


@dataclasses.dataclass(frozen=True, slots=True)
class Transforms:
    """Us of the launches of transforms before and after products, and of a MiB that they read and write,
    ``cached_mib_us`` of those that a half of the last-level cache holds, of the device of the shipped file ``timed_on``
    (none: not known)."""

    launches_us: float = 0.0
    cached_mib_us: float = 0.0
    mib_us: float = 0.0
    timed_on: str = ""

    def us(self, nbytes: float, device: Device) -> float:
        """Microseconds of transforms that move so many bytes, on a device."""
        target, moved_mib = target_of(device), nbytes / 2**20
        scale, cached_mib = Scale.of(self.timed_on, target), target.value("cache_bytes") / 2**21
        cached_us = scale.cached(self.cached_mib_us * min(moved_mib, cached_mib))
        moved_us = scale.moved(self.mib_us * max(0.0, moved_mib - cached_mib))
        return scale.launched(self.launches_us, _TRANSFORMS) + cached_us + moved_us


TRANSFORMS = Policy("kernels.winograd_transforms", Transforms)
_TRANSFORMS = 2  # launches that wait for each other: those before the products and those after


def kernels_str(taps: Iterable[int] = OUTPUTS) -> str:
    """Kernels of so many taps on a side, as 3x3 or 5x5."""
    return " or ".join(f"{r}x{r}" for r in taps)


@dataclasses.dataclass(frozen=True, slots=True)
class Defaults:
    """Taps on a side of kernels whose tiles are the largest where sums are long, and of those whose tiles are the ones
    of the least estimate, on devices that have one. Those of others are the smallest."""

    largest: tuple[int, ...]
    estimated: tuple[int, ...] = ()


_DEFAULTS = Policy("kernels.winograd_outputs", Defaults)


def outputs_of(r: int, long_sum: bool, device: Device, us: Callable[[int], float | None]) -> tuple[int, ...]:
    """Outputs on a side of the tiles of r x r kernels, the default first; where a sum is short those alone that round
    least. ``us`` estimates what a call takes by tiles of so many. Kernels that the transforms do not take count as
    tiles of 2."""
    by, defaults = OUTPUTS.get(r, (2,)), _DEFAULTS.of(device)
    if not long_sum or len(by) == 1:
        return by[-1:]
    if r in defaults.largest:
        return by
    estimates = {m: us(m) for m in by} if r in defaults.estimated else {}
    known = {m: value for m, value in estimates.items() if value is not None}
    return first(min(known, key=lambda m: known[m]) if len(known) == len(by) else by[-1], by)


def counted_outputs(r: int) -> int:
    """Outputs on a side of the tiles that thresholds count."""
    return max(1, _COUNTED_POINTS + 1 - r)


def local_size(device: Device) -> int:
    """Invocations of a workgroup of a transform."""
    return _LOCAL.of(device)


@dataclasses.dataclass(frozen=True, slots=True)
class WinogradTiles:
    """The tiles of m x m outputs of a kernel of r x r: ``rows`` x ``columns`` of each of ``images``, in the order of
    their places."""

    m: int
    r: int
    images: int
    rows: int
    columns: int

    @classmethod
    def of(cls, m: int, r: int, images: int, extent: Sequence[int]) -> "WinogradTiles":
        """Those of outputs of that height and width."""
        return cls(m, r, images, ceil_div(extent[0], m), ceil_div(extent[1], m))

    @property
    def total(self) -> int:
        return self.images * self.rows * self.columns

    @property
    def push(self) -> dict[str, Argument]:
        """Push constants of kernels that take tiles."""
        return {"tiles_y": self.rows, "tiles_x": self.columns}

    def of_pass(self, first: int, count: int) -> dict[str, Argument]:
        """Push constants of kernels that take ``count`` tiles from ``first`` on, or those that there are."""
        divisors = divisor("x", self.columns) | divisor("y", self.rows) | divisor("count", count)
        return {"first": first, "count": count, "end": min(first + count, self.total), **divisors}

    @property
    def points(self) -> int:
        """Products of a tile and a pair of channels."""
        return (self.m + self.r - 1) ** 2

    @property
    def constants(self) -> dict[str, int]:
        """Constants of the kernels of transforms."""
        return {"M": self.m, "R": self.r}

    def chunk(self, channels: int, mib: int) -> int:
        """Tiles of a pass whose scratch, of so many channels in and out, takes at most so many MiB; passes are alike
        but the last."""
        most = max(64, (mib << 20) // (4 * self.points * channels))
        passes = ceil_div(self.total, most)
        # By vec4 they load and store faster.
        return max(self.total, 1) if passes <= 1 else align(ceil_div(self.total, passes), 4)

    def scratch_sizes(self, channels: int, mib: Sequence[int]) -> tuple[int, ...]:
        """Those of the sizes of scratch that make different passes."""
        different: dict[int, int] = {}
        for size in mib:
            different.setdefault(self.chunk(channels, size), size)
        return tuple(different.values())


def inputs(
    tiles: WinogradTiles,
    x: Sequence[int],
    padding: Sequence[int],
    first: int,
    count: int,
    device: Device,
    pairs: bool = False,
) -> Dispatch:
    """The launch that transforms ``count`` tiles of x (N, C_in, H, W) from ``first`` on, to the buffer ``inputs``;
    zeros past the last. With ``pairs`` a lane takes two neighbours, and count is even."""
    local, (c_in, h, w), of_lane = local_size(device), x[1:], 2 if pairs else 1
    whole_pairs = pairs and w % 2 == 0 and tiles.columns % 2 == 0
    return Dispatch(
        INPUT,
        {"x": "x", "v": "inputs"},
        *over_invocations(c_in * count // of_lane, local, device),
        {
            "c_in": c_in,
            "h": h,
            "w": w,
            **tiles.push,
            "pt": padding[0],
            "pl": padding[1],
            **tiles.of_pass(first, count),
        },
        {**tiles.constants, "TILES": of_lane, "PAIRED": whole_pairs},
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Patch:
    """What a workgroup of the transform by channels takes: ``channels`` of ``rows`` x ``columns`` neighbouring tiles,
    of windows of so many elements on a side."""

    channels: int
    rows: int
    columns: int
    window: int

    def area(self, m: int) -> int:
        """Elements of a channel that its tiles of m x m outputs have, those that they share once."""
        return ((self.rows - 1) * m + self.window) * ((self.columns - 1) * m + self.window)

    def shared_bytes(self, m: int) -> int:
        """Of its planes, each of an odd number of elements."""
        return 4 * self.channels * (self.area(m) // 2 * 2 + 1)


# Channels that lanes store side by side: 128 bytes, a cache line of most GPUs. Half of them where that moves so much
# less: of eight points on a side shared memory holds two tiles of 32 channels, which half of the lanes transform.
_CHANNELS, _WORTH_HALF = 32, 0.75
_SHARED_BYTES = 16 << 10  # what every Vulkan device has


@functools.lru_cache(maxsize=256)  # each candidate of the chooser asks
def patch_of(tiles: WinogradTiles, window: int, channels: int, local: int) -> Patch:
    """The patch by which workgroups of ``local`` invocations load, transform and store the fewest elements, lanes that
    idle counted too; ``window`` elements on a side of a tile, of a tensor of so many channels."""

    def moved(patch: Patch) -> int:
        patches = ceil_div(tiles.rows, patch.rows) * ceil_div(tiles.columns, patch.columns)
        loaded = align(patch.channels * patch.area(tiles.m), local)
        transformed = align(patch.channels * patch.rows * patch.columns, local) * (window**2 + tiles.points)
        return patches * (loaded + transformed)

    def best(together: int) -> Patch:
        # A row of tiles is at least one of outputs: no more of them fit.
        most = _SHARED_BYTES // (4 * together * tiles.m * window)
        sides = (range(1, max(1, min(extent, most)) + 1) for extent in (tiles.rows, tiles.columns))
        patches = (Patch(together, rows, columns, window) for rows, columns in itertools.product(*sides))
        fitting = (patch for patch in patches if patch.shared_bytes(tiles.m) <= _SHARED_BYTES)
        return min(fitting, key=lambda patch: (moved(patch), patch.area(tiles.m)))

    whole = best(min(_CHANNELS, 1 << (channels - 1).bit_length()))
    half = best(whole.channels // 2) if whole.channels == _CHANNELS else whole
    return half if 2 * moved(half) <= _WORTH_HALF * moved(whole) else whole


def by_channel(
    tiles: WinogradTiles,
    buffers: tuple[str, str],
    x: Sequence[int],
    padding: Sequence[int],
    groups: int,
    first: int,
    count: int,
    device: Device,
    gradient: bool = False,
) -> Dispatch:
    """The launch that transforms ``count`` tiles of the first of two buffers, x (N, C, H, W), or with ``gradient`` dy,
    from ``first`` on, to the second one: [point][group][tile][channel of the group, to whole vec4], all of tiles that
    there are."""
    local, (channels, h, w), in_image = local_size(device), x[1:], tiles.rows * tiles.columns
    patch = patch_of(tiles, tiles.m if gradient else tiles.m + tiles.r - 1, channels, local)
    images = ceil_div(first + count, in_image) - first // in_image
    patches = images * ceil_div(tiles.rows, patch.rows) * ceil_div(tiles.columns, patch.columns)
    sizes = {"CHANNELS": patch.channels, "ROWS": patch.rows, "COLUMNS": patch.columns}
    return Dispatch(
        BY_CHANNEL,
        dict(zip(("x", "v"), buffers, strict=True)),
        *over_workgroups(patches * ceil_div(channels, patch.channels), local, device),
        {
            **{"images": images, "channels": channels, "groups": groups, "h": h, "w": w},
            **{**tiles.push, "pt": padding[0], "pl": padding[1], "first": first, "count": count},
        },
        {**tiles.constants, "GRADIENT": gradient, **sizes},
        shared_bytes=patch.shared_bytes(tiles.m),
    )
