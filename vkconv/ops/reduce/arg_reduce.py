"""arg_reduce: where the largest or the smallest element along an axis is."""

import functools
import math
from collections.abc import Callable

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, DType, GraphError, bytes_str, ceil_div, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import (
    Arrays,
    Attr,
    Attrs,
    Op,
    Operand,
    Outputs,
    Resolved,
    Specs,
    defaults,
    first,
    local_sizes,
    over_workgroups,
)
from vkconv.ops.core.requirements import (
    ARITHMETIC,
    INT32,
    ON_GPU,
    lane_by_lane,
    loop_iterations,
    operands_in,
    scratch_budget,
    subgroup_arithmetic,
    within_scratch,
)
from vkconv.ops.core.workgroups import WORKGROUPS
from vkconv.ops.reduce.arg_bands import PART_BYTES, PUBLISHED, by_bands
from vkconv.ops.reduce.kernels import SUBGROUP, TREE, power_of_two, serial_locals
from vkconv.ops.reduce.split import LOADS, LOCALS, PARTS, parts_to_fill
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

_DTYPES = (DType.F32, DType.I32)
_EXTREMES = ("max", "min")
_INDICES = (DType.I32, DType.I64)
_PARTS = "parts"
FROM_PARTS = (("FROM_PARTS", ""),)
Form = tuple[tuple[str, str], ...]
_ACROSS = (1, 8, 32)  # lanes side by side, for neighbouring outputs
_LONG_AXIS = Policy("reduce.arg_axis", int)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, extreme, to = shapes.number_operand(specs, "x", "arg_reduce"), str(attrs["op"]), str(attrs["dtype"])
    if extreme not in _EXTREMES:
        raise GraphError(f"arg_reduce: there is no op={extreme!r}{did_you_mean(extreme, _EXTREMES)}; max or min")
    if to not in _INDICES:
        raise GraphError(f"arg_reduce: indices are i32 or i64, not {to!r}")
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


def _launch(
    call: Call, device: Device, params: Params, form: Form, n: int, part_n: int, x: str = "x", y: str = "y"
) -> Dispatch:
    """The best of every ``part_n`` of ``n`` elements along the axis. Without a ``form`` each invocation makes an
    output; else each workgroup some neighbouring ones."""
    inner, parts = _extents(call)[1], max(1, ceil_div(n, part_n))
    outputs, meeting = call.outputs["y"].size * parts, form if form != FROM_PARTS else ()
    local, loads, across = params["local"], params["loads"], params.get("across", 1)
    slabs = local // across if meeting else 1
    shader = Shader(shaders.reduce.ARG_REDUCE, call.specs["x"].dtype, form)
    values: dict[str, Word] = {
        "MINIMUM": call["op"] == "min",
        "LAST": bool(call["select_last"]),
        "TO_PARTS": y == _PARTS,
    }
    return Dispatch(
        shader,
        {"x": x, "y": y},
        *over_workgroups(ceil_div(outputs, across if meeting else local), local, device),
        shader.taking({"outputs": outputs, "n": n, "inner": max(1, inner), "parts": parts, "part_n": part_n}),
        shader.taking({**values, "WIDE": call.outputs["y"].dtype is DType.I64, "LOADS": loads, "ACROSS": across}),
        8 * local if meeting else 0,
        _iterations(part_n, slabs, loads),
    )


def _program(call: Call, device: Device, params: Params, form: Form) -> Program:
    n = _extents(call)[0]
    return Program((_launch(call, device, params, form, n, n),))


def _in_parts(call: Call, device: Device, params: Params) -> Program:
    """Keys and places of the parts of an axis, then the best of these."""
    n, form = _extents(call)[0], _form_of(call, device)
    part_n = ceil_div(n, params["parts"])
    parts = ceil_div(n, part_n)
    first = _launch(call, device, params, form, n, part_n, y=_PARTS)
    meet = {"local": serial_locals(parts, device)[0], "loads": 1}
    rest = _launch(call, device, meet, FROM_PARTS, parts, parts, x=_PARTS)
    return Program((first, rest), scratch={_PARTS: _parts_bytes(call, parts)})


def _parts_bytes(call: Call, parts: int) -> int:
    return PART_BYTES * call.outputs["y"].size * parts


def _form_of(call: Call, device: Device) -> Form:
    """How lanes meet that share an axis."""
    return SUBGROUP if _extents(call)[1] == 1 and subgroup_arithmetic(device) else TREE


def _most_parts(call: Call, device: Device) -> int:
    """Parts that keep the device busy, or whose loops the driver does not end."""
    n = _extents(call)[0]
    params = defaults(_meeting_params(call, device, _form_of(call, device)))
    across = params.get("across", 1)
    groups = ceil_div(call.outputs["y"].size, across)
    parts, most = parts_to_fill(groups, across * n, device), device.max_loop_iterations
    if most is not None:
        while parts < n and _iterations(ceil_div(n, parts), params["local"] // across, params["loads"]) > most:
            parts *= 2
    return max(1, ceil_div(n, max(1, ceil_div(n, parts))))


def _parts_params(call: Call, device: Device) -> Legal:
    n, best = _extents(call)[0], _most_parts(call, device)
    most = min(n, scratch_budget(device) // max(1, _parts_bytes(call, 1)))
    legal = _meeting_params(call, device, _form_of(call, device))
    slabs = max(1, min(legal["local"]) // max(legal.get("across", (1,))))
    others = {ceil_div(n, ceil_div(n, parts)) for parts in PARTS if parts <= most} | {by_bands(call, device)[0]}
    ending = device.max_loop_iterations
    if ending is not None:
        others = {p for p in others if max(_iterations(ceil_div(n, p), slabs, 1), _iterations(p, 1, 1)) <= ending}
    return {**legal, "parts": first(best, sorted(others))}


def _iterations(n: int, slabs: int, loads: int) -> int:
    return n // (slabs * loads) + loads + slabs + 1


def _meeting_params(call: Call, device: Device, form: Form) -> Legal:
    """Where the driver ends long loops, the most lanes along the axis are all that is open."""
    n, inner = _extents(call)
    across, most = min(_ACROSS[-1], power_of_two(inner)), device.max_loop_iterations
    # A subgroup alone needs no shared memory.
    alone = lane_by_lane(device) and form == SUBGROUP
    least = device.subgroup_size if alone else max(LOCALS[0], across)
    meeting = WORKGROUPS.of(device).meeting[0]
    locals_ = local_sizes(device, *(size for size in LOCALS if size <= meeting))
    enough = power_of_two(across * ceil_div(n, LOADS[0]))
    best = least if alone else max(least, min(meeting, max(locals_), enough))
    legal = {"local": first(best, locals_), "loads": LOADS, "across": first(across, _ACROSS)}
    if most is not None and _iterations(n, least // across, 1) > most:
        legal = {"local": (max(locals_),), "loads": LOADS[:1], "across": (across,)}
    return {name: values for name, values in legal.items() if name != "across" or form == TREE}


def _serial_loads(call: Call, device: Device) -> tuple[int, ...]:
    """Elements that an invocation by itself loads at a time: of 64 bits one."""
    if call.specs["x"].dtype is DType.I64:
        return (1,)
    return LOADS if device.max_loop_iterations is None else LOADS[:1]


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, axis = shapes.given(arrays, "x"), call["axis"]
    find: Callable[..., Array] = np.argmax if call["op"] == "max" else np.argmin
    if call["select_last"]:
        found = np.asarray(x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis))
    else:
        found = np.asarray(find(x, axis=axis))
    y = call.outputs["y"]
    return [found.astype(y.dtype.numpy).reshape(y.dims)]


_MUST = (operands_in("x", *_DTYPES), INT32)
_INNERMOST = Requirement.of(
    "the innermost dimension", _extents, lambda extents: extents[1] == 1, lambda extents: f"{extents[1]} elements apart"
)
_LONG = Requirement(
    "an axis as long as such devices share",
    lambda call, device: _extents(call)[0] >= _LONG_AXIS.of(device),
    lambda call, device: f"{_extents(call)[0]}, at least {_LONG_AXIS.of(device)} ({_LONG_AXIS.said(device)})",
)


_SEVERAL_PARTS = Requirement(
    "too few workgroups to keep the device busy without parts",
    lambda call, device: _extents(call)[0] > 0 and _most_parts(call, device) > 1,
    lambda call, device: f"{call.outputs['y'].size} outputs of {_extents(call)[0]} elements each",
)


def _parts_iterations(call: Call, device: Device) -> int:
    params = defaults(_parts_params(call, device))
    parts = params["parts"]
    slabs = params["local"] // params.get("across", 1)
    return max(_iterations(ceil_div(_extents(call)[0], parts), slabs, params["loads"]), _iterations(parts, 1, 1))


def _route(name: str, form: Form, why: str, must: tuple[Requirement, ...], prefer: tuple[Requirement, ...]) -> Route:
    legal = functools.partial(_meeting_params, form=form)

    def iterations(call: Call, device: Device) -> int:
        params = defaults(legal(call, device))
        return _iterations(_extents(call)[0], params["local"] // params.get("across", 1), params["loads"])

    return Route(
        name,
        functools.partial(_program, form=form),
        tuple(Shader(shaders.reduce.ARG_REDUCE, dtype, form) for dtype in _DTYPES),
        why,
        must=(*_MUST, *must, loop_iterations(iterations)),
        prefer=prefer,
        params=legal,
    )


ARG_REDUCE = Op(
    "arg_reduce",
    (Operand("x"),),
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
        Route(
            "two_pass",
            _in_parts,
            tuple(Shader(shaders.reduce.ARG_REDUCE, t, form) for t in _DTYPES for form in (SUBGROUP, TREE, FROM_PARTS)),
            "as many parts of the axis as keep the device busy; a second pass takes the best of their places",
            must=(
                *_MUST,
                within_scratch(lambda call, device: _parts_bytes(call, _most_parts(call, device))),
                loop_iterations(_parts_iterations),
            ),
            prefer=(ON_GPU, _SEVERAL_PARTS),
            params=_parts_params,
            note=lambda call, device, params: (
                f"{params['parts']} parts; {bytes_str(_parts_bytes(call, params['parts']))} scratch"
            ),
        ),
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
            functools.partial(_program, form=()),
            tuple(Shader(shaders.reduce.ARG_REDUCE, dtype) for dtype in (*_DTYPES, DType.I64)),
            "an invocation for each output: no shared memory and no barriers, right anywhere",
            must=(
                operands_in("x", *_DTYPES, DType.I64),
                INT32,
                loop_iterations(lambda call, device: _iterations(_extents(call)[0], 1, _serial_loads(call, device)[0])),
            ),
            params=lambda call, device: {
                "local": serial_locals(call.specs["x"].size, device),
                "loads": _serial_loads(call, device),
            },
        ),
    ),
    published=PUBLISHED,
    flops=lambda call: call.specs["x"].size,
    cases=(
        "arg_reduce:x=3x5x7,axis=1",
        "arg_reduce:x=3x5x7,op=min,axis=-1,keep=0",
        "arg_reduce:x=3x5x7,axis=0,last=1,to=i64",
        "arg_reduce:x=1031,to=i64",
        "arg_reduce:x=5x257,op=min,axis=1,last=1",
        "arg_reduce:x=2x131x67,axis=1,to=i64",
        "arg_reduce:x=70001x2,axis=1",
        "arg_reduce:x=3x40009,axis=1,last=1,to=i64",
        "arg_reduce:x=2x9973x3,op=min,axis=1",
        "arg_reduce:x=13x67:i32,op=min,axis=1",
        "arg_reduce:x=13x67:i64,axis=1,to=i64",
        "arg_reduce:x=13x67x3:i64,op=min,axis=1,last=1",
    ),
    doc="The index of the largest or smallest element along axis. NaN is beyond all; of equals it is the first, or the "
    "last.",
)
