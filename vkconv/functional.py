"""Single convolutions as functions, numpy arrays in and out::

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

from vkconv.core import Array, DType, InputError, UsageError, VkconvError, did_you_mean
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.activation import activation as activation_row
from vkconv.ops.calls import format_call
from vkconv.plan.single import call_graph, forcing
from vkconv.session import Session

__all__ = [
    "clear_cache",
    "conv1d",
    "conv2d",
    "conv2d_backward_weight",
    "conv2d_bias_gradient",
    "conv3d_backward_weight",
    "conv_transpose2d",
]

# One number, or one per axis; padding also by side or by name.
Sizes = SupportsIndex | Sequence[SupportsIndex]
# The name of a scalar function, or the name and its parameters: ("clip", 0.0, 6.0).
Activation = str | tuple[str, float] | tuple[str, float, float]

MAX_SESSIONS = 16
_sessions: OrderedDict[tuple[str, str | int, str | None], Session] = OrderedDict()
_lock = threading.RLock()

# How the axes of x and y lie, as the permutation to channels first and back.
_LAYOUTS_2D = {"NCHW": ((0, 1, 2, 3), (0, 1, 2, 3)), "NHWC": ((0, 3, 1, 2), (0, 2, 3, 1))}
_LAYOUTS_1D = {"NCW": ((0, 1, 2), (0, 1, 2)), "NWC": ((0, 2, 1), (0, 2, 1))}
_PADDINGS = ("same_lower", "same_upper", "valid")
# Of a gradient by the weights: how the axes of x and dy lie, channels first or last or (G, C) last, by rank.
_LAYOUTS_BACKWARD = {4: ("NCHW", "NHWC", "NHWGC"), 5: ("NCDHW", "NDHWC", "NDHWGC")}


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
    x, w, b = _operands("conv2d", x, w, b)
    return _run("conv2d", x, w, b, attrs, _layout("conv2d", layout, _LAYOUTS_2D, x), route, device)


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
    x, w, b = _operands("conv_transpose2d", x, w, b)
    layouts = _layout("conv_transpose2d", layout, _LAYOUTS_2D, x)
    return _run("conv_transpose2d", x, w, b, attrs, layouts, route, device)


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
    x, w, b = _operands("conv1d", x, w, b)
    there, back = _layout("conv1d", layout, _LAYOUTS_1D, x)
    if w.ndim != 3:
        raise InputError(f"conv1d takes w (C_out, C_in/groups, KW), not an array of shape {w.shape}")
    x, w = np.expand_dims(x.transpose(there), 2), np.expand_dims(w, 2)
    y = _run("conv2d", x, w, b, attrs, _LAYOUTS_2D["NCHW"], route, device)
    return np.ascontiguousarray(y.squeeze(2).transpose(back))


def conv2d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: float = 0.0,
    d: npt.ArrayLike | None = None,
    layout: str = "NCHW",
    route: str | None = None,
    split: int | None = None,
    policy: str | None = None,
    device: str | int | None = None,
) -> Array:
    """The gradient of conv2d by its weights, dw = scale * sum + beta * d, in f32.

    x is (N, C_in, H, W), dy is (N, C_out, OH, OW), the gradient by the output, ``w_shape`` that of the weights and of
    the result, (C_out, C_in / groups, KH, KW), as is that of the optional d. With ``layout="NHWC"`` x and dy have their
    channels last; with ``"NHWGC"`` x is (N, H, W, G, C_in / G) and dy (N, OH, OW, G, C_out / G), and w_shape, d and
    the result are (G, C_out / G, KH, KW, C_in / G).

    ``split`` is the number of parts that the sum over images and pixels is cut into, ``policy`` the rule that chooses
    it otherwise: "auto", "bands" (IREE's) or "occupancy" (composable_kernel's). Raises what `conv2d` raises.
    """
    attrs = _backward_attrs(stride, padding, dilation, groups, scale, beta, policy, split)
    return _backward_weight("conv2d_backward_weight", 4, x, dy, d, w_shape, layout, attrs, route, device)


def conv3d_backward_weight(
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    w_shape: Sequence[SupportsIndex],
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    scale: float = 1.0,
    beta: float = 0.0,
    d: npt.ArrayLike | None = None,
    layout: str = "NCDHW",
    route: str | None = None,
    split: int | None = None,
    policy: str | None = None,
    device: str | int | None = None,
) -> Array:
    """The same in three dimensions: x is (N, C_in, D, H, W), w_shape is (C_out, C_in / groups, KD, KH, KW), the layouts
    are "NCDHW", "NDHWC" and "NDHWGC". Everything else is as in `conv2d_backward_weight`."""
    attrs = _backward_attrs(stride, padding, dilation, groups, scale, beta, policy, split)
    return _backward_weight("conv3d_backward_weight", 5, x, dy, d, w_shape, layout, attrs, route, device)


def conv2d_bias_gradient(dy: npt.ArrayLike, *, layout: str = "NCHW", device: str | int | None = None) -> Array:
    """The gradient of conv2d by its bias, (C_out): the sum of dy (N, C_out, OH, OW), or with ``layout="NHWC"``
    (N, OH, OW, C_out), over images and pixels, in f32. Raises what `conv2d` raises."""
    dy = _array("conv2d_bias_gradient", "dy", dy)
    there, _ = _layout("conv2d_bias_gradient", layout, _LAYOUTS_2D, dy, "dy")
    axes = tuple(axis for axis in range(4) if axis != there[1])
    return _run_call("reduce", {"x": dy}, {"op": "sum", "axes": axes, "keepdims": False}, None, device)


def clear_cache() -> None:
    """Close the sessions that are kept, and with them release their device memory."""
    with _lock:
        while _sessions:
            _sessions.popitem()[1].close()


atexit.register(clear_cache)


def _run(
    op: str,
    x: Array,
    w: Array,
    b: Array | None,
    attrs: Mapping[str, AttrValue],
    layout: tuple[tuple[int, ...], tuple[int, ...]],
    route: str | None,
    device: str | int | None,
) -> Array:
    there, back = layout
    arrays = {"x": x.transpose(there), "w": w} | ({} if b is None else {"b": b})
    return np.ascontiguousarray(_run_call(op, arrays, attrs, route, device).transpose(back))


def _run_call(
    op: str,
    arrays: Mapping[str, Array],
    attrs: Mapping[str, AttrValue],
    route: str | None,
    device: str | int | None,
) -> Array:
    """The one output of a call, from a session that is kept for the next."""
    specs: dict[str, TensorSpec | None] = {operand.name: None for operand in OPS[op].operands if not operand.host}
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
    return y


def _backward_attrs(
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    scale: float,
    beta: float,
    policy: str | None,
    split: int | None,
) -> dict[str, AttrValue]:
    attrs = _attrs(stride, _ints("padding", padding), dilation, groups, None)
    for name, value in (("scale", scale), ("beta", beta)):
        if not isinstance(value, int | float):
            raise UsageError(f"{name} is {value!r}; it is a number")
        attrs[name] = float(value)
    if policy is not None:
        attrs["policy"] = policy
    if split is not None:
        (attrs["split"],) = _ints("split", split)
        if attrs["split"] == 0:
            raise UsageError("split is 0; it is the number of parts, or None to let the policy choose")
    return attrs


def _backward_weight(
    op: str,
    rank: int,
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    d: npt.ArrayLike | None,
    w_shape: Sequence[SupportsIndex],
    layout: str,
    attrs: dict[str, AttrValue],
    route: str | None,
    device: str | int | None,
) -> Array:
    known, shape = _LAYOUTS_BACKWARD[rank], _ints("w_shape", w_shape)
    if layout not in known:
        raise UsageError(f"{op} has no layout {layout!r}{did_you_mean(str(layout), known)}; it has {', '.join(known)}")
    arrays = {"x": _array(op, "x", x), "dy": _array(op, "dy", dy)} | ({} if d is None else {"add": _array(op, "d", d)})
    for name in ("x", "dy"):
        if arrays[name].ndim != len(layout):
            raise InputError(f"{op} takes {name} ({', '.join(layout)}), not an array of shape {arrays[name].shape}")
    if not layout.endswith("GC"):
        if layout.endswith("C"):
            arrays |= {name: np.moveaxis(arrays[name], -1, 1) for name in ("x", "dy")}
        return _run_call(op, arrays, {**attrs, "w_shape": shape}, route, device)
    if len(shape) != rank + 1 or ("add" in arrays and arrays["add"].shape != shape):
        kernel = "KD, KH, KW" if rank == 5 else "KH, KW"
        raise InputError(
            f"{op}: with {layout} w_shape, here {shape}, is (G, C_out/G, {kernel}, C_in/G), and d has it too"
        )
    groups = {arrays["x"].shape[-2], arrays["dy"].shape[-2], shape[0]}
    if len(groups) > 1 or attrs["groups"] not in (1, shape[0]):
        raise InputError(
            f"{op}: x has {arrays['x'].shape[-2]} groups, dy {arrays['dy'].shape[-2]}, w_shape {shape[0]}, and groups "
            f"is {attrs['groups']}; with {layout} they are one number"
        )
    for name in ("x", "dy"):
        moved = np.moveaxis(arrays[name], (-2, -1), (1, 2))
        arrays[name] = moved.reshape(moved.shape[0], moved.shape[1] * moved.shape[2], *moved.shape[3:])
    there = shape[0] * shape[1], shape[-1], *shape[2:-1]
    if "add" in arrays:
        arrays["add"] = np.moveaxis(arrays["add"], -1, 2).reshape(there)
    dw = _run_call(op, arrays, {**attrs, "groups": shape[0], "w_shape": there}, route, device)
    return np.ascontiguousarray(np.moveaxis(dw.reshape(*shape[:2], *there[1:]), 2, -1))


def _operands(
    op: str, x: npt.ArrayLike, w: npt.ArrayLike, b: npt.ArrayLike | None
) -> tuple[Array, Array, Array | None]:
    return _array(op, "x", x), _array(op, "w", w), None if b is None else _array(op, "b", b)


def _array(op: str, name: str, value: npt.ArrayLike) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"{op}: {name} is not an array: {error}") from None


def _layout(
    op: str, layout: str, known: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]], x: Array, name: str = "x"
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if layout not in known:
        raise UsageError(f"{op} has no layout {layout!r}{did_you_mean(str(layout), known)}; it has {', '.join(known)}")
    if x.ndim != len(layout):
        raise InputError(f"{op} takes {name} ({', '.join(layout)}), not an array of shape {x.shape}")
    return known[layout]


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
