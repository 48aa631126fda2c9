"""Graphs in which a pass joins, turns or takes away what only moves elements, with the ops that they become."""

from pass_parts import X, part, phases, roll

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


MOVES = {
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
    # transposes
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
}
