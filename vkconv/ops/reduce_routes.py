"""The routes of reduce: how lanes and workgroups meet, and the numbers that each goes by."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

from vkconv.core import DType, bytes_str, ceil_div
from vkconv.device import Device
from vkconv.ops import reduce_kernels as kernels
from vkconv.ops.backward_weight_parts import scratch_budget
from vkconv.ops.backward_weight_splits import compute_units
from vkconv.ops.base import local_sizes
from vkconv.ops.needs import F32_OR_I32, ON_CPU, ON_GPU, float_atomics, loop_iterations
from vkconv.ops.reduce_kernels import SUBGROUP, TREE, Columns, Kernel, Output, Rows, power_of_two
from vkconv.ops.reduce_problem import LOG_SUM_EXP, NOTHING_TO_FINISH, PICKS, Cut, Problem, by_bands, into, whole
from vkconv.route import Call, Need, Params, Route
from vkconv.shader import Dispatch, Program

_MOST_INT = (1 << 31) - 1
_LEAST_LOCAL = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """The numbers of a kind of device. Of the row kernel: lanes at most, loads of four that each should have, and loads
    at a time; of the column kernel: lanes, how many of them across, columns (or fours) of each, and loads at a time. A
    reduction is cut where it has fewer than ``busy`` workgroups for each compute unit, into ``wanted`` of them, none of
    fewer than ``least`` elements."""

    row_local: int
    row_share: int
    row_loads: int
    column_local: int
    across: int
    span: int
    column_loads: int
    busy: int
    wanted: int
    least: int


# lavapipe, 1024x4096, ms: rows by 1, 2, 4 and 8 loads 1.67, 1.68, 1.75, 1.86; columns by 4 fours and 2 loads 2.3, by 8
# and 1 2.1, by 2 and 4 4.6, by 1 and 8 7.6: what a lane takes of a row at once must be long.
_GPU = Policy(256, 4, 8, 256, 64, 1, 8, busy=8, wanted=32, least=4096)
_CPU = Policy(8, 1, 2, 8, 8, 4, 8, busy=1, wanted=2, least=32768)


def _policy(device: Device) -> Policy:
    return _CPU if device.kind == "cpu" else _GPU


_LOADS = (8, 4, 2, 1)
_PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def _first(best: int, values: Sequence[int]) -> tuple[int, ...]:
    return (best, *(v for v in values if v != best))


def _most(values: Sequence[int], limit: int) -> int:
    """The largest of descending values that is within a limit, or the last."""
    return next((v for v in values if v <= limit), values[-1])


def _kernel_params(p: Problem, device: Device, cut: Cut, alone: bool) -> dict[str, tuple[int, ...]]:
    """What the kernels leave open; ``alone``: lanes are those of one subgroup, and in columns do not meet at all. Where
    the driver ends long loops, nothing is open that might make one."""
    legal, most = _open_params(p, device, cut, alone), device.max_loop_iterations
    if most is not None:
        every = (dict(zip(legal, values, strict=True)) for values in itertools.product(*legal.values()))
        if any(_kernel(p, params, TREE).iterations(p, cut, Output(p.function).passes) > most for params in every):
            return {name: values[:1] for name, values in legal.items()}
    return legal


def _open_params(p: Problem, device: Device, cut: Cut, alone: bool) -> dict[str, tuple[int, ...]]:
    policy, locals_ = _policy(device), local_sizes(device, _LEAST_LOCAL, 64, 128, 256, 512, 1024)
    if not p.columns:
        fours = ceil_div(cut.run, 4) * cut.lines
        if alone:
            local: tuple[int, ...] = (device.subgroup_size,)
        else:
            best = min(policy.row_local, max(locals_), power_of_two(fours // policy.row_share))
            local = _first(max(_LEAST_LOCAL, best), locals_)
        return {
            "local": local,
            "loads": _first(_most(_LOADS, max(1, min(policy.row_loads, fours // local[0]))), _LOADS),
        }
    width = 4 if p.by_fours else 1
    columns = ceil_div(p.width, width)
    across = min(device.subgroup_size if alone else policy.across, power_of_two(columns))
    local = (across,) if alone else _first(max(min(policy.column_local, max(locals_)), across), locals_)
    span = _most((4, 2, 1), max(1, min(policy.span, columns // across)))
    rows = max(1, cut.run * cut.lines * across // local[0])
    return {
        "local": local,
        "across": (across,) if alone else _first(across, (1, 8, 16, 32, 64)),
        "span": _first(span, (1, 2, 4, 8, 16)),
        "loads": _first(_most(_LOADS, max(1, min(policy.column_loads // span, rows))), _LOADS),
        "width": (4, 1) if p.by_fours else (1,),
    }


def _kernel(p: Problem, params: Params, form: tuple[tuple[str, str], ...]) -> Kernel:
    local = params["local"]
    if not p.columns:
        return Rows(local, params["loads"], form)
    return Columns(local, min(params["across"], local), params["loads"], params["span"], params["width"])


def _form(device: Device) -> tuple[tuple[str, str], ...]:
    return SUBGROUP if "arithmetic" in device.subgroup_operations else TREE


def _defaults(legal: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    return {name: values[0] for name, values in legal.items()}


def _cut_to_fill(p: Problem, device: Device, alone: bool) -> tuple[Cut, str]:
    """Parts that keep the device busy, and why so many."""
    policy, units = _policy(device), compute_units(device)
    kernel = _kernel(p, _defaults(_kernel_params(p, device, whole(p), alone)), _form(device))
    groups = kernel.groups(p)
    parts, why = 1, f"{groups} workgroups, {policy.busy} for each of {units} compute units keep it busy"
    if groups < policy.busy * units:
        per_group = ceil_div(p.outputs, max(groups, 1)) * p.count
        parts = max(1, min(ceil_div(policy.wanted * units, max(groups, 1)), per_group // policy.least))
    most = device.max_loop_iterations
    if most is not None:
        while kernel.iterations(p, into(p, parts), Output(p.function).passes) > most and parts < max(p.count, 1):
            parts, why = 2 * parts, "the driver ends longer loops"
    return (whole(p) if parts == 1 else into(p, parts)), why


def _cut_by_bands(p: Problem, device: Device, alone: bool) -> tuple[Cut, str]:
    cut, why = by_bands(p)
    return cut or whole(p), why


CutRule = Callable[[Problem, Device, bool], tuple[Cut, str]]


def _cut(p: Problem, device: Device, rule: CutRule, alone: bool, parts: int) -> tuple[Cut, str]:
    """The rule's cut, or the one into as many parts as are asked for."""
    cut, why = rule(p, device, alone)
    return (cut, why) if cut.count(p) == parts else (into(p, parts), f"{parts} asked for")


def _chain(p: Problem, stage: Callable[[Output], Sequence[Dispatch]], parts: int) -> Program:
    """Launches that make one result; log_sum_exp has its maxima made first. ``parts`` are those of an output."""
    steps = stage(Output(p.function, peak="peak" if p.function == LOG_SUM_EXP else ""))
    if p.function == LOG_SUM_EXP:
        steps = (*stage(Output("max", "peak", to_parts=True)), *steps)
    sizes = {"parts": 4 * p.outputs * parts, "peak": 4 * p.outputs}
    made = {bind.buffer for step in steps for bind in step.binds}
    return Program(tuple(steps), scratch={name: size for name, size in sizes.items() if name in made})


def _in_parts(call: Call, device: Device, params: Params, rule: CutRule, alone: bool) -> Program:
    p = Problem.of(call)
    kernel, cut = _kernel(p, params, _form(device)), _cut(p, device, rule, alone, params["parts"])[0]
    parts = cut.count(p)
    if parts == 1:
        return Program((kernel.launch(p, cut, Output(p.function), device),))

    def stage(output: Output) -> Sequence[Dispatch]:
        made = Output(output.function, "parts", to_parts=True, peak=output.peak)
        return kernel.launch(p, cut, made, device), kernels.combine(p, parts, "parts", output, device)

    return _chain(p, stage, parts)


def _parts_params(call: Call, device: Device, rule: CutRule, alone: bool) -> Mapping[str, tuple[int, ...]]:
    p = Problem.of(call)
    cut = rule(p, device, alone)[0]
    parts = cut.count(p)
    most = min(max(p.count, 1), scratch_budget(device) // (4 * max(p.outputs, 1)))
    others = {into(p, n).count(p) for n in _PARTS if n <= most} if device.max_loop_iterations is None else ()
    return {**_kernel_params(p, device, cut, alone), "parts": _first(parts, sorted(others))}


def _whole_program(call: Call, device: Device, params: Params, form: tuple[tuple[str, str], ...]) -> Program:
    p = Problem.of(call)
    return Program((_kernel(p, params, form).launch(p, whole(p), Output(p.function), device),))


def _whole_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    p = Problem.of(call)
    return _kernel_params(p, device, whole(p), False)


def _atomic(call: Call, device: Device, params: Params) -> Program:
    p = Problem.of(call)

    def stage(output: Output) -> Sequence[Dispatch]:
        keys = p.dtype is DType.F32 and output.function in PICKS
        direct = output.function in NOTHING_TO_FINISH and not keys
        target = output.target if direct else "parts"
        sums = Output(output.function, target, to_parts=True, peak=output.peak)
        filled = kernels.combine(p, 0, "x", Output(output.function, target, to_parts=True), device, keys=keys)
        added = kernels.atomic(p, params["items"], bool(params["native"]), params["local"], sums, device)
        rest = () if direct else (kernels.combine(p, 1, "parts", output, device, keys=keys),)
        return filled, added, *rest

    return _chain(p, stage, 1)


def _atomic_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    return {
        "items": (4, 1, 2, 8, 16, 64),
        "local": local_sizes(device, 64, 128, 256),
        "native": (1, 0) if float_atomics(device) else (0,),
    }


# ---- needs


def _sizes(call: Call) -> int:
    return max(spec.size for spec in (*call.operands.values(), *call.outputs.values()) if spec is not None)


INT32 = Need(
    "tensors of fewer than 2^31 elements",
    lambda call, device: _sizes(call) <= _MOST_INT,
    lambda call, device: str(_sizes(call)),
)
ARITHMETIC = Need(
    "arithmetic within subgroups",
    lambda call, device: "arithmetic" in device.subgroup_operations,
    lambda call, device: ", ".join(sorted(device.subgroup_operations)) or "no operations",
)
INNERMOST = Need(
    "the innermost dimension reduced",
    lambda call, device: not Problem.of(call).columns,
    lambda call, device: f"{Problem.of(call).width} neighbours kept",
)
# A row this long keeps the lanes of a workgroup busy; shorter ones are better off with one invocation each.
_LONG_ROW = 64
LONG = Need(
    f"rows of at least {_LONG_ROW} elements, or columns",
    lambda call, device: Problem.of(call).columns or Problem.of(call).count >= _LONG_ROW,
    lambda call, device: f"rows of {Problem.of(call).count}",
)
# lavapipe, against an invocation for each output.
_CPU_ROW, _CPU_WIDTH = 32, 8
VECTORS = Need(
    f"rows of at least {_CPU_ROW} elements, {_CPU_WIDTH} neighbouring columns, or parts for several cores",
    lambda call, device: _in_vectors(Problem.of(call)) or _default_parts(_cut_to_fill, True, call, device) > 1,
    lambda call, device: (
        f"{Problem.of(call).width} columns" if Problem.of(call).columns else f"rows of {Problem.of(call).run}"
    ),
)


def _in_vectors(p: Problem) -> bool:
    return p.width >= _CPU_WIDTH if p.columns else p.run >= _CPU_ROW


ARITHMETIC_OR_COLUMNS = Need(
    "arithmetic within subgroups, or columns",
    lambda call, device: Problem.of(call).columns or "arithmetic" in device.subgroup_operations,
    ARITHMETIC.actual,
)
ASKED_FOR = Need("to be asked for by name", lambda call, device: False, lambda call, device: "not asked for")
SEVERAL_PARTS = Need(
    "too few workgroups to keep the device busy without parts",
    lambda call, device: _default_parts(_cut_to_fill, False, call, device) > 1,
    lambda call, device: _cut_to_fill(Problem.of(call), device, False)[1],
)


def _default_parts(rule: CutRule, alone: bool, call: Call, device: Device) -> int:
    p = Problem.of(call)
    return rule(p, device, alone)[0].count(p)


def _scratch_bytes(rule: CutRule, alone: bool, call: Call, device: Device) -> int:
    parts = _default_parts(rule, alone, call, device)
    return 4 * Problem.of(call).outputs * parts if parts > 1 else 0


def _within_scratch(rule: CutRule, alone: bool) -> Need:
    return Need(
        "partial results within the device's budget of scratch",
        lambda call, device: _scratch_bytes(rule, alone, call, device) <= scratch_budget(device),
        lambda call, device: (
            f"{bytes_str(_scratch_bytes(rule, alone, call, device))}, {bytes_str(scratch_budget(device))} is the most"
        ),
    )


def _iterations(rule: CutRule | None, alone: bool) -> Callable[[Call, Device], int]:
    """Of an invocation, whatever the parameters are."""

    def count(call: Call, device: Device) -> int:
        p = Problem.of(call)
        cut = rule(p, device, alone)[0] if rule else whole(p)
        kernel = _kernel(p, _defaults(_kernel_params(p, device, cut, alone)), TREE)
        parts = cut.count(p)
        return max(kernel.iterations(p, cut, Output(p.function).passes), kernels.combine_iterations(parts))

    return count


def _note(call: Call, device: Device, params: Params, rule: CutRule, alone: bool) -> str:
    p = Problem.of(call)
    cut, why = _cut(p, device, rule, alone, params["parts"])
    parts = cut.count(p)
    scratch = bytes_str(4 * p.outputs * parts) if parts > 1 else "no"
    return f"{parts} parts: {why}; {scratch} scratch; {_kernel(p, params, TREE)}"


def _whole_note(call: Call, device: Device, params: Params) -> str:
    p = Problem.of(call)
    kernel = _kernel(p, params, TREE)
    return f"{kernel.groups(p)} workgroups; {kernel}"


def _in_parts_route(
    name: str,
    why: str,
    rule: CutRule,
    must: Sequence[Need],
    prefer: Sequence[Need],
    source: str = "vkconv",
    alone: bool = False,
) -> Route:
    rows = kernels.ROWS_SUBGROUP if alone else (*kernels.ROWS_TREE, *kernels.ROWS_SUBGROUP)
    columns = kernels.COLUMNS_ALONE if alone else (*kernels.COLUMNS_TREE, *kernels.COLUMNS_ALONE)
    return Route(
        name,
        functools.partial(_in_parts, rule=rule, alone=alone),
        (*rows, *columns, *kernels.COMBINE),
        why,
        must=(*must, _within_scratch(rule, alone), loop_iterations(_iterations(rule, alone))),
        prefer=tuple(prefer),
        source=source,
        params=functools.partial(_parts_params, rule=rule, alone=alone),
        note=functools.partial(_note, rule=rule, alone=alone),
    )


_MUST = (F32_OR_I32, INT32)
ROUTES: tuple[Route, ...] = (
    _in_parts_route(
        "lanes",
        "a subgroup along a row, or four columns of each lane: loads by fours, no shared memory and no barriers",
        _cut_to_fill,
        (*_MUST, ARITHMETIC_OR_COLUMNS),
        (ON_CPU, VECTORS),
        alone=True,
    ),
    _in_parts_route(
        "split",
        "parts of about the square root of the sum; a second pass adds them in a fixed order",
        _cut_by_bands,
        _MUST,
        (ASKED_FOR,),
        source="iree#22275",
    ),
    _in_parts_route(
        "two_pass",
        "as many parts as keep the device busy; a second pass adds them in a fixed order",
        _cut_to_fill,
        _MUST,
        (ON_GPU, SEVERAL_PARTS),
        source="rocMLIR#938",
    ),
    Route(
        "subgroup",
        functools.partial(_whole_program, form=SUBGROUP),
        kernels.ROWS_SUBGROUP,
        "a workgroup for each output: arithmetic within subgroups, and shared memory only between several",
        must=(*_MUST, INNERMOST, ARITHMETIC, loop_iterations(_iterations(None, False))),
        prefer=(ON_GPU, LONG),
        source="rocMLIR#2301",
        params=_whole_params,
        note=_whole_note,
    ),
    Route(
        "tree",
        functools.partial(_whole_program, form=TREE),
        (*kernels.ROWS_TREE, *kernels.COLUMNS_TREE, *kernels.COLUMNS_ALONE),
        "a workgroup for each output or for neighbouring ones: registers first, then a tree in shared memory",
        must=(*_MUST, loop_iterations(_iterations(None, False))),
        prefer=(ON_GPU, LONG),
        source="rocMLIR#1108",
        params=_whole_params,
        note=_whole_note,
    ),
    Route(
        "atomic",
        _atomic,
        (*kernels.ATOMIC, *kernels.COMBINE),
        "the output is filled with the identity, then every invocation combines it with a few elements by one atomic "
        "operation; the order of adding floats changes from run to run, and the last bits with it",
        must=_MUST,
        prefer=(ASKED_FOR,),
        source="rocMLIR#938",
        params=_atomic_params,
        note=lambda call, device, params: (
            f"{params['items']} elements by one operation; "
            f"{'float atomics' if params['native'] else 'compare-and-swap'}; floats are not added in a fixed order"
        ),
        deterministic=False,
    ),
    Route(
        "serial",
        lambda call, device, params: Program((kernels.serial(Problem.of(call), params["local"], device),)),
        kernels.SERIAL,
        "an invocation for each output: no shared memory and no barriers, right anywhere",
        must=(*_MUST, loop_iterations(lambda call, device: kernels.serial_iterations(Problem.of(call)))),
        params=lambda call, device: {
            "local": local_sizes(device, *((8, 16, 32, 64, 128) if _sizes(call) < 4096 else (64, 32, 16, 8, 128)))
        },
    ),
)
