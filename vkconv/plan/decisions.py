"""What decided a choice: the numbers of the target and the rows of policies that the rules read, for one device, beside
another one, or for a route that was not taken."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vkconv.call import Call
from vkconv.core import UsageError, did_you_mean
from vkconv.device import Device
from vkconv.device.numbers import Number
from vkconv.device.target import reading
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.plan.measured import find_measured
from vkconv.plan.planner import Options, choose_route
from vkconv.policy import Row
from vkconv.route import Choice, Requirement, Route, refused_inside
from vkconv.table import Column, Table

_MOST_CHARACTERS = 60


@dataclasses.dataclass(frozen=True)
class Read:
    """A number or a policy that a rule read: its value as text, its evidence and source."""

    name: str
    value: str
    evidence: str = ""
    source: str = ""

    @classmethod
    def of(cls, name: str, what: object) -> "Read":
        if isinstance(what, Number):
            return cls(name, str(what), what.evidence, what.source)
        if isinstance(what, Row):
            return cls(name, value_text(what.value), what.evidence, what.source)
        return cls(name, str(what))

    def __str__(self) -> str:
        return f"{self.name} {_shortened(self.value)}{f' ({self.evidence})' if self.evidence else ''}"


def value_text(value: Any) -> str:
    """A value of a policy on one line."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={value_text(inner)}" for name, inner in value.items())
    return "|".join(map(value_text, value)) if isinstance(value, list | tuple) else str(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def _fresh(device: Device, options: Options) -> Device:
    """The device as the options have it, without what was kept of it, so that all is read again."""
    return dataclasses.replace(device) if options.quirks else dataclasses.replace(device, own_quirks=())


def decide(call: Call, device: Device, options: Options) -> tuple[Choice, tuple[Read, ...]]:
    """The choice for a call on a device, and what it read, in the order of its reading.

    Raises what `vkconv.route.choose` raises.
    """
    with reading() as found:
        choice = choose_route(call, "", _fresh(device, options), options)
    return choice, tuple(Read.of(name, what) for name, what in found.items())


def reads_table(reads: Sequence[Mapping[str, str]]) -> Table:
    """What a choice read, as `reads_data` has it, a row each."""
    columns = [Column(name) for name in ("number or policy", "value", "evidence", "source")]
    return Table("", columns, [(r["name"], _shortened(r["value"]), r["evidence"], r["source"]) for r in reads])


def reads_data(reads: Sequence[Read]) -> list[dict[str, str]]:
    """The same as JSON data."""
    return [dataclasses.asdict(read) for read in reads]


def why_not(call: Call, device: Device, options: Options, name: str) -> tuple[Table, dict[str, Any]]:
    """Why a route is not the one for a call: each of its requirements, whether it holds, what it looked at, and the
    numbers that it read.

    Raises UsageError for a route that the op does not have, and what `vkconv.route.choose` raises.
    """
    routes = {route.name: route for route in OPS[call.op].routes}
    if name not in routes:
        raise UsageError(f"{call.op} has no route {name!r}{did_you_mean(name, routes)}; it has {', '.join(routes)}")
    choice, _ = decide(call, device, options)
    rows = list(_conditions(routes[name], call, device, options))
    conclusion = _conclusion(name, choice, rows, list(routes))
    columns = [Column(column) for column in ("kind", "requirement", "holds", "actual", "read")]
    text = format_call(call, OPS)
    table = Table(f"{text} on {device.name}: {conclusion}", columns, [_cells(row) for row in rows])
    data = {
        "schema": "vkconv.why_not/1",
        "call": text,
        "device": device.name,
        "route": name,
        "taken": str(choice),
        "by": choice.by,
        "conclusion": conclusion,
        "requirements": [
            {"kind": r.kind, "text": r.text, "holds": r.holds, "actual": r.actual, "read": reads_data(r.read)}
            for r in rows
        ],
    }
    return table, data


@dataclasses.dataclass(frozen=True)
class _Condition:
    kind: str
    text: str
    holds: bool
    actual: str
    read: tuple[Read, ...] = ()


def _conditions(route: Route, call: Call, device: Device, options: Options) -> Iterator[_Condition]:
    def tested(kind: str, need: Requirement) -> _Condition:
        fresh = _fresh(device, options)
        with reading() as found:
            holds = need.test(call, fresh)
        return _Condition(
            kind, need.text, holds, need.actual(call, fresh), tuple(Read.of(n, what) for n, what in found.items())
        )

    for need in route.must:
        condition = tested("must", need)
        yield condition
        if not condition.holds:  # what follows may rely on it
            return
    device = _fresh(device, options)
    if refused := refused_inside(route, call, device):
        yield _Condition("must", refused[0], False, refused[1])
        return
    if route.f16_depth is not None:
        yield _Condition("asked for", "--half-sums, since it sums in f16", options.half_sums, "")
    if route.opt_in:
        yield _Condition("asked for", f"opt-in only: {route.opt_in}", False, "not forced")
    if against := device.avoids(call.op, route.name, route.seen(call)):
        yield _Condition("quirk", against, False, device.driver)
    for need in route.prefer:
        yield tested("prefer", need)


def _cells(row: _Condition) -> tuple[str, ...]:
    return row.kind, row.text, "yes" if row.holds else "no", row.actual, "; ".join(map(str, row.read))


def _conclusion(name: str, choice: Choice, rows: Sequence[_Condition], names: Sequence[str]) -> str:
    taken = choice.route.name
    failed = [row for row in rows if not row.holds]
    if taken == name:
        return f"{choice} is taken ({choice.by})"
    if failed:
        first = failed[0]
        said = f"{name} {'cannot run' if first.kind == 'must' else 'is not preferred'}: {first.text}"
        return f"{said}{f' (here {first.actual})' if first.actual else ''}; {choice} is taken ({choice.by})"
    if choice.by in ("measured", "forced"):
        return f"every requirement of {name} holds; {choice} is {choice.by}"
    before = "stands before it" if names.index(taken) < names.index(name) else "is taken"
    return f"every requirement of {name} holds, and {choice} {before} in the list of {', '.join(names)}"


def compare(calls: Sequence[Call], devices: Sequence[Device], options: Options) -> tuple[Table, dict[str, Any]]:
    """What each device takes for calls, and the numbers and rows that were read with different values."""
    rows, data = list[tuple[str, ...]](), list[dict[str, Any]]()
    of_devices = [dataclasses.replace(options, measured=find_measured(device)) for device in devices]
    for call in calls:
        decisions = [decide(call, device, known) for device, known in zip(devices, of_devices, strict=True)]
        choices = [str(choice) for choice, _ in decisions]
        read = [{r.name: r for r in reads} for _, reads in decisions]
        differ = _differing(read)
        text = format_call(call, OPS)
        said = "; ".join(f"{name}: {' / '.join(map(_beside, row))}" for name, row in differ.items())
        rows.append((text, *choices, "same" if len({*choices}) == 1 else "differs", said))
        data.append(
            {
                "call": text,
                "choices": choices,
                "same": len({*choices}) == 1,
                "differs": {n: [dataclasses.asdict(r) if r else None for r in row] for n, row in differ.items()},
            }
        )
    columns = [Column("call"), *(Column(device.name) for device in devices), Column("choice"), Column("read")]
    names = [device.name for device in devices]
    same = sum(row["same"] for row in data)
    title = f"{' and '.join(names)}: {same} of {len(rows)} calls by the same route and parameters"
    return Table(title, columns, rows), {"schema": "vkconv.compare_devices/1", "devices": names, "calls": data}


def _differing(read: Sequence[Mapping[str, Read]]) -> dict[str, list[Read | None]]:
    names = dict.fromkeys(name for one in read for name in one)
    found = {name: [one.get(name) for one in read] for name in names}
    return {name: row for name, row in found.items() if len({r.value for r in row if r}) > 1}


def _beside(read: Read | None) -> str:
    return f"{_shortened(read.value)}{f' ({read.evidence})' if read.evidence else ''}" if read else "not read"
