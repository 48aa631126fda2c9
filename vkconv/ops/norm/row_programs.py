"""Programs of the routes that softmax and the normalizations share, and the legal values of their parameters.

An op says what its kernel wants for a call (`RowKernel`); the shader has a variant for each way in which lanes share a
row, of shaders/include/reduction.glsl, and for rows in registers and in parts.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

from vkconv import kernel as declared
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.cost import scaled
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import defaults, first, local_sizes, most_invocations, over_workgroups
from vkconv.ops.core.requirements import lane_by_lane, most_iterations, subgroup_arithmetic, unrolls
from vkconv.ops.core.workgroups import WORKGROUPS, alone_or_spread, sharing
from vkconv.ops.kernels import compiled
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.norm.row_sets import WALKS, RowSet
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.route import Params

Defines = tuple[tuple[str, str], ...]

SUBGROUP, TREE = ("REDUCTION_SUBGROUP", ""), ("REDUCTION_TREE", "")
CLUSTERS = ("CLUSTERS", "")
REGISTERS, PARTS, PART, APPLY = ("REGISTERS", ""), ("PARTS", ""), ("PART", ""), ("APPLY", "")


@dataclasses.dataclass(frozen=True, slots=True)
class RowKernel:
    """What a family's kernel wants for a call.

    ``buffers`` are those of the launch that makes results; ``push`` and ``constants`` come beside those of the rows;
    ``defines`` says which outputs there are. It visits an element in ``passes``, and makes ``part_words`` of a part of
    a row, of a ``kind`` by which a CPU driver holds rows. ``by_vec4`` is False where what lies along a row cannot be
    read by vec4.
    """

    rows: RowSet
    buffers: Mapping[str, str | None]
    push: Mapping[str, Word]
    constants: Mapping[str, Word]
    defines: Defines
    passes: int
    part_words: int
    kind: Literal["softmax", "statistics"]
    by_vec4: bool = True

    @property
    def vec4(self) -> bool:
        """Whether rows are read by vec4."""
        return self.by_vec4 and self.rows.vec4


# Lanes of a row in registers, and of a workgroup that rereads one, best first; 128 is what every Vulkan device has.
_REGISTER_LANES = (32, 64, 128, 256, 512, 1024)
LEAST_LANES = 128
# Items of four values that the kernels which hold rows are unrolled for at most, where one lane has a row.
MOST_ITEMS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class RowPolicy:
    """The numbers of a device: items of four values that a lane holds at most, where the workgroup has ``few_lanes``
    and where it has more, and by default; items up to which a row of many lanes, and one of one lane or of some lanes
    of a subgroup, is compiled for any call; elements of a call that is worth compiling a long row of many lanes for,
    and one of one lane; and, for each compute unit, rows of which one for each lane fills it, where their elements lie
    far apart, and workgroups that fill it, and rows below which those of the serial kernel are small, to spread over
    the units; rows of a workgroup that has a subgroup for each, where there are no fewer than ``few_rows``: those
    spread over cores. Rows are cut into parts of at least ``least_part`` elements, which are worth a workgroup and a
    second launch, and into no fewer than ``least_parts``, which pay for reading a row twice. Where subgroups read rows
    again they are of ``long_row`` elements, or few. Elements of a row that lie further apart than ``near`` share no
    cache line worth the name: neighbouring rows do."""

    few_lanes: int
    few_lanes_items: int
    items: int
    default_items: int
    compiled_items: int
    compiled_items_one_lane: int
    long_call: int
    long_call_one_lane: int
    rows_per_unit: float
    workgroups_per_unit: float
    small_workgroup_rows_per_unit: float
    rows_of_group: int
    few_rows: int
    least_part: int
    least_parts: int
    long_row: int
    near: int


_POLICY = Policy("norm.rows", RowPolicy)
_HELD = Policy("norm.held_items", dict[str, int])


def is_few_or_long(rows: RowSet, device: Device) -> bool:
    """Whether rows are as few, or as long, as subgroups read again."""
    return rows.rows < _POLICY.of(device).few_rows or rows.count >= _POLICY.of(device).long_row


def is_near(rows: RowSet, device: Device) -> bool:
    """Whether neighbours of a row share cache lines."""
    return rows.walk != "strided" or rows.run_step <= _POLICY.of(device).near


def filling_rows(device: Device) -> int:
    """Rows of which one for each lane fills the device."""
    return scaled(_POLICY.of(device).rows_per_unit, device)


def filling_workgroups(device: Device) -> int:
    """Workgroups that fill the device."""
    return scaled(_POLICY.of(device).workgroups_per_unit, device)


# Rows of a workgroup that has a subgroup for each.
_ROWS = (1, 2, 4, 8)
# Lanes of a subgroup that share a short row.
_CLUSTERS = (2, 4, 8, 16, 32, 64)
_PARTS_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512)


def parts_by_rule(rows: RowSet, device: Device) -> int:
    """Parts of each row by rule: as many as fill the device, none too short; 1 where that is not worth it."""
    most = _POLICY.of(device)
    wanted = min(filling_workgroups(device) // max(1, rows.rows), rows.count // most.least_part)
    return max((n for n in _PARTS_SIZES if most.least_parts <= n <= wanted), default=1)


def _chunk(rows: RowSet, parts: int) -> int:
    """Elements of each part of a row but the last."""
    return 4 * max(1, ceil_div(rows.count, 4 * parts))


class RowPrograms:
    """Programs and parameters of the routes of one shader."""

    def __init__(self, shader: declared.Kernel, kernel: Callable[[Call], RowKernel]) -> None:
        self.shader, self.kernel = shader, kernel
        self.part_shaders = tuple(Shader(shader, defines=(meet, PARTS, PART)) for meet in (SUBGROUP, TREE))

    def _dispatch(
        self,
        call: Call,
        device: Device,
        params: Params,
        defines: Defines,
        lanes: int,
        local: int,
        rows_of_group: int = 1,
        parts: int = 1,
    ) -> Dispatch:
        """One launch with ``lanes`` for each row or part of one; ``defines`` say how they meet."""
        kernel = self.kernel(call)
        rows, made = kernel.rows, PART in defines
        chunk = _chunk(rows, parts)
        buffers = {"x": "x"} if made else kernel.buffers
        items = ceil_div(chunk, 4 * lanes)
        rows_as = {"VEC4": bool(params["vec4"]), "WALK": WALKS.index(rows.walk), "LANES": lanes, "ITEMS": items}
        shader = Shader(self.shader, defines=(*defines, *(() if made else kernel.defines)))
        return Dispatch(
            shader,
            {**buffers, **({"made": "parts"} if made or APPLY in defines else {})},
            *over_workgroups(ceil_div(rows.rows * parts, rows_of_group), local, device),
            push=shader.taking({**rows.push, "parts": parts, "chunk": chunk, **kernel.push}),
            constants=shader.taking({**rows_as, **kernel.constants}),
            shared_bytes=4 * local if {TREE, SUBGROUP} & {*defines} else 0,
            loop_iterations=0 if REGISTERS in defines else kernel.passes * items + 2 * parts + _MEETING,
        )

    def _vec4(self, call: Call) -> tuple[int, ...]:
        return (1, 0) if self.kernel(call).vec4 else (0,)

    def _rows_of_group(self, call: Call, device: Device) -> tuple[int, ...]:
        """Rows of a workgroup with a subgroup for each; one where there are few, so that they spread over cores."""
        most = _POLICY.of(device)
        sizes = first(most.rows_of_group, _ROWS) if self.kernel(call).rows.rows >= most.few_rows else _ROWS
        return tuple(n for n in sizes if n * device.subgroup_size <= most_invocations(device))

    def buffers(self, call: Call) -> int:
        """Storage buffers of a launch that makes results."""
        return len(self.kernel(call).buffers)

    # Rows in registers.

    def register_lanes(self, call: Call, device: Device) -> tuple[int, ...]:
        """Lanes that can hold a row, the default first: of few items, and of those that spill in no way."""
        least = device.subgroup_size if subgroup_arithmetic(device) else _REGISTER_LANES[0]
        rows = self.kernel(call).rows
        if not rows.count:
            return ()
        lanes = [n for n in sorted({least, *_REGISTER_LANES}) if n % least == 0 and n <= most_invocations(device)]
        most = _POLICY.of(device)
        holding = [n for n in lanes if rows.items(n) <= (most.few_lanes_items if n <= most.few_lanes else most.items)]
        spill = {n: not self._kept(call, device, n) for n in holding}
        return tuple(sorted(holding, key=lambda n: (spill[n], rows.items(n) > most.default_items, n)))

    def holding_pays(self, call: Call, device: Device) -> bool:
        """Whether holding rows is preferred, as far as the kind of device decides it."""
        kernel = self.kernel(call)
        items, elements = kernel.rows.items(device.subgroup_size), kernel.rows.rows * kernel.rows.count
        by_subgroups = subgroup_arithmetic(device) and items <= _HELD.of(device)[kernel.kind]
        long_enough = items <= _POLICY.of(device).compiled_items or elements >= _POLICY.of(device).long_call
        lanes = self.register_lanes(call, device)
        spills = bool(lanes) and not self._kept(call, device, lanes[0])
        return long_enough and not spills and (not lane_by_lane(device) or (by_subgroups and unrolls(device)))

    def lane_pays(self, call: Call, device: Device) -> bool:
        """Whether one lane for a row is preferred, as far as the kind of device decides it."""
        rows, policy = self.kernel(call).rows, _POLICY.of(device)
        return rows.items(1) <= policy.compiled_items_one_lane or rows.rows * rows.count >= policy.long_call_one_lane

    def lane_keeps(self, call: Call, device: Device) -> bool:
        """Whether one lane holds a row in registers, as far as is known: the GPU's compiler spilled neither as many
        items nor fewer."""
        element, sizes = element_of(call), range(1, self.kernel(call).rows.items(1) + 1)
        return all(compiled.fits(self.shader, {"LANES": 1, "ITEMS": n}, element, device) is not False for n in sizes)

    def one_pass_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        lanes = self.register_lanes(call, device)
        rows, vec4, trees = self._rows_of_group(call, device), self._vec4(call), _trees(device)
        kept = self._kept(call, device, lanes[0]) if lanes else ()
        return {"lanes": lanes, "rows": rows, "vec4": vec4, "tree": first((*kept, *trees)[0], trees)}

    def _kept(self, call: Call, device: Device, lanes: int) -> tuple[int, ...]:
        """The values of ``tree`` with which so many lanes hold a row, as far as is known, in registers: the GPU's
        compiler spilled neither as many items of a lane nor fewer. One that makes loops of subgroup arithmetic needs
        registers for them."""
        element = element_of(call)
        sizes = [{"LANES": lanes, "ITEMS": n} for n in range(1, self.kernel(call).rows.items(lanes) + 1)]
        forms = {0: SUBGROUP[0], 1: ""}
        return tuple(
            tree
            for tree in _trees(device)
            if all(compiled.fits(self.shader, size, element, device, forms[tree]) is not False for size in sizes)
        )

    def one_pass(self, call: Call, device: Device, params: Params) -> Program:
        lanes, meet = params["lanes"], _meeting(params)
        rows = params["rows"] if meet is SUBGROUP and lanes == device.subgroup_size else 1
        return Program((self._dispatch(call, device, params, (meet, REGISTERS), lanes, rows * lanes, rows),))

    def cluster_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        """The fewest lanes first that hold a row as one item each, or else the most."""
        rows, lanes, most = self.kernel(call).rows, device.subgroup_size, _POLICY.of(device).compiled_items_one_lane
        holding = [n for n in _CLUSTERS if lanes % n == 0 and 0 < rows.items(n) <= most]
        best = (next((n for n in holding if rows.items(n) == 1), holding[-1]),) if holding else ()
        sizes = [n for n in sharing(device) if n % lanes == 0]
        return {"lanes": tuple(dict.fromkeys((*best, *holding))), "local": tuple(sizes), "vec4": self._vec4(call)}

    def clusters(self, call: Call, device: Device, params: Params) -> Program:
        """Several rows of each subgroup."""
        lanes, local = params["lanes"], params["local"]
        defines = (SUBGROUP, REGISTERS, CLUSTERS)
        return Program((self._dispatch(call, device, params, defines, lanes, local, local // lanes),))

    def one_lane(self, call: Call, device: Device, params: Params) -> Program:
        local = params["local"]
        return Program((self._dispatch(call, device, params, (REGISTERS,), 1, local, local),))

    def note(self, call: Call, device: Device, params: Params) -> str:
        """What a lane holds by the routes that hold rows."""
        lanes = params.get("lanes", 1)
        each = f"{self.kernel(call).rows.items(lanes)} x 4 values"
        return f"each of {lanes} lanes holds {each} of a row" if lanes > 1 else f"each lane holds {each}, a whole row"

    # Rows read again for every step.

    def subgroup_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        return {"rows": self._rows_of_group(call, device), "vec4": self._vec4(call)}

    def by_subgroups(self, call: Call, device: Device, params: Params) -> Program:
        lanes, rows = device.subgroup_size, params["rows"]
        return Program((self._dispatch(call, device, params, (SUBGROUP,), lanes, rows * lanes, rows),))

    def workgroup_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        local = _locals(device, self.kernel(call).rows.count)
        given = {"local": local, "vec4": self._vec4(call), "tree": _trees(device)}
        return self._ending(call, device, self.by_workgroups, given, "local")

    def by_workgroups(self, call: Call, device: Device, params: Params) -> Program:
        local = params["local"]
        return Program((self._dispatch(call, device, params, (_meeting(params),), local, local),))

    def serial_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        few = scaled(_POLICY.of(device).small_workgroup_rows_per_unit, device)
        return {"local": alone_or_spread(device, self.kernel(call).rows.rows < few), "vec4": self._vec4(call)}

    def serial(self, call: Call, device: Device, params: Params) -> Program:
        local = params["local"]
        return Program((self._dispatch(call, device, params, (), 1, local, local),))

    # Parts of rows.

    def split_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        rows = self.kernel(call).rows
        rule = max(_PARTS_SIZES[0], parts_by_rule(rows, device))
        more = [n for n in _PARTS_SIZES if n != rule and n <= max(rule, ceil_div(rows.count, 4))]
        local, open_ = _locals(device, _chunk(rows, rule)), {"vec4": self._vec4(call), "tree": _trees(device)}
        given = self._ending(call, device, self.split, {"parts": (rule, *more), "local": local, **open_}, "local")
        fewest = {**given, "local": (min(given["local"]),)}
        return {**given, "parts": self._ending(call, device, self.split, fewest, "parts")["parts"]}

    def split(self, call: Call, device: Device, params: Params) -> Program:
        kernel, local, meet = self.kernel(call), params["local"], _meeting(params)
        # Chunks are whole vec4: the last parts of a short row would have nothing left.
        parts = ceil_div(kernel.rows.count, _chunk(kernel.rows, params["parts"])) or 1
        steps = tuple(
            self._dispatch(call, device, params, (meet, PARTS, which), local, local, parts=parts)
            for which in (PART, APPLY)
        )
        return Program(steps, scratch={"parts": 4 * kernel.part_words * kernel.rows.rows * parts})

    # Loop iterations of one invocation.

    def _ending(
        self,
        call: Call,
        device: Device,
        build: Callable[[Call, Device, Params], Program],
        params: Mapping[str, tuple[int, ...]],
        name: str,
    ) -> dict[str, tuple[int, ...]]:
        """The parameters with the default and those values of one with which the driver runs all loops to the end."""
        most, values = device.max_loop_iterations, params[name]
        if most is not None:
            others = defaults(params)
            ending = [n for n in values[1:] if most_iterations(build(call, device, {**others, name: n})) <= most]
            values = (values[0], *ending)
        return {**params, name: values}


# Steps of the trees in which the lanes of a workgroup meet, all of them together.
_MEETING = 64


def _trees(device: Device) -> tuple[int, ...]:
    """Whether lanes meet in a tree in shared memory, rather than in subgroups first."""
    return (0, 1) if subgroup_arithmetic(device) else (1,)


def _meeting(params: Params) -> tuple[str, str]:
    return TREE if params["tree"] else SUBGROUP


def _locals(device: Device, elements: int) -> tuple[int, ...]:
    """Workgroup sizes that subgroups divide, first the best one of which each lane has four elements."""
    able = local_sizes(device, *WORKGROUPS.of(device).meeting)
    fit = [n for n in able if n <= most_invocations(device) and n % device.subgroup_size == 0] or [LEAST_LANES]
    best = next((n for n in fit if 4 * n <= elements), min(fit))
    return first(best, fit)
