"""The live side: devices through Kompute and the bridge, opened once for the process, and their pipelines.

Kompute is reached by way of the bridge alone, whose managers, sequences and operations are real kp ones.
"""

import atexit
import contextlib
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from vkconv.backend.errors import device_errors, import_bridge, raise_as_device_error
from vkconv.compiler import pipeline_spirv
from vkconv.core import DeviceError, UsageError, cache_dir, cache_write, did_you_mean, is_count
from vkconv.device import Device, target_of
from vkconv.files import read_cache
from vkconv.plan.commands import Launch, PipelineKey
from vkconv.plan.timing import Span, spanning
from vkconv.plan.transfers import COPYING, POLLING_US
from vkconv.policy import Policy

if TYPE_CHECKING:
    from vkconv.backend import _bridge

# Best first: what "auto" takes when several devices are there.
_KIND_RANK = ("discrete", "integrated", "virtual", "other", "cpu")


# The process that first used Vulkan: what it opened is of no use to a child that it forks.
_process: list[int] = []
# Whether this is such a child: asked at every run, where getpid() would take the kernel.
_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = bool(_process)


os.register_at_fork(after_in_child=_note_fork)


def check_process() -> None:
    """DeviceError in a forked child: drivers keep threads and locks that a fork does not copy, and calls would hang."""
    if not _process:
        _process.append(os.getpid())
    elif _is_forked:
        raise DeviceError(
            f"this process was forked from process {_process[0]}, which had used Vulkan before: start it with "
            "multiprocessing's spawn or forkserver method, or use vkconv only after the fork"
        )


def check_fork() -> None:
    """`check_process`, where this is a child of whatever process."""
    if _is_forked:
        check_process()


_own_locks: "weakref.WeakSet[threading.RLock]" = weakref.WeakSet()


def own_lock() -> threading.RLock:
    """A lock that is free in a forked child where another thread held it, which did not come along. It stands around
    every run, so that it is one of Python's own, with nothing around it."""
    lock = threading.RLock()
    _own_locks.add(lock)
    return lock


def _free_locks() -> None:
    for lock in _own_locks:
        if lock.acquire(blocking=False):  # free, or of the thread that forked
            lock.release()
        else:
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as Python's own modules do


os.register_at_fork(after_in_child=_free_locks)


def list_devices() -> list[Device]:
    """Facts of every Vulkan device of this machine, in the loader's order (the index selects); [] for none.

    Raises DeviceError when kp or the bridge cannot be imported, saying what to run, and in a forked child.
    """
    check_process()
    bridge = import_bridge()
    with device_errors("listing devices"):
        return [Device(facts) for facts in bridge.devices()]


def checked_selector(device: object) -> None:
    """UsageError for what selects no device on any machine."""
    if isinstance(device, bool) or not isinstance(device, str | int | np.integer):
        raise UsageError(f"device is {device!r}; it is an index, a name or a part of one, or 'auto'")


def select_device(selector: str | int = "auto") -> tuple[int, Device]:
    """The device a selector means: ``auto`` (discrete before integrated before CPU), an index, part of a name, or the
    shipped device file that describes it (``lavapipe``).

    Raises DeviceError when there is no device at all (with what to install) and UsageError for a selector that
    fits none or several, listing what is there, or that is no selector.
    """
    checked_selector(selector)
    devices = list_devices()
    if not devices:
        raise DeviceError(
            "no Vulkan device found: install a driver (Debian: apt-get install libvulkan1 mesa-vulkan-drivers "
            "for the CPU driver lavapipe), or point VK_DRIVER_FILES at its ICD file; vkconv doctor says more"
        )
    listing = ", ".join(f"device {i}: {d.name}" for i, d in enumerate(devices))
    if selector == "auto":
        best = min(range(len(devices)), key=lambda i: (_KIND_RANK.index(devices[i].kind), i))
        return best, devices[best]
    if not isinstance(selector, str) or is_count(selector):
        index = int(selector)
        if not 0 <= index < len(devices):
            raise UsageError(f"there is no device {index}; this machine has {listing}")
        return index, devices[index]
    wanted = selector.lower()
    found = [i for i, d in enumerate(devices) if wanted in d.name.lower()]
    found = found or [i for i, d in enumerate(devices) if wanted == target_of(d).name]
    if len(found) != 1:
        problem = "fits several devices" if found else "fits no device here"
        hint = did_you_mean(selector, [d.name for d in devices])
        raise UsageError(f"device {selector!r} {problem}{hint}; this machine has {listing}")
    return found[0], devices[found[0]]


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_COMPILE_THREADS = Policy("pipelines.compile_threads", int)
# Compiled code takes memory, 1 to 3 MB each on lavapipe, and long runs over many calls compile thousands.
MOST_PIPELINES = 1024
_MOST_CACHE_BYTES = 256 << 20


class LiveDevice:
    """An open device with its pipelines; `open_device` shares one among all sessions of the process.

    It stays open when the last session closes: opening a device and compiling pipelines is what takes long.
    """

    def __init__(self, index: int, facts: Device) -> None:
        bridge = import_bridge()
        self.index = index
        self.device = facts
        self._cache_path = cache_dir() / "pipelines" / f"{facts.key}.bin"
        with device_errors(f"opening {facts.name}"):
            self.handle = bridge.Device(index, pipeline_cache=read_cache(self._cache_path, _MOST_CACHE_BYTES))
        self._pipelines: OrderedDict[PipelineKey, Future[_bridge.Pipeline]] = OrderedDict()
        self._pipelines_lock = threading.Lock()
        self.compile_threads = min(_COMPILE_THREADS.of(facts), _cores())
        self._compiling = threading.Semaphore(self.compile_threads)
        copying = COPYING.of(facts)
        self.polling_us = POLLING_US.of(facts)
        self.copying = msgspec.structs.replace(copying, threads=min(copying.threads, _cores()))
        self._unsaved = False
        self._keeps = True
        self.lost = False

    def using(self, where: str) -> "Use":
        """Around every use of the device: what Vulkan refuses becomes a DeviceError that names ``where``, and a
        device that was lost is opened anew by the next session."""
        return Use(self, where)

    def pipeline(self, launch: Launch, spans: list[Span]) -> "_bridge.Pipeline":
        """The pipeline of a launch; made once for each shader, specialization, binding count, push size, subgroup size
        and words that are fixed, and again only after `MOST_PIPELINES` others. Commands that were recorded with one
        keep it. Compiling appends to ``spans``; what another thread compiles is waited for."""
        key = launch.pipeline
        while True:
            with self._pipelines_lock:
                known = self._pipelines.get(key)
                made = self._pipelines.setdefault(key, known or Future())
                self._pipelines.move_to_end(key)
                if len(self._pipelines) > MOST_PIPELINES:
                    self._pipelines.popitem(last=False)
            if known is None:
                self._compile(launch, made, spans)
            with contextlib.suppress(CancelledError):  # the thread that compiled it failed, and has its own error
                return made.result()

    def _compile(self, launch: Launch, made: "Future[_bridge.Pipeline]", spans: list[Span]) -> None:
        name = f"compile {launch.shader.key}"
        try:
            with (
                self._compiling,
                spanning(spans, name, node=launch.node, spec=list(launch.spec_words)),
                self.using(f"{launch.node}: compiling {launch.shader.key} on {self.device.name}"),
            ):
                interface, push = launch.shader.interface, len(launch.push)
                code = pipeline_spirv(launch.shader, launch.fixed)
                pipeline = self.handle.pipeline(code, interface.kinds, push, launch.spec_words, launch.subgroup_size)
        except BaseException:
            with self._pipelines_lock:
                self._pipelines.pop(launch.pipeline, None)
            made.cancel()
            raise
        made.set_result(pipeline)
        self._unsaved = True

    def compile_together(self, launches: Iterable[Launch], spans: list[Span]) -> dict[PipelineKey, float]:
        """Compile the pipelines of these launches that are not there yet, in several threads where that pays on the
        device: one of ``spans``, and microseconds of each. What fails is left to `pipeline`, which says why."""
        if self.compile_threads == 1:
            return {}
        with self._pipelines_lock:
            new = {key: one for one in launches if (key := one.pipeline) not in self._pipelines}
        todo = dict(itertools.islice(new.items(), MOST_PIPELINES))
        if len(todo) < 2:
            return {}
        each: dict[PipelineKey, list[Span]] = {key: [] for key in todo}
        kernels = sorted({launch.shader.key for launch in todo.values()})
        pool = ThreadPoolExecutor(min(self.compile_threads, len(todo)), thread_name_prefix="vkconv-compile")
        with spanning(spans, f"compile {len(todo)} pipelines", kernels=kernels):
            try:
                wait([pool.submit(self.pipeline, launch, each[key]) for key, launch in todo.items()])
            finally:
                pool.shutdown(cancel_futures=True)
        return {key: sum(span.us for span in own) for key, own in each.items()}

    @contextlib.contextmanager
    def keeping_nothing(self) -> Iterator[None]:
        """Inside, no pipelines are kept for other processes: where thousands of calls are compiled once, each session
        that closed would write a file of all of them, which later ones would read."""
        unsaved, self._keeps = self._unsaved, False
        try:
            yield
        finally:
            self._unsaved, self._keeps = unsaved, True

    def save_pipeline_cache(self) -> None:
        """Keep new pipelines for the next process, beside those that others have saved since this one started.

        A cache is never worth an error: failures are ignored.
        """
        if self._unsaved and self._keeps and _process == [os.getpid()]:
            self._unsaved = False
            with contextlib.suppress(OSError, RuntimeError), cache_write(self._cache_path) as file:
                file.write(self.handle.merge_pipeline_cache(read_cache(self._cache_path, _MOST_CACHE_BYTES)))


class Use:
    """A use of a device: `LiveDevice.using` makes one. It stands around every run, so that it is no generator, which
    would take some microseconds more."""

    __slots__ = ("_live", "_where")

    def __init__(self, live: LiveDevice, where: str) -> None:
        self._live, self._where = live, where

    def __enter__(self) -> None:
        if _is_forked:
            check_process()
        if self._live.lost:
            raise DeviceError(f"{self._where}: the device was lost earlier; close the session and load the model again")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            if isinstance(error, import_bridge().DeviceLostError):
                self._live.lost = True
            raise_as_device_error(error, self._where)


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
