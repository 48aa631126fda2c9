"""Maxima of pool2d on every route: bits of the input, NaN of either sign where a window has one, nothing of padding."""

import numpy as np
import pytest

from vkconv import functional
from vkconv.ops import OPS

ROUTES = tuple(route.name for route in OPS["pool2d"].routes)
# Of each float type as words: the sign, infinity, the least and largest subnormal number.
WORDS = {"float32": (np.uint32, 0x80000000, 0x7F800000, 1, 0x7FFFFF), "float16": (np.uint16, 0x8000, 0x7C00, 1, 0x3FF)}


def special(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros, subnormal and other numbers, infinities, and NaN, quiet and not, all of both signs."""
    word, sign, infinity, *subnormal = WORDS[dtype]
    sizes = [0, *subnormal, infinity // 2, infinity - 1, infinity, infinity + 1, sign - 1]
    words = np.array([*sizes, *(size | sign for size in sizes)], word)
    # Mostly negative and few NaN, so that each of them is some window's maximum.
    rng = np.random.default_rng(7)
    weights = np.array([1, 1, 1, 1, 1, 1, 1, 1, 20, 20, 20, 20, 20, 60, 1, 1], float)
    return rng.choice(words, shape, p=weights / weights.sum()).view(dtype)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize(("shape", "stride"), [((2, 3, 13, 17), 2), ((1, 5, 14, 48), 2), ((1, 3, 9, 16), 1)])
def test_maxima_are_bits_of_the_input(route: str, dtype: str, shape: tuple[int, ...], stride: int) -> None:
    x = special(dtype, shape)
    x[:, 0, 3:8, 4:9] = -np.inf  # some windows hold nothing else
    y = functional.pool2d(x, "max", (3, 3), stride=(stride, stride), padding=(1, 1, 1, 1), route=route)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    expected = windows.max(axis=(4, 5))
    assert {-np.inf, np.inf} < {*expected[~np.isnan(expected)].ravel().tolist()} and np.isnan(expected).any()
    np.testing.assert_array_equal(y, expected)  # numbers by value: -0 is 0, and where both are, either is the maximum
    assert y.dtype == dtype
