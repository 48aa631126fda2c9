"""A 2-D convolution of an input that is scaled, shifted and activated first, as a batch normalization and ReLU before a
convolution are (DenseNet, ResNet v2), and the scale of a squeeze-and-excite block.

Operands and attributes as of conv2d, which is given act(x * scale + shift) in place of x, with zeros around it. scale
has a number for each channel, (C_in), or for each image and channel, (N, C_in), in any shape that broadcasts to x so;
shift (C_in), optional. ``before`` is the activation, without parameters.
"""

import dataclasses

import numpy as np

from vkconv.call import HALVES, Call
from vkconv.core import GraphError, did_you_mean, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.core import shapes
from vkconv.ops.core.activation import apply
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.tolerance import largest, of_error
from vkconv.ops.fused.prologue_conv2d_routes import CONV_ATTRS, ROUTES, convolution_of, each_image
from vkconv.ops.kernels.epilogue import magnitude_of_products, rounding_of_products
from vkconv.ops.kernels.prologue import ACTIVATIONS

# Roundings of a factor before it is multiplied: the scale, the shift, and the activation with what it may add.
_BEFORE = 8


def _check_channels(name: str, spec: TensorSpec, x: TensorSpec, images: tuple[int, ...]) -> None:
    """GraphError unless a scale or shift broadcasts to x with a number for each channel, of each image or of all."""
    n, c = x.dims[:2]
    dims = spec.dims
    legal = {(c,), (c, 1, 1), *((count, c, 1, 1) for count in images), *((count, c) for count in images)}
    if dims not in legal:
        each = f", or {shape_str((n, c))} with one for each image" if n in images and n != 1 else ""
        raise GraphError(
            f"the {name} is {shape_str(spec.shape)}; for x of {shape_str(x.shape)} it is {c}, a number for each input "
            f"channel{each}"
        )


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, scale, shift = specs["x"], specs["scale"], specs.get("shift")
    assert x is not None and scale is not None
    operands = {operand.name: specs.get(operand.name) for operand in CONV2D.operands}
    conv = CONV2D.call(operands, {name: attrs[name] for name in CONV_ATTRS})
    shapes.one_float_dtype("prologue_conv2d", x, scale, shift)
    _check_channels("scale", scale, x, (1, x.dims[0]))
    if shift is not None:
        _check_channels("shift", shift, x, (1,))
    act = str(attrs["before"])
    if act not in ACTIVATIONS:
        raise GraphError(f"there is no before={act!r}{did_you_mean(act, ACTIVATIONS)}; one of {', '.join(ACTIVATIONS)}")
    return {**attrs, **conv.attrs}, (conv.outputs["y"],)


def _prepared(call: Call, arrays: Arrays) -> F64:
    """The input of the convolution, by definition in float64."""
    x, scale, shift = (arrays.get(name) for name in ("x", "scale", "shift"))
    n, c = call.shape("x")[:2]
    factor = np.reshape(np.asarray(scale, np.float64), (n if each_image(call) else 1, c, 1, 1))
    with np.errstate(all="ignore"):
        value = np.asarray(x, np.float64) * factor
        if shift is not None:
            value = value + np.reshape(np.asarray(shift, np.float64), (c, 1, 1))
        return np.asarray(apply(str(call["before"]), value, 0.0, 0.0))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    if arrays.get("slope") is None:  # tolerances ask for sums without what ends them
        call = dataclasses.replace(call, operands={**call.operands, "slope": None})
    return CONV2D.reference(convolution_of(call), {**arrays, "x": _prepared(call, arrays)})


def _terms(call: Call) -> int:
    return CONV2D.terms(convolution_of(call)) + _BEFORE


def _magnitude(call: Call, arrays: Arrays, result: F64) -> F64:
    """What the rounding of an output is relative to: that of the convolution; or what its products may be off by, of
    factors as large as all that was added up to them. In calls of 16-bit floats the factors may be stored as such on
    the way, as by two nodes: each product is off by half a unit of its factor's."""
    out = call.outputs["y"].dtype
    if out not in HALVES:
        return _of_products(call, arrays, result)
    terms, most = _terms(call), largest(result) + abs(float(call["out_shift"]))
    error = rounding_of_products(_reference, terms, call, arrays, out)
    return np.asarray(np.fmax(most, of_error(call, result, error, terms)))


_of_products = magnitude_of_products(_reference, _terms)

PROLOGUE_CONV2D = Op(
    "prologue_conv2d",
    operands=(
        Operand("x"),
        Operand("scale"),
        Operand("w"),
        Operand("shift", optional=True),
        *(operand for operand in CONV2D.operands if operand.optional),
    ),
    resolve=_resolve,
    reference=_reference,
    attrs=(Attr("before", "before", str, "none"), *CONV2D.attrs),
    routes=ROUTES,
    terms=_terms,
    magnitude=_magnitude,
    flops=lambda call: CONV2D.flops(convolution_of(call)),
    cases=(
        "prologue_conv2d:x=2x3x12x16,scale=3,w=8x3x4x4,s=4",
        "prologue_conv2d:x=5x20x1x1,scale=5x20,w=17x20x1x1,b=17,act=relu",
        "prologue_conv2d:x=2x13x7x11,scale=13,shift=13,w=37x13x1x1,b=37,before=relu,act=relu",
        "prologue_conv2d:x=3x6x9x9,scale=3x6x1x1,w=9x6x1x1,s=2x3",
        "prologue_conv2d:x=1x300x3x3,scale=1x300x1x1,w=17x300x1x1,b=17,residual=1x17x3x3,act=relu",
        "prologue_conv2d:x=2x5x11x9,scale=5x1x1,shift=5x1x1,w=7x5x3x3,p=1,before=silu",
        "prologue_conv2d:x=2x6x8x9,scale=2x6,shift=6,w=9x2x3x3,b=9,slope=9,g=3,p=1,s=1x2,act=prelu,before=hard_swish",
        "prologue_conv2d:x=2x6x7x9,scale=6,shift=6,w=6x1x3x3,g=6,p=1,before=relu",
        "prologue_conv2d:x=1x160x7x7,scale=160,shift=160,w=128x160x1x1,before=relu",
        "prologue_conv2d:x=2x4x5x5,scale=4,shift=4,w=8x4x1x1,p=1,b=8,before=relu,out_scale=0.5",
        "prologue_conv2d:x=1x1x40x41,scale=1,w=1x1x1x1",
    ),
    doc="2-D convolution of an input that is scaled and shifted by channel and activated first.",
)
