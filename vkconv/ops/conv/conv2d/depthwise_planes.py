"""The route of conv2d with one input channel per group by planes in shared memory."""

import dataclasses
import itertools
import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str, ceil_div, shape_str
from vkconv.cost import Issued, issue_rate, lanes_of, launch_us
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.conv.common import FEW_TAPS, GROUPED, ONE_CHANNEL_PER_GROUP, buffers, push, span
from vkconv.ops.conv.conv2d.depthwise import MOST_REACH, short_reach
from vkconv.ops.core.base import first, local_sizes, most_shared_bytes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, ON_GPU
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import MOST_SPAN
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

PLANES = Shader(shaders.conv2d.CONV2D_DEPTHWISE_PLANES)
_ROWS = (4, 2, 1, 7, 8)
_COLUMNS = (1, 2, 4)
_MOST_PLANES = 32
_BANDS = (2, 4, 8, 16)
# Elements that a lane of the kernel has in flight: IN_FLIGHT of conv2d_depthwise_planes.comp.
_IN_FLIGHT = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Instructions:
    """Instructions of an invocation: for itself, for each element it copies, for each block of outputs, for each
    element that a block reads from shared memory, and for each output beside its taps, of f32 and of 16 bits. ``turn``
    is the cycles until a turn of loads is there."""

    invocation: int
    copy: int
    block: int
    read: int
    output: int
    output_16_bit: int
    turn: int


@dataclasses.dataclass(frozen=True, slots=True)
class InShared:
    """Lanes of a workgroup, the default first, bytes of shared memory that its rows take at most by rule, multiply-adds
    of a block of outputs at most by rule (0: any number), and what its instructions cost. Without being asked for the
    route is taken where ``taken``, with a stride above 1 only for input planes of at most ``strided_plane`` elements,
    or ``strided_total`` in all: of larger ones, bands load most rows twice, which more planes have to wait for."""

    local: tuple[int, ...]
    most_bytes: int
    most_products: int
    instructions: Instructions
    taken: bool
    strided_plane: int
    strided_total: int


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
    """Shared memory of such a workgroup, f32: its input rows in whole pairs, a zero, and the taps."""
    planes, _ = _planes(call, lines)
    tile = (planes * _input_lines(call, lines) * call.shape("x")[3] + 2) // 2 * 2
    return 4 * (tile + 2 + planes * math.prod(call.shape("w")[2:]))


def _rows(call: Call) -> tuple[int, ...]:
    """Rows of outputs that an invocation may make."""
    return tuple(ry for ry in _ROWS if span(call, 0, ry) <= MOST_REACH) or (1,)


def _lines(call: Call, device: Device) -> tuple[int, ...]:
    """Rows of outputs that a workgroup may make: of some whole planes or a part of one, as shared memory holds."""
    oh, most = call.shape("y")[2], most_shared_bytes(device)
    sizes = [*(oh * p for p in (1, 2, 4, 8, 16, _MOST_PLANES)), *(ceil_div(oh, bands) for bands in _BANDS)]
    return tuple(lines for lines in dict.fromkeys(sizes) if _shared_bytes(call, lines) <= most)


def _workgroups(call: Call, lines: int) -> int:
    n, c_out, oh, _ = call.shape("y")
    planes, band = _planes(call, lines)
    return ceil_div(n * c_out, planes) * ceil_div(oh, band)


def _blocks(call: Call, lines: int, ry: int, px: int) -> int:
    """Blocks of outputs of a workgroup."""
    planes, band = _planes(call, lines)
    return planes * ceil_div(band, ry) * ceil_div(call.shape("y")[3], px)


def _local(blocks: int, sizes: tuple[int, ...]) -> int:
    """Lanes for so many blocks of outputs: no more than have one, if there are so few."""
    return min((size for size in sizes if size >= blocks), default=sizes[0])


def _block_cost(call: Call, device: Device, ry: int, px: int) -> float:
    """Instructions of a subgroup for a block of outputs of each lane."""
    cost, taps = _IN_SHARED.of(device).instructions, math.prod(call.shape("w")[2:])
    output = cost.output if call.half is None else cost.output_16_bit
    window, apart = span(call, 0, ry) * span(call, 1, px), px * int(call["stride"][1])
    issued = cost.block + cost.read * (taps + window) + ry * px * (taps + output)
    # Of words that lanes read so far apart as many are in one bank, which gives one in the time of a cycle.
    return max(issued, issue_rate(device) * (taps + apart * window))


def _us(call: Call, device: Device, lines: int, count: int, block: float, local: int) -> float:
    """Microseconds by workgroups of so many blocks of such a cost: of the compute unit with the most workgroups, and of
    one subgroup that waits for each of its instructions, and for its loads."""
    cost, target, lanes = _IN_SHARED.of(device).instructions, target_of(device), lanes_of(device)
    planes, _ = _planes(call, lines)
    pair = 1 if call.half is None else 2
    subgroups, elements = ceil_div(local, lanes), planes * _input_lines(call, lines) * call.shape("x")[3]
    copied = cost.copy * ceil_div(elements, lanes * pair)
    issued = subgroups * cost.invocation + copied + ceil_div(count, lanes) * block
    alone = cost.invocation + copied / subgroups + ceil_div(count, local) * block
    loads = cost.turn * ceil_div(elements, pair * _IN_FLIGHT * local)
    unit = Issued(issued / issue_rate(device), wait=target.value("dependent_cycles") * alone + loads)
    return launch_us(unit, _workgroups(call, lines), 1, target, launches=1)


def _estimated_us(call: Call, device: Device, params: Params) -> float:
    lines, ry, px, local = (params[name] for name in ("lines", "rows", "columns", "local"))
    return _us(call, device, lines, _blocks(call, lines, ry, px), _block_cost(call, device, ry, px), local)


def _best(call: Call, device: Device, lines: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Rows of a workgroup, and rows and columns of an invocation, that cost the least."""
    most, taps = _IN_SHARED.of(device).most_products or math.inf, math.prod(call.shape("w")[2:])
    made = list(itertools.product(_rows(call), _columns(call)))
    few = [one for one in made if math.prod(one) * taps <= most] or [min(made)]
    costs = {block: _block_cost(call, device, *block) for block in few}

    def us(way: tuple[int, int, int]) -> float:
        rows, ry, px = way
        count = _blocks(call, rows, ry, px)
        return _us(call, device, rows, count, costs[ry, px], _local(count, sizes))

    return min(((rows, *block) for rows in lines for block in costs), key=us)


def _columns(call: Call) -> tuple[int, ...]:
    """Columns of outputs that an invocation may make."""
    ow = call.shape("y")[3]
    return tuple(px for px in _COLUMNS if px <= ow and span(call, 1, px) <= MOST_SPAN) or (1,)


def _params(call: Call, device: Device) -> Legal:
    sizes = local_sizes(device, *_IN_SHARED.of(device).local)
    lines = _lines(call, device)
    few = [size for size in lines if _shared_bytes(call, size) <= _IN_SHARED.of(device).most_bytes]
    best = _best(call, device, tuple(few) or (min(lines),), sizes)
    return {
        "lines": first(best[0], lines),
        "rows": first(best[1], _rows(call)),
        "columns": first(best[2], _columns(call)),
        "local": first(_local(_blocks(call, *best), sizes), sizes),
    }


def _build(call: Call, device: Device, params: Params) -> Program:
    c_out, oh, ow = call.shape("y")[1:]
    lines, ry, px, local = params["lines"], params["rows"], params["columns"], params["local"]
    planes, band = _planes(call, lines)
    (h, w), (kh, kw) = call.shape("x")[2:], call.shape("w")[2:]
    (sh, sw), (dh, dw) = call["stride"], call["dilation"]
    nbytes = _shared_bytes(call, lines)
    e = Epilogue.of(call, device)
    step = Dispatch(
        e.variant(PLANES),
        buffers(e, "w"),
        *over_workgroups(_workgroups(call, lines), local, device),
        push(call, e),
        {
            **e.constants,
            **{"PLANES": planes, "BAND": band, "LINES": _input_lines(call, lines), "RY": ry, "PX": px},
            **{"PAIRS": px % 2 == 0 and ow % 2 == 0, "C": c_out, "H": h, "W": w, "OH": oh, "OW": ow},
            **{"KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw},
        },
        nbytes,
        ceil_div(nbytes // 4, local) + ceil_div(_blocks(call, lines, ry, px), local),
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
_TAKEN = Requirement(
    "a device on which copying planes was faster",
    lambda call, device: _IN_SHARED.of(device).taken,
    lambda call, device: _IN_SHARED.said(device),
)


def _is_dense(call: Call, device: Device) -> bool:
    rule, x = _IN_SHARED.of(device), call.shape("x")
    small = math.prod(x[2:]) <= rule.strided_plane or math.prod(x) <= rule.strided_total
    return call["stride"] == (1, 1) or small


_DENSE = Requirement(
    "a stride of 1, or planes as small, or as few, as are copied on such devices",
    _is_dense,
    lambda call, device: (
        f"stride {shape_str(call['stride'])}, planes of {math.prod(call.shape('x')[2:])} elements, "
        f"{math.prod(call.shape('x'))} in all; up to {_IN_SHARED.of(device).strided_plane} are, or "
        f"{_IN_SHARED.of(device).strided_total} in all"
    ),
)

DEPTHWISE_PLANES = Route(
    "depthwise_planes",
    _build,
    finishing(PLANES),
    why="with one input channel per group planes are copied into shared memory: each element is loaded once, by "
    "neighbouring lanes, and no window tests where it ends",
    must=(FLOATS, ONE_CHANNEL_PER_GROUP, _AS_MANY, FEW_TAPS, short_reach("an output", 1), _HOLDS),
    prefer=(ON_GPU, GROUPED, _TAKEN, _DENSE),
    params=_params,
    estimated_us=_estimated_us,
)
