"""The route of conv2d by cooperative matrices, for 16-bit floats: implicit GEMM, 1x1 as the matrix that it is."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import binds, constants, push
from vkconv.ops.conv.conv2d.implicit_gemm import in_slices, pads_much
from vkconv.ops.conv.tiles import sum_parts
from vkconv.ops.core.base import linear_groups, reciprocal
from vkconv.ops.core.requirements import INT32, ON_GPU, loop_iterations
from vkconv.ops.kernels.coopmat import EIGHT, NEEDS, TILES, CooperativeTile, blocks, split_by_rule, tiles_by_rule
from vkconv.ops.kernels.epilogue import SPLITS, SUM_SPLITS
from vkconv.ops.kernels.prepack import PACK_TILES, PACKED_WEIGHTS, Packing
from vkconv.program import Dispatch, Program, positional, read, write
from vkconv.route import Params, Requirement, Route

CONVOLUTION = Shader(shaders.conv2d.CONV2D_COOPERATIVE, DType.F16)
# Moves words of 16 bits, whatever they are.
CHANNELS_LAST = Shader(shaders.conv2d.CHANNELS_LAST, DType.U16)
CHANNELS_LAST_WORDS = Shader(shaders.conv2d.CHANNELS_LAST_WORDS, DType.U16)
_SIDE, _LANES = 64, 256  # pixels and channels, and invocations, of a workgroup of the first
_ACROSS = (4, 2, 1)  # eights of channels of a pixel that neighbours have, of the second, where there are as many


# Gathered, a word is eight loads; copied, the input is read and written once more. From so many input channels of a
# group on it is copied, if it is read so often: by taps, and by rows of workgroups. H200, us at batch 32, the copy
# included, and gathered: 64 to 64 channels 3x3 at 56x56 60 101, 256 to 256 at 14x14 72 126.
_LEAST_CHANNELS, _LEAST_READS, _ROWS = 16, 3, 128
# Planes of odd lengths are padded to whole eights, and read in words that are shifted, by each row of workgroups again.
# H200, us so and copied: 32 rows by planes of 85305 187 245, 1024 by 625 631 567, 2048 by 49 49 41.
_LEAST_PLANE, _MOST_ROWS = 128, 512


def word_of(shape: tuple[int, ...]) -> int:
    """Of how many elements planes of an image are whole words: 8, 4 or 1."""
    plane = math.prod(shape[2:])
    return next(word for word in (EIGHT, EIGHT // 2, 1) if plane % word == 0)


def is_matrix(call: Call) -> bool:
    """Whether the input is a matrix of channels by pixels as it lies."""
    return call.shape("w")[2:] == (1, 1) and call["stride"] == (1, 1) and not any(call["padding"])


def _is_padded(call: Call, last: int) -> bool:
    """Whether it is read as it lies in rows that are no whole words, whose last columns then stand for nothing."""
    return is_matrix(call) and not last and word_of(call.shape("x")) == 1


def _plane_columns(call: Call, last: int) -> int:
    """Columns of the product that an image has."""
    plane = math.prod(call.shape("y")[2:])
    return align(plane, EIGHT) if _is_padded(call, last) else plane


def extents(call: Call, last: int = 1) -> tuple[int, int, int]:
    """Rows and columns of a product, and how many there are: output channels of a group, pixels, groups."""
    groups = int(call["groups"])
    return call.shape("y")[1] // groups, call.shape("y")[0] * _plane_columns(call, last), groups


def _takes(call: Call, tile: CooperativeTile, device: Device, last: int) -> bool:
    """A lane gathers the elements of one pixel, or has the same channels of each in all its loads."""
    plain = is_matrix(call) and not last
    return plain or tile.local(device) % (tile.depth // EIGHT if last else tile.columns) == 0


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelsLast:
    """The copy of an input that has channels last, in words of eight: padded or cropped to what the windows cover, and
    thinned to what they touch along a side of the kernel that is 1."""

    call: Call

    @property
    def eights(self) -> int:
        """Words that a pixel has."""
        return int(self.call["groups"]) * ceil_div(self.call.shape("w")[1], EIGHT)

    @property
    def steps(self) -> tuple[int, int]:
        """Rows and columns of the input from one of the copy to the next."""
        h, w = (s if k == 1 else 1 for s, k in zip(self.call["stride"], self.call.shape("w")[2:], strict=True))
        return h, w

    @property
    def strides(self) -> tuple[int, int]:
        """Those of the windows in the copy."""
        h, w = (s // step for s, step in zip(self.call["stride"], self.steps, strict=True))
        return h, w

    @property
    def extents(self) -> tuple[int, int]:
        """Its rows and columns."""
        lists = (self.call.shape("y")[2:], self.strides, self.call.shape("w")[2:], self.call["dilation"])
        h, w = ((max(out, 1) - 1) * s + (k - 1) * d + 1 for out, s, k, d in zip(*lists, strict=True))
        return h, w

    @property
    def nbytes(self) -> int:
        """At two bytes an element."""
        return 2 * EIGHT * self.eights * self.call.shape("x")[0] * math.prod(self.extents)

    def dispatch(self, device: Device) -> Dispatch:
        """The launch that makes it, as ``last``."""
        words = word_of(self.call.shape("x"))
        return self._in_words(words, device) if words > 1 and self.steps == (1, 1) else self._in_pixels(device)

    @property
    def _spec(self) -> tuple[bool, bool]:
        return self.call.shape("w")[1] % EIGHT == 0, int(self.call["groups"]) > 1

    def _in_pixels(self, device: Device) -> Dispatch:
        n, _, h, w = self.call.shape("x")
        sizes = int(self.call["groups"]), self.call.shape("w")[1], *self.extents, *self.steps, *self.call["padding"][:2]
        factors = (*reciprocal(self.extents[1]), *reciprocal(self.extents[0]))
        groups = ceil_div(n * math.prod(self.extents), _SIDE) * ceil_div(self.eights, _SIDE // EIGHT)
        return positional(
            CHANNELS_LAST,
            (*read("x"), *write("last")),
            linear_groups(groups * _LANES, _LANES, device),
            (_LANES, 1, 1),
            (n, h, w, *sizes, *factors),
            self._spec,
            16 * _SIDE * (_SIDE // EIGHT + 1),
        )

    def _in_words(self, word: int, device: Device) -> Dispatch:
        n, _, h, w = self.call.shape("x")
        pads = self.call["padding"][:2]
        first = tuple(max(pad, 0) for pad in pads)
        last = (min(pad + side, made) for pad, side, made in zip(pads, (h, w), self.extents, strict=True))
        inside = tuple(max(end - start, 0) for start, end in zip(first, last, strict=True))
        words, across = h * w // word, next(count for count in _ACROSS if count <= self.eights)
        zeros = n * (math.prod(self.extents) - math.prod(inside)) * self.eights
        groups = ceil_div(n * words, _LANES // across) * ceil_div(self.eights, across) + ceil_div(zeros, _LANES)
        sizes = int(self.call["groups"]), self.call.shape("w")[1], *self.extents, *pads, *first, *inside
        return positional(
            CHANNELS_LAST_WORDS,
            (*read("x"), *write("last")),
            linear_groups(groups * _LANES, _LANES, device),
            (_LANES, 1, 1),
            (n, h, w, *sizes, *reciprocal(words), *reciprocal(w)),
            (*self._spec, word, across),
        )


def copies(call: Call, device: Device) -> tuple[int, ...]:
    """Whether the input is copied with channels last: what the rule says, and whether it can be otherwise."""
    if ChannelsLast(call).nbytes > device.limit("maxStorageBufferRange"):
        return (0,)
    if is_matrix(call):
        # Words of it are read as they are, or two and shifted, which each row of workgroups does again.
        if word_of(call.shape("x")) > 1:
            return (0,)
        small = math.prod(call.shape("x")[2:]) < _LEAST_PLANE or extents(call)[0] > _MOST_ROWS
        return (1, 0) if small else (0, 1)
    reads = math.prod(call.shape("w")[2:]) * ceil_div(extents(call)[0], _ROWS)
    return (1, 0) if call.shape("w")[1] >= _LEAST_CHANNELS and reads >= _LEAST_READS else (0, 1)


def _tiles(call: Call, device: Device, last: int) -> tuple[str, ...]:
    def takes(tile: CooperativeTile) -> bool:
        return _takes(call, tile, device, last)

    return tiles_by_rule(*extents(call, last), device, takes, depth=_depth(call))


def _ways(call: Call, device: Device, last: tuple[int, ...], tiles: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    """How the input may be read for the first of the tiles, and those that may be read so, too: any goes with any
    other value."""
    best = tiles[0]
    last = tuple(value for value in last if _takes(call, TILES[best], device, value))
    tiles = tuple(i for i in tiles if all(_takes(call, TILES[i], device, value) for value in last))
    one_way = call.shape("w")[2:] == (1, 1) or last[0]
    linear = not one_way and pads_much(call, TILES[best].depth)
    return {"tile": tiles, "linear": (0,) if one_way else (int(linear), int(not linear)), "last": last}


def uncut(call: Call, device: Device) -> Mapping[str, tuple[Any, ...]]:
    """The parameters where sums are whole."""
    last = copies(call, device)
    return _ways(call, device, last, _tiles(call, device, last[0]))


def _params(call: Call, device: Device) -> Mapping[str, tuple[Any, ...]]:
    last = copies(call, device)
    tiles = _tiles(call, device, last[0])
    best, splits = split_by_rule(SPLITS, *extents(call, last[0]), device, tiles, depth=_depth(call))
    ways = _ways(call, device, last, (best, *(i for i in tiles if i != best)))
    return {**ways, "splits": (splits, *(s for s in SPLITS if s != splits))}


def _packing(call: Call, tile: CooperativeTile, gathers: bool, linear: bool) -> Packing:
    """Channels up to whole slices where they are gathered, else up to whole eights."""
    return in_slices(call, tile.rows, tile.depth if gathers else EIGHT, linear)


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Results in zeros: planes of so many rows and columns, where one lies so many rows and columns from the next, the
    first at the corner. Every element is within a step of a result, behind it."""

    extents: tuple[int, int]
    steps: tuple[int, int]


def cooperative(call: Call, device: Device, params: Params, spread: Spread | None = None) -> Program:
    """The program of a convolution by cooperative matrices, whose results may be spread; a residual may not."""
    tile, last = TILES[params["tile"]], bool(params["last"])
    copy, matrix = ChannelsLast(call), is_matrix(call) and not last
    gathers = not matrix and not last
    linear = bool(params["linear"]) and gathers  # else taps follow one another
    kh, kw = call.shape("w")[2:]
    pack, local = _packing(call, tile, gathers, linear), tile.local(device)
    packed_depth = pack.outer * pack.inner_padded
    splits = min(params.get("splits", 1), max(ceil_div(packed_depth, tile.depth), 1))
    whole = (pack.inner if gathers or matrix else packed_depth) % tile.depth == 0
    divisors = _plane_columns(call, last), call.shape("y")[3], ceil_div(call.shape("w")[1], EIGHT)
    to, steps = (spread.extents, spread.steps) if spread else ((0, 0), (0, 0))
    words = word_of(call.shape("y")), kh, kw, last, word_of(call.shape("x")) if matrix else EIGHT, whole
    tail = *steps, _is_padded(call, last), splits
    spec = (*constants(call), linear, *tile.constants(device, True, not matrix).values(), *words, *tail)
    step = positional(
        CONVOLUTION,
        binds(call, "packed", "y" if splits == 1 else "parts", x="last" if last else "x"),
        linear_groups(splits * blocks(tile, *extents(call, last)) * local, local, device),
        (local, 1, 1),
        (*push(call), *copy.extents, *copy.strides, *(word for d in divisors for word in reciprocal(d)), *to),
        spec,
        tile.shared_bytes,
        align(packed_depth, tile.depth),
    )
    prepack = pack.dispatch("w", "packed", device)
    add, parts = sum_parts(call, splits, device)
    launches = *((copy.dispatch(device),) if last else ()), step, *((add,) if splits > 1 else ())
    # Scratch is counted in f32, though this has 16 bits.
    copied = {"last": 2 * copy.nbytes} if last else {}
    scratch = {**copied, **(parts if splits > 1 else {})}
    elements = PACKED_WEIGHTS | copied.keys()
    return Program(launches, (prepack,), {"packed": 4 * pack.size}, scratch, elements=frozenset(elements))


def _depth(call: Call) -> int:
    return math.prod(call.shape("w")[1:])


_LEAST_SIDE, _LEAST_DEPTH = 32, 16
FILLS_MATRICES = Requirement(
    f"at least {_LEAST_SIDE} output channels in a group and {_LEAST_SIDE} pixels, sums of {_LEAST_DEPTH} products",
    lambda call, device: min(extents(call)[:2]) >= _LEAST_SIDE and _depth(call) >= _LEAST_DEPTH,
    lambda call, device: f"{extents(call)[0]} channels, {extents(call)[1]} pixels, {_depth(call)} products",
)


SOME_TILE = Requirement(
    "a tile whose columns, or the words of whose slices, are divisors of its lanes",
    lambda call, device: any(
        tile.fits(device) and _takes(call, tile, device, copies(call, device)[0]) for tile in TILES.values()
    ),
    lambda call, device: f"subgroups of {device.subgroup_size}",
)

COOPERATIVE = Route(
    "cooperative",
    cooperative,
    (CONVOLUTION, PACK_TILES, CHANNELS_LAST, CHANNELS_LAST_WORDS, SUM_SPLITS),
    why="implicit GEMM on the GPU's matrix units, which multiply 16-bit floats many times as fast as its lanes do f32, "
    "and sum in f32; the input is gathered as the tiles need it",
    must=(
        *NEEDS,
        SOME_TILE,
        INT32,
        loop_iterations(lambda call, device: math.prod(call.shape("w")[2:]) * align(call.shape("w")[1], 64)),
    ),
    prefer=(ON_GPU, FILLS_MATRICES),
    source="llama.cpp#10597",
    params=_params,
)
