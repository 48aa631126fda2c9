"""docs/upstream.md: every row says what it is, and the tests that it names exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = ("same", "better", "different", "open")
LINES = (ROOT / "docs/upstream.md").read_text().splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line.startswith("|")][2:]


def named_in(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_row_names_a_test_that_exists(row):
    system, behaviour, kind, how, test = row
    assert system and behaviour and kind in KINDS
    assert how or test
    assert test or kind in ("open", "different"), "nothing shows it"
    if test:
        file, _, name = test.partition("::")
        assert name.startswith("test_") and name in named_in(ROOT / "tests" / file), test


def test_every_system_has_rows_and_none_comes_twice():
    systems = {row[0].split(" (")[0] for row in ROWS}
    assert {s.split()[0] for s in systems} == {"IREE", "composable_kernel", "rocMLIR", "ExecuTorch"}
    assert len({(row[0].split(" (")[0], row[1]) for row in ROWS}) == len(ROWS)


def test_what_stands_in_code_is_in_the_code():
    """Routes, parameters and attributes that rows name."""
    known = {word for path in (ROOT / "vkconv").rglob("*.py") for word in re.findall(r"\w+", path.read_text())}
    words = {word for row in ROWS for word in re.findall(r"`([a-z]\w+)`", row[3])}
    assert "joined" in words and not words - known
