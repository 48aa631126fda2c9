"""Other values of a policy's row: each number, switch and list of it in turn, the rest as it is.

A place in a value is its names and indices joined by points, ``long.rows`` or ``0.3``; the empty text is the whole of a
value that is one number. A number is tried at half, three quarters, one and a half times and twice of what it is, a
switch the other way, a list of candidates with another one first. Of candidates in two parts, those that a rule looks
at and those that only tuning tries, each is put into the other part. What other rows of the policy have is tried too.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TIMES = (0.5, 0.75, 1.5, 2.0)
# What no rule weighs: the device that costs were timed on, and the unit that they are of.
_NOT_TRIED = {"timed_on", "rate", "timed", "forms"}
# The two parts of a list of candidates.
_CANDIDATES = {"rule", "more"}


class _Missing:
    def __repr__(self) -> str:
        return "none"


_MISSING = _Missing()


def is_candidates(value: Any) -> bool:
    """Whether a value is tried by another of its entries first."""
    if isinstance(value, Mapping):
        return bool(value) and value.keys() <= _CANDIDATES
    return isinstance(value, list) and not any(isinstance(entry, list) for entry in value)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value by name or index: of a list of rows of numbers each number of each row."""
    if isinstance(value, Mapping):
        yield from value.items()
        return
    for i, row in enumerate(value):
        yield from ((f"{i}.{j}", number) for j, number in enumerate(row))


def places(value: Any, above: str = "") -> Iterator[str]:
    """The places of a value that are tried."""
    if is_candidates(value) or not isinstance(value, Mapping | list):
        yield above
        return
    for name, below in _inside(value):
        if name not in _NOT_TRIED:
            yield from places(below, f"{above}.{name}" if above else name)


def at(value: Any, place: str) -> Any:
    """What a value has at a place; `_MISSING` where it has no such place."""
    for name in place.split(".") if place else ():
        if isinstance(value, list):
            value = value[int(name)] if name.isdigit() and int(name) < len(value) else _MISSING
        else:
            value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
    return value


def changed(value: Any, place: str, other: Any) -> Any:
    """The value with another one at a place."""
    if not place:
        return other
    name, _, below = place.partition(".")
    if isinstance(value, list):
        return [changed(entry, below, other) if str(i) == name else entry for i, entry in enumerate(value)]
    return {**value, name: changed(value.get(name, {}), below, other)}


def _candidates(value: Any) -> Iterator[Any]:
    """A list of candidates with each other entry in front; of two parts, with each entry in the other one."""
    if isinstance(value, list):
        yield from ([entry, *(one for one in value if one != entry)] for entry in value[1:])
        return
    rule, more = value.get("rule", []), value.get("more", [])
    for entry in rule if len(rule) > 1 else ():
        yield {"rule": [one for one in rule if one != entry], "more": [entry, *more]}
    for entry in more:
        yield {"rule": [entry, *rule], "more": [one for one in more if one != entry]}


def _others(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        if value and math.isfinite(value):
            yield from (math.ceil(t * value) if isinstance(value, int) else float(f"{t * value:.3g}") for t in TIMES)
    elif value is not _MISSING and is_candidates(value):
        yield from _candidates(value)


def others(value: Any, place: str, rows: Sequence[Any]) -> list[Any]:
    """The other values that are tried at a place, by the values of the policy's other rows too; none twice."""
    was = at(value, place)
    tried = [*_others(was), *(one for row in rows if (one := at(row, place)) is not _MISSING)]
    kept = dict[str, Any]()
    for one in tried:
        kept.setdefault(json.dumps(one, sort_keys=True), one)
    if was is not _MISSING:
        kept.pop(json.dumps(was, sort_keys=True), None)
    return list(kept.values())


def every_place(value: Any, rows: Sequence[Any]) -> list[str]:
    """The places of a row's value, and those that other rows of the policy have and it leaves out."""
    return list(dict.fromkeys(place for one in (value, *rows) for place in places(one) if place or one != {}))
