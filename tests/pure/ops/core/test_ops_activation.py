"""The activation table against its shader include and against independent values."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from vkconv.core import GraphError
from vkconv.ops.core.activation import ACTIVATIONS, activation, apply

INCLUDE = Path(__file__).parents[4] / "shaders" / "include" / "activation.glsl"


def test_table_and_include_list_the_same_functions():
    rows = re.findall(r"case (\d+): return (.*);  // (\w+)", INCLUDE.read_text())
    assert [(int(i), name) for i, _, name in rows] == [(r.id, r.name) for r in ACTIVATIONS.values()]
    for _, expression, name in rows:
        words = set(re.findall(r"\b[ab]\b", expression))
        assert words == set("ab"[: len(ACTIVATIONS[name].params)]), name


def test_ids_count_from_zero():
    assert [r.id for r in ACTIVATIONS.values()] == list(range(len(ACTIVATIONS)))


@pytest.mark.parametrize(
    ("name", "x", "a", "b", "expected"),
    [
        ("relu", -1.5, 0, 0, 0.0),
        ("relu6", 7.5, 0, 0, 6.0),
        ("clip", 3.0, -1.0, 2.5, 2.5),
        ("hard_swish", 1.0, 0, 0, 4 / 6),
        ("hard_sigmoid", 1.0, 0.2, 0.5, 0.7),
        ("sigmoid", math.log(3), 0, 0, 0.75),
        ("silu", math.log(3), 0, 0, 0.75 * math.log(3)),
        ("leaky_relu", -2.0, 0.1, 0, -0.2),
        ("gelu", 1.0, 0, 0, 0.8413447460685429),
        ("gelu_tanh", 1.0, 0, 0, 0.8411919906082768),
        ("elu", -math.log(2), 2.0, 0, -1.0),
        ("selu", -math.log(2), 2.0, 3.0, -3.0),
        ("celu", -2 * math.log(2), 2.0, 0, -1.0),
        ("softplus", 0.0, 0, 0, math.log(2)),
        ("softsign", -3.0, 0, 0, -0.75),
        ("mish", 0.0, 0, 0, 0.0),
        ("thresholded_relu", 1.0, 1.0, 0, 0.0),
        ("round", 2.5, 0, 0, 2.0),
        ("erf", 0.5, 0, 0, 0.5204998778130465),
    ],
)
def test_values(name, x, a, b, expected):
    assert apply(name, np.float64(x), a, b) == pytest.approx(expected, rel=1e-14, abs=1e-300)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_nan_stays_nan(name):
    x = np.array([np.nan, 1.0])
    assert np.isnan(apply(name, x, 0.5, 1.0)[0])


def test_unknown_name_suggests():
    with pytest.raises(GraphError, match="did you mean 'relu'"):
        activation("rellu")
    with pytest.raises(GraphError, match="'tan'; it is an op of its own"):
        activation("tan")
