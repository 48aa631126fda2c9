"""topk: the k largest or smallest elements along an axis, in order, and where they are."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import INT32, loop_iterations, operands_in, within_scratch
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.ops.reduce.kernels import power_of_two
from vkconv.policy import Policy
from vkconv.program import Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

_LONG_AXIS = Policy("reduce.topk_axis", int)
_SORTED = (DType.F32, DType.I32)
KEYS_SHADERS = {dtype: Shader(shaders.reduce.TOPK_KEYS, dtype) for dtype in _SORTED}
TAKE_SHADERS = {dtype: Shader(shaders.reduce.TOPK_TAKE, dtype) for dtype in _SORTED}
SORT = Shader(shaders.reduce.TOPK_SORT, DType.I32)
TOPK_SHADERS = {dtype: Shader(shaders.reduce.TOPK, dtype) for dtype in (DType.F32, DType.I32, DType.I64)}


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = shapes.number_operand(specs, "x", "topk")
    axis, counts = shapes.axis_of("topk", attrs["axis"], len(x.dims)), shapes.ints(attrs["k"])
    if len(counts) != 1 or not 0 <= counts[0] <= x.dims[axis]:
        raise GraphError(f"topk: k is {list(counts)}; axis {axis} of x ({x}) has {x.dims[axis]} elements")
    out = (*x.dims[:axis], counts[0], *x.dims[axis + 1 :])
    canonical: Attrs = {**attrs, "axis": axis, "k": counts[0]}
    return canonical, (TensorSpec(out, x.dtype), TensorSpec(out, DType.I64))


def _program(call: Call, device: Device, params: Params) -> Program:
    x, axis = call.shape("x"), call["axis"]
    shader, total, n = TOPK_SHADERS[call.outputs["values"].dtype], math.prod(x), x[axis]
    push = {"total": total, "length": n, "inner": math.prod(x[axis + 1 :]), "k": call["k"]}
    constants = {"LARGEST": call["largest"]}
    return Program((dispatch_each(shader, total, device, params, push, constants, loop_iterations=n),))


def _length(call: Call) -> int:
    """Elements along the axis."""
    return int(call.shape("x")[call["axis"]])


def _padded(call: Call) -> int:
    """Pairs of a line: a power of two."""
    return power_of_two(_length(call))


def _pairs_bytes(call: Call, device: Device) -> int:
    x, axis = call.shape("x"), call["axis"]
    return 8 * _padded(call) * math.prod(x[:axis]) * math.prod(x[axis + 1 :])


def _sorting_program(call: Call, device: Device, params: Params) -> Program:
    """All lines at once, each a power of two of pairs, in the steps of a bitonic sort, a launch each: of 2^n pairs
    n (n + 1) / 2. Source: Batcher, Sorting networks and their applications, 1968."""
    x, axis, padded, dtype = call.shape("x"), call["axis"], _padded(call), call.specs["x"].dtype
    lines, inner = _pairs_bytes(call, device) // (8 * padded), math.prod(x[axis + 1 :])
    line = {"length": x[axis], "padded": padded, "inner": inner}
    total, taken = lines * padded, lines * call["k"]
    largest = {"LARGEST": call["largest"]}
    steps = [dispatch_each(KEYS_SHADERS[dtype], total, device, params, {"total": total, **line}, largest)]
    block = 2
    while block <= padded:
        apart = block // 2
        while apart:
            # The last blocks of all lines are in one order: no bit of a place within a line tells otherwise.
            push = {"exchanges": total // 2, "apart": apart, "block": block if block < padded else 0}
            steps.append(dispatch_each(SORT, total // 2, device, params, push))
            apart //= 2
        block *= 2
    push = {"total": taken, **line, "k": call["k"]}
    steps.append(dispatch_each(TAKE_SHADERS[dtype], taken, device, params, push))
    return Program(tuple(steps), scratch={"pairs": 8 * total})


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, axis = shapes.given(arrays, "x"), call["axis"]
    # Sorting is stable, and puts NaN last: from the back, for the largest, also of equal elements the last one.
    order = np.argsort(np.flip(x, axis) if call["largest"] else x, axis, kind="stable")
    if call["largest"]:
        order = x.shape[axis] - 1 - np.flip(order, axis)
    order = np.take(order, np.arange(call["k"]), axis)
    return [np.take_along_axis(x, order, axis), order.astype(np.int64)]


_LONG = Requirement(
    "an axis on which sorting pays",
    lambda call, device: _length(call) >= _LONG_AXIS.of(device),
    lambda call, device: f"{_length(call)}, at least {_LONG_AXIS.of(device)} ({_LONG_AXIS.said(device)})",
)
_PAIRS_COUNTED = Requirement(
    "fewer than 2^31 keys",
    lambda call, device: _pairs_bytes(call, device) // 8 < 1 << 31,
    lambda call, device: str(_pairs_bytes(call, device) // 8),
)
TOPK = Op(
    "topk",
    (Operand("x"), Operand("k", host=True)),
    _resolve,
    _reference,
    outputs=("values", "indices"),
    attrs=(
        Attr("k", "k", int),
        Attr("axis", "axis", int, -1),
        Attr("largest", "largest", bool, True),
    ),
    routes=(
        Route(
            "bitonic",
            _sorting_program,
            (*KEYS_SHADERS.values(), SORT, *TAKE_SHADERS.values()),
            "keys and indices sorted in place, a launch for each step, no shared memory: lines of any length",
            must=(operands_in("x", *_SORTED), INT32, _PAIRS_COUNTED, within_scratch(_pairs_bytes, "keys and indices")),
            prefer=(_LONG,),
            params=local_params,
        ),
        Route(
            "count",
            _program,
            tuple(TOPK_SHADERS.values()),
            "an invocation per element counts those before it: no sorting steps, no shared memory, equal elements in "
            "order; the square of the axis' length",
            must=(
                operands_in("x", *TOPK_SHADERS),
                loop_iterations(lambda call, device: call.shape("x")[call["axis"]]),
            ),
            params=local_params,
        ),
    ),
    cases=(
        "topk:x=5x67,k=7",
        "topk:x=3x11x5,k=4,axis=1,largest=0",
        "topk:x=131:i32,k=131",
        "topk:x=4x9:i64,k=3,axis=0",
        "topk:x=4x9,k=1,axis=-2,largest=0",
        "topk:x=3x1031,k=67",
        "topk:x=2x2053x3:i32,k=2053,axis=1,largest=0",
    ),
    doc="The k largest (or smallest) elements of x along axis, the most extreme first and equal ones by index, and "
    "their indices as i64; NaN counts as larger than every number.",
)
