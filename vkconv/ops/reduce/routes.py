"""The routes of reduce: how lanes and workgroups meet."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from vkconv.call import Call
from vkconv.core import DType, bytes_str
from vkconv.device import Device
from vkconv.ops.core import requirements
from vkconv.ops.core.base import defaults, first, local_sizes
from vkconv.ops.core.workgroups import alone, sharing
from vkconv.ops.reduce import kernels
from vkconv.ops.reduce import split as rules
from vkconv.ops.reduce.kernels import SUBGROUP, TREE, Output
from vkconv.ops.reduce.problem import L2, LOG_SUM_EXP, NOTHING_TO_FINISH, PICKS, Problem, into, whole
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route


def _chain(p: Problem, stage: Callable[[Output], Sequence[Dispatch]], parts: int) -> Program:
    """Launches that make one result; log_sum_exp has its maxima made first. ``parts`` are those of an output."""
    steps = stage(Output(p.function, peak="peak" if p.function == LOG_SUM_EXP else ""))
    if p.function == LOG_SUM_EXP:
        steps = (*stage(Output("max", "peak", to_parts=True)), *steps)
    sizes = {"parts": 4 * p.outputs * parts, "peak": 4 * p.outputs}
    made = {bind.buffer for step in steps for bind in step.binds}
    return Program(tuple(steps), scratch={name: size for name, size in sizes.items() if name in made})


def _in_parts(call: Call, device: Device, params: Params, rule: rules.SplitRule, alone: bool) -> Program:
    p = Problem.of(call)
    kernel = rules.kernel_of(p, params, rules.form_of(device))
    split, _ = rules.split_for(p, device, rule, alone, params["parts"])
    parts = split.count(p)
    if parts == 1:
        return Program((kernel.launch(p, split, Output(p.function), device),))

    def stage(output: Output) -> Sequence[Dispatch]:
        made = Output(output.function, "parts", to_parts=True, peak=output.peak)
        return kernel.launch(p, split, made, device), kernels.combine(p, parts, "parts", output, device)

    return _chain(p, stage, parts)


def _parts_params(call: Call, device: Device, rule: rules.SplitRule, alone: bool) -> Mapping[str, tuple[int, ...]]:
    p = Problem.of(call)
    split = rule(p, device, alone)[0]
    parts = split.count(p)
    most = min(max(p.count, 1), requirements.scratch_budget(device) // (4 * max(p.outputs, 1)))
    others = {into(p, n).count(p) for n in rules.PARTS if n <= most} if device.max_loop_iterations is None else ()
    return {**rules.kernel_params(p, device, split, alone), "parts": first(parts, sorted(others))}


def _whole_program(call: Call, device: Device, params: Params, form: tuple[tuple[str, str], ...]) -> Program:
    p = Problem.of(call)
    return Program((rules.kernel_of(p, params, form).launch(p, whole(p), Output(p.function), device),))


def _whole_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    p = Problem.of(call)
    return rules.kernel_params(p, device, whole(p), False)


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
        "items": rules.atomic_items(device),
        "local": alone(device, 64),
        "native": (1, 0) if requirements.float_atomics(device) else (0,),
    }


def _by_one_operation(call: Call, params: Params) -> int:
    items, local = int(params["items"]), int(params["local"])
    return items if Problem.of(call).columns else items * local


def _clusters(call: Call, device: Device, params: Params) -> Program:
    return Program((kernels.clusters(Problem.of(call), params["cluster"], params["local"], device),))


def _clusters_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """Lanes of an output, each of about four elements."""
    lanes = device.subgroup_size
    best = min(lanes, max(2, kernels.power_of_two(-(-Problem.of(call).count // 4))))
    sizes = tuple(n for n in (2, 4, 8, 16, 32) if n <= lanes)
    local = lanes * max(1, sharing(device)[0] // lanes)
    legal = {"cluster": first(best, sizes), "local": first(local, local_sizes(device, *(lanes * n for n in (1, 2, 4))))}
    return legal if device.max_loop_iterations is None else {**legal, "cluster": (best,)}


def _clusters_iterations(call: Call, device: Device) -> int:
    return kernels.clusters_iterations(Problem.of(call), defaults(_clusters_params(call, device))["cluster"])


# ---- requirements


INNERMOST = Requirement.of(
    "the innermost dimension reduced", Problem.of, lambda p: not p.columns, lambda p: f"{p.width} neighbours kept"
)
LONG = Requirement(
    "rows as long as lanes share on such devices, or columns",
    lambda call, device: Problem.of(call).columns or _is_long(Problem.of(call), device),
    lambda call, device: f"rows of {Problem.of(call).count}, at least {requirements.LONG_ROW.of(device)}",
)
LONG_OF_INT64 = Requirement(
    "as many elements for an output as lanes share, and no more columns than these",
    lambda call, device: (
        _is_long(Problem.of(call), device)
        and not (Problem.of(call).columns and Problem.of(call).outputs > Problem.of(call).count)
    ),
    lambda call, device: (
        f"{Problem.of(call).outputs} outputs of {Problem.of(call).count} elements, at least "
        f"{requirements.LONG_ROW.of(device)}"
    ),
)
_SHORT_ROW = Policy("reduce.short_row", int)
SHARED_SHORT = Requirement(
    "rows as short as a few lanes share",
    lambda call, device: Problem.of(call).count >= _SHORT_ROW.of(device),
    lambda call, device: (
        f"rows of {Problem.of(call).count}, at least {_SHORT_ROW.of(device)} ({_SHORT_ROW.said(device)})"
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Vectors:
    """Elements of a row, and neighbouring columns, from which on a CPU driver takes lanes for an output."""

    row: int
    columns: int


_VECTORS = Policy("reduce.vectors", Vectors)
VECTORS = Requirement(
    "rows as long, or as many neighbouring columns, as such drivers take lanes for, or parts for several cores",
    lambda call, device: (
        _in_vectors(Problem.of(call), device) or _default_parts(rules.split_to_fill, True, call, device) > 1
    ),
    lambda call, device: (
        f"{Problem.of(call).width} columns, at least {_VECTORS.of(device).columns}"
        if Problem.of(call).columns
        else f"rows of {Problem.of(call).run}, at least {_VECTORS.of(device).row}"
    ),
)


def _is_long(p: Problem, device: Device) -> bool:
    return p.count >= requirements.LONG_ROW.of(device)


def _in_vectors(p: Problem, device: Device) -> bool:
    return p.width >= _VECTORS.of(device).columns if p.columns else p.run >= _VECTORS.of(device).row


ARITHMETIC_OR_COLUMNS = Requirement(
    "arithmetic within subgroups, or columns",
    lambda call, device: Problem.of(call).columns or requirements.subgroup_arithmetic(device),
    requirements.ARITHMETIC.actual,
)
NOT_BY_LANES = Requirement(
    "a GPU, or a CPU driver that unrolls no loops over tiles",
    lambda call, device: not requirements.unrolls(device),
    requirements.UNROLLS.actual,
)
SEVERAL_PARTS = Requirement(
    "too few workgroups to keep the device busy without parts",
    lambda call, device: _default_parts(rules.split_to_fill, False, call, device) > 1,
    lambda call, device: rules.split_to_fill(Problem.of(call), device, False)[1],
)


def _default_parts(rule: rules.SplitRule, alone: bool, call: Call, device: Device) -> int:
    p = Problem.of(call)
    return rule(p, device, alone)[0].count(p)


def _scratch_bytes(rule: rules.SplitRule, alone: bool, call: Call, device: Device) -> int:
    parts = _default_parts(rule, alone, call, device)
    return 4 * Problem.of(call).outputs * parts if parts > 1 else 0


def _iterations(rule: rules.SplitRule | None, alone: bool) -> Callable[[Call, Device], int]:
    """Of an invocation, whatever the parameters are."""

    def count(call: Call, device: Device) -> int:
        p = Problem.of(call)
        split = rule(p, device, alone)[0] if rule else whole(p)
        kernel = rules.kernel_of(p, defaults(rules.kernel_params(p, device, split, alone)), TREE)
        parts = split.count(p)
        return max(kernel.iterations(p, split, Output(p.function).passes), kernels.combine_iterations(parts))

    return count


def _note(call: Call, device: Device, params: Params, rule: rules.SplitRule, alone: bool) -> str:
    p = Problem.of(call)
    split, why = rules.split_for(p, device, rule, alone, params["parts"])
    parts = split.count(p)
    scratch = bytes_str(4 * p.outputs * parts) if parts > 1 else "no"
    return f"{parts} parts: {why}; {scratch} scratch; {rules.kernel_of(p, params, TREE)}"


def _whole_note(call: Call, device: Device, params: Params) -> str:
    p = Problem.of(call)
    kernel = rules.kernel_of(p, params, TREE)
    return f"{kernel.groups(p)} workgroups; {kernel}"


def _in_parts_route(
    name: str,
    why: str,
    rule: rules.SplitRule,
    must: Sequence[Requirement],
    prefer: Sequence[Requirement],
    source: str = "vkconv",
    alone: bool = False,
    opt_in: str = "",
) -> Route:
    rows = kernels.ROWS_SUBGROUP if alone else (*kernels.ROWS_TREE, *kernels.ROWS_SUBGROUP)
    columns = kernels.COLUMNS_ALONE if alone else (*kernels.COLUMNS_TREE, *kernels.COLUMNS_ALONE)
    return Route(
        name,
        functools.partial(_in_parts, rule=rule, alone=alone),
        (*rows, *columns, *kernels.COMBINE),
        why,
        must=(
            *must,
            requirements.within_scratch(functools.partial(_scratch_bytes, rule, alone)),
            requirements.loop_iterations(_iterations(rule, alone)),
        ),
        prefer=tuple(prefer),
        source=source,
        params=functools.partial(_parts_params, rule=rule, alone=alone),
        note=functools.partial(_note, rule=rule, alone=alone),
        opt_in=opt_in,
    )


ONE_SCALE = Requirement.of(
    "no l2, whose squares may leave the range of f32: parts of it have scales of their own",
    lambda call: call["op"],
    lambda function: function != L2,
    str,
)
_MUST = (requirements.F32_OR_I32, requirements.INT32)
ROUTES: tuple[Route, ...] = (
    _in_parts_route(
        "lanes",
        "a subgroup along a row, or four columns of each lane: vec4 loads, no shared memory and no barriers",
        rules.split_to_fill,
        (*_MUST, ARITHMETIC_OR_COLUMNS),
        (requirements.UNROLLS, VECTORS),
        alone=True,
    ),
    _in_parts_route(
        "split",
        "parts of about the square root of the sum; a second pass adds them in a fixed order",
        rules.split_by_bands,
        _MUST,
        (),
        source="iree#22275",
        opt_in="two_pass fills the device",
    ),
    _in_parts_route(
        "two_pass",
        "as many parts as keep the device busy; a second pass adds them in a fixed order",
        rules.split_to_fill,
        _MUST,
        (NOT_BY_LANES, SEVERAL_PARTS),
        source="rocMLIR#938",
    ),
    Route(
        "subgroup",
        functools.partial(_whole_program, form=SUBGROUP),
        kernels.ROWS_SUBGROUP,
        "a workgroup for each output: arithmetic within subgroups, and shared memory only between several",
        must=(*_MUST, INNERMOST, requirements.ARITHMETIC, requirements.loop_iterations(_iterations(None, False))),
        prefer=(requirements.ON_GPU, LONG),
        source="rocMLIR#2301",
        params=_whole_params,
        note=_whole_note,
    ),
    Route(
        "tree",
        functools.partial(_whole_program, form=TREE),
        (*kernels.ROWS_TREE, *kernels.COLUMNS_TREE, *kernels.COLUMNS_ALONE),
        "a workgroup for each output or for neighbouring ones: registers first, then a tree in shared memory",
        must=(*_MUST, requirements.loop_iterations(_iterations(None, False))),
        prefer=(requirements.ON_GPU, LONG),
        source="rocMLIR#1108",
        params=_whole_params,
        note=_whole_note,
    ),
    Route(
        "clusters",
        _clusters,
        kernels.CLUSTERS,
        "a few lanes of a subgroup for each output: neighbours load neighbouring elements of a short row and meet by "
        "shuffles, without shared memory and barriers",
        must=(*_MUST, INNERMOST, requirements.SHUFFLE, requirements.loop_iterations(_clusters_iterations)),
        prefer=(requirements.ON_GPU, SHARED_SHORT),
        source="rocMLIR#2301",
        params=_clusters_params,
        note=lambda call, device, params: f"{params['cluster']} lanes for each of {Problem.of(call).outputs} outputs",
    ),
    Route(
        "atomic",
        _atomic,
        (*kernels.ATOMIC, *kernels.COMBINE),
        "the output is filled with the identity, then every workgroup combines a row, or every invocation a column, "
        "with a few elements of each lane by one atomic operation; the order of adding floats changes from run to run, "
        "and the last bits with it",
        must=(*_MUST, requirements.NO_HALVES, ONE_SCALE),
        opt_in="floats are added in another order each time",
        source="rocMLIR#938",
        params=_atomic_params,
        note=lambda call, device, params: (
            f"{_by_one_operation(call, params)} elements by one operation; "
            f"{'float atomics' if params['native'] else 'compare-and-swap'}; floats are not added in a fixed order"
        ),
        deterministic=False,
    ),
    Route(
        "int64",
        lambda call, device, params: Program((kernels.int64_tree(Problem.of(call), params["local"], device),)),
        (kernels.INT64_TREE,),
        "64-bit integers, two words each: a workgroup for each output, whose lanes meet in shared memory",
        must=(
            requirements.elements_in(DType.I64),
            requirements.INT32,
            requirements.loop_iterations(
                lambda call, device: kernels.int64_tree(Problem.of(call), 32, device).loop_iterations
            ),
        ),
        prefer=(requirements.ON_GPU, LONG_OF_INT64),
        params=lambda call, device: {"local": alone(device, 32)},
    ),
    Route(
        "serial",
        lambda call, device, params: Program((kernels.serial(Problem.of(call), params["local"], device),)),
        kernels.SERIAL,
        "an invocation for each output: no shared memory and no barriers, right anywhere",
        must=(
            requirements.NUMBERS,
            requirements.INT32,
            requirements.loop_iterations(lambda call, device: kernels.serial_iterations(Problem.of(call))),
        ),
        params=lambda call, device: {"local": kernels.serial_locals(requirements.most_elements(call), device)},
    ),
)
