"""Every row of tools/mutations.toml still has its line to change, and its test; every promise's test has a row."""

import re
import subprocess
import sys

import pytest
from cli_kit import ROOT
from named_tests import missing
from tool_kit import load_tool

mutations = load_tool("mutations")


@pytest.mark.parametrize("row", mutations.ROWS, ids=lambda row: row.what)
def test_a_row_changes_one_line_and_names_a_test(row):
    assert (ROOT / row.file).read_text().count(row.old) == 1, f"{row.file} has changed; mend the row"
    assert missing([row.test]) == []


@pytest.mark.long
def test_every_test_of_a_row_is_collected():
    """With its parameters, which a case that changes renames."""
    tests = sorted({row.test for row in mutations.ROWS})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_each_test_that_a_promise_names_can_fail():
    """What it fails for is a row, which tools/mutations.py shows."""
    promised = (ROOT / "SECURITY.md").read_text().partition("## What it does not promise")[0]
    named = set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", promised))
    assert len(named) > 25
    assert named - {row.test.partition("[")[0] for row in mutations.ROWS} == set(), "take away what they test"
