"""How far a long command is: a bar on a terminal, elsewhere a line on stderr now and then."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Protocol

from vkconv.cli.output import duration, say

TELL_S = 10.0  # between two lines


class Tell(Protocol):
    """Told that ``advance`` more is done, with what there is to say of all that is done, and what is done now."""

    def __call__(self, advance: int, said: str, now: str = "") -> None: ...


@contextlib.contextmanager
def progress(count: int, what: str, at_most_s: float | None = None) -> Iterator[Tell]:
    """A function to tell of each step of ``count``, named ``what``; ``at_most_s`` is when the command ends by itself.
    The time that is left follows from the steps that are done."""
    done = 0
    started = told = time.monotonic()

    def line(advance: int, said: str, now: str = "") -> None:
        nonlocal done, told
        done += advance
        at = time.monotonic()
        if at - told >= TELL_S and done < count:
            told = at
            left = _left(at - started, done, count, at_most_s)
            say(", ".join(filter(None, (f"{done:,} of {count:,} {what}", said, left))))

    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    texts = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[left]"))
    with Progress(BarColumn(), MofNCompleteColumn(), *texts, console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task("", total=count, left="")

        def shown(advance: int, said: str, now: str = "") -> None:
            nonlocal done
            done += advance
            left = _left(time.monotonic() - started, done, count, at_most_s)
            bar.update(work, advance=advance, description=", ".join(filter(None, (said, now)))[:48], left=left)

        yield shown


def _left(elapsed_s: float, done: int, count: int, at_most_s: float | None) -> str:
    """About how long it takes yet; empty while nothing tells."""
    estimates = [elapsed_s * (count - done) / done] if done else []
    if at_most_s is not None:
        estimates.append(max(0.0, at_most_s - elapsed_s))
    return f"about {duration(min(estimates))} left" if estimates else ""
