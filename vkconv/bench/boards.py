"""Measuring on many boards at once: what their workers do, and the rows of all of them as they come."""

import dataclasses
import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from vkconv.backend.runtime import open_device
from vkconv.bench.calibrate import floors as measure_floors
from vkconv.bench.rows import Board, Floors, Row
from vkconv.bench.runner import Speeds, Task, expected_s, probe, run_tasks
from vkconv.bench.sampling import BenchOptions
from vkconv.device import Device
from vkconv.workers import Workers, labels


@dataclasses.dataclass(frozen=True)
class Opened:
    """The boards whose devices can be used, their facts and speeds by the workers' addresses; rows of the others."""

    boards: Mapping[str, Board]
    devices: Mapping[str, Device]
    speeds: Mapping[str, Speeds]
    lost: Sequence[Row]


def selected(device: str) -> str:
    """The device that a worker uses: the one that was asked for, else the one its own environment names."""
    return os.environ.get("VKCONV_DEVICE", device) if device == "auto" else device


def open_boards(workers: Workers, device: str) -> Opened:
    """Open the device of every worker, and measure its floors."""
    ended = {o.worker: o for o in workers.each(_open, {address: [(device,)] for address in workers.usable})}
    told: dict[str, Any] = {address: o.value for address, o in ended.items() if o.ok}
    devices = {address: Device(value["facts"]) for address, value in told.items()}
    names = labels(workers.names, {address: found.name for address, found in devices.items()})
    boards = {
        address: Board(
            label=names[address],
            device=found.name,
            device_key=found.key,
            driver=found.driver,
            vulkan=found.api_version,
            quirks=[quirk.id for quirk in found.quirks],
            floors=Floors(**told[address]["floors"]),
        )
        for address, found in sorted(devices.items(), key=lambda item: names[item[0]])
    }
    speeds = {address: Speeds(**told[address]["speeds"]) for address in boards}
    problems = {**workers.problems, **{address: o.error for address, o in ended.items() if not o.ok}}
    lost = [Row(call="-", op="-", device=names[address], check="lost", why=why) for address, why in problems.items()]
    return Opened(boards, devices, speeds, lost)


def measure_boards(
    workers: Workers, opened: Opened, tasks: Mapping[str, Sequence[Task]], device: str, options: BenchOptions
) -> Generator[Row, None, None]:
    """The rows of each board's tasks, every board at its own pace; the loss of one is a row, its last."""
    jobs = {
        address: [(task, device, options, opened.boards[address].floors) for task in mine]
        for address, mine in tasks.items()
    }
    for outcome in workers.each(_measure, jobs):
        task = tasks[outcome.worker][outcome.index]
        row: Row = outcome.value if outcome.ok else _without(task, outcome.error, outcome.lost)
        left = len(tasks[outcome.worker]) - outcome.index - 1
        if outcome.lost and left:
            row.why += f"; {left} more row{'s' * (left > 1)} of it {'were' if left > 1 else 'was'} not measured"
        row.device = opened.boards[outcome.worker].label
        yield row


def board_seconds(opened: Opened, tasks: Mapping[str, Sequence[Task]], options: BenchOptions) -> dict[str, list[float]]:
    """Seconds that each task of each board will take, about."""
    return {a: expected_s(mine, opened.devices[a], options, opened.speeds[a]) for a, mine in tasks.items()}


def _without(task: Task, why: str, lost: bool) -> Row:
    row = Row(call=task.entry.text, op=task.entry.op, route=task.route or "", given=dict(task.params))
    row.check, row.why, row.count = "lost" if lost else "error", why, task.entry.count
    return row


def _open(device: str) -> dict[str, Any]:
    """The facts of a worker's device; runs there."""
    live = open_device(selected(device))
    floors = measure_floors(live)
    speeds = probe(selected(device), floors)
    told = {"copy_gbps": floors.copy_gbps, "fma_gflops": floors.fma_gflops}
    return {"facts": live.device.facts, "floors": told, "speeds": dataclasses.asdict(speeds)}


def _measure(task: Task, device: str, options: BenchOptions, floors: Floors) -> Row:
    """The row of one task; runs on a worker."""
    (row,) = run_tasks([task], device=selected(device), options=options, floors=floors)
    return row
