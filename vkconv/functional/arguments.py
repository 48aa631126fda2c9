"""What the functions make of their arguments: attributes of an op, and arrays with their channels first."""

import numbers
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from vkconv.backend.arrays import DeviceArray
from vkconv.core import Array, InputError, UsageError, did_you_mean, given_array
from vkconv.graph.ir import AttrValue
from vkconv.ops.core.activation import activation as activation_row
from vkconv.ops.kernels.epilogue import PRELU

# One number, or one per axis; padding also by side or by name.
Sizes = SupportsIndex | Sequence[SupportsIndex]
# The name of a scalar function, or the name and its parameters: ("clip", 0.0, 6.0).
Activation = str | tuple[str, float] | tuple[str, float, float]

_OPTIONAL = ("b", "slope", "add", "bias", "mask", "residual", "residual2")
_PRODUCTS = ("matmul", "gemm_reduce")  # whose b is no bias
_PADDINGS = ("same_lower", "same_upper", "valid")


def ints(name: str, value: Sizes) -> tuple[int, ...]:
    """The numbers of an argument; UsageError where they are no integers."""
    try:
        if isinstance(value, Iterable):
            return tuple(map(operator.index, value))
        return (operator.index(value),)
    except TypeError:
        raise UsageError(f"{name} is {value!r}; it is an integer, or a sequence of integers") from None


def one_int(name: str, value: SupportsIndex) -> int:
    """The number of an argument that takes one; UsageError where it is none or several."""
    values = ints(name, value)
    if len(values) != 1:
        raise UsageError(f"{name} is {value!r}; it is one integer")
    return values[0]


def number(name: str, value: object) -> float:
    """The number of an argument; UsageError where it is none, or an integer that no float holds."""
    if not isinstance(value, numbers.Real):
        raise UsageError(f"{name} is {value!r}; it is a number")
    try:
        return float(value)
    except OverflowError:  # no digits: there may be more than Python writes
        raise UsageError(f"{name} is a number of more than 1024 bits, which no float holds") from None


def window(
    stride: Sizes, padding: Sizes | str, dilation: Sizes, groups: SupportsIndex, activation: Activation | None = None
) -> dict[str, AttrValue]:
    """The attributes that all convolutions have."""
    attrs: dict[str, AttrValue] = {"stride": ints("stride", stride), "dilation": ints("dilation", dilation)}
    attrs["groups"] = one_int("groups", groups)
    if not isinstance(padding, str):
        attrs["padding"] = ints("padding", padding)
    elif padding in _PADDINGS:
        attrs["auto_pad"] = padding
    else:
        raise UsageError(
            f"padding is {padding!r}{did_you_mean(padding, _PADDINGS)}; it is numbers or one of {', '.join(_PADDINGS)}"
        )
    if activation is not None:
        attrs |= activation_attrs(activation)
    return attrs


def window_of_a_row(
    op: str,
    stride: SupportsIndex,
    padding: Sizes | str,
    dilation: SupportsIndex,
    groups: SupportsIndex,
    activation: Activation | None = None,
) -> dict[str, AttrValue]:
    """`window` of a convolution in one dimension, as one of height 1; UsageError for values of another."""
    pads: tuple[int, ...] | str = padding if isinstance(padding, str) else ints("padding", padding)
    if isinstance(pads, tuple):
        if len(pads) not in (1, 2):
            raise UsageError(f"padding is {padding!r}; {op} takes one number or (left, right)")
        pads = (0, pads[0], 0, pads[-1])
    one = {"stride": ints("stride", stride), "dilation": ints("dilation", dilation)}
    for name, values in one.items():
        if len(values) != 1:
            raise UsageError(f"{name} is {values}; {op} takes one number")
    return window((1, *one["stride"]), pads, (1, *one["dilation"]), groups, activation)


def activation_attrs(activation: Activation) -> dict[str, AttrValue]:
    """The attributes of a fused activation; UsageError for none, or other parameters than it takes."""
    given: Any = activation
    if isinstance(given, Sequence) and not given:
        raise UsageError("activation is empty; give a name, or None for none")
    name, *values = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    if not isinstance(name, str) or not all(isinstance(v, numbers.Real) for v in values):
        raise UsageError(f"activation is {activation!r}; it is a name, or a tuple of a name and numbers")
    needs = () if name == PRELU else activation_row(name).params
    if len(values) != len(needs):
        takes = f"({', '.join([repr(name), *needs])})" if needs else repr(name)
        raise UsageError(f"activation is {activation!r}; with its parameters it is {takes}")
    parameters = zip("ab", values, strict=False)
    return {"act": name, **{f"act_{key}": number("activation", value) for key, value in parameters}}


def array(op: str, name: str, value: npt.ArrayLike) -> Array:
    """An operand as an array; one that is on a device stays there, and may stand for one of numpy."""
    if isinstance(value, DeviceArray):
        return cast(Array, value)
    return given_array(value, f"{op}: {name}")


def arrays(op: str, **operands: npt.ArrayLike | None) -> dict[str, Array]:
    """The operands as arrays, without the optional ones that are None."""
    for name, value in operands.items():
        if value is None and (name not in _OPTIONAL or (name == "b" and op in _PRODUCTS)):
            raise InputError(f"{op} needs {name}; it is None")
    return {name: array(op, name, value) for name, value in operands.items() if value is not None}


def check_layout(op: str, layout: str, known: Collection[str]) -> None:
    """UsageError where an op has no such layout."""
    if not isinstance(layout, str) or layout not in known:  # numpy compares an array element by element
        raise UsageError(f"{op} has no layout {layout!r}{did_you_mean(str(layout), known)}; it has {', '.join(known)}")


def check_rank(op: str, name: str, given: Array, layout: str) -> None:
    """InputError where an operand has not the dimensions of its layout."""
    if given.ndim != len(layout):
        raise InputError(f"{op} takes {name} ({', '.join(layout)}), not an array of shape {given.shape}")


def laid_out(layout: str, w_layout: str = "") -> dict[str, AttrValue]:
    """The attributes of a call with its tensors in such a layout, by the attributes' defaults the op's own."""
    return {"layout": layout, **({"w_layout": w_layout} if w_layout else {})}


def height_1(op: str, name: str, given: Array, layout: str) -> Array:
    """An operand of one dimension, of such a layout, as one of height 1."""
    check_rank(op, name, given, layout)
    at = layout.index("X" if "X" in layout else "W")
    return given.reshape(*given.shape[:at], 1, *given.shape[at:])


def without_axis(given: Array, axis: int) -> Array:
    """A view without an axis of size 1."""
    return given.reshape((*given.shape[:axis], *given.shape[axis + 1 :]))


def in_a_row(given: Array) -> Array:
    """`numpy.ascontiguousarray` that keeps the rank; arrays on a device are so already."""
    return given if is_there(given) else np.asarray(given, order="C")


def is_there(given: object) -> bool:
    """Whether an array is on a device."""
    return isinstance(given, DeviceArray)
