"""Tests that documents name, as `PATH::NAME`."""

import ast
import functools

from cli_kit import ROOT


@functools.cache
def functions(path):
    """Names of all functions of a file of the repository; those of none where it is not there."""
    file = ROOT / path
    tree = ast.parse(file.read_text() if file.is_file() else "")
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def missing(named):
    """Those of `PATH::NAME[PARAMETERS]`, or `PATH` alone, that are not there."""
    split = [(test, *test.partition("[")[0].partition("::")[::2]) for test in named]
    return [test for test, path, name in split if not (functions(path) if not name else name in functions(path))]
