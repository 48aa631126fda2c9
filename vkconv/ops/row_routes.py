"""The routes that softmax and the normalizations share: who reads a row, how often, and where its values meet.

An op says what its kernel wants for a call (`Kernel`); the shader has a variant for each way a row is shared, of
shaders/include/reduction.glsl, and for rows in registers and in parts.
"""

import dataclasses
from collections.abc import Callable, Mapping

from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.base import linear_groups, local_sizes, most_invocations
from vkconv.ops.needs import F32, ON_CPU, ON_GPU, invocations, loop_iterations
from vkconv.ops.row_sets import WALKS, RowSet
from vkconv.route import Call, Need, Params, Route
from vkconv.shader import Dispatch, Program, Shader, Word, read, write

Defines = tuple[tuple[str, str], ...]

_SUBGROUP, _TREE = ("REDUCTION_SUBGROUP", ""), ("REDUCTION_TREE", "")
_HELD, _PARTS, _PART, _APPLY = ("HELD", ""), ("PARTS", ""), ("PART", ""), ("APPLY", "")


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """What a family's kernel wants for a call: its rows, buffers (x is the first input), push and specialization
    constants after those of the rows, the define of its outputs, how often it visits an element, the words that it
    makes of a part of a row, the items that it is worth holding on a CPU driver, and whether what lies along a row may
    be read by fours where the row may."""

    rows: RowSet
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    push: tuple[Word, ...]
    spec: tuple[Word, ...]
    defines: Defines
    passes: int
    part_words: int
    cpu_items: int
    by_fours: bool = True

    @property
    def fours(self) -> bool:
        return self.by_fours and self.rows.fours


# Lanes of a row that is held, and of a workgroup that rereads one, best first; 128 is what every Vulkan device has.
_HELD_LANES = (32, 64, 128, 256, 512, 1024)
_LANES = (256, 128, 64, 32, 512)
_LEAST_LANES = 128
# Items of four values that a lane holds: by default, and at most where a workgroup has few lanes.
_ITEMS, _MOST_ITEMS, _FEW_LANES = 8, 16, 256
# On a CPU driver subgroups are small and registers lie in its cache, but code is unrolled item by item. lavapipe with 8
# lanes, CPU ms: softmax 16384x64 held 4.8, serial 5.2; 8192x128 3.7 and 5.2, the first run 60; 1024x1000 3.5 and 7.0,
# by rereading subgroups 5.4, the first run 320. layer_norm 8192x128 held 4.8, serial 5.7; 1024x1024 6.0 and 5.5.
_CPU_MOST_ITEMS = 32
_CPU_LONG_CALL = 1 << 18  # elements of a call that is worth compiling more than _ITEMS items
_CPU_LONG_ROW = 256  # softmax, CPU ms of subgroups that reread and serial: 8192x128 6.0 and 5.1, 1024x1000 5.4 and 7.0
_CPU_LANES = 32
# Rows of a workgroup that has a subgroup for each.
_ROWS = (4, 1, 2, 8)
_SERIAL_LOCALS = (64, 32, 16, 8, 128)
_FEW_ROWS_LOCALS = (8, 16, 32, 64, 128)  # few rows: small workgroups spread them over cores
_FEW_ROWS = 4096
# A row this long keeps a workgroup's lanes busy; shorter ones are better off with one invocation each.
_LONG_ROW = 64
# Elements of a row further apart than this share no cache line worth the name: neighbouring rows do.
_NEAR = 8
# Workgroups that fill a large GPU, and elements of a part that are worth a workgroup and a second launch.
_FILL, _LEAST_PART = 1024, 4096
_PARTS_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512)


def sums_by_subgroups(device: Device) -> bool:
    """Whether subgroups have one size and arithmetic."""
    return "arithmetic" in device.subgroup_operations and device.subgroup_sizes == (device.subgroup_size,) * 2


SUBGROUP_SUMS = Need(
    "arithmetic in subgroups of one size",
    lambda call, device: sums_by_subgroups(device),
    lambda call, device: (
        f"subgroups of {' to '.join(str(size) for size in sorted(set(device.subgroup_sizes)))} with "
        f"{', '.join(sorted(device.subgroup_operations)) or 'no operations'}"
    ),
)


def row_routes(stem: str, kernel: Callable[[Call], Kernel], outputs: tuple[Defines, ...] = ((),)) -> tuple[Route, ...]:
    """The routes of an op by its ``kernel``; ``outputs`` are the defines that its calls may have."""
    family = _Family(stem, kernel)

    def variants(*defines: Defines) -> tuple[Shader, ...]:
        return tuple(Shader(stem, defines=(*d, *more)) for d in defines for more in outputs)

    def rows(call: Call) -> RowSet:
        return kernel(call).rows

    long_rows = Need(
        f"rows of at least {_LONG_ROW} elements",
        lambda call, device: rows(call).count >= _LONG_ROW,
        lambda call, device: str(rows(call).count),
    )
    near = Need(
        f"elements of a row at most {_NEAR} apart",
        lambda call, device: rows(call).walk != "strided" or rows(call).run_step <= _NEAR,
        lambda call, device: f"{rows(call).run_step} apart",
    )
    fits = Need(
        "a row that fits in the registers of a workgroup",
        lambda call, device: bool(family.held_lanes(call, device)),
        lambda call, device: f"{rows(call).count} elements",
    )
    pays = Need(
        f"a GPU; or a CPU driver, and a row that its subgroups hold in few registers, in a call of {_CPU_LONG_CALL} "
        f"elements where it takes more than {_ITEMS} fours of each lane",
        family.holding_pays,
        lambda call, device: f"{device.kind}, {rows(call).rows} rows of {rows(call).count}",
    )
    few_long_rows = Need(
        f"rows too few for {_FILL} workgroups, with parts of at least {_LEAST_PART} elements",
        lambda call, device: _parts(rows(call)) > 1,
        lambda call, device: f"{rows(call).rows} rows of {rows(call).count}",
    )
    few_or_long = Need(
        f"rows of at least {_CPU_LONG_ROW} elements, or fewer than {_CPU_LANES} rows",
        lambda call, device: rows(call).count >= _CPU_LONG_ROW or rows(call).rows < _CPU_LANES,
        lambda call, device: f"{rows(call).rows} rows of {rows(call).count}",
    )
    bindings = Need(
        "a binding for the parts beside those of the call",
        lambda call, device: family.buffers(call) < device.limit("maxPerStageDescriptorStorageBuffers"),
        lambda call, device: (
            f"{family.buffers(call)} buffers, it allows {device.limit('maxPerStageDescriptorStorageBuffers')}"
        ),
    )
    groups = (invocations(_LEAST_LANES),)
    return (
        Route(
            "split_rows",
            family.split,
            (*variants((_SUBGROUP, _PARTS, _APPLY), (_TREE, _PARTS, _APPLY)), *family.part_shaders),
            "few long rows would leave most of the device idle: a workgroup for each part of a row, then one for each "
            "part again that combines what all of them made, in fixed order",
            must=(F32, *groups, bindings, loop_iterations(family.split_iterations)),
            prefer=(ON_GPU, few_long_rows),
            params=family.split_params,
        ),
        Route(
            "one_pass",
            family.one_pass,
            variants((_SUBGROUP, _HELD), (_TREE, _HELD)),
            "the row stays in registers, so that it is read once: those of a subgroup, whose lanes meet without shared "
            "memory, where it fits there, else of a workgroup",
            must=(F32, *groups, fits),
            prefer=(long_rows, near, pays),
            source="OneFlow, How to implement an efficient softmax CUDA kernel: a warp for each row of up to 1024",
            params=family.one_pass_params,
        ),
        Route(
            "subgroup",
            family.by_subgroups,
            variants((_SUBGROUP,)),
            "a subgroup for each row and no shared memory: as many lanes for few rows, right for any length",
            must=(F32, SUBGROUP_SUMS, loop_iterations(family.subgroup_iterations)),
            prefer=(ON_CPU, few_or_long, near),
            params=family.subgroup_params,
        ),
        Route(
            "workgroup",
            family.by_workgroups,
            variants((_SUBGROUP,), (_TREE,)),
            "a workgroup for each row, which it reads again for each step: rows too long for registers",
            must=(F32, *groups, loop_iterations(family.workgroup_iterations)),
            prefer=(ON_GPU, long_rows, near),
            params=family.workgroup_params,
        ),
        Route(
            "serial",
            family.serial,
            variants(()),
            "an invocation for each row: neighbouring rows side by side where elements of a row lie far apart, no "
            "shared memory and no barriers, right anywhere, best on a CPU driver",
            must=(F32, loop_iterations(family.serial_iterations)),
            params=family.serial_params,
        ),
    )


def _parts(rows: RowSet) -> int:
    """Parts of each row by rule: as many as fill the device, none too short; 1 where that is not worth it."""
    wanted = min(_FILL // max(1, rows.rows), rows.count // _LEAST_PART)
    return max((n for n in _PARTS_SIZES if n <= wanted), default=1)


def _chunk(rows: RowSet, parts: int) -> int:
    """Elements of each part of a row but the last."""
    return 4 * max(1, ceil_div(rows.count, 4 * parts))


class _Family:
    """Programs and parameters of the routes of one shader."""

    def __init__(self, stem: str, kernel: Callable[[Call], Kernel]) -> None:
        self.stem, self.kernel = stem, kernel
        self.part_shaders = tuple(Shader(stem, defines=(meet, _PARTS, _PART)) for meet in (_SUBGROUP, _TREE))

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
        rows, made = kernel.rows, _PART in defines
        chunk = _chunk(rows, parts)
        groups = linear_groups(ceil_div(rows.rows * parts, rows_of_group) * local, local, device)
        inputs = ("x",) if made else kernel.inputs
        binds = (*read(*inputs), *write(*(("parts",) if made else kernel.outputs)))
        items = ceil_div(chunk, 4 * lanes)
        return Dispatch(
            Shader(self.stem, defines=(*defines, *(() if made else kernel.defines))),
            binds + (read("parts") if _APPLY in defines else ()),
            groups,
            (local, 1, 1),
            push=(*rows.words, parts, chunk, *kernel.push),
            spec=(bool(params["fours"]), WALKS.index(rows.walk), lanes, items, *kernel.spec),
            shared_bytes=4 * local if {_TREE, _SUBGROUP} & {*defines} else 0,
            loop_iterations=0 if _HELD in defines else kernel.passes * items + 2 * parts + _MEETING,
        )

    def _fours(self, call: Call) -> tuple[int, ...]:
        return (1, 0) if self.kernel(call).fours else (0,)

    def _rows_of_group(self, call: Call, device: Device) -> tuple[int, ...]:
        """Rows of a workgroup with a subgroup for each; one where there are few, so that they spread over cores."""
        sizes = _ROWS if self.kernel(call).rows.rows >= _CPU_LANES else sorted(_ROWS)
        return tuple(n for n in sizes if n * device.subgroup_size <= most_invocations(device))

    def buffers(self, call: Call) -> int:
        """Storage buffers of a launch that makes results."""
        kernel = self.kernel(call)
        return len(kernel.inputs) + len(kernel.outputs)

    # Rows in registers.

    def held_lanes(self, call: Call, device: Device) -> tuple[int, ...]:
        """Lanes that can hold a row, the default first."""
        least = device.subgroup_size if sums_by_subgroups(device) else _HELD_LANES[0]
        rows = self.kernel(call).rows
        if not rows.count:
            return ()
        lanes = [n for n in sorted({least, *_HELD_LANES}) if n % least == 0 and n <= most_invocations(device)]
        if device.kind == "cpu":
            return tuple(n for n in lanes if rows.items(n) <= _CPU_MOST_ITEMS)
        holding = [n for n in lanes if rows.items(n) <= (_MOST_ITEMS if n <= _FEW_LANES else _ITEMS)]
        return tuple(sorted(holding, key=lambda n: (rows.items(n) > _ITEMS, n)))

    def holding_pays(self, call: Call, device: Device) -> bool:
        """Whether holding rows is preferred, as far as the kind of device decides it."""
        if device.kind != "cpu":
            return True
        kernel = self.kernel(call)
        items, elements = kernel.rows.items(device.subgroup_size), kernel.rows.rows * kernel.rows.count
        long_enough = items <= _ITEMS or elements >= _CPU_LONG_CALL
        return sums_by_subgroups(device) and items <= kernel.cpu_items and long_enough

    def one_pass_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        lanes = self.held_lanes(call, device)
        rows, fours = self._rows_of_group(call, device), self._fours(call)
        return {"lanes": lanes, "rows": rows, "fours": fours, "tree": _trees(device)}

    def one_pass(self, call: Call, device: Device, params: Params) -> Program:
        lanes, meet = params["lanes"], _meeting(params)
        rows = params["rows"] if meet is _SUBGROUP and lanes == device.subgroup_size else 1
        return Program((self._dispatch(call, device, params, (meet, _HELD), lanes, rows * lanes, rows),))

    # Rows read again for every step.

    def subgroup_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        return {"rows": self._rows_of_group(call, device), "fours": self._fours(call)}

    def by_subgroups(self, call: Call, device: Device, params: Params) -> Program:
        lanes, rows = device.subgroup_size, params["rows"]
        return Program((self._dispatch(call, device, params, (_SUBGROUP,), lanes, rows * lanes, rows),))

    def workgroup_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        given = {
            "local": _locals(device, self.kernel(call).rows.count),
            "fours": self._fours(call),
            "tree": _trees(device),
        }
        return self._ending(call, device, self.by_workgroups, given, "local")

    def by_workgroups(self, call: Call, device: Device, params: Params) -> Program:
        local = params["local"]
        return Program((self._dispatch(call, device, params, (_meeting(params),), local, local),))

    def serial_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        sizes = _FEW_ROWS_LOCALS if self.kernel(call).rows.rows < _FEW_ROWS else _SERIAL_LOCALS
        return {"local": local_sizes(device, *sizes), "fours": self._fours(call)}

    def serial(self, call: Call, device: Device, params: Params) -> Program:
        local = params["local"]
        return Program((self._dispatch(call, device, params, (), 1, local, local),))

    # Parts of rows.

    def split_params(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        rows = self.kernel(call).rows
        rule = max(_PARTS_SIZES[0], _parts(rows))
        more = [n for n in _PARTS_SIZES if n != rule and n <= max(rule, ceil_div(rows.count, 4))]
        given: Mapping[str, tuple[int, ...]] = {
            "parts": (rule, *more),
            "local": _locals(device, _chunk(rows, rule)),
            "fours": self._fours(call),
            "tree": _trees(device),
        }
        given = self._ending(call, device, self.split, given, "local")
        fewest = {**given, "local": (min(given["local"]),)}
        return {**given, "parts": self._ending(call, device, self.split, fewest, "parts")["parts"]}

    def split(self, call: Call, device: Device, params: Params) -> Program:
        kernel, local, meet = self.kernel(call), params["local"], _meeting(params)
        # Chunks are whole fours: the last parts of a short row would have nothing left.
        parts = ceil_div(kernel.rows.count, _chunk(kernel.rows, params["parts"])) or 1
        steps = tuple(
            self._dispatch(call, device, params, (meet, _PARTS, which), local, local, parts=parts)
            for which in (_PART, _APPLY)
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
            others = _defaults(params)
            ending = [n for n in values[1:] if _iterations(build(call, device, {**others, name: n})) <= most]
            values = (values[0], *ending)
        return {**params, name: values}

    def split_iterations(self, call: Call, device: Device) -> int:
        return _iterations(self.split(call, device, _defaults(self.split_params(call, device))))

    def subgroup_iterations(self, call: Call, device: Device) -> int:
        return _iterations(self.by_subgroups(call, device, _defaults(self.subgroup_params(call, device))))

    def workgroup_iterations(self, call: Call, device: Device) -> int:
        return _iterations(self.by_workgroups(call, device, _defaults(self.workgroup_params(call, device))))

    def serial_iterations(self, call: Call, device: Device) -> int:
        return _iterations(self.serial(call, device, _defaults(self.serial_params(call, device))))


# Steps of the trees in which the lanes of a workgroup meet, all of them together.
_MEETING = 64


def _iterations(program: Program) -> int:
    return max(step.loop_iterations for step in program.steps)


def _defaults(params: Mapping[str, tuple[int, ...]]) -> Params:
    return {name: values[0] for name, values in params.items()}


def _trees(device: Device) -> tuple[int, ...]:
    """Whether lanes meet in a tree in shared memory, rather than in subgroups first."""
    return (0, 1) if sums_by_subgroups(device) else (1,)


def _meeting(params: Params) -> tuple[str, str]:
    return _TREE if params["tree"] else _SUBGROUP


def _locals(device: Device, elements: int) -> tuple[int, ...]:
    """Workgroup sizes that subgroups divide, first the best one of which each lane has a four of the elements."""
    fit = [n for n in _LANES if n <= most_invocations(device) and n % device.subgroup_size == 0] or [_LEAST_LANES]
    best = next((n for n in fit if 4 * n <= elements), min(fit))
    return (best, *(n for n in fit if n != best))
