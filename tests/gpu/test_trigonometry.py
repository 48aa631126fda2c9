"""sin, cos and tan of floats of every exponent, and near multiples of a quarter turn, against float64."""

import numpy as np
import pytest

import vkconv
from vkconv.graph import Graph, Node, TensorSpec

pytestmark = pytest.mark.gpu

FUNCTIONS = {"sin": (np.sin, 4), "cos": (np.cos, 4), "tan": (np.tan, 6)}  # and the most ulp that one is off


@pytest.fixture(scope="module")
def x():
    random = np.random.default_rng(24)
    every = random.integers(0x30000000, 0x7F800000, 60_000, dtype=np.uint32).view(np.float32)
    near = (random.integers(-(2**22), 2**22, 4_000) * (np.pi / 2)).astype(np.float32)
    # Where the two reductions meet, and the float that comes nearest to a multiple of pi/2.
    edges = [0.0, -0.0, 4095.9998, 4096.0, 6000.0, 1e5, 16367173 * 2.0**72, 3.4028235e38, np.inf, np.nan]
    return np.concatenate([every, -every, near, np.float32(edges), -np.float32(edges)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_whole_range_is_within_a_few_ulp(name, x, device):
    graph = Graph({"x": TensorSpec(x.shape)}, ("y",), (Node("n", name, ("x",), ("y",), {}),), {})
    with vkconv.load(graph, device=device) as session:
        (y,) = session.run({"x": x}).values()
    function, most = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
    assert (np.isnan(y) == ~np.isfinite(x)).all()
    finite = np.isfinite(x)
    ulp = np.spacing(np.maximum(np.abs(exact[finite]).astype(np.float32), np.float32(1.2e-38))).astype(np.float64)
    assert np.max(np.abs(y[finite] - exact[finite]) / ulp) < most
