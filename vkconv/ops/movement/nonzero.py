"""nonzero: where the elements of a tensor lie that are not zero, and how many they are."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError, ceil_div
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import INT32, loop_iterations, operands_in
from vkconv.ops.kernels.strided import MAX_RANK, dispatch_each, local_params, tables
from vkconv.program import Program
from vkconv.route import Params, Route

_DTYPES = (DType.F32, DType.I32, DType.I64)
COUNT_SHADERS = {dtype: Shader(shaders.movement.NONZERO_COUNT, dtype) for dtype in _DTYPES}
PLACE_SHADERS = {dtype: Shader(shaders.movement.NONZERO_PLACE, dtype) for dtype in _DTYPES}


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.number_operand(specs, "x", "nonzero")
    if not 1 <= len(x.dims) <= MAX_RANK:
        raise GraphError(f"nonzero: x is {x}; it takes a rank from 1 to {MAX_RANK}")
    return {}, (TensorSpec((len(x.dims), x.size), DType.I64), TensorSpec((1,), DType.I64))


def _runs(total: int) -> tuple[int, int]:
    """Elements of a run and how many runs there are: about as many, since each looks at its elements and at the counts
    of all runs."""
    run = max(1, math.isqrt(total))
    return run, ceil_div(total, run)


def _iterations(call: Call) -> int:
    run, runs = _runs(call.specs["x"].size)
    return runs + run * (1 + len(call.shape("x")))


def _program(call: Call, device: Device, params: Params) -> Program:
    x = call.specs["x"]
    run, runs = _runs(x.size)
    push = {"total": x.size, "run": run, "runs": runs}
    place, constants, iterations = PLACE_SHADERS[x.dtype], {"RANK": len(x.dims)}, _iterations(call)
    steps = (
        dispatch_each(COUNT_SHADERS[x.dtype], runs, device, params, push, loop_iterations=run),
        dispatch_each(place, runs, device, params, push | tables(place, x.dims), constants, loop_iterations=iterations),
    )
    return Program(steps, scratch={"counts": 4 * runs})


def _reference(call: Call, arrays: Arrays) -> Outputs:
    flat = shapes.given(arrays, "x").reshape(-1) != 0
    order = np.argsort(~flat, kind="stable")
    places = np.array(np.unravel_index(order, call.shape("x")), np.int64).reshape(call.shape("y"))
    return [places, np.array([np.count_nonzero(flat)], np.int64)]


NONZERO = Op(
    "nonzero",
    (Operand("x"),),
    _resolve,
    _reference,
    outputs=("y", "count"),
    counts=True,
    routes=(
        Route(
            "runs",
            _program,
            (*COUNT_SHADERS.values(), *PLACE_SHADERS.values()),
            "counts of runs first, then each run knows its place: no atomics and no shared memory, the order is that "
            "of the elements",
            must=(operands_in("x", *_DTYPES), INT32, loop_iterations(lambda call, device: _iterations(call))),
            params=local_params,
        ),
    ),
    cases=(
        "nonzero:x=67",
        "nonzero:x=5x7x3:i32",
        "nonzero:x=131x11:i64",
        "nonzero:x=2x3x5x7",
        "nonzero:x=1x1",
    ),
    doc="The indices of each element, a column each: first, in order, of the elements that are not zero, whose number "
    "is count, then of the others. NaN is not zero.",
)
