"""Hold the numbers of policies' rows against times on file: would another value lose less?

    python tools/fit/upheld.py conv2d.grouped --device h200

The fits stand in upheld.toml: a policy, a device that has the row, the places of its value that the times say something
of, and the files of times, of `tools/fit/row_times.py` or `tools/regret.py`. Each place is tried by other values
(`variations`). Every call of the files whose choice reads the policy is chosen for again; where another way is taken,
the times of both say what is lost, and ways that were not timed are counted. A third of the calls is held out, by the
digest of their text. A value is *better* where it gains more than times and calls scatter, on those that are not held
out and on those that are: the best of these is taken, and the others are tried again. A row is *upheld* where no other
value is better, and where for each of its places some value loses more than the noise of times: what they cannot tell
apart is not among the places, and stays as it was judged.
"""

import argparse
import dataclasses
import functools
import json
import math
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from fitting import RESULTS, fit_id
from thresholds import held_out
from variations import at, changed, every_place, others
from ways import Chooser, Way, tried, with_value

from vkconv.call import Call
from vkconv.device import load_device, target_of
from vkconv.policy import Row, row_of, tables

TOOL = "upheld"
REGRET = RESULTS.parent / "regret"
_FITS = Path(__file__).with_suffix(".toml")
# Noise of one time, in the logarithm: of a GPU at its clock, and of cores that others use too, as two of a way scatter.
_NOISE, _CPU_NOISE = 0.01, 0.07
# The part of the time that another value must save at least to be worth its choices, of which fewer were timed before.
_WORTH = 0.02
# Calls that another value must change, not held out and held out, for it to be better.
_FITTED, _HELD = 3, 2
# Places that are changed at most, one after the other.
_STEPS = 8


_device = functools.cache(load_device)


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Places of a policy's row, and the files of times that they are held against. ``device`` is a shipped device that
    has the row. ``programs`` and ``route`` as of `Chooser`; ``draws`` are what calls are drawn by to be timed, ``also``
    has values of places that are tried beside those of `variations`."""

    policy: str
    device: str
    places: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    programs: bool = False
    route: str | None = None
    also: Mapping[str, tuple[Any, ...]] = {}

    @property
    def name(self) -> str:
        return f"{self.policy}/{self.device}"

    @property
    def paths(self) -> list[Path]:
        return [REGRET / f"{name}.jsonl" for name in self.files]

    @property
    def id(self) -> str:
        return fit_id(TOOL, self.policy, *self.paths)

    @property
    def row(self) -> Row:
        return row_of(self.policy, _device(self.device))

    @property
    def chooser(self) -> Chooser:
        return Chooser(_device(self.device), self.policy, self.programs, self.route)

    def also_at(self, place: str) -> list[Any]:
        """Values of the row with each value that is tried at a place beside the others."""
        return [changed(self.row.value, place, value) for value in self.also.get(place, ())]

    def values(self, places: Sequence[str] | None = None, row: Row | None = None) -> Iterator[tuple[str, Any]]:
        """Other values of the places that are named (none: of every one) of its row, or of another one in its place."""
        mine = (row or self.row).value
        rest = [one.value for one in tables()[self.policy].rows if one is not self.row]
        for place in every_place(mine, rest) if places is None else places:
            for value in others(mine, place, [*rest, *self.also_at(place)]):
                yield place, value

    @property
    def noise(self) -> float:
        """Of one time, in the logarithm."""
        return _CPU_NOISE if target_of(_device(self.device)).device_class == "cpu" else _NOISE


class _Fits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What upheld.toml has: the fits, and why rows that were measured have none."""

    fit: tuple[Fit, ...]
    unfitted: Mapping[str, str] = {}


@functools.cache
def _read() -> _Fits:
    with _FITS.open("rb") as file:
        return msgspec.convert(tomllib.load(file), _Fits)


@functools.cache
def fits() -> Mapping[str, Fit]:
    """The fits by policy and device."""
    return {fit.name: fit for fit in _read().fit}


def unfitted() -> Mapping[str, str]:
    """Why rows that were measured have no fit, by their policy and what they ask of a target."""
    return _read().unfitted


@dataclasses.dataclass(frozen=True)
class Timed:
    """A call with the times of its ways, us, that is chosen by a policy, and what is taken by the row as it is."""

    call: Call
    us: Mapping[Way, float]
    taken: Way
    held_out: bool


@dataclasses.dataclass
class Lost:
    """The logarithms of what the choices take by another value over what they take by the row, of calls whose choice of
    then is another one, and was timed."""

    logs: list[float] = dataclasses.field(default_factory=list)

    @property
    def sum(self) -> float:
        return sum(self.logs)

    @property
    def changed(self) -> int:
        return len(self.logs)

    @property
    def scatter(self) -> float:
        """The standard error of the sum, by what calls differ."""
        return math.sqrt(self.changed) * statistics.stdev(self.logs) if self.changed > 1 else 0.0

    def beyond(self, noise: float) -> bool:
        """Whether the other value loses more than what times scatter."""
        return self.sum > noise * math.sqrt(2 * self.changed) and self.changed > 0

    def gains(self, noise: float) -> bool:
        """Whether it gains more than that, more than calls scatter, and what is worth another choice."""
        least = max(noise * math.sqrt(2 * self.changed), _WORTH * self.changed, self.scatter)
        return -self.sum > least and self.changed > 0


@dataclasses.dataclass(frozen=True)
class Tried:
    """A place of a row at another value: what that loses on the calls that are not held out, and on those that are, and
    of how many calls what is taken then was not timed."""

    place: str
    value: object
    fitted: Lost
    held: Lost
    untimed: int

    @property
    def all(self) -> Lost:
        return Lost(self.fitted.logs + self.held.logs)


def timed(name: str, row: Row | None = None) -> list[Timed]:
    """The calls of the files that are chosen by a policy, whose choice by its row (or another one) was timed."""
    fit, found = fits()[name], []
    for call, text, us in fit.chooser.times(fit.paths, fit.row):
        way, was_read = fit.chooser.way(call, row or fit.row)
        if was_read and way in us:
            found.append(Timed(call, us, way, held_out(text)))
    return found


def every_other(name: str, places: Sequence[str] | None = None, row: Row | None = None) -> Iterator[Tried]:
    """Other values of the places that are named (none: of every one) of the row, or of another one in its place."""
    fit, rows = fits()[name], timed(name, row)
    mine = row or fit.row
    for place, value in fit.values(places, row):
        other, lost, untimed = with_value(mine, changed(mine.value, place, value)), {False: Lost(), True: Lost()}, 0
        for one in rows:
            way = tried(fit.chooser, one.call, other)
            if way is None:
                break
            if way not in one.us:
                untimed += 1
            elif way != one.taken:
                lost[one.held_out].logs.append(math.log(one.us[way] / one.us[one.taken]))
        else:
            yield Tried(place, value, lost[False], lost[True], untimed)


def fitted(name: str) -> Iterator[tuple[Row, list[Tried]]]:
    """The row, and what it becomes by the best of the better values, one place after the other, until none is better;
    each with what other values lose."""
    fit, row = fits()[name], fits()[name].row
    for _ in range(_STEPS):
        every = list(every_other(name, row=row))
        yield row, every
        if not (found := better(every, fit.noise)):
            break
        row = with_value(row, changed(row.value, found[0].place, found[0].value))


def better(every: Sequence[Tried], noise: float) -> list[Tried]:
    """Values that gain on the calls that are not held out and on those that are, the one of the former's most first;
    none that takes more ways that were not timed than others."""
    known = [one for one in every if one.untimed <= one.all.changed]
    enough = [one for one in known if one.fitted.changed >= _FITTED and one.held.changed >= _HELD]
    found = [one for one in enough if one.fitted.gains(noise) and one.held.gains(noise)]
    return sorted(found, key=lambda one: one.fitted.sum)


def told(every: Sequence[Tried], noise: float) -> set[str]:
    """The places of which some value loses more than the noise: those that the times say something of."""
    return {one.place for one in every if one.all.beyond(noise)}


def is_upheld(places: Sequence[str], every: Sequence[Tried], noise: float) -> bool:
    """Whether no other value is better, and of each place some value loses."""
    return told(every, noise) == {*places} and not better(every, noise)


def _said(one: Tried, was: object) -> str:
    parts = [
        f"{math.exp(part.sum / part.changed):.3f} times the time of {part.changed} {what}"
        for part, what in ((one.fitted, "calls"), (one.held, "held out"))
        if part.changed
    ]
    return f"{one.place} = {one.value}, not {was}: {', '.join(parts) or 'nothing changes'}; {one.untimed} not timed"


def report(name: str) -> Iterator[str]:
    """What the times say of every place of a row, and the lines of the fit and of the row."""
    fit = fits()[name]
    for row, every in fitted(name):
        held = [one.held_out for one in timed(name, row)]
        yield f"value = {json.dumps(row.value)}: {len(held)} calls, {sum(held)} of them held out"
        yield from (f"  {_said(one, at(row.value, one.place))}" for one in every if one.all.changed)
        yield from (f"  BETTER: {_said(one, at(row.value, one.place))}" for one in better(every, fit.noise)[:1])
    says = sorted(told(every, fit.noise))
    yield f"places = {json.dumps(says)}"
    yield f"the times say nothing of {sorted({one.place for one in every} - {*says})}"
    if says and not better(every, fit.noise):
        yield f'fit = "{fit.id}"'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy")
    parser.add_argument("--device", default="h200", help="the shipped file whose row it is")
    args = parser.parse_args()
    name = f"{args.policy}/{args.device}"
    if name not in fits():
        raise SystemExit(f"no fit {name}; {_FITS.name} has {', '.join(fits())}")
    for line in report(name):
        print(f"# {line}" if not line.startswith("fit =") else line)


if __name__ == "__main__":
    main()
