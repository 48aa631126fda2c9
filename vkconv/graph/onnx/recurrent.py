"""Import rules for LSTM, GRU and RNN: the product of all inputs as one matmul, then the steps."""

import itertools
from functools import partial

from vkconv.core import did_you_mean
from vkconv.graph.ir import AttrValue, Node
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView

# ONNX's functions of cells in lower case: vkconv's, and what alpha and beta are where the model does not say.
_FUNCTIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "affine": ("affine", (1.0, 0.0)),
    "elu": ("elu", (1.0,)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "leakyrelu": ("leaky_relu", (0.01,)),
    "relu": ("relu", ()),
    "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
    "sigmoid": ("sigmoid", ()),
    "softplus": ("softplus", ()),
    "softsign": ("softsign", ()),
    "tanh": ("tanh", ()),
    "thresholdedrelu": ("thresholded_relu", (1.0,)),
}
_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_DEFAULTS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}

_Function = tuple[str, float, float]


def _functions(cell: str, directions: int, n: NodeView) -> list[tuple[_Function, ...]]:
    """The functions of each direction. Numbers of activation_alpha and activation_beta go to the functions that take
    one, in turn."""
    names = [name.lower() for name in n.attr_strs("activations")] or [*_DEFAULTS[cell] * directions]
    each = len(_DEFAULTS[cell])
    if len(names) != each * directions:
        n.refuse(f"{len(names)} activations; {each} for each of {directions} directions can be")
    given = [iter(n.attr_floats(name)) for name in ("activation_alpha", "activation_beta")]
    made: list[_Function] = []
    for name in names:
        if name not in _FUNCTIONS:
            n.refuse(f"the activation {name!r}{did_you_mean(name, _FUNCTIONS)}; ONNX has {', '.join(_FUNCTIONS)}")
        function, defaults = _FUNCTIONS[name]
        numbers = [next(numbers, default) for numbers, default in zip(given, defaults, strict=False)]
        a, b = (*numbers, 0.0, 0.0)[:2]
        made.append((function, a, b))
    return [tuple(made[i : i + each]) for i in range(0, len(made), each)]


def _recurrent(cell: str, n: NodeView) -> None:
    n.ignore("output_sequence")  # of opset 6, where outputs that are read tell the same
    direction = n.attr_str("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        n.refuse(f"direction={direction!r}; ONNX has forward, reverse and bidirectional")
    directions, gates = 1 + (direction == "bidirectional"), _GATES[cell]
    hidden = n.attr_int("hidden_size", 0) or (n.dims(2)[-1] if n.dims(2) else None)
    if not hidden:
        n.refuse("it has no hidden_size, and the shape of its recurrent weights cannot be told from the model")
    batch_first = n.attr_flag("layout")
    attrs: dict[str, AttrValue] = {"cell": cell, "clip": n.attr_float("clip", 0.0)}
    if cell == "gru":
        attrs["linear_before_reset"] = n.attr_flag("linear_before_reset")
    if cell == "lstm":
        attrs["input_forget"] = n.attr_flag("input_forget")
    bias, extra = _biases(n, gates * hidden, hidden, bool(attrs.get("linear_before_reset")))
    x = n.emit("transpose", n.input(0), perm=(1, 0, 2)) if batch_first else n.input(0)
    w = n.emit("reshape", n.input(1), shape=(directions * gates * hidden, -1))
    x = n.emit("matmul", x, w, *bias, trans_b=True)
    r = n.emit("transpose", n.input(2), perm=(0, 2, 1))
    if cell == "lstm":
        extra = n.input(7)
    operands = [x, r, _initial(n, cell, batch_first), n.input(4), extra]
    functions = _functions(cell, directions, n)
    if len(set(functions)) == 1:
        y, state = _steps(n, operands, functions[0], direction, attrs)
    else:
        made = [
            _steps(n, _direction(n, operands, d, gates * hidden), functions[d], name, attrs)
            for d, name in enumerate(("forward", "reverse"))
        ]
        y, state = (n.emit("concat", *parts, axis=1) for parts in zip(*made, strict=True))
    n.write(0, "transpose" if batch_first else "identity", y, **({"perm": (2, 0, 1, 3)} if batch_first else {}))
    for part in range(1, len(n.outputs)):
        if n.outputs[part]:
            last = n.emit("slice", state, starts=(part - 1,), ends=(part,), axes=(0,))
            if batch_first:
                n.write(part, "transpose", n.emit("squeeze", last, axes=(0,)), perm=(1, 0, 2))
            else:
                n.write(part, "squeeze", last, axes=(0,))


def _biases(n: NodeView, rows: int, hidden: int, apart: bool) -> tuple[list[str], str]:
    """The bias of the product, and that of a GRU's hidden gate where it stands ``apart``; of ``rows`` for each
    direction, first those of the inputs, then those of the state."""
    if not n.has(3):
        return [], ""
    of_input, of_state = (
        n.emit("slice", n.input(3), starts=(start,), ends=(start + rows,), axes=(1,)) for start in (0, rows)
    )
    hidden_gate = ""
    if apart:
        hidden_gate = n.emit("slice", of_state, starts=(rows - hidden,), ends=(rows,), axes=(1,))
        of_state = n.emit("slice", of_state, starts=(0,), ends=(rows - hidden,), axes=(1,))
        of_state = n.emit("pad", of_state, pads=(0, 0, 0, hidden))
    return [n.emit("reshape", n.emit("add", of_input, of_state), shape=(-1,))], hidden_gate


def _initial(n: NodeView, cell: str, batch_first: bool) -> str:
    """The state before the first step, all parts of it together."""
    parts = [n.input(i) for i in ((5, 6) if cell == "lstm" else (5,))]
    there = next(filter(None, parts), "")
    if not there:
        return ""
    dtype = str(n.dtype(0))
    parts = [part or n.emit("constant_of_shape", n.emit("shape", there), value=0.0, dtype=dtype) for part in parts]
    if batch_first:
        parts = [n.emit("transpose", part, perm=(1, 0, 2)) for part in parts]
    parts = [n.emit("unsqueeze", part, axes=(0,)) for part in parts]
    return parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=0)


def _direction(n: NodeView, operands: list[str], d: int, rows: int) -> list[str]:
    """The operands of one of two directions."""
    spans = ((2, d * rows, (d + 1) * rows), (0, d, d + 1), (1, d, d + 1), None, (0, d, d + 1))
    return [
        n.emit("slice", value, starts=(span[1],), ends=(span[2],), axes=(span[0],)) if value and span else value
        for value, span in zip(operands, spans, strict=True)
    ]


def _steps(
    n: NodeView, operands: list[str], functions: tuple[_Function, ...], direction: str, attrs: dict[str, AttrValue]
) -> tuple[str, str]:
    """A node of the steps: its outputs y and state."""
    names, a, b = zip(*functions, strict=True)
    y, state = (n.builder.fresh(f"{n.outputs[0] or n.name}/{part}") for part in ("steps", "state"))
    operands = list(reversed([*itertools.dropwhile(lambda value: not value, reversed(operands))]))
    attrs = {**attrs, "direction": direction, "functions": "-".join(names), "act_a": a, "act_b": b}
    name = n.builder.node_name(f"{n.name}/recurrence")
    n.builder.nodes.append(Node(name, "recurrence", tuple(operands), (y, state), attrs))
    return y, state


RULES: dict[str, Rule] = {
    "GRU": partial(_recurrent, "gru"),
    "LSTM": partial(_recurrent, "lstm"),
    "RNN": partial(_recurrent, "rnn"),
}
