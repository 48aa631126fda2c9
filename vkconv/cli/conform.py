"""``vkconv check --all-ops``: tells how far it is, keeps what is done, and ends early with that."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vkconv.cli.checked import Report, conformance_report
from vkconv.cli.output import say
from vkconv.cli.progress import progress
from vkconv.cli.stopping import stopped_by, terminable
from vkconv.core import DeviceError, DType, UsageError, did_you_mean
from vkconv.device import Device

if TYPE_CHECKING:
    from vkconv.check.conformance import Conformed, Extent, Storage

_SAVE_S = 30.0


def parse_storages(text: str) -> "list[Storage]":
    """``native,packed`` as kinds of 16-bit storage, each once; both for nothing. Raises UsageError."""
    from vkconv.check.conformance import STORAGES

    words = dict.fromkeys(text.split(",") if text else STORAGES)
    for word in words:
        if word not in STORAGES:
            raise UsageError(f"--storage {word!r} is none{did_you_mean(word, STORAGES)}; {', '.join(STORAGES)}")
    return [storage for storage in STORAGES if storage in words]


def extent_of(short: bool, few: bool) -> "Extent":
    """How many checks a command line asks for."""
    return "few" if few else "short" if short else "all"


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
    extent: "Extent",
    paths: Sequence[Path],
    fixed_push: bool | None = None,
) -> tuple[Report, int]:
    """Check this machine's device, in so many processes: the report, and the exit code where it ended early, else 0.
    What is done is also saved while it goes on."""
    from vkconv.backend.runtime import select_device
    from vkconv.check.conformance import checks, planned_for
    from vkconv.check.coverage import Conformance
    from vkconv.check.pool import check_device, default_jobs

    facts = planned_for(select_device(device)[1], limits)
    work = checks(facts, ops, dtypes, storages, extent, fixed_push)
    jobs = jobs or default_jobs(facts, len(work))
    say(f"{len(work):,} checks on {facts.name}, in {jobs} process{'es' * (jobs > 1)}")
    done: dict[int, Conformed] = {}
    started = time.perf_counter()

    def report(stopped: str) -> Report:
        rows = [done[index] for index in sorted(done)]
        return conformance_report(Conformance(facts, work, rows, time.perf_counter() - started, stopped))

    stopped, code, saved, failed = "", 0, 0.0, 0
    try:
        with (
            terminable(),
            progress(len(work), "checks") as tell,
            contextlib.closing(check_device(work, device, limits, jobs)) as rows,
        ):
            for index, row in rows:
                done[index] = row
                failed += row.status in ("FAILED", "error")
                tell(1, f"{failed} failed", f"{row.op} {row.route}")
                if paths and time.perf_counter() - saved > _SAVE_S:
                    # The first time tells of a file that cannot be written before the work is done.
                    with contextlib.suppress(*[UsageError] * bool(saved)):
                        report("still at work").save(paths)
                    saved = time.perf_counter()
    except KeyboardInterrupt as error:
        stopped, code = stopped_by(error)
    except DeviceError as error:
        if not done:
            raise
        stopped, code = f"stopped ({error})", error.exit_code
    return report(stopped), code
