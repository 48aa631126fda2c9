"""Graphs that run in stages: where shapes depend on values that a run finds out, those are read back, and what follows
is planned for them. Detectors are such graphs: how many boxes are left decides what comes next."""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from vkconv.backend.arrays import DeviceArray, placed
from vkconv.backend.flights import Deadline, Flights, Job
from vkconv.backend.given import Given, checked_inputs, own_copies
from vkconv.backend.runtime import open_device, own_lock
from vkconv.cached import open_cached
from vkconv.core import Array, DType, InputError, Shape, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.graph import Graph, Node, TensorSpec, load_model
from vkconv.ops import OPS
from vkconv.plan.bound import bind_shapes, named_shapes
from vkconv.plan.control import run_control
from vkconv.plan.model import Plan
from vkconv.plan.planner import Options
from vkconv.plan.profile import Profile
from vkconv.plan.stages import Stage, cut_stages, is_staged, stage_graph, stage_table
from vkconv.plan.timing import Span, spanning
from vkconv.running import Running
from vkconv.session import Session, Timings, open_session
from vkconv.settings import Settings
from vkconv.table import Table

# Where the time of each part of a run went, by what it is; None of a run that is not profiled.
_Profiles = dict[str, Profile] | None


class StagedSession(Running):
    """A graph in stages on a device, a `Session` for each. Use it as a context manager, or call `close` when done.

    Values stay on the device between stages; those that steer a stage are read back. A stage is planned anew for sizes
    that it does not remember: it keeps ``max_plans`` plans, as a session does for shapes of inputs. Settings are those
    of a session, ``memory_bytes`` for each stage; inputs and outputs have the graph's own types.
    """

    def __init__(
        self,
        graph: Graph,
        stages: tuple[Stage, ...],
        device: str | int = "auto",
        settings: Settings | None = None,
    ) -> None:
        """Raises what a session raises, for the first stage; UsageError for ``io_dtype``."""
        settings = settings or Settings()
        self._options = settings.all_options
        if self._options.io_dtype:
            raise UsageError(
                f"{graph.name!r} runs in stages, whose inputs and outputs keep their types: leave io_dtype out"
            )
        self.name = graph.name
        self.inputs = MappingProxyType(dict(graph.inputs))
        self.metadata = MappingProxyType(dict(graph.metadata))
        self.outputs: tuple[str, ...] = graph.outputs
        self.stages = stages
        self._graph, self._device = graph, device
        self._lock = own_lock()
        self._flights = Flights(settings.in_flight, graph.name)
        self._sizes: list[tuple[Array, ...]] = [() for _ in stages]
        shapes = named_shapes(self.inputs, settings.shapes or {}, settings.dims or {})
        unknown = [name for name in shapes if name not in self.inputs]
        if unknown:
            raise InputError(
                f"graph {self.name!r} has no input {unknown[0]!r}{did_you_mean(unknown[0], self.inputs)}; "
                f"it takes {', '.join(self.inputs)}"
            )
        first = {name: graph.inputs[name] for name in stages[0].inputs}
        own = {name: shape for name, shape in shapes.items() if name in first}
        # What is left open for later stages, which take what their first run brings.
        self._settings = dataclasses.replace(settings, shapes=None, dims=None, routes=None, params=None)
        self._sessions: list[Session | Control] = []
        self._open_stage(0, first, own)
        self._live = open_device(device)

    @property
    def device(self) -> Device:
        """Facts of the device that the stages run on."""
        return self._sessions[0].device

    @property
    def timings(self) -> Timings:
        """What it took to get all stages going that ran."""
        return _together([session.timings for session in self._sessions])

    @property
    def dispatches(self) -> int:
        """Dispatches of the latest run."""
        return sum(dispatches(session) for session in self._sessions)

    @property
    def spans(self) -> list[Span]:
        """What the host did to get ready, stage by stage."""
        return [span for session in self._sessions for span in session.spans]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The latest plan of each stage that ran."""
        return tuple(plan for session in self._sessions for plan in session.plans)

    def began_with(self, spans: list[Span], source: object = None) -> None:
        """Count what was done for the session until it was made."""
        self._sessions[0].began_with(spans)

    def _run(
        self, inputs: Mapping[str, Given], timeout_s: float | None, there: bool
    ) -> dict[str, Array] | dict[str, DeviceArray]:
        """One inference. ``timeout_s`` is for all stages together."""
        found = self._ran(inputs, timeout_s)
        if there:
            return {name: self._on_device(found[name]) for name in self.outputs}
        return {name: np.array(found[name]) for name in self.outputs}

    def _ran(
        self, inputs: Mapping[str, Given], timeout_s: float | None, profiles: "_Profiles" = None, label: str = ""
    ) -> dict[str, Any]:
        """What all stages gave, of arrays on the device where they are not profiled."""
        with self._lock:
            self._check_open()
            values: dict[str, Any] = dict(self._checked(inputs))
            started, left_s = time.monotonic(), timeout_s
            for i, stage in enumerate(self.stages):
                given = {name: values[name] for name in stage.inputs}
                if i or stage.control:
                    sizes = tuple(np.array(values[name]) for name in stage.steered_by)
                    self._sizes[i] = sizes
                    given |= dict(zip(stage.steered_by, sizes, strict=True))
                    if timeout_s is not None:
                        left_s = max(0.0, timeout_s - (time.monotonic() - started))
                values |= _ran(self._session(i, given), given, left_s, profiles, f"{label}stage {i}")
            return values

    def _start(self, inputs: Mapping[str, Given], deadline: Deadline, there: bool) -> Future[Any]:
        given = own_copies(self._checked(inputs))
        return self._flights.add(Job(lambda left_s: self._run(given, left_s, there), deadline), deadline)

    def profile(self, inputs: Mapping[str, Given]) -> dict[str, Profile]:
        """Where the wall time of a run goes, a `Profile` for each stage, and for each run of a body inside one, by what
        it is: ``stage 0``, ``stage 1, body 0, run 4``. Timestamps cost a little; what steers a stage is read back as in
        `run`. Raises what `run` raises."""
        made: dict[str, Profile] = {}
        self._ran(inputs, None, made)
        return made

    def explain(self) -> Table:
        """A row per stage: its nodes, and the values that were read back before it, as the latest run found them; what
        each node takes is in `plans`."""
        launches = [dispatches(session) for session in self._sessions]
        return stage_table(self.name, self.stages, launches, self._sizes)

    def close(self) -> None:
        """Release the device memory; the session refuses further runs. Closing twice is fine."""
        self._flights.close()  # before it is closed, so that runs which were submitted begin
        with self._lock:
            self._closed = True
            for session in self._sessions:
                session.close()

    def _checked(self, inputs: Mapping[str, Given]) -> dict[str, Array | DeviceArray]:
        """The inputs as arrays; InputError where names, types or shapes are not the graph's."""
        arrays = checked_inputs(inputs, self.name, self.inputs, self._live)
        bind_shapes(self._graph, {name: array.shape for name, array in arrays.items()})
        return arrays

    def _on_device(self, array: Any) -> DeviceArray:
        return array if isinstance(array, DeviceArray) else placed(np.asarray(array), self._live)

    def _session(self, i: int, given: Mapping[str, Given]) -> "Session | Control":
        """The session of a stage. What earlier stages give is known by rank and type when it first runs."""
        if i == len(self._sessions):
            self._open_stage(i, {name: self.inputs.get(name) or _open(name, array) for name, array in given.items()})
        return self._sessions[i]

    def _open_stage(self, i: int, inputs: Mapping[str, TensorSpec], shapes: Mapping[str, Shape] | None = None) -> None:
        settings = dataclasses.replace(self._settings, shapes=shapes or None, options=self._options_of(i))
        if node := self.stages[i].control:
            self._sessions.append(Control(self._graph, node, self._device, settings))
        else:
            graph = stage_graph(self._graph, self.stages[i], inputs)
            self._sessions.append(open_session(graph, self._device, settings))

    def _options_of(self, i: int) -> Options:
        """The options of a stage: without what is for nodes of other stages."""
        own = {f"node:{node.name}" for node in self.stages[i].nodes}
        others = {f"node:{node.name}" for node in self._graph.nodes} - own

        def kept(table: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in table.items() if _names(key, own) or not _names(key, others)}

        options = self._options
        routes, params, dtypes = kept(options.routes), kept(options.params), kept(options.dtypes)
        return dataclasses.replace(options, routes=routes, params=params, dtypes=dtypes)


class Control:
    """A node of control flow on a device, with a session for each of its bodies that ran. `vkconv.plan.control` says
    what runs."""

    def __init__(self, graph: Graph, node: Node, device: str | int, settings: Settings) -> None:
        self._node, self._bodies, self._constants = node, graph.bodies[node.name], graph.constants
        self._device, self._settings = device, settings
        self._sessions: dict[int, Session | StagedSession] = {}
        self._went: set[int] = set()
        self.device: Device = self._session(0).device
        self.dispatches = 0

    @property
    def timings(self) -> Timings:
        """What it took to get its bodies going."""
        return _together([session.timings for session in self._sessions.values()])

    @property
    def spans(self) -> list[Span]:
        return [span for session in self._sessions.values() for span in session.spans]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The latest plan of each body that ran."""
        return tuple(plan for i in sorted(self._went) for plan in self._sessions[i].plans)

    def began_with(self, spans: list[Span], source: object = None) -> None:
        """Count what was done for it until it was made."""
        self._session(0).began_with(spans)

    def ran(
        self, given: Mapping[str, Given], timeout_s: float | None, profiles: "_Profiles" = None, label: str = ""
    ) -> dict[str, Any]:
        """The outputs of the node; ``timeout_s`` is for all that runs together."""
        started = time.monotonic()
        self.dispatches = count = 0

        def run(i: int, values: Sequence[Any]) -> list[Any]:
            nonlocal count
            left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - started))
            session, body = self._session(i), self._bodies[i]
            named = dict(zip(body.inputs, values, strict=True))
            made = _ran(session, named, left_s, profiles, f"{label}, body {i}, run {count}")
            self._went.add(i)
            self.dispatches += dispatches(session)
            count += 1
            return [made[name] for name in body.outputs]

        return run_control(self._node, self._bodies, {**self._constants, **given}, run)

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def _session(self, i: int) -> "Session | StagedSession":
        if i not in self._sessions:
            self._sessions[i] = open_model(self._bodies[i], self._device, self._settings)
        return self._sessions[i]


def _ran(
    session: Session | StagedSession | Control,
    given: Mapping[str, Any],
    timeout_s: float | None,
    profiles: _Profiles,
    label: str,
) -> dict[str, Any]:
    """What a part of a graph gives, on the device; on the host where ``profiles`` collects where its time went."""
    if isinstance(session, Control):
        return session.ran(given, timeout_s, profiles, label)
    if profiles is None:
        return dict(session.run(given, timeout_s=timeout_s, out="device"))
    if isinstance(session, StagedSession):
        return session._ran(given, timeout_s, profiles, f"{label}, ")
    made, timing = session.measure(given)
    profiles[label] = Profile(session.plan, [timing])
    return dict(made)


def dispatches(session: Session | StagedSession | Control) -> int:
    """Dispatches of the latest run, without what was prepacked when its plan was made."""
    if isinstance(session, Session):
        return sum(node.dispatches for node in session.plan.nodes)
    return session.dispatches


def _together(parts: Sequence[Timings]) -> Timings:
    """What all of them took."""
    names = ("load_us", "compile_us", "first_run_us")
    return Timings(*(sum(getattr(part, name) for part in parts) for name in names))


def _names(key: str, nodes: Set[str]) -> bool:
    """Whether a setting is for one of the nodes, or for a call inside it."""
    return any(key == node or key.startswith(f"{node}/") for node in nodes)


def _open(name: str, array: Any) -> TensorSpec:
    """A value of another stage: its sizes may be others in the next run."""
    return TensorSpec(tuple(f"{name}_{d}" for d in range(len(array.shape))), DType.of(array.dtype))


def open_model(source: object, device: str | int = "auto", settings: Settings | None = None) -> Session | StagedSession:
    """A model on a device, in stages where a shape of it depends on values that a run finds out. Raises as
    `vkconv.load` does."""
    spans: list[Span] = []
    settings = settings or Settings()
    if isinstance(source, Graph):
        graph = source
    else:
        with spanning(spans, "load model"):
            graph = load_model(source, f64_as_f32=settings.f64_as_f32)
    stages = cut_stages(graph, OPS)
    session: Session | StagedSession
    if settings.bounds or settings.caches:
        session = open_cached(graph, device, settings)
    elif not is_staged(stages):
        session = open_session(graph, device, settings)
    else:
        session = StagedSession(graph, stages, device, settings)
    again = source
    if settings.f64_as_f32 and isinstance(source, str | Path):
        again = functools.partial(load_model, Path(source).absolute(), f64_as_f32=True)
    session.began_with(spans, again)
    return session
