"""The network under test: a small keyword spotter, as its training would leave it."""

import numpy as np

from vkconv import Graph, Node, TensorSpec

FRAMES, BANDS, CLASSES = 49, 40, 12


def spotter() -> Graph:
    """Spectrogram (1, 1, FRAMES, BANDS) to the probabilities of CLASSES words."""
    random = np.random.default_rng(2024)

    def weights(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    nodes = (
        Node("stem", "conv2d", ("x", "w0", "b0"), ("h0",), {"stride": (2, 2), "padding": (4, 1, 4, 1)}),
        Node("stem/relu", "relu", ("h0",), ("a0",)),
        Node("depthwise", "conv2d", ("a0", "w1", "b1"), ("h1",), {"groups": 24, "padding": (1, 1, 1, 1)}),
        Node("pointwise", "conv2d", ("h1", "w2", "b2"), ("h2",)),
        Node("relu", "relu", ("h2",), ("a2",)),
        Node("pool", "reduce", ("a2",), ("p",), {"op": "mean", "axes": (2, 3), "keepdims": False}),
        Node("head", "matmul", ("p", "w3"), ("logits",)),
        Node("softmax", "softmax", ("logits",), ("y",), {"axis": 1}),
    )
    constants = {
        "w0": weights(24, 1, 10, 4),
        "b0": weights(24),
        "w1": weights(24, 1, 3, 3),
        "b1": weights(24),
        "w2": weights(32, 24, 1, 1),
        "b2": weights(32),
        "w3": weights(32, CLASSES),
    }
    return Graph({"x": TensorSpec((1, 1, FRAMES, BANDS))}, ("y",), nodes, constants, name="spotter")


def spectrogram(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 1, FRAMES, BANDS)).astype(np.float32)
