"""Whole numbers that a graph computes in floats, where its other floats have 16 bits."""

import numpy as np
import pytest
from graph_kit import make_graph

import vkconv
from vkconv.core import DType
from vkconv.graph import TensorSpec

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_indices_beyond_what_halves_hold_are_exact(dtype, device):
    steps = [
        ("cast", "i", "f", {"to": "f32"}),
        ("mul", "f two", "d"),
        ("cast", "d", "y", {"to": "i64"}),
        ("softmax", "x", "z", {"axis": 0}),
    ]
    inputs = {"i": TensorSpec((3,), DType.I64), "x": (5,)}
    i = np.array([2049, 4097, 70001], np.int64)
    with vkconv.load(make_graph(inputs, steps, "y z", {"two": np.float32([2])}), device, dtype=dtype) as session:
        y, _ = session.run({"i": i, "x": np.zeros(5, np.float32)}).values()
    assert np.array_equal(y, 2 * i)
