"""The network that the tests of sessions run, and what it must give; and one that takes long."""

import math

import numpy as np

from vkconv.graph import Graph, Node, TensorSpec
from vkconv.loading import load


def normals(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv_graph(width=11, *, weights="constant"):
    """conv2d, hard_swish spelled out by one node, mean over the image; x is (1, 3, 9, width)."""
    w, b = normals(5, 3, 3, 3, seed=1), normals(5, seed=2)
    nodes = (
        Node("conv", "conv2d", ("x", "w", "b"), ("c",), {"padding": (1,)}),
        Node("act", "hard_swish", ("c",), ("h",)),
        Node("pool", "reduce", ("h",), ("y",), {"op": "mean", "axes": (2, 3), "keepdims": False}),
    )
    inputs = {"x": TensorSpec((1, 3, 9, width))}
    if weights == "input":
        return Graph({**inputs, "w": TensorSpec(w.shape), "b": TensorSpec(b.shape)}, ("y", "h"), nodes, {}, "net")
    return Graph(inputs, ("y", "h"), nodes, {"w": w, "b": b}, "net")


def expected(x):
    """The same network in float64, from its definition."""
    w, b = normals(5, 3, 3, 3, seed=1).astype(np.float64), normals(5, seed=2).astype(np.float64)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    c = np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None]
    h = c * np.clip(c / 6 + 0.5, 0, 1)
    return {"y": h.mean((2, 3)), "h": h}


def assert_right(outputs, x):
    for name, want in expected(x).items():
        np.testing.assert_allclose(outputs[name], want, rtol=0, atol=2e-5 * np.abs(want).max())


def _products(n, count):
    """A chain of products by the identity, each of n x n by n x n, and its input of ones, which is its output too."""
    nodes = tuple(Node(f"m{i}", "matmul", (f"v{i}", "w"), (f"v{i + 1}",)) for i in range(count))
    graph = Graph({"v0": TensorSpec((n, n))}, (f"v{count}",), nodes, {"w": np.eye(n, dtype=np.float32)}, "slow")
    return graph, {"v0": np.ones((n, n), np.float32)}


def slow_graph(seconds):
    """A graph that keeps this device busy for at least about ``seconds``, measured here first, and its inputs."""
    n = 512
    while True:
        n *= 2
        graph, x = _products(n, 1)
        with load(graph) as session:
            product_s = min(session.measure(x)[1].gpu_total_us for _ in range(2)) / 1e6
        if n == 8192 or 200 * product_s > seconds:
            return _products(n, math.ceil(seconds / product_s))
