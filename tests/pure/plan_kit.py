"""Graphs and the device that the tests of planning share."""

import numpy as np
from graph_kit import f32, i64, make_graph

from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec

LAVAPIPE = load_device("lavapipe")
X = {"x": (1, 3, 9, 8)}
W, B = f32(5, 3, 3, 3), f32(5)
CONV = make_graph(X, [("conv2d", "x w b", "y", {"padding": (1,)})], "y", {"w": W, "b": B})
SMALL_GRAPHS = {
    "conv": CONV,
    "residual": make_graph(
        X,
        [
            ("conv2d", "x w3", "a", {"padding": (1,)}),
            ("hard_swish", "a", "h"),
            ("pool2d", "h", "p", {"kind": "max", "kernel": (3, 3), "padding": (1,)}),
            ("add", "p x", "s"),
            ("reduce", "s", "m", {"op": "mean", "axes": (2, 3)}),
            ("mul", "s m", "y"),
        ],
        "y",
        {"w3": f32(3, 3, 3, 3)},
    ),
    "attention": make_graph(
        {"x": (2, 7, 12)},
        [
            ("matmul", "x wq", "q"),
            ("matmul", "x wk", "k"),
            ("transpose", "k", "kt", {"perm": (0, 2, 1)}),
            ("matmul", "q kt", "scores"),
            ("softmax", "scores", "weights", {"axis": -1}),
            ("matmul", "weights x", "mixed"),
            ("layer_norm", "mixed scale shift", "y", {"axis": -1}),
        ],
        "y weights",
        {"wq": f32(12, 4), "wk": f32(12, 4), "scale": f32(12), "shift": f32(12)},
    ),
    "layout": make_graph(
        {"x": (2, 6, 4)},
        [
            ("split", "x", "a b", {"axis": 1, "num_outputs": 2}),
            ("reshape", "a shape", "r"),
            ("transpose", "r", "t", {"perm": (1, 0)}),
            ("flatten", "b", "f"),
            ("concat", "t f", "c", {"axis": 1}),
            ("unsqueeze", "c axes", "y"),
        ],
        "y a",
        {"shape": i64(12, 2), "axes": i64(0)},
    ),
}


def two_convs():
    """A dense and a depthwise convolution, so that one op takes two routes."""
    weights = np.random.default_rng(2).standard_normal
    return Graph(
        {"x": TensorSpec((1, 8, 9, 9))},
        ("z",),
        (
            Node("dense", "conv2d", ("x", "v"), ("y",), {"padding": (1, 1, 1, 1)}),
            Node("deep", "conv2d", ("y", "w"), ("z",), {"padding": (1, 1, 1, 1), "groups": 8}),
        ),
        {"v": weights((8, 8, 3, 3)).astype(np.float32), "w": weights((8, 1, 3, 3)).astype(np.float32)},
        name="two",
    )
