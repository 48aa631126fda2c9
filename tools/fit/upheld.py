"""Hold numbers that were judged by hand against times on file: would another one lose less?

    python tools/fit/upheld.py conv2d.grouped

Each number of a row is tried at half, three quarters, one and a half times and twice of what it is. Every call of the
files of times (bench/results/regret, by `tools/regret.py`) whose choice reads the policy is chosen for again; where
another way is taken the times of both say what is lost, and ways that were not timed are counted. A row is *upheld*
where no other value loses less, and where for each of its numbers some value loses something, so that the times say
something of it. What they cannot tell apart stays as it was judged.
"""

import argparse
import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from fitting import RESULTS, fit_id

from vkconv.call import Call
from vkconv.device import Device, load_device
from vkconv.device.reads import Kind, Watch, watching
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.policy import Row, row_of
from vkconv.route import choose

TOOL = "upheld"
REGRET = RESULTS.parent / "regret"
_LAYERS = ("first", "second", "third", "fourth", "fifth", "sixth")
_F32 = [f"h100_layers_{name}_f32" for name in _LAYERS]
_TRIED = (0.5, 0.75, 1.5, 2.0)
# Noise of the times, in the logarithm.
_NOISE = 0.01

Way = tuple[str, str]
"""A route, and its parameters as JSON."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """Numbers of a policy's row, and the files of times that they are held against."""

    numbers: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def paths(self) -> list[Path]:
        return [REGRET / f"{name}.jsonl" for name in self.files]


FITS: Mapping[str, Fit] = {
    "conv2d.grouped": Fit(
        ("rows", "gemm_rows", "gemm_pixels", "few_rows", "few_per_unit", "grouped_rows", "subgroup_outputs"),
        (*_F32, "h100_depthwise_f32", "h100_5x5_f32"),
    ),
    "conv2d.stem": Fit(("pixels", "stride"), (*_F32,)),
    "conv2d.patch": Fit(("channels", "stride"), (*_F32,)),
}


@dataclasses.dataclass(frozen=True)
class Timed:
    """A call with the times of its ways, us, that is chosen by a policy, and what is taken by the row as it is."""

    call: Call
    us: Mapping[Way, float]
    taken: Way


@dataclasses.dataclass(frozen=True)
class Tried:
    """A number of a row at another value: the sum of logarithms of what the choices take then over what they take by
    the row, and of how many calls the choice of then was timed, and was not."""

    number: str
    value: float
    lost: float
    changed: int
    untimed: int


class _Instead(Watch):
    """Has another row of a policy read, and says whether one was."""

    def __init__(self, policy: str, row: Row) -> None:
        super().__init__()
        self._policy, self._row, self.was_read = policy, row, False

    def take(self, kind: Kind, get: Any, owner: object, words: tuple[str, ...]) -> Any:
        if kind != "policy" or words[-1] != self._policy:
            return super().take(kind, get, owner, words)
        self.was_read = True
        return self._row


def _way(call: Call, device: Device, watch: Watch) -> Way:
    with watching(watch):
        choice = choose(OPS[call.op].routes, call, dataclasses.replace(device))
    return choice.route.name, json.dumps(dict(choice.params), sort_keys=True)


def _times(paths: Sequence[Path]) -> Iterator[tuple[Call, dict[Way, float]]]:
    for path in paths:
        found: dict[str, dict[Way, list[float]]] = {}
        for row in map(json.loads, path.read_text().splitlines()[1:]):
            if "us" in row:
                way = row["route"], json.dumps(row["params"], sort_keys=True)
                found.setdefault(row["call"], {}).setdefault(way, []).append(row["us"])
        for text, ways in found.items():
            # Of ways that were timed again, the times of then: the first one chose them for being low.
            yield parse_call(text, OPS), {way: statistics.median(of[1:] or of) for way, of in ways.items()}


@functools.cache
def timed(name: str, device: Device) -> tuple[Timed, ...]:
    """The calls of the files that are chosen by a policy, whose choice of today was timed."""
    found = []
    for call, us in _times(FITS[name].paths):
        watch = _Instead(name, row_of(name, device))
        way = _way(call, device, watch)
        if watch.was_read and way in us:
            found.append(Timed(call, us, way))
    return tuple(found)


def tried(name: str, device: Device) -> Iterator[Tried]:
    """Every number of the fit at every other value."""
    row, rows = row_of(name, device), timed(name, device)
    for number in FITS[name].numbers:
        was = row.value[number]
        values = {type(was)(math.ceil(times * was) if isinstance(was, int) else times * was) for times in _TRIED}
        for value in sorted(values - {was}):
            other = msgspec.structs.replace(row, value={**row.value, number: value})
            lost, changed, untimed = 0.0, 0, 0
            for one in rows:
                way = _way(one.call, device, _Instead(name, other))
                if way not in one.us:
                    untimed += 1
                elif way != one.taken:
                    lost, changed = lost + math.log(one.us[way] / one.us[one.taken]), changed + 1
            yield Tried(number, value, lost, changed, untimed)


def is_upheld(name: str, every: Sequence[Tried]) -> bool:
    """Whether no other value loses less, and of each number some value loses something."""
    told = {one.number for one in every if one.lost > _NOISE}
    return told == {*FITS[name].numbers} and all(one.lost >= -_NOISE for one in every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=FITS)
    parser.add_argument("--device", default="h200", help="the shipped file whose row it is")
    args = parser.parse_args()
    device = load_device(args.device)
    row, every = row_of(args.name, device), list(tried(args.name, device))
    print(f"# {len(timed(args.name, device))} calls")
    for one in every:
        said = f"{one.number} = {one.value:g}, not {row.value[one.number]:g}"
        times = f"{math.exp(one.lost / max(1, one.changed)):.2f} times the time of {one.changed} calls"
        print(f"# {said}: {times}; {one.untimed} that were not timed")
    if is_upheld(args.name, every):
        print(f'fit = "{fit_id(TOOL, args.name, *FITS[args.name].paths)}"')
    else:
        print("# not upheld: another value loses less, or the times say nothing of a number")


if __name__ == "__main__":
    main()
