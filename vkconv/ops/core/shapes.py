"""Checks and shape rules that several ops share: axes, broadcasting, operands by name. numpy and core only."""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.core import DType, GraphError, Shape, counted, did_you_mean, shape_str
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.base import Arrays, Specs


def operand(specs: Specs, name: str, op: str) -> TensorSpec:
    """The spec of an operand that must be there; GraphError naming op and operand otherwise."""
    spec = specs.get(name)
    if spec is None:
        raise GraphError(f"{op} needs the operand {name!r}")
    return spec


def float_operand(specs: Specs, name: str, op: str) -> TensorSpec:
    """The spec of an operand that must be of a float type."""
    spec = operand(specs, name, op)
    if not spec.dtype.is_float:
        raise GraphError(f"{op}: {name} is {spec.dtype}; it takes a float type, cast first")
    return spec


def number_operand(specs: Specs, name: str, op: str) -> TensorSpec:
    """The spec of an operand that must not be of bools."""
    spec = operand(specs, name, op)
    if spec.dtype is DType.BOOL:
        raise GraphError(f"{op}: {name} is bool; cast it to i32 first")
    return spec


def index_operand(specs: Specs, name: str, op: str) -> TensorSpec:
    """The spec of an operand of indices."""
    spec = operand(specs, name, op)
    if spec.dtype not in (DType.I32, DType.I64):
        raise GraphError(f"{op}: {name} are {spec.dtype}; they must be i32 or i64")
    return spec


def one_float_dtype(op: str, *specs: TensorSpec | None) -> None:
    """GraphError unless all operands that are there have one float type."""
    given_specs = [spec for spec in specs if spec is not None]
    if len({spec.dtype for spec in given_specs}) > 1 or not given_specs[0].dtype.is_float:
        raise GraphError(f"{op} takes operands of one float dtype, not {', '.join(map(str, given_specs))}")


def one_of(op: str, attrs: Mapping[str, AttrValue], name: str, choices: Collection[str]) -> str:
    """An attribute that is one of the choices; GraphError with a suggestion otherwise."""
    value = str(attrs[name])
    if value not in choices:
        hint = did_you_mean(value, choices)
        raise GraphError(f"{op}: {name}={value!r} is not one of {', '.join(choices)}{hint}")
    return value


def element_type(op: str, attrs: Mapping[str, AttrValue], name: str, known: Collection[DType] = tuple(DType)) -> DType:
    """An attribute that names an element type; GraphError with a suggestion of the known ones otherwise."""
    value = str(attrs[name])
    if value not in list(DType):
        raise GraphError(f"{op}: {name}={value!r} is no element type{did_you_mean(value, map(str, known))}")
    return DType(value)


def groups_str(groups: int) -> str:
    """``1 group``, ``2 groups``."""
    return counted(groups, "group")


def groups_of(op: str, attrs: Mapping[str, AttrValue]) -> int:
    """The attribute groups; GraphError unless it is at least 1."""
    groups = attrs["groups"]
    if not isinstance(groups, int) or groups < 1:
        raise GraphError(f"{op}: groups is {groups}; it is an integer of at least 1")
    return groups


def variadic(specs: Mapping[str, TensorSpec | None], name: str) -> list[TensorSpec]:
    """Specs of a variadic operand in order: name0, name1, ... up to the first that is missing."""
    found: list[TensorSpec] = []
    for i in itertools.count():
        spec = specs.get(f"{name}{i}")
        if spec is None:
            return found
        found.append(spec)
    raise AssertionError("unreachable")


def given(arrays: Arrays, name: str) -> npt.NDArray[Any]:
    """The array of an operand that is present."""
    array = arrays[name]
    assert array is not None, name
    return array


def ints(value: AttrValue) -> tuple[int, ...]:
    """An attribute as a tuple of ints; one number stands for itself."""
    return tuple(int(v) for v in value) if isinstance(value, tuple) else (int(value),)


def held_in(op: str, name: str, number: AttrValue, dtype: DType) -> float:
    """The number, if ``dtype`` can hold it: integers and bools exactly, floats within their range (they round).
    GraphError otherwise."""
    assert isinstance(number, int | float)
    value = float(number)
    if dtype.is_float:
        with np.errstate(over="ignore"):
            held = not math.isfinite(value) or bool(np.isfinite(np.asarray(value).astype(dtype.numpy)))
    else:
        info = np.iinfo(dtype.numpy.name) if dtype is not DType.BOOL else None
        low, high = (int(info.min), int(info.max)) if info else (0, 1)
        held = value.is_integer() and low <= int(value) <= high
    if not held:
        raise GraphError(f"{op}: {name} is {value}, which {dtype} cannot hold")
    return value


def axis_of(op: str, axis: AttrValue, rank: int, *, after_last: bool = False) -> int:
    """An axis counted from the front. GraphError outside [-rank, rank), or past rank with ``after_last``."""
    value = int(axis) if not isinstance(axis, tuple) else -rank - 1
    top = rank if after_last else rank - 1
    if top < 0:
        raise GraphError(f"{op}: axis {axis} of a scalar, which has rank 0 and no axis; reshape it to rank 1 or more")
    if not -rank <= value <= top:
        raise GraphError(f"{op}: axis {axis} is outside [{-rank}, {top}] of a rank-{rank} operand")
    return value + rank if value < 0 else value


def axes_of(op: str, axes: AttrValue, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, ascending. GraphError for one out of range or named twice."""
    found = [axis_of(op, a, rank) for a in ints(axes)]
    if len(set(found)) != len(found):
        raise GraphError(f"{op}: axes {list(ints(axes))} name an axis of a rank-{rank} operand twice")
    return tuple(sorted(found))


# As many as numpy 1 has.
_MOST_BROADCAST = 32


def broadcast_shape(op: str, *shapes: Shape) -> Shape:
    """The numpy broadcast of the shapes; GraphError naming them all where two dimensions disagree, and for more
    dimensions than any tensor has."""
    if (rank := max(map(len, shapes), default=0)) > _MOST_BROADCAST:
        raise GraphError(f"{op}: {rank} dimensions; at most {_MOST_BROADCAST} broadcast")
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " and ".join(shape_str(s) for s in shapes)
        raise GraphError(
            f"{op}: shapes {text} do not broadcast; aligned at the right, dims must agree or be 1"
        ) from None


def same_dtype(op: str, named: Mapping[str, TensorSpec]) -> None:
    """GraphError unless all specs have one element type."""
    if len({s.dtype for s in named.values()}) > 1:
        text = ", ".join(f"{name} is {s.dtype}" for name, s in named.items())
        raise GraphError(f"{op}: element types differ ({text}); cast one of them first")


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Element strides of a dense row-major tensor."""
    strides: list[int] = []
    step = 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def broadcast_strides(shape: Shape, out: Shape) -> tuple[int, ...]:
    """Element strides that read a dense tensor of ``shape`` as if it had shape ``out``: 0 where it repeats."""
    lead = len(out) - len(shape)
    own = row_major(shape)
    return (0,) * lead + tuple(
        0 if d == 1 and out[lead + i] != 1 else s for i, (d, s) in enumerate(zip(shape, own, strict=True))
    )
