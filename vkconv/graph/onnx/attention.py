"""The import rule for Attention, and the forms of it that are imported as the body that ONNX defines."""

import numpy as np
import onnx

from vkconv.core import DType
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView

_MASK = 3
_BODY = "which vkconv has as ONNX's body of it, and that needs the types of its inputs, which cannot be told"
_HEADS_INSIDE = {"perm": (0, 2, 1, 3)}


def needs_body(node: onnx.NodeProto) -> bool:
    """Whether a node has what the op has not: keys and values of the past, their number as an input, soft caps,
    windows, outputs beside the first."""
    numbers = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    capped = float(numbers.get("softcap", 0)) != 0
    windows = any(int(numbers.get(f"{side}_window_size", -1)) >= 0 for side in ("left", "right"))
    return capped or windows or any(node.input[_MASK + 1 :]) or any(node.output[1:])


def _heads(n: NodeView, i: int, heads: int) -> str:
    """An operand (N, L, heads D) as (N, heads, L, D); one that has heads of its own stays."""
    if not n.has_attr("q_num_heads"):
        return n.input(i)
    return n.emit("transpose", n.emit("reshape", n.input(i), shape=(0, 0, heads, -1)), **_HEADS_INSIDE)


def _attention(n: NodeView) -> None:
    # Sums are f32 or wider whatever precision softmax asks for; what the mode is of is an output that is not used.
    n.ignore("softmax_precision", "qk_matmul_output_mode")
    for name, none in (("softcap", 0.0), ("left_window_size", -1), ("right_window_size", -1)):
        value = n.attr_float(name, none) if isinstance(none, float) else n.attr_int(name, none)
        if value > none:
            n.refuse(f"{name}={value}, {_BODY}")
    if any(n.has(i) for i in range(_MASK + 1, len(n.inputs))):
        n.refuse(f"keys and values of the past, or their number, {_BODY}")
    if n.has_attr("scale") and not n.attr_float("scale", 0.0):
        n.refuse("scale=0, by which every key weighs the same")
    n.only_outputs(1, f"its outputs beside the first are used, {_BODY}")
    q_heads, kv_heads = n.attr_int("q_num_heads", 0), n.attr_int("kv_num_heads", 0)
    operands = [_heads(n, i, heads) for i, heads in enumerate((q_heads, kv_heads, kv_heads))]
    if n.has(_MASK):
        mask = n.input(_MASK)
        if n.dtype(_MASK) is DType.BOOL:
            mask = n.emit("where", mask, n.number(0.0, n.dtype(0)), n.number(-np.inf, n.dtype(0)))
        operands.append(mask)
    attrs = {"scale": n.attr_float("scale", 0.0), "causal": n.attr_flag("is_causal")}
    if not n.has_attr("q_num_heads"):
        n.finish("attention", *operands, **attrs)
        return
    turned = n.emit("transpose", n.emit("attention", *operands, **attrs), **_HEADS_INSIDE)
    n.finish("reshape", turned, shape=(0, 0, -1))


RULES: dict[str, Rule] = {"Attention": _attention}
