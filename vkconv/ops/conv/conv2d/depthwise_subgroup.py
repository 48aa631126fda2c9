"""The route of conv2d with one input channel per group where loads go lane by lane: by vectors, taps by shuffles."""

import itertools
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import FEW_TAPS, GROUPED, ONE_CHANNEL_PER_GROUP, buffers, push, span
from vkconv.ops.conv.conv2d.depthwise import MOST_REACH, block_sizes, short_reach
from vkconv.ops.core.base import first, local_sizes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, ON_CPU, SHUFFLE
from vkconv.ops.kernels.cpu_cost import COSTS
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import MOST_SPAN, short_span
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Route

DEPTHWISE_SUBGROUP = Shader(shaders.conv2d.CONV2D_DEPTHWISE_SUBGROUP)
_ROWS, _COLUMNS = (3, 2, 1, 4), (8, 16, 4, 2, 1)
# Multiply-adds of an invocation, which are unrolled: past this a driver compiles for seconds.
_MOST_UNROLLED = 640


def _vector(*extents: int) -> int:
    """The widest vector that each of these is a multiple of."""
    return math.gcd(4, *extents)


def _x_vector(call: Call, columns: int) -> int:
    return _vector(call.shape("x")[3], columns * int(call["stride"][1]))


def _y_vector(call: Call, columns: int) -> int:
    return _vector(call.shape("y")[3], columns)


def _row_loads(call: Call, columns: int) -> float:
    """Estimated ns to load what so many neighbouring outputs touch of an input row: of each vector what is touched,
    by as few loads as that takes."""
    vector, left = _x_vector(call, columns), int(call["padding"][1])
    first_input = -left % vector
    end = first_input + span(call, 1, columns)
    total = 0.0
    for start in range(0, end, vector):
        touched = min(start + vector, end) - max(start, first_input)
        total += COSTS.of_vector(touched)
    return total


def _cost(call: Call, rows: int, columns: int, lanes: int) -> float:
    """Estimated ns of a plane by blocks of so many rows and columns."""
    oh, ow = call.shape("y")[2:]
    taps = math.prod(call.shape("w")[2:])
    loads = ceil_div(taps, lanes) * COSTS.load + span(call, 0, rows) * _row_loads(call, columns)
    vector = _y_vector(call, columns)
    stores = rows * columns / vector * COSTS.of_vector(vector)
    arithmetic = taps * (COSTS.share + rows * columns * COSTS.multiply_add)
    return ceil_div(ceil_div(oh, rows) * ceil_div(ow, columns), lanes) * (COSTS.iteration + loads + stores + arithmetic)


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    lanes, taps = device.subgroup_size, math.prod(call.shape("w")[2:])
    rows = tuple(ry for ry in _ROWS if span(call, 0, ry) <= MOST_REACH)
    columns = tuple(px for px in _COLUMNS if span(call, 1, px) <= MOST_SPAN)
    blocks = [*itertools.product(rows, columns)]
    fitting = [(ry, px) for ry, px in blocks if ry * px * taps <= _MOST_UNROLLED]
    ry, px = min(fitting or blocks[-1:], key=lambda block: _cost(call, block[0], block[1], lanes))
    return {
        "rows": first(ry, rows),
        "columns": first(px, columns),
        "local": local_sizes(device, lanes, 2 * lanes, 4 * lanes),
    }


def _build(call: Call, device: Device, params: Params) -> Program:
    n, c_out, oh, ow = call.shape("y")
    ry, px, local = params["rows"], params["columns"], params["local"]
    units = ceil_div(oh, ry) * ceil_div(ow, px)
    vectors = {"X_VEC": _x_vector(call, px), "Y_VEC": _y_vector(call, px)}
    e = Epilogue.of(call, device)
    step = Dispatch(
        e.variant(DEPTHWISE_SUBGROUP),
        buffers(e, "w"),
        *over_workgroups(n * c_out * ceil_div(units, local), local, device),
        push(call, e),
        {
            **e.constants,
            **block_sizes(call, params),
            "LEFT": call["padding"][1],
            **vectors,
            "SUBGROUP": device.subgroup_size,
        },
    )
    return e.complete(Program((step,)), call.shape("y"), device)


_SHORT_SPAN = short_span("an output of a row from", lambda call: span(call, 1, 1))
_SHORT_REACH = short_reach("an output", 1)

SUBGROUP_DEPTHWISE = Route(
    "subgroup_depthwise",
    _build,
    finishing(DEPTHWISE_SUBGROUP),
    why="where every load goes lane by lane, loads are what a depthwise convolution costs: rows come as vectors, and "
    "one load brings the taps for the whole subgroup",
    must=(FLOATS, SHUFFLE, ONE_CHANNEL_PER_GROUP, _SHORT_SPAN, _SHORT_REACH, FEW_TAPS),
    prefer=(GROUPED, ON_CPU),
    params=_params,
)
