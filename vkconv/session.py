"""Sessions: a model loaded on a device, run as often as you like, with numpy arrays in and out."""

import dataclasses
import importlib
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from vkconv.backend.arrays import DeviceArray
from vkconv.backend.executable import Executable, Weights
from vkconv.backend.flights import Deadline, Flights, timeout_in_ns
from vkconv.backend.given import Given, checked_count, checked_inputs
from vkconv.backend.runtime import LiveDevice, open_device, own_lock
from vkconv.core import Array, InputError, LimitError, Shape, UsageError, did_you_mean
from vkconv.device import Device, load_device
from vkconv.device.emulate import emulated
from vkconv.graph import Graph, load_model
from vkconv.ops import OPS
from vkconv.plan.bound import bind_shapes, named_shapes, value_inputs, with_values
from vkconv.plan.explain import explain_plan
from vkconv.plan.fixing import FIXED_PLANS
from vkconv.plan.lowering import staged_bytes
from vkconv.plan.measured import find_measured
from vkconv.plan.model import Plan
from vkconv.plan.planner import Options, Planned, check_names, plan
from vkconv.plan.precision import input_specs
from vkconv.plan.profile import Profile
from vkconv.plan.timing import Span, Timing, spanning
from vkconv.running import Running
from vkconv.settings import IN_FLIGHT, MAX_PLANS, Settings
from vkconv.table import Table

# Buffers of constants that plans share, per plan kept. Some are a plan's own, such as values of inputs that steer it:
# those of plans that are gone must not pile up.
_BUFFERS_PER_PLAN = 4

# What a plan was made for: the shape of every input, and the bytes of those that steer it.
Key = tuple[tuple[Shape, ...], tuple[bytes, ...]]


@dataclasses.dataclass
class Timings:
    """What it took to get going, in microseconds: reading and planning, compiling pipelines, the first run."""

    load_us: float = 0.0
    compile_us: float = 0.0
    first_run_us: float = 0.0


class Session(Running):
    """A graph on a device. Use it as a context manager, or call `close` when done.

    Runs from several threads are legal and take turns. Where the graph has symbolic dimensions, or inputs that
    steer it (shapes, axes, numbers of repeats), the first run with new shapes or values makes a plan, which finds the
    weights of earlier ones on the device, and the session keeps the graph, weights and all, in host memory;
    otherwise the host copy of the weights is dropped.
    With ``limits``, another device, as `vkconv.settings.Settings` has it, it plans with that one's routes and limits
    what then runs on the device (`vkconv.device.emulate`). ``prepare`` off plans nothing before the first run.
    ``weights`` are those that sessions on one device share.
    """

    def __init__(
        self,
        graph: Graph,
        device: str | int = "auto",
        *,
        shapes: Mapping[str, Shape] | None = None,
        dims: Mapping[str, int] | None = None,
        options: Options | None = None,
        poison: bool = False,
        max_plans: int = MAX_PLANS,
        limits: Device | str | Path | None = None,
        in_flight: int = IN_FLIGHT,
        prepare: bool = True,
        weights: Weights | None = None,
    ) -> None:
        Settings(shapes=shapes, dims=dims, options=options, max_plans=max_plans, limits=limits, in_flight=in_flight)
        if not isinstance(graph, Graph):
            raise UsageError(f"a session takes a Graph, not a {type(graph).__name__}; vkconv.load takes files")
        started = time.perf_counter_ns()
        self.timings = Timings()
        self._opened: list[Span] = []
        self.name = graph.name
        options = options or Options()
        self.inputs = MappingProxyType(input_specs(graph, OPS, options.io_dtype))
        self.outputs: tuple[str, ...] = graph.outputs
        self.metadata = MappingProxyType(dict(graph.metadata))
        self._poison = poison
        self._max_plans = max_plans
        self._lock = own_lock()
        self._closed = False
        self._flights = Flights(in_flight, graph.name)
        with spanning(self._opened, "open device"):
            self._live: LiveDevice = open_device(device)
        self._limits = limits if limits is None or isinstance(limits, Device) else load_device(limits)
        self._planned_for, self.options = planning(self._live.device, options, self._limits)
        self._executables: OrderedDict[Key, Executable] = OrderedDict()
        self._with_constants: set[Key] = set()
        self._steering = value_inputs(graph, OPS)
        self._fixed = prepare and graph.is_static and not self._steering
        self._only: Executable | None = None  # of a session with one plan for all runs, until it is closed
        self._weights = weights or Weights()
        self._shares_weights = weights is not None or not self._fixed
        self._graph: Graph | None = graph
        self._source: Callable[[], Graph | None] = weakref.ref(graph)
        given = named_shapes(graph.inputs, shapes or {}, dims or {})
        if self._fixed or ((shapes is not None or dims is not None) and not self._steering):
            planned = self._planned({name: spec.dims for name, spec in bind_shapes(graph, given).items()})
            if self._fixed:
                self._graph, self._only = None, planned
        else:
            check_names(self.options, graph)
        self.timings.load_us += (time.perf_counter_ns() - started) / 1e3 - self.timings.compile_us

    def __repr__(self) -> str:
        takes = ", ".join(f"{name}: {spec}" for name, spec in self.inputs.items())
        where = "closed" if self._closed else f"on {self.device.name}"
        return f"<Session {self.name!r} ({takes}) -> {', '.join(self.outputs)}, {where}>"

    @property
    def graph(self) -> Graph:
        """The graph: the one that the session was made of, as long as somebody keeps it, else read again from the file
        that `load` was given. UsageError where neither is there."""
        graph = self._graph or self._source()
        if graph is None:
            raise UsageError(f"the session {self.name!r} has dropped its graph: keep the Graph, or load it from a file")
        return graph

    @property
    def device(self) -> Device:
        """Facts of the device the session runs on."""
        return self._live.device

    @property
    def plan(self) -> Plan:
        """The plan of the latest shapes; VkconvError before the first shapes are known."""
        with self._lock:
            self._check_open()
            if not self._executables:
                symbols = ", ".join(self._graph.symbols) if self._graph else ""
                raise InputError(
                    f"{self.name!r} depends on the values of {', '.join(self._steering)}: run it once"
                    if self._steering
                    else f"{self.name!r} has unbound dimensions ({symbols}): run it once, or load it with shapes="
                )
            return next(reversed(self._executables.values())).plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What a run is made of: `plan`, alone."""
        return (self.plan,)

    def began_with(self, spans: Sequence[Span], source: object = None) -> None:
        """Count what was done for the session until it was made; ``source`` is where its graph can be read again, if
        that is a path, or what reads it."""
        if callable(source):
            self._source = source
        elif isinstance(source, str | Path):
            path = Path(source).absolute()
            self._source = lambda: load_model(path)
        self.timings.load_us += sum(span.us for span in spans)
        self._opened[:0] = spans

    def _run(
        self, inputs: Mapping[str, Given], timeout_s: float | None, there: bool
    ) -> dict[str, Array] | dict[str, DeviceArray]:
        timeout_ns = timeout_in_ns(timeout_s)
        with self._lock:
            arrays = self._checked(inputs)
            executable = self._prepare(arrays)
            run = executable.run_there if there else executable.run
            if self.timings.first_run_us:
                return run(arrays, timeout_ns, imports=True)
            started = time.perf_counter_ns()
            outputs = run(arrays, timeout_ns, imports=True)
            self.timings.first_run_us = (time.perf_counter_ns() - started) / 1e3
            return outputs

    def check(self, inputs: Mapping[str, Given] | None = None, **settings: Any) -> Any:
        """Hold every node to its float64 reference, on this device, with these options and limits: `vkconv.check.run`,
        which has the settings, and whose result this gives. Inputs without an array are normal random numbers.

        Raises what that does, and UsageError where the session has dropped its graph.
        """
        self._check_open()
        # By name: checks are made of sessions, and may know them, not the other way round.
        run = importlib.import_module("vkconv.check.api").run
        own = {"device": self._live.index, "options": self.options, "limits": self._limits}
        return run(self.graph, inputs, **(own | settings))

    def _start(self, inputs: Mapping[str, Given], deadline: Deadline, there: bool) -> Future[Any]:
        with self._lock:
            arrays = self._checked(inputs)
            executable = self._prepare(arrays)
            self._check_budget(executable.plan)
            # In the lock, so that futures come in the order of the queue.
            return self._flights.add(executable.fly(arrays, there), deadline)

    @property
    def spans(self) -> list[Span]:
        """What the host did to get ready, for the latest shapes: reading, planning, allocating, compiling."""
        with self._lock:
            self._check_open()
            latest = next(reversed(self._executables.values()), None)
            return [*self._opened, *(latest.spans if latest else ())]

    def measure(self, inputs: Mapping[str, Given]) -> tuple[dict[str, Array], Timing]:
        """One inference with GPU timestamps: the same outputs as `run` gives, and where the wall time went."""
        with self._lock:
            started = time.perf_counter_ns()
            arrays = self._checked(inputs)
            executable = self._prepare(arrays)
            outputs, timing = executable.profile(arrays)
            call_us = (time.perf_counter_ns() - started) / 1e3
            return outputs, dataclasses.replace(timing, call_us=call_us, called_ns=started)

    def profile(self, inputs: Mapping[str, Given], runs: int = 1) -> Profile:
        """Where the wall time of a run goes, by node and by op type; the rows sum to the wall time.

        Of several ``runs`` it shows the one whose wall time is the median. Raises UsageError for no run at all,
        and what `run` raises.
        """
        checked_count("runs", runs, "runs must be at least 1")
        with self._lock:  # another thread's shapes would make another plan the latest
            timings = [self.measure(inputs)[1] for _ in range(runs)]
            return Profile(self.plan, timings)

    def explain(self) -> Table:
        """Which route each node takes and why."""
        return explain_plan(self.plan)

    def value(self, name: str) -> Array:
        """An intermediate value as the last run left it; needs ``Options(share_memory=False)``."""
        with self._lock:
            self._check_open()
            values = self.plan.values
            if self.options.share_memory or name not in values:
                known = "" if self.options.share_memory else did_you_mean(name, values)
                raise InputError(
                    f"value {name!r} cannot be read{known}: load with options=Options(share_memory=False), "
                    "and name a value that the plan computes"
                )
            self._await_flights()
            return next(reversed(self._executables.values())).peek(name)

    def close(self) -> None:
        """Release the device memory; the session refuses further runs. Closing twice is fine.

        It waits for runs in flight, but for none that timed out. Vulkan cannot stop one: it keeps its memory, and the
        device busy, until it is done.
        """
        with self._lock:
            was_open, self._closed = not self._closed, True
        self._flights.close()  # without the lock: whoever waits for that finds the session closed, and gets on
        with self._lock:
            if was_open:
                self._live.save_pipeline_cache()
            for executable in self._executables.values():
                executable.close()
            self._executables.clear()
            self._only = None
            self._weights = Weights()
            self._graph = None

    def _checked(self, inputs: Mapping[str, Given]) -> dict[str, Array | DeviceArray]:
        self._check_open()
        return checked_inputs(inputs, self.name, self.inputs, self._live)

    def _prepare(self, arrays: Mapping[str, Array | DeviceArray]) -> Executable:
        """The executable for inputs of these shapes, and values of those that steer it, planned and loaded if it is
        not there yet; InputError for values that a node of it refuses."""
        executable = self._only
        if executable is None:
            executable = self._planned({name: array.shape for name, array in arrays.items()}, arrays)
        if executable.plan.checks:
            there = {name: np.asarray(array) for name, array in arrays.items()}
            for check in executable.plan.checks:
                check.run(there)
        return executable

    def _planned(
        self, shapes: Mapping[str, Shape], arrays: Mapping[str, Array | DeviceArray] | None = None
    ) -> Executable:
        """The same without a look at other values."""
        full = {name: shapes.get(name, spec.shape) for name, spec in self.inputs.items()}
        values = {name: np.array(array) for name, array in (arrays or {}).items() if name in self._steering}
        key: Key = (
            tuple(tuple(int(d) if isinstance(d, int) else -1 for d in shape) for shape in full.values()),
            tuple(staged_bytes(value) for value in values.values()),
        )

        def make() -> Planned:
            assert self._graph is not None  # a static graph was prepared when the session was made
            bind_shapes(self._graph, shapes)
            graph = with_values(self._graph, values)
            others = {name: shape for name, shape in shapes.items() if name not in values}
            resident = self._weights.regions if self._shares_weights else None
            return plan(graph, self._planned_for, self._options(key), others, resident)

        return self._kept(key, make)

    def _options(self, key: Key) -> Options:
        """Those of a plan: behind the first few keys launches push, so that plans share pipelines."""
        if self.options.fixed_push is None and key not in self._with_constants:
            if len(self._with_constants) >= FIXED_PLANS.of(self._planned_for):
                return dataclasses.replace(self.options, fixed_push=False)
            self._with_constants.add(key)
        return self.options

    def _kept(self, key: Key, make: Callable[[], Planned]) -> Executable:
        """The executable of a key, planned by ``make`` and loaded if it is not there yet."""
        executable = self._executables.get(key)
        if executable is None:
            spans: list[Span] = []
            if len(self._weights.buffers) > _BUFFERS_PER_PLAN * self._max_plans:
                self._weights = Weights()  # plans that are there keep the old ones until they go
            with spanning(spans, "plan"):
                planned = make()
            while len(self._executables) >= self._max_plans or self._is_over_budget(planned.plan):
                self._await_flights()  # they may use it
                self._executables.popitem(last=False)[1].close()
            executable = Executable(planned.plan, self._live, planned.constants, self._poison, weights=self._weights)
            self.timings.compile_us += executable.compile_us
            executable.spans[:0] = spans
            self._executables[key] = executable
        self._executables.move_to_end(key)
        return executable

    def _await_flights(self) -> None:
        """Wait for the runs in flight, also with the lock: the thread that awaits them never takes it."""
        self._flights.drain()

    def _check_budget(self, plan: Plan) -> None:
        """LimitError where runs in flight would take more than the user allows."""
        each = plan.memory.upload_bytes + plan.memory.download_bytes
        nbytes, most = plan.memory.peak_bytes + self._flights.most * each, self.options.memory_bytes
        if most is not None and nbytes > most:
            raise LimitError(
                f"{self.name!r}: the plan and {self._flights.most} runs in flight of {each} bytes take {nbytes} bytes, "
                f"the memory allowed is {most} bytes; allow more, or set a smaller in_flight"
            )

    def _is_over_budget(self, plan: Plan) -> bool:
        """Whether the plans that are kept leave too little of the budget for this one; the weights they share count
        once."""
        if self.options.memory_bytes is None or not self._executables:
            return False
        kept = (executable.plan.memory for executable in self._executables.values())
        held_bytes = sum(m.activations_bytes + m.upload_bytes + m.download_bytes for m in kept)
        return held_bytes + plan.memory.peak_bytes > self.options.memory_bytes


def planning(device: Device, options: Options, limits: Device | None = None) -> tuple[Device, Options]:
    """What a session on a device plans for, and its options with what was measured there, if the caller left that
    open."""
    if options.measured is None:
        # Nothing was measured on a device that is not here.
        known = find_measured(device) if limits is None else {}
        options = dataclasses.replace(options, measured=known)
    return device if limits is None else emulated(limits, device), options


def open_session(graph: Graph, device: str | int, settings: Settings) -> Session:
    """A session of these settings. Raises DeviceError for the device, RouteError and LimitError for what cannot run
    there."""
    return Session(
        graph,
        device,
        shapes=settings.shapes,
        dims=settings.dims,
        options=settings.all_options,
        max_plans=settings.max_plans,
        limits=settings.limits,
        in_flight=settings.in_flight,
    )
