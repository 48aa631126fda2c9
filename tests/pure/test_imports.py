"""Modules of vkconv do not import one another in a circle, wherever the imports stand.

import-linter's contract is wider, since it sees packages too, but does not see a package's own ``__init__``.
"""

import ast
import graphlib
import itertools
from pathlib import Path

import pytest

import vkconv

PACKAGE = Path(vkconv.__file__).parent


def imports_of(package):
    """By module, the modules of the package that it imports: at its top, in functions, or for types alone."""
    files = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {module: _imported(module, path, files) for module, path in files.items()}


def _imported(module, path, files):
    around = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
    named = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = around[: len(around) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            named |= {(source, alias.name) for alias in node.names}
    # `from package import name` is of the module of that name, or of the package where it is none.
    wanted = {f"{source}.{name}" if f"{source}.{name}" in files else source for source, name in named}
    return wanted & files.keys()


def cycle_of(imports):
    """Modules in a circle, each importing the next, the first again at the end; none: an empty list."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


@pytest.mark.long
def test_no_module_imports_itself_through_others():
    imports = imports_of(PACKAGE)
    assert "vkconv.plan.planner" in imports["vkconv.session"] and len(imports) > 100
    cycle = cycle_of(imports)
    assert not cycle, f"modules that import one another: {' -> '.join(cycle)}"


@pytest.mark.parametrize(
    ("files", "cycle"),
    [
        ({"a": "import pack.b", "b": "from pack.c import x", "c": "def f():\n    from pack import a"}, "abc"),
        ({"a": "if TYPE_CHECKING:\n    from .b import B", "b": "from . import a"}, "ab"),
        ({"__init__": "from pack.a import f", "a": "from pack import f"}, ["", "a"]),
        ({"__init__": "from pack.a import f", "a": "from pack import b", "b": "import math"}, ""),
    ],
)
def test_cycles_are_found_wherever_the_imports_stand(files, cycle, tmp_path):
    (tmp_path / "pack").mkdir()
    for name, text in files.items():
        (tmp_path / "pack" / f"{name}.py").write_text(text)
    found = cycle_of(imports_of(tmp_path / "pack"))
    assert {name.removeprefix("pack").removeprefix(".") for name in found} == set(cycle)
    imports = imports_of(tmp_path / "pack")
    assert all(b in imports[a] for a, b in itertools.pairwise(found))
