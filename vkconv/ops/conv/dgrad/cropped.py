"""conv2d_backward_data where a negative padding crops x: the gradient of what is left of x, in zeros."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.dgrad.as_conv import KEEPS_ZEROS_IF_HALF
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.epilogue import NO_EPILOGUE, Epilogue, keeps_zeros
from vkconv.ops.kernels.strided import STRIDED_COPY
from vkconv.ops.kernels.zero_insertion import FILL_SCATTER, GATHER, GATHER_EPILOGUE, Insertion, gathers
from vkconv.program import Composite, Dispatch, Inner
from vkconv.route import Legal, Params, Requirement, Route, Sub

_COPY: Params = {"local": 64, "items": 8}
_LEFT = "left"
CROPS = Requirement.of(
    "a negative padding",
    lambda call: call["padding"],
    lambda padding: min(padding) < 0,
    lambda padding: shape_str(padding),
)
NO_CROP_BEFORE = Requirement.of(
    "no negative padding at the top and left",
    lambda call: call["padding"][:2],
    lambda padding: min(padding) >= 0,
    shape_str,
)


def _insertion(call: Call) -> Insertion:
    """What is left of dx, in the zeros that were cropped."""
    t, left, b, r = (max(-pad, 0) for pad in call["padding"])
    n, c, h, w = call.shape("dx")
    return Insertion((n, c, h - t - b, w - left - r), (n, c, h, w), (0, 0, t, left), (1, 1, 1, 1))


def as_left(call: Call) -> Call:
    """The gradient by what is left of x, with bias and activation where these keep the zeros around it."""
    shape = tuple(_insertion(call).x)
    attrs = {**call.attrs, "padding": tuple(max(pad, 0) for pad in call["padding"]), "x_shape": shape}
    operands = dict(call.operands)
    if not keeps_zeros(call):
        attrs |= NO_EPILOGUE
        operands |= {"b": None, "slope": None}
    outputs = {"dx": TensorSpec(shape, call.outputs["dx"].dtype)}
    return dataclasses.replace(call, operands=operands, outputs=outputs, attrs=attrs)


def _build(call: Call, device: Device, params: Params) -> Composite:
    insertion, e = _insertion(call), Epilogue.of(call, device, target="dx")
    if not keeps_zeros(call):
        around: tuple[Dispatch, ...] = (insertion.gather_finished(device, _COPY, _LEFT, e, call.shape("dx")[1]),)
    elif params["gather"]:
        around = (insertion.gather(device, _COPY, _LEFT, "dx"),)
    else:
        around = insertion.fill_scatter(device, _COPY, _LEFT, "dx")
    scratch = {_LEFT: 4 * math.prod(insertion.x)}
    made = Composite((Inner(_LEFT, {"dx": _LEFT}), *around), scratch=scratch, elements=frozenset(scratch))
    return made if keeps_zeros(call) else e.complete(made, call.shape("dx"), device)


def _params(call: Call, device: Device) -> Legal:
    if not keeps_zeros(call):
        return {"gather": (1,)}
    gather = int(gathers(_insertion(call), device))
    return {"gather": (gather, 1 - gather)}


def cropped(routes: tuple[Route, ...]) -> Route:
    """The route that makes the gradient by what is left of x by one of these."""

    def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
        return {_LEFT: Sub(as_left(call), routes)}

    return Route(
        "cropped",
        _build,
        tuple(
            dict.fromkeys(
                (GATHER, GATHER_EPILOGUE, *FILL_SCATTER, STRIDED_COPY, *(s for route in routes for s in route.shaders))
            )
        ),
        why="the gradient by what a negative padding leaves of x, by the best route for that, and zeros put around it",
        must=(FLOATS, CROPS, KEEPS_ZEROS_IF_HALF),
        params=_params,
        inner=inner,
    )
