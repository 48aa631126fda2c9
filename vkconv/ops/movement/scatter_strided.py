"""scatter_strided: a tensor inserted at offsets and strides into zeros of a given shape."""

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import WORDS
from vkconv.ops.kernels.strided import walk_params
from vkconv.ops.kernels.zero_insertion import FILL_SCATTER, GATHER, MAX_RANK, Insertion, few_passed_through
from vkconv.program import Program
from vkconv.route import Route

# No tensor that a shader can index is longer, and sums of two such numbers are within its 32 bits.
_MOST = 1 << 30


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "scatter_strided")
    rank, shape = len(x.dims), shapes.ints(attrs["shape"])
    if not 1 <= rank <= MAX_RANK:
        raise GraphError(f"scatter_strided takes x of rank 1 to {MAX_RANK}, not {x}")
    if len(shape) != rank or min(shape) < 0:
        raise GraphError(f"scatter_strided: shape is {shape}; it takes {rank} values >= 0, as x is {x}")
    canonical: Attrs = {"shape": shape}
    for name, least in (("offset", None), ("stride", 1)):
        values = shapes.ints(attrs[name])
        values *= rank if len(values) == 1 else 1
        if len(values) != rank or (least is not None and min(values) < least):
            at_least = "" if least is None else f" of at least {least}"
            raise GraphError(f"scatter_strided: {name} is {values}; it takes one value or {rank}{at_least}")
        if max(map(abs, values)) > _MOST:
            raise GraphError(f"scatter_strided: {name} is {values}; its values are at most {_MOST}")
        canonical[name] = values
    return canonical, (TensorSpec(shape, x.dtype),)


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x")
    y = np.zeros(call["shape"], x.dtype)
    rows = zip(x.shape, call["shape"], call["offset"], call["stride"], strict=True)
    places = [(offset + stride * np.arange(count), extent) for count, extent, offset, stride in rows]
    inside = [(at >= 0) & (at < extent) for at, extent in places]
    to = [at[keep] for (at, _), keep in zip(places, inside, strict=True)]
    y[np.ix_(*to)] = x[np.ix_(*inside)]
    return [y]


def insertion(call: Call) -> Insertion:
    """The call in numbers."""
    return Insertion(call.shape("x"), call["shape"], call["offset"], call["stride"])


SCATTER_STRIDED = Op(
    "scatter_strided",
    (Operand("x", partial=True),),
    _resolve,
    _reference,
    attrs=(
        Attr("shape", "shape", tuple[int, ...]),
        Attr("offset", "offset", tuple[int, ...], (0,)),
        Attr("stride", "stride", tuple[int, ...], (1,)),
    ),
    routes=(
        Route(
            "gather",
            lambda call, device, params: Program((insertion(call).gather(device, params, "x", "y"),)),
            (GATHER,),
            "one launch writes every element of y once: zeros where no element of x lies; and, shift for strides that "
            "are powers of two",
            (WORDS,),
            (few_passed_through(insertion),),
            source="iree#23979",
            params=walk_params,
        ),
        Route(
            "fill_scatter",
            lambda call, device, params: Program(insertion(call).fill_scatter(device, params, "x", "y")),
            FILL_SCATTER,
            "zeros everywhere, then x over them: no test per element, but what x covers is written twice",
            (WORDS,),
            source="iree#23976",
            params=walk_params,
        ),
    ),
    cases=(
        "scatter_strided:x=5,shape=13,offset=1,stride=3",
        "scatter_strided:x=4x4,shape=9x9,offset=1,stride=2",
        "scatter_strided:x=3x3,shape=10x10,offset=1,stride=3",
        "scatter_strided:x=1x5x5x4x8,shape=1x12x12x4x8,offset=0x1x1x0x0,stride=1x2x2x1x1",
        "scatter_strided:x=2x3x5x7,shape=2x3x8x9,offset=0x0x-1x-2,stride=1x1x2x2",
        "scatter_strided:x=2x3x4x3x5,shape=2x7x4x9x21,offset=0x1x0x-3x2,stride=1x2x1x4x5",
        "scatter_strided:x=3x5:i32,shape=3x5",
        "scatter_strided:x=3x5,shape=4x3,offset=40x-9,stride=2",
        "scatter_strided:x=2x300,shape=5x300,stride=2x1",
        "scatter_strided:x=0x3,shape=2x3",
    ),
    doc="x at offset and stride along each dimension (one value stands for all) in zeros of a shape; what lies outside "
    "is cropped.",
)
