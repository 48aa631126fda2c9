"""Processes in which a library makes calls fail, and the network that runs in them."""

import os
from pathlib import Path

import numpy as np

import vkconv

rng = np.random.default_rng(1)
weights = {"w": rng.standard_normal((8, 4, 3, 3), dtype=np.float32)}
nodes = (
    vkconv.Node("c", "conv2d", ("x", "w"), ("y",), {"padding": (1, 1, 1, 1)}),
    vkconv.Node("s", "softmax", ("y",), ("z",), {"axis": 1}),
)
graph = vkconv.Graph({"x": vkconv.TensorSpec((2, 4, 5, 7))}, ("z",), nodes, weights, "net")
x = rng.standard_normal((2, 4, 5, 7), dtype=np.float32)


def environment(library: Path, **more: str) -> dict[str, str]:
    """Of a process before which a library is loaded, without the validation layer; it finds this module."""
    preload = " ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(library)]))
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "LD_PRELOAD": preload, "PYTHONPATH": paths, "VK_INSTANCE_LAYERS": "", **more}
