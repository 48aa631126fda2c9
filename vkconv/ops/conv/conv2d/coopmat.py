"""The route of conv2d by cooperative matrices, for 16-bit floats: implicit GEMM, 1x1 as the matrix that it is."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.once import once
from vkconv.ops.conv.common import GROUPS_1, NO_PADDING, buffers, is_matrix, push
from vkconv.ops.conv.conv2d.channels_last import (
    CHANNELS_LAST,
    CHANNELS_LAST_WORDS,
    ChannelsLast,
    can_copy,
    copy_us,
    word_of,
)
from vkconv.ops.conv.conv2d.implicit_gemm import in_k_tiles
from vkconv.ops.conv.conv2d.in_registers import WIDE_IN_HALVES
from vkconv.ops.conv.tiles import split_k
from vkconv.ops.core.base import defaults, divisor, first, over_workgroups
from vkconv.ops.core.requirements import INT32, MOST_INT, ON_GPU, loop_iterations, takes_less
from vkconv.ops.kernels.coopmat import (
    EIGHT,
    GATHERED,
    GATHERED_AS_ONE,
    NEEDS,
    SHIFTED,
    TILES,
    CooperativeTile,
    Product,
    blocks,
    estimated_us,
    split_by_rule,
    tiles_by_rule,
)
from vkconv.ops.kernels.epilogue import SPLIT_K_SLICES, Epilogue, finishing
from vkconv.ops.kernels.prepack import PACK_TILES, Packing
from vkconv.policy import Policy
from vkconv.program import Argument, Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

CONVOLUTION = Shader(shaders.conv2d.CONV2D_COOPERATIVE, DType.F16)


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
    """The lanes of a team have the same channels of each pixel in all their loads, or gather the same pixels."""
    if is_matrix(call) and not last:
        return True
    lanes = tile.team_local(device)
    if last:
        return lanes % (tile.team_depth // EIGHT) == 0
    return lanes % tile.columns == 0 or tile.columns % lanes == 0


class Reading(NamedTuple):
    """How the input is read: copied with channels last, or as it lies; where windows of that are gathered, the channels
    of each tap by themselves or, linear, taps and channels as one."""

    last: int
    linear: int = 0


def product_of(call: Call, last: int, linear: int = 0) -> Product:
    """The product that a convolution is, read in that way."""
    _, channels, *window = call.shape("w")
    sides, taps, elements = extents(call, last), math.prod(window), call.elements
    if last:
        return Product(*sides, taps * align(channels, EIGHT), "", elements)
    if is_matrix(call):
        return Product(*sides, channels, SHIFTED if _is_padded(call, last) else "", elements)
    if linear:
        return Product(*sides, taps * channels, GATHERED_AS_ONE, elements)
    return Product(*sides, channels, GATHERED, elements, taps)


@dataclasses.dataclass(frozen=True, slots=True)
class _Way:
    """A reading, the tiles that take it, the one first that should take the least time, and slices of the sum."""

    reading: Reading
    tiles: tuple[str, ...]
    slices: int = 1

    def us(self, call: Call, device: Device) -> float:
        """Microseconds of the first tile, with the copy; more than any where it has no costs."""
        params = {"tile": self.tiles[0], "split_k": self.slices, **self.reading._asdict()}
        us = _estimated_us(call, device, params)
        return math.inf if us is None else us


def _tiles(call: Call, device: Device, reading: Reading) -> tuple[str, ...]:
    return tiles_by_rule(product_of(call, *reading), device, lambda tile: _takes(call, tile, device, reading.last))


def _ways(call: Call, device: Device) -> Sequence[_Way]:
    """Those that some tile takes, in one slice. What is read in whole words as it lies is not copied."""
    return once(("ways",), (call, device), lambda: _found_ways(call, device))


def _found_ways(call: Call, device: Device) -> list[_Way]:
    windowed = not is_matrix(call)
    readings = [Reading(1)] if can_copy(ChannelsLast(call), device) and (windowed or _is_padded(call, 0)) else []
    readings += [Reading(0), Reading(0, 1)] if windowed and call.shape("w")[2:] != (1, 1) else [Reading(0)]
    ways = [_Way(reading, _tiles(call, device, reading)) for reading in readings]
    return [way for way in ways if any(way.tiles)]


def _legal(call: Call, device: Device, ways: Sequence[_Way]) -> tuple[_Way, Legal]:
    """The way that should take the least time, and the parameters with that first. Any value goes with any other: tiles
    are those that take every ``last`` which the best one takes."""
    best = min(ways, key=lambda way: way.us(call, device))
    last = first(best.reading.last, dict.fromkeys(way.reading.last for way in ways))
    last = tuple(value for value in last if _takes(call, TILES[best.tiles[0]], device, value))
    tiles = tuple(name for name in best.tiles if all(_takes(call, TILES[name], device, value) for value in last))
    linear = sorted({way.reading.linear for way in ways if way.reading.last in last})
    return best, {"tile": tiles, "linear": first(best.reading.linear, linear), "last": last}


def whole_sums(call: Call, device: Device) -> Legal:
    """The parameters where sums are whole."""
    return _legal(call, device, _ways(call, device))[1]


def _split(call: Call, device: Device, way: _Way) -> _Way:
    """The same with the tile and the slices that together should take the least time."""
    tile, slices = split_by_rule(product_of(call, *way.reading), SPLIT_K_SLICES, device, way.tiles)
    return _Way(way.reading, first(tile, way.tiles), slices)


def _params(call: Call, device: Device) -> Legal:
    def made() -> Legal:
        best, legal = _legal(call, device, [_split(call, device, way) for way in _ways(call, device)])
        return {**legal, "split_k": first(best.slices, SPLIT_K_SLICES)}

    return once(("cooperative",), (call, device), made)


@dataclasses.dataclass(frozen=True, slots=True)
class StridedScatter:
    """Results scattered over zeros: the extents of a plane, and the steps from one result to the next, the first at the
    corner. Every element is less than a step behind a result."""

    extents: tuple[int, int] = (0, 0)
    steps: tuple[int, int] = (0, 0)

    @property
    def push(self) -> dict[str, Argument]:
        """Its push constants."""
        return {"to_h": self.extents[0], "to_w": self.extents[1]}

    @property
    def constants(self) -> dict[str, Word]:
        """Its specialization constants."""
        return {"TO_SH": self.steps[0], "TO_SW": self.steps[1]}


@dataclasses.dataclass(frozen=True, slots=True)
class CooperativeConvolution:
    """A convolution by cooperative matrices with values for its parameters: the launch of its product, and what goes
    around that. ``as_it_lies``: the input has channels last in whole 8-wide vectors, and no padding."""

    call: Call
    device: Device
    params: Params
    scatter: StridedScatter = StridedScatter()
    as_it_lies: bool = False

    @property
    def _last(self) -> bool:
        return bool(self.params["last"])

    @property
    def tile(self) -> CooperativeTile:
        return TILES[self.params["tile"]]

    @property
    def _gathers(self) -> bool:
        return not is_matrix(self.call) and not self._last

    @property
    def _linear(self) -> bool:
        """Else taps follow one another."""
        return bool(self.params["linear"]) and self._gathers

    @property
    def _pack(self) -> Packing:
        # Channels up to whole k-tiles where they are gathered, else up to whole 8-wide vectors.
        return in_k_tiles(self.call, self.tile.rows, self.tile.team_depth if self._gathers else EIGHT, self._linear)

    @property
    def _packed_depth(self) -> int:
        return self._pack.outer * self._pack.inner_padded

    @property
    def slices(self) -> int:
        """Of the sum, which may have fewer k-tiles than are asked for."""
        return min(int(self.params.get("split_k", 1)), max(ceil_div(self._packed_depth, self.tile.team_depth), 1))

    @property
    def plane_columns(self) -> int:
        """Columns of the product that an image has."""
        return _plane_columns(self.call, self._last)

    @property
    def _copies(self) -> bool:
        return self._last and not self.as_it_lies

    @property
    def _last_push(self) -> dict[str, Argument]:
        """Rows and columns of what has channels last, and the strides of the windows there."""
        copy, call = ChannelsLast(self.call), self.call
        own = (*call.shape("x")[2:], *call["stride"])
        words = own if self.as_it_lies else (*copy.extents, *copy.strides)
        return dict(zip(("last_h", "last_w", "last_sh", "last_sw"), words, strict=True))

    def product(self, e: Epilogue) -> Dispatch:
        """The launch that multiplies."""
        call, tile, last, pack = self.call, self.tile, self._last, self._pack
        matrix, padded = is_matrix(call) and not last, _is_padded(call, last)
        kh, kw = call.shape("w")[2:]
        whole = (pack.inner if self._gathers or matrix else self._packed_depth) % tile.team_depth == 0
        local, blocks_of = tile.local(self.device), blocks(tile, *extents(call, last))
        shader = e.variant(CONVOLUTION)
        constants = {
            **e.constants,
            **tile.constants(self.device, True, not matrix),
            **self.scatter.constants,
            "LINEAR": self._linear,
            "Y_WORD": word_of(call.shape("y")),
            "KH": kh,
            "KW": kw,
            "LAST": last,
            "WORD": word_of(call.shape("x")) if matrix else EIGHT,
            "WHOLE": whole,
            "PADDED": padded,
            "ENDS_WHOLE": padded and call.specs["x"].size % EIGHT == 0,
            "SPLIT_K": self.slices,
        }
        return Dispatch(
            shader,
            buffers(e, "packed", x="last" if self._copies else "x"),
            *over_workgroups(self.slices * blocks_of, local, self.device),
            {
                **push(call, e),
                **self._last_push,
                **divisor("plane", self.plane_columns),
                **divisor("row", call.shape("y")[3]),
                **divisor("vec8s", ceil_div(call.shape("w")[1], EIGHT)),
                **self.scatter.push,
            },
            constants,
            tile.workgroup_bytes(self.device),
            align(self._packed_depth, tile.depth),
        )

    def around(self, steps: Sequence[Dispatch], scratch: Mapping[str, int]) -> Program:
        """The program of these steps, behind the copy of the input that they read and the packing of the weights."""
        if self._copies:
            # Scratch is counted in f32, though this has 16 bits.
            copy = ChannelsLast(self.call)
            steps, scratch = (copy.dispatch(self.device), *steps), {"last": 2 * copy.nbytes, **scratch}
        return self._pack.program(self.device, *steps, scratch=scratch, half="last" if self._copies else "")


def _program(made: CooperativeConvolution) -> Program:
    epilogue = Epilogue.of(made.call, made.device)
    steps, scratch = split_k(made.call, epilogue, made.slices, made.device, made.product)
    return epilogue.complete(made.around(steps, scratch), made.call.shape("y"), made.device)


def cooperative(call: Call, device: Device, params: Params, scatter: StridedScatter | None = None) -> Program:
    """The program of a convolution by cooperative matrices, which may scatter its results, without a residual."""
    return _program(CooperativeConvolution(call, device, params, scatter or StridedScatter()))


_AS_IT_LIES: Params = {"last": 1, "linear": 0}


def _program_as_it_lies(call: Call, device: Device, params: Params) -> Program:
    return _program(CooperativeConvolution(call, device, {**params, **_AS_IT_LIES}, as_it_lies=True))


def _params_as_it_lies(call: Call, device: Device) -> Legal:
    way = _split(call, device, _Way(Reading(1), _tiles(call, device, Reading(1))))
    return {"tile": way.tiles, "split_k": first(way.slices, SPLIT_K_SLICES)}


def _depth(call: Call) -> int:
    return math.prod(call.shape("w")[1:])


@dataclasses.dataclass(frozen=True, slots=True)
class Least:
    """Output channels of a group, pixels, and products of a sum from which on matrix units are used; fewer channels
    than ``wide`` only up to so many pixels."""

    channels: int
    pixels: int
    depth: int
    wide: int = 0
    narrow_pixels: int = 0


_LEAST = Policy("conv2d.cooperative_least", Least)


def _fills(call: Call, device: Device) -> bool:
    least = _LEAST.of(device)
    rows, columns = extents(call)[:2]
    many = rows >= least.wide or columns <= least.narrow_pixels
    return rows >= least.channels and columns >= least.pixels and _depth(call) >= least.depth and many


def _filled(call: Call, device: Device) -> str:
    least = _LEAST.of(device)
    rows, columns = extents(call)[:2]
    most = f" and at most {least.narrow_pixels}" if rows < least.wide else ""
    return (
        f"{rows} channels of {least.channels}, {columns} pixels of {least.pixels}{most}, "
        f"{_depth(call)} products of {least.depth}"
    )


FILLS_MATRICES = Requirement(
    "enough output channels of a group, pixels and products of a sum for tiles of matrices", _fills, _filled
)


def _some_tile(text: str, taken: Callable[[Call, Device], object]) -> Requirement:
    return Requirement(
        text,
        lambda call, device: bool(taken(call, device)),
        lambda call, device: f"subgroups of {device.subgroup_size}",
    )


SOME_TILE = _some_tile("a tile whose columns, or the vectors of whose k-tiles, are divisors of its lanes", _ways)
_SOME_TILE_OF_VECTORS = _some_tile(
    "a tile the vectors of whose k-tiles are a divisor of its lanes",
    lambda call, device: any(_tiles(call, device, Reading(1))),
)

# A tile goes beyond the last one, and where planes are no whole words columns are more than the output's elements.
_MOST_COLUMNS = MOST_INT - max(tile.columns for tile in TILES.values())
_COLUMNS_INT32 = Requirement.of(
    f"a product of at most {_MOST_COLUMNS} columns",
    lambda call: extents(call, last=0)[1],
    lambda columns: columns <= _MOST_COLUMNS,
)
_LOOPS = loop_iterations(lambda call, device: math.prod(call.shape("w")[2:]) * align(call.shape("w")[1], 64))


def product_us(call: Call, device: Device, params: Params) -> float | None:
    """Microseconds of the product alone, with what adds its slices up; None without costs of the tile."""
    product = product_of(call, params.get("last", 1), params.get("linear", 0))
    return estimated_us(product, params["tile"], params["split_k"], device)


def _estimated_us(call: Call, device: Device, params: Params) -> float | None:
    us = product_us(call, device, params)
    return us if us is None or not params["last"] else us + copy_us(ChannelsLast(call), device)


def default_us(call: Call, device: Device) -> float | None:
    """Microseconds of `COOPERATIVE` by the defaults of its parameters; None without costs."""
    return _estimated_us(call, device, defaults(_params(call, device)))


Cost = Callable[[Call, Device], float | None]


def less_than(own_us: Cost, text: str, others: Mapping[str, Cost]) -> Requirement:
    """The requirement that a route takes no more than any of other routes, by name, as far as there are costs."""

    def compared(call: Call, device: Device) -> tuple[float, float] | None:
        own = own_us(call, device)
        known = [us for us in (other(call, device) for other in others.values()) if us is not None]
        return None if own is None or not known else (own, min(known))

    verb = "takes" if len(others) == 1 else "take"
    return takes_less(compared, f", {text}, than {' and '.join(others)} {verb}")


COOPERATIVE = Route(
    "cooperative",
    cooperative,
    finishing(CONVOLUTION, PACK_TILES, CHANNELS_LAST, CHANNELS_LAST_WORDS),
    why="implicit GEMM on the GPU's matrix units, which multiply 16-bit floats many times as fast as its lanes do f32, "
    "and sum in f32; the input is gathered as the tiles need it",
    must=(
        *NEEDS,
        SOME_TILE,
        INT32,
        _COLUMNS_INT32,
        _LOOPS,
    ),
    prefer=(ON_GPU, FILLS_MATRICES, WIDE_IN_HALVES),
    source="llama.cpp#10597",
    params=_params,
    estimated_us=_estimated_us,
)

# For a route around it that makes its input: with channels last, those of a pixel up to whole 8-wide vectors by zeros,
# and with what is padded put in.
COOPERATIVE_AS_IT_LIES = dataclasses.replace(
    COOPERATIVE,
    program=_program_as_it_lies,
    shaders=finishing(CONVOLUTION, PACK_TILES),
    must=(*NEEDS, _SOME_TILE_OF_VECTORS, INT32, _COLUMNS_INT32, NO_PADDING, GROUPS_1, _LOOPS),
    params=_params_as_it_lies,
    estimated_us=product_us,
)
