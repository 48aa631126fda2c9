"""The routes of resize: one pass over planes, or one along each axis."""

import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div, shape_str
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.strided import dispatch_each, walk_params
from vkconv.ops.spatial.resize_geometry import MODES, kernel, passes, resized, rounding
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

RESIZE_SHADER, RESAMPLE_SHADER = Shader(shaders.spatial.RESIZE), Shader(shaders.spatial.RESAMPLE)
_FRACTION = ("step", "offset", "unit")  # of a coordinate, as the shaders name its integers


def _planar_program(call: Call, device: Device, params: Params) -> Program:
    x = call.shape("x")
    axes = resized(call.attrs, x)[2:]
    rows = [axis.integers(rounding(call.attrs)) for axis in axes]
    sources, targets = x[2:], call.shape("y")[2:]
    if len(x) == 3:
        rows, sources, targets = [(0, 0, 1), *rows], (1, *sources), (1, *targets)
    planes = x[0] * x[1]
    invocations = targets[0] * targets[1] * ceil_div(planes, params["items"])
    push = {
        **{"invocations": invocations, "planes": planes},
        **dict(zip(("in_h", "in_w", "out_h", "out_w"), (*sources, *targets), strict=True)),
    }
    for axis, row in zip("yx", rows, strict=True):
        push |= {f"{name}_{axis}": n for name, n in zip(_FRACTION, row, strict=True)}
    constants = {"ITEMS": params["items"], "LINEAR": call["mode"] == "linear"}
    return Program((dispatch_each(RESIZE_SHADER, invocations, device, params, push, constants),))


def _is_planar(call: Call) -> bool:
    x = call.shape("x")
    plain = not (call["antialias"] or call["exclude_outside"]) and call["coordinate"] != "tf_crop_and_resize"
    return (
        call["mode"] != "cubic"
        and plain
        and len(x) in (3, 4)
        and all(axis.is_identity for axis in resized(call.attrs, x)[:2])
    )


PLANAR = Requirement(
    "nearest or linear sampling of one or two spatial dimensions, all of it inside",
    lambda call, device: _is_planar(call),
    lambda call, device: (
        f"{call['mode']} of {shape_str(call.shape('x'))} to {shape_str(call.shape('y'))}, "
        f"{call['coordinate']}{', antialias' if call['antialias'] else ''}"
        f"{', exclude_outside' if call['exclude_outside'] else ''}"
    ),
)


def _axis_program(call: Call, device: Device, params: Params) -> Program:
    dims = list(call.shape("x"))
    steps: list[Dispatch] = []
    scratch: dict[str, int] = {}
    axes, source = passes(call), "x"
    for number, (i, axis) in enumerate(axes):
        target = "y" if number == len(axes) - 1 else f"pass{number}"
        dims[i] = axis.n_out
        if target != "y":
            scratch[target] = 4 * math.prod(dims)
        first, taps, squeeze = kernel(call, axis)
        total, inner, excluding = math.prod(dims), math.prod(dims[i + 1 :]), bool(call["exclude_outside"])
        push = {
            **{"total": total, "n_in": axis.n_in, "n_out": axis.n_out, "inner": inner},
            **dict(zip(_FRACTION, axis.integers(rounding(call.attrs)), strict=True)),
            **{"first": first, "taps": taps, "squeeze": squeeze, "a": call["cubic_a"], "beyond": call["beyond"]},
        }
        constants = {
            "MODE": MODES.index(call["mode"]),
            "EXCLUDE_OUTSIDE": excluding,
            "NORMALIZE": excluding or bool(call["antialias"]),
            "EXTRAPOLATE": call["coordinate"] == "tf_crop_and_resize",
        }
        buffers = {"x": source, "y": target}
        steps.append(dispatch_each(RESAMPLE_SHADER, total, device, params, push, constants, buffers, taps))
        source = target
    return Program(tuple(steps), scratch=scratch)


ROUTES: tuple[Route, ...] = (
    Route(
        "gather",
        _planar_program,
        (RESIZE_SHADER,),
        "each invocation computes one pixel's sources once, in integers, and serves several planes",
        must=(FLOATS, PLANAR),
        params=walk_params,
    ),
    Route(
        "axis_passes",
        _axis_program,
        (RESAMPLE_SHADER,),
        "kernels are products of one per axis: a pass along each axis reads only that axis' taps",
        must=(FLOATS,),
        params=walk_params,
    ),
)
