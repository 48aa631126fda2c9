"""The gradient of a convolution by its weights, in two dimensions and in three.

x is (N, C_in, [D,] H, W), dy is (N, C_out, [OD,] OH, OW), the gradient by the output of the forward convolution, and
dw = scale * sum + beta * add + factors[0] * term0 + ... has ``w_shape``, (C_out, C_in / groups, [KD,] KH, KW), as the
optional add and terms have. The sum of an element is over all images and pixels of dy, of dy times what its tap meets
in x, zeros where that is padding. A 1-D one comes as H = 1. With ``dw_dtype=f32``, x and dy of 16 bits make a dw of
f32, and what is added to it has f32 too.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np

from vkconv.call import Call
from vkconv.core import DType, GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.wgrad.problem import WeightGradient, check_extents, check_shapes, paddings, per_axis
from vkconv.ops.conv.wgrad.published import PUBLISHED
from vkconv.ops.conv.wgrad.routes import ROUTES
from vkconv.ops.conv.wgrad.terms import TERM
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.shapes import element_type, groups_of, held_in, one_float_dtype, variadic
from vkconv.ops.core.tolerance import addends, largest, of_error, rounding_of_sum, shows_addends


def _resolve(op: str, rank: int, specs: Specs, attrs: Attrs) -> Resolved:
    x, dy, add, w = specs["x"], specs["dy"], specs.get("add"), attrs["w_shape"]
    assert x is not None and dy is not None and isinstance(w, tuple)
    w_shape = tuple(int(v) for v in w)
    axes = ", ".join("DHW"[3 - rank :])
    if any(len(shape) != rank + 2 for shape in (x.shape, dy.shape, w_shape)):
        raise GraphError(
            f"{op} takes x (N, C_in, {axes}), dy (N, C_out, O{axes.replace(', ', ', O')}) and w_shape (C_out, "
            f"C_in/groups, K{axes.replace(', ', ', K')}), not {x}, {dy} and {shape_str(w_shape)}"
        )
    one_float_dtype(op, x, dy)
    terms = variadic(specs, TERM)
    dtype = element_type(op, attrs, "dw_dtype", (x.dtype, DType.F32)) if attrs["dw_dtype"] else x.dtype
    if dtype not in (x.dtype, DType.F32):
        raise GraphError(f"{op}: dw_dtype is {dtype}, and x and dy are {x.dtype}; dw is {x.dtype} or f32")
    check_shapes(op, x.dims, dy.dims, w_shape, groups_of(op, attrs))
    stride, dilation = per_axis(op, attrs, "stride", rank), per_axis(op, attrs, "dilation", rank)
    padding = paddings(op, attrs, rank)
    check_extents(op, x.dims[2:], dy.dims[2:], w_shape[2:], stride, padding, dilation)
    for name, added in (("add", add), *((f"{TERM}{i}", term) for i, term in enumerate(terms))):
        if added is not None and added != TensorSpec(w_shape, dtype):
            raise GraphError(
                f"{op}: {name} is {added}; it is added to dw and has w_shape and its type, {shape_str(w_shape)} {dtype}"
            )
    given = attrs["factors"]
    assert isinstance(given, tuple)
    factors = tuple(held_in(op, "factors", factor, DType.F32) for factor in given)
    if len(factors) != len(terms) or not all(map(math.isfinite, factors)):
        raise GraphError(f"{op}: factors is {factors} for {len(terms)} terms; it has one finite number for each")
    scale, beta = (held_in(op, name, attrs[name], DType.F32) for name in ("scale", "beta"))
    if not (math.isfinite(scale) and math.isfinite(beta)):
        # Slices of the sum may be scaled one by one: infinities of both signs would meet in their sum.
        raise GraphError(f"{op}: scale is {scale} and beta {beta}; both are finite numbers")
    if beta and add is None:
        raise GraphError(f"{op}: beta is {beta}, but there is no operand add that it would multiply")
    canonical: Attrs = {"w_shape": w_shape, "stride": stride, "padding": padding, "dilation": dilation}
    canonical |= {"scale": scale, "beta": beta, "factors": factors, "dw_dtype": "" if dtype is x.dtype else str(dtype)}
    return {**attrs, **canonical}, (TensorSpec(w_shape, dtype),)


def _reference(call: Call, arrays: Arrays) -> Outputs:
    p = WeightGradient.of(call)
    x = np.asarray(arrays["x"], np.float64).reshape(p.n, p.groups, p.channels, *p.extent)
    dy = np.asarray(arrays["dy"], np.float64).reshape(p.n, p.groups, p.rows, math.prod(p.out))
    sides = list(zip(p.extent, p.out, p.kernel, p.stride, p.dilation, p.before, strict=True))
    pads = [(b, max(0, (o - 1) * s + (k - 1) * d + 1 - b - e)) for e, o, k, s, d, b in sides]
    total = np.zeros((p.groups, p.rows, p.channels, *p.kernel))
    for image in range(p.n):  # one at a time: the windows of all images may not fit in memory
        padded = np.pad(x[image], ((0, 0), (0, 0), *pads))
        for z, y, x_tap in itertools.product(*map(range, p.kernel)):
            in_z, in_y, in_x = (
                slice(tap * d, tap * d + (o - 1) * s + 1, s)
                for tap, (_, o, _, s, d, _) in zip((z, y, x_tap), sides, strict=True)
            )
            met = padded[:, :, in_z, in_y, in_x].reshape(p.groups, p.channels, -1)
            total[:, :, :, z, y, x_tap] += np.matmul(dy[image], met.transpose(0, 2, 1))
    dw = call["scale"] * total.reshape(call["w_shape"])
    return [dw + _added(call, arrays, lambda value: value)]


def _added(call: Call, arrays: Arrays, of: Callable[[F64], F64]) -> F64:
    """The sum of what ``of`` makes of each tensor that is added, times its factor."""
    added = [("add", call["beta"]), *((f"{TERM}{i}", factor) for i, factor in enumerate(call["factors"]))]
    given = ((arrays.get(name), factor) for name, factor in added)
    total = sum(of(factor * np.asarray(array, np.float64)) for array, factor in given if array is not None)
    return np.asarray(total, np.float64)


def terms(call: Call) -> int:
    """Products that an element of dw sums, and what is added."""
    return max(1, WeightGradient.of(call).pixels + call.has("add") + len(call["factors"]))


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """The largest sum of products and what is added to it, or what may have cancelled in either."""
    count = terms(call)
    if count == 1 and not call.has("add") and not call["factors"]:
        return np.abs(reference)
    most = largest(reference - _added(call, arrays, lambda value: value)) + _added(call, arrays, np.abs)
    if shows_addends(reference):
        return np.asarray(most)
    error = rounding_of_sum(addends(_reference, call, arrays), count)
    return np.asarray(np.fmax(most, of_error(call, reference, error, count)))


def _flops(call: Call) -> int:
    p = WeightGradient.of(call)
    return 2 * p.size * p.pixels


def _op(name: str, rank: int, cases: tuple[str, ...], doc: str) -> Op:
    return Op(
        name,
        operands=(Operand("x"), Operand("dy"), Operand("add", optional=True), Operand(TERM, variadic=True)),
        outputs=("dw",),
        resolve=lambda specs, attrs: _resolve(name, rank, specs, attrs),
        reference=_reference,
        attrs=(
            Attr("w_shape", "w_shape", tuple[int, ...]),
            Attr("stride", "s", tuple[int, ...], (1,) * rank),
            Attr("padding", "p", tuple[int, ...], (0,) * (2 * rank)),
            Attr("dilation", "d", tuple[int, ...], (1,) * rank),
            Attr("groups", "g", int, 1),
            Attr("scale", "scale", float, 1.0),
            Attr("beta", "beta", float, 0.0),
            Attr("factors", "factors", tuple[float, ...], ()),
            Attr("dw_dtype", "dw_dtype", str, ""),
        ),
        parameters={"policy": "policy", "split": "split_k"},
        routes=ROUTES,
        published=PUBLISHED,
        terms=terms,
        magnitude=_magnitude,
        flops=_flops,
        cases=tuple(f"{name}:{case}" for case in cases),
        doc=doc,
    )


CONV2D_BACKWARD_WEIGHT = _op(
    "conv2d_backward_weight",
    2,
    (
        "x=2x5x9x9,dy=2x7x9x9,w_shape=7x5x3x3,p=1",
        "x=3x4x9x10,dy=3x6x6x2,w_shape=6x4x2x5,s=2x3,p=1x0x2x3,d=1x2",
        "x=1x3x31x33,add=17x3x7x7,dy=1x17x16x17,w_shape=17x3x7x7,s=2,p=3,scale=-0.5,beta=2",
        "x=5x13x7x11,dy=5x19x7x11,w_shape=19x13x1x1",
        "x=2x6x9x8,add=10x3x1x1,dy=2x10x5x4,w_shape=10x3x1x1,s=2,g=2,beta=-1.5",
        "x=1x4x1x67,dy=1x5x1x61,w_shape=5x4x1x3,p=0x1,d=1x4",
        "x=2x37x6x7,dy=2x37x6x7,w_shape=37x1x3x3,g=37,p=1",
        "x=3x5x17x20,add=10x1x5x3,dy=3x10x9x20,w_shape=10x1x5x3,s=2x1,p=2x1,g=5,scale=-2,beta=0.5",
        "x=2x9x5x6,dy=2x15x5x6,w_shape=15x3x3x3,g=3,p=1",
        "x=3x5x40x50,dy=3x6x40x50,w_shape=6x5x3x3,p=1",
        "x=2x3x40x50,dy=2x6x40x50,w_shape=6x3x3x3,p=1",
        "x=1x2x4x9,dy=1x3x8x1,w_shape=3x2x5x31,p=4x11",
        "x=0x4x6x6,add=6x2x3x3,dy=0x6x4x4,w_shape=6x2x3x3,g=2,beta=3",
        "x=2x5x9x7,add=7x5x3x3,term0=7x5x3x3,term1=7x5x3x3,dy=2x7x9x7,w_shape=7x5x3x3,p=1,beta=2,factors=-0.5x3",
        "x=3x5x7x6:f16,add=7x5x1x1:f32,dy=3x7x7x6:f16,w_shape=7x5x1x1,scale=2,beta=-1,dw_dtype=f32",
        "x=3x37x6x7:bf16,term0=37x1x3x3:f32,dy=3x37x6x7:bf16,w_shape=37x1x3x3,g=37,p=1,factors=4,dw_dtype=f32",
        "x=2x16x9x8:f16,dy=2x32x9x8:f16,w_shape=32x16x3x3,p=1,dw_dtype=f32",
    ),
    "Gradient of conv2d by its weights, scaled and added to another tensor; split-K sums.",
)

CONV3D_BACKWARD_WEIGHT = _op(
    "conv3d_backward_weight",
    3,
    (
        "x=2x16x1x9x9,dy=2x16x1x9x9,w_shape=16x16x1x3x3,p=0x1x1",
        "x=2x4x5x6x7,dy=2x6x5x6x7,w_shape=6x2x3x3x3,p=1,g=2",
        "x=2x3x9x7x8,add=5x3x3x1x2,dy=2x5x3x4x8,w_shape=5x3x3x1x2,s=2x2x1,d=2x1x1,p=0x0x0x1x0x1,beta=1",
        "x=3x4x2x3x5,dy=3x6x2x3x5,w_shape=6x4x1x1x1",
        "x=2x5x1x9x7,dy=2x10x1x9x7,w_shape=10x1x1x3x3,p=0x1x1,g=5",
    ),
    "Gradient of a 3-D convolution by its weights, scaled and added to another tensor; split-K sums.",
)
