"""The numbers that the routes of reduce go by: sizes of their kernels, and how many parts a reduction is split into."""

import dataclasses
from collections.abc import Callable, Sequence

from vkconv.core import ceil_div
from vkconv.cost import compute_units
from vkconv.device import Device
from vkconv.ops.core.base import defaults, first, local_sizes
from vkconv.ops.core.requirements import subgroup_arithmetic
from vkconv.ops.reduce.kernels import SUBGROUP, TREE, Columns, Output, Rows, Tiling, power_of_two
from vkconv.ops.reduce.problem import Problem, Split, by_bands, into, whole
from vkconv.policy import Policy
from vkconv.route import Params

LOCALS = (32, 64, 128, 256, 512, 1024)  # of workgroups whose lanes meet


@dataclasses.dataclass(frozen=True, slots=True)
class KernelSizes:
    """The numbers of a device.

    Of the row kernel: lanes at most, vec4 loads that each should have, and loads at a time. Of the column kernel:
    lanes, how many of them across, columns (or vec4) of each, and loads at a time. A reduction is split where it has
    fewer than ``busy`` workgroups for each compute unit, into ``wanted`` of them, none of fewer than ``least``
    elements. ``atomic_items``: elements of an invocation that adds with atomics.
    """

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
    atomic_items: int


_POLICY = Policy("reduce.kernels", KernelSizes)


LOADS = (8, 4, 2, 1)  # elements, or vec4, that an invocation may load at a time
PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


_ATOMIC_ITEMS = (1, 2, 4, 8, 16, 64)


def atomic_items(device: Device) -> tuple[int, ...]:
    """Elements that an invocation may add up before it adds with atomics, the default first."""
    return first(_POLICY.of(device).atomic_items, _ATOMIC_ITEMS)


def _most(values: Sequence[int], limit: int) -> int:
    """The largest of descending values that is within a limit, or the last."""
    return next((v for v in values if v <= limit), values[-1])


def kernel_params(p: Problem, device: Device, split: Split, alone: bool) -> dict[str, tuple[int, ...]]:
    """What the kernels leave open; ``alone``: lanes are those of one subgroup, and in columns do not meet at all. Where
    the driver ends long loops, nothing is open that might make one."""
    legal, most = _open_params(p, device, split, alone), device.max_loop_iterations
    if most is not None:
        fewest = {name: max(values) if name == "across" else min(values) for name, values in legal.items()}
        ends = (fewest, {name: max(values) for name, values in legal.items()})
        if any(kernel_of(p, params, TREE).iterations(p, split, Output(p.function).passes) > most for params in ends):
            return {name: values[:1] for name, values in legal.items()}
    return legal


def _open_params(p: Problem, device: Device, split: Split, alone: bool) -> dict[str, tuple[int, ...]]:
    policy, locals_ = _POLICY.of(device), local_sizes(device, *LOCALS)
    if not p.columns:
        loads = ceil_div(split.run, 4) * split.lines
        if alone:
            local: tuple[int, ...] = (device.subgroup_size,)
        else:
            best = min(policy.row_local, max(locals_), power_of_two(loads // policy.row_share))
            local = first(max(LOCALS[0], best), locals_)
        return {
            "local": local,
            "loads": first(_most(LOADS, max(1, min(policy.row_loads, loads // local[0]))), LOADS),
        }
    width = 4 if p.by_vec4 else 1
    columns = ceil_div(p.width, width)
    across = min(device.subgroup_size if alone else policy.across, power_of_two(columns))
    local = (across,) if alone else first(max(min(policy.column_local, max(locals_)), across), locals_)
    span = _most((4, 2, 1), max(1, min(policy.span, columns // across)))
    rows = max(1, split.run * split.lines * across // local[0])
    return {
        "local": local,
        "across": (across,) if alone else first(across, (1, 8, 16, 32, 64)),
        "span": first(span, (1, 2, 4, 8, 16)),
        "loads": first(_most(LOADS, max(1, min(policy.column_loads // span, rows))), LOADS),
        "width": (4, 1) if p.by_vec4 else (1,),
    }


def kernel_of(p: Problem, params: Params, form: tuple[tuple[str, str], ...]) -> Tiling:
    local = params["local"]
    if not p.columns:
        return Rows(local, params["loads"], form)
    return Columns(local, min(params["across"], local), params["loads"], params["span"], params["width"])


def form_of(device: Device) -> tuple[tuple[str, str], ...]:
    return SUBGROUP if subgroup_arithmetic(device) else TREE


def parts_to_fill(groups: int, per_group: int, device: Device) -> int:
    """Into how many parts so many workgroups, of ``per_group`` elements each, are split to keep the device busy."""
    policy, units = _POLICY.of(device), compute_units(device)
    if groups >= policy.busy * units:
        return 1
    return max(1, min(policy.wanted * units // max(groups, 1), per_group // policy.least))


def split_to_fill(p: Problem, device: Device, alone: bool) -> tuple[Split, str]:
    """Parts that keep the device busy, and why so many."""
    policy, units = _POLICY.of(device), compute_units(device)
    kernel = kernel_of(p, defaults(kernel_params(p, device, whole(p), alone)), form_of(device))
    groups = kernel.groups(p)
    why = f"{groups} workgroups, {policy.busy} for each of {units} compute units keep it busy"
    parts = parts_to_fill(groups, ceil_div(p.outputs, max(groups, 1)) * p.count, device)
    most = device.max_loop_iterations
    if most is not None:
        while kernel.iterations(p, into(p, parts), Output(p.function).passes) > most and parts < max(p.count, 1):
            parts, why = 2 * parts, "the driver ends longer loops"
    return (whole(p) if parts == 1 else into(p, parts)), why


def split_by_bands(p: Problem, device: Device, alone: bool) -> tuple[Split, str]:
    split, why = by_bands(p)
    return split or whole(p), why


SplitRule = Callable[[Problem, Device, bool], tuple[Split, str]]


def split_for(p: Problem, device: Device, rule: SplitRule, alone: bool, parts: int) -> tuple[Split, str]:
    """The rule's split, or the one into as many parts as are asked for."""
    split, why = rule(p, device, alone)
    return (split, why) if split.count(p) == parts else (into(p, parts), f"{parts} asked for")
