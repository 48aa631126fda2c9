"""The order of commands: those that do not wait for each other side by side, so that one barrier serves them all."""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from vkconv.plan.commands import Barrier, Command, with_barriers


def waves(levels_of: Sequence[int]) -> list[tuple[int, int]]:
    """For each of some steps, which are in the order of their levels, the first and the last of its own level."""
    return [(bisect_left(levels_of, level), bisect_right(levels_of, level) - 1) for level in levels_of]


def step_levels(
    reads: Sequence[Collection[str]], writes: Sequence[Collection[str]], pieces: Sequence[int] = ()
) -> list[int]:
    """For each step, by the values that it reads and writes, one more than the highest level of what makes the former;
    0 where nothing does. Of steps in ``pieces``, numbers that never fall, a piece lies above the one before it."""
    made: dict[str, int] = {}
    found = list[int]()
    floor = 0
    for index, (read, written) in enumerate(zip(reads, writes, strict=True)):
        if pieces and index and pieces[index] != pieces[index - 1]:
            floor = max(found) + 1
        level = max((made[value] + 1 for value in read if value in made), default=0)
        level = max(level, floor)
        made |= dict.fromkeys(written, level)
        found.append(level)
    return found


class _Levels:
    """By byte of a buffer, the levels of the last command that writes it and of the last that reads it since."""

    def __init__(self) -> None:
        # Disjoint segments in order: where each begins, and what is known from there to where the next one does.
        self.begins: list[int] = [0]
        self.known: list[tuple[int, int]] = [(0, 0)]

    def _cut(self, at: int) -> int:
        """The place of the segment that begins at a byte, which is made where there is none."""
        place = bisect_right(self.begins, at) - 1
        if self.begins[place] == at:
            return place
        self.begins.insert(place + 1, at)
        self.known.insert(place + 1, self.known[place])
        return place + 1

    def before(self, begin: int, end: int, writes: bool) -> int:
        """The highest level that an access of these bytes comes after."""
        first, last = bisect_right(self.begins, begin) - 1, bisect_right(self.begins, end - 1)
        return max(max(pair) if writes else pair[0] for pair in self.known[first:last])

    def access(self, begin: int, end: int, level: int, writes: bool) -> None:
        """Note an access of these bytes by a command of a level."""
        first = self._cut(begin)
        last = self._cut(end)
        if writes:
            self.begins[first:last], self.known[first:last] = [begin], [(level, 0)]
        else:
            self.known[first:last] = [(write, max(read, level)) for write, read in self.known[first:last]]


def levels(commands: Iterable[Command]) -> Iterator[int]:
    """For each command how many others must run one after the other before it, itself included: 1 more than the
    highest of what it conflicts with, as `with_barriers` has it."""
    buffers: dict[str, _Levels] = {}
    for command in commands:
        touched = [(region, access != "r") for region, access in command.accesses if region.nbytes]
        level = 1 + max(
            (
                buffers.setdefault(r.buffer, _Levels()).before(r.offset, r.offset + r.nbytes, writes)
                for r, writes in touched
            ),
            default=0,
        )
        for region, writes in touched:
            buffers[region.buffer].access(region.offset, region.offset + region.nbytes, level, writes)
        yield level


def side_by_side(
    commands: Sequence[Command], piece: Callable[[Command], int] = lambda command: 0
) -> list[Command | Barrier]:
    """The commands with their barriers, in the order that needs the fewest; the given one where that needs no more.

    Commands that conflict keep their order. As many barriers are needed as commands wait for each other in a row. Each
    ``piece`` of the commands stays together.
    """
    ordered: list[Command] = []
    for _, together in itertools.groupby(commands, piece):
        ordered += _fewest_barriers(list(together))
    return list(with_barriers(ordered))


def _fewest_barriers(commands: Sequence[Command]) -> list[Command]:
    of = list(levels(commands))
    needed = max(of, default=1) - 1
    if needed >= sum(isinstance(command, Barrier) for command in with_barriers(commands)):
        return list(commands)
    return [command for _, command in sorted(zip(of, commands, strict=True), key=lambda pair: pair[0])]
