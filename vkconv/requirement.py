"""What a route asks of a call and a device. The same `Requirement` serves choosing, explaining, documentation and
tests."""

import dataclasses
from collections.abc import Callable
from typing import Self, TypeVar

from vkconv.call import Call
from vkconv.device import Device

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Requirement:
    """A condition of a route: a text that a person reads, a pure test, and the actual value it looked at. ``halves``
    is True where it admits f16 and bf16 in place of f32, False where it refuses them, None where it says nothing."""

    text: str
    test: Callable[[Call, Device], bool]
    actual: Callable[[Call, Device], str]
    halves: bool | None = None

    @classmethod
    def of(
        cls, text: str, value: Callable[[Call], _T], holds: Callable[[_T], bool], shown: Callable[[_T], str] = str
    ) -> Self:
        """The condition that one value of the call holds, which is what it looked at."""
        return cls(text, lambda call, device: holds(value(call)), lambda call, device: shown(value(call)))

    @classmethod
    def of_device(
        cls, text: str, value: Callable[[Device], _T], holds: Callable[[_T], bool], shown: Callable[[_T], str] = str
    ) -> Self:
        """The same of one value of the device."""
        return cls(text, lambda call, device: holds(value(device)), lambda call, device: shown(value(device)))
