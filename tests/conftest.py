"""Of tests marked ``share(n)`` `make test` runs one in n, always the same ones, and `make exhaustive` all."""

import zlib

import pytest
from shipped import EXHAUSTIVE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EXHAUSTIVE or any("::" in given for given in config.args):
        return
    left = [item for item in items if (mark := item.get_closest_marker("share")) and _turn(item) % mark.args[0]]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(map(id, left))
        items[:] = [item for item in items if id(item) not in gone]


def _turn(item: pytest.Item) -> int:
    """The same number for the parameters of a test in every run and process."""
    return zlib.crc32(item.name.encode())
