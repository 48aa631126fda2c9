"""arg_reduce: where the largest or the smallest element along an axis is."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, DType, GraphError, ceil_div, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Attr, Attrs, Op, Operand, Specs, first, linear_groups, local_sizes
from vkconv.ops.core.requirements import ARITHMETIC, INT32, LONG_ROW, ON_GPU, lane_by_lane, loop_iterations, operands_in
from vkconv.ops.reduce.kernels import SUBGROUP, TREE, power_of_two, serial_locals
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Requirement, Route

_DTYPES = (DType.F32, DType.I32)
_EXTREMES = ("max", "min")
_INDICES = (DType.I32, DType.I64)
_LOADS = (8, 4, 2, 1)
_LOCALS = (256, 128, 64)
_LEAST_LOCAL = 32
# From so many elements along the axis on, a workgroup shares them; as for the rows of reduce.
_LONG_AXIS, _LONG_AXIS_ELSE = {"cpu": 128}, LONG_ROW


def _resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
    x, extreme, to = shapes.operand(specs, "x", "arg_reduce"), str(attrs["op"]), str(attrs["dtype"])
    if extreme not in _EXTREMES:
        raise GraphError(f"arg_reduce: there is no op={extreme!r}{did_you_mean(extreme, _EXTREMES)}; max or min")
    if to not in _INDICES:
        raise GraphError(f"arg_reduce: indices are i32 or i64, not {to!r}")
    if x.dtype is DType.BOOL:
        raise GraphError("arg_reduce: x is bool; cast it to i32 first")
    axis = shapes.axis_of("arg_reduce", attrs["axis"], len(x.dims))
    keepdims = bool(attrs["keepdims"])
    out = tuple(1 if i == axis else n for i, n in enumerate(x.dims) if keepdims or i != axis)
    if x.dims[axis] == 0 and 0 not in out:
        raise GraphError(f"arg_reduce: axis {axis} of x ({x}) is empty; there is no element to point to")
    canonical: Attrs = {"op": extreme, "axis": axis, "keepdims": keepdims, "dtype": to}
    return canonical | {"select_last": bool(attrs["select_last"])}, (TensorSpec(out, DType(to)),)


def _extents(call: Call) -> tuple[int, int]:
    """Elements along the axis, and their distance."""
    x, axis = call.shape("x"), call["axis"]
    return x[axis], math.prod(x[axis + 1 :])


def _dispatch(
    call: Call, device: Device, form: tuple[tuple[str, str], ...], local: int, loads: int, across: int
) -> Program:
    """Without a ``form`` each invocation makes an output; else each workgroup ``across`` neighbouring ones."""
    x, (n, inner), outputs = call.operands["x"], _extents(call), call.outputs["y"].size
    assert x is not None
    slabs = local // across if form else 1
    step = Dispatch(
        Shader(shaders.reduce.ARG_REDUCE, x.dtype, form),
        {"x": "x", "y": "y"},
        linear_groups(ceil_div(outputs, across), 1, device) if form else linear_groups(outputs, local, device),
        (local, 1, 1),
        {"outputs": outputs, "n": n, "inner": max(1, inner)},
        {
            "MINIMUM": call["op"] == "min",
            "LAST": bool(call["select_last"]),
            "WIDE": call.outputs["y"].dtype is DType.I64,
            "LOADS": loads,
            "ACROSS": across,
        },
        8 * local if form else 0,
        _iterations(n, slabs, loads),
    )
    return Program((step,))


def _iterations(n: int, slabs: int, loads: int) -> int:
    return n // (slabs * loads) + loads + slabs + 1


def _meeting(call: Call, device: Device, params: Params, form: tuple[tuple[str, str], ...]) -> Program:
    return _dispatch(call, device, form, params["local"], params["loads"], params.get("across", 1))


def _meeting_params(call: Call, device: Device, form: tuple[tuple[str, str], ...]) -> Mapping[str, tuple[int, ...]]:
    """Where the driver ends long loops, the most lanes along the axis are all that is open."""
    n, inner = _extents(call)
    across, most = min(_LEAST_LOCAL, power_of_two(inner)), device.max_loop_iterations
    # A subgroup alone needs no shared memory.
    alone = lane_by_lane(device) and form == SUBGROUP
    least = device.subgroup_size if alone else max(_LEAST_LOCAL, across)
    locals_ = local_sizes(device, _LEAST_LOCAL, *_LOCALS)
    best = (
        least if alone else max(least, min(*_LOCALS[:1], max(locals_), power_of_two(across * ceil_div(n, _LOADS[0]))))
    )
    legal = {"local": first(best, locals_), "loads": _LOADS, "across": first(across, (1, 8, _LEAST_LOCAL))}
    if most is not None and _iterations(n, least // across, 1) > most:
        legal = {"local": (max(locals_),), "loads": _LOADS[:1], "across": (across,)}
    return {name: values for name, values in legal.items() if name != "across" or form == TREE}


def _reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    x, axis = shapes.given(arrays, "x"), call["axis"]
    find: Callable[..., Array] = np.argmax if call["op"] == "max" else np.argmin
    if call["select_last"]:
        found = np.asarray(x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis))
    else:
        found = np.asarray(find(x, axis=axis))
    y = call.outputs["y"]
    return [found.astype(y.dtype.numpy).reshape(y.dims)]


def _sizes(call: Call) -> int:
    x = call.operands["x"]
    return 0 if x is None else x.size


_MUST = (operands_in("x", *_DTYPES), INT32)
_INNERMOST = Requirement(
    "the innermost dimension",
    lambda call, device: _extents(call)[1] == 1,
    lambda call, device: f"{_extents(call)[1]} elements apart",
)
_LONG = Requirement(
    f"an axis of at least {_LONG_AXIS_ELSE}, or {_LONG_AXIS['cpu']} on a CPU driver",
    lambda call, device: _extents(call)[0] >= _LONG_AXIS.get(device.kind, _LONG_AXIS_ELSE),
    lambda call, device: str(_extents(call)[0]),
)


def _route(
    name: str,
    form: tuple[tuple[str, str], ...],
    why: str,
    must: tuple[Requirement, ...],
    prefer: tuple[Requirement, ...],
) -> Route:
    legal = functools.partial(_meeting_params, form=form)

    def iterations(call: Call, device: Device) -> int:
        params = {name: values[0] for name, values in legal(call, device).items()}
        return _iterations(_extents(call)[0], params["local"] // params.get("across", 1), params["loads"])

    return Route(
        name,
        functools.partial(_meeting, form=form),
        tuple(Shader(shaders.reduce.ARG_REDUCE, dtype, form) for dtype in _DTYPES),
        why,
        must=(
            *_MUST,
            *must,
            loop_iterations(iterations),
        ),
        prefer=prefer,
        params=legal,
    )


ARG_REDUCE = Op(
    "arg_reduce",
    (Operand("x"),),
    ("y",),
    _resolve,
    _reference,
    attrs=(
        Attr("op", "op", str, "max"),
        Attr("axis", "axis", int, 0),
        Attr("keepdims", "keep", bool, True),
        Attr("select_last", "last", bool, False),
        Attr("dtype", "to", str, "i32"),
    ),
    routes=(
        _route(
            "subgroup",
            SUBGROUP,
            "a workgroup for each output: the largest key of a subgroup, then the first lane that has it",
            (_INNERMOST, ARITHMETIC),
            (_LONG,),
        ),
        _route(
            "tree",
            TREE,
            "a workgroup for neighbouring outputs: keys and places in registers first, then a tree in shared memory",
            (),
            (ON_GPU, _LONG),
        ),
        Route(
            "serial",
            lambda call, device, params: _dispatch(call, device, (), params["local"], params["loads"], 1),
            tuple(Shader(shaders.reduce.ARG_REDUCE, dtype) for dtype in _DTYPES),
            "an invocation for each output: no shared memory and no barriers, right anywhere",
            must=(*_MUST, loop_iterations(lambda call, device: _iterations(_extents(call)[0], 1, _LOADS[0]))),
            params=lambda call, device: {
                "local": serial_locals(_sizes(call), device),
                "loads": _LOADS if device.max_loop_iterations is None else _LOADS[:1],
            },
        ),
    ),
    flops=_sizes,
    cases=(
        "arg_reduce:x=3x5x7,axis=1",
        "arg_reduce:x=3x5x7,op=min,axis=-1,keep=0",
        "arg_reduce:x=3x5x7,axis=0,last=1,to=i64",
        "arg_reduce:x=1031,to=i64",
        "arg_reduce:x=5x257,op=min,axis=1,last=1",
        "arg_reduce:x=2x131x67,axis=1,to=i64",
        "arg_reduce:x=70001x2,axis=1",
        "arg_reduce:x=13x67:i32,op=min,axis=1",
    ),
    doc="The index of the largest or smallest element along axis. NaN is beyond all; of equals it is the first, or the "
    "last.",
)
