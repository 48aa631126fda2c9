"""Patterns of wrong elements: told as what they look like."""

import numpy as np
import pytest

from vkconv.check.pattern import pattern

SHAPE = (2, 8, 16, 32)


def mask(*index: object, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    wrong = np.zeros(shape, bool)
    wrong[index] = True
    return wrong


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (np.zeros(SHAPE, bool), ""),
        (np.ones(SHAPE, bool), "every element"),
        (mask(slice(None), 3), "all of channel 3"),
        (mask(slice(None), [3, 6]), "all of channels 3, 6"),
        (mask(slice(None), slice(2, 5)), "all of channels 2 to 4"),
        (mask(slice(None), slice(None), slice(None), slice(29, None)), "all of the last 3 columns"),
        (mask(slice(None), slice(None), slice(None), slice(1, None, 8)), "all of column 1 of every 8"),
        (mask(1), "all of the last image"),
        (
            mask(slice(None), slice(None), slice(8, 16), slice(16, 32)),
            "all of the last 16 columns of the last 8 rows (tiles of 8x16)",
        ),
        (mask(0, 1, 2, 3), "column 3 of row 2 of channel 1 of image 0"),
        (mask(slice(5), shape=(37,)), "elements 0 to 4"),
        (mask(36, shape=(37,)), "the last element"),
        (mask(slice(4, None, 4), shape=(37,)), "element 0 of every 4 from 4"),
        (np.ones((), bool), "every element"),
    ],
)
def test_patterns(wrong: np.ndarray, said: str) -> None:
    assert pattern(wrong) == said


def test_scattered_elements_are_counted() -> None:
    wrong = mask([0, 1], [0, 7], [0, 15], [0, 31])
    assert pattern(wrong) == "2 of 8192 elements, in columns 0, 31 of rows 0, 15 of channels 0, 7"
    checkers = np.indices((4, 4)).sum(0) % 2 == 0
    assert pattern(checkers) == "8 of 16 elements, all over"


def test_runs_in_memory_order() -> None:
    wrong = np.zeros(1260, bool)
    for start in range(96, 1260, 158):
        wrong[start : start + 62] = True
    wrong = wrong.reshape(1, 3, 20, 21)
    assert pattern(wrong) == "492 of 1260 elements, runs of 62 of every 158 in memory order from 96"
    wrong = np.zeros(1260, bool)
    wrong[100:777] = True
    assert pattern(wrong.reshape(1, 3, 20, 21)) == "677 of 1260 elements, 100 to 776 in memory order"
