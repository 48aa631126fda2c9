"""The gradient where each group has one input channel, as depthwise convolutions have: lanes go down strips of rows."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, bytes_str, ceil_div, shape_str
from vkconv.cost import Turns, launch_us, resident_workgroups, spills
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad.combine import combine
from vkconv.ops.conv.wgrad.cost import most_in_scratch, slice_counts
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.base import first, most_invocations, over_workgroups
from vkconv.ops.core.requirements import subgroup_arithmetic
from vkconv.ops.kernels.prepack import MOST_SPAN
from vkconv.ops.kernels.windows import spanned
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params

TREE = Shader(shaders.wgrad.BACKWARD_WEIGHT_DEPTHWISE)
SUBGROUPS = TREE.having(("SUBGROUPS", ""))

_MOST_TAPS = 49  # sums of an invocation
_MOST_WINDOW = 20  # rows of dy that it keeps
_MOST_HELD = 224  # sums, elements of dy and of x together: past this compilers take seconds, and GPUs spill
_MEET = 16
_COLUMNS = (4, 2, 1, 8)
_TOGETHER = (1, 2, 4)
_STRIPS = (1, 2, 3, 4, 6, 8, 16, 32)  # of a plane
DEPTHS = range(1, 17)
"""Workgroups of a compute unit that are worth a try."""
_BESIDE = 28  # registers of an invocation for addresses and what a turn of loads needs


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """``taken``: whether the route is taken without being asked for, and for how many output channels of an input
    channel at most. Lanes of a workgroup, the default first, and whether they meet in a tree. Bytes of dy that a lane
    should have in flight. In multiply-adds of a subgroup: a load, one of four, what each further cache line of it
    costs, a row and an item beside their loads and products, the end of a workgroup for each tap, and an element of a
    slice, stored and read back; subgroups are taken to have ``lanes``, and cache lines ``line_bytes``.
    ``second_pass_launches`` is what the second pass costs, in launches; with fewer lanes of a compute unit than
    ``busy_lanes`` loads are waited for. ``strided_columns``: the fewest columns of a lane with which it is taken where
    there is a stride along rows. ``few_taps_bytes``: the bytes in flight in f32 with a stride of 1 and at most
    ``few_taps``."""

    taken: bool
    multiplier: int
    local: tuple[int, ...]
    tree: bool
    in_flight_bytes: int
    load: float
    load4: float
    line: float
    row: float
    item: float
    ending: float
    slice_element: float
    second_pass_launches: float
    busy_lanes: int
    lanes: int
    line_bytes: int
    strided_columns: int = 1
    few_taps: int = 0
    few_taps_bytes: int = 0


_COSTS = Policy("wgrad.depthwise", Costs)


@dataclasses.dataclass(frozen=True, slots=True)
class Walk:
    """How a channel's pixels are shared out: columns of an invocation, rows of its strip and those that it loads at a
    time, lanes of a workgroup, slices."""

    columns: int
    rows: int
    together: int
    local: int
    slices: int

    def items(self, p: WeightGradient) -> int:
        """Strips of all images."""
        return p.n * ceil_div(p.out[1], self.rows) * ceil_div(p.out[2], self.columns)

    def of_lane(self, p: WeightGradient) -> int:
        """Strips of an invocation, of the first slice."""
        return ceil_div(ceil_div(self.items(p), self.slices), self.local)

    def iterations(self, p: WeightGradient) -> int:
        """Loop iterations of an invocation, with those in which lanes meet."""
        turns = ceil_div(self.rows + _before(p), self.together)
        return self.of_lane(p) * (turns + 1) + ending(p)


def ending(p: WeightGradient) -> int:
    """Loop iterations in which the lanes of a workgroup meet."""
    return math.prod(p.kernel) * 2 * _MEET


def _before(p: WeightGradient) -> int:
    """Rows of dy before the newest that a row of x meets."""
    return (p.kernel[1] - 1) * p.dilation[1] // p.stride[1]


def _span(p: WeightGradient, columns: int) -> int:
    return spanned(columns, p.stride[2], p.kernel[2], p.dilation[2])


def _met(p: WeightGradient, columns: int) -> frozenset[int]:
    """The columns of that span that a tap meets."""
    taps = itertools.product(range(columns), range(p.kernel[2]))
    return frozenset(q * p.stride[2] + kx * p.dilation[2] for q, kx in taps)


def _met_rows(p: WeightGradient) -> int:
    """Rows of x that a tap meets, of those that begin with a row of dy."""
    return len({ky * p.dilation[1] % p.stride[1] for ky in range(p.kernel[1])})


def _held(p: WeightGradient, columns: int, together: int) -> int:
    """Sums, elements of dy and of x that an invocation holds."""
    x = together * _met_rows(p) * len(_met(p, columns))
    return math.prod(p.kernel) + (_before(p) + together) * columns + x


def _able(p: WeightGradient) -> list[tuple[int, int]]:
    """Columns, and rows at a time, that an invocation may take."""
    pairs = [(c, t) for c in _COLUMNS for t in _TOGETHER if c < 2 * p.out[2] and t < 2 * p.out[1]]
    fit = [(c, t) for c, t in pairs if _span(p, c) <= MOST_SPAN and _held(p, c, t) <= _MOST_HELD]
    return fit or [(1, 1)]


def _vec4(p: WeightGradient, columns: int) -> tuple[bool, bool]:
    """Whether an invocation's columns of x, and of dy, are whole vec4 of whole rows."""
    return (p.extent[2] % 4 == 0 and columns * p.stride[2] % 4 == 0), (p.out[2] % 4 == 0 and columns % 4 == 0)


def _loads(p: WeightGradient, columns: int) -> tuple[int, int]:
    """Loads of a row of x, by one element and by vec4, as the kernel makes them."""
    lead = p.before[2] % 4
    met = _met(p, columns)
    quads = [[i for i in range(at, at + 4) if i in met] for at in range(lead - 4, _span(p, columns), 4)]
    if not _vec4(p, columns)[0]:
        return len(met), 0
    return sum(len(quad) for quad in quads if len(quad) == 1), sum(len(quad) > 1 for quad in quads)


def _row(p: WeightGradient, columns: int, device: Device) -> float:
    """What a row of an invocation costs beside its products."""
    costs = _COSTS.of(device)

    def lines(stride: int) -> float:
        spanned_bytes = min(stride, costs.lanes) * _element_bytes(p) * costs.lanes
        return costs.line * (max(1.0, spanned_bytes / costs.line_bytes) - 1.0)

    one, four = _loads(p, columns)
    of_x = _met_rows(p) * (one * costs.load + four * costs.load4 + (one + four) * lines(columns * p.stride[2]))
    one, four = (0, columns // 4) if _vec4(p, columns)[1] else (columns, 0)
    of_dy = one * costs.load + four * costs.load4 + (one + four) * lines(columns)
    return of_x + of_dy + costs.row


def _element_bytes(p: WeightGradient) -> int:
    return 4 if p.element == DType.F32 else 2


def _us(p: WeightGradient, walk: Walk, device: Device) -> float:
    """Microseconds of both launches."""
    costs, target = _COSTS.of(device), target_of(device)
    in_a_us = target.value("fma_per_unit") * target.value("clock_mhz")
    products = math.prod(p.kernel) * walk.rows * walk.columns
    of_item = (walk.rows + _before(p)) * _row(p, walk.columns, device) + products + costs.item
    of_lane = walk.of_lane(p) * of_item + costs.ending * math.prod(p.kernel)
    resident = resident_workgroups(device, walk.local, 0, _held(p, walk.columns, walk.together) + _BESIDE)
    # Fewer than keep the unit busy take as long as these, the last ones too.
    unit = Turns(walk.local * of_lane / in_a_us, resident, costs.busy_lanes / walk.local)
    us = launch_us(unit, p.c_out * walk.slices, 1, target, launches=1)
    if walk.slices > 1:
        us += costs.second_pass_launches * target.value("launch_us")
        us += walk.slices * p.size * costs.slice_element / target.compute_units / in_a_us
    return us


def _locals(device: Device) -> tuple[int, ...]:
    return tuple(n for n in _COSTS.of(device).local if n <= most_invocations(device))


def _strips(p: WeightGradient) -> tuple[int, ...]:
    """Rows that a strip may have."""
    return tuple(dict.fromkeys(max(1, ceil_div(p.out[1], strips)) for strips in _STRIPS))


def _counts(p: WeightGradient, device: Device) -> list[int]:
    most = max(1, min(most_in_scratch(p, device), p.n * p.out[1]))
    counts, fewest = slice_counts(p.c_out, DEPTHS, most, device), _fewest(p, device)
    return [c for c in counts if c >= fewest] or [most]


def _fewest(p: WeightGradient, device: Device) -> int:
    """Slices with which every walk ends before the driver ends its loops."""
    most = device.max_loop_iterations
    if most is None:
        return 1
    columns, local = min(c for c, _ in _able(p)), min(_locals(device))
    worst = [Walk(columns, rows, 1, local, 1) for rows in _strips(p)]
    of_strips = most - ending(p)
    return max(ceil_div(walk.items(p), walk.local * (of_strips // (walk.rows + _before(p) + 1))) for walk in worst)


def _in_flight_bytes(p: WeightGradient, device: Device) -> int:
    costs = _COSTS.of(device)
    few = p.element == DType.F32 and max(p.stride) == 1 and math.prod(p.kernel) <= costs.few_taps
    return costs.few_taps_bytes if few else costs.in_flight_bytes


@functools.lru_cache(maxsize=256)
def best(p: WeightGradient, device: Device) -> Walk:
    """The walk that costs least, of those that are not estimated to spill."""
    wanted, able = _in_flight_bytes(p, device) // _element_bytes(p), _able(p)
    kept = [pair for pair in able if not spills(_held(p, *pair) + _BESIDE, device)] or [
        min(able, key=lambda pair: _held(p, *pair))
    ]
    enough = {c: [t for d, t in kept if d == c] for c, _ in kept}
    pairs = [(c, min((t for t in ts if c * t >= wanted), default=max(ts))) for c, ts in enough.items()]
    counts, local = _counts(p, device), _locals(device)[0]
    walks = (
        Walk(columns, rows, together, local, slices)
        for columns, together in pairs
        for rows in _strips(p)
        for slices in counts
    )
    return min(walks, key=lambda walk: _us(p, walk, device))


def params(call: Call, device: Device) -> Legal:
    """How pixels are shared out (`Walk`), and whether lanes meet in a tree rather than in subgroups first."""
    p = WeightGradient.of(call)
    rule, able, costs = best(p, device), _able(p), _COSTS.of(device)
    together = [t for t in _TOGETHER if all((c, t) in able for c in {c for c, _ in able})]
    columns = sorted({c for c, _ in able})
    found = trees(_locals(device), device)
    return {
        "columns": first(rule.columns, columns),
        "rows": first(rule.rows, _strips(p)),
        "together": first(rule.together, together),
        "local": _locals(device),
        "split_k": first(rule.slices, _counts(p, device)),
        "tree": first(int(costs.tree), found) if int(costs.tree) in found else found,
    }


def trees(sizes: Iterable[int], device: Device) -> tuple[int, ...]:
    """Whether lanes may meet in subgroups first (0), where workgroups of all sizes are whole ones, or in a tree (1)."""
    whole = all(local % device.subgroup_size == 0 for local in sizes)
    return (0, 1) if subgroup_arithmetic(device) and whole else (1,)


def meeting(p: WeightGradient, local: int, device: Device) -> dict[str, Word]:
    """The constants of a kernel whose lanes meet."""
    return {"LANES": local, "MEET": _meet(p, local), "SUBGROUP": device.subgroup_size}


def meeting_bytes(p: WeightGradient, local: int, tree: bool, device: Device) -> int:
    """Shared memory in which the lanes of a workgroup meet."""
    parts = local // device.subgroup_size
    return 4 * (_meet(p, local) * local if tree else math.prod(p.kernel) * parts if parts > 1 else 1)


def _meet(p: WeightGradient, local: int) -> int:
    return min(_MEET, 1 << (math.prod(p.kernel) - 1).bit_length(), local)


def _walk(params: Params) -> Walk:
    return Walk(params["columns"], params["rows"], params["together"], params["local"], params["split_k"])


def build(call: Call, device: Device, params: Params) -> Program:
    """Slices and their sum; one slice is stored as dw."""
    p, walk = WeightGradient.of(call), _walk(params)
    split, has_add, shader = walk.slices > 1, call.has("add"), TREE if params["tree"] else SUBGROUPS
    vec4_x, vec4_dy = _vec4(p, walk.columns)
    step = Dispatch(
        shader,
        {"x": "x", "dy": "dy", "add": "add" if has_add and not split else None, "result": "slices" if split else "dw"},
        *over_workgroups(p.c_out * walk.slices, walk.local, device),
        push={
            **{"n": p.n, "c_in": p.c_in, "h": p.extent[1], "w": p.extent[2]},
            **{"c_out": p.c_out, "oh": p.out[1], "ow": p.out[2], "multiplier": p.rows},
            **{"pt": p.before[1], "strip": walk.rows, "slice_count": walk.slices},
            **{"scale": float(call["scale"]), "beta": float(call["beta"]), "first_slice": 0},
        },
        constants=shader.taking(
            {
                **{"TO_SCRATCH": split, "HAS_ADD": has_add and not split},
                **dict(zip(("KH", "KW"), p.kernel[1:], strict=True)),
                **dict(zip(("SH", "SW"), p.stride[1:], strict=True)),
                **dict(zip(("DH", "DW"), p.dilation[1:], strict=True)),
                **{"PL": p.before[2], "COLUMNS": walk.columns, "TOGETHER": walk.together},
                **{"VEC4_X": vec4_x, "VEC4_DY": vec4_dy, "TAIL": p.out[2] % walk.columns != 0},
                **meeting(p, walk.local, device),
            }
        ),
        shared_bytes=meeting_bytes(p, walk.local, bool(params["tree"]), device),
        loop_iterations=walk.iterations(p),
    )
    if not split:
        return Program((step,))
    return Program((step, combine(call, walk.slices, device)), scratch={"slices": 4 * p.size * walk.slices})


def estimated_us(call: Call, device: Device, params: Params) -> float:
    """Microseconds by the values of the parameters, launches included."""
    return _us(WeightGradient.of(call), _walk(params), device)


def note(call: Call, device: Device, params: Params) -> str:
    """What the parameters come to."""
    p, walk = WeightGradient.of(call), _walk(params)
    nbytes = bytes_str(4 * p.size * walk.slices) if walk.slices > 1 else "no"
    return f"{walk.slices} slices of {walk.items(p)} strips of {walk.rows}x{walk.columns}; {nbytes} scratch"


ONE_CHANNEL = Requirement.of(
    "one input channel per group", WeightGradient.of, lambda p: p.channels == 1, lambda p: f"{p.channels} channels"
)
FLAT = Requirement.of(
    "two dimensions",
    WeightGradient.of,
    lambda p: not p.deep,
    lambda p: f"a depth of {p.extent[0]} to {p.out[0]}, by {p.kernel[0]}",
)
FEW_TAPS = Requirement.of(
    f"a kernel of at most {_MOST_TAPS} taps",
    WeightGradient.of,
    lambda p: math.prod(p.kernel) <= _MOST_TAPS,
    lambda p: f"{math.prod(p.kernel)} taps",
)
SHORT = Requirement.of(
    f"a row of x that meets at most {_MOST_WINDOW} rows of dy and taps within {MOST_SPAN} columns",
    WeightGradient.of,
    lambda p: _before(p) < _MOST_WINDOW and _span(p, 1) <= MOST_SPAN,
    lambda p: f"{_before(p) + 1} rows and {_span(p, 1)} columns",
)
MUST = (ONE_CHANNEL, FLAT, FEW_TAPS, SHORT)


def _registers(p: WeightGradient) -> int:
    return min(_held(p, c, t) for c, t in _able(p)) + _BESIDE


IN_REGISTERS = Requirement(
    "taps that registers hold",
    lambda call, device: not spills(_registers(WeightGradient.of(call)), device),
    lambda call, device: (
        f"some {_registers(WeightGradient.of(call))} of {target_of(device).value('registers_per_lane'):.0f} for "
        f"{shape_str(call['w_shape'][2:])}, stride {shape_str(call['stride'])}, dilation {shape_str(call['dilation'])}"
    ),
)


def along_rows(call: Call, device: Device) -> bool:
    """Whether lanes have as many columns as pay with a stride along rows, if there is one."""
    p = WeightGradient.of(call)
    return p.stride[2] == 1 or best(p, device).columns >= _COSTS.of(device).strided_columns


def by_vectors(p: WeightGradient, device: Device) -> bool:
    """Whether lanes load rows of x four elements at a time."""
    return _vec4(p, best(p, device).columns)[0]


ALONG_ROWS = Requirement(
    "as many columns of a lane as pay with a stride along rows",
    along_rows,
    lambda call, device: (
        f"{best(WeightGradient.of(call), device).columns} of rows of {call.shape('dy')[3]}, stride {call['stride'][1]} "
        f"({_COSTS.said(device)})"
    ),
)
TAKEN = Requirement(
    "a device on which strips were faster",
    lambda call, device: _COSTS.of(device).taken,
    lambda call, device: _COSTS.said(device),
)
FEW_OUTPUTS = Requirement(
    "more than one group, and as few output channels of an input channel as are worth reading that again",
    lambda call, device: call["groups"] > 1 and WeightGradient.of(call).rows <= _COSTS.of(device).multiplier,
    lambda call, device: (
        f"{call['groups']} groups of {WeightGradient.of(call).rows}; up to {_COSTS.of(device).multiplier} are"
    ),
)
PREFER = (FEW_OUTPUTS, TAKEN, IN_REGISTERS, ALONG_ROWS)
