"""Where the command line begins, before the imports that take its first second; it imports nothing heavy itself."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

from vkconv.exits import EXIT_INTERRUPTED


def main() -> None:
    """Import the command line and run it; Ctrl-C ends it quietly at any time. Always ends in SystemExit."""
    try:
        with _interrupt_ends():
            from vkconv.cli import main as run
        run()
    except KeyboardInterrupt:  # while there is no command yet
        raise SystemExit(EXIT_INTERRUPTED) from None


@contextlib.contextmanager
def _interrupt_ends() -> Iterator[None]:
    """SIGINT ends the process at once: a KeyboardInterrupt shows a traceback of imports, or is lost in a callback of
    the import system. One that is ignored (nohup, a shell's background jobs) stays so."""

    def end(number: int, frame: Any) -> None:
        os._exit(EXIT_INTERRUPTED)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
