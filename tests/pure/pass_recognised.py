"""Functions as exporters spell them, and the ops that they are."""

from pass_parts import ERF, SHIFTED, TANH, X, layer_norm

RECOGNISED = {
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
}
