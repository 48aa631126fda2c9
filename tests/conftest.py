"""Of tests marked ``share(n)`` `make test` runs every nth, and `make exhaustive` all."""

import collections

import pytest
from shipped import EXHAUSTIVE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EXHAUSTIVE or any("::" in given for given in config.args):
        return
    seen = collections.Counter[object]()
    kept, left = [], []
    for item in items:
        mark = item.get_closest_marker("share")
        if mark is None:
            kept.append(item)
            continue
        test = item.nodeid.partition("[")[0]
        (left if seen[test] % mark.args[0] else kept).append(item)
        seen[test] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept
