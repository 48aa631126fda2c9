"""Copies that exchange two dimensions, by tiles in shared memory: reads and writes are both of neighbours.

A strided copy writes neighbours and reads one element of each cache line where the dimension that is innermost in what
it reads is an outer one in what it writes. A tile is read along the one and written along the other.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Self

from vkconv import shaders
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import first, holds_workgroup, over_workgroups
from vkconv.ops.core.shapes import row_major
from vkconv.ops.kernels.strided import merge, strided_copy, tables
from vkconv.policy import Policy
from vkconv.program import Dispatch
from vkconv.route import Params

TRANSPOSE_TILES = Shader(shaders.kernels.TRANSPOSE_TILES, DType.U32)
_VEC4 = 4
# Elements of an invocation.
_TURNS = 16
_MOST_OUTER = 6
TILES: Mapping[str, int] = {"32x32": 32, "64x64": 64}
"""Rows and columns of a workgroup's tile by name; 32x32 fits every device."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Tiles:
    """Rows and columns that are as many as pay (0: none do), and the ``tile`` that is taken."""

    least: int
    tile: str


_POLICY = Policy("kernels.transpose_tiles", _Tiles)


def tile_bytes(side: int) -> int:
    """Shared memory of a tile, whose rows are a word longer than they are."""
    return 4 * side * (side + 1)


def fitting_tiles(device: Device) -> tuple[str, ...]:
    """The names of the tiles that a workgroup can hold, the default first."""
    able = [n for n, side in TILES.items() if holds_workgroup(device, side * side // _TURNS, tile_bytes(side))]
    tile = _POLICY.of(device).tile
    return first(tile, able) if tile in able else tuple(able)


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """A copy to row-major order in which ``rows``, neighbours in what is read, lie ``y_row`` apart in what is written,
    and ``columns``, neighbours there, ``x_column`` apart here. ``outer`` has the extent of each other dimension and its
    strides in x and y."""

    rows: int
    columns: int
    x_column: int
    y_row: int
    outer: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, dims: Sequence[int], x_strides: Sequence[int]) -> Self | None:
        """Of a copy of ``dims`` from such strides; None where no two dimensions change places, or too many others stay
        apart."""
        walk = merge(dims, x_strides, row_major(dims))
        xs, ys = walk.strides
        if 0 in dims or 1 not in xs or xs[-1] == 1 or ys[-1] != 1 or walk.rank - 2 > _MOST_OUTER:
            return None
        row = xs.index(1)
        outer = tuple(zip(walk.dims, xs, ys, strict=True))
        kept = (*outer[:row], *outer[row + 1 : -1])
        return cls(walk.dims[row], walk.dims[-1], xs[-1], ys[row], kept)

    def pays(self, device: Device) -> bool:
        """Whether both dimensions fill as much of a tile as pays there."""
        least = _POLICY.of(device).least
        return 0 < least <= min(self.rows, self.columns)

    def dispatch(self, device: Device, tile: str, source: str, target: str) -> Dispatch:
        """The launch, by tiles of this name."""
        side = TILES[tile]
        columns = tuple(zip(*self.outer, strict=True)) or ((), (), ())
        batches = math.prod(extent for extent, _, _ in self.outer)
        groups = batches * ceil_div(self.rows, side) * ceil_div(self.columns, side)
        local = side * side // _TURNS
        return Dispatch(
            TRANSPOSE_TILES,
            {"x": source, "y": target},
            *over_workgroups(groups, local, device),
            {
                "groups": groups,
                "rows": self.rows,
                "columns": self.columns,
                "x_column": self.x_column,
                "y_row": self.y_row,
                **tables(TRANSPOSE_TILES, *columns),
            },
            {
                "RANK": len(self.outer),
                "TILE": side,
                "TURNS": _TURNS,
                "X_VEC4": not any(n % _VEC4 for n in (self.rows, self.x_column, *columns[1])),
                "Y_VEC4": not any(n % _VEC4 for n in (self.columns, self.y_row, *columns[2])),
            },
            tile_bytes(side),
        )


def reordering_copy(
    device: Device, params: Params, source: str, target: str, dims: Sequence[int], x_strides: Sequence[int]
) -> Dispatch:
    """The launch that copies words to ``dims`` in row-major order: by tiles where they pay, else a strided copy."""
    exchange = Exchange.of(dims, x_strides)
    if exchange is not None and exchange.pays(device):
        return exchange.dispatch(device, fitting_tiles(device)[0], source, target)
    (step,) = strided_copy(device, params, source, target, dims, x_strides, row_major(dims))
    return step
