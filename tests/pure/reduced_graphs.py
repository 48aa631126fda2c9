"""Graphs in which a product or convolution is reduced: those that become one node, those that stay two, and why."""

X, A, BATCHED = {"x": (2, 3, 5, 4)}, {"a": (5, 3)}, {"a": (2, 5, 3)}
CONV = ("conv2d", "x w b", "c", {"padding": (1,), "stride": (2, 2)})
MATMUL = ("matmul", "a wide columns", "m")
MEAN = {"op": "mean", "axes": (2, 3)}


def rows(op, axis=-1, keepdims=True):
    return ("reduce", "m", "y", {"op": op, "axes": (axis,), "keepdims": keepdims})


FUSED = {
    "mean of a conv2d": (X, [CONV, ("reduce", "c", "y", MEAN)], "conv_reduce"),
    "mean without its axes": (X, [CONV, ("reduce", "c", "y", {**MEAN, "keepdims": False})], "conv_reduce"),
    "maximum, activation between": (
        X,
        [CONV, ("relu", "c", "r"), ("reduce", "r", "y", {"op": "max", "axes": (-1, -2)})],
        "conv_reduce",
    ),
    "prelu between": (X, [CONV, ("prelu", "c per_channel", "r"), ("reduce", "r", "y", MEAN)], "conv_reduce"),
    "batch norm and activation between": (
        X,
        [
            CONV,
            ("batch_norm", "c scale shift mean var", "n", {"eps": 1e-3}),
            ("hard_swish", "n", "h"),
            ("reduce", "h", "y", {"op": "min", "axes": (2, 3)}),
        ],
        "conv_reduce",
    ),
    "a pool as large as the image": (X, [CONV, ("pool2d", "c", "y", {"kind": "avg", "kernel": (3, 2)})], "conv_reduce"),
    "its maximum": (X, [CONV, ("pool2d", "c", "y", {"kind": "max", "kernel": (3, 2)})], "conv_reduce"),
    "sum of rows": (A, [MATMUL, rows("sum")], "gemm_reduce"),
    "maximum of columns": (A, [MATMUL, rows("max", 0)], "gemm_reduce"),
    # mlir/test/fusion/pr-e2e/reductions of rocMLIR: the sum of a product and another tensor.
    "an addition of another tensor": (
        {**A, "z": (5, 6)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "gemm_reduce",
    ),
    "an addition and an activation, by columns": (
        {**A, "z": (5, 6)},
        [("matmul", "a wide columns", "p"), ("add", "z p", "s"), ("relu", "s", "m"), rows("max", 0)],
        "gemm_reduce",
    ),
    "an addend for all batches": (
        {**BATCHED, "z": (5, 6)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "gemm_reduce",
    ),
    "an addend of a row of all batches, and an activation": (
        {**BATCHED, "z": (1, 6)},
        [("matmul", "a wide columns", "p"), ("add", "z p", "s"), ("relu", "s", "m"), rows("max", 1)],
        "gemm_reduce",
    ),
    "a column and another tensor": (
        {**A, "u": (5, 1), "v": (5, 6)},
        [("matmul", "a wide", "p"), ("add", "p u", "s"), ("add", "s v", "m"), rows("sum")],
        "gemm_reduce",
    ),
    "two tensors": (
        {**A, "u": (5, 6), "v": (5, 6)},
        [("matmul", "a wide", "p"), ("add", "p u", "s"), ("add", "s v", "m"), rows("sum", 0)],
        "gemm_reduce",
    ),
    "a vector that is no constant, and a number": (
        {**A, "z": (6,)},
        [("matmul", "a wide", "p"), ("add", "p z", "s"), ("sub", "s two", "t"), ("tanh", "t", "m"), rows("max")],
        "gemm_reduce",
    ),
    "one to each channel of a conv2d": (
        {**X, "z": (4, 1, 1)},
        [CONV, ("add", "c z", "s"), ("leaky_relu", "s", "r", {"a": 0.2}), ("reduce", "r", "y", MEAN)],
        "conv_reduce",
    ),
    "one to each column of a conv2d": (X, [CONV, ("add", "c along", "s"), ("reduce", "s", "y", MEAN)], "conv_reduce"),
    "a map and another tensor to a conv2d": (
        {**X, "z": (2, 4, 3, 2), "v": (2, 1, 3, 2)},
        [CONV, ("add", "c z", "s"), ("add", "v s", "t"), ("hard_swish", "t", "r"), ("reduce", "r", "y", MEAN)],
        "conv_reduce",
    ),
    "l2 of rows": (A, [MATMUL, rows("l2")], "gemm_reduce"),
    "squares of columns": (A, [MATMUL, rows("sum_square", 0)], "gemm_reduce"),
    "an addition to a conv2d and an activation": (
        {**X, "z": (2, 4, 3, 2)},
        [CONV, ("add", "c z", "s"), ("relu", "s", "r"), ("reduce", "r", "y", MEAN)],
        "conv_reduce",
    ),
    "l2 of a conv2d": (X, [CONV, ("reduce", "c", "y", {**MEAN, "op": "l2"})], "conv_reduce"),
    "images and pixels": (X, [CONV, ("reduce", "c", "y", {"op": "mean", "axes": (0, 2, 3)})], "conv_reduce"),
    "everything of a conv2d": (X, [CONV, ("reduce", "c", "y", {"op": "l2", "axes": ()})], "conv_reduce"),
    "both axes of a product": (A, [MATMUL, ("reduce", "m", "y", {"op": "sum", "axes": (0, 1)})], "gemm_reduce"),
    "batches and rows": (BATCHED, [MATMUL, ("reduce", "m", "y", {"op": "max", "axes": (0, 2)})], "gemm_reduce"),
    "in batches": (BATCHED, [MATMUL, rows("min", 1, False)], "gemm_reduce"),
    "the batches of both operands": (
        {"a": (4, 5, 3), "other": (4, 3, 6)},
        [("matmul", "a other", "m"), rows("mean", 0)],
        "gemm_reduce",
    ),
    "a bias that an addition brings, and an activation": (
        A,
        [("matmul", "a wide", "p"), ("add", "p columns", "s"), ("tanh", "s", "m"), rows("mean", 1, False)],
        "gemm_reduce",
    ),
}
KEPT = {
    "the result is an output": (X, [CONV, ("reduce", "c", "y", MEAN)], "c y", "is an output of the graph too"),
    "it is read twice": (A, [MATMUL, rows("sum"), ("tanh", "m", "z")], "y z", "has other readers"),
    "another axis": (
        X,
        [CONV, ("reduce", "c", "y", {"op": "sum", "axes": (1,)})],
        "y",
        "fused_lanes needs a reduction over height and width, and here it is channels",
    ),
    "height alone": (
        X,
        [CONV, ("reduce", "c", "y", {"op": "sum", "axes": (2,)})],
        "y",
        "fused_lanes needs a reduction over height and width, and here it is height",
    ),
    "images alone": (
        X,
        [CONV, ("reduce", "c", "y", {"op": "sum", "axes": (0,)})],
        "y",
        "in_parts needs a result of the convolution that is larger than the device's budget of scratch, and here it is",
    ),
    "over the batches": (BATCHED, [MATMUL, rows("sum", 0)], "y", "along rows or columns alone, and here it is b"),
    "the largest over the batches": (
        {"a": (4, 5, 3), "other": (4, 3, 6)},
        [("matmul", "a other", "m"), rows("max", 0)],
        "y",
        "joined needs one sum or mean over batches alone",
    ),
    "one of two batch dimensions": (
        {"a": (2, 3, 5, 3)},
        [MATMUL, rows("sum", 0)],
        "y",
        "only all of its batches can be reduced with it, and here it is 0",
    ),
    "three additions": (
        {**A, "u": (5, 6), "v": (5, 1), "z": (6,)},
        [("matmul", "a wide", "p"), ("add", "p u", "s"), ("add", "s v", "t"), ("add", "t z", "m"), rows("sum")],
        "y",
        "it adds 2 values to what it makes, and here are 3",
    ),
    "an addition that repeats the product": (
        {**A, "z": (2, 5, 6)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "y",
        "other readers or another shape",
    ),
    "an addition that others read": (
        {**A, "z": (5, 1)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "y m",
        "is an output of the graph too",
    ),
    "a product that is not added": (
        {**A, "z": (5, 1)},
        [("matmul", "a wide", "p"), ("mul", "p z", "m"), rows("sum")],
        "y",
        "'mul_m' lies between them, which it does not apply",
    ),
    "what is taken from the product": (
        {**A, "z": (5, 1)},
        [("matmul", "a wide", "p"), ("sub", "p z", "m"), rows("sum")],
        "y",
        "'sub_m' lies between them, which it does not apply",
    ),
    "an addition behind an activation": (
        {**A, "z": (5, 1)},
        [("matmul", "a wide", "p"), ("relu", "p", "r"), ("add", "r z", "m"), rows("sum")],
        "y",
        "lies between them, which it does not apply",
    ),
    "batches between others": (
        {"a": (2, 3, 2, 5, 3), "z": (2, 1, 2, 1, 1)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "y",
        "repeats over batches between others",
    ),
    "two activations": (
        A,
        [MATMUL, ("relu", "m", "r"), ("tanh", "r", "t"), ("reduce", "t", "y", {"op": "sum", "axes": (1,)})],
        "y",
        "'tanh_t' lies between",
    ),
}
SILENT = {
    "another function": (A, [MATMUL, rows("prod")], "y"),
    "nothing before it": (A, [("reduce", "a", "y", {"op": "sum", "axes": (1,)})], "y"),
    "a pool of another kind": (X, [CONV, ("pool2d", "c", "y", {"kind": "lp", "kernel": (3, 2)})], "y"),
    "a pool with padding": (
        X,
        [CONV, ("pool2d", "c", "y", {"kind": "max", "kernel": (3, 2), "padding": (1, 0)})],
        "y",
    ),
    "a smaller pool": (X, [CONV, ("pool2d", "c", "y", {"kind": "max", "kernel": (2, 2)})], "y"),
}

PAIR = [("reduce", "m", "u", {"op": "sum_square", "axes": (1,)}), ("reduce", "m", "v", {"op": "mean", "axes": (1,)})]
# Graph, outputs, the node's outputs by name, and how many nodes are left.
SEVERAL = {
    "the product is an output": (A, [MATMUL, rows("sum")], "m y", {"y": "y", "product": "m"}, 1),
    "the product is gated by its mean": (
        X,
        [CONV, ("reduce", "c", "g", MEAN), ("sigmoid", "g", "s"), ("mul", "c s", "y")],
        "y",
        {"y": "g", "product": "c"},
        3,
    ),
    "mean and squares": (A, [MATMUL, *PAIR], "v u", {"y": "u", "also": "v"}, 1),
    "both, and the product": (
        A,
        [MATMUL, ("tanh", "m", "t"), *PAIR],
        "t u v",
        {"y": "u", "also": "v", "product": "m"},
        2,
    ),
    "another axis stays": (
        A,
        [MATMUL, rows("sum"), ("reduce", "m", "z", {"op": "max", "axes": (0,)})],
        "y z",
        {"y": "y", "product": "m"},
        2,
    ),
    "three of them": (
        A,
        [MATMUL, *PAIR, ("reduce", "m", "z", {"op": "max", "axes": (1,)})],
        "u v z",
        {"y": "u", "also": "v", "product": "m"},
        2,
    ),
}
