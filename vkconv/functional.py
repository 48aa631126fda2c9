"""Single convolutions, and what they are made of, as functions, numpy arrays in and out::

    from vkconv import functional

    y = functional.conv2d(x, w, b, stride=2, padding=1, activation="relu")

Each takes an optional ``route`` to force and a ``device`` as `vkconv.load` does, and raises a VkconvError for
what it cannot do, before anything runs. The sessions of the last few distinct calls are kept, so that a second call
with the same shapes plans, allocates and compiles nothing; weights go to the device and are packed at every call.
A model, or weights that stay, want `vkconv.load`.
"""

import atexit
import operator
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from vkconv.core import Array, DType, GraphError, InputError, UsageError, VkconvError, did_you_mean
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.activation import activation as activation_row
from vkconv.ops.calls import format_call
from vkconv.plan.single import call_graph, forcing
from vkconv.session import Session

__all__ = ["clear_cache", "conv1d", "conv2d", "conv2d_backward_data", "conv_transpose2d", "scatter_strided"]

# One number, or one per axis; padding also by side or by name.
Sizes = SupportsIndex | Sequence[SupportsIndex]
# The name of a scalar function, or the name and its parameters: ("clip", 0.0, 6.0).
Activation = str | tuple[str, float] | tuple[str, float, float]

MAX_SESSIONS = 16
_sessions: OrderedDict[tuple[str, str | int, str | None], Session] = OrderedDict()
_lock = threading.RLock()

# How the axes of x and y lie, as the permutation to channels first and back.
_Axes = tuple[tuple[int, ...], tuple[int, ...]]
_LAYOUTS_2D: Mapping[str, _Axes] = {"NCHW": ((0, 1, 2, 3), (0, 1, 2, 3)), "NHWC": ((0, 3, 1, 2), (0, 2, 3, 1))}
_LAYOUTS_1D: Mapping[str, _Axes] = {"NCW": ((0, 1, 2), (0, 1, 2)), "NWC": ((0, 2, 1), (0, 2, 1))}
_LAYOUTS_BACKWARD: Mapping[str, _Axes] = {**_LAYOUTS_2D, "NHWGC": ((0, 3, 4, 1, 2), (0, 3, 4, 1, 2))}
_PADDINGS = ("same_lower", "same_upper", "valid")


def conv2d(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    activation: Activation | None = None,
    layout: str = "NCHW",
    route: str | None = None,
    device: str | int | None = None,
) -> Array:
    """2-D convolution as networks define it (cross-correlation), in f32.

    x is (N, C_in, H, W), w is (C_out, C_in / groups, KH, KW), b is (C_out), the result (N, C_out, OH, OW) with
    OH = floor((H + padding - dilation (KH - 1) - 1) / stride) + 1. With ``layout="NHWC"`` x and the result have
    their channels last; w stays as it is. ``stride`` and ``dilation`` are one number or (h, w); ``padding`` is one,
    (h, w), (top, left, bottom, right) or one of "valid", "same_upper" and "same_lower"; ``activation`` is the name of
    a scalar function of ``vkconv ops``, or a tuple of that and its parameters.

    Raises InputError for what is no array or has the wrong rank, GraphError for shapes, dtypes and numbers that do not
    go together, UsageError for names that do not exist, RouteError for a forced route that cannot take the call,
    LimitError for what the device cannot hold, DeviceError for the device.
    """
    attrs = _attrs(stride, padding, dilation, groups, activation)
    arrays = _arrays("conv2d", x=x, w=w, b=b)
    return _run("conv2d", arrays, attrs, _layout("conv2d", layout, _LAYOUTS_2D, arrays), route, device)


def conv_transpose2d(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    activation: Activation | None = None,
    layout: str = "NCHW",
    route: str | None = None,
    device: str | int | None = None,
) -> Array:
    """2-D transposed convolution, the gradient of conv2d by its input, in f32.

    x is (N, C_in, H, W), w is (C_in, C_out / groups, KH, KW), b is (C_out), the result (N, C_out, OH, OW) with
    OH = (H - 1) stride - padding + dilation (KH - 1) + output_padding + 1. ``output_padding`` is one number or (h, w),
    smaller than the stride or the dilation. Everything else is as in `conv2d`.
    """
    attrs = _attrs(stride, padding, dilation, groups, activation)
    attrs["output_padding"] = _ints("output_padding", output_padding)
    arrays = _arrays("conv_transpose2d", x=x, w=w, b=b)
    layouts = _layout("conv_transpose2d", layout, _LAYOUTS_2D, arrays)
    return _run("conv_transpose2d", arrays, attrs, layouts, route, device)


def conv2d_backward_data(
    dy: npt.ArrayLike,
    w: npt.ArrayLike,
    x_shape: Sequence[SupportsIndex],
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: str = "NCHW",
    route: str | None = None,
    device: str | int | None = None,
) -> Array:
    """The gradient of conv2d by its input, in f32: of a loss by x, where dy is that by the output.

    dy is (N, C_out, OH, OW), w is (C_out, C_in / groups, KH, KW) as it was forward, and so are ``stride``, ``padding``,
    ``dilation`` and ``groups``. The result has the shape of x, ``x_shape``: (N, C_in, H, W), or only (H, W). It is what
    ``torch.nn.grad.conv2d_input(x_shape, w, dy, ...)`` gives.

    With ``layout="NHWC"`` dy, a whole ``x_shape`` and the result have their channels last; w stays as it is. With
    ``layout="NHWGC"`` they have their groups apart, (N, OH, OW, groups, C_out / groups), and w is "GKYXC", (groups,
    C_out / groups, KH, KW, C_in / groups); ``groups`` may be left out. Everything else is as in `conv2d`.
    """
    name = "conv2d_backward_data"
    arrays = _arrays(name, dy=dy, w=w)
    there, back = _layout(name, layout, _LAYOUTS_BACKWARD, arrays)
    shape = _ints("x_shape", x_shape)
    if len(shape) not in (2, len(layout)):
        raise UsageError(f"x_shape is {shape}; with the layout {layout} it is (H, W) or ({', '.join(layout)})")
    if len(shape) > 2:
        shape = tuple(shape[axis] for axis in there)
    if layout == "NHWGC":
        groups = _grouped(arrays, groups, shape)
        shape = shape if len(shape) == 2 else (shape[0], shape[1] * shape[2], *shape[3:])
    attrs = _attrs(stride, padding, dilation, groups, None) | {"x_shape": shape}
    if layout != "NHWGC":
        return _run(name, arrays, attrs, (there, back), route, device)
    n, g, c, *extents = arrays["dy"].transpose(there).shape
    arrays["dy"] = arrays["dy"].transpose(there).reshape(n, g * c, *extents)
    dx = _run(name, arrays, attrs, _LAYOUTS_2D["NCHW"], route, device)
    return np.ascontiguousarray(dx.reshape(n, g, arrays["w"].shape[1], *dx.shape[2:]).transpose(back))


def conv1d(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    stride: SupportsIndex = 1,
    padding: Sizes | str = 0,
    dilation: SupportsIndex = 1,
    groups: int = 1,
    activation: Activation | None = None,
    layout: str = "NCW",
    route: str | None = None,
    device: str | int | None = None,
) -> Array:
    """1-D convolution, as a conv2d of height 1.

    x is (N, C_in, W), w is (C_out, C_in / groups, KW), b is (C_out), the result (N, C_out, OW). ``padding`` is one
    number, (left, right) or a name; with ``layout="NWC"`` x and the result have their channels last. Everything else
    is as in `conv2d`.
    """
    pads: tuple[int, ...] | str = padding if isinstance(padding, str) else _ints("padding", padding)
    if isinstance(pads, tuple):
        if len(pads) not in (1, 2):
            raise UsageError(f"padding is {padding!r}; conv1d takes one number or (left, right)")
        pads = (0, pads[0], 0, pads[-1])
    one = {"stride": _ints("stride", stride), "dilation": _ints("dilation", dilation)}
    for name, values in one.items():
        if len(values) != 1:
            raise UsageError(f"{name} is {values}; conv1d takes one number")
    attrs = _attrs((1, *one["stride"]), pads, (1, *one["dilation"]), groups, activation)
    arrays = _arrays("conv1d", x=x, w=w, b=b)
    there, back = _layout("conv1d", layout, _LAYOUTS_1D, arrays)
    if arrays["w"].ndim != 3:
        raise InputError(f"conv1d takes w (C_out, C_in/groups, KW), not an array of shape {arrays['w'].shape}")
    arrays |= {"x": np.expand_dims(arrays["x"].transpose(there), 2), "w": np.expand_dims(arrays["w"], 2)}
    y = _run("conv2d", arrays, attrs, _LAYOUTS_2D["NCHW"], route, device)
    return np.ascontiguousarray(y.squeeze(2).transpose(back))


def scatter_strided(
    x: npt.ArrayLike,
    shape: Sequence[SupportsIndex],
    offset: Sizes = 0,
    stride: Sizes = 1,
    route: str | None = None,
    device: str | int | None = None,
) -> Array:
    """Zeros of ``shape`` with element i of x at ``offset`` + i ``stride`` along each dimension.

    x has 1 to 5 dimensions, f32, i32 or u32; ``shape`` has as many. ``offset`` and ``stride`` are one number or one per
    dimension; a stride is at least 1, and what an offset, which may be negative, moves out of the shape is dropped.
    Raises as `conv2d` does.
    """
    arrays = _arrays("scatter_strided", x=x)
    attrs = {"shape": _ints("shape", shape), "offset": _ints("offset", offset), "stride": _ints("stride", stride)}
    as_it_is = tuple(range(arrays["x"].ndim))
    return _run("scatter_strided", arrays, attrs, (as_it_is, as_it_is), route, device)


def clear_cache() -> None:
    """Close the sessions that are kept, and with them release their device memory."""
    with _lock:
        while _sessions:
            _sessions.popitem()[1].close()


atexit.register(clear_cache)


def _run(
    op: str,
    arrays: Mapping[str, Array],
    attrs: Mapping[str, AttrValue],
    layout: _Axes,
    route: str | None,
    device: str | int | None,
) -> Array:
    """The output of an op whose first operand and output lie in ``layout``."""
    there, back = layout
    specs: dict[str, TensorSpec | None] = {operand.name: None for operand in OPS[op].operands}
    first = next(iter(specs))
    arrays = {**arrays, first: arrays[first].transpose(there)}
    for name, array in arrays.items():
        specs[name] = TensorSpec(array.shape, DType.of(array.dtype))
    call = OPS[op].call(specs, attrs)
    where = "auto" if device is None else device
    key = format_call(call, OPS), where, route
    with _lock:
        session = _sessions.pop(key, None)
        if session is None:
            session = Session(call_graph(call), where, options=forcing(route))
        try:
            (y,) = session.run(arrays).values()
        except VkconvError:
            session.close()  # a device that failed once does not come back
            raise
        _sessions[key] = session
        while len(_sessions) > MAX_SESSIONS:
            _sessions.popitem(last=False)[1].close()
    return np.ascontiguousarray(y.transpose(back))


def _arrays(op: str, **operands: npt.ArrayLike | None) -> dict[str, Array]:
    """The operands as arrays, without those that are None and need not be there."""
    arrays: dict[str, Array] = {}
    for name, value in operands.items():
        if value is None and name == "b":
            continue
        try:
            arrays[name] = np.asarray(value)
        except ValueError as error:
            raise InputError(f"{op}: {name} is not an array: {error}") from None
    return arrays


def _layout(op: str, layout: str, known: Mapping[str, _Axes], arrays: Mapping[str, Array]) -> _Axes:
    if layout not in known:
        raise UsageError(f"{op} has no layout {layout!r}{did_you_mean(str(layout), known)}; it has {', '.join(known)}")
    name, first = next(iter(arrays.items()))
    if first.ndim != len(layout):
        raise InputError(f"{op} takes {name} ({', '.join(layout)}), not an array of shape {first.shape}")
    return known[layout]


def _grouped(arrays: dict[str, Array], groups: int, x_shape: tuple[int, ...]) -> int:
    """The groups of dy (N, OH, OW, G, C) and w (G, K, Y, X, C); w becomes (G K, C, Y, X). ``x_shape`` has its groups
    second where it is whole."""
    w, has = arrays["w"], arrays["dy"].shape[3]
    if w.ndim != 5 or w.shape[0] != has:
        raise InputError(
            f"with the layout NHWGC w is (G, K, Y, X, C) of {has} groups as dy has, not of shape {w.shape}"
        )
    if groups not in (1, has) or (len(x_shape) == 5 and x_shape[1] != has):
        whole = f", and in x_shape {x_shape[1]}" if len(x_shape) == 5 else ""
        raise GraphError(f"dy and w have {has} groups, but groups is {groups}{whole}")
    arrays["w"] = w.transpose(0, 1, 4, 2, 3).reshape(has * w.shape[1], w.shape[4], *w.shape[2:4])
    return has


def _attrs(
    stride: Sizes, padding: Sizes | str, dilation: Sizes, groups: int, activation: Activation | None
) -> dict[str, AttrValue]:
    attrs: dict[str, AttrValue] = {"stride": _ints("stride", stride), "dilation": _ints("dilation", dilation)}
    (attrs["groups"],) = _ints("groups", groups)
    if not isinstance(padding, str):
        attrs["padding"] = _ints("padding", padding)
    elif padding in _PADDINGS:
        attrs["auto_pad"] = padding
    else:
        raise UsageError(
            f"padding is {padding!r}{did_you_mean(padding, _PADDINGS)}; it is numbers or one of {', '.join(_PADDINGS)}"
        )
    if activation is not None:
        attrs |= _activation(activation)
    return attrs


def _activation(activation: Activation) -> dict[str, AttrValue]:
    if not activation:
        raise UsageError("activation is empty; give a name, or None for none")
    name, *values = (activation,) if isinstance(activation, str) else activation
    if not isinstance(name, str) or not all(isinstance(v, int | float) for v in values):
        raise UsageError(f"activation is {activation!r}; it is a name, or a tuple of a name and numbers")
    needs = activation_row(name).params
    if len(values) != len(needs):
        takes = f"({', '.join([repr(name), *needs])})" if needs else repr(name)
        raise UsageError(f"activation is {activation!r}; with its parameters it is {takes}")
    parameters = zip("ab", values, strict=False)
    return {"act": name, **{f"act_{key}": float(value) for key, value in parameters}}


def _ints(name: str, value: Sizes) -> tuple[int, ...]:
    try:
        if isinstance(value, Iterable):
            return tuple(map(operator.index, value))
        return (operator.index(value),)
    except TypeError:
        raise UsageError(f"{name} is {value!r}; it is an integer, or a sequence of integers") from None
