"""Graphs that look like what a pass rewrites, and must stay as they are."""

from pass_parts import BN, CONV, MATMUL, SAME, SHIFTED, A, X, layer_norm, part

from vkconv.core import DType
from vkconv.graph import TensorSpec

ROWS = {"x": (5, 3, 48)}
PQ = ("concat", "p q", "y", {"axis": 2})


def in_parts(names, size, count, last=(1, 0, 2)):
    """Parts of a size along the last axis of x, the first ``names`` of them, each transposed: the last one in a way of
    its own."""
    nodes = []
    for i, (name, y) in enumerate(zip(names, "yz", strict=True)):
        perm = last if i == len(names) - 1 else (1, 0, 2)
        nodes += [part("x", name, 2, size * i, size * (i + 1)), ("transpose", name, y, {"perm": perm})]
    return nodes


def parted(first, second, along=2):
    """Two parts along axis 2, each a value with its first and last element, joined along an axis."""
    (x, *p), (z, *q) = first, second
    axis = {"axis": along}
    return [part(x, "p", 2, *p), part(z, "q", 2, *q), ("concat", "p q", "y", axis)]


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
    "a bias on a bias that is an input": (
        {**A, "b_in": (6,)},
        [("matmul", "a wide b_in", "m"), ("add", "m columns", "y")],
        "y",
    ),
    "a factor per column of weights that are an input": (
        {**A, "w_in": (3, 6)},
        [("matmul", "a w_in", "m"), ("mul", "m columns_2", "y")],
        "y",
    ),
    "a factor per column of what is read again": (A, [MATMUL, ("mul", "m columns_2", "y"), ("tanh", "m", "z")], "y z"),
    "a factor per column of an activation": (
        A,
        [("matmul", "a wide", "m", {"act": "tanh"}), ("mul", "m columns_2", "y")],
        "y",
    ),
    "a factor per column that is nothing": (A, [MATMUL, ("div", "m nothing_in_one", "y")], "y"),
    "columns over a matmul": (A, [MATMUL, ("div", "columns_2 m", "y")], "y"),
    "columns less a matmul": (A, [MATMUL, ("sub", "columns m", "y")], "y"),
    "a factor along the rows of a matmul": (A, [MATMUL, ("mul", "m rows", "y")], "y"),
    "one row again and again": ({"x": (5, 3)}, [("gather", "x rows_again", "y")], "y"),
    "rows that are unevenly spaced": ({"x": (5, 3)}, [("gather", "x rows_uneven", "y")], "y"),
    "no rows": ({"x": (5, 3)}, [("gather", "x no_rows", "y")], "y"),
    "rows that an input names": (
        {"x": (5, 3), "i": TensorSpec((), DType.I64)},
        [("gather", "x i", "y")],
        "y",
    ),
    "parts in the order that they have": (X, parted(("x", 0, 2), ("x", 2, 5)), "y"),
    "the ends of two values": ({**X, "z": X["x"]}, parted(("x", 3, 5), ("z", 0, 3)), "y"),
    "an end and a beginning that overlap": (X, parted(("x", 2, 5), ("x", 0, 3)), "y"),
    "an end and a beginning that leave one out": (X, parted(("x", 4, 5), ("x", 0, 3)), "y"),
    "an end that is joined along another axis": ({"x": (2, 4, 4)}, parted(("x", 2, 4), ("x", 0, 2), along=1), "y"),
    "an end that runs backwards": (X, [part("x", "p", 2, 4, 2, -1), part("x", "q", 2, 0, 3), PQ], "y"),
    "an end of a part": (
        X,
        [part("x", "s", 3, 0, 3), part("s", "p", 2, 3, 5), part("s", "q", 2, 0, 3), PQ],
        "y",
    ),
    "a roll of integers that no pad takes": (
        {"x": TensorSpec((2, 3, 5), DType.I64)},
        parted(("x", 3, 5), ("x", 0, 3)),
        "y",
    ),
    "every second element, and the first of them again": (
        {"x": (2, 3, 6)},
        [part("x", "p", 2, 0, 6, 2), part("x", "q", 2, 0, 6, 2), PQ],
        "y",
    ),
    "the odd elements before the even": (
        {"x": (2, 3, 6)},
        [part("x", "p", 2, 1, 6, 2), part("x", "q", 2, 0, 6, 2), PQ],
        "y",
    ),
    "every second element of some": (
        {"x": (2, 3, 9)},
        [part("x", "p", 2, 0, 8, 2), part("x", "q", 2, 1, 8, 2), PQ],
        "y",
    ),
    "every second element, but for the last": (
        {"x": (2, 3, 6)},
        [part("x", "p", 2, 0, 6, 2), part("x", "q", 2, 1, 4, 2), PQ],
        "y",
    ),
    "every second element of all and of some": (
        {"x": (2, 3, 6)},
        [
            part("x", "even", 2, 0, 6, 2),
            part("x", "o", 1, 0, 2),
            part("o", "odd", 2, 1, 6, 2),
            ("concat", "even odd", "y", {"axis": 1}),
        ],
        "y",
    ),
    "every third element, two times": (
        {"x": (2, 3, 6)},
        [part("x", "p", 2, 0, 6, 3), part("x", "q", 2, 1, 6, 3), PQ],
        "y",
    ),
    "every second element of two values": (
        {"x": (2, 3, 6), "z": (2, 3, 6)},
        [part("x", "p", 2, 0, 6, 2), part("z", "q", 2, 1, 6, 2), PQ],
        "y",
    ),
    "all elements backwards": (X, [part("x", "y", 2, 99, -99, -1)], "y"),
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
        [("transpose", "p", "t", {"perm": (1, 0, 2, 3)}), ("matmul", "t q", "y", {"trans_a": True})],
        "y",
    ),
    "a permutation behind one that cuts dimensions elsewhere": (
        {"x": (2, 6, 5)},
        [
            ("transpose", "x", "t", {"perm": (0, 2, 1)}),
            ("reshape", "t", "r", {"shape": (2, 3, 10)}),
            ("transpose", "r", "y", {"perm": (2, 0, 1)}),
        ],
        "y",
    ),
    "a scaled operand that is moved and read again": (
        {"a": (6, 5)},
        [
            ("mul", "a half_0d", "h"),
            ("reshape", "h", "t", {"shape": (5, 6)}),
            ("matmul", "t square", "y"),
            ("tanh", "h", "z"),
        ],
        "y z",
    ),
    "two of three parts that are transposed": (ROWS, in_parts("pq", 16, 3), "y z"),
    "parts that a device cannot bind": ({"x": (5, 3, 3)}, in_parts("pq", 1, 2), "y z"),
    "parts that are transposed in two ways": (ROWS, in_parts("pq", 24, 2, (2, 1, 0)), "y z"),
    "parts of another size": (
        ROWS,
        [
            part("x", "p", 2, 0, 16),
            ("transpose", "p", "y", {"perm": (1, 0, 2)}),
            part("x", "q", 2, 16, 48),
            ("transpose", "q", "z", {"perm": (1, 0, 2)}),
        ],
        "y z",
    ),
    "a number that is no number": (X, [("conv2d", "x w b", "c", {"act": "relu"}), ("mul", "c nan", "y")], "y"),
    "an activation of an addition": (X, [("add", "x two", "c"), ("relu", "c", "y")], "y"),
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
