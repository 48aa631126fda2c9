"""Calls, routes and the one place that chooses between them.

A *call* is one op with everything static. A *route* is one way to compute it: what it needs to be right
(``must``), what makes it fast (``prefer``), why and from where. The first route in an op's list whose every
need holds wins, then the first that is right at all. A forced route skips ``prefer``, never ``must``; a measured
table outranks ``prefer``, never ``must``. The same `Need` serves choosing, explaining, documentation and tests.

A route may have *parameters*: numbers such as tile sizes that change how fast it is, never what it computes.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from vkconv.core import DType, RouteError, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.kernel import Shader
from vkconv.program import Program
from vkconv.storage import HALVES, check_types, forms, stored


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

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Specs of the operands that are there and of the outputs, by name."""
        return {name: spec for name, spec in (*self.operands.items(), *self.outputs.items()) if spec is not None}

    @property
    def half(self) -> DType | None:
        """The 16-bit float type among its operands and outputs (the first of several), if there is one."""
        return next((spec.dtype for spec in self.specs.values() if spec.dtype in HALVES), None)

    def in_f32(self) -> "Call":
        """The call with its 16-bit floats as f32."""

        def wide(spec: TensorSpec | None) -> TensorSpec | None:
            return TensorSpec(spec.shape, DType.F32) if spec is not None and spec.dtype in HALVES else spec

        operands = {name: wide(spec) for name, spec in self.operands.items()}
        outputs = {name: wide(spec) or spec for name, spec in self.outputs.items()}
        return dataclasses.replace(self, operands=operands, outputs=outputs)

    @property
    def is_empty(self) -> bool:
        """True when no output has an element: nothing runs."""
        return all(spec.size == 0 for spec in self.outputs.values())


@dataclasses.dataclass(frozen=True)
class Need:
    """A condition of a route: a text that a person reads, a pure test, and the actual value it looked at. ``halves``
    is True where it admits f16 and bf16 in place of f32, False where it refuses them, None where it says nothing."""

    text: str
    test: Callable[[Call, Device], bool]
    actual: Callable[[Call, Device], str]
    halves: bool | None = None


Params = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Route:
    """One way to compute an op.

    ``program`` writes for f32: of a call in f16 or bf16 it sees one in f32, and what it makes is put into the forms of
    that type (vkconv/storage.py). ``params(call, device)`` gives the legal values of each tunable number for a call
    that the route may take, the default first; every combination of them is right. ``program`` makes the program from a
    value for each; ``shaders`` declares every variant it may use. ``note`` says, for a call and values of its
    parameters, what they come to and why, as `vkconv explain` shows it. A route that is not ``deterministic`` may give
    other last bits each time it runs. ``chain(call)`` is how many products at most are summed in f16 before f32 takes
    them over; routes without it compute in f32, those with it are taken only where somebody asks for f16 sums.
    """

    name: str
    program: Callable[[Call, Device, Params], Program]
    shaders: tuple[Shader, ...]
    why: str
    must: tuple[Need, ...] = ()
    prefer: tuple[Need, ...] = ()
    source: str = "vkconv"
    params: Callable[[Call, Device], Mapping[str, tuple[int, ...]]] = lambda call, device: {}
    note: Callable[[Call, Device, Params], str] = lambda call, device, params: ""
    deterministic: bool = True
    chain: Callable[[Call], int] | None = None

    @property
    def takes_halves(self) -> bool:
        """Whether calls of 16-bit floats get its shaders in other forms; a route may also know of them by itself."""
        said = {need.halves for need in self.must}
        return True in said and False not in said

    @property
    def forms(self) -> tuple[Shader, ...]:
        """Every variant it may use: its ``shaders``, and their forms for 16-bit floats where it takes them."""
        if not self.takes_halves:
            return self.shaders
        return tuple(dict.fromkeys((*self.shaders, *(form for shader in self.shaders for form in forms(shader)))))

    def legal(self, call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        """The legal values of every parameter; none for a call of which nothing runs."""
        return {} if call.is_empty else self.params(call, device)

    def resolve(self, call: Call, device: Device, given: Params) -> dict[str, int]:
        """A value for every parameter: the given ones, defaults for the rest. UsageError for a name that the route
        does not have, or for a value that is not one of the legal ones."""
        legal = self.legal(call, device)
        for name, value in given.items():
            if name not in legal:
                has = f"it has {', '.join(legal)}" if legal else "it has none"
                raise UsageError(
                    f"route {self.name!r} of {call.op} has no parameter {name!r}{did_you_mean(name, legal)}; {has}"
                )
            if value not in legal[name]:
                raise UsageError(
                    f"route {self.name!r} of {call.op} cannot take {name}={value} for this call on {device.name}; "
                    f"{name} is one of {', '.join(map(str, sorted(legal[name])))}"
                )
        return {name: given.get(name, values[0]) for name, values in legal.items()}

    def build(self, call: Call, device: Device, params: Params | None = None) -> Program:
        """The program for a call that the route may take; parameters that are not given have their default.

        Raises UsageError as `resolve` does.
        """
        values, half = self.resolve(call, device, params or {}), call.half
        types = {name: spec.dtype for name, spec in call.specs.items()}
        if half is None or not self.takes_halves:
            program = self.program(call, device, values)
        else:
            program = stored(self.program(call.in_f32(), device, values), types, half, device)
        check_types(program, types)
        return program


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether one route may run a call, and the first need that refused it (``must`` before ``prefer``)."""

    route: Route
    allowed: bool
    preferred: bool
    refused_by: str = ""
    actual: str = ""


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A route with a value for each of its parameters, and how long it was measured to take: the median of its GPU
    time and that median's spread (the median absolute deviation), in microseconds."""

    route: str
    params: dict[str, int]
    us_median: Annotated[float, msgspec.Meta(gt=0)]
    us_spread: Annotated[float, msgspec.Meta(ge=0)]

    def __str__(self) -> str:
        return label(self.route, self.params)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The route that was chosen, how (``rule``, ``forced``, ``measured`` or ``last resort``), every verdict, the
    value of each parameter, what a measured table knows of the call, the fastest first, and the row taken from it."""

    route: Route
    by: str
    verdicts: tuple[Verdict, ...]
    params: Params
    measured: tuple[Candidate, ...] = ()
    taken: Candidate | None = None

    def __str__(self) -> str:
        return label(self.route.name, self.params)


def label(route: str, params: Params) -> str:
    """A route and its parameters as people read them: ``direct_tile channels=16 columns=8``."""
    return " ".join([route, *(f"{name}={value}" for name, value in params.items())])


def judge(route: Route, call: Call, device: Device, half_sums: bool = False) -> Verdict:
    """The verdict on one route: every ``must`` first, then whether anybody wants what it sums in f16, then the driver's
    quirks, which count as a ``prefer``, then every ``prefer``, in the order they are listed."""
    for need in route.must:
        if not need.test(call, device):
            return Verdict(route, False, False, need.text, need.actual(call, device))
    if route.chain is not None and not half_sums:
        return Verdict(route, True, False, "to be asked for, since it sums in f16", "not asked for")
    if against := device.avoids(call.op, route.name, call):
        return Verdict(route, True, False, against, device.driver)
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
    measured: Sequence[Candidate] = (),
    half_sums: bool = False,
) -> Choice:
    """Pick a route for a call on a device.

    ``forced`` names a route that must be taken: RouteError when one of its ``must`` fails, UsageError when the
    op has no such route. ``measured`` is what a measured table knows of the call: the fastest candidate whose route
    may take the call and whose parameters are all of its, and legal, is taken, ahead of ``prefer``. Routes that sum in
    f16 are taken with ``half_sums`` only, or forced.
    """
    verdicts = tuple(judge(route, call, device, half_sums) for route in routes)
    known = tuple(sorted(measured, key=lambda candidate: candidate.us_median))

    def chosen(route: Route, by: str, taken: Candidate | None = None) -> Choice:
        return Choice(route, by, verdicts, route.resolve(call, device, taken.params if taken else {}), known, taken)

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
        return chosen(verdict.route, "forced")
    by_itself = {v.route.name: v for v in verdicts if v.allowed and (half_sums or v.route.chain is None)}
    for candidate in known:
        # Another vkconv may have measured it by other parameters than it has here: with a default for what is not
        # named, it would be a program that nobody measured.
        route = by_itself[candidate.route].route if candidate.route in by_itself else None
        if route and candidate.params.keys() == route.legal(call, device).keys():
            with contextlib.suppress(UsageError):
                return chosen(route, "measured", candidate)
    for verdict in verdicts:
        if verdict.preferred:
            return chosen(verdict.route, "rule")
    # One that gives other bits each time is the very last.
    if by_itself:
        return chosen(min(by_itself.values(), key=lambda v: not v.route.deterministic).route, "last resort")
    reasons = "; ".join(f"{v.route.name} needs {v.refused_by} (here {v.actual})" for v in verdicts)
    raise RouteError(f"no route of {call.op} can run here on {device.name}: {reasons}")
