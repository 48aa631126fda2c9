"""The live side: devices through Kompute and the bridge, and executables that run plans on them.

Kompute is reached by way of the bridge alone, whose managers, sequences and operations are real kp ones.
"""

import atexit
import contextlib
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkconv.backend.errors import device_errors, import_bridge
from vkconv.compiler import spirv
from vkconv.core import Array, DeviceError, UsageError, atomic_write, cache_dir, did_you_mean, is_count
from vkconv.device import Device
from vkconv.plan.commands import Barrier, Command, Copy, Launch, Region, with_barriers
from vkconv.plan.lowering import staged_bytes
from vkconv.plan.model import Plan
from vkconv.plan.timing import Span, Timing, spanning
from vkconv.plan.weights import WeightKey

if TYPE_CHECKING:
    from vkconv.backend import _bridge

# Best first: what "auto" takes when several devices are there.
_KIND_RANK = ("discrete", "integrated", "virtual", "other", "cpu")


# The process that first used Vulkan: what it opened is of no use to a child that it forks.
_process: list[int] = []


def _check_process() -> None:
    """DeviceError in a forked child: drivers keep threads and locks that a fork does not copy, and calls would hang."""
    if not _process:
        _process.append(os.getpid())
    elif _process[0] != os.getpid():
        raise DeviceError(
            f"this process was forked from process {_process[0]}, which had used Vulkan before: start it with "
            "multiprocessing's spawn or forkserver method, or use vkconv only after the fork"
        )


def list_devices() -> list[Device]:
    """Facts of every Vulkan device of this machine, in the loader's order (the index selects); [] for none.

    Raises DeviceError when kp or the bridge cannot be imported, saying what to run, and in a forked child.
    """
    _check_process()
    bridge = import_bridge()
    with device_errors("listing devices"):
        return [Device(facts) for facts in bridge.devices()]


def select_device(selector: str | int = "auto") -> tuple[int, Device]:
    """The device a selector means: ``auto`` (discrete before integrated before CPU), an index, or part of a name.

    Raises DeviceError when there is no device at all (with what to install) and UsageError for a selector that
    fits none or several, listing what is there.
    """
    devices = list_devices()
    if not devices:
        raise DeviceError(
            "no Vulkan device found: install a driver (Debian: apt-get install libvulkan1 mesa-vulkan-drivers "
            "for the CPU driver lavapipe), or point VK_DRIVER_FILES at its ICD file; vkconv doctor says more"
        )
    listing = ", ".join(f"{i}: {d.name}" for i, d in enumerate(devices))
    if selector == "auto":
        best = min(range(len(devices)), key=lambda i: (_KIND_RANK.index(devices[i].kind), i))
        return best, devices[best]
    if is_count(str(selector)):
        index = int(selector)
        if index >= len(devices):
            raise UsageError(f"there is no device {index}; this machine has {listing}")
        return index, devices[index]
    found = [i for i, d in enumerate(devices) if str(selector).lower() in d.name.lower()]
    if len(found) != 1:
        problem = "fits several devices" if found else "fits no device here"
        hint = did_you_mean(str(selector), [d.name for d in devices])
        raise UsageError(f"device {selector!r} {problem}{hint}; this machine has {listing}")
    return found[0], devices[found[0]]


# Compiled code takes memory, 1 to 3 MB each on lavapipe, and long runs over many calls compile thousands.
MOST_PIPELINES = 1024


class LiveDevice:
    """An open device with its pipelines; `open_device` shares one among all sessions of the process.

    It stays open when the last session closes: opening a device and compiling pipelines is what takes long.
    """

    def __init__(self, index: int, facts: Device) -> None:
        bridge = import_bridge()
        self.device = facts
        self._cache_path = cache_dir() / "pipelines" / f"{facts.key}.bin"
        with device_errors(f"opening {facts.name}"):
            self.handle = bridge.Device(index, pipeline_cache=_read_cache(self._cache_path))
        self._pipelines: OrderedDict[tuple[str, tuple[int, ...], int, int], _bridge.Pipeline] = OrderedDict()
        self._pipelines_lock = threading.Lock()
        self._unsaved = False
        self.compiled: list[Span] = []
        self.lost = False

    @property
    def compile_us(self) -> float:
        """What compiling took since the device was opened."""
        return sum(span.us for span in self.compiled)

    @contextlib.contextmanager
    def using(self, where: str) -> Iterator[None]:
        """Around every use of the device: what Vulkan refuses becomes a DeviceError that names ``where``, and a
        device that was lost is opened anew by the next session."""
        _check_process()
        if self.lost:
            raise DeviceError(f"{where}: the device was lost earlier; close the session and load the model again")
        with device_errors(where):
            try:
                yield
            except import_bridge().DeviceLostError:
                self.lost = True
                raise

    def pipeline(self, launch: Launch) -> "_bridge.Pipeline":
        """The pipeline of a launch; made once for each shader, specialization, binding count and push size, and again
        only after `MOST_PIPELINES` others. Commands that were recorded with one keep it."""
        key = (launch.shader.key, launch.spec_words, len(launch.binds), len(launch.push))
        with self._pipelines_lock:
            if key not in self._pipelines:
                name = f"compile {launch.shader.key}"
                with (
                    spanning(self.compiled, name, node=launch.node, spec=list(launch.spec_words)),
                    self.using(f"{launch.node}: compiling {launch.shader.key} on {self.device.name}"),
                ):
                    self._pipelines[key] = self.handle.pipeline(
                        spirv(launch.shader), len(launch.binds), len(launch.push), launch.spec_words
                    )
                self._unsaved = True
                if len(self._pipelines) > MOST_PIPELINES:
                    self._pipelines.popitem(last=False)
            self._pipelines.move_to_end(key)
            return self._pipelines[key]

    def save_pipeline_cache(self) -> None:
        """Keep new pipelines for the next process, beside those that others have saved since this one started.

        A cache is never worth an error: failures are ignored.
        """
        if self._unsaved and _process == [os.getpid()]:
            self._unsaved = False
            with contextlib.suppress(OSError, RuntimeError), atomic_write(self._cache_path) as file:
                file.write(self.handle.merge_pipeline_cache(_read_cache(self._cache_path)))


_open: dict[int, LiveDevice] = {}
_open_lock = threading.Lock()


def open_device(selector: str | int = "auto") -> LiveDevice:
    """The open device for a selector, opened at its first use in this process, and again after it was lost."""
    index, facts = select_device(selector)
    with _open_lock:
        live = _open.get(index)
        if live is None or live.lost:
            live = _open[index] = LiveDevice(index, facts)
        return live


@atexit.register
def _save_pipeline_caches() -> None:
    """Sessions save when they close; this is for those that a program leaves open."""
    for live in _open.values():
        live.save_pipeline_cache()


def _read_cache(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class Weights:
    """Constants on the device that the plans of one session share: where each lies, and the buffers they lie in."""

    def __init__(self) -> None:
        self.regions: dict[WeightKey, Region] = {}
        self.buffers: dict[str, _bridge.Buffer] = {}

    def add(self, plan: Plan, buffers: "Mapping[str, _bridge.Buffer]") -> None:
        """Take over what a plan has loaded."""
        self.regions |= plan.weights
        self.buffers |= {region.buffer: buffers[region.buffer] for region in plan.weights.values()}


class Executable:
    """A plan on a device: buffers allocated, constants loaded and prepacked, commands recorded for replay.

    ``weights`` holds what earlier plans of the session loaded, and takes over what this one loads.
    ``spans`` says what that took on the host; a pipeline that was there already took nothing.
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
        self.prepack_us = 0.0  # GPU time of prepacking; stays 0 without timed_load
        weights = weights or Weights()
        self._buffers: dict[str, _bridge.Buffer] = dict(weights.buffers)
        self._where = f"{plan.graph} on {live.device.name}"
        compiled_before = len(live.compiled)
        with live.using(self._where):
            with spanning(self.spans, "allocate"):
                for name, (nbytes, kind) in plan.buffers.items():
                    self._buffers[name] = live.handle.buffer(nbytes, kind)
            if poison:
                self._poison()
            with spanning(self.spans, "load weights"):
                self._load(constants, timed_load)
                weights.add(plan, self._buffers)
            with spanning(self.spans, "record"):
                self._run = self._record(plan.run)
        self.spans += live.compiled[compiled_before:]
        self._profile: _bridge.Recording | None = None
        self._latest: _bridge.Recording | None = None

    def run(self, inputs: Mapping[str, Array], timeout_ns: int | None = None) -> dict[str, Array]:
        """One inference: ``inputs`` are checked arrays by name; returns the outputs as new arrays.

        A run after one that timed out first waits for that one, as long as it may itself take.
        """
        self._settle(timeout_ns)
        self._write(inputs)
        self._submit(self._run, timeout_ns)
        return self._read()

    def profile(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Timing]:
        """One inference with a timestamp after every launch and copy; the first one also records the commands."""
        self._settle(None)
        start = recorded = time.perf_counter_ns()
        if self._profile is None:
            with self.live.using(self._where):
                self._profile = self._record(self.plan.run, stamp_every=1)
            recorded = time.perf_counter_ns()
        self._write(inputs)
        written = time.perf_counter_ns()
        self._latest = self._profile
        with self.live.using(self._where):
            self._profile.submit()
            submitted = time.perf_counter_ns()
            self._profile.wait()
        waited = time.perf_counter_ns()
        outputs = self._read()
        end = time.perf_counter_ns()
        stamps_us = tuple(ns / 1e3 for ns in self._profile.timestamps_ns())
        work = tuple(c for c in self.plan.run if not isinstance(c, Barrier))
        return outputs, Timing(work, stamps_us, start, recorded, written, submitted, waited, end)

    def repeat(self, repeats: int) -> "Repeats":
        """Record the plan's dispatches alone, without the copies of inputs and outputs, ``repeats`` times over.

        They work on the inputs that the last run left on the device: for plans whose memory no later step reuses,
        such as those of one node.
        """
        launches = [c for c in self.plan.run if isinstance(c, Launch)]
        commands = tuple(with_barriers(launches * repeats))
        with self.live.using(self._where):
            return Repeats(self, self._record(commands, stamp_every=len(launches)))

    def peek(self, value: str) -> Array:
        """A value as the last run left it; only plans made with ``share_memory=False`` keep every value."""
        self._settle(None)
        spec, region = self.plan.values[value]
        with self.live.using(f"{self._where}: reading {value!r}"):
            target = self.live.handle.buffer(region.nbytes, "download")
            recording = self.live.handle.recording()
            recording.barrier(["compute", "transfer"], ["transfer"])
            recording.copy(self._buffers[region.buffer], region.offset, target, 0, region.nbytes)
            recording.barrier(["transfer"], ["host"])
            recording.end()
            recording.run()
        return _array(target, 0, spec)

    def close(self) -> None:
        """Release recordings and buffers; pipelines stay with the device.

        What the device still works on after a time-out or Ctrl-C is not waited for: it keeps its memory until done.
        """
        for recording in (self._run, self._profile, self._latest):
            if recording is not None:
                recording.abandon()
        self._run = self._profile = self._latest = None  # type: ignore[assignment]
        self._buffers.clear()

    def _load(self, constants: Mapping[str, Array], timed: bool) -> None:
        if not self.plan.load:
            return
        view = np.frombuffer(self._buffers["load"].view, np.uint8)
        for name, region in self.plan.stage.items():
            data = staged_bytes(constants[name])
            view[region.offset : region.offset + len(data)] = np.frombuffer(data, np.uint8)
        recording = self._record(self.plan.load, stamp_every=int(timed))
        del view
        recording.run()
        if timed:
            spans = _spans_us(recording)
            work = [c for c in self.plan.load if not isinstance(c, Barrier)]
            self.prepack_us = sum(us for c, us in zip(work, spans, strict=True) if isinstance(c, Launch))
        del recording, self._buffers["load"]

    def _poison(self) -> None:
        """Fill device memory with NaN bits, so that whatever a shader forgets to write shows."""
        recording = self.live.handle.recording()
        for name, (nbytes, kind) in self.plan.buffers.items():
            if kind == "device":
                recording.fill(self._buffers[name], 0, nbytes, 0x7FC00001)
        recording.end()
        recording.run()

    def _record(self, commands: Sequence[Command | Barrier], stamp_every: int = 0) -> "_bridge.Recording":
        """Commands for replay; with ``stamp_every``, a timestamp at the start and after every so many commands."""
        work = sum(not isinstance(c, Barrier) for c in commands)
        recording: _bridge.Recording = self.live.handle.recording(work // stamp_every + 1 if stamp_every else 0)
        # Whatever ran before on these buffers, prepacking or an earlier replay, comes first.
        recording.barrier(["compute", "transfer"], ["compute", "transfer"])
        if stamp_every:
            recording.timestamp()
        done = 0
        for command in commands:
            if isinstance(command, Barrier):
                recording.barrier(["compute", "transfer"], ["compute", "transfer"])
                continue
            if isinstance(command, Copy):
                source, target = command.source, command.target
                recording.copy(
                    self._buffers[source.buffer],
                    source.offset,
                    self._buffers[target.buffer],
                    target.offset,
                    target.nbytes,
                )
            else:
                binds = [(self._buffers[r.buffer], r.offset, r.nbytes) for r, _ in command.binds]
                recording.dispatch(self.live.pipeline(command), binds, command.push, command.groups)
            done += 1
            if stamp_every and done % stamp_every == 0:
                recording.timestamp()
        recording.barrier(["compute", "transfer"], ["host"])
        recording.end()
        return recording

    def _settle(self, timeout_ns: int | None) -> None:
        """Wait until the device is done with the latest submission: it may still read what `_write` writes."""
        _check_process()
        if self._latest is None:
            return
        with self.live.using(self._where):
            done = self._latest.wait() if timeout_ns is None else self._latest.wait(timeout_ns)
        if not done:
            raise DeviceError(
                f"{self._where}: the run before, which timed out, is still at work; wait, or close the session"
            )

    def _submit(self, recording: "_bridge.Recording", timeout_ns: int | None) -> None:
        self._latest = recording
        with self.live.using(self._where):
            if timeout_ns is None:
                recording.run()
            else:
                recording.run(timeout_ns=timeout_ns)

    def _write(self, inputs: Mapping[str, Array]) -> None:
        for name, (spec, region) in self.plan.inputs.items():
            if spec.size:
                target = np.frombuffer(self._buffers["upload"].view, np.uint8)
                end = region.offset + spec.nbytes
                target[region.offset : end].view(spec.dtype.numpy).reshape(spec.dims)[...] = inputs[name]

    def _read(self) -> dict[str, Array]:
        outputs = {
            name: _array(self._buffers["download"], region.offset, spec)
            if spec.size
            else np.empty(spec.dims, spec.dtype.numpy)
            for name, (spec, region) in self.plan.outputs.items()
        }
        return outputs | {name: array.copy() for name, array in self.plan.known.items()}


class Repeats:
    """The dispatches of a plan recorded several times over, to be timed: `Executable.repeat` makes one."""

    def __init__(self, executable: Executable, recording: "_bridge.Recording") -> None:
        self._executable = executable
        self._recording = recording

    def run(self, timeout_ns: int | None = None) -> tuple[list[float], float]:
        """GPU microseconds of each repeat, and the wall microseconds of submitting and awaiting them all.

        A repeat lasts from the end of the one before to its own end, so that its barriers are in it and all
        together are the time the device was busy.
        """
        start = time.perf_counter_ns()
        self._executable._submit(self._recording, timeout_ns)
        wall_us = (time.perf_counter_ns() - start) / 1e3
        return _spans_us(self._recording), wall_us


def _spans_us(recording: "_bridge.Recording") -> list[float]:
    """Microseconds between the timestamps of a recording that has run."""
    return [(after - before) / 1e3 for before, after in itertools.pairwise(recording.timestamps_ns())]


def _array(buffer: "_bridge.Buffer", offset: int, spec: Any) -> Array:
    view = np.frombuffer(buffer.view, np.uint8)
    array: Array = view[offset : offset + spec.nbytes].view(spec.dtype.numpy).reshape(spec.dims).copy()
    return array
