"""Plans on an open device: buffers, constants and recorded commands, run and timed."""

import dataclasses
import math
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from vkconv.backend.arrays import DeviceArray, placed
from vkconv.backend.flights import FOREVER_NS
from vkconv.backend.ports import Bound, Inputs, Lease, Pool, Ports, mapped
from vkconv.backend.recorded import Repeats, Where, record, spans_us
from vkconv.backend.runtime import LiveDevice
from vkconv.backend.storage import Storage
from vkconv.core import Array, DeviceError
from vkconv.plan.commands import Barrier, Launch, Region, with_barriers
from vkconv.plan.lowering import staged_bytes
from vkconv.plan.model import Plan
from vkconv.plan.timing import Span, Timing, spanning
from vkconv.plan.weights import WeightKey

if TYPE_CHECKING:
    from vkconv.backend import _bridge
    from vkconv.backend.recorded import Places, Steps


# Runs in flight that timed out and are still at work, each with ports of its own: more are refused.
MOST_LATE = 8


class Weights:
    """Constants on the device that the plans of one session share: where each lies, and the buffers and textures that
    they lie in."""

    def __init__(self) -> None:
        self.regions: dict[WeightKey, Region] = {}
        self.buffers: dict[str, _bridge.Buffer] = {}
        self.textures: dict[str, _bridge.Image] = {}

    def add(self, plan: Plan, buffers: "Mapping[str, _bridge.Buffer]", textures: "Mapping[str, _bridge.Image]") -> None:
        """Take over what a plan has loaded."""
        self.regions |= plan.weights
        names = {region.buffer for region in plan.weights.values()}
        self.buffers |= {name: buffers[name] for name in names & buffers.keys()}
        self.textures |= {name: textures[name] for name in names & textures.keys()}


class Executable:
    """A plan on a device: buffers allocated, constants loaded and prepacked, commands recorded for replay.

    ``weights`` holds what earlier plans of the session loaded, and takes over what this one loads.
    ``spans`` says what that took on the host, ``compiled`` what compiling did; a pipeline that was there already took
    nothing.
    Not safe for concurrent use by itself: the session that owns it holds a lock around each run.
    """

    def __init__(
        self,
        plan: Plan,
        live: LiveDevice,
        constants: Mapping[str, Array],
        poison: bool = False,
        timed_load: bool = False,
        weights: Weights | None = None,
    ) -> None:
        self.plan = plan
        self.live = live
        self.spans: list[Span] = []
        self.compiled: list[Span] = []
        self._poisons = poison
        self.prepack_us = 0.0  # GPU time of prepacking; stays 0 without timed_load
        weights = weights or Weights()
        self._buffers: dict[str, _bridge.Buffer] = dict(weights.buffers)
        self._textures: dict[str, _bridge.Image] = dict(weights.textures)
        self._where = f"{plan.graph} on {live.device.name}"
        self._use = live.using(self._where)
        with self._use:
            live.compile_together((c for c in (*plan.load, *plan.run) if isinstance(c, Launch)), self.compiled)
            with spanning(self.spans, "allocate"):
                self._ports = Ports(plan, live)
                caches = {plan.inputs[name][1].buffer for name in plan.caches}
                for name, (nbytes, kind) in plan.buffers.items():
                    if name not in self._ports.buffers and name not in caches:
                        self._buffers[name] = live.handle.buffer(nbytes, kind)
                for name, planned in plan.textures.items():
                    extent = dataclasses.astuple(planned.texture)
                    self._textures[name] = live.handle.image(*extent, planned.format)
            if poison:
                # Not what earlier plans of the session loaded, which this one uses too.
                own = {name: self._buffers[name] for name in plan.buffers if name in self._buffers}
                textures = {name: self._textures[name] for name in plan.textures}
                self._poison({**own, **self._ports.buffers}, textures)
            with spanning(self.spans, "load weights"):
                self._load(constants, timed_load)
                weights.add(plan, self._buffers, self._textures)
            with spanning(self.spans, "record"):
                if not caches:  # else they are recorded with those of the first run
                    self._commands(self._ports, {})
        self.spans += self.compiled
        # What the device may still work on, after a time-out or Ctrl-C.
        self._unfinished: _bridge.Recording | None = None
        # What the last run used, to look at values.
        self._last = self._ports
        self._bound: dict[str, tuple[weakref.ref[Storage], int]] = {}
        self._free: list[Ports] = []  # of runs that were in flight
        self._late: deque[_Flight] = deque()  # which timed out
        self._known: dict[str, DeviceArray] | None = None
        self._pool = Pool(lambda: Ports(plan, live, stay=True))

    @property
    def compile_us(self) -> float:
        """What compiling took."""
        return sum(span.us for span in self.compiled)

    def run(self, inputs: Inputs, timeout_ns: int = FOREVER_NS, imports: bool = False) -> dict[str, Array]:
        """One inference: ``inputs`` are checked arrays by name; returns the outputs as new arrays.

        A run after one that timed out first waits for that one, as long as it may itself take. With ``imports`` inputs
        may be read where they lie (`Plan.imported`), and are then not left on the device for `repeat`.
        """
        with self._use:
            self._run_in(self._ports, inputs, timeout_ns, imports)
            return self._outputs(self._ports)

    def _outputs(self, ports: Ports) -> dict[str, Array]:
        outputs = ports.read()
        for name, array in self.plan.known.items():
            outputs[name] = array.copy()
        return outputs

    def run_there(self, inputs: Inputs, timeout_ns: int = FOREVER_NS, imports: bool = False) -> dict[str, DeviceArray]:
        """One inference whose outputs stay on the device; otherwise as `run`."""
        with self._use:
            lease = self._take()
            self._run_in(lease.ports, inputs, timeout_ns, imports)
            return self._staying(lease)

    def _run_in(self, ports: Ports, inputs: Inputs, timeout_ns: int, imports: bool) -> None:
        if self._unfinished is not None:
            self._await_unfinished(timeout_ns)
        bound = ports.bind(inputs, imports)
        recording = self._commands(ports, bound)
        self._unfinished = recording  # which writing may begin
        ports.write(inputs, bound, recording)
        self._looked_at(ports, bound)
        self._run_recording(recording, timeout_ns)

    def fly(self, inputs: Inputs, stay: bool) -> "_Flight":
        """Start an inference with inputs and outputs of its own, behind those that were started before."""
        with self._use:
            if self._late:
                self._reap()
            lease = self._take() if stay else None
            ports = lease.ports if lease else self._free.pop() if self._free else Ports(self.plan, self.live)
            if self._poisons and not stay:
                self._poison(ports.buffers)
            bound = ports.bind(inputs)
            recording = self._commands(ports, bound)
            ports.write(inputs, bound, recording)
            self._looked_at(ports, bound)
            recording.submit()
        return _Flight(self, ports, lease, recording, inputs)

    def land(self, ports: Ports, lease: Lease | None) -> dict[str, Array] | dict[str, DeviceArray]:
        """The outputs of an inference that is done."""
        with self._use:
            if lease:
                return self._staying(lease)
            outputs = self._outputs(ports)
        if self._buffers:  # not closed
            self._free.append(ports)
        return outputs

    def drop(self, flight: "_Flight") -> None:
        """Keep an inference that may not be done, which nobody waits for any more, until it is."""
        self._late.append(flight)

    def _reap(self) -> None:
        """Take back the ports of late runs that are done; DeviceError where too many are not."""
        for _ in range(len(self._late)):
            flight = self._late.popleft()
            if not flight.arrives(0):
                self._late.append(flight)
            elif not flight.lease:
                self._free.append(flight.ports)
        if len(self._late) >= MOST_LATE:
            raise DeviceError(
                f"{self._where}: {len(self._late)} runs in flight, which timed out, are still at work; wait, or close "
                "the session"
            )

    def _take(self) -> Lease:
        """Ports for outputs that stay."""
        if self._known is None:
            self._known = {name: placed(array, self.live) for name, array in self.plan.known.items()}
        lease = self._pool.take()
        if self._poisons:
            self._poison(lease.ports.buffers)
        return lease

    def _staying(self, lease: Lease) -> dict[str, DeviceArray]:
        return lease.ports.arrays(lease) | (self._known or {})

    def _looked_at(self, ports: Ports, bound: Bound) -> None:
        """Note where the values of this run are that lie in ports, or in arrays, which may go."""
        self._last = ports
        self._bound = {}
        for name, (storage, offset) in bound.items():
            self._bound[name] = weakref.ref(storage), offset

    def _commands(self, ports: Ports, bound: Bound, stamp_every: int = 0) -> "_bridge.Recording":
        recording = ports.recorded(bound, stamp_every > 0)
        if recording is None:
            commands = self.plan.commands(ports.given(bound), ports.stay)
            recording = self._record(commands, ports.places(bound), stamp_every, ports)
            ports.keep(bound, stamp_every > 0, recording)
        return recording

    def profile(self, inputs: Inputs) -> tuple[dict[str, Array], Timing]:
        """One inference with a timestamp after every launch and copy; the first one also records the commands."""
        self._settle(FOREVER_NS)
        start = recorded = time.perf_counter_ns()
        with self._use:
            bound = self._ports.bind(inputs, imports=True)
            known = self._ports.recorded(bound, stamped=True)
            recording = self._commands(self._ports, bound, stamp_every=1)
            if known is None:
                recorded = time.perf_counter_ns()
            self._unfinished = recording
            self._ports.write(inputs, bound, recording)
            written = time.perf_counter_ns()
            self._looked_at(self._ports, bound)
            recording.submit()
            submitted = time.perf_counter_ns()
            written = min(written, int(submitted - recording.age_ns))  # the device began while the host wrote
            recording.wait(FOREVER_NS, self.live.polling_us)
            waited = time.perf_counter_ns()
            self._unfinished = None
            outputs = self._outputs(self._ports)
        end = time.perf_counter_ns()
        stamps_us = tuple(ns / 1e3 for ns in recording.timestamps_ns())
        commands = self.plan.commands(self._ports.given(bound))
        work = tuple(c for c in commands if not isinstance(c, Barrier))
        return outputs, Timing(work, stamps_us, start, recorded, written, submitted, waited, end)

    def repeat(self, repeats: int, together: int = 1) -> Repeats:
        """Record the plan's dispatches alone, without the copies of inputs and outputs, ``repeats`` times over,
        with a timestamp after every ``together`` of them, a divisor.

        They work on the inputs that the last run left on the device: for plans whose memory no later step reuses,
        such as those of one node.
        """
        launches = [c for c in self.plan.run if isinstance(c, Launch)]
        commands = tuple(with_barriers(launches * repeats))
        with self._use:
            recording = self._record(commands, self._home(), stamp_every=len(launches) * together)
        return self._repeats(recording, together)

    def _repeats(self, recording: "_bridge.Recording", together: int) -> Repeats:
        return Repeats(recording, together, lambda timeout_ns: self._submit(recording, timeout_ns))

    def launches_us(self) -> list[float]:
        """GPU microseconds of each launch of a run, in their order, each by itself: a timestamp waits for what came
        before it. As `repeat`, on the inputs that the last run left."""
        launches = [c for c in self.plan.run if isinstance(c, Launch)]
        with self._use:
            recording = self._record(tuple(with_barriers(launches)), self._home(), stamp_every=1)
        return self._repeats(recording, 1).run()[0]

    def peek(self, value: str) -> Array:
        """A value as the last run left it; only plans made with ``share_memory=False`` keep every value."""
        self._settle(FOREVER_NS)
        spec, region = self.plan.values[value]
        with self.live.using(f"{self._where}: reading {value!r}"):
            target = self.live.handle.buffer(region.nbytes, "download")
            recording = self.live.handle.recording()
            recording.barrier(["compute", "transfer"], ["transfer"])
            recording.copy(*self._place(region), target, 0, region.nbytes)
            recording.barrier(["transfer"], ["host"])
            recording.end()
            recording.run()
        return mapped(target, spec.dims, spec.dtype.numpy).copy()

    def close(self) -> None:
        """Release recordings and buffers; pipelines stay with the device.

        What the device still works on after a time-out or Ctrl-C is not waited for: it keeps its memory until done.
        """
        if self._unfinished is not None:
            self._unfinished.abandon()
            self._unfinished = None
        self._pool.close()
        for ports in (self._ports, self._last, *self._free, *(flight.ports for flight in self._late)):
            ports.close()
        self._free.clear()
        self._late.clear()
        self._buffers.clear()
        self._textures.clear()
        self._known = None

    def _load(self, constants: Mapping[str, Array], timed: bool) -> None:
        if not self.plan.load:
            return
        if "load" in self._buffers:  # what packs no constant, such as a table without zero points, needs none
            view = np.frombuffer(self._buffers["load"].view, np.uint8)
            for name, region in self.plan.stage.items():
                data = staged_bytes(constants[name])
                view[region.offset : region.offset + len(data)] = np.frombuffer(data, np.uint8)
            del view
        recording = self._record(self.plan.load, self._home(), stamp_every=int(timed))
        recording.run()
        if timed:
            spans = spans_us(recording)
            work = [c for c in self.plan.load if not isinstance(c, Barrier)]
            self.prepack_us = sum(us for c, us in zip(work, spans, strict=True) if isinstance(c, Launch))
        del recording
        self._buffers.pop("load", None)

    def _poison(
        self, buffers: "Mapping[str, _bridge.Buffer]", textures: "Mapping[str, _bridge.Image] | None" = None
    ) -> None:
        """Fill device memory with NaN bits, so that whatever a shader forgets to write shows."""
        recording = self.live.handle.recording()
        for texture in (textures or {}).values():
            recording.clear(texture, math.nan)
        for buffer in buffers.values():
            if buffer.kind in ("device", "input", "output", "streamed"):
                recording.fill(buffer, 0, buffer.nbytes, 0x7FC00001)
        recording.end()
        recording.run()

    def _home(self) -> "Places":
        return {name: (buffer, 0) for name, buffer in self._ports.buffers.items()}

    def _place(self, region: Region) -> "tuple[_bridge.Buffer, int]":
        """Where a region of the last run is; DeviceError for an array that is gone."""
        held = self._bound.get(region.buffer)
        if held is None:
            return {**self._buffers, **self._last.buffers}[region.buffer], region.offset
        storage = held[0]()
        if storage is None:
            raise DeviceError(f"{self._where}: the array that held the value is gone; keep it, or run again")
        return storage.buffer, held[1] + region.offset

    def _record(
        self, commands: "Steps", ports: "Places", stamp_every: int = 0, with_ports: Ports | None = None
    ) -> "_bridge.Recording":
        """Commands for replay on these ports, as `record` has them; ``with_ports``, behind what comes into those, and
        before what leaves them."""
        places = {name: (buffer, 0) for name, buffer in self._buffers.items()} | dict(ports)
        where = Where(self.live, places, self._textures, self.compiled)
        uploads, downloads = (with_ports.uploads, with_ports.downloads) if with_ports else ({}, [])
        return record(commands, where, stamp_every, uploads, downloads)

    def _settle(self, timeout_ns: int) -> None:
        """`_await_unfinished` from without."""
        with self._use:
            self._await_unfinished(timeout_ns)

    def _await_unfinished(self, timeout_ns: int) -> None:
        """Wait until the device is done with a run that timed out: it may still read what is written next."""
        if self._unfinished is None:
            return
        if self._unfinished.started and not self._unfinished.wait(timeout_ns):
            raise DeviceError(
                f"{self._where}: the run before, which timed out, is still at work; wait, or close the session"
            )
        self._unfinished = None

    def _submit(self, recording: "_bridge.Recording", timeout_ns: int) -> None:
        with self._use:
            self._run_recording(recording, timeout_ns)

    def _run_recording(self, recording: "_bridge.Recording", timeout_ns: int) -> None:
        self._unfinished = recording
        recording.run(timeout_ns, self.live.polling_us)
        self._unfinished = None


class _Flight:
    """An inference that the device has: `Executable.fly` starts one."""

    def __init__(
        self, executable: Executable, ports: Ports, lease: Lease | None, recording: "_bridge.Recording", inputs: Inputs
    ) -> None:
        self._executable, self.ports, self.lease, self._recording = executable, ports, lease, recording
        self._inputs = inputs  # arrays among them must stay until it is done

    def arrives(self, timeout_ns: int) -> bool:
        """Wait for its end, so long at most; whether it ended."""
        with self._executable._use:
            return self._recording.wait(timeout_ns, self._executable.live.polling_us)

    def finish(self) -> dict[str, Array] | dict[str, DeviceArray]:
        """Its outputs, once it has ended."""
        return self._executable.land(self.ports, self.lease)

    def give_up(self) -> None:
        """Let go of it; the device may still be at work on it."""
        self._executable.drop(self)
