"""Calls, routes and the one place that chooses between them.

A *call* is one op with everything static. A *route* is one way to compute it: what it needs to be right
(``must``), what makes it fast (``prefer``), why and from where. The first route in an op's list whose every
need holds wins, then the first that is right at all. A forced route skips ``prefer``, never ``must``; a measured
table outranks ``prefer``, never ``must``. The same `Need` serves choosing, explaining, documentation and tests.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vkconv.core import RouteError, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.shader import Program, Shader


@dataclasses.dataclass(frozen=True)
class Call:
    """One op with static operand specs (None for an absent optional one), outputs and canonical attributes."""

    op: str
    operands: Mapping[str, TensorSpec | None]
    outputs: Mapping[str, TensorSpec]
    attrs: Mapping[str, AttrValue]

    def __getitem__(self, name: str) -> Any:
        """An attribute by name."""
        return self.attrs[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Static shape of an operand or output by name."""
        spec = self.operands.get(name) or self.outputs.get(name)
        if spec is None:
            raise KeyError(f"{self.op} has no operand or output {name!r} in this call")
        return spec.dims

    def has(self, operand: str) -> bool:
        """True when the optional operand is present."""
        return self.operands.get(operand) is not None


@dataclasses.dataclass(frozen=True)
class Need:
    """A condition of a route: a text that a person reads, a pure test, and the actual value it looked at."""

    text: str
    test: Callable[[Call, Device], bool]
    actual: Callable[[Call, Device], str]


@dataclasses.dataclass(frozen=True)
class Route:
    """One way to compute an op. ``build`` makes the program; ``shaders`` declares every variant it may use."""

    name: str
    build: Callable[[Call, Device], Program]
    shaders: tuple[Shader, ...]
    why: str
    must: tuple[Need, ...] = ()
    prefer: tuple[Need, ...] = ()
    source: str = "vkconv"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether one route may run a call, and the first need that refused it (``must`` before ``prefer``)."""

    route: Route
    allowed: bool
    preferred: bool
    refused_by: str = ""
    actual: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The route that was chosen, how (``rule``, ``forced``, ``measured`` or ``last resort``), and every verdict."""

    route: Route
    by: str
    verdicts: tuple[Verdict, ...]


def judge(route: Route, call: Call, device: Device) -> Verdict:
    """The verdict on one route: every ``must`` first, then every ``prefer``, in the order they are listed."""
    for need in route.must:
        if not need.test(call, device):
            return Verdict(route, False, False, need.text, need.actual(call, device))
    for need in route.prefer:
        if not need.test(call, device):
            return Verdict(route, True, False, need.text, need.actual(call, device))
    return Verdict(route, True, True)


def choose(
    routes: Sequence[Route],
    call: Call,
    device: Device,
    *,
    forced: str | None = None,
    measured: str | None = None,
) -> Choice:
    """Pick a route for a call on a device.

    ``forced`` names a route that must be taken: RouteError when one of its ``must`` fails, UsageError when the
    op has no such route. ``measured`` names the fastest route of a measured table: taken when its ``must``
    holds, otherwise ignored.
    """
    verdicts = tuple(judge(route, call, device) for route in routes)
    by_name = {v.route.name: v for v in verdicts}
    if forced is not None:
        if forced not in by_name:
            raise UsageError(
                f"{call.op} has no route {forced!r}{did_you_mean(forced, by_name)}; it has {', '.join(by_name)}"
            )
        verdict = by_name[forced]
        if not verdict.allowed:
            raise RouteError(
                f"route {forced!r} cannot take {call.op} on {device.name}: it needs {verdict.refused_by}, "
                f"and here it is {verdict.actual}; see vkconv explain, or drop the forced route"
            )
        return Choice(verdict.route, "forced", verdicts)
    if measured is not None and measured in by_name and by_name[measured].allowed:
        return Choice(by_name[measured].route, "measured", verdicts)
    for verdict in verdicts:
        if verdict.preferred:
            return Choice(verdict.route, "rule", verdicts)
    for verdict in verdicts:
        if verdict.allowed:
            return Choice(verdict.route, "last resort", verdicts)
    reasons = "; ".join(f"{v.route.name} needs {v.refused_by} (here {v.actual})" for v in verdicts)
    raise RouteError(f"no route of {call.op} can run here on {device.name}: {reasons}")
