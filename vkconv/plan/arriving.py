"""Runs that begin before their input has come: which commands need only the first images of it."""

import dataclasses
import math
from collections.abc import Collection, Sequence

from vkconv.plan.commands import Barrier, Command, Region


@dataclasses.dataclass(frozen=True, slots=True)
class Arrived:
    """What stands before it in a run needs no more of the streamed input ``x`` than its first ``nbytes``."""

    x: str
    nbytes: int

    @property
    def node(self) -> str:
        """As profiles call what the device waits there."""
        return f"await {self.x}"


@dataclasses.dataclass(frozen=True)
class Early:
    """How a run begins before its input has come: what waits for the first bytes of ``x``, the input whose images come
    in so many equal pieces, of ``nbytes`` together. ``ends`` says of how many commands, with barriers, what needs no
    more than some pieces is the end, and which bytes those are."""

    x: str
    pieces: int
    nbytes: int
    ends: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"the first launches run by images, as {len(self.ends) + 1} pieces of {self.x!r} come"

    def chunk_bytes(self, usual: int) -> int:
        """The chunks in which the input goes to the device, so that each piece ends with one; about as large as they
        usually are."""
        piece_bytes = self.nbytes / self.pieces
        return math.ceil(piece_bytes / max(1, round(piece_bytes / usual)))

    def marked(self, run: Sequence[Command | Barrier]) -> list[Command | Barrier | Arrived]:
        """The commands of a run with the ends of their pieces."""
        made: list[Command | Barrier | Arrived] = []
        begin = 0
        for end, nbytes in self.ends:
            made += [*run[begin:end], Arrived(self.x, nbytes)]
            begin = end
        return [*made, *run[begin:]]


def find_ends(
    run: Sequence[Command | Barrier], port: str, others: Collection[str], nbytes: int, pieces: int
) -> tuple[tuple[int, int], ...]:
    """As `Early.ends` has them, of an input of so many bytes in the buffer ``port``; what reads one of the ``others``,
    where the other inputs come, waits for all that come."""
    ends: list[tuple[int, int]] = []
    here = 1  # pieces that the commands so far need
    for index, command in enumerate(run):
        if isinstance(command, Barrier):
            continue
        needed = here
        for region, _ in command.accesses:
            if region.buffer in others:
                needed = pieces
            elif region.buffer == port:
                needed = max(needed, math.ceil(_last(region, nbytes) * pieces / nbytes))
        if needed > here:
            if index:
                ends.append((index, nbytes * here // pieces))
            here = needed
        if here == pieces:
            break
    return tuple(ends)


def _last(region: Region, nbytes: int) -> int:
    """The last byte that is needed of a region; bindings are whole words."""
    return min(nbytes, region.offset + region.nbytes)
