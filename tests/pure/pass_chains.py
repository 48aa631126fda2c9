"""Elementwise operations, with the steps of the chains that they become, or the op where there is none."""

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
    "an operand that is called as the value itself is in steps": (
        {"x": (2, 3), "y": (2, 3)},
        [("relu", "x", "r"), ("add", "r y", "s"), ("mul", "s y", "m"), ("mul", "m m", "z")],
        "z",
        "relu/add_x1/mul_x1/mul_y",
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
