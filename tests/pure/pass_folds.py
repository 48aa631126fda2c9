"""Graphs in which a pass folds one operation into another, with the ops that they become."""

from pass_parts import BN, CONV, MATMUL, OTHER, SAME, A, X, part

FOLDS = {
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
    "a concat of one part": (X, [("concat", "x", "t", {"axis": 1}), ("relu", "t", "y")], "y", "relu"),
    "identity": (X, [("identity", "x", "t"), ("relu", "t", "y")], "y", "relu"),
    "identity between conv2d and relu": (X, [CONV, ("identity", "c", "t"), ("relu", "t", "y")], "y", "conv2d"),
    "an output that stands for another value": (X, [("relu", "x", "t"), ("mul", "t one", "y")], "y", "relu identity"),
    "zeros around nothing": (X, [("pad", "x", "t", {"pads": (0,) * 8}), ("relu", "t", "y")], "y", "relu"),
    "a slice of all": (X, [part("x", "t", 2, 0, 5), part("t", "u", 1, -99, 99), ("relu", "u", "y")], "y", "relu"),
    # fold_pad
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
    # fold_affine
    "a second bias of a matmul": (A, [("matmul", "a wide columns", "m"), ("add", "m columns", "y")], "y", "matmul"),
    "a scalar onto a bias": (A, [("matmul", "a wide columns", "m"), ("sub", "m two", "y")], "y", "matmul"),
    "factor per column": (A, [MATMUL, ("mul", "columns_2 m", "y")], "y", "matmul"),
    "factor per column behind a bias with a factor": (
        A,
        [("matmul", "a wide columns", "m", {"alpha": 0.5, "beta": 0.25}), ("div", "m columns_2", "y")],
        "y",
        "matmul",
    ),
    "bias, factor, bias and activation": (
        A,
        [MATMUL, ("add", "m columns", "n"), ("mul", "n columns_2", "s"), ("sub", "s columns", "t"), ("relu", "t", "y")],
        "y",
        "matmul",
    ),
    "factor per column of transposed weights": (
        {"a": (2, 5, 6)},
        [("matmul", "a square columns", "m", {"trans_b": True}), ("mul", "m nothing_in_one", "y")],
        "y",
        "matmul",
    ),
    "bias, factor and difference per channel": (
        X,
        [CONV, ("add", "c per_channel", "s"), ("mul", "s per_channel_4d", "t"), ("sub", "t per_channel", "y")],
        "y",
        "conv2d",
    ),
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
    "a scaled operand that is moved": (
        {"a": (2, 5, 6)},
        [
            ("mul", "a half_0d", "h"),
            ("reshape", "h", "r", {"shape": (10, 6)}),
            ("transpose", "r", "t", {"perm": (1, 0)}),
            ("div", "r two", "u"),
            ("matmul", "u t", "y"),
        ],
        "y",
        "mul reshape matmul",
    ),
    "a scaled operand that is moved alone": (
        {"a": (2, 5, 3)},
        [("mul", "a half_0d", "h"), ("reshape", "h", "r", {"shape": (10, 3)}), ("matmul", "r wide", "y")],
        "y",
        "reshape matmul",
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
