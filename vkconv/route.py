"""Calls, routes and the one place that chooses between them.

A *call* is one op with everything static. A *route* is one way to compute it: what it needs to be right
(``must``), what makes it fast (``prefer``), why and from where. The first route in an op's list whose every
need holds wins, then the first that is right at all. A forced route skips ``prefer``, never ``must``; a measured
table outranks ``prefer``, never ``must``.

A route may have *parameters*: numbers such as tile sizes that change how fast it is, never what it computes.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import RouteError, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.device.reads import watch_now
from vkconv.kernel import Shader
from vkconv.once import OnDemand, once
from vkconv.program import Composite, Inner, Program
from vkconv.requirement import Requirement
from vkconv.storage import check_types, forms, stored

_F64 = npt.NDArray[np.float64]

Value = int | str
Params = Mapping[str, Any]
"""Values of a route's parameters by name, each an `int` or a `str`. The route of an inner call is one, under the name
of the call, and that route's own parameters stand behind it: ``{"conv2d": "implicit_gemm", "conv2d/tile": "64x64"}``.
"""
Legal = Mapping[str, tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Sub:
    """A call inside a route, and the routes that it may take, in their order."""

    call: Call
    routes: Sequence["Route"]


def nothing_inside(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    """The calls inside a route that computes all by itself."""
    return {}


@dataclasses.dataclass(frozen=True)
class Route:
    """One way to compute an op.

    ``program`` writes for f32: of a call in f16 or bf16 it sees one in f32, and what it makes is put into the forms of
    that type (vkconv/storage.py). ``params(call, device)`` gives the legal values of each tunable number or name for a
    call that the route may take, the default first; every combination of them is right. ``follow`` gives defaults that
    follow from the given value of another parameter. ``program`` makes the program from a value for each; ``shaders``
    declares every variant it may use. ``inner`` names the calls inside the route, whose routes are chosen as those of
    any other call: ``program`` has places for them (`Composite`). ``note`` says, for a call and values of its
    parameters, what they come to and why, as `vkconv explain` shows it. A route that is not ``deterministic`` may give
    other last bits each time it runs. ``estimated_us`` says, for a call and values of its parameters, the microseconds
    by which a cost model chooses among them; None where none does. Where no policy has a say either, ``by_call`` says
    how defaults follow from the call and the device's limits alone. ``opt_in`` says why a route is taken only where it
    is forced, by a measured table, or as the last that can take the call. ``f16_depth(call)`` is how many products at
    most are summed in f16 before f32 takes them over; routes without it compute in f32, those with it are taken only
    where somebody asks for f16 sums. ``rounding(call, factors)`` is how far steps in 16 bits may move each sum of
    products of `Op.sums`, beside what sums in f32 may; other ops do not know of it, and have no such route inside.
    """

    name: str
    program: Callable[[Call, Device, Params], Program | Composite]
    shaders: tuple[Shader, ...]
    why: str
    must: tuple[Requirement, ...] = ()
    prefer: tuple[Requirement, ...] = ()
    source: str = "vkconv"
    params: Callable[[Call, Device], Legal] = lambda call, device: {}
    follow: Callable[[Call, Device, Params], Params] = lambda call, device, given: {}
    inner: Callable[[Call, Device, Params], Mapping[str, Sub]] = nothing_inside
    note: Callable[[Call, Device, Params], str] = lambda call, device, params: ""
    deterministic: bool = True
    estimated_us: Callable[[Call, Device, Params], float | None] = lambda call, device, params: None
    by_call: str = ""
    opt_in: str = ""
    f16_depth: Callable[[Call], int] | None = None
    rounding: Callable[[Call, Mapping[str, _F64]], _F64] | None = None

    @property
    def rounds_as_f32(self) -> bool:
        """Whether its result is rounded as that of sums in f32 is: what ops may have inside."""
        return self.f16_depth is None and self.rounding is None

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

    def seen(self, call: Call) -> Call:
        """The call as the route's kernels take it."""
        return call

    def reorders(self, call: Call) -> tuple[int, int]:
        """How many launches of a run bring tensors into the order that kernels take, before the others and behind."""
        return 0, 0

    def _params(self, call: Call, device: Device) -> Legal:
        return once(("params",), (self, call, device), lambda: self.params(call, device))

    def subs(self, call: Call, device: Device, own: Params) -> Mapping[str, Sub]:
        """The calls inside the route for values of its own parameters: `inner`, the same objects each time."""
        if self.inner is nothing_inside:
            return {}
        key = ("inner", *own.items())
        return once(key, (self, call, device), lambda: self.inner(call, device, own))

    def own(self, params: Params, call: Call, device: Device) -> dict[str, Any]:
        """Values of the route's own parameters: the given ones, defaults for the rest."""
        return {name: params.get(name, values[0]) for name, values in self.own_legal(call, device, params).items()}

    def own_legal(self, call: Call, device: Device, given: Params | None = None) -> dict[str, tuple[Any, ...]]:
        """The legal values of the route's own parameters, the default first; `legal` has those of inner calls too."""
        given = given or {}
        legal = dict(self._params(call, device))
        for name, default in self.follow(call, device, given).items():
            legal[name] = (default, *(value for value in legal[name] if value != default))
        return legal

    def legal(self, call: Call, device: Device, given: Params | None = None, pick: "Pick | None" = None) -> Legal:
        """The legal values of every parameter, the default first; none for a call of which nothing runs. What an inner
        call has depends on the route that it takes: the one that is ``given``, else the one that ``pick`` chooses, by
        default `choose`."""
        if call.is_empty:
            return {}
        given = given or {}
        legal, no_params = self.own_legal(call, device, given), dict[str, Any]()
        for name, sub in self.subs(call, device, self.own(given, call, device)).items():
            able = [route for route in sub.routes if may_take(route, sub.call, device)]
            if name in given and given[name] not in [route.name for route in able]:
                legal[name] = tuple(route.name for route in able)
                continue
            if name in given:
                first, fixed = next(route for route in able if route.name == given[name]), no_params
            else:
                choice = (pick or _choose_sub)(sub, device)
                first, fixed = choice.route, dict(choice.params)
            legal[name] = (first.name, *(route.name for route in able if route is not first))
            for below, values in first.legal(sub.call, device, {**fixed, **nested(given, name)}, pick).items():
                best = fixed.get(below, values[0])
                legal[f"{name}/{below}"] = (best, *(value for value in values if value != best))
        return legal

    def resolve(self, call: Call, device: Device, given: Params, pick: "Pick | None" = None) -> dict[str, Any]:
        """A value for every parameter: the given ones, defaults for the rest. UsageError for a name that the route
        does not have, or for a value that is not one of the legal ones."""
        legal = self.legal(call, device, given, pick)
        for name, value in given.items():
            if name not in legal:
                has = f"it has {', '.join(legal) or 'none'} for this call"
                raise UsageError(
                    f"route {self.name!r} of {call.op} has no parameter {name!r}{did_you_mean(name, legal)}; {has}"
                )
            if value not in legal[name]:
                raise UsageError(
                    f"route {self.name!r} of {call.op} cannot take {name}={value} for this call on {device.name}; "
                    f"{name} is one of {', '.join(map(str, sorted(legal[name])))}"
                )
        return {name: given.get(name, values[0]) for name, values in legal.items()}

    def changed(self, call: Call, device: Device, params: Params, others: Params) -> dict[str, Any]:
        """The parameters with other values of some. An inner route that changes takes its own parameters with it, and
        what the route cannot take beside the new values has its default. UsageError as of `resolve`."""
        given: dict[str, Any] = {
            key: kept for key, kept in params.items() if not any(key.startswith(f"{name}/") for name in others)
        }
        given |= others
        while True:
            legal = self.legal(call, device, given)
            kept = {key: value for key, value in given.items() if key in others or value in legal.get(key, ())}
            if len(kept) == len(given):
                return self.resolve(call, device, given)
            given = kept

    def build(self, call: Call, device: Device, params: Params | None = None) -> Program:
        """The program for a call that the route may take; parameters that are not given have their default.

        Raises UsageError as `resolve` does, ShaderError where a buffer would be read in another form than it has.
        """
        values, half = self.resolve(call, device, params or {}), call.half
        own = {name: values[name] for name in self._params(call, device)} if values else self.own({}, call, device)
        types = {name: spec.dtype for name, spec in call.specs.items()}
        in_forms = half is not None and self.takes_halves
        made = self.program(call.in_f32() if in_forms else call, device, own)
        program = made.own if isinstance(made, Composite) else made
        if half is not None and in_forms:
            program = stored(program, types, half, device)
        if isinstance(made, Composite):
            subs = self.subs(call, device, own)

            def built(step: Inner) -> Program:
                sub = subs[step.name]
                route = next(route for route in sub.routes if route.name == values[step.name])
                inside = step.call or sub.call
                return route.build(inside, device, nested(values, step.name)).within(step.ranges(inside))

            program = made.linked(program, built)
        check_types(program, types)
        return program


def nested(params: Params, name: str) -> dict[str, Any]:
    """The parameters of the route that the inner call of a name takes."""
    before = f"{name}/"
    return {key.removeprefix(before): value for key, value in params.items() if key.startswith(before)}


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
    time and that median's spread (the median absolute deviation), in microseconds. ``kernels`` is the digest of the
    kernels that the route had then (`vkconv.plan.measured.kernels_of`)."""

    route: str
    params: dict[str, int | str]
    us_median: Annotated[float, msgspec.Meta(gt=0)]
    us_spread: Annotated[float, msgspec.Meta(ge=0)]
    kernels: str = ""

    def __str__(self) -> str:
        return label(self.route, self.params)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The route that was chosen, how (``rule``, ``forced``, ``measured`` or ``last resort``), every verdict, the
    value of each parameter, what a measured table knows of the call, the fastest first, and the row taken from it.
    ``inner`` has the choices of its inner calls by their names. Verdicts behind the one that was taken by rule are made
    when they are looked at."""

    route: Route
    by: str
    verdicts: Sequence[Verdict]
    params: Params
    measured: tuple[Candidate, ...] = ()
    taken: Candidate | None = None
    inner: Mapping[str, "Choice"] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return label(self.route.name, self.params)


def label(route: str, params: Params) -> str:
    """A route and its parameters as people read them: ``direct_tile channels=16 columns=8``, and in parentheses what
    the calls inside it take: ``unfused (conv2d: pointwise local=64) (reduce: serial local=64)``."""
    insides = {name: nested(params, name) for name in params}
    of_inner = {f"{name}/{key}" for name, below in insides.items() for key in below}
    texts = [
        f"({name}: {label(str(value), insides[name])})" if insides[name] else f"{name}={value}"
        for name, value in params.items()
        if name not in of_inner
    ]
    return " ".join([route, *texts])


def may_take(route: Route, call: Call, device: Device) -> bool:
    """Whether a route may run a call, preferred or not: what its verdict has as ``allowed``."""
    return not _refusal(route, call, device)


def _refusal(route: Route, call: Call, device: Device) -> tuple[str, str] | tuple[()]:
    """The first ``must`` that refuses a call, else what is refused inside, and what that is here; nothing where the
    route may run it."""

    def found() -> tuple[str, str] | tuple[()]:
        for need in route.must:
            if not need.test(call, device):
                return need.text, need.actual(call, device)
        return refused_inside(route, call, device) or ()

    return once(("refusal",), (route, call, device), found)


def judge(route: Route, call: Call, device: Device, half_sums: bool = False) -> Verdict:
    """The verdict on one route: every ``must`` first, then whether it is for those who ask only (sums in f16, opt-in),
    then the driver's quirks, which count as a ``prefer``, then every ``prefer``, in the order they are listed."""
    return once(("judge", half_sums), (route, call, device), lambda: _judged(route, call, device, half_sums))


def _judged(route: Route, call: Call, device: Device, half_sums: bool) -> Verdict:
    if refused := _refusal(route, call, device):
        return Verdict(route, False, False, *refused)
    if route.f16_depth is not None and not half_sums:
        return Verdict(route, True, False, "to be asked for, since it sums in f16", "not asked for")
    if route.opt_in:
        return Verdict(route, True, False, f"opt-in only: {route.opt_in}", "not asked for")
    if against := device.avoids(call.op, route.name, route.seen(call)):
        return Verdict(route, True, False, against, device.driver)
    for need in route.prefer:
        if not need.test(call, device):
            return Verdict(route, True, False, need.text, need.actual(call, device))
    return Verdict(route, True, True)


def refused_inside(route: Route, call: Call, device: Device) -> tuple[str, str] | None:
    """The inner call of a route that no route can take, as a requirement and what each of them says."""
    if route.inner is nothing_inside or call.is_empty:
        return None
    for name, sub in route.subs(call, device, route.own({}, call, device)).items():
        if not any(may_take(inner, sub.call, device) for inner in sub.routes):
            verdicts = [judge(inner, sub.call, device) for inner in sub.routes]
            if len(verdicts) == 1:
                return verdicts[0].refused_by, verdicts[0].actual
            said = "; ".join(f"{v.route.name} needs {v.refused_by} (here {v.actual})" for v in verdicts)
            return f"a route of {sub.call.op} for its {name}", said
    return None


Known = Callable[[Call], Sequence[Candidate]]
Pick = Callable[[Sub, Device], Choice]


def _always(params: Params) -> Callable[[Route], Params]:
    return lambda route: params


def _nothing(call: Call) -> Sequence[Candidate]:
    return ()


def _choose_sub(sub: Sub, device: Device) -> Choice:
    return choose(sub.routes, sub.call, device)


def choose(
    routes: Sequence[Route],
    call: Call,
    device: Device,
    *,
    forced: str | None = None,
    given: Callable[[Route], Params] = lambda route: {},
    measured: Known = _nothing,
    half_sums: bool = False,
) -> Choice:
    """Pick a route for a call on a device.

    ``forced`` names a route that must be taken: RouteError when one of its ``must`` fails, UsageError when the
    op has no such route. ``given`` are parameters that the taken route must have, inner routes among them.
    ``measured`` says what a measured table knows of a call: the fastest candidate whose route may take the call and
    whose parameters are all of its, and legal, is taken, ahead of ``prefer``. Routes that sum in f16 are taken with
    ``half_sums`` only, or forced. Inner calls are chosen for in the same way.
    """
    verdicts = OnDemand([functools.partial(judge, route, call, device, half_sums) for route in routes])
    if watch_now() is not None:  # who watches is told of all that rules read
        list(verdicts)
    by_name = {route.name: i for i, route in enumerate(routes)}
    known = tuple(sorted(measured(call), key=lambda candidate: candidate.us_median))

    def pick(sub: Sub, device: Device) -> Choice:
        return choose(sub.routes, sub.call, device, measured=measured)

    def chosen(route: Route, by: str, taken: Candidate | None = None) -> Choice:
        asked = given(route)
        params = route.resolve(call, device, {**(taken.params if taken else {}), **asked}, pick)
        inner = {}
        for name, sub in ({} if call.is_empty else route.subs(call, device, route.own(params, call, device))).items():
            below: Params = nested(params, name)
            of_outer = name in asked or taken is not None
            forced_inside = params[name] if of_outer else None
            choice = choose(sub.routes, sub.call, device, forced=forced_inside, given=_always(below), measured=measured)
            inner[name] = choice if name in asked or taken is None else dataclasses.replace(choice, by="measured")
        return Choice(route, by, verdicts, params, known, taken, inner)

    def by_itself(verdict: Verdict) -> bool:
        return verdict.allowed and (half_sums or verdict.route.f16_depth is None)

    if forced is not None:
        if forced not in by_name:
            raise UsageError(
                f"{call.op} has no route {forced!r}{did_you_mean(forced, by_name)}; it has {', '.join(by_name)}"
            )
        verdict = verdicts[by_name[forced]]
        if not verdict.allowed:
            raise RouteError(
                f"route {forced!r} cannot take {call.op} on {device.name}: it needs {verdict.refused_by}, "
                f"and here it is {verdict.actual}; see vkconv explain, or drop the forced route"
            )
        return chosen(verdict.route, "forced")
    for candidate in known:
        # Another vkconv may have measured it by other parameters than it has here: with a default for what is not
        # named, it would be a program that nobody measured.
        route = routes[by_name[candidate.route]] if candidate.route in by_name else None
        if not route or not by_itself(verdicts[by_name[candidate.route]]):
            continue
        if candidate.params.keys() == route.legal(call, device, candidate.params).keys():
            with contextlib.suppress(UsageError):
                return chosen(route, "measured", candidate)
    for verdict in verdicts:
        if verdict.preferred:
            return chosen(verdict.route, "rule")
    # Opt-in routes after the others, and one that gives other bits each time is the very last.
    able = [verdict.route for verdict in verdicts if by_itself(verdict)]
    if able:
        return chosen(min(able, key=lambda route: (not route.deterministic, route.opt_in != "")), "last resort")
    reasons = "; ".join(f"{v.route.name} needs {v.refused_by} (here {v.actual})" for v in verdicts)
    raise RouteError(f"no route of {call.op} can run here on {device.name}: {reasons}")
