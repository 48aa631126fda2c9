"""How long commands end early: Ctrl-C and SIGTERM both as a KeyboardInterrupt, so that what is done is kept."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from vkconv.exits import EXIT_INTERRUPTED, EXIT_TERMINATED


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated; only the main thread of a process may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stopped_by(error: KeyboardInterrupt) -> tuple[str, int]:
    """What stopped a command, in words, and its exit code."""
    if isinstance(error, Terminated):
        return "stopped by SIGTERM", EXIT_TERMINATED
    return "stopped by Ctrl-C", EXIT_INTERRUPTED
