"""Of tests marked ``share(n)`` `make test` runs every nth, and `make exhaustive` all; of tests on the device and
of long ones with many cases that have no mark, every third, or with very many every sixth. VKCONV_THIN=n runs
one in n of these, from each module at least one, others at every commit: for slow machines (tools/thin.py)."""

import collections
import gc
from pathlib import Path

import pytest
from shipped import EXHAUSTIVE
from thin import asked, turn

_MANY_CASES, _VERY_MANY = 16, 256
_TESTS = Path(__file__).parent
_THIN = asked()


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _sweeps(item: pytest.Item, *folders: str) -> bool:
    """Whether the test is a long one, or lies in one of these folders."""
    lies_there = not set(folders).isdisjoint(item.path.relative_to(_TESTS).parts)
    return lies_there or item.get_closest_marker("long") is not None


def _share(item: pytest.Item, cases: int) -> int:
    """The test's n, of which every nth case is run."""
    mark = item.get_closest_marker("share")
    if mark is not None:
        return int(mark.args[0])
    if not _sweeps(item, "gpu", "compilers") or cases < _MANY_CASES:
        return 1
    return 6 if cases >= _VERY_MANY else 3


def _thin(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """One in VKCONV_THIN of each module's tests, and at least one; and the others."""
    begin, seen = turn(), collections.Counter[Path]()
    there = collections.Counter(item.path for item in items)
    kept, left = [], []
    for item in items:
        n = min(_THIN, there[item.path]) if _sweeps(item, "boards", "compilers", "gpu", "suites") else 1
        (left if (seen[item.path] - begin) % n else kept).append(item)
        seen[item.path] += 1
    return kept, left


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EXHAUSTIVE or any("::" in given for given in config.args):
        return
    seen = collections.Counter[str]()
    cases = collections.Counter(_test(item) for item in items)
    kept, left = [], []
    for item in items:
        test = _test(item)
        (left if seen[test] % _share(item, cases[test]) else kept).append(item)
        seen[test] += 1
    if _THIN > 1:
        kept, thinned = _thin(kept)
        left += thinned
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_collection_finish() -> None:
    """Leave the thousands of tests, which stay to the end, out of each search for garbage."""
    gc.collect()
    gc.freeze()
