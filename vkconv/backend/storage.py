"""Buffers that arrays of a device lie in, and who is to know when they go."""

import itertools
import weakref
from typing import TYPE_CHECKING, Protocol

from vkconv.backend.runtime import LiveDevice

if TYPE_CHECKING:
    from vkconv.backend import _bridge

_serials = itertools.count(1)


class User(Protocol):
    """Whoever keeps commands that use a storage, or what was made of its contents."""

    def forget(self, serial: int) -> None:
        """Let go of what is of the storage of this serial."""


class Storage:
    """A buffer that arrays lie in. ``serial`` is of this one alone, for as long as the process lives; ``users`` keep
    recorded commands that use it, and are told when it goes, since those would keep its memory. ``contents`` is of what
    is written there, once for all, until no array is left in it; ``packers`` keep what they made of that, and are told
    when it goes."""

    def __init__(self, buffer: "_bridge.Buffer", live: LiveDevice) -> None:
        self.buffer = buffer
        self.live = live
        self.serial = next(_serials)
        self.users: weakref.WeakSet[User] = weakref.WeakSet()
        self.contents = next(_serials)
        self.packers: weakref.WeakSet[User] = weakref.WeakSet()

    def __del__(self) -> None:
        for user in [*self.users, *self.packers]:
            user.forget(self.serial)

    def free(self) -> None:
        """Have other contents written: no array is left in it."""
        self.contents = next(_serials)
        for packer in list(self.packers):
            packer.forget(self.serial)
        self.packers.clear()

    @property
    def is_read_fast(self) -> bool:
        """Whether the host reads it where it lies."""
        return self.buffer.kind in ("output", "download")
