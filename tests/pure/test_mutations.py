"""Every row of tools/mutations.py still has its line to change, and its test."""

import ast
import importlib.util
import sys

import pytest
from cli_kit import ROOT

_SPEC = importlib.util.spec_from_file_location("mutations", ROOT / "tools" / "mutations.py")
mutations = importlib.util.module_from_spec(_SPEC)
sys.modules["mutations"] = mutations
_SPEC.loader.exec_module(mutations)


@pytest.mark.parametrize("row", mutations.ROWS, ids=lambda row: row.what)
def test_a_row_changes_one_line_and_names_a_test(row):
    assert (ROOT / row.file).read_text().count(row.old) == 1, f"{row.file} has changed; mend the row"
    path, _, name = row.test.partition("[")[0].partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert not name or name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
