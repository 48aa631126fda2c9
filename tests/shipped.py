"""What `make test` takes a share of, and `make exhaustive` all: the shipped device files, of which it plans for one of
each driver, and what sweeps go over."""

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

import pytest

from vkconv.device import load_device, shipped_devices

EXHAUSTIVE = os.environ.get("VKCONV_EXHAUSTIVE", "") not in ("", "0")
# What takes minutes and tells nothing that a smaller share of it does not nearly always tell.
exhaustive = pytest.mark.skipif(not EXHAUSTIVE, reason="left to make exhaustive")

T = TypeVar("T")


def share(n: int, items: Iterable[T], turn: int = 0) -> Iterator[T]:
    """Every nth item, the first among them in the first ``turn``, the next in the next; every one in `make
    exhaustive`."""
    return iter(items) if EXHAUSTIVE else itertools.islice(items, turn % n, None, n)


def drivers_devices() -> list[str]:
    """The names of the first shipped file of each driver, of those that assume nothing where there are such."""
    first: dict[object, str] = {}
    for name in sorted(shipped_devices(), key=lambda name: bool(load_device(name).facts.get("assumed"))):
        first.setdefault(load_device(name).fact("VkPhysicalDeviceDriverProperties", "driverID"), name)
    return list(first.values())


def tried_devices() -> list[str]:
    """The names of the shipped files that sweeps over all programs plan for."""
    return list(shipped_devices()) if EXHAUSTIVE else drivers_devices()


def one_of_each_driver(*without):
    """Every shipped file but some; those of a driver that another one is of already are left to the long tests."""
    first = drivers_devices()
    return [
        pytest.param(name, marks=[] if name in first else [pytest.mark.long])
        for name in shipped_devices()
        if name not in without
    ]
