"""The gradient where each group has one input channel, by planes in shared memory: ranges of x and dy are copied as
they lie, and the next ones are on their way while lanes multiply."""

import dataclasses
import functools
import itertools
import math
from typing import NamedTuple

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, bytes_str, ceil_div, divisors, shape_str
from vkconv.cost import lanes_of, occupancy_estimate, scaled
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad import depthwise
from vkconv.ops.conv.wgrad.combine import combine
from vkconv.ops.conv.wgrad.cost import most_in_scratch, slice_counts
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.base import first, local_sizes, most_shared_bytes, over_workgroups
from vkconv.ops.kernels.prepack import MOST_SPAN
from vkconv.ops.kernels.windows import spanned
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params

TREE = Shader(shaders.wgrad.BACKWARD_WEIGHT_PLANES)
SUBGROUPS = TREE.having(("SUBGROUPS", ""))
_ROWS = (16, 14, 10, 8, 7, 5, 4, 2, 1)
_COLUMNS = (1, 2, 3, 4, 5, 7)
_UNITS = (1, 2, 4, 8, 16, 32)
_BANDS = (2, 4, 8, 16, 32, 64, 128, 256)
# Elements of a vector of the kernel.
_VECTOR = 4
# Vectors of the units that are copied at a time: the least workgroup's lanes keep 16 each in registers.
_MOST_VEC4S = 1024
# Products of an item, which are unrolled, and of a row of it; rows of x that it meets.
_MOST_PRODUCTS, _MOST_IN_ROW, _MOST_REACH = 1024, 63, 63


@dataclasses.dataclass(frozen=True, slots=True)
class Planes:
    """Lanes of a workgroup, the least first, and whether they meet in a tree; vectors that a lane has on their way at
    most by rule; ``far_halves``: whether lanes load 16-bit dy as they need it. Lanes that are resident on a compute
    unit where dy goes by shared memory, and where lanes load it. The route is taken without being asked for with a
    stride of 1 up to so many pixels of a plane of dy (0: never), in f32 for at most ``large_taps`` also from
    ``large_pixels`` of a plane on (0: never) where so much of what lanes do is of use; and with one along rows, where
    lanes of depthwise load x element by element, from so many pixels of all images on (0: never)."""

    local: tuple[int, ...]
    tree: bool
    most_copies: int
    far_halves: bool
    resident_lanes: int
    far_resident_lanes: int
    plane_pixels: int
    large_pixels: int
    large_taps: int
    large_use: float
    strided_pixels: int


_PLANES = Policy("wgrad.depthwise_planes", Planes)


class Tile(NamedTuple):
    """What a workgroup copies at a time: ``units`` of ``band`` rows of dy, each of which meets ``lines`` rows of x; so
    many vectors each of x and dy."""

    units: int
    band: int
    lines: int
    x_vec4s: int
    dy_vec4s: int

    @classmethod
    def of(cls, p: WeightGradient, lines: int) -> "Tile":
        """By the rows of dy of all units: several whole planes, or a band of one."""
        (h, w), (oh, ow) = p.extent[1:], p.out[1:]
        units, band = (lines // oh, oh) if lines >= oh else (1, lines)
        met = h if band == oh else min(h, spanned(band, p.stride[1], p.kernel[1], p.dilation[1]))
        x_whole = h * w % _VECTOR == 0 and (band == oh or w % _VECTOR == 0)
        dy_whole = oh * ow % _VECTOR == 0 and band * ow % _VECTOR == 0
        return cls(units, band, met, _vec4s(met * w, x_whole), _vec4s(band * ow, dy_whole))

    @property
    def vec4s(self) -> int:
        """Of all units."""
        return self.units * (self.x_vec4s + self.dy_vec4s)

    def copies(self, local: int, staged: int) -> int:
        """Vectors that a lane copies at a time, of x and, where that is ``staged``, of dy."""
        return ceil_div(self.units * self.x_vec4s, local) + staged * ceil_div(self.units * self.dy_vec4s, local)

    def of_all(self, p: WeightGradient) -> int:
        """Units of all images."""
        return p.n * ceil_div(p.out[1], self.band)


def _vec4s(elements: int, whole: bool) -> int:
    """Vectors that a range of so many elements touches at most: it may begin with the last one of a vector."""
    return ceil_div(elements + (0 if whole else _VECTOR - 1), _VECTOR)


class Item(NamedTuple):
    """Rows and columns of dy that an invocation takes at a time."""

    rows: int
    columns: int

    def blocks(self, p: WeightGradient, tile: Tile) -> tuple[int, int]:
        """Of a unit, along rows and columns."""
        return ceil_div(tile.band, self.rows), p.out[2] // self.columns

    def of_units(self, p: WeightGradient, tile: Tile) -> int:
        """Of the units that a workgroup has at a time."""
        return tile.units * math.prod(self.blocks(p, tile))


class Way(NamedTuple):
    """How a channel's pixels are shared out: rows of dy that a workgroup copies at a time, what an invocation takes,
    lanes, whether dy goes by shared memory too, and slices."""

    lines: int
    item: Item
    local: int
    staged: int
    slices: int


def _spread(vec4s: int, row: int, column: int, blocks: tuple[int, int], lanes: int) -> int:
    """Elements from one unit to the next in shared memory, of so many vectors at least, for which the lanes of a
    subgroup read as many different banks as padding allows. Items are so far apart along rows and columns, of a unit so
    many ``blocks``."""
    rows, columns = blocks
    places = [(i // (rows * columns), i // columns % rows * row + i % columns * column) for i in range(lanes)]

    def busiest(apart: int) -> int:
        banks = [(unit * apart + place) % lanes for unit, place in places]
        return max(map(banks.count, set(banks)))

    return min(range(_VECTOR * vec4s, _VECTOR * vec4s + lanes, _VECTOR), key=busiest)


def _apart(p: WeightGradient, tile: Tile, item: Item, device: Device) -> tuple[int, int]:
    """Elements from one unit to the next in shared memory, of x and of dy."""
    blocks, lanes = item.blocks(p, tile), max(_VECTOR, lanes_of(device))
    rows, columns = item.rows * p.stride[1] * p.extent[2], item.columns * p.stride[2]
    of_x = _spread(tile.x_vec4s, rows, columns, blocks, lanes)
    return of_x, _spread(tile.dy_vec4s, item.rows * p.out[2], item.columns, blocks, lanes)


def _copied_bytes(tile: Tile, apart: tuple[int, int], staged: int) -> int:
    """Shared memory of the units of a workgroup, in f32, behind a vector for a zero; a vector where there is no dy."""
    return 4 * (_VECTOR + tile.units * apart[0] + (tile.units * apart[1] if staged else _VECTOR))


def _shared_bytes(p: WeightGradient, way: Way, tree: bool, device: Device) -> int:
    """Of a workgroup, with what its lanes meet in."""
    tile = Tile.of(p, way.lines)
    copied = _copied_bytes(tile, _apart(p, tile, way.item, device), way.staged)
    return copied + depthwise.meeting_bytes(p, way.local, tree, device)


def _most_bytes(p: WeightGradient, tile: Tile, device: Device) -> int:
    """Of a workgroup, however items are shared out."""
    most = max(local_sizes(device, *_PLANES.of(device).local))
    padding = max(_VECTOR, lanes_of(device))
    apart = _VECTOR * tile.x_vec4s + padding, _VECTOR * tile.dy_vec4s + padding
    return _copied_bytes(tile, apart, 1) + depthwise.meeting_bytes(p, most, True, device)


def _columns(p: WeightGradient) -> tuple[int, ...]:
    """Columns of dy that an invocation may take at a time: rows are whole such."""
    taps = math.prod(p.kernel)
    able = (c for c in divisors(p.out[2]) if c == 1 or (c in _COLUMNS and c * taps <= _MOST_IN_ROW))
    return tuple(c for c in able if c == 1 or spanned(c, p.stride[2], p.kernel[2], p.dilation[2]) <= MOST_SPAN)


def _rows(p: WeightGradient) -> tuple[int, ...]:
    """Rows of dy that an invocation may take at a time."""
    in_row = max(_columns(p)) * math.prod(p.kernel)
    able = (r for r in _ROWS if r == 1 or (r <= p.out[1] and r * in_row <= _MOST_PRODUCTS))
    return tuple(r for r in able if r == 1 or spanned(r, p.stride[1], p.kernel[1], p.dilation[1]) <= _MOST_REACH)


@functools.lru_cache(maxsize=256)  # each requirement and parameter asks
def _lines(p: WeightGradient, device: Device) -> tuple[int, ...]:
    """Rows of dy that a workgroup may copy at a time: of some whole planes or a part of one."""
    oh = p.out[1]
    sizes = [*(oh * units for units in _UNITS if units <= max(1, p.n)), *(ceil_div(oh, bands) for bands in _BANDS)]
    return tuple(lines for lines in dict.fromkeys(sizes) if _fits(p, lines, device))


def _fits(p: WeightGradient, lines: int, device: Device) -> bool:
    tile = Tile.of(p, lines)
    return tile.vec4s <= _MOST_VEC4S and _most_bytes(p, tile, device) <= most_shared_bytes(device)


def _counts(p: WeightGradient, device: Device) -> list[int]:
    most = max(1, min(most_in_scratch(p, device), p.n * p.out[1]))
    return slice_counts(p.c_out, depthwise.DEPTHS, most, device)


def _use(p: WeightGradient, tile: Tile, item: Item, local: int) -> float:
    """How much of what lanes do is of use: the share that has an item, by the share of its rows that are there,
    by the share of the rows of x that it reads and the item before it has not read."""
    rows, count = item.blocks(p, tile)[0] * item.rows, item.of_units(p, tile)
    met = spanned(item.rows, p.stride[1], p.kernel[1], p.dilation[1])
    lanes = count / (ceil_div(count, local) * local)
    return lanes * tile.band / rows * min(1.0, item.rows * p.stride[1] / met)


@functools.lru_cache(maxsize=256)
def best(p: WeightGradient, device: Device) -> Way:
    """Dy by shared memory, unless workgroups whose lanes load it need so few waves that these have fewer places."""
    far = p.element != DType.F32 and _PLANES.of(device).far_halves
    ways = [_shared_out(p, staged, device) for staged in ((0,) if far else (1, 0))]
    return min(ways, key=lambda way: align(p.c_out * way.slices, _at_once(p, way, device)))


def _shared_out(p: WeightGradient, staged: int, device: Device) -> Way:
    """Lanes for the columns of a row, each with one, whose accesses to shared memory do not conflict; the rows that
    leave the fewest idle and read the fewest elements again; as many slices as are all resident at once."""
    rule, able = _PLANES.of(device), _lines(p, device)
    sizes = sorted(local_sizes(device, *rule.local))
    local = next((size for size in sizes if size >= p.out[2]), sizes[-1])
    few = [lines for lines in able if Tile.of(p, lines).copies(local, staged) <= rule.most_copies] or [min(able)]
    ways = [(Tile.of(p, lines), Item(rows, 1), lines) for lines, rows in itertools.product(few, _rows(p))]
    apart = [way for way in ways if way[1].of_units(p, way[0]) <= local] or ways
    tile, item, lines = max(apart, key=lambda way: (_use(p, way[0], way[1], local), way[1].rows, -way[0].vec4s))
    way = Way(lines, item, local, staged, 1)
    turns = ceil_div(tile.of_all(p), tile.units)
    wanted = max(1, min(turns, _at_once(p, way, device) // p.c_out))
    return way._replace(slices=max(count for count in _counts(p, device) if count <= wanted))


def _at_once(p: WeightGradient, way: Way, device: Device) -> int:
    """Workgroups that the device has resident."""
    rule = _PLANES.of(device)
    lanes = rule.resident_lanes if way.staged else rule.far_resident_lanes
    nbytes = _shared_bytes(p, way, bool(rule.tree), device)
    return min(scaled(lanes / way.local, device), occupancy_estimate(device, way.local, nbytes))


def params(call: Call, device: Device) -> Legal:
    """How pixels are shared out (`Way`), and whether lanes meet in a tree rather than in subgroups first."""
    p, sizes = WeightGradient.of(call), local_sizes(device, *_PLANES.of(device).local)
    rule, tree, trees = best(p, device), int(_PLANES.of(device).tree), depthwise.trees(sizes, device)
    return {
        "lines": first(rule.lines, _lines(p, device)),
        "rows": first(rule.item.rows, _rows(p)),
        "columns": first(rule.item.columns, _columns(p)),
        "local": first(rule.local, sizes),
        "split_k": first(rule.slices, _counts(p, device)),
        "tree": first(tree, trees) if tree in trees else trees,
        "staged": first(rule.staged, (1, 0)),
    }


def _way(params: Params) -> Way:
    item = Item(params["rows"], params["columns"])
    return Way(params["lines"], item, params["local"], params["staged"], params["split_k"])


def build(call: Call, device: Device, params: Params) -> Program:
    """Slices and their sum; one slice is stored as dw."""
    p, way, tree = WeightGradient.of(call), _way(params), bool(params["tree"])
    tile = Tile.of(p, way.lines)
    split, has_add, shader = way.slices > 1, call.has("add"), TREE if tree else SUBGROUPS
    apart = _apart(p, tile, way.item, device)
    turns = ceil_div(ceil_div(tile.of_all(p), way.slices), tile.units)
    step = Dispatch(
        shader,
        {"x": "x", "dy": "dy", "add": "add" if has_add and not split else None, "result": "slices" if split else "dw"},
        *over_workgroups(p.c_out * way.slices, way.local, device),
        push={
            **{"n": p.n, "c_in": p.c_in, "c_out": p.c_out, "multiplier": p.rows, "slice_count": way.slices},
            **{"scale": float(call["scale"]), "beta": float(call["beta"]), "first_slice": 0},
        },
        constants=shader.taking(
            {
                **{"TO_SCRATCH": split, "HAS_ADD": has_add and not split},
                **dict(zip(("H", "W"), p.extent[1:], strict=True)),
                **dict(zip(("OH", "OW"), p.out[1:], strict=True)),
                **dict(zip(("KH", "KW"), p.kernel[1:], strict=True)),
                **dict(zip(("SH", "SW"), p.stride[1:], strict=True)),
                **dict(zip(("DH", "DW"), p.dilation[1:], strict=True)),
                **dict(zip(("PT", "PL"), p.before[1:], strict=True)),
                **{"BAND": tile.band, "UNITS": tile.units, "RY": way.item.rows, "PX": way.item.columns},
                **{"X_VEC4S": tile.x_vec4s, "DY_VEC4S": tile.dy_vec4s, "X_STRIDE": apart[0], "DY_STRIDE": apart[1]},
                **{"STAGED": way.staged},
                **depthwise.meeting(p, way.local, device),
            }
        ),
        shared_bytes=_shared_bytes(p, way, tree, device),
        loop_iterations=turns * (ceil_div(way.item.of_units(p, tile), way.local) + 1) + depthwise.ending(p),
    )
    if not split:
        return Program((step,))
    return Program((step, combine(call, way.slices, device)), scratch={"slices": 4 * p.size * way.slices})


def note(call: Call, device: Device, params: Params) -> str:
    """What the parameters come to."""
    p, way = WeightGradient.of(call), _way(params)
    tile = Tile.of(p, way.lines)
    nbytes = bytes_str(4 * p.size * way.slices) if way.slices > 1 else "no"
    what = "planes" if tile.band == p.out[1] else f"bands of {tile.band} rows"
    return f"{way.slices} slices of {tile.of_all(p)} {what}, {tile.units} at a time; {nbytes} scratch"


def _suits(call: Call, device: Device) -> bool:
    p, rule = WeightGradient.of(call), _PLANES.of(device)
    if max(p.stride) == 1:
        return math.prod(p.out) <= rule.plane_pixels or _is_large(p, device)
    return 0 < rule.strided_pixels <= p.pixels and p.stride[2] > 1 and not depthwise.by_vectors(p, device)


def _is_large(p: WeightGradient, device: Device) -> bool:
    rule = _PLANES.of(device)
    if not 0 < rule.large_pixels <= math.prod(p.out) or p.element != DType.F32:
        return False
    way = best(p, device)
    in_use = _use(p, Tile.of(p, way.lines), way.item, way.local) >= rule.large_use
    return in_use and math.prod(p.kernel) <= rule.large_taps


def _extent(call: Call, device: Device) -> str:
    p, rule = WeightGradient.of(call), _PLANES.of(device)
    loads = f", x by {'vectors' if depthwise.by_vectors(p, device) else 'elements'}" if max(p.stride) > 1 else ""
    return (
        f"{math.prod(p.out)} pixels, {p.pixels} of all images, stride {shape_str(call['stride'])}{loads}; at most "
        f"{rule.plane_pixels}, or f32 and at least {rule.large_pixels} of {rule.large_taps} taps with "
        f"{rule.large_use:g} of lanes' work in use, with a stride at least {rule.strided_pixels} of all "
        f"({_PLANES.said(device)})"
    )


def _reach(p: WeightGradient) -> tuple[int, int]:
    """Rows and columns of x that the taps of a pixel span."""
    rows, columns = (spanned(1, p.stride[axis], p.kernel[axis], p.dilation[axis]) for axis in (1, 2))
    return rows, columns


def _least_band(call: Call, device: Device) -> str:
    p = WeightGradient.of(call)
    tile = Tile.of(p, ceil_div(p.out[1], max(_BANDS)))
    nbytes, most = _most_bytes(p, tile, device), most_shared_bytes(device)
    return f"{tile.vec4s} vectors, {bytes_str(nbytes)} of {bytes_str(most)} with what lanes meet in"


_NEAR = Requirement.of(
    f"taps within {_MOST_REACH} rows and {MOST_SPAN} columns",
    WeightGradient.of,
    lambda p: _reach(p)[0] <= _MOST_REACH and _reach(p)[1] <= MOST_SPAN,
    lambda p: "{} rows and {} columns".format(*_reach(p)),
)
_HOLDS = Requirement(
    f"a band of a plane in {_MOST_VEC4S} vectors of shared memory",
    lambda call, device: bool(_lines(WeightGradient.of(call), device)),
    _least_band,
)
_SUITS = Requirement(
    "planes of dy as small as copying pays for, or with a stride many pixels where depthwise loads x by elements",
    _suits,
    _extent,
)
MUST = (depthwise.ONE_CHANNEL, depthwise.FLAT, depthwise.FEW_TAPS, _NEAR, _HOLDS)
PREFER = (depthwise.FEW_OUTPUTS, _SUITS)
