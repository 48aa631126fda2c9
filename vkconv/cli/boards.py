"""``vkconv bench`` and ``vkconv check`` on many boards at once: one table of what their workers found."""

import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vkconv.cases import Case, stamped
from vkconv.cli.benched import Wanted, collect
from vkconv.cli.checked import Report, Result, Work, conformance_report
from vkconv.cli.output import duration, say
from vkconv.core import DType, counted
from vkconv.device import Device
from vkconv.table import Column, Table
from vkconv.workers import Outcome, Workers, labels

if TYPE_CHECKING:
    from vkconv.bench.rows import Header, Row
    from vkconv.check.conformance import Check, Extent, Storage

SCHEMA = "vkconv.boards/1"
Tell = Callable[[str, int, int], None]


def bench_boards(url: str, wanted: Wanted) -> "tuple[Header, list[Row], int]":
    """Measure what is wanted on every worker: the conditions, the rows of all boards, board by board, and the exit code
    of `collect`."""
    from vkconv.bench.boards import board_seconds, measure_boards, open_boards
    from vkconv.bench.runner import Routes

    with Workers(url) as workers:
        opened = open_boards(workers, wanted.device)
        made = {address: wanted.tasks(opened.devices[address]) for address in opened.boards}
        tasks = {address: mine for address, (mine, _) in made.items()}
        seconds = board_seconds(opened, tasks, wanted.options)
        longest_s = max(map(sum, seconds.values()), default=0.0)
        header = wanted.header(next((routes for _, routes in made.values()), Routes()), longest_s)
        header.device = f"{counted(len(workers.names), 'board')} of {url}"
        header.boards = list(opened.boards.values())
        each = [second for mine in seconds.values() for second in mine]
        for row in opened.lost:
            say(f"{row.device}: {row.why}")
        say(f"{counted(len(each), 'row')} on {counted(len(tasks), 'board')}, about {duration(longest_s)}")
        with contextlib.closing(measure_boards(workers, opened, tasks, wanted.device, wanted.options)) as measured:
            rows, code = collect(measured, each, header)
    order = {board.label: number for number, board in enumerate(header.boards)}
    return header, [*opened.lost, *sorted(rows, key=lambda row: order[row.device])], code


def check_boards(
    url: str, work: Work, stop_at_first: bool, repeat: int, sweep: Sequence[str], seed: int, tell: Tell
) -> Report:
    """Check a model or a call on every worker; ``tell`` is called with what is done, how much, and of how much."""
    with Workers(url) as workers:
        devices, problems = _devices(workers, work.device)
        jobs = {address: [(work, stop_at_first, repeat, sweep, seed)] for address in devices}
        ended: dict[str, Outcome] = {}
        for outcome in workers.each(_check, jobs):
            ended[outcome.worker] = outcome
            tell(workers.names[outcome.worker], len(ended), len(jobs))
        reports = {address: outcome.value for address, outcome in ended.items() if outcome.ok}
        problems |= {address: outcome.error for address, outcome in ended.items() if not outcome.ok}
    return merged(f"vkconv check: {work.name}", url, workers.names, devices, reports, problems)


def conform_boards(
    url: str,
    ops: Sequence[str],
    dtypes: Sequence[DType],
    storages: "Sequence[Storage]",
    extent: "Extent",
    device: str,
    limits: Device | None,
    tell: Tell,
    fixed_push: bool | None = None,
) -> Report:
    """Check every case of every op, or of these, on every worker; ``tell`` as of `check_boards`."""
    from vkconv.check.conformance import Conformed, checks, planned_for, row_of
    from vkconv.check.coverage import Conformance

    with Workers(url) as workers:
        devices, problems = _devices(workers, device)
        facts = {address: planned_for(found, limits) for address, found in devices.items()}
        work = {
            address: checks(planned, ops, dtypes, storages, extent, fixed_push) for address, planned in facts.items()
        }
        rows: dict[str, list[Conformed]] = {address: [] for address in facts}
        seconds = dict.fromkeys(facts, 0.0)
        started = time.perf_counter()
        jobs = {address: [(check, device, limits) for check in mine] for address, mine in work.items()}
        count = sum(map(len, work.values()))
        for done, outcome in enumerate(workers.each(_conform, jobs), 1):
            address, check = outcome.worker, work[outcome.worker][outcome.index]
            seconds[address] = time.perf_counter() - started
            tell(f"{workers.names[address]}: {check.text} {check.route}", done, count)
            if outcome.lost:
                left = len(work[address]) - outcome.index - 1
                at = f"{check.text} by {check.route}"
                problems[address] = f"{outcome.error} while it checked {at}; {left} more were not checked"
            elif outcome.ok:
                rows[address].append(outcome.value)
            else:
                rows[address].append(row_of(check, "error", outcome.error))
    found = {a: Conformance(facts[a], work[a], rows[a], seconds[a], problems.get(a, "")) for a in facts}
    reports = {address: conformance_report(result) for address, result in found.items()}
    return merged("vkconv conformance", url, workers.names, devices, reports, problems)


def _devices(workers: Workers, device: str) -> tuple[dict[str, Device], dict[str, str]]:
    """The device of every worker, by address, and why there is none."""
    ended = {o.worker: o for o in workers.each(_facts, {address: [(device,)] for address in workers.usable})}
    problems = {address: outcome.error for address, outcome in ended.items() if not outcome.ok}
    return {address: Device(o.value) for address, o in ended.items() if o.ok}, {**workers.problems, **problems}


def merged(
    title: str,
    url: str,
    names: Mapping[str, str],
    devices: Mapping[str, Device],
    reports: Mapping[str, Report],
    problems: Mapping[str, str],
) -> Report:
    """The reports of all boards as one: a row for each board, and every table with a column that names it."""
    label = labels(names, {address: device.name for address, device in devices.items()})
    boards, data, commands = [], [], []
    for address in sorted(label, key=lambda a: label[a]):
        report, lost = reports.get(address), problems.get(address, "")
        device = report.data["device"] if report else {}
        said = [f"FAILED: {lost}"] if lost else []
        said += report.verdicts if report else []
        boards.append(
            (label[address], *(device.get(name, "") for name in ("name", "driver", "vulkan")), "; ".join(said))
        )
        data.append({"board": label[address], "problem": lost, **(report.data if report else {})})
        commands += [f"on {label[address]}: {command}" for command in (report.commands if report else ())]
    columns = [Column(name) for name in ("board", "device", "driver", "Vulkan", "result")]
    parts = [("Boards", Table("", columns, boards)), *_tables(reports, label)]
    shown = ["Boards", *dict.fromkeys(name for report in reports.values() for name in report.shown)]
    failed = [label[a] for a in label if a in problems or (a in reports and reports[a].failed)]
    verdict = f"{len(failed)} of {counted(len(label), 'board')} failed: {', '.join(failed)}" if failed else "all right"
    lines = [f"{counted(len(label), 'board')} of {url}"]
    every = stamped({"schema": SCHEMA, "boards": data})
    cases = [Case(label[a], "connection", "error", lost) for a, lost in problems.items()]
    for address, report in reports.items():
        cases += [dataclasses.replace(case, group=f"{label[address]}, {case.group}") for case in report.judged]
    return Report(title, lines, parts, shown, [verdict], commands, every, bool(failed), cases)


def _tables(reports: Mapping[str, Report], label: Mapping[str, str]) -> list[tuple[str, Table]]:
    """The tables of the same title as one, with the boards in the first column."""
    found: dict[str, list[tuple[str, Table]]] = {}
    for address in sorted(reports, key=lambda a: label[a]):
        for name, table in reports[address].parts:
            found.setdefault(name, []).append((label[address], table))
    return [
        (
            name,
            Table(
                "",
                [Column("board"), *tables[0][1].columns],
                [(board, *row) for board, table in tables for row in table.cells],
                [standing for _, table in tables for standing in table.every_standing],
            ),
        )
        for name, tables in found.items()
    ]


# ---- what runs on the workers


def _facts(device: str) -> dict[str, Any]:
    from vkconv.backend.runtime import select_device
    from vkconv.bench.boards import selected

    return dict(select_device(selected(device))[1].facts)


def _conform(check: "Check", device: str, limits: Device | None) -> Any:
    from vkconv.bench.boards import selected
    from vkconv.check.conformance import conform

    return conform(check, selected(device), limits)


def _check(work: Work, stop_at_first: bool, repeat: int, sweep: Sequence[str], seed: int) -> Report:
    from vkconv.bench.boards import selected

    mine = copy.copy(work)
    mine.device = selected(work.device)
    result = Result(mine)
    result.check(stop_at_first, lambda node, done, count: None)
    if repeat:
        result.repeat(repeat)
    if sweep:
        result.sweep(sweep, repeat or 2, seed, lambda node, done, count: None)
    return result.report()
