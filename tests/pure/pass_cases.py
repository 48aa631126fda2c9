"""Graphs for the passes: what each rewrites, and look-alikes that must stay as they are."""

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
}
BN = ("batch_norm", "c scale shift mean var", "y", {"eps": 1e-3})
MATMUL = ("matmul", "a wide", "m")
A = {"a": (5, 3)}
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

REWRITES = {
    # drop_neutral
    "times one": (X, [("mul", "one x", "t"), ("relu", "t", "y")], "y", "relu"),
    "plus zero, over one, minus zero, to the power of one": (
        X,
        [
            ("add", "x zero", "s"),
            ("div", "s one", "t"),
            ("sub", "t zero", "u"),
            ("pow", "u one", "v"),
            ("relu", "v", "y"),
        ],
        "y",
        "relu",
    ),
    "a permutation that permutes nothing": (
        X,
        [("transpose", "x", "t", {"perm": (0, 1, 2, 3)}), ("relu", "t", "y")],
        "y",
        "relu",
    ),
    "identity": (X, [("identity", "x", "t"), ("relu", "t", "y")], "y", "relu"),
    "identity between conv2d and relu": (X, [CONV, ("identity", "c", "t"), ("relu", "t", "y")], "y", "conv2d"),
    "an output that stands for another value": (X, [("relu", "x", "t"), ("mul", "t one", "y")], "y", "relu identity"),
    # transposes and pads
    "a permutation and its inverse": (
        X,
        [
            ("transpose", "x", "t", {"perm": (0, 2, 3, 1)}),
            ("transpose", "t", "u", {"perm": (0, 3, 1, 2)}),
            ("relu", "u", "y"),
        ],
        "y",
        "relu",
    ),
    "a permutation of a permutation": (
        X,
        [("transpose", "x", "t", {"perm": (0, 2, 3, 1)}), ("transpose", "t", "y", {"perm": (0, 1, 3, 2)})],
        "y",
        "transpose",
    ),
    "a permutation of dimensions of 1": (
        {"x": (2, 1, 5, 1)},
        [("transpose", "x", "t", {"perm": (1, 0, 3, 2)}), ("relu", "t", "y")],
        "y",
        "reshape relu",
    ),
    "transposed operands of a matmul": (
        {"p": (2, 3, 5), "q": (2, 4, 3)},
        [
            ("transpose", "p", "pt", {"perm": (0, 2, 1)}),
            ("transpose", "q", "qt", {"perm": (0, 2, 1)}),
            ("matmul", "pt qt", "y"),
        ],
        "y",
        "matmul",
    ),
    "zeros around the image of a conv2d": (
        X,
        [("pad", "x", "p", {"pads": (0, 0, 1, 0, 0, 0, 2, 3)}), ("conv2d", "p w b", "y", {"padding": (1,)})],
        "y",
        "conv2d",
    ),
    # folds into conv2d
    "batch norm": (X, [CONV, BN], "y", "conv2d"),
    "batch norm after a conv2d without bias": (X, [("conv2d", "x w", "c"), BN], "y", "conv2d"),
    "batch norm after a grouped conv2d": (
        X,
        [
            ("conv2d", "x w_groups", "g", {"groups": 3}),
            ("slice", "g", "c4", {"starts": (0,), "ends": (4,), "axes": (1,)}),
            ("conv2d", "g w_g2", "c", {"groups": 2}),
            BN,
        ],
        "y",
        "conv2d conv2d",
    ),
    "batch norm after a conv_transpose2d in groups": (
        X,
        [("conv2d", "x w", "g"), ("conv_transpose2d", "g w_up", "c", {"groups": 2, "stride": (2, 1)}), BN],
        "y",
        "conv2d conv_transpose2d",
    ),
    "scale, then shift, then activation of a conv_transpose2d": (
        X,
        [
            ("conv_transpose2d", "x w_up3", "c", {"stride": (2, 2)}),
            ("mul", "c two", "m"),
            ("add", "m per_channel", "s"),
            ("relu", "s", "y"),
        ],
        "y",
        "conv_transpose2d",
    ),
    "factor per channel": (X, [CONV, ("mul", "c per_channel", "y")], "y", "conv2d"),
    "factor per channel, constant first": (X, [CONV, ("mul", "per_channel_4d c", "y")], "y", "conv2d"),
    "division by a scalar": (X, [CONV, ("div", "c two", "y")], "y", "conv2d"),
    "scale, then shift, then activation": (
        X,
        [CONV, ("mul", "c per_channel", "m"), ("add", "half_0d m", "a"), ("leaky_relu", "a", "y", {"a": 0.3})],
        "y",
        "conv2d",
    ),
    "two factors": (X, [CONV, ("mul", "c per_channel", "m"), ("mul", "m two", "y")], "y", "conv2d"),
    "bias of a matmul": (A, [MATMUL, ("add", "m columns", "y")], "y", "matmul"),
    "scalar onto a matmul": (A, [MATMUL, ("add", "two m", "y")], "y", "matmul"),
    "bias of a matmul whose beta had nothing to scale": (
        A,
        [("matmul", "a wide", "m", {"beta": 0.25}), ("add", "m columns", "y")],
        "y",
        "matmul",
    ),
    # recognised functions
    "hard_swish by division": (X, [*SHIFTED, ("div", "p six", "y")], "y", "hard_swish"),
    "hard_swish by product": (X, [*SHIFTED, ("mul", "p sixth", "y")], "y", "hard_swish"),
    "hard_swish from relu6, other order": (
        X,
        [("add", "three x", "s"), ("relu6", "s", "k"), ("mul", "k x", "p"), ("div", "p six", "y")],
        "y",
        "hard_swish",
    ),
    "hard_swish from hard_sigmoid": (
        X,
        [("hard_sigmoid", "x", "g", {"a": 1 / 6, "b": 0.5}), ("mul", "g x", "y")],
        "y",
        "hard_swish",
    ),
    "gelu": (X, [*ERF, ("mul", "x o", "m"), ("mul", "m half_0d", "y")], "y", "gelu"),
    "gelu, half of x first": (X, [*ERF, ("mul", "half_0d x", "m"), ("mul", "m o", "y")], "y", "gelu"),
    "gelu by tanh": (X, [*TANH, ("mul", "half_0d x", "m"), ("mul", "o m", "y")], "y", "gelu_tanh"),
    "gelu by tanh of a product": (
        X,
        [("mul", "x x", "s"), ("mul", "s x", "x3"), *TANH[1:], ("mul", "o x", "m"), ("div", "m two", "y")],
        "y",
        "gelu_tanh",
    ),
    "silu": (X, [("sigmoid", "x", "g"), ("mul", "g x", "y")], "y", "silu"),
    "layer_norm": (X, layer_norm(), "y", "layer_norm"),
    "layer_norm with a product as the square": (X, layer_norm(square=("mul", "d d", "q")), "y", "layer_norm"),
    # activations
    "clip after conv2d": (X, [CONV, ("clip", "c", "y", {"a": -0.25, "b": 0.75})], "y", "conv2d"),
    "hard_sigmoid after matmul": (A, [MATMUL, ("hard_sigmoid", "m", "y", {"a": 0.3, "b": 0.4})], "y", "matmul"),
    "silu after conv2d": (X, [CONV, ("sigmoid", "c", "g"), ("mul", "c g", "y")], "y", "conv2d"),
    "prelu per channel": (X, [CONV, ("prelu", "c per_channel", "y")], "y", "conv2d"),
    "prelu per channel in four dimensions, after batch norm": (
        X,
        [CONV, ("batch_norm", "c scale shift mean var", "n", {"eps": 1e-3}), ("prelu", "n per_channel_4d", "y")],
        "y",
        "conv2d",
    ),
    "prelu per channel after a conv_transpose2d": (
        X,
        [("conv_transpose2d", "x w_up3", "c", {"stride": (2, 2)}), ("prelu", "c per_channel", "y")],
        "y",
        "conv_transpose2d",
    ),
    "prelu of a conv2d with a scalar": (X, [CONV, ("prelu", "c half_0d", "y")], "y", "conv2d"),
    "prelu of a matmul with one element": (A, [MATMUL, ("prelu", "m two", "y")], "y", "matmul"),
    "a scale and shift behind an activation": (
        X,
        [CONV, ("hard_swish", "c", "h"), ("mul", "h two", "m"), ("add", "half_0d m", "y")],
        "y",
        "conv2d",
    ),
    "a shift, then a scale, then a shift, behind a matmul with an activation": (
        A,
        [MATMUL, ("relu", "m", "r"), ("sub", "r three", "s"), ("mul", "two s", "t"), ("add", "t six", "y")],
        "y",
        "matmul",
    ),
    "a scale behind prelu": (X, [CONV, ("prelu", "c per_channel", "p"), ("mul", "p two", "y")], "y", "conv2d"),
    "a scale where the weights are inputs": (
        {**X, "w_in": (4, 3, 1, 1)},
        [("conv2d", "x w_in", "c"), ("mul", "c two", "y")],
        "y",
        "conv2d",
    ),
    "a factor that overflows the weights": (X, [CONV, ("mul", "c huge", "y")], "y", "conv2d"),
    "a shift behind an activation of the file": (
        X,
        [("conv2d", "x w b", "c", {"act": "relu"}), ("add", "c two", "y")],
        "y",
        "conv2d",
    ),
    "a scaled operand of a matmul": (
        A,
        [("mul", "a half_0d", "h"), ("matmul", "h wide", "y", {"alpha": 3.0})],
        "y",
        "matmul",
    ),
    "both operands of a matmul scaled": (
        {**A, "p": (3, 2)},
        [("div", "a six", "h"), ("mul", "two p", "q"), ("matmul", "h q", "m"), ("add", "m three", "y")],
        "y",
        "matmul",
    ),
    "the first of two activations": (X, [CONV, ("relu", "c", "r"), ("tanh", "r", "y")], "y", "conv2d tanh"),
}

# What only devices take that bind a fifth storage buffer.
OTHER = ("conv2d", "x w", "o", {"padding": (1,)})
SAME = {**X, "z": (2, 4, 5, 4)}
RESIDUALS = {
    "a value onto a conv2d, then relu": (SAME, [CONV, ("add", "c z", "s"), ("relu", "s", "y")], "y", "conv2d"),
    "batch norm, then a value, then relu": (
        SAME,
        [CONV, ("batch_norm", BN[1], "n"), ("add", "z n", "s"), ("relu", "s", "y")],
        "y",
        "conv2d",
    ),
    "the later of two conv2d": (X, [OTHER, CONV, ("add", "c o", "s"), ("tanh", "s", "y")], "y", "conv2d conv2d"),
    "a value that is an output too": (
        SAME,
        [("exp", "z", "e"), CONV, ("add", "e c", "y"), ("tanh", "y", "t")],
        "y t e",
        "exp conv2d tanh",
    ),
    "the input of a conv2d": (
        {"x": (2, 3, 5, 4)},
        [("conv2d", "x w_groups3", "c", {"padding": (1,), "groups": 3}), ("add", "c x", "y")],
        "y",
        "conv2d",
    ),
    "a slope behind it": (SAME, [CONV, ("add", "c z", "s"), ("prelu", "s per_channel", "y")], "y", "conv2d"),
    "a scale behind it": (SAME, [CONV, ("add", "c z", "s"), ("mul", "s two", "y")], "y", "conv2d"),
    "bias of a matmul, a value, and gelu": (
        {**A, "z": (5, 6)},
        [MATMUL, ("add", "m columns", "s"), ("add", "z s", "t"), ("gelu", "t", "y")],
        "y",
        "matmul",
    ),
    "a second value": (
        {**SAME, "v": (2, 4, 5, 4)},
        [CONV, ("add", "c z", "s"), ("add", "s v", "y")],
        "y",
        "conv2d add",
    ),
}
NO_RESIDUALS = {
    "a value per image": ({**X, "z": (2, 1, 1, 1)}, [CONV, ("add", "c z", "y")], "y"),
    "a value that is broadcast to": ({**X, "z": (3, 2, 4, 5, 4)}, [CONV, ("add", "c z", "y")], "y"),
    "a conv2d and itself": (X, [CONV, ("add", "c c", "y")], "y"),
    "a conv2d that is read again": (SAME, [CONV, ("add", "c z", "y"), ("tanh", "c", "t")], "y t"),
    "an activated conv2d": (
        SAME,
        [("conv2d", "x w b", "c", {"padding": (1,), "act": "relu"}), ("add", "c z", "y")],
        "y",
    ),
    "a difference": (SAME, [CONV, ("sub", "c z", "y")], "y"),
    "a transposed convolution": (
        {**X, "z": (2, 4, 10, 8)},
        [("conv_transpose2d", "x w_up3", "c", {"stride": (2, 2)}), ("add", "c z", "y")],
        "y",
    ),
}

KEPT = {
    "a one that adds dimensions": (X, [("mul", "x one_5d", "y")], "y"),
    "one over x": (X, [("add", "x three", "s"), ("div", "one s", "y")], "y"),
    "zero minus x": (X, [("sub", "zero x", "y")], "y"),
    "batch norm with a second reader": (X, [CONV, BN, ("tanh", "c", "z")], "y z"),
    "batch norm whose conv2d is an output": (X, [CONV, BN], "c y"),
    "batch norm of an activation": (X, [("conv2d", "x w b", "c", {"act": "relu"}), BN], "y"),
    "batch norm of an input": ({"c": (2, 4, 3, 3)}, [BN], "y"),
    "batch norm after a weight that is an input": ({**X, "w_in": (4, 3, 1, 1)}, [("conv2d", "x w_in", "c"), BN], "y"),
    "batch norm after a bias that is an input": ({**X, "b_in": (4,)}, [("conv2d", "x w b_in", "c"), BN], "y"),
    "batch norm with a scale that is an input": (
        {**X, "s_in": (4,)},
        [CONV, ("batch_norm", "c s_in shift mean var", "y")],
        "y",
    ),
    "batch norm with a negative variance": (X, [CONV, ("batch_norm", "c scale shift mean negative", "y")], "y"),
    "factor along the width": (X, [CONV, ("mul", "c along_width", "y")], "y"),
    "factor per image": (X, [CONV, ("mul", "c per_image", "y")], "y"),
    "factor per pixel": (X, [CONV, ("mul", "c map", "y")], "y"),
    "factor that adds a dimension": (X, [CONV, ("mul", "c fifth_dim", "y")], "y"),
    "division by zero": (X, [CONV, ("div", "c zero", "y")], "y"),
    "division by zero in one channel": (X, [CONV, ("div", "c holes", "y")], "y"),
    "division of a constant by the conv2d": (X, [CONV, ("div", "two c", "y")], "y"),
    "a constant minus the conv2d": (X, [CONV, ("sub", "two c", "y")], "y"),
    "two conv2d added": (X, [CONV, ("conv2d", "x w b", "c2", {"padding": (1,)}), ("add", "c c2", "y")], "y"),
    "a second bias of a matmul": (A, [("matmul", "a wide columns", "m"), ("add", "m columns", "y")], "y"),
    "a bias along the rows of a matmul": (A, [MATMUL, ("add", "m rows", "y")], "y"),
    "a bias on a matmul with a second reader": (A, [MATMUL, ("add", "m columns", "y"), ("tanh", "m", "z")], "y z"),
    "a scaled operand that is read again": (
        A,
        [("mul", "a half_0d", "h"), ("matmul", "h wide", "y"), ("tanh", "h", "z")],
        "y z",
    ),
    "a scale that adds a dimension to an operand": (A, [("mul", "a six_5d", "h"), ("matmul", "h wide", "y")], "y"),
    "a constant over the operand": (A, [("div", "six a", "h"), ("matmul", "h wide", "y")], "y"),
    "an operand times nothing": (A, [("mul", "a zero", "h"), ("matmul", "h wide", "y")], "y"),
    "hard_swish over another number": (X, [*SHIFTED, ("div", "p seven", "y")], "y"),
    "hard_swish over a six that adds a dimension": (X, [*SHIFTED, ("div", "p six_5d", "y")], "y"),
    "hard_swish upside down": (X, [*SHIFTED, ("div", "six p", "y")], "y"),
    "hard_swish of another shift": (
        X,
        [("add", "x three_and_a_bit", "s"), *SHIFTED[1:], ("div", "p six", "y")],
        "y",
    ),
    "hard_swish of other bounds": (
        X,
        [SHIFTED[0], ("clip", "s", "k", {"a": 0.0, "b": 5.0}), SHIFTED[2], ("div", "p six", "y")],
        "y",
    ),
    "hard_swish of another x": (
        {**X, "z": X["x"]},
        [*SHIFTED[:2], ("mul", "z k", "p"), ("div", "p six", "y")],
        "y",
    ),
    "hard_swish whose product is an output": (X, [*SHIFTED, ("div", "p six", "y")], "p y"),
    "silu of another x": ({**X, "z": X["x"]}, [("sigmoid", "x", "g"), ("mul", "g z", "y")], "y"),
    "layer_norm over another axis": ({"x": (4, 4, 4)}, layer_norm(axes=(1,)), "y"),
    "layer_norm with the mean of something else": ({**X, "z": X["x"]}, layer_norm(mean_of="z"), "y"),
    "layer_norm with another power": (X, layer_norm(square=("pow", "d four", "q")), "y"),
    "layer_norm with the square of x": (X, layer_norm(square=("pow", "x two", "q")), "y"),
    "layer_norm with an eps that adds dimensions": (X, layer_norm(eps="eps_5d"), "y"),
    "layer_norm whose mean lies along the columns": ({"x": (4, 4)}, layer_norm(keepdims=(0, 1)), "y"),
    "layer_norm whose variance lies along the columns": ({"x": (4, 4)}, layer_norm(keepdims=(1, 0)), "y"),
    "layer_norm with a scalar scale": (X, layer_norm(scale="two"), "y"),
    "an activation of a conv2d with two readers": (X, [CONV, ("relu", "c", "y"), ("tanh", "c", "z")], "y z"),
    "an activation of a conv2d that is an output": (X, [CONV, ("relu", "c", "y")], "c y"),
    "an activation of an activated conv2d": (X, [("conv2d", "x w b", "c", {"act": "relu"}), ("tanh", "c", "y")], "y"),
    "prelu along the width": (X, [CONV, ("prelu", "c along_width", "y")], "y"),
    "prelu per image": (X, [CONV, ("prelu", "c per_image", "y")], "y"),
    "prelu per pixel": (X, [CONV, ("prelu", "c map", "y")], "y"),
    "prelu per column of a matmul": (A, [MATMUL, ("prelu", "m columns", "y")], "y"),
    "prelu with a slope that is an input": ({**X, "s_in": (4, 1, 1)}, [CONV, ("prelu", "c s_in", "y")], "y"),
    "prelu of a conv2d with two readers": (X, [CONV, ("prelu", "c per_channel", "y"), ("tanh", "c", "z")], "y z"),
    "prelu of a conv2d that is an output": (X, [CONV, ("prelu", "c per_channel", "y")], "c y"),
    "prelu of an activated conv2d": (
        X,
        [("conv2d", "x w b", "c", {"act": "relu"}), ("prelu", "c per_channel", "y")],
        "y",
    ),
    "prelu of an addition": (X, [("add", "x two", "c"), ("prelu", "c two", "y")], "y"),
    "a factor per channel after prelu": (
        X,
        [("conv2d", "x w b slope", "c", {"act": "prelu"}), ("mul", "c per_channel", "y")],
        "y",
    ),
    "a scale behind an activation with parameters": (
        X,
        [("conv2d", "x w b", "c", {"act": "leaky_relu", "act_a": 0.1}), ("mul", "c two", "y")],
        "y",
    ),
    "an activation behind a scale": (
        X,
        [("conv2d", "x w b", "c", {"act": "relu", "out_scale": 2.0}), ("relu", "c", "y")],
        "y",
    ),
    "a scale behind an activation that is an output": (
        X,
        [("conv2d", "x w b", "c", {"act": "relu"}), ("mul", "c two", "y")],
        "c y",
    ),
    "three minus an activation": (X, [("conv2d", "x w b", "c", {"act": "relu"}), ("sub", "three c", "y")], "y"),
    "erf of something else": (X, [("erf", "x", "e"), ("add", "e one", "o"), ("mul", "x o", "y")], "y"),
    "a pad of ones before a conv2d": (
        X,
        [("pad", "x", "p", {"pads": (0, 0, 1, 1, 0, 0, 1, 1), "value": 1.0}), ("conv2d", "p w b", "y")],
        "y",
    ),
    "a pad that crops before a conv2d": (
        X,
        [("pad", "x", "p", {"pads": (0, 0, 1, 1, 0, 0, -1, 1)}), ("conv2d", "p w b", "y")],
        "y",
    ),
    "a permutation of a matmul's batch": (
        {"p": (2, 3, 5, 4), "q": (3, 2, 5, 4)},
        [("transpose", "p", "t", {"perm": (1, 0, 3, 2)}), ("matmul", "t q", "y")],
        "y",
    ),
    "a number that is no number": (X, [("conv2d", "x w b", "c", {"act": "relu"}), ("mul", "c nan", "y")], "y"),
    "an activation of an addition": (X, [("add", "x two", "c"), ("relu", "c", "y")], "y"),
}
CONSTANTS |= {"w_g2": f32(4, 3, 1, 1, seed=16), "four": np.array(4, np.float32)}
CONSTANTS |= {"w_up": f32(4, 2, 3, 2, seed=17), "w_up3": f32(3, 4, 2, 2, seed=18)}

# Elementwise operations, with the steps of the chains that they become, or the op where there is none.
CHAINS = {
    "add and relu": ({"x": (2, 3), "z": (2, 3)}, [("add", "x z", "s"), ("relu", "s", "y")], "y", "add_x1/relu"),
    "numbers, and a turned operand": (
        {"x": (2, 3), "z": (3,)},
        [("mul", "two x", "m"), ("sub", "three m", "s"), ("div", "z s", "y")],
        "y",
        "mul/rsub/rdiv_x1",
    ),
    "what the chain starts from comes again": (
        {"x": (2, 3)},
        [("tanh", "x", "t"), ("div", "x t", "d"), ("mul", "d d", "y")],
        "y",
        "tanh/rdiv_x0/mul_y",
    ),
    "a branch that ends in the other": (
        {"x": (2, 3), "z": (2, 3)},
        [("exp", "x", "a"), ("tanh", "z", "t"), ("add", "a t", "y")],
        "y",
        "tanh exp/add_x1",
    ),
    "a value with two readers": (
        {"x": (2, 3)},
        [("exp", "x", "a"), ("tanh", "a", "t"), ("neg", "a", "n"), ("add", "t n", "y")],
        "y",
        "exp neg tanh/add_x1",
    ),
    "batch_norm of no convolution, a scale and shift, and relu": (
        {"x": (2, 4, 3, 3)},
        [
            ("batch_norm", "x scale shift mean var", "n", {"eps": 1e-3}),
            ("mul", "n per_channel", "m"),
            ("add", "m half_0d", "s"),
            ("relu", "s", "y"),
        ],
        "y",
        "mul_x1/add_x2/relu",
    ),
    "a value that is an output": ({"x": (2, 3)}, [("exp", "x", "a"), ("tanh", "a", "y")], "a y", "exp tanh"),
    "a value that is broadcast": (
        {"x": (3,), "z": (2, 3)},
        [("exp", "x", "a"), ("add", "a z", "y")],
        "y",
        "exp add",
    ),
    "more operands than there is room for": (
        {"p": (2, 3), "q": (2, 3), "r": (2, 3), "s": (2, 3)},
        [("add", "p q", "a"), ("mul", "a r", "m"), ("sub", "m s", "y")],
        "y",
        "add_x1/mul_x2 sub",
    ),
    "more steps than there is room for": (
        {"x": (2, 3)},
        [("tanh", f"v{i - 1}" if i else "x", f"v{i}" if i < 8 else "y") for i in range(9)],
        "y",
        "tanh/tanh/tanh/tanh/tanh/tanh/tanh/tanh tanh",
    ),
    "a slope, and bounds": (
        {"x": (2, 4, 3, 3)},
        [("prelu", "x per_channel", "p"), ("clip", "p", "y", {"a": -1.0, "b": 0.5})],
        "y",
        "prelu_x1/clip",
    ),
    "powers are no step": ({"x": (2, 3)}, [("exp", "x", "a"), ("pow", "a two", "y")], "y", "exp pow"),
}
