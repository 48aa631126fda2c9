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
from vkconv.ops.kernels.prepack import MOST_SPAN
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.route import Legal, Params, Requirement, Route

PLANES = Shader(shaders.conv2d.CONV2D_DEPTHWISE_PLANES)
_ROWS = (4, 2, 1, 7, 8)
_COLUMNS = (1, 2, 4)
_MOST_PLANES = 32
_BANDS = (2, 4, 8, 16)


@dataclasses.dataclass(frozen=True, slots=True)
class InShared:
    """Lanes of a workgroup, the default first. Without being asked for the route is taken where a plane takes at most
    so many bytes of shared memory (0: never), from so many workgroups for each compute unit on."""

    local: tuple[int, ...]
    most_bytes: int
    per_unit: int


_IN_SHARED = Policy("conv2d.depthwise_planes", InShared)


def _planes(call: Call, lines: int) -> tuple[int, int]:
    """Planes of a workgroup that makes so many rows of outputs, and the rows of each of them: several whole planes, or
    a band of one."""
    oh = call.shape("y")[2]
    return (lines // oh, oh) if lines >= oh else (1, lines)


def _input_lines(call: Call, lines: int) -> int:
    """Input rows of a plane that such a workgroup has in shared memory."""
    h, oh = call.shape("x")[2], call.shape("y")[2]
    return h if lines >= oh else min(h, span(call, 0, lines))


def _shared_bytes(call: Call, lines: int) -> int:
    """Shared memory of such a workgroup, f32: its input rows, begun in the middle of a pair, a zero, and the taps."""
    planes, _ = _planes(call, lines)
    pair = 1 if call.half is None else 2
    tile = (planes * _input_lines(call, lines) * call.shape("x")[3] + 2 * (pair - 1)) // pair * pair
    return 4 * (tile + 1 + planes * math.prod(call.shape("w")[2:]))


def _rows(call: Call) -> tuple[int, ...]:
    """Rows of outputs that an invocation may make."""
    return tuple(ry for ry in _ROWS if span(call, 0, ry) <= MOST_REACH) or (1,)


def _lines(call: Call, device: Device) -> tuple[int, ...]:
    """Rows of outputs that a workgroup may make: of some whole planes or a part of one, as shared memory holds."""
    oh, most = call.shape("y")[2], most_shared_bytes(device)
    sizes = [*(oh * p for p in (1, 2, 4, 8, 16, _MOST_PLANES)), *(ceil_div(oh, bands) for bands in _BANDS)]
    return tuple(lines for lines in dict.fromkeys(sizes) if _shared_bytes(call, lines) <= most)


def _params(call: Call, device: Device) -> Legal:
    local = _IN_SHARED.of(device).local
    n, c_out, oh, ow = call.shape("y")
    rows, lines = _rows(call), _lines(call, device)
    whole = [size for size in lines if size >= oh]
    enough = [size for size in whole if ceil_div(size, rows[0]) * ow >= local[0] or size // oh >= n * c_out]
    return {
        "lines": first(min(enough, default=max(whole, default=max(lines))), lines),
        "rows": rows,
        "columns": tuple(px for px in _COLUMNS if px <= ow and span(call, 1, px) <= MOST_SPAN),
        "local": local_sizes(device, *local),
    }


def _build(call: Call, device: Device, params: Params) -> Program:
    n, c_out, oh, ow = call.shape("y")
    lines, ry, px, local = params["lines"], params["rows"], params["columns"], params["local"]
    planes, band = _planes(call, lines)
    (h, w), (kh, kw) = call.shape("x")[2:], call.shape("w")[2:]
    (sh, sw), (dh, dw) = call["stride"], call["dilation"]
    nbytes = _shared_bytes(call, lines)
    e = Epilogue.of(call, device)
    step = Dispatch(
        e.variant(PLANES),
        buffers(e, "w"),
        *over_workgroups(ceil_div(n * c_out, planes) * ceil_div(oh, band), local, device),
        push(call, e),
        {
            **e.constants,
            **{"PLANES": planes, "BAND": band, "LINES": _input_lines(call, lines), "RY": ry, "PX": px},
            **{"H": h, "W": w, "OH": oh, "OW": ow},
            **{"KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw},
        },
        nbytes,
        ceil_div(nbytes // 4, local) + ceil_div(planes * ceil_div(band, ry) * ceil_div(ow, px), local),
    )
    return e.complete(Program((step,)), call.shape("y"), device)


def _least_bytes(call: Call) -> int:
    """Of the smallest band."""
    return min(_shared_bytes(call, ceil_div(call.shape("y")[2], bands)) for bands in (1, *_BANDS))


_AS_MANY = Requirement.of(
    "as many output as input channels",
    lambda call: (call.shape("y")[1], call.shape("x")[1]),
    lambda channels: channels[0] == channels[1],
    lambda channels: "{} and {}".format(*channels),
)
_HOLDS = Requirement(
    "shared memory that holds a band of a plane",
    lambda call, device: _least_bytes(call) <= most_shared_bytes(device),
    lambda call, device: f"{bytes_str(_least_bytes(call))} of {bytes_str(most_shared_bytes(device))}",
)
_SMALL = Requirement(
    "planes as small as are copied on such devices",
    lambda call, device: _shared_bytes(call, call.shape("y")[2]) <= _IN_SHARED.of(device).most_bytes,
    lambda call, device: (
        f"{bytes_str(_shared_bytes(call, call.shape('y')[2]))}; up to {bytes_str(_IN_SHARED.of(device).most_bytes)} are"
    ),
)


def _workgroups(call: Call, device: Device) -> int:
    planes, band = _planes(call, int(_params(call, device)["lines"][0]))
    return ceil_div(math.prod(call.shape("y")[:2]), planes) * ceil_div(call.shape("y")[2], band)


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
