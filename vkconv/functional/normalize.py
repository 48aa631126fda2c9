"""Softmax and normalizations as functions."""

from __future__ import annotations  # help() shows npt.ArrayLike, not what it stands for

from collections.abc import Mapping
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from vkconv.backend.given import flag
from vkconv.core import Array, InputError
from vkconv.functional.arguments import array, number, one_int
from vkconv.functional.cache import run_all
from vkconv.graph.ir import AttrValue


def softmax(
    x: npt.ArrayLike,
    axis: SupportsIndex = -1,
    *,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """exp(x - max) / sum exp(x - max) along ``axis``, in the shape of x.

    A row that holds NaN or +inf, or nothing but -inf, becomes NaN. Raises InputError for what is no array, GraphError
    for shapes, dtypes and numbers that do not go together, RouteError for a forced route that cannot take the call,
    UsageError for names that do not exist, LimitError for what the device cannot hold, DeviceError for the device.
    """
    return _run("softmax", {"x": x}, {"axis": one_int("axis", axis)}, route, device, out)[0]


def log_softmax(
    x: npt.ArrayLike,
    axis: SupportsIndex = -1,
    *,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The logarithm of `softmax`, x - max - log sum exp(x - max): finite also where that has become 0."""
    return _run("softmax", {"x": x}, {"axis": one_int("axis", axis), "log": True}, route, device, out)[0]


def layer_norm(
    x: npt.ArrayLike,
    scale: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    *,
    axis: SupportsIndex = -1,
    eps: float = 1e-5,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """(x - mean) / sqrt(var + eps) * scale + bias with the mean and the variance over the dimensions from ``axis`` on.
    ``scale`` and ``bias`` have the shape of those dimensions. Raises what `softmax` raises."""
    return _run("layer_norm", {"x": x, "scale": scale, "bias": bias}, _trailing(axis, eps), route, device, out)[0]


def rms_norm(
    x: npt.ArrayLike,
    scale: npt.ArrayLike | None = None,
    *,
    axis: SupportsIndex = -1,
    eps: float = 1e-5,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """x / sqrt(mean of x^2 + eps) * scale over the dimensions from ``axis`` on; everything else as in `layer_norm`."""
    return _run("rms_norm", {"x": x, "scale": scale}, _trailing(axis, eps), route, device, out)[0]


def instance_norm(
    x: npt.ArrayLike,
    scale: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """(x - mean) / sqrt(var + eps) * scale + bias with the mean and the variance of each channel of each image.
    x is (N, C, ...), ``scale`` and ``bias`` are (C). Raises what `softmax` raises."""
    operands = {"x": x, "scale": scale, "bias": bias}
    return _run("instance_norm", operands, {"eps": number("eps", eps)}, route, device, out)[0]


def group_norm(
    x: npt.ArrayLike,
    groups: SupportsIndex,
    scale: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array:
    """The same with the mean and the variance of each of ``groups`` groups of channels of each image. ``scale`` and
    ``bias`` are (C), or (groups) with one number for all channels of a group."""
    attrs = {"groups": one_int("groups", groups), "eps": number("eps", eps)}
    return _run("group_norm", {"x": x, "scale": scale, "bias": bias}, attrs, route, device, out)[0]


def batch_norm(
    x: npt.ArrayLike,
    mean: npt.ArrayLike,
    var: npt.ArrayLike,
    scale: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    *,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    route: str | None = None,
    device: str | int | None = None,
    out: str = "host",
) -> Array | tuple[Array, Array, Array]:
    """(x - mean) / sqrt(var + eps) * scale + bias per channel. x is (N, C, ...), the others are (C).

    With ``training`` mean and variance are those of the batch, and the result is y, the running mean and the running
    variance: mean * momentum + batch mean * (1 - momentum), and likewise var, with the variance of the population, as
    ONNX has it (in torch ``momentum`` is the factor of the batch). Raises what `softmax` raises.
    """
    training = flag("training", training)
    op = "batch_norm_training" if training else "batch_norm"
    images = array(op, "x", x)
    if images.ndim < 2:
        raise InputError(f"{op} takes x (N, C, ...), not an array of shape {images.shape}")
    channels = images.shape[1]
    operands = {
        "x": images,
        "scale": np.ones(channels, images.dtype) if scale is None else scale,
        "bias": np.zeros(channels, images.dtype) if bias is None else bias,
        "mean": mean,
        "var": var,
    }
    attrs: dict[str, AttrValue] = {"eps": number("eps", eps)}
    if not training:
        return _run(op, operands, attrs, route, device, out)[0]
    attrs["momentum"] = number("momentum", momentum)
    y, running_mean, running_var = _run(op, operands, attrs, route, device, out)
    return y, running_mean, running_var


def _trailing(axis: SupportsIndex, eps: float) -> dict[str, AttrValue]:
    return {"axis": one_int("axis", axis), "eps": number("eps", eps)}


def _run(
    op: str,
    operands: Mapping[str, npt.ArrayLike | None],
    attrs: Mapping[str, AttrValue],
    route: str | None,
    device: str | int | None,
    out: str,
) -> tuple[Array, ...]:
    arrays = {name: array(op, name, value) for name, value in operands.items() if value is not None}
    return run_all(op, arrays, attrs, route, device, out=out)
