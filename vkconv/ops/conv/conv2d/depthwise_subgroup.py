"""The route of conv2d with one input channel per group by vectors: rows of inputs and outputs, each lane a block."""

import dataclasses
import itertools
import math
from typing import NamedTuple

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.cost import Scale, compute_units
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.conv.common import FEW_TAPS, GROUPED, ONE_CHANNEL_PER_GROUP, buffers, flattened, push, span
from vkconv.ops.conv.conv2d.depthwise import MOST_REACH, block_sizes, short_reach
from vkconv.ops.core.base import first, local_sizes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, SHUFFLE
from vkconv.ops.kernels.cpu_cost import COSTS, Costs
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import MOST_SPAN, short_span
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

DEPTHWISE_SUBGROUP = Shader(shaders.conv2d.CONV2D_DEPTHWISE_SUBGROUP)
_ROWS, _COLUMNS = (3, 2, 1, 4, 6, 7, 8), (8, 16, 4, 2, 1)
# Instructions of an invocation for each element, output and load of it, beside the multiply-adds and taps.
_ELEMENT, _OUTPUT, _LOAD = 1, 4, 2
_LINE_BYTES = 128


class Terms(NamedTuple):
    """What a GPU's time is made of: loads of an invocation, which wait for each other in part; and of the compute unit
    with the most, workgroups, subgroups, instructions of these, cache lines that their stores touch, and elements of 16
    bits that an invocation of each of them makes floats of."""

    loads: float
    workgroups: int
    subgroups: int
    instructions: float
    lines: float
    halves: float


@dataclasses.dataclass(frozen=True, slots=True)
class Nanoseconds:
    """What a GPU takes for each of `Terms`, and from the launch to its end ``beyond`` what a launch takes."""

    beyond: float
    load: float
    workgroup: float
    subgroup: float
    instruction: float
    line: float
    half: float

    def us(self, terms: Terms, scale: Scale, lanes: int) -> float:
        """Microseconds of the terms on the device of the scale, where an instruction is a multiply-add of each lane."""
        ns = sum(cost * count for cost, count in zip(dataclasses.astuple(self), (1, *terms), strict=True))
        return scale.launched(1e-3 * ns, 0, terms.instructions * lanes)


@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of outputs of an invocation, and ``subgroups`` of a workgroup. By rule a block has one of the ``rows``, of
    two columns or at most ``most_columns``, a half of that where outputs are stored by vectors of two and a quarter
    where one by one; of more than ``tall`` rows at most ``tall_columns``; and at most ``products`` multiply-adds. Which
    one costs the least say ``ns``, as the device of the shipped file ``timed_on`` takes them, or without them the costs
    of CPU drivers. ``packed``: a lane loads the taps of its own block, so that a subgroup has blocks of several planes;
    or one load brings a tap for all lanes. ``taken``: whether the route is taken without being asked for."""

    taken: bool
    subgroups: tuple[int, ...]
    rows: tuple[int, ...]
    most_columns: int
    tall: int
    tall_columns: int
    products: int
    packed: bool = False
    ns: Nanoseconds | None = None
    timed_on: str = ""


_BLOCKS = Policy("conv2d.subgroup_depthwise", Blocks)
Block = tuple[int, int]
"""Rows and columns of outputs."""


def _vector(*extents: int) -> int:
    """The widest vector that each of these is a multiple of."""
    return math.gcd(4, *extents)


def _x_vector(call: Call, columns: int) -> int:
    return _vector(call.shape("x")[3], columns * int(call["stride"][1]))


def _y_vector(call: Call, columns: int) -> int:
    return _vector(call.shape("y")[3], columns)


def _touched(call: Call, columns: int) -> list[tuple[int, int]]:
    """Of each vector of an input row that so many neighbouring outputs touch: where that begins, and how much."""
    vector = _x_vector(call, columns)
    skipped = -int(call["padding"][1]) % vector
    end = skipped + span(call, 1, columns)
    begins = [(start, max(start, skipped)) for start in range(0, end, vector)]
    return [(first - start, min(start + vector, end) - first) for start, first in begins]


def _loads(call: Call, columns: int) -> int:
    """Loads of what so many neighbouring outputs touch of an input row: whole vectors and pairs, and single elements
    (conv2d_depthwise_subgroup.comp)."""
    vector = _x_vector(call, columns)
    return sum(
        1 if (vector == 4 and count > 2) or (vector > 1 and count == 2 and at % 2 == 0) else count
        for at, count in _touched(call, columns)
    )


def _units(call: Call, block: Block) -> int:
    """Blocks of a plane."""
    oh, ow = call.shape("y")[2:]
    return ceil_div(oh, block[0]) * ceil_div(ow, block[1])


def _workgroups(call: Call, block: Block, local: int, lanes: int, packed: bool) -> int:
    planes = math.prod(call.shape("y")[:2])
    if packed:
        return ceil_div(planes * _units(call, block), local)
    return ceil_div(planes * ceil_div(_units(call, block), lanes), local // lanes)


def _cpu_ns(call: Call, block: Block, lanes: int, costs: Costs) -> float:
    """Estimated ns of a plane by such blocks on a CPU driver."""
    rows, columns = block
    taps, vector = math.prod(call.shape("w")[2:]), _y_vector(call, columns)
    row = sum(costs.of_vector(count) for _, count in _touched(call, columns))
    loads = ceil_div(taps, lanes) * costs.load + span(call, 0, rows) * row
    stores = rows * columns / vector * costs.of_vector(vector)
    arithmetic = taps * (costs.share + rows * columns * costs.multiply_add)
    return ceil_div(_units(call, block), lanes) * (costs.iteration + loads + stores + arithmetic)


def gpu_terms(call: Call, block: Block, local: int, lanes: int, packed: bool, units: int) -> Terms:
    """What `Nanoseconds` count, of so many compute units."""
    (rows, columns), taps, nbytes = block, math.prod(call.shape("w")[2:]), call.specs["x"].dtype.nbytes
    reach = span(call, 0, rows)
    loads, elements = reach * _loads(call, columns), reach * span(call, 1, columns)
    instructions = taps * (rows * columns + 1) + _OUTPUT * rows * columns + _LOAD * loads + _ELEMENT * elements
    busiest = ceil_div(_workgroups(call, block, local, lanes, packed), units)
    subgroups = busiest * (local // lanes)
    # Lanes side by side store at places that are a row of a block apart.
    touched = max(1.0, columns * nbytes * lanes / _LINE_BYTES) * rows * columns / _y_vector(call, columns)
    halves = elements if call.half else 0
    return Terms(loads, busiest, subgroups, subgroups * instructions, subgroups * touched, subgroups * halves)


def suits(call: Call, block: Block, policy: Blocks) -> bool:
    """Whether the rule takes such a block."""
    (rows, columns), taps = block, math.prod(call.shape("w")[2:])
    narrow = columns <= 2 or 4 * columns <= policy.most_columns * _vector(call.shape("y")[3])
    tall = rows <= policy.tall or columns <= policy.tall_columns
    return rows in policy.rows and narrow and tall and rows * columns * taps <= policy.products


def _us(call: Call, device: Device, block: Block, local: int) -> float:
    """Microseconds beyond the launch by such blocks; on a CPU driver of a plane."""
    policy, lanes = _BLOCKS.of(device), device.subgroup_size
    if policy.ns is None:
        return 1e-3 * _cpu_ns(call, block, lanes, COSTS.of(device))
    scale = Scale.of(policy.timed_on, target_of(device))
    terms = gpu_terms(call, block, local, lanes, policy.packed, compute_units(device))
    return policy.ns.us(terms, scale, lanes)


def _estimated_us(call: Call, device: Device, params: Params) -> float | None:
    if _BLOCKS.of(device).ns is None:
        return None
    launch = target_of(device).value("launch_us")
    return launch + _us(flattened(call), device, (params["rows"], params["columns"]), params["local"])


def _params(call: Call, device: Device) -> Legal:
    call = flattened(call)
    policy, lanes = _BLOCKS.of(device), device.subgroup_size
    rows = tuple(ry for ry in _ROWS if span(call, 0, ry) <= MOST_REACH)
    columns = tuple(px for px in _COLUMNS if span(call, 1, px) <= MOST_SPAN)
    sizes = local_sizes(device, *(count * lanes for count in policy.subgroups))

    blocks = [*itertools.product(rows, columns)]
    by_rule = [block for block in blocks if suits(call, block, policy)]
    (ry, px), local = min(itertools.product(by_rule or [min(blocks)], sizes), key=lambda way: _us(call, device, *way))
    return {"rows": first(ry, rows), "columns": first(px, columns), "local": first(local, sizes)}


def _build(call: Call, device: Device, params: Params) -> Program:
    call = flattened(call)
    block, local = (params["rows"], params["columns"]), params["local"]
    lanes, packed = device.subgroup_size, _BLOCKS.of(device).packed
    e = Epilogue.of(call, device)
    step = Dispatch(
        e.variant(DEPTHWISE_SUBGROUP),
        buffers(e, "w"),
        *over_workgroups(_workgroups(call, block, local, lanes, packed), local, device),
        push(call, e),
        {
            **e.constants,
            **block_sizes(call, params),
            "LEFT": call["padding"][1],
            **{"X_VEC": _x_vector(call, block[1]), "Y_VEC": _y_vector(call, block[1])},
            "SUBGROUP": lanes,
            "PLANE_BLOCKS": _units(call, block) if packed else 0,
            "ROW_BLOCKS": ceil_div(call.shape("y")[3], block[1]) if packed else 0,
        },
    )
    return e.complete(Program((step,)), call.shape("y"), device)


_SHORT_SPAN = short_span("an output of a row from", lambda call: span(call, 1, 1))
_SHORT_REACH = short_reach("an output", 1)


_TAKEN = Requirement(
    "a device on which it was faster",
    lambda call, device: _BLOCKS.of(device).taken,
    lambda call, device: _BLOCKS.said(device),
)


def estimated_us(call: Call, device: Device) -> float | None:
    """Microseconds by the blocks of the rule; None where costs are not known."""
    return _estimated_us(call, device, SUBGROUP_DEPTHWISE.own({}, call, device))


SUBGROUP_DEPTHWISE = Route(
    "subgroup_depthwise",
    _build,
    finishing(DEPTHWISE_SUBGROUP),
    why="with one input channel per group loads and stores are what a convolution costs: rows come and go as vectors, "
    "each element of a row serves all rows and columns of a block that touch it",
    must=(FLOATS, SHUFFLE, ONE_CHANNEL_PER_GROUP, _SHORT_SPAN, _SHORT_REACH, FEW_TAPS),
    prefer=(GROUPED, _TAKEN),
    params=_params,
    estimated_us=_estimated_us,
)
