"""SECURITY.md: each promise names tests that are there."""

import ast
import re

import pytest
from cli_kit import ROOT
from named_tests import missing

TEXT = (ROOT / "SECURITY.md").read_text()
PROMISES = re.split(r"\n- (?=\*\*)", TEXT[: TEXT.index("## What it does not promise")])[1:]
# Calls that run what they are given.
EXECUTING = {
    "eval",
    "exec",
    "compile",
    "pickle.load",
    "pickle.loads",
    "marshal.loads",
    "os.system",
    "os.popen",
    "__import__",
}


def test_there_are_promises():
    assert len(PROMISES) >= 13


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: re.findall(r"\*\*(.+?)\*\*", promise)[0])
def test_a_promise_names_tests_that_are_there(promise):
    named = re.findall(r"`(tests/[\w/]+\.py::\w+)`", promise)
    assert named, "name the test that would fail"
    assert missing(named) == []


def test_the_tests_that_the_tables_of_reliability_name_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py::\w+)", (ROOT / "docs" / "reliability.md").read_text())
    assert len(named) > 35
    assert missing(named) == []


@pytest.mark.long
def test_nothing_in_a_file_is_executed():
    """No module of vkconv calls what would, and every array is read without pickles."""
    found, loads = set(), 0
    for path in (ROOT / "vkconv").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                found |= {f"{path.name}: {called}"} if called in EXECUTING else set()
                found |= {f"{path.name}: shell"} if any(k.arg == "shell" for k in node.keywords) else set()
                if called == "np.load":
                    loads += 1
                    assert {k.arg: ast.unparse(k.value) for k in node.keywords}["allow_pickle"] == "False"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "") or ""}
                found |= {f"{path.name}: {name}" for name in names & {"pickle", "marshal", "shelve", "dill"}}
    assert not found
    assert loads
