"""Tiles of the gradient's kernels, by name: the parameter ``tile`` of its routes."""

from collections.abc import Mapping

from vkconv.ops.conv.wgrad.kernels import Gemm, Rows, Skinny, Tile

# rows, columns, k-tile, rows and columns of an invocation, buffers
_GEMM = (
    Gemm(128, 128, 16, 8, 8),
    Gemm(128, 64, 16, 8, 8),
    Gemm(64, 128, 16, 8, 8),
    Gemm(64, 64, 16, 8, 8),
    Gemm(128, 144, 8, 8, 12),
    Gemm(64, 144, 8, 8, 12, 2),
    Gemm(64, 144, 16, 8, 12),
    Gemm(64, 96, 16, 8, 8),
    Gemm(64, 96, 8, 8, 8, 2),
    Gemm(64, 48, 16, 8, 4),
    Gemm(64, 32, 16, 8, 4),
    Gemm(64, 64, 16, 4, 4),
    Gemm(32, 144, 8, 4, 12),
    Gemm(32, 64, 16, 4, 8),
    Gemm(32, 32, 16, 4, 4),
    Gemm(16, 32, 16, 4, 4),
    Gemm(128, 128, 16, 8, 8, 2),
    Gemm(64, 64, 16, 8, 8, 2),
)
# In place of those that would spill: the rule tries no others of them.
_FEWER_REGISTERS = (
    Gemm(64, 64, 8, 4, 4),
    Gemm(32, 32, 8, 4, 4),
    Gemm(64, 64, 4, 4, 4),
    Gemm(32, 32, 4, 4, 4),
    Gemm(64, 64, 16, 4, 4, unroll=False),
    Gemm(64, 64, 8, 4, 4, unroll=False),
    Gemm(32, 32, 16, 4, 4, unroll=False),
    Gemm(32, 32, 8, 4, 4, unroll=False),
    Gemm(64, 64, 4, 4, 4, unroll=False),
    Gemm(32, 32, 4, 4, 4, unroll=False),
)
_SKINNY = tuple(Skinny(rows, pixels, local) for rows in (1, 2) for pixels in (4, 8, 1) for local in (128, 32))
# Output channels x runs. lavapipe, ms, 8x16x57x57 to 64 by 3x3: 8x6 17.0, 24x2 17.7, 16x3 18.3, 16x1 24.4, 32x1 25.7.
_ROWS_BY_RUNS = (
    *((32, 4), (32, 2), (32, 1), (24, 2), (16, 8), (16, 4), (16, 3), (16, 1), (12, 4)),
    *((8, 8), (8, 6), (8, 3), (8, 1), (4, 8), (4, 3), (4, 1), (1, 8), (1, 3), (1, 1)),
)
_ROWS = tuple(Rows(rows, runs, pixels) for rows, runs in _ROWS_BY_RUNS for pixels in (8, 7, 4, 1))
_ACROSS = tuple(
    Rows(rows, runs, pixels, across=True) for rows in (8, 4, 1) for runs in (1, 3, 5) for pixels in (8, 4, 1)
)

_ALL: tuple[Tile, ...] = (*_GEMM, *_SKINNY, *_ROWS, *_ACROSS, *_FEWER_REGISTERS)
TILES: Mapping[str, Tile] = {tile.name: tile for tile in _ALL}
GEMM_TILES: Mapping[str, Gemm] = {tile.name: tile for tile in _GEMM}
FEWER_REGISTERS: Mapping[str, Gemm] = {tile.name: tile for tile in _FEWER_REGISTERS}
