"""Ways that a call is computed in, as a policy's row decides them, and their times on file.

A way is a route with parameters. What a policy decides inside a program, such as the lanes of the launch that adds
parts up, is no parameter: of such a policy a way is the program too, and a line of a file of times has the ``value``
of the row that it was timed by.
"""

import dataclasses
import functools
import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from vkconv.call import Call
from vkconv.core import VkconvError
from vkconv.device import Device
from vkconv.device.reads import Kind, Watch, watching
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.policy import Row
from vkconv.route import choose

Way = tuple[str, str, str]
"""A route, its parameters as JSON, and a digest of its program where that counts."""


class Instead(Watch):
    """Has another row of a policy read, and says whether one was."""

    def __init__(self, policy: str, row: Row) -> None:
        super().__init__()
        self._policy, self._row, self.was_read = policy, row, False

    def take(self, kind: Kind, get: Any, owner: object, words: tuple[str, ...]) -> Any:
        if kind != "policy" or words[-1] != self._policy:
            return super().take(kind, get, owner, words)
        self.was_read = True
        return self._row


@dataclasses.dataclass(frozen=True)
class Chooser:
    """What a device takes by the rows of a policy. ``programs``: whether programs of one route with the same parameters
    differ by them. ``route``: the one that is asked for, where rules take another one."""

    device: Device
    policy: str
    programs: bool = False
    route: str | None = None

    def way(self, call: Call, row: Row) -> tuple[Way, bool]:
        """The way that is chosen for a call by a row, and whether it was read for that."""
        # Another object of the same device: what was made of the first one knows the row of then.
        device = dataclasses.replace(self.device)
        with watching(watch := Instead(self.policy, row)):
            choice = choose(OPS[call.op].routes, call, device, forced=self.route)
            digest = _digest(choice.route.build(call, device, choice.params)) if self.programs else ""
        return (choice.route.name, _text(choice.params), digest), watch.was_read

    def of_line(self, call: Call, line: Mapping[str, Any], row: Row) -> Way:
        """The way that a line of a file of times is of."""
        digest = ""
        if self.programs:
            route = next(one for one in OPS[call.op].routes if one.name == line["route"])
            device = dataclasses.replace(self.device)
            with watching(Instead(self.policy, with_value(row, line["value"]))):
                digest = _digest(route.build(call, device, line["params"]))
        return line["route"], _text(line["params"]), digest

    def times(self, paths: Sequence[Path], row: Row) -> Iterator[tuple[Call, str, dict[Way, float]]]:
        """The calls of files of times, their texts, and the us of their ways. Of ways that were timed again, the times
        of then: the first one chose them for being low."""
        for path in paths:
            for text, lines in _lines(path).items():
                found, call = dict[Way, list[float]](), parse_call(text, OPS)
                for line in lines:
                    found.setdefault(self.of_line(call, line, row), []).append(line["us"])
                yield call, text, {way: statistics.median(of[1:] or of) for way, of in found.items()}


def _text(params: Mapping[str, Any]) -> str:
    return json.dumps(dict(params), sort_keys=True)


def _digest(program: object) -> str:
    return hashlib.sha256(repr(program).encode()).hexdigest()[:12]


def with_value(row: Row, value: Any) -> Row:
    """The row with another value."""
    return msgspec.structs.replace(row, value=value)


@functools.cache
def _lines(path: Path) -> Mapping[str, list[dict[str, Any]]]:
    """The lines of a file of times by their calls."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, path.read_text().splitlines()[1:]):
        if "us" in line:
            found.setdefault(line["call"], []).append(line)
    return found


def tried(chooser: Chooser, call: Call, row: Row) -> Way | None:
    """The way by a row, None where its value is none that the rule can take."""
    try:
        return chooser.way(call, row)[0]
    except (msgspec.ValidationError, VkconvError, ValueError, LookupError, ArithmeticError, TypeError, StopIteration):
        return None
