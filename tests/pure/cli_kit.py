"""What the tests of the command line share."""

import contextlib
import io

import pytest

from vkconv.cli import main


def vkconv(*argv):
    """Exit code, stdout and stderr of a command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as done:
        main([str(arg) for arg in argv])
    return done.value.code or 0, out.getvalue(), err.getvalue()
