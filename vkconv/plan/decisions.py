"""What decided a choice: the facts, the numbers of the target and the rows of policies that the rules read, for one
device, beside another one, or for a route that was not taken."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vkconv.call import Call
from vkconv.core import UsageError, VkconvError, did_you_mean
from vkconv.device import Device, load_device, shipped_devices, target_of
from vkconv.device.reads import Watch, watching
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.plan.flips import Decision, Flip, differing, flip_to, flips, fresh
from vkconv.plan.measured import find_measured
from vkconv.plan.planner import Options
from vkconv.plan.read_values import Read, beside, by_kind, shortened
from vkconv.requirement import Requirement
from vkconv.route import Choice, Params, Route, label, refused_inside
from vkconv.table import Column, Table

_MOST_SHOWN = 6  # of what flips a choice in the same way
_MEASURED = "no measured table"
_INSTEAD = " in place of "


def decide(call: Call, device: Device, options: Options) -> tuple[Choice, tuple[Read, ...]]:
    """The choice for a call on a device, and what it read: numbers and policies in the order of their reading, then
    facts.

    Raises what `vkconv.route.choose` raises.
    """
    decision = Decision.of(call, device, options)
    return decision.choice, decision.reads


def reads_table(reads: Sequence[Mapping[str, str]]) -> Table:
    """What a choice read, as `reads_data` has it, a row each."""
    columns = [Column(name) for name in ("number, policy or fact", "value", "evidence", "source")]
    return Table("", columns, [(r["name"], shortened(r["value"]), r["evidence"], r["source"]) for r in reads])


def reads_data(reads: Sequence[Read]) -> list[dict[str, str]]:
    """The same as JSON data."""
    return [dataclasses.asdict(read) for read in reads]


def why_not(call: Call, device: Device, options: Options, name: str) -> tuple[Table, dict[str, Any]]:
    """Why a route, with the parameters that the options give it, is not the one for a call: each of its requirements,
    whether it holds, what it looked at, and what it read. Where all hold, the same of what those before it in the list
    prefer, and what of another device would have it taken.

    Raises UsageError for a route that the op does not have, and what `vkconv.route.choose` raises.
    """
    routes = {route.name: route for route in OPS[call.op].routes}
    if name not in routes:
        raise UsageError(f"{call.op} has no route {name!r}{did_you_mean(name, routes)}; it has {', '.join(routes)}")
    asked = options.params.get(f"{call.op}:{name}", {})
    options = dataclasses.replace(options, params={k: v for k, v in options.params.items() if k != f"{call.op}:{name}"})
    decision = Decision.of(call, device, options)
    if asked:
        routes[name].resolve(call, decision.device, asked)  # that the route can take them
    rows = list(_conditions(routes[name], call, device, options))
    ahead = _ahead(routes[name], decision, rows)
    choice = decision.choice
    other = choice.route.name == name and any(choice.params.get(key) != value for key, value in asked.items())
    nearest = _nearest(call, decision, name, asked) if ahead or other else None
    before = {route.name: list(_before(route, call, device, options)) for route in ahead}
    said = [_conclusion(label(name, asked) if other else name, choice, rows, other)]
    said += [_order(name, list(routes), ahead, before)] if ahead else []
    estimates = _estimates(routes[name], decision, call, asked) if other else None
    said += [_estimated(*estimates)] if estimates else []
    said += [nearest[0]] if nearest else []
    conclusion = ". ".join(said)
    columns = [Column(column) for column in ("kind", "requirement", "holds", "actual", "read")]
    text = format_call(call, OPS)
    cells = [_cells(row) for row in rows] + [_cells(row, f"{name}: ") for name, of in before.items() for row in of]
    table = Table(f"{text} on {device.name}: {conclusion}", columns, cells)
    data = {
        "schema": "vkconv.why_not/1",
        "call": text,
        "device": device.name,
        "route": name,
        "params": dict(asked),
        "taken": str(choice),
        "by": choice.by,
        "conclusion": conclusion,
        "estimated_us": dict(zip(("asked", "taken"), estimates, strict=True)) if estimates else None,
        "requirements": list(map(_condition_data, rows)),
        "ahead": [
            {
                "route": route.name,
                "why": route.why,
                "source": route.source,
                "requirements": list(map(_condition_data, before[route.name])),
            }
            for route in ahead
        ],
        "nearest": nearest[1] if nearest else None,
    }
    return table, data


def _ahead(route: Route, decision: Decision, rows: Sequence["_Condition"]) -> list[Route]:
    """The routes that stand before one whose requirements all hold, and are preferred too."""
    if decision.choice.by != "rule" or not all(row.holds for row in rows):
        return []
    verdicts = itertools.takewhile(lambda verdict: verdict.route is not route, decision.choice.verdicts)
    return [verdict.route for verdict in verdicts if verdict.preferred]


def _before(route: Route, call: Call, device: Device, options: Options) -> Iterator["_Condition"]:
    """Of a route that stands before another one, what could let that one be taken: what it prefers, and what it asks of
    the device."""
    return (row for row in _conditions(route, call, device, options) if row.kind == "prefer" or row.read)


def _order(
    name: str, names: Sequence[str], ahead: Sequence[Route], before: Mapping[str, Sequence["_Condition"]]
) -> str:
    """What the order of the list rests on, and what would have to differ."""
    between = [route.name for route in ahead]
    first, rest = ahead[0], ", ".join(between[:-1])
    said = f"{first.name} stands before {name} in the list of {len(names)} routes: {first.why} ({first.source})"
    rows = {read.name: read for row in before[first.name] for read in row.read if "." in read.name}
    if rows:
        texts = [f"{read.name} ({read.evidence}: {shortened(read.source)})" for read in rows.values()]
        said += f"; it reads {', '.join(texts)}"
    each = f"each of {rest} and {between[-1]}" if rest else first.name
    return f"{said}. {name} is taken where {each} lacks a requirement"


def _estimates(route: Route, decision: Decision, call: Call, asked: Params) -> tuple[float | None, float | None]:
    """What the cost model of a route says of it with other parameters, and as it is taken."""
    device = decision.device
    ways = route.changed(call, device, decision.choice.params, asked), decision.choice.params
    first, second = (route.estimated_us(call, device, way) for way in ways)
    return first, second


def _estimated(asked: float | None, taken: float | None) -> str:
    if asked is None or taken is None:
        return "Rules chose, no cost model of times"
    return f"Its cost model estimates {asked:.4g} us, and {taken:.4g} us of what is taken"


def _nearest(call: Call, decision: Decision, name: str, asked: Params) -> tuple[str, dict[str, Any]] | None:
    """A shipped device that takes a route with parameters for a call, and what of it would have another one do so."""

    def wanted(choice: Choice) -> bool:
        return choice.route.name == name and all(choice.params.get(key) == value for key, value in asked.items())

    found = list[tuple[Flip, Decision]]()
    own = target_of(decision.device).device_class
    shipped = sorted(map(load_device, shipped_devices()), key=lambda device: target_of(device).device_class != own)
    for device in shipped:
        with contextlib.suppress(VkconvError):
            other = Decision.of(call, device, dataclasses.replace(decision.options, measured=None))
            if wanted(other.choice) and (flip := flip_to(call, decision, other, wanted)):
                found.append((flip, other))
                if len(flip.seen) == 1:
                    break
    if not found:
        return f"No shipped device takes {label(name, asked)} for this call", {}
    flip, other = min(found, key=lambda pair: len(pair[0].seen))
    texts = [beside(seen, [other.device, decision.device], _INSTEAD) for seen in flip.seen]
    said = f"As on {other.device.name} it would be taken with {' and '.join(texts) or _MEASURED}"
    return said, {"device": other.device.name, "names": list(flip.names), "texts": texts, "takes": str(flip.takes)}


@dataclasses.dataclass(frozen=True)
class _Condition:
    kind: str
    text: str
    holds: bool
    actual: str
    read: tuple[Read, ...] = ()


def _conditions(route: Route, call: Call, device: Device, options: Options) -> Iterator[_Condition]:
    def tested(kind: str, need: Requirement) -> _Condition:
        own = fresh(device, options)
        with watching(Watch()) as watch:
            holds = need.test(call, own)
        read = tuple(Read.of(seen, own) for seen in by_kind(watch.found.values()))
        return _Condition(kind, need.text, holds, need.actual(call, own), read)

    for need in route.must:
        condition = tested("must", need)
        yield condition
        if not condition.holds:  # what follows may rely on it
            return
    device = fresh(device, options)
    with watching(Watch()) as watch:
        refused = refused_inside(route, call, device)
    if refused:
        read = tuple(Read.of(seen, device) for seen in by_kind(watch.found.values()))
        yield _Condition("must", refused[0], False, refused[1], read)
        return
    if route.f16_depth is not None:
        yield _Condition("asked for", "--half-sums, since it sums in f16", options.half_sums, "")
    if route.opt_in:
        yield _Condition("asked for", f"opt-in only: {route.opt_in}", False, "not forced")
    if against := device.avoids(call.op, route.name, route.seen(call)):
        yield _Condition("quirk", against, False, device.driver)
    for need in route.prefer:
        yield tested("prefer", need)


def _cells(row: _Condition, of: str = "") -> tuple[str, ...]:
    return f"{of}{row.kind}", row.text, "yes" if row.holds else "no", row.actual, "; ".join(map(str, row.read))


def _condition_data(row: _Condition) -> dict[str, Any]:
    return {"kind": row.kind, "text": row.text, "holds": row.holds, "actual": row.actual, "read": reads_data(row.read)}


def _conclusion(name: str, choice: Choice, rows: Sequence[_Condition], other_params: bool) -> str:
    failed = [row for row in rows if not row.holds]
    if other_params:
        return f"{name} could run; {choice} is taken ({choice.by})"
    if choice.route.name == name:
        return f"{choice} is taken ({choice.by})"
    if failed:
        first = failed[0]
        said = f"{name} {'cannot run' if first.kind == 'must' else 'is not preferred'}: {first.text}"
        return f"{said}{f' (here {first.actual})' if first.actual else ''}; {choice} is taken ({choice.by})"
    is_taken = f"is {choice.by}" if choice.by in ("measured", "forced") else f"is taken ({choice.by})"
    return f"every requirement of {name} holds; {choice} {is_taken}"


def compare(calls: Sequence[Call], devices: Sequence[Device], options: Options) -> tuple[Table, dict[str, Any]]:
    """What each device takes for calls, what flips its choice where they differ, and what else was read with different
    values."""
    rows, data = list[tuple[str, ...]](), list[dict[str, Any]]()
    of_devices = [dataclasses.replace(options, measured=find_measured(device)) for device in devices]
    names = [device.name for device in devices]
    for call in calls:
        decisions = [Decision.of(call, device, known) for device, known in zip(devices, of_devices, strict=True)]
        choices = [str(one.choice) for one in decisions]
        found, differ = flips(call, decisions), differing(decisions)
        flipping = {name for flip in found for name in flip.names}
        also = [beside(seen, devices) for name, seen in differ.items() if name not in flipping]
        text, same = format_call(call, OPS), len({*choices}) == 1
        rows.append((text, *choices, "same" if same else "differs", _flips_text(found, decisions), "; ".join(also)))
        data.append(
            {
                "call": text,
                "choices": choices,
                "same": same,
                "flips": [_flip_data(flip, names) for flip in found],
                "differs": {
                    name: [dataclasses.asdict(Read.of(seen, device)) for device in devices]
                    for name, seen in (differ | {s.name: s for flip in found for s in flip.seen}).items()
                },
            }
        )
    columns = [Column("call"), *map(Column, names), *map(Column, ("choice", "flips the choice", "also read"))]
    same_calls = sum(row["same"] for row in data)
    title = f"{' and '.join(names)}: {same_calls} of {len(rows)} calls by the same route and parameters"
    return Table(title, columns, rows), {"schema": "vkconv.compare_devices/1", "devices": names, "calls": data}


def _flip_data(flip: Flip, devices: Sequence[str]) -> dict[str, Any]:
    return {
        "names": list(flip.names) or [_MEASURED],
        "device": devices[flip.device],
        "of": devices[flip.of],
        "takes": str(flip.takes) if flip.takes else None,
        "as_other": flip.as_other,
    }


def _flips_text(found: Sequence[Flip], decisions: Sequence[Decision]) -> str:
    """What flips a choice, together what does so in the same way."""
    names = [one.device.name for one in decisions]
    ways = dict[tuple[int, int, str], list[Flip]]()
    for flip in found:
        ways.setdefault((flip.device, flip.of, _leads_to(flip, decisions)), []).append(flip)
    said = []
    for (at, of, leads_to), some in ways.items():
        pair = [decisions[of].device, decisions[at].device]
        texts = [" and ".join(beside(seen, pair, _INSTEAD) for seen in flip.seen) or _MEASURED for flip in some]
        more = [f"{len(texts) - _MOST_SHOWN} more"] if len(texts) > _MOST_SHOWN else []
        text = ", or ".join([*texts[:_MOST_SHOWN], *more])
        only = " (only together)" if len(some[0].seen) > 1 else ""
        whose = f" as on {names[of]}" if len(names) > 2 and text != _MEASURED else ""
        said.append(f"{names[at]} would take {leads_to} with {text}{only}{whose}")
    return "; ".join(said)


def _leads_to(flip: Flip, decisions: Sequence[Decision]) -> str:
    """The route that is taken then, or the parameters of the same route that change."""
    own, taken = decisions[flip.device].choice, flip.takes
    if taken is None:
        return "no route"
    said = [f"{key}={value}" for key, value in taken.params.items() if own.params.get(key) != value]
    return f"{taken.route.name if taken.route is not own.route else ' '.join(said)}{' too' if flip.as_other else ''}"
