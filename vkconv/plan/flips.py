"""Which of what rules read of two devices decides that they choose differently: the choice is made again with some of
it taken from the other device."""

import dataclasses
import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from vkconv.call import Call
from vkconv.core import RouteError, UsageError
from vkconv.device import Device
from vkconv.device.reads import Kind, Seen, Swap, Watch, watching
from vkconv.plan.planner import Options, choose_route
from vkconv.plan.read_values import FACTS, Read, by_kind, differs
from vkconv.route import Choice

# Swapped together where nothing flips the choice alone; the last is all that is read.
_TOGETHER: tuple[Callable[[Kind], bool], ...] = (
    lambda kind: kind in ("number", "class"),
    lambda kind: kind == "policy",
    lambda kind: kind in FACTS,
    lambda kind: True,
)
_BEHIND = 3  # of `_rank`: it says little of why the devices differ


def fresh(device: Device, options: Options) -> Device:
    """The device as the options have it, without what was kept of it, so that all is read again."""
    return dataclasses.replace(device) if options.quirks else dataclasses.replace(device, own_quirks=())


@dataclasses.dataclass(frozen=True)
class Decision:
    """The choice of a device for a call, and what it read by name."""

    device: Device
    options: Options
    choice: Choice
    found: Mapping[str, Seen]

    @classmethod
    def of(cls, call: Call, device: Device, options: Options) -> "Decision":
        """Raises what `vkconv.route.choose` raises."""
        device = fresh(device, options)
        with watching(Watch()) as watch:
            choice = choose_route(call, "", device, options)
        return cls(device, options, choice, {seen.name: seen for seen in by_kind(watch.found.values())})

    @property
    def reads(self) -> tuple[Read, ...]:
        """The same as text: numbers and policies in the order of their reading, then facts."""
        return tuple(Read.of(seen, self.device) for seen in self.found.values())


@dataclasses.dataclass(frozen=True)
class Flip:
    """What flips a choice: what was ``seen``, of which none does so alone if there is more than one. With that as
    device ``of`` has it, a ``device`` (both by their places among those compared) takes another route, or other
    parameters of its route; None where no route can take the call then. ``as_other``: just what the other one takes."""

    seen: tuple[Seen, ...]
    device: int
    of: int
    takes: Choice | None
    as_other: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what flips it."""
        return tuple(seen.name for seen in self.seen)


def differing(decisions: Sequence[Decision]) -> dict[str, Seen]:
    """What at least one device read, and of which not all have the same, by name."""
    found = {name: seen for one in decisions for name, seen in one.found.items()}
    return {seen.name: seen for seen in by_kind(found.values()) if _differs(seen, *decisions)}


def _differs(seen: Seen, *decisions: Decision) -> bool:
    return differs(seen, (one.device for one in decisions))


def flips(call: Call, decisions: Sequence[Decision]) -> list[Flip]:
    """What flips the choices that differ, of each pair of devices: first what makes one take just what the other takes,
    then what makes it take its route, then what makes it leave its own. Where nothing does so alone, a set of which
    nothing can be left out; empty where all choose the same."""
    found = list[Flip]()
    for k, b in enumerate(decisions):
        for i, a in enumerate(decisions[:k]):
            if str(a.choice) != str(b.choice):
                found += _flips_of((_Way(call, a, b, i, k), _Way(call, b, a, k, i)))
    return found


def _flips_of(ways: Sequence["_Way"]) -> list[Flip]:
    alone = sorted((pair for way in ways for pair in way.alone()), key=lambda pair: pair[0])
    if any(rank < _BEHIND for rank, _ in alone):
        return [flip for _, flip in alone]
    sets = (way.together(of_kind, way.explains) for of_kind in _TOGETHER for way in ways)
    return [*itertools.islice(filter(None, sets), 1), *(flip for _, flip in alone)]


def flip_to(call: Call, own: Decision, other: Decision, wanted: Callable[[Choice], bool]) -> Flip | None:
    """What of another device would have one take what is ``wanted`` for a call: one thing alone, where one does, else a
    set of which nothing can be left out; None where even all of it does not."""

    def is_wanted(choice: Choice | None) -> bool:
        return choice is not None and wanted(choice)

    way = _Way(call, own, other, 0, 1)
    alone = (flip for _, flip in way.alone() if is_wanted(flip.takes))
    return next(alone, None) or way.together(lambda kind: True, is_wanted)


@dataclasses.dataclass(frozen=True)
class _Way:
    """A device, and another one that what it reads is taken from; both with their places."""

    call: Call
    own: Decision
    other: Decision
    device: int
    of: int

    def decide(self, swap: Swap) -> tuple[Choice | None, Mapping[str, Seen]]:
        return decided_with(self.call, self.own, self.other, swap)

    def explains(self, choice: Choice | None) -> bool:
        """Whether a choice says why the devices differ."""
        rank = _rank(self.own, self.other, choice)
        return rank is not None and rank < _BEHIND

    def alone(self) -> Iterator[tuple[int, Flip]]:
        """What flips the choice by itself, with its rank."""
        for name, seen in differing([self.own, self.other]).items():
            choice, _ = self.decide(_only([name])) if name in self.own.found else (self.own.choice, {})
            if (rank := _rank(self.own, self.other, choice)) is not None:
                yield rank, self._flip([seen], choice)
        if self.own.choice.by == "measured":  # a table says nothing of another device: without it
            bare = dataclasses.replace(self.own.options, measured=None)
            choice = Decision.of(self.call, self.own.device, bare).choice
            if (rank := _rank(self.own, self.other, choice)) is not None:
                yield rank, self._flip([], choice)

    def together(self, of_kind: Callable[[Kind], bool], explains: Callable[[Choice | None], bool]) -> Flip | None:
        """A set of what is read, of some kinds, all of which it takes for a choice that explains."""
        choice, found = self.decide(lambda kind, name: of_kind(kind))
        if not explains(choice):
            return None
        differ = [s for s in by_kind(found.values()) if of_kind(s.kind) and _differs(s, self.own, self.other)]
        kept = [seen.name for seen in differ]
        for name in list(kept):
            fewer = [one for one in kept if one != name]
            if explains(self.decide(_only(fewer))[0]):
                kept = fewer
        return self._flip([seen for seen in differ if seen.name in kept], self.decide(_only(kept))[0])

    def _flip(self, seen: Sequence[Seen], choice: Choice | None) -> Flip:
        return Flip(tuple(seen), self.device, self.of, choice, str(choice) == str(self.other.choice))


def _only(names: Container[str]) -> Swap:
    return lambda kind, name: name in names


def decided_with(call: Call, own: Decision, other: Decision, swap: Swap) -> tuple[Choice | None, Mapping[str, Seen]]:
    """The choice of a device with what ``swap`` says taken from another one, and what it read; None where no route can
    take the call so."""
    with watching(Watch(other.device, swap)) as watch:
        try:
            choice = choose_route(call, "", dataclasses.replace(own.device), own.options)
        except (RouteError, UsageError):
            return None, watch.found
    return choice, watch.found


def _rank(own: Decision, other: Decision, choice: Choice | None) -> int | None:
    """How much of the difference a choice takes away: all of it (0), what is the other's route then (1), the own route
    where it stands before the other's, so that this one refuses what is taken here (2), where it stands behind (3);
    None where it leaves the difference as it is."""
    if str(choice) == str(other.choice):
        return 0
    mine, theirs = own.choice, other.choice
    names = [verdict.route.name for verdict in mine.verdicts]
    left = 2 if names.index(mine.route.name) <= names.index(theirs.route.name) else 3
    if choice is None or choice.route.name not in (mine.route.name, theirs.route.name):
        return left
    if mine.route.name != theirs.route.name:
        return 1 if choice.route.name == theirs.route.name else None
    names = [name for name in {**mine.params, **theirs.params} if mine.params.get(name) != theirs.params.get(name)]
    return 1 if any(choice.params.get(name) != mine.params.get(name) for name in names) else None
