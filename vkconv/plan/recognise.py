"""Passes that recognise functions which exporters spell in parts."""

import math

from vkconv.plan.bound import BoundNode
from vkconv.plan.rewrite import Rewriter


def recognise_hard_swish(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """x * clip(x + 3, 0, 6) / 6, as exporters spell it, and x * hard_sigmoid(x) are hard_swish(x)."""
    if node.call.op not in ("div", "mul"):
        return None
    for x, value in ((node.reads["a"], node.reads["b"]), (node.reads["b"], node.reads["a"])):
        gate = rewriter.maker(value, "hard_sigmoid") if node.call.op == "mul" else None
        if gate is not None and gate.reads["x"] == x and _is_gate(gate):
            return rewriter.node(node, "hard_swish", {"x": x})
    sixth = {"div": 6.0, "mul": 1 / 6}[node.call.op]
    product = rewriter.maker(node.reads["a"], "mul")
    divisor = rewriter.scalar(node.reads["b"])
    if product is None or divisor is None or not math.isclose(divisor, sixth, rel_tol=1e-6):
        return None
    if not rewriter.only_reader(node.reads["a"]):
        return None
    for x, clipped in ((product.reads["a"], product.reads["b"]), (product.reads["b"], product.reads["a"])):
        clip = rewriter.maker(clipped, "clip", "relu6")
        if clip is None or (clip.call.op == "clip" and _bounds(clip) != (0.0, 6.0)):
            continue
        shifted = rewriter.maker(clip.reads["x"], "add")
        if shifted is None:
            continue
        for left, right in (("a", "b"), ("b", "a")):
            if shifted.reads[left] == x and rewriter.scalar(shifted.reads[right]) == 3.0:
                return rewriter.node(node, "hard_swish", {"x": x})
    return None


def _is_gate(gate: BoundNode) -> bool:
    """hard_sigmoid as hard_swish has it: clip(x / 6 + 1/2, 0, 1)."""
    numbers = zip((float(gate.call["a"]), float(gate.call["b"])), (1 / 6, 0.5), strict=True)
    return all(math.isclose(number, wanted, rel_tol=1e-6) for number, wanted in numbers)


def recognise_silu(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """x * sigmoid(x) is silu(x)."""
    if node.call.op != "mul":
        return None
    for x, gate in ((node.reads["a"], node.reads["b"]), (node.reads["b"], node.reads["a"])):
        sigmoid = rewriter.maker(gate, "sigmoid")
        if sigmoid is not None and sigmoid.reads["x"] == x:
            return rewriter.node(node, "silu", {"x": x})
    return None


def recognise_gelu(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """x / 2 * (1 + erf(x / sqrt(2))) is gelu(x), x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) is gelu_tanh(x);
    the factors of each product in any order."""
    half, values = _factors(rewriter, node)
    if len(values) != 2 or not math.isclose(half, 0.5, rel_tol=_CLOSE):
        return None
    for x, gate in (tuple(values), tuple(reversed(values))):
        inner = _one_plus(rewriter, gate, "erf", "tanh")
        maker = rewriter.maker(inner.reads["x"], "mul", "div") if inner is not None else None
        if inner is None or maker is None:
            continue
        factor, of = _factors(rewriter, maker)
        if inner.call.op == "erf" and of == [x] and math.isclose(factor, math.sqrt(0.5), rel_tol=_CLOSE):
            return rewriter.node(node, "gelu", {"x": x})
        is_tanh = inner.call.op == "tanh" and math.isclose(factor, math.sqrt(2 / math.pi), rel_tol=_CLOSE)
        if is_tanh and len(of) == 1 and _is_cubic(rewriter, of[0], x):
            return rewriter.node(node, "gelu_tanh", {"x": x})
    return None


# Exporters write constants in f32, and some with six digits.
_CLOSE = 1e-5


def _factors(rewriter: Rewriter, node: BoundNode) -> tuple[float, list[str]]:
    """A product as a number and the values that are no constants, through products that nothing else reads."""
    if node.call.op not in ("mul", "div"):
        return 1.0, []
    number, values = 1.0, []
    for operand in ("a", "b"):
        value = node.reads[operand]
        constant = rewriter.scalar(value)
        inner = rewriter.maker(value, "mul", "div") if rewriter.only_reader(value) else None
        if constant is not None and (node.call.op == "mul" or (operand == "b" and constant != 0)):
            number *= constant if node.call.op == "mul" else 1 / constant
        elif node.call.op == "div" and operand == "b":
            return 1.0, []
        elif inner is not None:
            more, found = _factors(rewriter, inner)
            number *= more
            values += found or [value]
        else:
            values.append(value)
    return number, values


def _one_plus(rewriter: Rewriter, value: str, *ops: str) -> BoundNode | None:
    """The node of one of the ops to whose result 1 is added for this value."""
    total = rewriter.maker(value, "add")
    for term, other in (("a", "b"), ("b", "a")):
        if total is not None and rewriter.scalar(total.reads[other]) == 1.0:
            return rewriter.maker(total.reads[term], *ops)
    return None


def _is_cubic(rewriter: Rewriter, value: str, x: str) -> bool:
    """x + 0.044715 x^3"""
    total = rewriter.maker(value, "add")
    for term, other in (("a", "b"), ("b", "a")):
        cube = rewriter.maker(total.reads[other], "mul") if total and total.reads[term] == x else None
        if cube is not None:
            factor, values = _factors(rewriter, cube)
            power = rewriter.maker(values[0], "pow") if len(values) == 1 else None
            is_third = power is not None and power.reads["a"] == x and rewriter.scalar(power.reads["b"]) == 3.0
            return math.isclose(factor, 0.044715, rel_tol=_CLOSE) and (is_third or values == [x, x, x])
    return False


def recognise_layer_norm(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """(x - mean) / sqrt(mean((x - mean)^2) + eps) * scale + bias over the last axis is layer_norm."""
    if node.call.op != "add":
        return None
    scaled = rewriter.maker(node.reads["a"], "mul")
    normal = rewriter.maker(scaled.reads["a"], "div") if scaled else None
    centred = rewriter.maker(normal.reads["a"], "sub") if normal else None
    root = rewriter.maker(normal.reads["b"], "sqrt") if normal else None
    summed = rewriter.maker(root.reads["x"], "add") if root else None
    variance = rewriter.maker(summed.reads["a"], "reduce") if summed else None
    square = rewriter.maker(variance.reads["x"], "pow", "mul") if variance else None
    mean = rewriter.maker(centred.reads["b"], "reduce") if centred else None
    if scaled is None or normal is None or centred is None or summed is None or mean is None:
        return None
    if variance is None or square is None or square.reads["a"] != normal.reads["a"]:
        return None
    exponent = square.reads["b"]
    squares = exponent == square.reads["a"] if square.call.op == "mul" else rewriter.scalar(exponent) == 2
    x, scale, bias = centred.reads["a"], scaled.reads["b"], node.reads["b"]
    eps = rewriter.scalar(summed.reads["b"])
    shape = rewriter.specs[x].dims
    over_last = all(
        r.call["op"] == "mean" and r.call["axes"] == (len(shape) - 1,) and r.call["keepdims"] for r in (mean, variance)
    )
    vectors = all(rewriter.specs[v].shape == (shape[-1],) for v in (scale, bias))
    if not squares or mean.reads["x"] != x or eps is None or not over_last or not vectors:
        return None
    return rewriter.node(node, "layer_norm", {"x": x, "scale": scale, "bias": bias}, {"axis": -1, "eps": eps})


def _bounds(clip: BoundNode) -> tuple[float, float]:
    return float(clip.call["a"]), float(clip.call["b"])
