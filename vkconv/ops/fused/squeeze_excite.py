"""The gate of a squeeze-and-excite block: of each image the means of its channels, two small products and their
activations (Hu et al. 2018).

x is (N, C, H, W), w1 (R, C, 1, 1) and w2 (G, R, 1, 1), their biases b1 (R) and b2 (G), and y (N, G, 1, 1). ``act`` is
the activation behind the first product, ``gate`` the one behind the second. What is scaled by it is another node's.
"""

import math

import numpy as np

from vkconv.call import HALVES, Call
from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.tolerance import rounding_of_storing, rounding_of_sum
from vkconv.ops.fused.convolutions import check_activation
from vkconv.ops.fused.squeeze_excite_routes import PRODUCTS, ROUTES


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, w1, b1, w2, b2 = (specs.get(name) for name in ("x", "w1", "b1", "w2", "b2"))
    assert x is not None and w1 is not None and w2 is not None
    shapes.one_float_dtype("squeeze_excite", x, w1, b1, w2, b2)
    if len(x.shape) != 4 or not math.prod(x.dims[1:]):
        raise GraphError(f"squeeze_excite takes x (N, C, H, W) with elements of each image, not {x}")
    n, c = x.dims[:2]
    if len(w1.shape) != 4 or w1.dims[1:] != (c, 1, 1) or not w1.dims[0]:
        raise GraphError(f"squeeze_excite: w1 is {shape_str(w1.shape)}; for {c} channels it is (R, {c}, 1, 1)")
    hidden = w1.dims[0]
    if len(w2.shape) != 4 or w2.dims[1:] != (hidden, 1, 1):
        raise GraphError(f"squeeze_excite: w2 is {shape_str(w2.shape)}; behind w1 it is (G, {hidden}, 1, 1)")
    for name, bias, count in (("b1", b1, hidden), ("b2", b2, w2.dims[0])):
        if bias is not None and bias.dims != (count,):
            raise GraphError(f"squeeze_excite: {name} is {shape_str(bias.shape)}; it is {count}, one for each row")
    check_activation(str(attrs["act"]), attrs, "act_a", "act_b")
    check_activation(str(attrs["gate"]), attrs, "gate_a", "gate_b")
    return attrs, (TensorSpec((n, w2.dims[0], 1, 1), x.dtype),)


def _means(arrays: Arrays) -> F64:
    with np.errstate(all="ignore"):
        return np.asarray(np.mean(np.asarray(arrays["x"], np.float64), axis=(2, 3), keepdims=True))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    return PRODUCTS.reference(call, arrays, _means(arrays))


def _pixels(call: Call) -> int:
    return math.prod(call.shape("x")[2:])


def _magnitude(call: Call, arrays: Arrays, result: F64) -> F64:
    """What the rounding of an output is relative to: the errors of the means and of both products, behind the gate."""
    x, means = np.asarray(arrays["x"], np.float64), _means(arrays)
    with np.errstate(all="ignore"):
        off = rounding_of_sum(np.mean(np.abs(x), axis=(2, 3), keepdims=True), _pixels(call))
    if call.outputs["y"].dtype in HALVES:
        off = off + rounding_of_storing(means, call.outputs["y"].dtype)
    return PRODUCTS.magnitude_from(call, arrays, result, means, off)


SQUEEZE_EXCITE = Op(
    "squeeze_excite",
    operands=(
        Operand("x"),
        Operand("w1"),
        Operand("w2"),
        Operand("b1", optional=True),
        Operand("b2", optional=True),
    ),
    resolve=_resolve,
    reference=_reference,
    attrs=(
        Attr("act", "act", str, "relu"),
        Attr("act_a", "act_a", float, 0.0),
        Attr("act_b", "act_b", float, 0.0),
        Attr("gate", "gate", str, "sigmoid"),
        Attr("gate_a", "gate_a", float, 0.0),
        Attr("gate_b", "gate_b", float, 0.0),
    ),
    routes=ROUTES,
    terms=lambda call: _pixels(call) + PRODUCTS.terms(call),
    magnitude=_magnitude,
    flops=lambda call: call.operands["x"].size + PRODUCTS.flops(call),  # type: ignore[union-attr]
    cases=(
        "squeeze_excite:x=1x72x14x14,w1=24x72x1x1,w2=72x24x1x1,b1=24,b2=72,gate=hard_sigmoid,gate_a=0.16667,gate_b=0.5",
        "squeeze_excite:x=3x29x7x9,w1=7x29x1x1,w2=29x7x1x1,b1=7,b2=29,act=silu",
        "squeeze_excite:x=2x131x5x3,w1=33x131x1x1,w2=17x33x1x1",
        "squeeze_excite:x=5x16x1x1,w1=1x16x1x1,w2=16x1x1x1,b2=16",
        "squeeze_excite:x=1x1x31x37,w1=3x1x1x1,w2=1x3x1x1,b1=3,act=tanh,gate=none",
    ),
    doc="The gate of squeeze-and-excite: means of channels, two products, and an activation behind each.",
)
