"""Ports: the buffers that a run of a plan has of its own, where its inputs come in and its outputs go out, and the
commands recorded for them."""

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vkconv.backend.arrays import DeviceArray
from vkconv.backend.runtime import LiveDevice
from vkconv.backend.storage import Storage
from vkconv.core import Array
from vkconv.graph.ir import TensorSpec
from vkconv.plan.model import Plan
from vkconv.plan.narrowing import Narrowed
from vkconv.plan.regions import WORD_BYTES

if TYPE_CHECKING:
    from vkconv.backend import _bridge
    from vkconv.backend.recorded import Places

Inputs = Mapping[str, Array | DeviceArray]
# Arrays in place of the ports of inputs, by the buffer's name: what they lie in, and their first byte there.
Bound = Mapping[str, tuple[Storage, int]]
# What commands were recorded for: with timestamps or not, and the arrays in place of ports.
_Key = tuple[bool, tuple[tuple[str, int, int], ...]]
# Commands kept for arrays in place of inputs; those used least recently go first.
MOST_RECORDINGS = 8


class Ports:
    """Buffers for the inputs and outputs of one run at a time, allocated once, and recorded commands that use them.

    With ``stay``, outputs are for the device alone to read, unless host and device share memory. The caller keeps the
    device from using the buffers while the host does: it waits before `write` and before `read`.
    """

    def __init__(self, plan: Plan, live: LiveDevice, stay: bool = False) -> None:
        self._plan, self._live = plan, live
        self.stay = stay
        self.buffers: dict[str, _bridge.Buffer] = {}
        staged = [plan.port(name).buffer for name in plan.inputs if name not in plan.caches]
        for name in dict.fromkeys(staged):
            self.buffers[name] = live.handle.buffer(*plan.buffers[name])
        for name in plan.outputs:
            self._make_output(name)
        # Of outputs that stay.
        self._storages = {
            region.buffer: Storage(self.buffers[region.buffer], live)
            for _, region in (plan.outputs.values() if stay else ())
        }
        # The one that kernels wait for in pieces comes first.
        self._early = plan.early.x if plan.early else None
        self._inputs = {
            name: self._input(name)
            for name in sorted(plan.inputs, key=lambda name: name != self._early)
            if plan.inputs[name][0].size and name not in plan.caches
        }
        self.uploads = {name: given.upload for name, given in self._inputs.items() if given.upload}
        self._downloads: dict[str, _bridge.Download] = {}
        self._outputs = {} if stay else {name: self._output(name) for name in plan.outputs}
        self.downloads = [*self._downloads.values()]
        alignment = max(WORD_BYTES, plan.device.limit("minStorageBufferOffsetAlignment"))
        self._alignment = alignment if plan.transfers.ports else 1
        # The inputs that may be on the device already, and the buffers that arrays stand in for.
        self._bindable = [(name, plan.inputs[name][1].buffer) for name in (*plan.caches, *self._inputs)]
        self._imported = frozenset(plan.imported)
        self._recordings: dict[_Key, _bridge.Recording] = {}

    def _input(self, name: str) -> "_Input":
        """Where an input of the plan comes in."""
        plan, usual = self._plan, self._live.copying.chunk_bytes
        spec, region = plan.inputs[name]
        chunk_bytes = plan.early.chunk_bytes(usual) if plan.early and name == plan.early.x else usual
        port = self.buffers[plan.port(name).buffer]
        return _Input(self._live, port, spec, region.buffer, plan.narrowed.get(name), chunk_bytes)

    def _make_output(self, name: str) -> None:
        """The buffers of an output: where it leaves, and, if it is to stay in 32 bits, where a cast puts it."""
        plan, port = self._plan, self._plan.out_port(name)
        nbytes, kind = plan.buffers[port.buffer]
        if self.stay and (kind != "output" or plan.transfers.far_outputs):
            kind = "device"
        widened = plan.widened.get(name) if self.stay else None
        places = [] if widened and widened.download else [(port.buffer, nbytes)]
        if widened:
            region = plan.outputs[name][1]
            places.append((region.buffer, region.nbytes))
        for buffer, size in places:
            if buffer not in self.buffers:
                self.buffers[buffer] = self._live.handle.buffer(size, kind)

    def _output(self, name: str) -> "_Output":
        """How the host gets an output of the plan."""
        plan, spec, region = self._plan, self._plan.outputs[name][0], self._plan.out_port(name)
        widened = plan.widened.get(name)
        leaving, port = widened.spec if widened else spec, self.buffers[region.buffer]
        if port.kind == "streamed" and region.buffer not in self._downloads:
            self._downloads[region.buffer] = self._download(port, leaving.nbytes)
        return _Output(
            port,
            self._downloads.get(region.buffer),
            spec.dims,
            spec.dtype.numpy,
            self._live.copying.threads_for(spec.nbytes),
            str(leaving.dtype) if widened else "",
        )

    def _download(self, port: "_bridge.Buffer", nbytes: int) -> "_bridge.Download":
        """The way from a port to staging."""
        staging = self._live.handle.buffer(port.nbytes, "download")
        made: _bridge.Download = self._live.handle.download(port, staging, nbytes, self._live.copying.chunk_bytes)
        return made

    def bind(self, inputs: Inputs, imports: bool = False) -> Bound:
        """The inputs that are on the device already, in place of their ports, caches among them; not views that begin
        where no binding may, which `write` copies. With ``imports`` also arrays of the host whose pages the device
        can use, where the plan has that: until the run has ended, nobody may write to them."""
        bound = {}
        for name, port in self._bindable:
            given = inputs[name]
            if isinstance(given, DeviceArray):
                if given.offset % self._alignment == 0:
                    bound[port] = given.storage, given.offset
            elif imports and name in self._imported:
                place = self._import(given, self._inputs[name].dtype)
                if place:
                    bound[port] = place
        return bound

    def _import(self, given: Array, dtype: np.dtype[np.generic]) -> tuple[Storage, int] | None:
        """The pages of an array as the device sees them, and the array's first byte there; None where they cannot stand
        for a port."""
        if given.dtype != dtype or not given.flags.c_contiguous or given.ctypes.data % self._alignment:
            return None
        pages = self._live.handle.imported(given)
        return (Storage(pages[0], self._live), pages[1]) if pages else None

    def given(self, bound: Bound) -> frozenset[str]:
        """The inputs for which arrays are bound."""
        return frozenset(name for name, port in self._inputs.items() if port.name in bound)

    def write(self, inputs: Inputs, bound: Bound, recording: "_bridge.Recording") -> None:
        """Put the other inputs where the device reads them. Of the recording that reads them, parts are submitted as
        their images come."""
        for name, port in self._inputs.items():
            if port.name not in bound:
                port.write(inputs[name], recording if name == self._early else None)

    def read(self) -> dict[str, Array]:
        """The outputs as new arrays of the host."""
        return {name: output.read(self._live.polling_us) for name, output in self._outputs.items()}

    def arrays(self, keep: object) -> dict[str, DeviceArray]:
        """The outputs as arrays of the device, which hold on to ``keep``."""
        for storage in self._storages.values():
            if storage.is_read_fast:
                storage.buffer.invalidate()
        return {
            name: DeviceArray(self._storages[region.buffer], spec.dims, spec.dtype, region.offset, keep)
            for name, (spec, region) in self._plan.outputs.items()
        }

    def free(self) -> None:
        """No array is left in them."""
        for storage in self._storages.values():
            storage.free()

    def recorded(self, bound: Bound, stamped: bool) -> "_bridge.Recording | None":
        """The commands with these arrays in place of ports, if they were recorded already; now those used last."""
        key = _key(bound, stamped)
        recording = self._recordings.pop(key, None)
        if recording is not None:
            self._recordings[key] = recording
        return recording

    def places(self, bound: Bound) -> "Places":
        """A buffer and a first byte for each port, of these arrays where they stand for it."""
        own = {name: (buffer, 0) for name, buffer in self.buffers.items()}
        return own | {port: (storage.buffer, at) for port, (storage, at) in bound.items()}

    def keep(self, bound: Bound, stamped: bool, recording: "_bridge.Recording") -> None:
        """Have commands that were recorded with these arrays for `recorded`."""
        for storage, _ in bound.values():
            storage.users.add(self)
        while len(self._recordings) >= MOST_RECORDINGS:
            self._recordings.pop(next(iter(self._recordings)), None)
        self._recordings[_key(bound, stamped)] = recording

    def forget(self, serial: int) -> None:
        """Let the commands go that use an array which is gone."""
        for key in list(self._recordings):
            if any(serial == used for _, used, _ in key[1]):
                self._recordings.pop(key, None)

    def close(self) -> None:
        """Let commands and buffers go; arrays keep those that they lie in."""
        for recording in list(self._recordings.values()):
            recording.abandon()
        self._recordings.clear()
        self._outputs.clear()
        self.uploads.clear()
        self.downloads.clear()
        self._downloads.clear()
        self._inputs.clear()
        self._storages.clear()
        self.buffers.clear()


class _Input:
    """Where the host puts an input: the port itself, or staging, from which an upload takes it there. An array of the
    device takes the place of ``name``."""

    def __init__(
        self,
        live: LiveDevice,
        port: "_bridge.Buffer",
        spec: TensorSpec,
        name: str,
        narrowed: Narrowed | None,
        chunk_bytes: int,
    ) -> None:
        self.name, self._port = name, port
        self.dtype = spec.dtype.numpy
        arriving = narrowed.spec if narrowed else spec
        self._narrowed = str(arriving.dtype) if narrowed else ""
        self._threads = live.copying.threads_for(spec.nbytes)
        self.upload: _bridge.Upload | None = None
        if port.kind == "streamed":
            self._port = live.handle.buffer(port.nbytes, "upload")
            self.upload = live.handle.upload(self._port, port, arriving.nbytes, chunk_bytes)
        self._mapped = mapped(self._port, arriving.dims, arriving.dtype.numpy)

    def write(self, given: Array | DeviceArray, recording: "_bridge.Recording | None" = None) -> None:
        """Put an array there, its elements in a row, as they are or narrowed; where their bytes are to be swapped numpy
        does it. An upload submits parts of the recording."""
        if self._narrowed:
            given = np.asarray(given, self.dtype)
        array = given if isinstance(given, np.ndarray) and given.dtype == self.dtype else None
        if array is None:
            self._mapped[...] = given
        if self.upload:
            self.upload.write(array, self._threads, self._narrowed, recording)
        elif array is not None:
            self._port.write(array, self._threads, self._narrowed)
        else:
            self._port.flush()


class _Output(NamedTuple):
    """Where the host gets an output: in the port itself, or by a download from it; and by how many threads."""

    port: "_bridge.Buffer"
    download: "_bridge.Download | None"
    dims: tuple[int, ...]
    dtype: np.dtype[np.generic]
    threads: int
    widened: str

    def read(self, polling_us: float) -> Array:
        """Its elements as a new array, as they are or widened."""
        array: Array = np.empty(self.dims, self.dtype)
        if self.download:
            self.download.read(array, self.threads, polling_us, self.widened)
        else:
            self.port.read(array, self.threads, self.widened)
        return array


class Pool:
    """Ports for runs whose outputs stay on the device: those whose arrays are all gone are used again."""

    def __init__(self, make: Callable[[], Ports], most_free: int = 2) -> None:
        self._make, self._most_free = make, most_free
        self._free: list[Ports] = []
        self._taken: weakref.WeakSet[Ports] = weakref.WeakSet()
        self._closed = False

    def take(self) -> "Lease":
        """Ports for a run; they come back with the lease."""
        ports = self._free.pop() if self._free else self._make()
        self._taken.add(ports)
        return Lease(self, ports)

    def give_back(self, ports: Ports) -> None:
        """Have ports used again, or let them go where enough are free."""
        if not self._closed and len(self._free) < self._most_free:
            self._free.append(ports)

    def close(self) -> None:
        """Let all ports go; arrays in them keep their memory."""
        self._closed = True
        self._free.clear()
        for ports in list(self._taken):
            ports.close()


class Lease:
    """Held by the arrays that lie in ports: gives them back when the last one is gone."""

    def __init__(self, pool: Pool, ports: Ports) -> None:
        self._pool = weakref.ref(pool)
        self.ports = ports

    def __del__(self) -> None:
        self.ports.free()
        pool = self._pool()
        if pool is not None:
            pool.give_back(self.ports)


def _key(bound: Bound, stamped: bool) -> _Key:
    if not bound:
        return stamped, ()
    return stamped, tuple((port, storage.serial, offset) for port, (storage, offset) in bound.items())


def mapped(buffer: "_bridge.Buffer", dims: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An array on the first bytes of a buffer that the host sees; it keeps the memory alive."""
    array: Array = np.ndarray(dims, dtype, buffer.view)
    return array
