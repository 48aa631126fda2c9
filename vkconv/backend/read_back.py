"""From memory that the host does not see to arrays of the host: staging that is kept for that, and recorded copies."""

import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from vkconv.backend.runtime import LiveDevice
from vkconv.backend.storage import Storage
from vkconv.core import Array

if TYPE_CHECKING:
    from vkconv.backend import _bridge

# What goes at a time: one such part is read while the next one comes.
PART_BYTES = 16 << 20
# Recorded copies that are kept; those used least recently go first.
MOST_RECORDINGS = 16
_Key = tuple[int, int, int, int]


class ReadBack:
    """The way back from one device: `read_back` shares one among all arrays of it, which take turns. It keeps two
    buffers of `PART_BYTES` at most, which grow as they are needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._staging: list[_bridge.Buffer | None] = [None, None]
        self._recordings: OrderedDict[_Key, _bridge.Recording] = OrderedDict()

    def read(self, storage: Storage, offset: int, out: Array) -> None:
        """Fill a new array from the bytes of a storage that begin at ``offset``, in parts."""
        live = storage.live
        memory = out.reshape(-1).view(np.uint8)
        begins = range(0, memory.size, PART_BYTES)
        parts = [(i % 2, begin, min(PART_BYTES, memory.size - begin)) for i, begin in enumerate(begins)]
        with self._lock:
            try:
                coming = [self._start(storage, offset, part) for part in parts[:1]]
                for i, (side, begin, nbytes) in enumerate(parts):
                    coming += [self._start(storage, offset, part) for part in parts[i + 1 : i + 2]]
                    coming[i].wait(spin_us=live.polling_us)
                    staging = self._staging[side]
                    assert staging is not None
                    staging.read(memory[begin : begin + nbytes], live.copying.threads_for(nbytes))
            except BaseException:  # the device may still write there
                self._recordings.clear()
                self._staging = [None, None]
                raise

    def forget(self, serial: int) -> None:
        """Let copies from a storage go that is gone."""
        for key in list(self._recordings):
            if key[0] == serial:
                self._recordings.pop(key, None)

    def _start(self, storage: Storage, offset: int, part: tuple[int, int, int]) -> "_bridge.Recording":
        """Have a part of what begins at ``offset`` copied to its side's staging."""
        side, begin, nbytes = part
        staging = self._staging[side]
        if staging is None or staging.nbytes < nbytes:
            for key in [key for key in self._recordings if key[3] == side]:  # they copy to the one that is too small
                self._recordings.pop(key, None)
            self._staging[side] = staging = storage.live.handle.buffer(nbytes, "download")
        key = storage.serial, offset + begin, nbytes, side
        recording = self._recordings.pop(key, None)
        if recording is None:
            recording = storage.live.handle.recording()
            recording.barrier(["compute", "transfer"], ["transfer"])
            recording.copy(storage.buffer, offset + begin, staging, 0, nbytes)
            recording.barrier(["transfer"], ["host"])
            recording.end()
            storage.users.add(self)
            while len(self._recordings) >= MOST_RECORDINGS:
                self._recordings.popitem(last=False)
        self._recordings[key] = recording
        recording.submit()
        return recording


_ways: weakref.WeakKeyDictionary[LiveDevice, ReadBack] = weakref.WeakKeyDictionary()
_ways_lock = threading.Lock()


def read_back(live: LiveDevice) -> ReadBack:
    """The way back from a device."""
    with _ways_lock:
        way = _ways.get(live)
        if way is None:
            way = _ways[live] = ReadBack()
        return way
