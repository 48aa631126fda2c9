"""What the tests of the command line share."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vkconv.cli import main, output

ROOT = Path(__file__).parents[2]


def vkconv(*argv):
    """Exit code, stdout and stderr of a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as done:
        main([str(arg) for arg in argv])
    return done.value.code or 0, out.getvalue(), err.getvalue()


def vkconv_process(*argv, **changes):
    """The same in a process of its own, as users start it, with changes to its environment."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **changes}
    command = [sys.executable, "-m", "vkconv", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    return done.returncode, done.stdout, done.stderr


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch, *argv, columns=100):
    """Exit code, lines and broken rows of a command on a terminal: rows of tables that are longer than it is wide.
    Prose is wrapped by the terminal."""
    terminal = _Terminal()
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(output, "_stream", lambda: terminal)
        code = vkconv(*argv)[0]
    lines = terminal.getvalue().splitlines()
    return code, lines, [line for line in lines if (len(line) > columns and "  " in line) or "\\n" in line]
