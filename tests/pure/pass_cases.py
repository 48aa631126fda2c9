"""Graphs that a pass rewrites, with the ops that they become."""

from pass_parts import BN, CONV, ERF, MATMUL, OTHER, SAME, SHIFTED, TANH, A, X, layer_norm, part, phases, roll

from vkconv.core import DType
from vkconv.graph import TensorSpec

ROWS = {"x": (5, 7, 3)}
# An image with channels last.
LAST = {"x": (2, 6, 4, 5)}

TOKENS = {"x": (2, 5, 48)}
THIRDS = [part("x", name, 2, 16 * i, 16 * (i + 1)) for i, name in enumerate("qkv")]


def heads(parts):
    """Attention without its softmax, four heads of four of each of three parts."""
    nodes = list(parts)
    for name, perm in zip("qkv", ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True):
        nodes += [
            ("reshape", name, f"{name}4", {"shape": (2, 5, 4, 4)}),
            ("transpose", f"{name}4", f"{name}t", {"perm": perm}),
        ]
    return [*nodes, ("matmul", "qt kt", "s"), ("tanh", "s", "p"), ("matmul", "p vt", "y")]


ATTENTION = "slice reshape slice reshape slice reshape matmul matmul"


def merged(order, axis, wide=1, high=2):
    nodes, made = phases("x", wide, high, order)
    return LAST, [*nodes, ("concat", made, "y", {"axis": axis})], "y", "reshape transpose reshape"


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
    "a concat of one part": (X, [("concat", "x", "t", {"axis": 1}), ("relu", "t", "y")], "y", "relu"),
    "identity": (X, [("identity", "x", "t"), ("relu", "t", "y")], "y", "relu"),
    "identity between conv2d and relu": (X, [CONV, ("identity", "c", "t"), ("relu", "t", "y")], "y", "conv2d"),
    "an output that stands for another value": (X, [("relu", "x", "t"), ("mul", "t one", "y")], "y", "relu identity"),
    "zeros around nothing": (X, [("pad", "x", "t", {"pads": (0,) * 8}), ("relu", "t", "y")], "y", "relu"),
    "a slice of all": (X, [part("x", "t", 2, 0, 5), part("t", "u", 1, -99, 99), ("relu", "u", "y")], "y", "relu"),
    # slice_for_gather
    "the first along an axis": (ROWS, [("gather", "x first_of_all", "y", {"axis": 0})], "y", "slice reshape"),
    "the last along the last axis": (ROWS, [("gather", "x last_of_all", "y", {"axis": -1})], "y", "slice reshape"),
    "one row": (ROWS, [("gather", "x one_row", "y", {"axis": 1})], "y", "slice"),
    "rows that follow one another": (ROWS, [("gather", "x rows_on", "y", {"axis": 1})], "y", "slice"),
    "rows backwards to the first, by twos, as a matrix": (
        {"x": (5, 5)},
        [("gather", "x rows_back", "y", {"axis": 1})],
        "y",
        "slice reshape",
    ),
    "every second row": (ROWS, [("gather", "x rows_apart", "y", {"axis": 1})], "y", "slice reshape"),
    "integers at an index": (
        {"x": TensorSpec((4, 5), DType.I64)},
        [("gather", "x last_of_all", "y", {"axis": 0})],
        "y",
        "slice reshape",
    ),
    "the three parts of what is multiplied at once": (
        {"x": (2, 3)},
        [
            ("matmul", "x wide", "m"),
            ("transpose", "m", "t", {"perm": (1, 0)}),
            ("gather", "t first_of_all", "q"),
            ("gather", "t one_row", "k"),
            ("gather", "t last_of_all", "v"),
        ],
        "q k v",
        "matmul transpose slice reshape slice slice reshape",
    ),
    # pad_for_roll
    "a roll": (X, roll("x", "y", 2, 2, 5), "y", "pad"),
    "a roll along the last axis": (X, roll("x", "y", 3, 1, 4), "y", "pad"),
    "a roll along two axes": (X, [*roll("x", "r", 2, 3, 5), *roll("r", "y", 3, 1, 4)], "y", "pad"),
    "a roll along two axes, back again": (
        X,
        [
            *roll("x", "r", 1, 2, 3),
            *roll("r", "s", 2, 3, 5),
            ("tanh", "s", "t"),
            *roll("t", "u", 1, 1, 3),
            *roll("u", "y", 2, 2, 5),
        ],
        "y",
        "pad tanh pad",
    ),
    "two rolls along one axis": (X, [*roll("x", "r", 2, 3, 5), *roll("r", "y", 2, 1, 5)], "y", "pad pad"),
    "a roll whose first half is an output": (X, [*roll("x", "r", 2, 3, 5), *roll("r", "y", 3, 1, 4)], "y r", "pad pad"),
    "a roll of integers": ({"x": TensorSpec((4, 5), DType.I32)}, roll("x", "y", 1, 2, 5), "y", "pad"),
    # transpose_for_phases
    "merging of patches": merged([(0, 0), (1, 0), (0, 1), (1, 1)], -1),
    "merging of patches, the other axis faster": merged([(0, 0), (0, 1), (1, 0), (1, 1)], -1),
    "merging of patches in front of what is merged": merged([(0, 0), (1, 0), (0, 1), (1, 1)], 0),
    "merging of patches along one of their axes": merged([(0, 0), (1, 0), (0, 1), (1, 1)], 1),
    "every third element, those behind them, and the last": (
        {"x": (2, 9)},
        [part("x", f"p{i}", 1, i, 99, 3) for i in range(3)] + [("concat", "p0 p1 p2", "y", {"axis": 1})],
        "y",
        "reshape transpose reshape",
    ),
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
    "a permutation and its inverse in another shape": (
        {"x": (2, 3, 20)},
        [
            ("transpose", "x", "t", {"perm": (0, 2, 1)}),
            ("reshape", "t", "r", {"shape": (2, 4, 5, 3)}),
            ("transpose", "r", "y", {"perm": (0, 3, 1, 2)}),
        ],
        "y",
        "reshape",
    ),
    "a permutation of a permutation in another shape": (
        {"x": (2, 3, 20)},
        [
            ("transpose", "x", "t", {"perm": (2, 0, 1)}),
            ("reshape", "t", "r", {"shape": (4, 5, 1, 6)}),
            ("unsqueeze", "r", "u", {"axes": (0,)}),
            ("transpose", "u", "y", {"perm": (4, 0, 2, 3, 1)}),
        ],
        "y",
        "reshape transpose",
    ),
    "heads of one image": (
        {"x": (5, 1, 12)},
        [
            ("reshape", "x", "r", {"shape": (5, 3, 4)}),
            ("transpose", "r", "t", {"perm": (1, 0, 2)}),
            ("reshape", "t", "u", {"shape": (1, 3, 5, 4)}),
            ("transpose", "u", "v", {"perm": (0, 1, 3, 2)}),
            ("matmul", "u v", "y"),
        ],
        "y",
        "reshape transpose reshape reshape transpose matmul",
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
    # turn_slices
    "queries, keys and values by slices": (TOKENS, heads(THIRDS), "y", "reshape transpose reshape " + ATTENTION),
    "queries, keys and values by a split": (
        TOKENS,
        heads([("split", "x", "q k v", {"axis": 2, "num_outputs": 3})]),
        "y",
        "reshape transpose reshape " + ATTENTION,
    ),
    "queries, keys and values of what was transposed": (
        {"x": (2, 48, 5)},
        [
            ("transpose", "x", "last", {"perm": (0, 2, 1)}),
            *heads([part("last", name, 2, 16 * i, 16 * (i + 1)) for i, name in enumerate("qkv")]),
        ],
        "y",
        "reshape transpose reshape " + ATTENTION,
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
    # recognised functions
    "hard_swish by division": (X, [*SHIFTED, ("div", "p six", "y")], "y", "hard_swish"),
    "hard_swish by product": (X, [*SHIFTED, ("mul", "p sixth", "y")], "y", "hard_swish"),
    "hard_swish from relu6, other order": (
        X,
        [("add", "three x", "s"), ("relu6", "s", "k"), ("mul", "k x", "p"), ("div", "p six", "y")],
        "y",
        "hard_swish",
    ),
    "hard_swish, the factor first": (
        X,
        [SHIFTED[0], SHIFTED[1], ("mul", "sixth k", "p"), ("mul", "p x", "y")],
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
    "layer_norm, constants first": (
        X,
        [*layer_norm()[:-2], ("mul", "vector n", "t"), ("add", "vector_2 t", "y")],
        "y",
        "layer_norm",
    ),
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
