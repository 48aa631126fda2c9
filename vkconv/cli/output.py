"""How commands print: results to stdout, as rich tables on a terminal and aligned text elsewhere, or as JSON."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vkconv.core import UsageError
from vkconv.table import Table

# The exit code of a command that Ctrl-C ended, after it has kept what it had.
EXIT_INTERRUPTED = 130


def show(*parts: Table | str) -> None:
    """Print tables and lines to stdout, with a blank line around every table."""
    on_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    before: Table | str | None = None
    for part in parts:
        if before is not None and (isinstance(part, Table) or isinstance(before, Table)):
            print()
        if on_terminal and isinstance(part, Table):
            from rich.console import Console  # here: it costs more than most commands

            Console().print(part.rich())
        else:
            print(part)
        before = part


def show_json(data: Mapping[str, Any]) -> None:
    """Print JSON to stdout; every number in it must be finite."""
    print(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn a failed write into a UsageError that names the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
