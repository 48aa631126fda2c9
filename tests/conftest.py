"""Of tests marked ``share(n)`` `make test` runs every nth, and `make exhaustive` all; of tests on the device and
of long ones with many cases that have no mark, every third, or with very many every sixth."""

import collections
import gc
from pathlib import Path

import pytest
from shipped import EXHAUSTIVE

_MANY_CASES, _VERY_MANY = 16, 256
_TESTS = Path(__file__).parent


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _share(item: pytest.Item, cases: int) -> int:
    """The test's n, of which every nth case is run."""
    mark = item.get_closest_marker("share")
    if mark is not None:
        return int(mark.args[0])
    sweeps = item.get_closest_marker("long") or {"gpu", "compilers"} & set(item.path.relative_to(_TESTS).parts)
    if not sweeps or cases < _MANY_CASES:
        return 1
    return 6 if cases >= _VERY_MANY else 3


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
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_collection_finish() -> None:
    """Leave the thousands of tests, which stay to the end, out of each search for garbage."""
    gc.collect()
    gc.freeze()
