"""Checks spread over worker processes, each with a device of its own.

Processes, not threads: what takes long, a driver's compiler, then runs on every core whatever its locks are, lavapipe's
too, which compiles when a dispatch first runs; Python plans on every core; and a driver that crashes or hangs takes one
check with it. They are spawned, since a fork of a process that has used Vulkan cannot use it. A worker gets one check
at a time, and prefers those of the route it had, whose pipelines it has.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from vkconv.backend import runtime
from vkconv.check.conformance import Check, Checker, Conformed, Path, row_of
from vkconv.core import DeviceError, VkconvError
from vkconv.device import Device

Done = tuple[int, Conformed]
"""The place of a check among all, and its row."""
# After so long a check is taken for one that never ends. Large tiles take minutes to compile on a CPU.
MOST_S = 600.0
_POLL_S = 1.0
_PATIENCE_S = 5.0
# A process with its driver takes about a second to start: so many checks are worth one.
_CHECKS_PER_WORKER = 32
# What a process takes of the device's memory beside its buffers, with some to spare.
_BYTES_PER_WORKER = 1 << 29
_LEAST_PIPELINES = 64


class Checks(Protocol):
    """What does checks in a worker."""

    @property
    def device_key(self) -> str:
        """The device that it found."""

    @property
    def is_lost(self) -> bool:
        """Whether its device is of no use any more."""

    def conform(self, check: Check) -> Conformed: ...


Make = Callable[[], Checks]
"""Makes them, in the worker: it must be importable there. What it raises, a VkconvError, ends all."""


class _OpenedChecker(Checker):
    """Checks on a device that stays open, of which ``limits`` are the facts: quirks, which a `Device` may have, cannot
    be sent to a worker."""

    def __init__(self, device: str | int, limits: Mapping[str, Any] | None, pipelines: int) -> None:
        super().__init__(device, None if limits is None else Device(limits))
        runtime.MOST_PIPELINES = pipelines
        self._live = runtime.open_device(device)
        self._process = contextlib.ExitStack()
        self._process.enter_context(self._live.keeping_nothing())

    @property
    def device_key(self) -> str:
        return self._live.device.key

    @property
    def is_lost(self) -> bool:
        return self._live.lost


def default_jobs(facts: Device, checks: int) -> int:
    """How many workers so many checks are worth: one for each core, but no more than the device has memory for."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, checks // _CHECKS_PER_WORKER, facts.heap_bytes // _BYTES_PER_WORKER))


def check_device(
    checks: Sequence[Check], device: str | int = "auto", limits: Device | None = None, jobs: int = 1
) -> Generator[Done, None, None]:
    """Do these checks, in this process or in so many others, and give each as it is done.

    Raises DeviceError where there is no device, and where none is left that workers could open.
    """
    if jobs == 1:
        checker = Checker(device, limits)
        with runtime.open_device(device).keeping_nothing():
            yield from ((index, checker.conform(check)) for index, check in enumerate(checks))
        return
    facts = runtime.select_device(device)[1]
    pipelines = max(_LEAST_PIPELINES, runtime.MOST_PIPELINES // jobs)
    make = functools.partial(_OpenedChecker, device, None if limits is None else limits.facts, pipelines)
    yield from in_workers(checks, make, jobs, device_key=facts.key)


# ---- workers


class _Worker:
    """A process, the check that it is at and since when, and the route that it had last; not ready until it has told
    of its device."""

    def __init__(self, make: Make) -> None:
        self.ready = False
        self.index: int | None = None
        self.since = 0.0
        self.route: _Route | None = None
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        # Ctrl-C goes to every process of a terminal, and SIGTERM to those of a group: only this one takes them. A
        # process inherits what is blocked; the first one would start multiprocessing's tracker, which unblocks them.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()  # so that its end is seen here

    def give(self, index: int, check: Check) -> None:
        self.index, self.since = index, time.monotonic()
        with contextlib.suppress(OSError):  # it has ended: what is read from it next says so
            self.connection.send(check)

    def end(self, patience_s: float) -> str:
        """End it, by force where it does not within this time; says how it ended."""
        self.connection.close()
        self.process.join(patience_s)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join(_PATIENCE_S)
        code = self.process.exitcode or 0
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


_Route = tuple[Path, str]


class _Queue:
    """Checks by route and element form, in their order."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._left: dict[_Route, deque[int]] = {}
        for index, check in enumerate(checks):
            self._left.setdefault((check.path, check.form), deque()).append(index)
        self._fresh = deque(self._left)

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, last: _Route | None) -> tuple[int, _Route]:
        """The next check of a worker, and its route: the one that it had last, else one that none has had, else that
        with the most left."""
        route = last
        if route is None or route not in self._left:
            route = self._fresh.popleft() if self._fresh else max(self._left, key=lambda key: len(self._left[key]))
        index = self._left[route].popleft()
        if not self._left[route]:
            del self._left[route]
        return index, route


def in_workers(
    checks: Sequence[Check], make: Make, jobs: int, *, device_key: str = "", most_s: float = MOST_S
) -> Generator[Done, None, None]:
    """Do these checks in so many processes, on the device of this key, and give each as it is done: as an error where
    its process ended, or had not done it after ``most_s``. Processes that end are replaced.

    Raises DeviceError once none is left that could open the device.
    """
    queue = _Queue(checks)
    workers: list[_Worker] = []
    problem: VkconvError = DeviceError("no worker")
    until = 0.0  # no patience with those that are at work when this ends early

    def replaced(worker: _Worker, patience_s: float) -> str:
        workers.remove(worker)
        said = worker.end(patience_s)
        if worker.ready and queue:
            workers.append(_Worker(make))
        return said

    try:
        workers += [_Worker(make) for _ in range(jobs)]
        while queue or any(worker.index is not None for worker in workers):
            if not workers:
                raise DeviceError(
                    f"workers, processes of {sys.executable}, cannot begin: {problem}; --jobs 1 does without them"
                )
            heard = wait([worker.connection for worker in workers], _POLL_S)
            for worker in [worker for worker in workers if worker.connection in heard]:
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    said = replaced(worker, _PATIENCE_S)
                    if worker.index is None:
                        problem = DeviceError(f"one {said} as it began")
                    else:
                        why = f"the process that checked it {said}"
                        yield worker.index, row_of(checks[worker.index], "error", why)
                    continue
                if worker.index is not None:
                    index, worker.index = worker.index, None
                    row, lost = message
                    if lost:
                        replaced(worker, _PATIENCE_S)
                    elif queue:
                        _give(worker, queue, checks)
                    yield index, row
                elif isinstance(message, VkconvError) or message != device_key:
                    other = DeviceError(f"they find another device, {message}")
                    problem = message if isinstance(message, VkconvError) else other
                    replaced(worker, _PATIENCE_S)
                else:
                    worker.ready = True
                    if queue:
                        _give(worker, queue, checks)
            for worker in [w for w in workers if w.index is not None and time.monotonic() - w.since > most_s]:
                assert worker.index is not None
                said = replaced(worker, 0.0)
                why = f"no end after {most_s:g} s: the process that checked it was {said}"
                yield worker.index, row_of(checks[worker.index], "error", why)
        for worker in workers:
            worker.connection.close()
        until = time.monotonic() + _PATIENCE_S
    finally:
        for worker in workers:
            worker.end(max(0.0, until - time.monotonic()))


def _give(worker: _Worker, queue: _Queue, checks: Sequence[Check]) -> None:
    index, worker.route = queue.take(worker.route)
    worker.give(index, checks[index])


def _serve(connection: "Connection[Any, Any]", make: Make) -> None:
    """What a worker does: tells of its device, then does checks until the other end is closed."""
    os.dup2(2, 1)  # results are printed elsewhere, drivers' remarks are none of them
    try:
        checks = make()
    except VkconvError as error:
        connection.send(error)
        return
    with contextlib.suppress(EOFError, OSError):
        connection.send(checks.device_key)
        while not checks.is_lost:
            row = checks.conform(connection.recv())
            connection.send((row, checks.is_lost))
