"""Calls and models under test: what the fixtures of `vkconv.pytest_plugin` hand out. Usable without pytest too, but for
`calls`, which makes its parameters."""

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.check import Checked, Expected, allowed_errors, compare, expect, run_call
from vkconv.check.dump import dump_node
from vkconv.check.inputs import draw
from vkconv.check.pattern import pattern
from vkconv.core import Array, InputError, did_you_mean, given_array
from vkconv.device import Device
from vkconv.device.emulate import emulated
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.core.requirements import rules_out
from vkconv.plan.planner import Options, choose_route
from vkconv.plan.single import WEIGHTS
from vkconv.route import Params, Verdict, judge, label


@dataclasses.dataclass(frozen=True)
class DeviceUnderTest:
    """A device and how to select it; ``limits``, another device whose limits and routes are used on it; ``routes``
    forced for ops."""

    selector: str | int
    real: Device
    limits: Device | None = None
    routes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits_text: str = ""

    @property
    def facts(self) -> Device:
        """The device that is planned for."""
        return self.real if self.limits is None else emulated(self.limits, self.real)

    def __str__(self) -> str:
        return f"{self.facts.name}, driver {self.facts.driver}"

    def verdict(self, call: Call, route: str) -> Verdict:
        """Whether a call may take a route here, and the need that refuses it. Raises InputError for no such route."""
        for known in OPS[call.op].routes:
            if known.name == route:
                return judge(known, call, self.facts)
        names = [known.name for known in OPS[call.op].routes]
        raise InputError(f"{call.op} has no route {route!r}{did_you_mean(route, names)}; it has {', '.join(names)}")

    def options(self) -> list[str]:
        """The words that make `vkconv check` use the same device."""
        words = ["--device", str(self.selector)] if self.selector != "auto" else []
        return [*words, *(["--limits", self.limits_text] if self.limits_text else [])]


class CallUnderTest:
    """One call that ran once: the route that was dispatched, its parameters and its outputs by name."""

    def __init__(
        self,
        device: DeviceUnderTest,
        text: str,
        inputs: Mapping[str, npt.ArrayLike] | None = None,
        *,
        route: str | None = None,
        params: Params | None = None,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        self.call = parse_call(text, OPS)
        self.device = device
        self._seed, self._folder = seed, folder
        self._forced = route or device.routes.get(self.call.op)
        self.arrays = draw(self.call, seed)
        self._drawn = not inputs
        for name, given in (inputs or {}).items():
            self.arrays[name] = self._fitting(name, given)
        self._params = dict(params or {})
        ran = self._run(1)
        self.route, self.params = ran.route, ran.params
        self.outputs: dict[str, Array] = dict(zip(self.call.outputs, ran.outputs[0], strict=True))

    @property
    def output(self) -> Array:
        """The first output."""
        return next(iter(self.outputs.values()))

    def check(self, reference: Mapping[str, npt.ArrayLike] | npt.ArrayLike | None = None) -> Checked:
        """How far the outputs are from the op's own float64 reference, or from the one that is given."""
        outputs = list(self.outputs.values())
        if reference is None:
            return compare(self.call, outputs, expect(self.call, self.arrays, self.route))
        given = reference if isinstance(reference, Mapping) else {next(iter(self.outputs)): reference}
        wanted = [np.asarray(given[name]) for name in self.outputs]
        for (name, array), target in zip(self.outputs.items(), wanted, strict=True):
            if target.shape != array.shape:
                raise InputError(f"the reference of {name} has shape {target.shape}, the output {array.shape}")
        allowed = allowed_errors(self.call, self.arrays, wanted, self.route)
        return compare(self.call, outputs, Expected(self.arrays, wanted, allowed))

    def assert_close(self, reference: Mapping[str, npt.ArrayLike] | npt.ArrayLike | None = None) -> None:
        """AssertionError, telling what is wrong, where, and the command that repeats it, where an output is further
        from its reference than rounding explains."""
        checked = self.check(reference)
        if not checked.ok:
            where = f"\n  where    {checked.pattern}" if checked.pattern else ""
            raise AssertionError(self._told(checked.problem + where))

    def assert_deterministic(self, runs: int = 50) -> None:
        """AssertionError where ``runs`` replays of the same commands do not all give the same bytes."""
        outputs = self._run(runs).outputs
        distinct = {tuple(array.tobytes() for array in replay) for replay in outputs}
        if len(distinct) == 1:
            return
        places = []
        for position, name in enumerate(self.outputs):
            first = outputs[0][position]
            differs = np.zeros(first.shape, bool)
            for replay in outputs[1:]:
                # Bit patterns: NaN is the same as itself.
                bits = [np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}") for a in (first, replay[position])]
                differs |= bits[0] != bits[1]
            if differs.any():
                places.append(f"{name}: {pattern(differs)}")
        repeatable = all(r.deterministic for r in OPS[self.call.op].routes if r.name == self.route)
        said = "" if repeatable else "; its route says that the last bits may change"
        problem = f"{len(distinct)} different outputs in {runs} runs of the same commands{said}"
        raise AssertionError(self._told(f"{problem}\n  where    {'; '.join(places)}", f"--repeat {runs}"))

    def command(self, more: str = "") -> str:
        """The command that checks the same call on the same inputs; those that were given are saved for it."""
        words = shlex.split(more)
        if self._drawn or self._folder is None:
            params = ",".join(f"{name}:{value}" for name, value in self.params.items())
            forced = ["--route", f"{self.call.op}={self.route}"]
            forced += ["--param", f"{self.call.op}:{self.route}={params}"] if params else []
            text = format_call(self.call, OPS)
            seed = ["--seed", str(self._seed)] if self._seed else []
            return shlex.join(["vkconv", "check", text, *forced, *seed, *self.device.options(), *words])
        return dump_node(
            self._folder,
            self.call.op,
            self.call,
            self.arrays,
            route=self.route,
            params=self.params,
            constant=WEIGHTS,
            more=(*self.device.options(), *words),
        )[1]

    def _told(self, problem: str, more: str = "") -> str:
        return (
            f"{problem}\n  call     {format_call(self.call, OPS)}\n  route    {label(self.route, self.params)}"
            f"\n  device   {self.device}\n  repeat   {self.command(more)}"
        )

    def _run(self, replays: int) -> Any:
        return run_call(
            self.call,
            self.arrays,
            device=self.device.selector,
            route=self._forced,
            params=self._chosen(),
            replays=replays,
            limits=self.device.limits,
        )

    def _chosen(self) -> Params:
        """The parameters to set: those given, which must be some of the route's."""
        if not self._params:
            return {}
        routes = {self.call.op: self._forced} if self._forced else {}
        choice = choose_route(self.call, "call", self.device.facts, Options(routes=routes))
        return choice.route.resolve(self.call, self.device.facts, self._params)

    def _fitting(self, name: str, given: npt.ArrayLike) -> Array:
        spec = self.call.operands.get(name)
        if spec is None:
            raise InputError(
                f"{self.call.op} has no operand {name!r} here{did_you_mean(name, self.arrays)}; "
                f"it takes {', '.join(self.arrays)}"
            )
        array = given_array(given, f"operand {name!r}")
        if array.shape != spec.dims or array.dtype != spec.dtype.numpy:
            raise InputError(f"operand {name!r} is {spec}, the array has shape {array.shape} and dtype {array.dtype}")
        return array


def calls(*wanted: str, routes: str | Sequence[str] = "default") -> list[Any]:
    """Parameters ``(call, route)`` for ``pytest.mark.parametrize``, each with its call and route as id.

    ``wanted`` are call strings and names of ops, which stand for all their cases. ``routes`` is ``default`` (None: the
    one that the planner takes), ``all`` that the call itself does not rule out, or some by name. Raises UsageError for
    what does not exist.
    """
    import pytest

    texts: Iterable[str] = (text for word in wanted for text in (OPS[word].cases if word in OPS else (word,)))
    made = []
    for text in texts:
        call = parse_call(text, OPS)
        known = [route.name for route in OPS[call.op].routes if not rules_out(call, route)]
        chosen: Sequence[str | None] = [None] if routes == "default" else known if routes == "all" else list(routes)
        made += [pytest.param(text, route, id=f"{text}-{route or 'default'}") for route in chosen]
    return made
