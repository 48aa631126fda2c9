"""How sums are split: upstream's expected tiles, skip rules, ragged tails, and an estimate of what a device holds."""

import math

import pytest
from ops_device import device

from vkconv.cost import compute_units, occupancy_estimate
from vkconv.device import load_device
from vkconv.ops.kernels.split_rules import (
    Sum,
    axes_bands,
    bands,
    batch_only,
    into,
    matmul_bands,
    occupancy,
)


def weights(n, out, c_out, c_in, taps):
    return Sum(c_out * c_in, c_out * c_in * taps, (n, *out))


# iree, compiler/src/iree/compiler/DispatchCreation/test/set_split_reduction_sizes_{conv,gemm,outer_reduction,
# low_parallelism}.mlir: (the sum, tiles, tiles where parallelism is low).
CONVOLUTIONS = [
    (weights(16, (225, 225), 64, 16, 9), (1, 45, 225), (1, 45, 225)),
    (weights(16, (48, 32), 96, 96, 3), (1, 48, 32), (2, 48, 32)),
    (weights(16, (128, 32), 96, 96, 3), (1, 64, 32), (1, 128, 32)),
    (Sum(256 * 13 * 13, 32 * 13 * 13 * 256, (3, 3, 2376), batch_first=True), (3, 3, 297), (3, 3, 297)),
    (weights(16, (96, 48), 1024, 1024, 1), None, None),
    (weights(16, (24, 16), 96, 96, 1), None, None),
    (Sum(256 * 50 * 50, 32 * 50 * 50 * 256, (3, 3, 2376), batch_first=True), None, None),  # exactly 640000
]
PRODUCTS = [
    (32, 32, (40960,), (320,), (320,)),
    (128, 134, (16800000,), (8400,), (8400,)),
    (288, 288, (16, 96, 48), (1, 96, 48), (1, 96, 48)),
    (224, 224, (235, 363), (47, 363), (47, 363)),
    (32, 32, (16, 96, 48), (1, 12, 48), (1, 12, 48)),
    (128, 128, (32768,), (512,), (4096,)),
    (128, 256, (131072,), (4096,), (16384,)),
    (4096, 2268, (150000,), None, None),
    (256, 256, (4096,), None, None),
]


@pytest.mark.parametrize(("s", "tiles", "low"), CONVOLUTIONS)
def test_upstreams_tiles_of_convolutions(s, tiles, low):
    assert bands(s)[0] == tiles
    assert bands(s, low=True)[0] == low


@pytest.mark.parametrize(("m", "n", "k", "tiles", "low"), PRODUCTS)
def test_upstreams_tiles_of_products(m, n, k, tiles, low):
    assert matmul_bands(m, n, k)[0] == tiles
    assert matmul_bands(m, n, k, low=True)[0] == low


@pytest.mark.parametrize(
    ("reduction", "tiles"),
    [
        ((4096,), (64,)),
        ((4, 512), (1, 64)),
        ((1255, 1255), (1, 1255)),
        ((4, 15), None),
        # A dimension over 32768 that has no factor in reach stays whole, and the others are cut for it.
        ((4, 65537), (1, 65537)),
        ((65537, 64), None),
    ],
)
def test_upstreams_tiles_of_sums_over_axes(reduction, tiles):
    assert axes_bands(reduction)[0] == tiles


def test_the_first_form_of_the_rule():
    assert batch_only(64, 16, (225, 225), 16) == ((1,), "16 images, at most 512 slices")
    assert batch_only(64, 16, (225, 225), 1300)[0] == (3,)
    for refused, why in (
        ((512, 512, (64, 64), 16), "channels are enough"),
        ((129, 129, (64, 31), 16), "a side of 31"),
        ((64, 16, (225, 225), 1), "one image"),
    ):
        assert batch_only(*refused)[0] is None and why in batch_only(*refused)[1]
    assert batch_only(129, 128, (64, 31), 16)[0] is not None


def test_a_short_sum_stays_whole_and_says_why():
    for s, why in (
        (weights(16, (50, 50), 800, 800, 1), "640000 outputs side by side"),
        (weights(1, (9, 9), 4, 4, 9), "a sum of 81 is short"),
        (weights(8, (70, 70), 700, 700, 9), "a sum of 39200 is short for 4410000 outputs"),
    ):
        assert bands(s)[0] is None and why in bands(s)[1]


def test_the_ratio_is_upstreams_integer():
    assert bands(Sum(100, 100, (649,)))[0] is None
    assert bands(Sum(100, 100, (650,)))[0] is not None


def test_a_prime_dimension_is_cut_where_tails_may_be_ragged():
    s = weights(1, (1, 10007), 8, 8, 1)
    assert bands(s)[0] is None
    assert bands(s, ragged=True)[0] == (1, 1, 5)
    assert bands(weights(16, (225, 225), 64, 16, 9), ragged=True)[0] == (1, 45, 225)
    assert into((13, 101), 4) == (4, 101) and into((13, 101), 40) == (1, 34) and into((3, 5), 1) == (3, 5)
    assert into((3, 5), 1000) == (1, 1)
    assert math.prod(into((7, 2, 1), 1000)) == 1


def test_a_dimension_without_a_factor_in_reach_is_given_up():
    assert matmul_bands(8, 8, (65537,))[0] is None
    assert "no factor from" in matmul_bands(8, 8, (65537,))[1]


@pytest.mark.parametrize(
    ("grid", "steps", "capacity", "parts"),
    [(1, 10**6, 1056, 128), (10, 10**6, 1056, 105), (10, 7, 1056, 7), (2000, 50, 1056, 1), (1, 0, 4, 1)],
)
def test_occupancy_fills_the_device_once(grid, steps, capacity, parts):
    found, why = occupancy(grid, steps, capacity)
    assert found == parts and "estimated capacity" in why


def test_the_capacity_is_estimated_from_what_the_device_tells():
    h200 = load_device("h200")
    assert compute_units(h200) == 132
    assert occupancy_estimate(h200, 96, 6784) == 132 * 21  # by the invocations of a multiprocessor
    assert occupancy_estimate(h200, 256, 48 << 10) == 132 * 4  # by its shared memory
    assert occupancy_estimate(h200, 256, 1024, registers=128) == 132 * 2  # by its registers
    assert occupancy_estimate(h200, 32, 1024) == 132 * 32  # by the workgroups that it takes
    assert occupancy_estimate(device("CPU"), 8, 0) == compute_units(device("CPU")) == 4
    assert occupancy_estimate(device("INTEGRATED_GPU"), 64, 9000) == 8 * 7  # 64 KiB of shared memory assumed
