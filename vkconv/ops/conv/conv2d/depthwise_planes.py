"""The route of conv2d with one input channel per group by planes in shared memory."""

import dataclasses
import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str, ceil_div, shape_str
from vkconv.cost import compute_units
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import FEW_TAPS, GROUPED, ONE_CHANNEL_PER_GROUP, buffers, push, span
from vkconv.ops.conv.conv2d.depthwise import MOST_REACH, short_reach
from vkconv.ops.core.base import first, local_sizes, most_shared_bytes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, ON_GPU
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.route import Legal, Params, Requirement, Route

PLANES = Shader(shaders.conv2d.CONV2D_DEPTHWISE_PLANES)
_ROWS = (4, 2, 1, 8)
_MOST_PLANES = 32


@dataclasses.dataclass(frozen=True, slots=True)
class InShared:
    """Lanes of a workgroup, the default first. Without being asked for the route is taken where a plane takes at most
    so many bytes of shared memory (0: never), from so many workgroups for each compute unit on."""

    local: tuple[int, ...]
    most_bytes: int
    per_unit: int


_IN_SHARED = Policy("conv2d.depthwise_planes", InShared)


def _plane_bytes(call: Call, rows: int) -> int:
    """Shared memory of a plane and its taps, in f32, with all that blocks of so many rows of outputs touch."""
    oh, ow = call.shape("y")[2:]
    tile = span(call, 0, ceil_div(oh, rows) * rows) * span(call, 1, ow)
    return 4 * (tile + math.prod(call.shape("w")[2:]))


def _rows(call: Call) -> tuple[int, ...]:
    """Rows of outputs that an invocation may make."""
    return tuple(ry for ry in _ROWS if span(call, 0, ry) <= MOST_REACH) or (1,)


def _params(call: Call, device: Device) -> Legal:
    local, most = _IN_SHARED.of(device).local, most_shared_bytes(device)
    n, c_out, oh, ow = call.shape("y")
    rows = tuple(ry for ry in _rows(call) if _plane_bytes(call, ry) <= most)
    items = ceil_div(oh, rows[0]) * ow
    legal = [p for p in (1, 2, 4, 8, 16, _MOST_PLANES) if p * max(_plane_bytes(call, ry) for ry in rows) <= most]
    enough = [p for p in legal if p * items >= local[0] or p >= n * c_out]
    return {
        "planes": first(min(enough, default=legal[-1]), legal),
        "rows": rows,
        "local": local_sizes(device, *local),
    }


def _build(call: Call, device: Device, params: Params) -> Program:
    n, c_out, oh, ow = call.shape("y")
    planes, ry, local = params["planes"], params["rows"], params["local"]
    (kh, kw), (sh, sw), (dh, dw) = call.shape("w")[2:], call["stride"], call["dilation"]
    nbytes = planes * _plane_bytes(call, ry)
    e = Epilogue.of(call, device)
    step = Dispatch(
        e.variant(PLANES),
        buffers(e, "w"),
        *over_workgroups(ceil_div(n * c_out, planes), local, device),
        push(call, e),
        {
            **e.constants,
            **{"PLANES": planes, "RY": ry, "OH": oh, "OW": ow},
            **{"KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw},
        },
        nbytes,
        ceil_div(nbytes // 4, local) + ceil_div(planes * ceil_div(oh, ry) * ow, local),
    )
    return e.complete(Program((step,)), call.shape("y"), device)


def _least_bytes(call: Call) -> int:
    return min(_plane_bytes(call, ry) for ry in _rows(call))


_AS_MANY = Requirement.of(
    "as many output as input channels",
    lambda call: (call.shape("y")[1], call.shape("x")[1]),
    lambda channels: channels[0] == channels[1],
    lambda channels: "{} and {}".format(*channels),
)
_HOLDS = Requirement(
    "shared memory that holds a plane",
    lambda call, device: max(_plane_bytes(call, ry) for ry in _rows(call)) <= most_shared_bytes(device),
    lambda call, device: f"{bytes_str(_least_bytes(call))} of {bytes_str(most_shared_bytes(device))}",
)
_SMALL = Requirement(
    "planes as small as are copied on such devices",
    lambda call, device: _plane_bytes(call, _rows(call)[0]) <= _IN_SHARED.of(device).most_bytes,
    lambda call, device: (
        f"{bytes_str(_plane_bytes(call, _rows(call)[0]))}; up to {bytes_str(_IN_SHARED.of(device).most_bytes)} are"
    ),
)


def _workgroups(call: Call, device: Device) -> int:
    return ceil_div(math.prod(call.shape("y")[:2]), int(_params(call, device)["planes"][0]))


_MANY = Requirement(
    "workgroups that keep all compute units busy",
    lambda call, device: _workgroups(call, device) >= _IN_SHARED.of(device).per_unit * compute_units(device),
    lambda call, device: f"{_workgroups(call, device)}, and it has {compute_units(device)} compute units",
)

_EVERY_PIXEL = Requirement.of(
    "a stride of 1: with others most of a plane is copied for little",
    lambda call: call["stride"],
    lambda stride: stride == (1, 1),
    shape_str,
)

DEPTHWISE_PLANES = Route(
    "depthwise_planes",
    _build,
    finishing(PLANES),
    why="with one input channel per group planes are copied into shared memory: each element is loaded once, by "
    "neighbouring lanes, and no window tests where it ends",
    must=(FLOATS, ONE_CHANNEL_PER_GROUP, _AS_MANY, FEW_TAPS, short_reach("an output", 1), _HOLDS),
    prefer=(ON_GPU, GROUPED, _EVERY_PIXEL, _SMALL, _MANY),
    params=_params,
)
