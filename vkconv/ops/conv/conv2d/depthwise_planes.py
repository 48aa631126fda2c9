"""The route of conv2d with one input channel per group by planes in shared memory."""

import dataclasses
import itertools
import math
from typing import NamedTuple

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str, ceil_div
from vkconv.cost import Issued, issue_rate, lanes_of, launch_us
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.conv.common import FEW_TAPS, GROUPED, ONE_CHANNEL_PER_GROUP, buffers, push, span
from vkconv.ops.conv.conv2d import depthwise_subgroup
from vkconv.ops.conv.conv2d.depthwise import MOST_REACH, short_reach
from vkconv.ops.conv.conv2d.depthwise_subgroup import SUBGROUP_DEPTHWISE
from vkconv.ops.core.base import first, local_sizes, most_shared_bytes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, ON_GPU
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import MOST_SPAN
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, judge

PLANES = Shader(shaders.conv2d.CONV2D_DEPTHWISE_PLANES)
_ROWS = (4, 2, 1, 7, 8)
_COLUMNS = (1, 2, 4)
_PLANES = (1, 2, 4, 8, 16, 32)
_BANDS = (2, 4, 8, 16)
# Elements of a vector of the kernel.
_VECTOR = 4
# Vectors that a lane of the kernel has in flight: IN_FLIGHT of conv2d_depthwise_planes.comp.
_IN_FLIGHT = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Instructions:
    """Instructions of an invocation: for itself, for each vector that it copies, for each block of outputs, for each
    element that a block reads from shared memory, and for each output beside its taps. ``turn`` is the cycles until a
    turn of loads is there."""

    invocation: int
    copy: int
    block: int
    read: float
    output: int
    turn: int


@dataclasses.dataclass(frozen=True, slots=True)
class InShared:
    """Lanes of a workgroup, the default first, bytes of shared memory that its rows take at most by rule, multiply-adds
    of a block of outputs at most by rule (0: any number), and what its instructions cost. ``taken``: whether the route
    is taken without being asked for."""

    local: tuple[int, ...]
    most_bytes: int
    most_products: int
    instructions: Instructions
    taken: bool


_IN_SHARED = Policy("conv2d.depthwise_planes", InShared)


def _staged(call: Call) -> int:
    """1 where outputs go out by way of shared memory by rule: rows of odd lengths, which would leave one by one."""
    return int(call.shape("y")[3]) % 2


def _planes(call: Call, lines: int) -> tuple[int, int]:
    """Planes of a workgroup that makes so many rows of outputs, and the rows of each of them: several whole planes, or
    a band of one."""
    oh = call.shape("y")[2]
    return (lines // oh, oh) if lines >= oh else (1, lines)


def _input_lines(call: Call, lines: int) -> int:
    """Input rows of a plane that such a workgroup has in shared memory."""
    h, oh = call.shape("x")[2], call.shape("y")[2]
    return h if lines >= oh else min(h, span(call, 0, lines))


def _vec4s(elements: int) -> int:
    """Vectors that a range of so many elements touches at most: it may begin with the last one of a vector."""
    return ceil_div(elements + _VECTOR - 1, _VECTOR)


def _tile_vec4s(call: Call, lines: int) -> int:
    """Of the input rows of such a workgroup."""
    return _vec4s(_planes(call, lines)[0] * _input_lines(call, lines) * call.shape("x")[3])


def _out_vec4s(call: Call, lines: int) -> int:
    """Of its outputs."""
    return _vec4s(math.prod(_planes(call, lines)) * call.shape("y")[3])


def _shared_bytes(call: Call, lines: int, staged: int = 0) -> int:
    """Shared memory of such a workgroup, f32: its input rows behind a vector for a zero, the taps, and where they are
    ``staged`` its outputs."""
    taps = _planes(call, lines)[0] * math.prod(call.shape("w")[2:])
    return 4 * (_VECTOR * (1 + _tile_vec4s(call, lines) + staged * _out_vec4s(call, lines)) + 1 + taps)


def _rows(call: Call) -> tuple[int, ...]:
    """Rows of outputs that an invocation may make."""
    return tuple(ry for ry in _ROWS if span(call, 0, ry) <= MOST_REACH) or (1,)


def _lines(call: Call, device: Device) -> tuple[int, ...]:
    """Rows of outputs that a workgroup may make: of some whole planes or a part of one, as shared memory holds."""
    oh, most = call.shape("y")[2], most_shared_bytes(device)
    sizes = [*(oh * planes for planes in _PLANES), *(ceil_div(oh, bands) for bands in _BANDS)]
    return tuple(lines for lines in dict.fromkeys(sizes) if _shared_bytes(call, lines, 1) <= most)


class Band(NamedTuple):
    """What a workgroup computes: ``rows`` of ``columns`` outputs of each of ``planes``; the vectors of four that it
    loads, and stores from shared memory; and of the launch the workgroups and the bytes that they move."""

    planes: int
    rows: int
    columns: int
    workgroups: int
    loads: int
    stores: int
    nbytes: int

    def blocks(self, ry: int, px: int) -> int:
        """Blocks of outputs of a workgroup."""
        return self.planes * ceil_div(self.rows, ry) * ceil_div(self.columns, px)


def _band(call: Call, lines: int) -> Band:
    (n, c_out, oh, ow), (planes, rows) = call.shape("y"), _planes(call, lines)
    x, y = call.specs["x"], call.outputs["y"]
    return Band(
        planes,
        rows,
        ow,
        workgroups=ceil_div(n * c_out, planes) * ceil_div(oh, rows),
        loads=_tile_vec4s(call, lines),
        stores=_staged(call) * _out_vec4s(call, lines),
        nbytes=x.dtype.nbytes * (x.size + y.size),
    )


def _local(blocks: int, sizes: tuple[int, ...]) -> int:
    """Lanes for so many blocks of outputs: no more than have one, if there are so few."""
    return min((size for size in sizes if size >= blocks), default=sizes[0])


def _block_cost(call: Call, device: Device, ry: int, px: int) -> float:
    """Instructions of a subgroup for a block of outputs of each lane."""
    cost, taps = _IN_SHARED.of(device).instructions, math.prod(call.shape("w")[2:])
    window, apart = span(call, 0, ry) * span(call, 1, px), px * int(call["stride"][1])
    issued = cost.block + cost.read * (taps + window) + ry * px * (taps + cost.output)
    # Of words that lanes read so far apart as many are in one bank, which gives one in the time of a cycle.
    return max(issued, issue_rate(device) * (taps + apart * window))


def _us(band: Band, device: Device, count: int, block: float, local: int) -> float:
    """Microseconds by workgroups of so many blocks of such a cost: of the compute unit with the most workgroups, and of
    one subgroup that waits for each of its instructions, and for its loads."""
    cost, target, lanes = _IN_SHARED.of(device).instructions, target_of(device), lanes_of(device)
    subgroups = ceil_div(local, lanes)
    copied = cost.copy * (ceil_div(band.loads, lanes) + ceil_div(band.stores, lanes))
    issued = subgroups * cost.invocation + copied + ceil_div(count, lanes) * block
    alone = cost.invocation + copied / subgroups + ceil_div(count, local) * block
    loads = cost.turn * ceil_div(band.loads, _IN_FLIGHT * local)
    unit = Issued(issued / issue_rate(device), wait=target.value("dependent_cycles") * alone + loads)
    return launch_us(unit, band.workgroups, 1, target, band.nbytes, launches=1)


def _estimated_us(call: Call, device: Device, params: Params) -> float:
    lines, ry, px, local = (params[name] for name in ("lines", "rows", "columns", "local"))
    band = _band(call, lines)
    return _us(band, device, band.blocks(ry, px), _block_cost(call, device, ry, px), local)


def _best(call: Call, device: Device, lines: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Rows of a workgroup, and rows and columns of an invocation, that cost the least."""
    most, taps = _IN_SHARED.of(device).most_products or math.inf, math.prod(call.shape("w")[2:])
    made = list(itertools.product(_rows(call), _columns(call)))
    few = [one for one in made if math.prod(one) * taps <= most] or [min(made)]
    costs = {block: _block_cost(call, device, *block) for block in few}
    bands = {rows: _band(call, rows) for rows in lines}

    def us(way: tuple[int, int, int]) -> float:
        rows, ry, px = way
        count = bands[rows].blocks(ry, px)
        return _us(bands[rows], device, count, costs[ry, px], _local(count, sizes))

    return min(((rows, *block) for rows in bands for block in costs), key=us)


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
        "local": first(_local(_band(call, best[0]).blocks(*best[1:]), sizes), sizes),
        "staged": first(_staged(call), (0, 1)),
    }


def _build(call: Call, device: Device, params: Params) -> Program:
    c_out, oh, ow = call.shape("y")[1:]
    lines, ry, px, local = params["lines"], params["rows"], params["columns"], params["local"]
    band = _band(call, lines)
    (h, w), (kh, kw) = call.shape("x")[2:], call.shape("w")[2:]
    (sh, sw), (dh, dw) = call["stride"], call["dilation"]
    nbytes = _shared_bytes(call, lines, params["staged"])
    e = Epilogue.of(call, device)
    step = Dispatch(
        e.variant(PLANES),
        buffers(e, "w"),
        *over_workgroups(band.workgroups, local, device),
        push(call, e),
        {
            **e.constants,
            **{"PLANES": band.planes, "BAND": band.rows, "LINES": _input_lines(call, lines), "RY": ry, "PX": px},
            **{"STAGED": params["staged"], "PAIRS": px % 2 == 0 and ow % 2 == 0},
            **{"C": c_out, "H": h, "W": w, "OH": oh, "OW": ow},
            **{"KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw},
        },
        nbytes,
        ceil_div(nbytes // 4, local) + ceil_div(band.blocks(ry, px), local),
    )
    return e.complete(Program((step,)), call.shape("y"), device)


def _least_bytes(call: Call) -> int:
    """Of the smallest band."""
    return min(_shared_bytes(call, ceil_div(call.shape("y")[2], bands), 1) for bands in (1, *_BANDS))


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


def _times(call: Call, device: Device) -> tuple[float, float | None]:
    """Microseconds by this route, and by subgroup_depthwise; None where that is not taken, or its costs not known."""
    others = judge(SUBGROUP_DEPTHWISE, call, device)
    other_us = depthwise_subgroup.estimated_us(call, device) if others.preferred else None
    return _estimated_us(call, device, DEPTHWISE_PLANES.own({}, call, device)), other_us


def _is_faster(call: Call, device: Device) -> bool:
    own_us, other_us = _times(call, device)
    return other_us is None or own_us < other_us


def _compared(call: Call, device: Device) -> str:
    own_us, other_us = _times(call, device)
    return f"{own_us:.1f} us" + ("" if other_us is None else f", {other_us:.1f} by subgroup_depthwise")


_ODD_ROWS = Requirement.of(
    "rows of an odd number of outputs, which others store one by one",
    lambda call: int(call.shape("y")[3]),
    lambda columns: columns % 2 == 1,
    "{} outputs".format,
)
_FASTER = Requirement("less time than subgroup_depthwise takes by the costs of both", _is_faster, _compared)

DEPTHWISE_PLANES = Route(
    "depthwise_planes",
    _build,
    finishing(PLANES),
    why="with one input channel per group planes are copied into shared memory: each element is loaded once, by "
    "neighbouring lanes, no window tests where it ends, and rows of odd lengths are stored by vectors",
    must=(FLOATS, ONE_CHANNEL_PER_GROUP, _AS_MANY, FEW_TAPS, short_reach("an output", 1), _HOLDS),
    prefer=(ON_GPU, GROUPED, _TAKEN, _ODD_ROWS, _FASTER),
    params=_params,
    estimated_us=_estimated_us,
)
