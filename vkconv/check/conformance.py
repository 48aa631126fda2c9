"""A whole device held to the references: what there is to check, and one check of it.

There is a check for every case of every op, on every route, in every element form: f32 or integers as the case is
written, f16 and bf16, each in native 16-bit storage and packed two to a word. `vkconv.check.pool` runs them,
`vkconv.check.coverage` says what they come to.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from vkconv.backend.runtime import select_device
from vkconv.call import Call
from vkconv.check.calls import Expected, expect, hold, on_route, run_call
from vkconv.check.inputs import Kind, draw
from vkconv.core import FLOAT_TYPES, DType, LimitError, UsageError, VkconvError, did_you_mean, on_a_line
from vkconv.device import Device
from vkconv.device.emulate import emulated
from vkconv.ops import OPS
from vkconv.ops.core.base import Op
from vkconv.ops.core.calls import parse_call
from vkconv.plan.fixing import FIXED_PUSH
from vkconv.route import Params, Route, judge, may_take
from vkconv.storage import NATIVE, stores_natively

Status = Literal["ok", "FAILED", "refused", "error"]
Path = tuple[tuple[str, str], ...]
"""Forced routes as ``--route`` takes them: ``("conv_reduce", "unfused")``, then those of calls inside that route, each
behind the one that it is in: ``("conv_reduce/conv2d", "explicit_gemm"), ("conv_reduce/conv2d/matmul", "shared")``."""
Extent = Literal["all", "short", "few"]
"""How many checks there are of a device: see `checks`."""
Storage = Literal["native", "packed"]
STORAGES: tuple[Storage, ...] = ("native", "packed")
"""How 16-bit floats lie in buffers: by themselves, or two to a word where a device cannot address 16 bits."""
PACKED = " packed"
"""What the element form of a check in packed storage ends in."""
# The names of operands and attributes in a case.
_WORDS = re.compile(r"[:,](\w+)=")
_SEED = 7
_MOST_OUTPUTS = 1 << 15
_MOST_WORKGROUPS = 65_535
AT_PLANNING = "it is computed when a graph is planned"
# Routes that say of themselves that an input that is not finite reaches more of the output than it should; so do those
# of causal attention, of keys that a query does not see.
_SPREADS_NON_FINITE = ("winograd", "flipped_winograd", "block_diagonal", "space_to_depth")


@dataclasses.dataclass(frozen=True)
class Check:
    """One case of an op on one of its routes, in an element form: ``f32``, ``f16``, ``bf16 packed``, ``i8/u8``; with
    these values of the route's parameters, the others as they are planned."""

    text: str
    path: Path
    form: str
    params: Params = dataclasses.field(default_factory=dict)
    covers: tuple[str, ...] = ()
    """The routes that it stands for, its own first: those of inner calls that are planned are written out."""
    fixed: bool | None = None
    """Whether its launches have constants in place of push constants (`Options.fixed_push`)."""

    @property
    def op(self) -> str:
        return self.path[0][0]

    @property
    def route(self) -> str:
        return route_label(self.path)

    @property
    def is_packed(self) -> bool:
        return self.form.endswith(PACKED)


def route_label(path: Path) -> str:
    """``unfused conv2d=winograd``: the route, and the routes of inner calls."""
    (_, route), *inner = path
    return " ".join([route, *(f"{op.partition('/')[2]}={name}" for op, name in inner)])


@dataclasses.dataclass(frozen=True)
class Conformed:
    """One check: whether it is right, for normal numbers and, as it is planned, for NaN, infinities and zeros."""

    op: str
    call: str
    route: str
    dtypes: tuple[str, ...]
    status: Status
    why: str = ""
    pattern: str = ""
    max_rel: float | None = None
    allowed: float | None = None
    seconds: float = 0.0
    params: Params = dataclasses.field(default_factory=dict)
    path: Path = ()
    form: str = ""
    fixed: bool | None = None

    def conditions(self, kind: Kind) -> str:
        """What is particular about a run with inputs of a kind, in front of what went wrong."""
        said = ["NaN, infinities and zeros"] if kind == "specials" else []
        said += ["constants in place of push constants"] if self.fixed else []
        said += [f"{name} = {value}" for name, value in self.params.items()]
        return "".join(f"with {one}: " for one in said)

    def command(self) -> str:
        """What to type to see it alone."""
        path = self.path or ((self.op, self.route),)
        words = [f"--route {op}={route}" for op, route in path]
        if self.params:
            words.append(f"--param {self.op}:{path[0][1]}={','.join(f'{n}:{v}' for n, v in self.params.items())}")
        words += [] if self.fixed is None else ["--fixed-push" if self.fixed else "--no-fixed-push"]
        words += ["--storage packed"] if PACKED in self.form else []
        return " ".join(["vkconv check", self.call, *words])


@functools.lru_cache(maxsize=1 << 12)
def call_of(text: str) -> Call:
    """The call of a case."""
    return parse_call(text, OPS)


def row_of(check: Check, status: Status, why: str = "") -> Conformed:
    """The row of a check that ended so before anything was compared."""
    specs = call_of(check.text).operands.values()
    dtypes = tuple(dict.fromkeys(str(spec.dtype) for spec in specs if spec is not None))
    return Conformed(
        *(check.op, check.text, check.route, dtypes, status, why),
        params=dict(check.params),
        path=check.path,
        form=check.form,
        fixed=check.fixed,
    )


# ---- what there is to check


def checks(
    facts: Device,
    ops: Sequence[str] = (),
    dtypes: Sequence[DType] = FLOAT_TYPES,
    storages: Sequence[Storage] = STORAGES,
    extent: Extent = "all",
    fixed_push: bool | None = None,
) -> list[Check]:
    """Every case of these ops (all, without any) on each of their routes, for a device to plan for: as they are written
    with f32; in f16 and bf16 those that have floats and go with them, in each of these storages that the device has.
    ``short`` leaves out all values of parameters but those that are planned, and ``few`` also cases that `few` can do
    without. ``fixed_push`` is that of `Options` for all checks; with None, on a device whose policy has constants in
    place of push constants, one check of each route in each form has them, and the others push, since of these many
    share a pipeline.

    Raises UsageError for an op that does not exist.
    """
    for name in ops:
        if name not in OPS:
            raise UsageError(f"there is no op {name!r}{did_you_mean(name, OPS)}; vkconv ops lists them")
    here = [storage for storage in storages if storage == "packed" or stores_natively(facts)]
    if not here:
        raise UsageError(f"{facts.name} has no native 16-bit storage; there is --storage packed")
    planned = {False: facts, True: emulated(with_packed_storage(facts), facts)}
    found = []
    for op in OPS.values():
        if ops and op.name not in ops:
            continue
        for dtype in dtypes:
            texts = op.cases if dtype is DType.F32 else tuple(_in_halves(op, dtype))
            calls = {text: call for text in texts if not (call := call_of(text)).is_empty}
            for storage in (None, *here):
                found += [
                    Check(text, path, form_of(call, storage == "packed"), params, tuple(map(route_label, covered)))
                    for text, call in calls.items()
                    if (call.half is None) == (storage is None)
                    for path, params, covered in ways(text, planned[storage == "packed"])
                    if not (params and extent != "all")
                ]
    found = few(found, planned) if extent == "few" else found
    if fixed_push is None and FIXED_PUSH.of(facts):
        return list(_fixed_once(found, planned))
    return found if fixed_push is None else [dataclasses.replace(check, fixed=fixed_push) for check in found]


def _fixed_once(work: Sequence[Check], planned: Mapping[bool, Device]) -> Iterator[Check]:
    seen: set[tuple[Path, str]] = set()
    for check in work:
        way = check.path, check.form
        first = way not in seen and not refusal(check.path, call_of(check.text), planned[check.is_packed])
        seen |= {way} if first else set()
        yield dataclasses.replace(check, fixed=first)


def few(work: Sequence[Check], planned: Mapping[bool, Device]) -> list[Check]:
    """Of these checks those that the smallest cases make which between them have each operand and each attribute that
    a route's cases have, in every element form; and one of each route of an inner call in each route that it is in,
    since its own op has checks of what it takes. Of a route that the device may not be given all are left: they cost
    nothing. ``planned`` is the device, by whether its storage is packed."""
    groups: dict[tuple[str, str, str], list[Check]] = {}
    kept: set[int] = set()
    seen: set[tuple[str, str, str, str]] = set()
    for check in work:
        if check.params or refusal(check.path, call_of(check.text), planned[check.is_packed]):
            kept.add(id(check))
        else:
            groups.setdefault((check.op, check.form, check.route), []).append(check)
    for (op, form, _), group in groups.items():
        left = {
            id(check): {
                (op, form, route, word)
                for route in check.covers or (check.route,)
                for word in ([""] if " " in route else _WORDS.findall(check.text))
            }
            for check in group
        }
        group.sort(key=lambda check: sum(spec.size for spec in call_of(check.text).specs.values()))
        while new := max((left[id(check)] - seen for check in group), key=len):
            check = next(check for check in group if left[id(check)] - seen == new)
            kept.add(id(check))
            seen |= new
    return [check for check in work if id(check) in kept]


def ways(text: str, facts: Device) -> Iterator[tuple[Path, Params, list[Path]]]:
    """Every way to run a case: on each of its routes, and of the calls inside those, one changed at a time, whether the
    device may be given it or not; and for one case of each route with every legal value of each parameter, since other
    calls, devices and tables choose others. That case is in f32, whose forms have the same loops, but of routes for f16
    alone. The last of each are the paths that it stands for: with the routes inside that are planned."""
    call = call_of(text)
    for route in OPS[call.op].routes:
        path: Path = ((call.op, route.name),)
        yield from ((way, {}, covered) for way, covered in _paths(path, route, call, facts))
        if text == case_of_parameters(route, call.op, facts):
            planned, legal = route.own({}, call, facts), route.legal(call, facts)
            for name in planned:
                yield from ((path, {name: value}, [path]) for value in sorted(set(legal[name]) - {planned[name]}))


def _paths(path: Path, route: Route, call: Call, facts: Device) -> Iterator[tuple[Path, list[Path]]]:
    """A path that ends in a route, and those further in, each with what it stands for."""
    covered, others = [path], []
    if may_take(route, call, facts):
        legal = route.legal(call, facts)
        for name, sub in route.subs(call, facts, route.own({}, call, facts)).items():
            for inner in sub.routes:
                own, *further = _paths((*path, (f"{path[-1][0]}/{name}", inner.name)), inner, sub.call, facts)
                if inner.name == legal[name][0]:
                    covered += own[1]
                else:
                    others.append(own)
                others += further
    yield path, covered
    yield from others


def inner_params(path: Path) -> Params:
    """The routes of the calls inside a route as parameters of it."""
    return {op.removeprefix(f"{path[0][0]}/"): name for op, name in path[1:]}


def steps(path: Path, call: Call, facts: Device) -> Iterator[tuple[Route, Call]]:
    """The routes of a path, each with the call that it is to take: a further one only where all before may take
    theirs, and where that is one of those inside: which they are may hang on the device."""
    routes: Sequence[Route] = OPS[call.op].routes
    for (_, name), (inner, _) in itertools.zip_longest(path, path[1:], fillvalue=("", "")):
        route = next((route for route in routes if route.name == name), None)
        if route is None:
            return
        yield route, call
        if inner:
            sub = route.subs(call, facts, route.own({}, call, facts))[inner.rpartition("/")[2]]
            call, routes = sub.call, sub.routes


def refusal(path: Path, call: Call, facts: Device) -> str:
    """The first requirement of a path's routes that refuses a call on a device; empty where it may be given them."""
    for found, (op, name) in itertools.zip_longest(steps(path, call, facts), path):
        if found is None:
            return f"a route {name} for {op} on this device"
        route, one = found
        verdict = judge(route, one, facts)
        if not verdict.allowed:
            return verdict.refused_by
    return ""


@functools.lru_cache(maxsize=1024)
def case_of_parameters(route: Route, op: str, facts: Device) -> str:
    """The case of a route that has the most outputs, but not so many that it takes long; of routes for f16 alone one in
    that type."""
    for texts in (OPS[op].cases, tuple(_in_halves(OPS[op], DType.F16))):
        calls = {text: call_of(text) for text in texts}
        sizes = {text: sum(spec.size for spec in call.outputs.values()) for text, call in calls.items()}
        fitting = [text for text in calls if may_take(route, calls[text], facts)]
        if fitting:
            return max(fitting, key=lambda text: sizes[text] * (sizes[text] <= _MOST_OUTPUTS))
    return ""


def form_of(call: Call, packed: bool) -> str:
    """The element form of a call: its 16-bit floats with their storage, or all types that it has."""
    if call.half:
        return call.half + (PACKED if packed else "")
    return "/".join(dict.fromkeys(str(spec.dtype) for spec in call.specs.values()))


def _in_halves(op: Op, dtype: DType) -> Iterator[str]:
    """The op's cases in a 16-bit type of floats."""
    for text in op.cases:
        # Types that a case writes out may not go with this one, or be all it has.
        with contextlib.suppress(VkconvError):
            if parse_call(f"{text},dtype={dtype}", OPS).half is dtype:
                yield f"{text},dtype={dtype}"


def with_packed_storage(device: Device) -> Device:
    """The device as if it could not address 16 bits of a buffer."""
    struct, name = NATIVE
    features = device.facts.get("features", {})
    return dataclasses.replace(
        device, facts={**device.facts, "features": {**features, struct: {**features.get(struct, {}), name: False}}}
    )


def planned_for(real: Device, limits: Device | None) -> Device:
    """The device whose routes and limits are used on a real one."""
    return real if limits is None else emulated(limits, real)


# ---- one check


class Checker:
    """Checks on one device, with the limits of another where they are given.

    Raises DeviceError where there is no device."""

    def __init__(self, device: str | int = "auto", limits: Device | None = None) -> None:
        self.device = device
        real = select_device(device)[1]
        self._limits = {False: limits, True: with_packed_storage(planned_for(real, limits))}
        self._facts = {packed: planned_for(real, other) for packed, other in self._limits.items()}

    def conform(self, check: Check) -> Conformed:
        """Do one check. Whatever goes wrong is in its row."""
        call, facts = call_of(check.text), self._facts[check.is_packed]
        row = row_of(check, "refused")
        if why := refusal(check.path, call, facts):
            return dataclasses.replace(row, why=why)
        if not any(call.operands.values()):
            return dataclasses.replace(row, why=AT_PLANNING)
        (route,) = (route for route in OPS[call.op].routes if route.name == check.path[0][1])
        started = time.perf_counter()
        try:
            params = {**inner_params(check.path), **check.params}
            once = has_many_workgroups(route, call, facts, params)
            for kind in kinds_of(check, facts):
                row = self._checked(row, call, kind, params, once)
                if row.status == "FAILED":
                    break
        except LimitError as error:
            row = dataclasses.replace(row, status="refused", why=on_a_line(error))
        except VkconvError as error:
            row = dataclasses.replace(row, status="error", why=on_a_line(error))
        except Exception as error:  # a fault of vkconv's own is that of one check too
            row = dataclasses.replace(row, status="error", why=on_a_line(f"{type(error).__name__}: {error}"))
        return dataclasses.replace(row, seconds=time.perf_counter() - started)

    def _checked(self, row: Conformed, call: Call, kind: Kind, params: Params, once: bool) -> Conformed:
        """The row after one more run of its call, of two replays or of one."""
        route = row.path[0][1]
        wanted, replays = on_route(call, expected_of(row.call, kind), route), 1 if once or kind == "specials" else 2
        limits = self._limits[PACKED in row.form]
        where: Mapping[str, Any] = {"device": self.device, "limits": limits, "fixed_push": row.fixed}
        ran = run_call(call, wanted.arrays, route=route, params=params, replays=replays, **where)
        checked = hold(call, ran, wanted)
        if row.max_rel is None:
            row = dataclasses.replace(row, max_rel=checked.max_rel, allowed=checked.allowed)
        if checked.ok:
            return dataclasses.replace(row, status="ok")
        why = row.conditions(kind) + checked.problem
        return dataclasses.replace(row, status="FAILED", why=why, pattern=checked.pattern)


def has_many_workgroups(route: Route, call: Call, facts: Device, params: Params) -> bool:
    """Workgroups beyond a 65,535th are there to be counted right, and take seconds on a CPU."""
    return sum(math.prod(step.groups) for step in route.build(call, facts, params).steps) > _MOST_WORKGROUPS


def kinds_of(check: Check, facts: Device) -> tuple[Kind, ...]:
    """The kinds of inputs that a check is done with, which its device may be given."""
    call = call_of(check.text)
    (route,) = (route for route in OPS[call.op].routes if route.name == check.path[0][1])
    params = {**inner_params(check.path), **check.params}
    taken = (route.name, *route.resolve(call, facts, params).values())
    spreads = any(name in _SPREADS_NON_FINITE for name in taken) or call.attrs.get("causal", False)
    plain = check.params or spreads
    return ("normals",) if plain or has_many_workgroups(route, call, facts, params) else ("normals", "specials")


def conform(check: Check, device: str | int = "auto", limits: Device | None = None) -> Conformed:
    """Do one check. Raises DeviceError where there is no device."""
    return Checker(device, limits).conform(check)


@functools.lru_cache(maxsize=2)  # of both kinds
def expected_of(text: str, kind: Kind) -> Expected:
    """The inputs of a case and its reference, which all its routes and parameters share."""
    call = call_of(text)
    return expect(call, draw(call, _SEED, kind))
