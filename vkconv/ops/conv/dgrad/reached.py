"""conv2d_backward_data by the elements of x that windows reach, in zeros: a negative padding crops others, and where
stride and dilation have a common divisor, others lie between."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Self

from vkconv.call import Call
from vkconv.core import ceil_div, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.dgrad.as_conv import KEEPS_ZEROS_IF_HALF
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.epilogue import NO_EPILOGUE, Epilogue, keeps_zeros
from vkconv.ops.kernels.strided import STRIDED_COPY, walk_defaults
from vkconv.ops.kernels.zero_insertion import FILL_SCATTER, GATHER, GATHER_EPILOGUE, Insertion, gathers
from vkconv.program import Composite, Dispatch, Inner
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub

_REACHED = "reached"
NO_CROP_BEFORE = Requirement.of(
    "no negative padding at the top and left",
    lambda call: call["padding"][:2],
    lambda padding: min(padding) >= 0,
    shape_str,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Reached:
    """Along one axis the ``count`` elements of x from ``first`` on, ``step`` apart, that windows reach, and the
    gradient by these alone: its stride, dilation and padding at both ends."""

    first: int
    step: int
    count: int
    stride: int
    dilation: int
    padding: tuple[int, int]

    @classmethod
    def of(cls, extent: int, kernel: int, stride: int, dilation: int, begin: int, end: int) -> Self:
        """Those of an axis of a call: at multiples of ``step``, counted from the first window on."""
        step = math.gcd(stride, dilation) if kernel > 1 else stride
        left, right = max(-begin, 0), extent - max(-end, 0)
        first = left + -(left + begin) % step
        count = max(0, ceil_div(right - first, step))
        before = (first + begin) // step
        after = ceil_div(begin + extent + end, step) - before - count
        return cls(first, step, count, stride // step, dilation // step if kernel > 1 else 1, (before, after))


def reached(call: Call) -> tuple[Reached, Reached]:
    """Both axes of a call, h before w."""
    pads = call["padding"]
    lists = (call.shape("dx")[2:], call.shape("w")[2:], call["stride"], call["dilation"], pads[:2], pads[2:])
    h, w = (Reached.of(*values) for values in zip(*lists, strict=True))
    return h, w


def insertion(call: Call) -> Insertion:
    """What is reached of dx, in zeros."""
    h, w = reached(call)
    n, c, *_ = dx = call.shape("dx")
    return Insertion((n, c, h.count, w.count), dx, (0, 0, h.first, w.first), (1, 1, h.step, w.step))


def as_reached(call: Call) -> Call:
    """The gradient by what is reached of x, with bias and activation where these keep the zeros around it."""
    h, w = reached(call)
    shape = (*call.shape("dx")[:2], h.count, w.count)
    padding = (h.padding[0], w.padding[0], h.padding[1], w.padding[1])
    strides = {"stride": (h.stride, w.stride), "dilation": (h.dilation, w.dilation)}
    attrs = {**call.attrs, **strides, "padding": padding, "x_shape": shape}
    operands = dict(call.operands)
    if not keeps_zeros(call):
        attrs |= NO_EPILOGUE
        operands |= {"b": None, "slope": None}
    outputs = {"dx": TensorSpec(shape, call.outputs["dx"].dtype)}
    return dataclasses.replace(call, operands=operands, outputs=outputs, attrs=attrs)


def _build(call: Call, device: Device, params: Params) -> Composite:
    zeros, e = insertion(call), Epilogue.of(call, device, target="dx")
    if not keeps_zeros(call):
        around: tuple[Dispatch, ...] = (
            zeros.gather_finished(device, walk_defaults(device), _REACHED, e, call.shape("dx")[1]),
        )
    elif params["gather"]:
        around = (zeros.gather(device, walk_defaults(device), _REACHED, "dx"),)
    else:
        around = zeros.fill_scatter(device, walk_defaults(device), _REACHED, "dx")
    scratch = {_REACHED: 4 * math.prod(zeros.x)}
    made = Composite((Inner(_REACHED, {"dx": _REACHED}), *around), scratch=scratch, elements=frozenset(scratch))
    return made if keeps_zeros(call) else e.complete(made, call.shape("dx"), device)


def _params(call: Call, device: Device) -> Legal:
    if not keeps_zeros(call):
        return {"gather": (1,)}
    gather = int(gathers(insertion(call), device))
    return {"gather": (gather, 1 - gather)}


def _crops(call: Call) -> bool:
    return bool(min(call["padding"]) < 0)


def _said(call: Call) -> str:
    steps = shape_str([axis.step for axis in reached(call)])
    return f"padding {shape_str(call['padding'])}, elements {steps} apart"


def _leaves_some(call: Call) -> bool:
    """Whether there is more of x than windows reach: of a 1x1 kernel, by cropping, as swap_1x1 takes the others."""
    between = any(axis.step > 1 for axis in reached(call)) and call.shape("w")[2:] != (1, 1)
    return _crops(call) or between


SOME = Requirement(
    "a negative padding, or a kernel larger than 1x1 and elements of x between those that windows reach; some of these",
    lambda call, device: _leaves_some(call) and all(axis.count for axis in reached(call)),
    lambda call, device: f"{shape_str(call.shape('w')[2:])}, {_said(call)}",
)


def by_reached(routes: tuple[Route, ...], pays: Requirement) -> Route:
    """The route that makes the gradient by what is reached of x by one of these. Without a negative padding others
    take such calls in one launch: it ``pays`` to be without their empty phases."""

    def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
        return {_REACHED: Sub(as_reached(call), routes)}

    return Route(
        "reached",
        _build,
        tuple(
            dict.fromkeys(
                (GATHER, GATHER_EPILOGUE, *FILL_SCATTER, STRIDED_COPY, *(s for route in routes for s in route.shaders))
            )
        ),
        why="the gradient by what a negative padding leaves of x, and of that by what windows reach, by the best route "
        "for its stride and dilation without their common divisor, and zeros put around and between",
        must=(FLOATS, SOME, KEEPS_ZEROS_IF_HALF),
        prefer=(
            Requirement(
                f"a negative padding, or a dilation of whole strides and {pays.text}",
                lambda call, device: (
                    _crops(call) or (all(axis.stride == 1 for axis in reached(call)) and pays.test(call, device))
                ),
                lambda call, device: f"{_said(call)}; {pays.actual(call, device)}",
            ),
        ),
        params=_params,
        inner=inner,
    )
