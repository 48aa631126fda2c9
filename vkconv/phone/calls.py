"""Many calls as packs: rows of a benchmark, and the checks of a whole device."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from vkconv.bench.engine import failures, plan_row, row_of
from vkconv.bench.reference import expected
from vkconv.bench.rows import Row
from vkconv.bench.runner import Task
from vkconv.check import on_route
from vkconv.check.conformance import (
    AT_PLANNING,
    Check,
    Conformed,
    call_of,
    expected_of,
    inner_params,
    kinds_of,
    refusal,
    with_packed_storage,
)
from vkconv.check.conformance import row_of as check_row
from vkconv.check.inputs import Kind
from vkconv.core import LimitError, VkconvError, on_a_line
from vkconv.device import Device
from vkconv.device.emulate import emulated
from vkconv.ops import OPS
from vkconv.phone.packs import call_plan, label_of, plan_call
from vkconv.plan.pack import PackFolder


@dataclasses.dataclass(frozen=True)
class PackedRow:
    """A row to be measured and its place in the folder; None where nothing is played for it, as the row says."""

    row: Row
    place: int | None


@dataclasses.dataclass(frozen=True)
class PackedCheck:
    """A check and the places of its packs by the kind of their inputs; none where the row says why."""

    row: Conformed
    places: dict[Kind, int]


def pack_tasks(
    folder: PackFolder, tasks: Iterable[Task], device: Device, seed: int, fixed_push: bool | None = None
) -> Iterator[PackedRow]:
    """Write a pack for each task; ``fixed_push`` is that of the planner's options. What goes wrong with one is in its
    row."""
    for task in tasks:
        call = task.entry.call
        if call is None:
            missing = task.entry.op not in OPS
            row = Row(call=task.entry.text, op=task.entry.op, check="no op" if missing else "skipped")
            row.why = task.entry.why
        else:
            row = row_of(call, task.route, task.params)
        row.count, row.nodes = task.entry.count, list(task.entry.nodes)
        row.notes += [task.entry.note] if task.entry.note else []
        place = None
        if call is not None:
            with failures(row):
                planned = plan_row(row, call, task.route, device, staging=True, fixed_push=fixed_push)
                if planned is not None:
                    wanted = on_route(call, expected(call, seed), row.route)
                    text = label_of(row.call, row.route, row.params)
                    place = folder.add(call_plan(folder, call, planned, wanted, text), text)
        yield PackedRow(row, place)


def pack_checks(folder: PackFolder, work: Sequence[Check], device: Device) -> Iterator[PackedCheck]:
    """Write the packs of each check of a device, one for each kind of inputs. What goes wrong is in its row."""
    facts = {False: device, True: emulated(with_packed_storage(device), device)}
    for check in work:
        call, row = call_of(check.text), check_row(check, "refused")
        why = refusal(check.path, call, facts[check.is_packed])
        if not why and not any(call.operands.values()):
            why = AT_PLANNING
        if why:
            yield PackedCheck(dataclasses.replace(row, why=why), {})
            continue
        places: dict[Kind, int] = {}
        try:
            route, params = check.path[0][1], {**inner_params(check.path), **check.params}
            for kind in kinds_of(check, facts[check.is_packed]):
                wanted = on_route(call, expected_of(check.text, kind), route)
                planned = plan_call(call, wanted.arrays, facts[check.is_packed], route, params, fixed_push=check.fixed)
                text = f"{label_of(check.text, check.route, check.params)}, {check.form}, {kind}"
                places[kind] = folder.add(call_plan(folder, call, planned, wanted, text), text)
        except LimitError as error:
            row = dataclasses.replace(row, why=on_a_line(error))
        except VkconvError as error:
            row = dataclasses.replace(row, status="error", why=on_a_line(error))
        yield PackedCheck(row, places)
