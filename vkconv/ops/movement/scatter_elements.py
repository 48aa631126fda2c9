"""scatter_elements and scatter_nd: x with elements, or slices, replaced by updates or combined with them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import loop_iterations, operands_in
from vkconv.ops.kernels.strided import STRIDED_COPIES, dispatch_each, strided_copy, tables, walk_params
from vkconv.ops.movement.gather import check_axis_indices, checked_indices
from vkconv.ops.movement.gather_elements import check_elements, check_tuples, index_operands, tuple_depth
from vkconv.program import Argument, Dispatch, Program, Word
from vkconv.route import Params, Route

_DTYPES = (DType.F32, DType.I32, DType.I64)
ELEMENTS_SHADERS = {dtype: Shader(shaders.movement.SCATTER_ELEMENTS, dtype) for dtype in _DTYPES}
ND_SHADERS = {dtype: Shader(shaders.movement.SCATTER_ND, dtype) for dtype in _DTYPES}
# Index is the shader's COMBINE.
REDUCTIONS = ("none", "add", "mul", "max", "min")
_AT: Mapping[str, Callable[[npt.NDArray[Any], Any, npt.NDArray[Any]], None]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _operands(op: str, specs: Specs, attrs: Attrs) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    x, indices = index_operands(op, specs)
    updates = shapes.operand(specs, "updates", op)
    shapes.same_dtype(op, {"x": x, "updates": updates})
    if shapes.one_of(op, attrs, "reduction", REDUCTIONS) != REDUCTIONS[0]:
        shapes.number_operand(specs, "x", op)
    return x, indices, updates


def _elements_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, indices, updates = _operands("scatter_elements", specs, attrs)
    axis = shapes.axis_of("scatter_elements", attrs["axis"], len(x.dims))
    check_elements("scatter_elements", x, indices, axis)
    if updates.dims != indices.dims:
        raise GraphError(
            f"scatter_elements: updates are {shape_str(updates.dims)} and indices {shape_str(indices.dims)}; "
            "there is an index for every update"
        )
    return {**attrs, "axis": axis}, (x,)


def _copy(call: Call, device: Device, params: Params) -> tuple[Dispatch, ...]:
    y = call.outputs["y"]
    strides = shapes.row_major(y.dims)
    return strided_copy(device, params, "x", "y", y.dims, strides, strides, nbytes=y.dtype.nbytes)


def _scatter(
    call: Call,
    device: Device,
    params: Params,
    shader: Shader,
    count: int,
    steps: int,
    push: Mapping[str, Argument],
    constants: Mapping[str, Word],
) -> Program:
    """The copy of x, then ``count`` invocations of ``steps`` updates each."""
    indices = call.specs["indices"]
    if not indices.size:
        return Program(_copy(call, device, params))
    constants = {"WIDE": indices.dtype is DType.I64, "COMBINE": REDUCTIONS.index(call["reduction"]), **constants}
    push = {"invocations": count, "steps": steps, **push}
    step = dispatch_each(shader, count, device, params, push, constants, loop_iterations=steps)
    return Program((*_copy(call, device, params), step))


def _elements_steps(call: Call, device: Device | None = None) -> int:
    return 1 if call["reduction"] == "none" else int(call.shape("indices")[call["axis"]])


def _elements_program(call: Call, device: Device, params: Params) -> Program:
    x, indices, axis = call.shape("x"), call.shape("indices"), call["axis"]
    dims, steps = list(indices), _elements_steps(call)
    strides, own = shapes.row_major(x), shapes.row_major(indices)
    if call["reduction"] != "none":
        dims[axis] = 1
    to = tuple(0 if d == axis else s for d, s in enumerate(strides))
    shader = ELEMENTS_SHADERS[call.outputs["y"].dtype]
    push = {"from_step": own[axis], "n_axis": x[axis], "axis_stride": strides[axis], **tables(shader, dims, own, to)}
    return _scatter(call, device, params, shader, math.prod(dims), steps, push, {"RANK": len(x)})


def _combined(call: Call, x: npt.NDArray[Any], at: tuple[Any, ...], updates: npt.NDArray[Any]) -> npt.NDArray[Any]:
    y = x.copy()
    if call["reduction"] == "none":
        y[at] = updates
    else:
        _AT[call["reduction"]](y, at, updates)
    return y


def _elements_at(call: Call, arrays: Arrays) -> tuple[Any, ...]:
    indices, axis = shapes.given(arrays, "indices"), call["axis"]
    at: list[Any] = list(np.indices(indices.shape, sparse=True))
    at[axis] = checked_indices("scatter_elements", indices, call.shape("x")[axis])
    return tuple(at)


def _elements_reference(call: Call, arrays: Arrays) -> Outputs:
    updates = shapes.given(arrays, "updates")
    return [_combined(call, shapes.given(arrays, "x"), _elements_at(call, arrays), updates)]


def _nd_resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, indices, updates = _operands("scatter_nd", specs, attrs)
    depth = tuple_depth("scatter_nd", x, indices, 0)
    want = (*indices.dims[:-1], *x.dims[depth:])
    if updates.dims != want:
        raise GraphError(
            f"scatter_nd: updates are {shape_str(updates.dims)}; indices {shape_str(indices.dims)} into "
            f"{shape_str(x.dims)} take {shape_str(want)}"
        )
    return attrs, (x,)


def _nd_steps(call: Call, device: Device | None = None) -> int:
    return 1 if call["reduction"] == "none" else math.prod(call.shape("indices")[:-1])


def _nd_program(call: Call, device: Device, params: Params) -> Program:
    x, indices = call.shape("x"), call.shape("indices")
    depth, inner = indices[-1], math.prod(x[indices[-1] :])
    tuples = math.prod(indices[:-1]) if call["reduction"] == "none" else 1
    shader = ND_SHADERS[call.outputs["y"].dtype]
    push = {"inner": max(1, inner), **tables(shader, x[:depth], shapes.row_major(x)[:depth])}
    return _scatter(call, device, params, shader, tuples * inner, _nd_steps(call), push, {"DEPTH": depth})


def _nd_at(call: Call, arrays: Arrays) -> tuple[Any, ...]:
    indices, x = shapes.given(arrays, "indices"), call.shape("x")
    return tuple(checked_indices("scatter_nd", indices[..., d], x[d]) for d in range(indices.shape[-1]))


def _nd_reference(call: Call, arrays: Arrays) -> Outputs:
    updates = shapes.given(arrays, "updates")
    return [_combined(call, shapes.given(arrays, "x"), _nd_at(call, arrays), updates)]


def _magnitude(
    at: Callable[[Call, Arrays], tuple[Any, ...]],
) -> Callable[[Call, Arrays, F64], F64]:
    """Of a sum, that of what was added on the way; anything else rounds with its own size."""

    def magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
        if call["reduction"] != "add":
            return np.abs(reference)
        x, updates = (np.abs(shapes.given(arrays, name)) for name in ("x", "updates"))
        return np.asarray(_combined(call, x, at(call, arrays), updates), np.float64)

    return magnitude


def _terms(call: Call) -> int:
    return 1 if call["reduction"] == "none" else 1 + math.prod(call.shape("indices"))


_NONE = (
    "Which of several updates of one element stays is not told where reduction is none; in packed storage it may have "
    "bits of two."
)
_OPERANDS = (Operand("x"), Operand("indices"), Operand("updates"))
_REDUCTION = Attr("reduction", "reduction", str, "none")

SCATTER_ELEMENTS = Op(
    "scatter_elements",
    _OPERANDS,
    _elements_resolve,
    _elements_reference,
    attrs=(Attr("axis", "axis", int, 0), _REDUCTION),
    routes=(
        Route(
            "in_order",
            _elements_program,
            (*STRIDED_COPIES.values(), *ELEMENTS_SHADERS.values()),
            "a copy, then an invocation per update, or per line of updates along the axis where they combine: no "
            "atomics, and every sum in the order of the updates",
            must=(operands_in("x", *_DTYPES), loop_iterations(_elements_steps)),
            params=walk_params,
        ),
    ),
    terms=_terms,
    sums_in_output=True,
    magnitude=_magnitude(_elements_at),
    cases=(
        "scatter_elements:x=5x7,indices=5x4:i64,updates=5x4,axis=1,reduction=add",
        "scatter_elements:x=4x7x5,indices=9x3x5:i32,updates=9x3x5,reduction=max",
        "scatter_elements:x=4x6x5:i64,indices=3x2x5:i32,updates=3x2x5:i64,axis=1,reduction=mul",
        "scatter_elements:x=7x5:i32,indices=1x5:i64,updates=1x5:i32",
        "scatter_elements:x=67,indices=31:i64,updates=31,reduction=min",
        "scatter_elements:x=5x7,indices=5x0:i64,updates=5x0,axis=1",
    ),
    check_constants=check_axis_indices,
    doc="x with updates[i, j, ...] at [..., indices[i, j, ...], ...], the index along axis: in its element's place, or "
    f"combined with it (reduction add, mul, max, min). {_NONE} An index outside the axis is a GraphError where "
    "it is constant, an InputError where it is an input, and changes nothing where it is computed.",
)
SCATTER_ND = Op(
    "scatter_nd",
    _OPERANDS,
    _nd_resolve,
    _nd_reference,
    attrs=(_REDUCTION,),
    routes=(
        Route(
            "in_order",
            _nd_program,
            (*STRIDED_COPIES.values(), *ND_SHADERS.values()),
            "a copy, then an invocation per element of the updates, or per element of a slice where they combine: no "
            "atomics, and every sum in the order of the updates",
            must=(operands_in("x", *_DTYPES), loop_iterations(_nd_steps)),
            params=walk_params,
        ),
    ),
    terms=_terms,
    sums_in_output=True,
    magnitude=_magnitude(_nd_at),
    cases=(
        "scatter_nd:x=7x5x3,indices=4x1:i64,updates=4x5x3,reduction=add",
        "scatter_nd:x=7x5x4,indices=3x2x2:i32,updates=3x2x4,reduction=mul",
        "scatter_nd:x=5x4:i64,indices=6x2:i64,updates=6:i64,reduction=max",
        "scatter_nd:x=67:i32,indices=1x1:i64,updates=1:i32",
        "scatter_nd:x=7x4,indices=5x1:i32,updates=5x4,reduction=min",
    ),
    check_constants=check_tuples,
    doc="x with the slice updates[t] at indices[t], a tuple along the last axis: in its place, or combined with it "
    f"(reduction add, mul, max, min). {_NONE} A tuple outside x is a GraphError where it "
    "is constant, an InputError where it is an input, and changes nothing where it is computed.",
)
