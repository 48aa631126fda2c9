"""How commands print: results to stdout, as tables that fit a terminal, a row on each line elsewhere, or as JSON."""

import codecs
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from vkconv.cases import stamped
from vkconv.core import UsageError, is_stream, printable
from vkconv.table import Table


def show(*parts: Table | str) -> None:
    """Print tables and lines to stdout, with a blank line around every table; on a terminal no wider than that is,
    but with ``--wide``."""
    stream = _stream()
    width = shutil.get_terminal_size().columns if stream.isatty() and not _wide else None
    before: Table | str | None = None
    for part in parts:
        if before is not None and (isinstance(part, Table) or isinstance(before, Table)):
            print(file=stream)
        if isinstance(part, Table):
            print(part if width is None else part.fit(width), file=stream)
        else:
            print(printable(part), file=stream)
        before = part


def show_json(data: Mapping[str, Any], stamp: bool = True) -> None:
    """Print JSON to stdout, with who made it and when; every number in it must be finite."""
    stream = _stream()
    # JSON is UTF-8: what another encoding writes, or lacks, must be escapes of JSON's own.
    ascii_only = codecs.lookup(getattr(stream, "encoding", None) or "utf-8").name != "utf-8"
    text = json.dumps(stamped(data) if stamp else data, indent=1, ensure_ascii=ascii_only, allow_nan=False)
    if not text.replace("\n", "").isprintable():  # that is in names, which JSON writes by escapes too
        text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    print(text, file=stream)


def indented(text: str) -> str:
    """A text that may be shown, each line but the first indented: no name can begin a line that says something else."""
    return re.sub(r"\n(?! )", "\n  ", printable(text, keep="\n"))


def say(text: str) -> None:
    """Tell on stderr how things are."""
    print(indented(text), file=sys.stderr, flush=True)


def say_in_place(text: str) -> None:
    """Tell it on a terminal in place of what was last told so."""
    print(f"\r\x1b[2K{printable(text)}", end="", file=sys.stderr, flush=True)


WIDE = "--wide"
_arguments: list[str] = []
_wide = False


def begin(arguments: list[str]) -> list[str]:
    """A command line begins, with these arguments; what is left for the command, which ``--wide`` is not."""
    global _wide
    own = arguments.index("--") if "--" in arguments else len(arguments)
    _wide = WIDE in arguments[:own]
    _arguments[:] = [*(text for text in arguments[:own] if text != WIDE), *arguments[own:]]
    return list(_arguments)


def given_as(text: str, option: str, *others: str) -> str:
    """How a text of an option was given, to be named where it is wrong: by another name of that, or by its variable."""
    for name in others:
        if f"{name}={text}" in _arguments or (name, text) in itertools.pairwise(_arguments):
            return name
    variable = f"VKCONV_{option[2:].upper()}"
    named = any(word.partition("=")[0] == option for word in _arguments)
    return variable if variable in os.environ and not named else option


def _stream() -> TextIO:
    """Where a command prints: to stderr where an argument, ``-``, has stdout for a file."""
    return sys.stderr if any(text == "-" or text.endswith("=-") for text in _arguments) else sys.stdout


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn a failed write into a UsageError that names the file."""
    try:
        yield
    except BrokenPipeError:  # a reader that has left; the command ends as it does where that is stdout's
        raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def save_each(paths: Iterable[Path], save: Callable[[Path], None]) -> tuple[list[Path], UsageError | None]:
    """Save in each file: those that were written, and what is wrong with the first of the others. That is to be raised
    once the result is shown: it took long to come to, and a reader that leaves must not keep it from the files."""
    written, problem = [], None
    for path in paths:
        try:
            with file_errors(path):
                save(path)
            written.append(path)
        except UsageError as error:
            problem = problem or error
    return written, problem


def refuse_to_replace(sources: Iterable[Path | str | None], *targets: Path | None) -> None:
    """UsageError for a file to write that is one of those that the command reads, by whatever path. Sources that are no
    files, such as calls and names of devices, are none that could be lost."""
    files = [Path(source) for source in sources if source]
    for target in targets:
        if target is None or is_stream(target):
            continue
        for source in files:
            with contextlib.suppress(OSError, ValueError):  # there is no such file, nor can there be
                if source.samefile(target):
                    same = "it" if source == target else f"it is {source}, which"
                    raise UsageError(f"cannot write {target}: {same} is read by this command; name another file")


def refuse_before(command: str, given: Mapping[str, object]) -> None:
    """UsageError for an option in front of a command that it is not of: nothing would come of it."""
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} stands before {command}, which does not see it; {command} --help lists its own")


TELL_S = 30.0
"""Seconds between two lines that a `bar` tells where there is no terminal."""


def duration(seconds: float) -> str:
    """``2 min 05 s``."""
    minutes, rest = divmod(max(1, math.ceil(seconds)), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class bar:  # noqa: N801 - used as a function
    """A line on a terminal that tells how far things are; elsewhere a line now and then, with about the time left."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self._started = self._told = time.monotonic()

    def __enter__(self) -> Callable[[str, int, int], None]:
        return self.tell

    def tell(self, text: str, done: int, count: int) -> None:
        if self.shown:
            line = re.sub(r"\s+", " ", f"[{done}/{count}] {text}")[:78]
            say_in_place(line)
            return
        now = time.monotonic()
        if now - self._told >= TELL_S and 0 < done < count:
            self._told = now
            left_s = (now - self._started) * (count - done) / done
            say(f"[{done}/{count}] {text}, about {duration(left_s)} left")

    def __exit__(self, *error: object) -> None:
        if self.shown:
            say_in_place("")
