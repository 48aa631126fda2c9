"""Copies by tiles: which copies exchange two dimensions, and what their launches move, without Vulkan."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from vkconv.device import load_device
from vkconv.ops.core.shapes import row_major
from vkconv.ops.kernels.tiled import TILES, Exchange, fitting_tiles, reordering_copy

H200, MALI = load_device("h200"), load_device("mali-g57")
PARAMS = {"local": 64, "items": 8}


def read_by(dims, perm):
    """The dimensions of a transposed array and its strides in what it is made from."""
    strides = row_major(dims)
    return [dims[p] for p in perm], [strides[p] for p in perm]


@pytest.mark.parametrize("perm", list(itertools.permutations(range(4))))
def test_a_launch_moves_what_a_transpose_moves(perm):
    x = np.arange(3 * 5 * 7 * 4)
    want = np.transpose(x.reshape(3, 5, 7, 4), perm)
    exchange = Exchange.of(*read_by((3, 5, 7, 4), perm))
    assert (exchange is None) == (perm[-1] == 3)
    if exchange is None:
        return
    step = exchange.dispatch(H200, "32x32", "x", "y")
    push, rank = step.push, step.constants["RANK"]
    y = np.full(x.size, -1)
    outer = [range(n) for n in push["n"][:rank]]
    for b, i, j in itertools.product(itertools.product(*outer), range(push["rows"]), range(push["columns"])):
        of, to = (sum(k * s for k, s in zip(b, push[name], strict=False)) for name in ("xs", "ys"))
        y[to + i * push["y_row"] + j] = x[of + j * push["x_column"] + i]
    np.testing.assert_array_equal(y, want.reshape(-1))


def test_dimensions_that_stay_beside_each_other_are_one():
    exchange = Exchange.of(*read_by((2, 56, 56, 96), (0, 3, 1, 2)))
    assert dataclasses.astuple(exchange) == (96, 3136, 96, 3136, ((2, 96 * 3136, 96 * 3136),))
    assert Exchange.of(*read_by((8, 9), (0, 1))) is None
    assert Exchange.of((0, 9), (1, 0)) is None
    assert Exchange.of((8, 9), (0, 1)) is None  # a broadcast


def test_more_dimensions_than_the_kernel_has_stay_a_strided_copy():
    dims = (2, 3) * 5
    perm = (*range(1, 10, 2), *range(0, 10, 2))
    assert Exchange.of(*read_by(dims, perm)) is None
    assert Exchange.of(*read_by(dims[:6], (1, 3, 5, 0, 2, 4))) is not None


@pytest.mark.parametrize(
    ("dims", "x_vec4", "y_vec4"), [((64, 36), True, True), ((64, 35), False, True), ((63, 36), True, False)]
)
def test_four_neighbours_are_moved_at_once_where_all_strides_allow_it(dims, x_vec4, y_vec4):
    step = Exchange.of(*read_by(dims, (1, 0))).dispatch(H200, "64x64", "x", "y")
    assert (step.constants["X_VEC4"], step.constants["Y_VEC4"]) == (x_vec4, y_vec4)


@pytest.mark.parametrize("tile", TILES)
def test_as_many_workgroups_as_tiles(tile):
    side = TILES[tile]
    exchange = Exchange.of(*read_by((3, 130, 65), (0, 2, 1)))
    step = exchange.dispatch(H200, tile, "x", "y")
    assert step.push["groups"] == 3 * math.ceil(130 / side) * math.ceil(65 / side)


def test_tiles_are_for_devices_where_they_are_taken_to_pay():
    wide, thin = (read_by((2, 64, n), (0, 2, 1)) for n in (64, 3))
    stems = [reordering_copy(d, PARAMS, "x", "y", *c).shader.stem for d in (H200, MALI) for c in (wide, thin)]
    assert stems == ["transpose_tiles", "strided_copy", "strided_copy", "strided_copy"]
    assert fitting_tiles(H200) == ("32x32", "64x64")
