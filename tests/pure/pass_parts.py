"""What the graphs for the passes are made of: inputs, constants, and nodes as exporters spell them."""

import numpy as np
from graph_kit import f32

X = {"x": (2, 3, 5, 4)}
CONV = ("conv2d", "x w b", "c", {"padding": (1,)})
CONSTANTS = {
    "w": f32(4, 3, 3, 3, seed=1),
    "wide": f32(3, 6, seed=10),
    "b": f32(4, seed=2),
    "w_groups": f32(6, 1, 3, 3, seed=3),
    "w_groups3": f32(3, 1, 3, 3, seed=23),
    "per_channel": f32(4, 1, 1, low=0.5, seed=4),
    "per_channel_4d": f32(1, 4, 1, 1, low=0.5, seed=5),
    "along_width": f32(4, low=0.5, seed=6),
    "per_image": f32(2, 1, 1, 1, low=0.5),
    "map": f32(5, 4, low=0.5),
    "fifth_dim": f32(1, 1, 1, 1, 1, low=0.5),
    "two": np.array([2], np.float32),
    "half_0d": np.array(0.5, np.float32),
    "zero": np.zeros((), np.float32),
    "root_2": np.array(2**0.5, np.float32),
    "root_2_pi": np.array((2 / np.pi) ** 0.5, np.float32),
    "cubic": np.array(0.044715, np.float32),
    "nan": np.array(np.nan, np.float32),
    "holes": np.array([1, 0, 2, 3], np.float32).reshape(4, 1, 1),
    "huge": np.array(3e38, np.float32),
    "slope": f32(4, seed=19),
    "scale": f32(4, low=0.5, seed=7),
    "shift": f32(4, seed=8),
    "mean": f32(4, seed=9),
    "var": f32(4, low=0.5, seed=10),
    "negative": np.array([1, -1, 1, 1], np.float32),
    "one": np.ones(1, np.float32),
    "one_5d": np.ones((1,) * 5, np.float32),
    "three": np.array(3, np.float32),
    "three_and_a_bit": np.array(3.001, np.float32),
    "six": np.array(6, np.float32),
    "seven": np.array(7, np.float32),
    "sixth": np.array(1 / 6, np.float32),
    "eps": np.array(1e-5, np.float32),
    "six_5d": np.full((1,) * 5, 6, np.float32),
    "eps_5d": np.full((1,) * 5, 1e-5, np.float32),
    "vector": f32(4, seed=12),
    "vector_2": f32(4, seed=13),
    "columns": f32(6, seed=14),
    "rows": f32(5, 1, seed=15),
    "w_g2": f32(4, 3, 1, 1, seed=16),
    "four": np.array(4, np.float32),
    "w_up": f32(4, 2, 3, 2, seed=17),
    "w_up3": f32(3, 4, 2, 2, seed=18),
    "columns_2": f32(6, low=0.5, seed=24),
    "square": f32(6, 6, seed=25),
    "nothing_in_one": np.array([1, 2, 0, 3, 4, 5], np.float32),
    "first_of_all": np.array(0, np.int64),
    "last_of_all": np.array(-1, np.int32),
    "one_row": np.array([2], np.int64),
    "rows_on": np.array([1, 2, 3], np.int32),
    "rows_back": np.array([[4], [-3], [0]], np.int64),
    "rows_apart": np.array([[0, 2], [4, 6]], np.int64),
    "rows_again": np.array([1, 1, 1], np.int64),
    "rows_uneven": np.array([0, 1, 3], np.int64),
    "no_rows": np.zeros(0, np.int64),
}
BN = ("batch_norm", "c scale shift mean var", "y", {"eps": 1e-3})
MATMUL = ("matmul", "a wide", "m")
A = {"a": (5, 3)}
OTHER = ("conv2d", "x w", "o", {"padding": (1,)})
SAME = {**X, "z": (2, 4, 5, 4)}
SHIFTED = [("add", "x three", "s"), ("clip", "s", "k", {"a": 0.0, "b": 6.0}), ("mul", "x k", "p")]


def layer_norm(eps="eps", square=("pow", "d two", "q"), axes=(-1,), scale="vector", mean_of="x", keepdims=(1, 1)):
    """Layer normalisation as exporters spell it, over the last axis of x."""
    return [
        ("reduce", f"{mean_of}", "mu", {"op": "mean", "axes": axes, "keepdims": bool(keepdims[0])}),
        ("sub", "x mu", "d"),
        square,
        ("reduce", "q", "v", {"op": "mean", "axes": (-1,), "keepdims": bool(keepdims[1])}),
        ("add", f"v {eps}", "e"),
        ("sqrt", "e", "r"),
        ("div", "d r", "n"),
        ("mul", f"n {scale}", "t"),
        ("add", "t vector_2", "y"),
    ]


# 1 + erf(x / sqrt(2)) and 1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))
ERF = [("div", "x root_2", "d"), ("erf", "d", "e"), ("add", "e one", "o")]
TANH = [
    ("pow", "x three", "x3"),
    ("mul", "cubic x3", "c3"),
    ("add", "x c3", "a3"),
    ("mul", "a3 root_2_pi", "d"),
    ("tanh", "d", "e"),
    ("add", "one e", "o"),
]


def part(of, to, axis, start, end, step=1):
    """A slice along one axis."""
    return ("slice", of, to, {"starts": (start,), "ends": (end,), "axes": (axis,), "steps": (step,)})


def roll(of, to, axis, shift, n):
    """torch.roll by ``shift`` along an axis of n, as torch exports it."""
    halves = [part(of, f"{to}_end", axis, n - shift, n), part(of, f"{to}_rest", axis, 0, n - shift)]
    return [*halves, ("concat", f"{to}_end {to}_rest", to, {"axis": axis})]


def phases(of, first, second, order):
    """Every second element along two axes, from each of the places ``order`` on, as Swin's merging of patches has
    them."""
    nodes = []
    for i, (a, b) in enumerate(order):
        nodes += [part(of, f"half{i}", first, a, 99, 2), part(f"half{i}", f"phase{i}", second, b, 99, 2)]
    return nodes, " ".join(f"phase{i}" for i in range(len(order)))
