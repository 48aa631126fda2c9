"""``vkconv check --all-ops``: tells how far it is, keeps what is done, and ends early with that."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkconv.cli.benched import duration, say
from vkconv.cli.checked import Report, conformance_report
from vkconv.cli.output import EXIT_INTERRUPTED
from vkconv.core import DeviceError, DType, UsageError, did_you_mean
from vkconv.device import Device

if TYPE_CHECKING:
    from vkconv.check.conformance import Conformed, Storage

EXIT_TERMINATED = 128 + signal.SIGTERM
_TELL_S = 10.0
_SAVE_S = 30.0


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends it as Ctrl-C does."""


def parse_storages(text: str) -> "list[Storage]":
    """``native,packed`` as kinds of 16-bit storage, each once; both for nothing. Raises UsageError."""
    from vkconv.check.conformance import STORAGES

    words = dict.fromkeys(text.split(",") if text else STORAGES)
    for word in words:
        if word not in STORAGES:
            raise UsageError(f"--storage {word!r} is none{did_you_mean(word, STORAGES)}; {', '.join(STORAGES)}")
    return [storage for storage in STORAGES if storage in words]


def stored_as(text: str, device: str, limits: Device | None) -> Device:
    """The device to plan with, the one that is here or another, so that it has 16-bit floats in this one kind of
    storage. Raises UsageError where it cannot."""
    from vkconv.backend.runtime import select_device
    from vkconv.check.conformance import planned_for, with_packed_storage
    from vkconv.storage import stores_natively

    (storage, *more) = parse_storages(text)
    real = select_device(device)[1]
    if more:
        raise UsageError(f"--storage {text!r}: a model or a call has one kind; several go with --all-ops")
    if storage == "packed":
        return with_packed_storage(limits or real)
    if not stores_natively(planned_for(real, limits)):
        raise UsageError(f"--storage {text}: {(limits or real).name} has no native 16-bit storage here")
    return limits or real


def conform_here(
    ops: Sequence[str],
    dtypes: Sequence[DType],
    storages: "Sequence[Storage]",
    device: str,
    limits: Device | None,
    jobs: int | None,
    short: bool,
    paths: Sequence[Path],
) -> tuple[Report, int]:
    """Check this machine's device, in so many processes: the report, and the exit code where it ended early, else 0.
    What is done is also saved while it goes on."""
    from vkconv.backend.runtime import select_device
    from vkconv.check.conformance import checks, planned_for
    from vkconv.check.coverage import Conformance
    from vkconv.check.pool import check_device, default_jobs

    facts = planned_for(select_device(device)[1], limits)
    work = checks(facts, ops, dtypes, storages, short)
    jobs = jobs or default_jobs(facts, len(work))
    say(f"{len(work):,} checks on {facts.name}, in {jobs} process{'es' * (jobs > 1)}")
    done: dict[int, Conformed] = {}
    started = time.perf_counter()

    def report(stopped: str) -> Report:
        rows = [done[index] for index in sorted(done)]
        return conformance_report(Conformance(facts, work, rows, time.perf_counter() - started, stopped))

    stopped, code, saved = "", 0, 0.0
    try:
        with (
            _terminable(),
            _progress(len(work)) as advance,
            contextlib.closing(check_device(work, device, limits, jobs)) as rows,
        ):
            for index, row in rows:
                done[index] = row
                advance(row)
                if paths and time.perf_counter() - saved > _SAVE_S:
                    # The first time tells of a file that cannot be written before the work is done.
                    with contextlib.suppress(*[UsageError] * bool(saved)):
                        report("still at work").save(paths)
                    saved = time.perf_counter()
    except KeyboardInterrupt as error:
        terminated = isinstance(error, _Terminated)
        stopped = f"stopped by {'SIGTERM' if terminated else 'Ctrl-C'}"
        code = EXIT_TERMINATED if terminated else EXIT_INTERRUPTED
    except DeviceError as error:
        if not done:
            raise
        stopped, code = f"stopped ({error})", error.exit_code
    return report(stopped), code


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises _Terminated; only the main thread of a process may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: Any) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress(count: int) -> "Iterator[Callable[[Conformed], None]]":
    """A function to tell of each row: a bar on a terminal, else a line on stderr now and then."""
    done = failed = 0
    started = told = time.monotonic()

    def counted(row: "Conformed") -> None:
        nonlocal done, failed
        done += 1
        failed += row.status in ("FAILED", "error")

    def line(row: "Conformed") -> None:
        nonlocal told
        counted(row)
        now = time.monotonic()
        if now - told >= _TELL_S and done < count:
            told = now
            left_s = (now - started) * (count - done) / done
            say(f"{done:,} of {count:,} checks, {failed} failed, about {duration(left_s)} left")

    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task("", total=count)

        def advance(row: "Conformed") -> None:
            counted(row)
            bar.update(work, advance=1, description=f"{failed} failed, {row.op} {row.route}"[:48])

        yield advance
