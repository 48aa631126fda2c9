"""Commands of plans as recordings: recorded once, submitted many times."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vkconv.backend.runtime import LiveDevice
from vkconv.plan.arriving import Arrived
from vkconv.plan.commands import Barrier, Command, Copy, Region
from vkconv.plan.timing import Span

if TYPE_CHECKING:
    from vkconv.backend import _bridge

    # A buffer and a first byte in it for each buffer of a plan.
    Places = Mapping[str, tuple[_bridge.Buffer, int]]
    Steps = Sequence[Command | Barrier | Arrived]

# As long as the bridge waits.
_FOREVER_NS = (1 << 63) - 1


class Where(NamedTuple):
    """What commands are recorded for: a device, the buffers and textures that they name, and where to note what
    compiling took."""

    live: LiveDevice
    places: "Places"
    textures: "Mapping[str, _bridge.Image]"
    compiled: list[Span]

    def at(self, region: Region) -> "tuple[_bridge.Buffer, int]":
        """The buffer of a region, and its first byte there."""
        buffer, first = self.places[region.buffer]
        return buffer, first + region.offset

    def bound(self, region: Region) -> "_bridge.Image | tuple[_bridge.Buffer, int, int]":
        """A region as a launch binds it."""
        return self.textures[region.buffer] if region.buffer in self.textures else (*self.at(region), region.nbytes)


def record(
    commands: "Steps",
    where: Where,
    stamp_every: int = 0,
    after: "Mapping[str, _bridge.Upload] | None" = None,
    then: "Sequence[_bridge.Download]" = (),
) -> "_bridge.Recording":
    """Commands for replay, once the uploads ``after`` which they come are there, of which some commands may need the
    first bytes only; the downloads ``then`` come behind them. With ``stamp_every``, a timestamp at the start and after
    every so many commands, and where more of an upload is awaited."""
    uploads = after or {}
    work = sum(not isinstance(c, Barrier) for c in commands)
    recording: _bridge.Recording = where.live.handle.recording(work // stamp_every + 1 if stamp_every else 0)
    # Whatever ran before on these buffers, prepacking or an earlier replay, comes first.
    recording.barrier(["compute", "transfer"], ["compute", "transfer"])
    if stamp_every:
        recording.timestamp()
    done = 0
    for command in commands:
        if isinstance(command, Barrier):
            recording.barrier(["compute", "transfer"], ["compute", "transfer"])
            continue
        if isinstance(command, Arrived):
            recording.part(uploads[command.x], command.nbytes)
        elif isinstance(command, Copy):
            recording.copy(*where.at(command.source), *where.at(command.target), command.target.nbytes)
        else:
            binds = [where.bound(region) for region, _ in command.binds]
            recording.dispatch(where.live.pipeline(command, where.compiled), binds, command.push, command.groups)
        done += 1
        if stamp_every and done % stamp_every == 0:
            recording.timestamp()
    recording.barrier(["compute", "transfer"], ["host"])
    recording.end(list(uploads.values()), then)
    return recording


class Repeats:
    """The dispatches of a plan recorded several times over, to be timed: `Executable.repeat` makes one.

    ``submit`` runs the recording and waits for it, so many nanoseconds at most."""

    def __init__(self, recording: "_bridge.Recording", together: int, submit: Callable[[int], None]) -> None:
        self._recording, self._together, self._submit = recording, together, submit

    def run(self, timeout_ns: int = _FOREVER_NS) -> tuple[list[float], float]:
        """GPU microseconds of a repeat, a number for each timestamp, and the wall microseconds of submitting and
        awaiting them all.

        A repeat lasts from the end of the one before to its own end, so that its barriers are in it and all
        together are the time the device was busy.
        """
        start = time.perf_counter_ns()
        self._submit(timeout_ns)
        wall_us = (time.perf_counter_ns() - start) / 1e3
        return [span / self._together for span in spans_us(self._recording)], wall_us


def spans_us(recording: "_bridge.Recording") -> list[float]:
    """Microseconds between the timestamps of a recording that has run."""
    return [(after - before) / 1e3 for before, after in itertools.pairwise(recording.timestamps_ns())]
