"""trilu: the upper or lower triangle of matrices, zeros elsewhere."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import GraphError
from vkconv.device import Device
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import WORDS_OR_PAIRS
from vkconv.ops.kernels.strided import by_width, dispatch_each, local_params
from vkconv.program import Program
from vkconv.route import Params, Route

TRILU_SHADERS = by_width(shaders.movement.TRILU)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.operand(specs, "x", "trilu")
    if len(x.dims) < 2:
        raise GraphError(f"trilu: x is {x}; it takes matrices, of rank 2 or more")
    # Diagonals beyond the corners are all alike, and these are within the 32 bits that shaders count with.
    k = min(max(shapes.ints(attrs["k"])[0], -x.dims[-2]), x.dims[-1])
    return {**attrs, "k": k}, (x,)


def _program(call: Call, device: Device, params: Params) -> Program:
    *outer, rows, columns = call.shape("x")
    total = math.prod(outer) * rows * columns
    push = {"total": total, "rows": rows, "columns": columns, "k": call["k"]}
    shader = TRILU_SHADERS[call.outputs["y"].dtype.nbytes]
    return Program((dispatch_each(shader, total, device, params, push, {"UPPER": call["upper"]}),))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x")
    return [np.triu(x, call["k"]) if call["upper"] else np.tril(x, call["k"])]


TRILU = Op(
    "trilu",
    (Operand("x"), Operand("k", host=True, optional=True)),
    _resolve,
    _reference,
    attrs=(Attr("k", "k", int, 0), Attr("upper", "upper", bool, True)),
    routes=(
        Route(
            "mask",
            _program,
            tuple(TRILU_SHADERS.values()),
            "one pass that reads what is kept and writes zeros elsewhere",
            must=(WORDS_OR_PAIRS,),
            params=local_params,
        ),
    ),
    cases=(
        "trilu:x=5x7",
        "trilu:x=3x5x7,k=2,upper=0",
        "trilu:x=7x4:i64,k=-2",
        "trilu:x=2x3x4x4:i32,k=-1,upper=0",
        "trilu:x=3x5,k=-9000000000,upper=0",
    ),
    doc="The elements of x at columns >= row + k (upper), or <= row + k (not upper), of each matrix; zeros elsewhere.",
)
