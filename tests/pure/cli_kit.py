"""What the tests of the command line share."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vkconv.cli import main

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
