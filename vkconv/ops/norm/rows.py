"""Normalizations by the statistics of rows: what layer_norm, instance_norm, group_norm, rms_norm and the training form
of batch_norm have in common. Their rows and parameters differ, the kernel (shaders/normalize.comp) is one."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Specs
from vkconv.ops.norm.row_programs import Defines, RowKernel
from vkconv.ops.norm.row_sets import RowSet

# As in shaders/normalize.comp: how scale and bias lie, one for each element, for each row, or for a run of elements.
Lie = Literal["element", "row", "run"]
PARAMETERS: tuple[Lie, ...] = ("element", "row", "run")
PLAIN: Defines = ()
STATISTICS: Defines = (("STATISTICS", ""),)
EPS = Attr("eps", "eps", float, 1e-5)
Wide = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """Where the scale and bias of an element lie: row % ``period`` * ``step``, and from there one for each ``run``
    elements; each element of a row has its own by default."""

    lie: Lie = "element"
    period: int = 1
    step: int = 0
    run: int = 1


def kernel(
    call: Call,
    rows: RowSet,
    parameters: Parameters,
    *,
    centred: bool = True,
    statistics: bool = False,
    running: bool = False,
) -> RowKernel:
    """The kernel of a call with ``x``, optional ``scale`` and ``bias`` and the attribute ``eps``. ``statistics`` are
    written as well: the mean and 1 / sqrt(var + eps) of each row, or if ``running`` the operands ``mean`` and ``var``
    moved towards the row's."""
    buffers: dict[str, str | None] = {"x": "x", **{k: k if call.has(k) else None for k in ("scale", "bias")}}
    if statistics:
        old = ("mean", "var") if running else (None, None)
        buffers |= zip(("old_mean", "old_variance"), old, strict=True)
    return RowKernel(
        rows,
        {**buffers, **dict(zip(("y", "mean_made", "deviation_made"), call.outputs, strict=False))},
        push={
            "parameter_period": parameters.period,
            "parameter_step": parameters.step,
            "parameter_run": max(1, parameters.run),
            "eps": float(call["eps"]),
            "momentum": float(call["momentum"]) if running else 0.0,
        },
        constants={
            "CENTRED": centred,
            "HAS_SCALE": call.has("scale"),
            "HAS_BIAS": call.has("bias"),
            "PARAMETERS": PARAMETERS.index(parameters.lie),
            "RUNNING": running,
        },
        defines=STATISTICS if statistics else PLAIN,
        passes=5,  # mean and variance, both again of a row out of range, quotients
        part_words=4,
        kind="statistics",
        by_vec4=parameters.lie != "run" or parameters.run % 4 == 0,
    )


def checked(op: str, specs: Specs, attrs: Attrs) -> tuple[TensorSpec, float]:
    """x and the attribute eps; GraphError where x is no float or eps nothing that may be added to a variance."""
    x = shapes.float_operand(specs, "x", op)
    eps = shapes.held_in(op, "eps", float(str(attrs["eps"])), x.dtype)
    if not (eps >= 0 and math.isfinite(eps)):
        raise GraphError(f"{op}: eps is {eps}; it must be finite and 0 or more")
    return x, eps


def channels_of(op: str, x: TensorSpec) -> int:
    """The extent of dimension 1."""
    if len(x.dims) < 2:
        raise GraphError(f"{op}: x is {shape_str(x.dims)}; it needs n and c dimensions at least")
    return x.dims[1]


def check_vectors(op: str, specs: Specs, names: Sequence[str], lengths: Mapping[int, str]) -> None:
    """GraphError unless the named operands that are there are vectors of one of the lengths, all of one, and of the
    element type of x."""
    x = shapes.operand(specs, "x", op)
    named = {name: spec for name in names for spec in [specs.get(name)] if spec is not None}
    shapes.same_dtype(op, {"x": x, **named})
    for name, spec in named.items():
        if len(spec.dims) != 1 or spec.dims[0] not in lengths:
            wants = " or ".join(f"{length}, one for each {what}" for length, what in lengths.items())
            raise GraphError(f"{op}: {name} is {shape_str(spec.dims)}; it is {wants} of x {shape_str(x.dims)}")
    if len({spec.dims for spec in named.values()}) > 1:
        text = " and ".join(f"{name} {shape_str(spec.dims)}" for name, spec in named.items())
        raise GraphError(f"{op}: {text} differ in shape")


def normalized(x: Wide, axes: tuple[int, ...], eps: float, *, centred: bool = True) -> tuple[Wide, Wide, Wide]:
    """By definition: (x - mean) / sqrt(var + eps), the mean and the variance, in float64, reduced axes kept."""
    count = math.prod(x.shape[a] for a in axes)
    with np.errstate(all="ignore"):
        mean = np.sum(x, axis=axes, keepdims=True) / np.float64(count)
        apart = x - mean if centred else x
        variance = np.sum(apart**2, axis=axes, keepdims=True) / np.float64(count)
        return np.asarray(apart / np.sqrt(variance + eps)), np.asarray(mean), np.asarray(variance)


def sizes_in_mean(x: Wide, axes: tuple[int, ...]) -> Wide:
    """What the mean of x has for addends, in size: the elements, and how far each is from the mean, of which the
    kernels add the mean."""
    count = np.float64(math.prod(x.shape[a] for a in axes))
    with np.errstate(all="ignore"):
        mean = np.sum(x, axis=axes, keepdims=True) / count
        return np.asarray(np.sum(np.abs(x) + np.abs(x - mean), axis=axes, keepdims=True) / count)


def scaled(y: Wide, arrays: Arrays, shape: Sequence[int]) -> Wide:
    """y * scale + bias, each where it is there, in a shape that broadcasts."""
    scale, bias = (arrays.get(name) for name in ("scale", "bias"))
    with np.errstate(all="ignore"):
        y = y if scale is None else y * scale.astype(np.float64).reshape(shape)
        return y if bias is None else y + bias.astype(np.float64).reshape(shape)
