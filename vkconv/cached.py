"""Sessions whose caches stay on the device: keys and values of a decoder, which each run adds its own rows to."""

import dataclasses
import math
import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

import numpy as np

from vkconv.backend.arrays import DeviceArray, placed
from vkconv.backend.executable import Executable
from vkconv.backend.flights import Deadline, Job, timeout_in_ns
from vkconv.backend.given import Given, checked_count, own_copies
from vkconv.backend.storage import Storage
from vkconv.core import (
    Array,
    InputError,
    LimitError,
    Shape,
    UnsupportedError,
    UsageError,
    align,
    given_array,
    shape_str,
)
from vkconv.device import Device, load_device
from vkconv.graph import Graph
from vkconv.ops import OPS
from vkconv.plan.caches import (
    FIRST_ROWS,
    CachePair,
    Grown,
    cut,
    find_pairs,
    grows,
    padded,
    step_of,
    with_cache_types,
)
from vkconv.plan.growth import grown_graph
from vkconv.plan.model import Plan
from vkconv.plan.planner import Planned, plan
from vkconv.plan.stages import cut_stages, is_staged
from vkconv.plan.timing import Timing
from vkconv.session import Key, Session
from vkconv.settings import Settings
from vkconv.table import Column, Table

_WORD_BYTES = 4


@dataclasses.dataclass
class _Prepared:
    """What a run is made of: the graph for its shapes, the executable, the arrays that go in."""

    grown: Grown
    executable: Executable
    arrays: dict[str, Array | DeviceArray]


class CachedSession(Session):
    """A graph on a device with caches that stay there. A run takes the inputs that are no caches, gives the outputs
    that are none, and adds its rows to the caches: ``length`` says how many are there.

    Caches have as many rows as the policy ``plan.cache_rows`` says, and twice as many each time that they are full, up
    to the bound (``capacity``): a run computes over those that are there. One plan serves all lengths in them; the
    first run that brings another number of rows, such as a prompt, makes a plan of its own, for the same caches and
    weights. `rewind` takes rows back, `rows` reads the caches and `restore` writes them.
    """

    def __init__(self, graph: Graph, device: str | int, settings: Settings, *, poison: bool = False) -> None:
        """Raises what a session raises, and UnsupportedError for a graph without caches, or one that steers itself."""
        self._bounds = dict(settings.bounds or {})
        self.pairs: tuple[CachePair, ...] = find_pairs(graph, OPS, self._bounds)
        if is_staged(cut_stages(graph, OPS)):
            raise UnsupportedError(
                f"graph {graph.name!r} has caches, and runs in stages, since sizes in it depend on values: leave "
                "bounds and caches out"
            )
        limits = settings.limits
        super().__init__(
            graph,
            device,
            options=with_cache_types(settings.all_options, graph, self.pairs),
            poison=poison,
            max_plans=settings.max_plans,
            in_flight=settings.in_flight,
            limits=limits if limits is None or isinstance(limits, Device) else load_device(limits),
            prepare=False,
        )
        if self._steering:
            raise UnsupportedError(
                f"graph {graph.name!r}: values of {', '.join(self._steering)} decide its shapes, so that no one plan "
                "serves all lengths; leave bounds and caches out"
            )
        self._specs = self.inputs
        pasts, presents = {pair.past for pair in self.pairs}, {pair.present for pair in self.pairs}
        self.inputs = MappingProxyType({name: spec for name, spec in self._specs.items() if name not in pasts})
        self.outputs = tuple(name for name in self.outputs if name not in presents)
        self.capacity = min(self._bounds.values(), default=0)
        self.length = 0
        if settings.shapes:
            raise UsageError(f"{graph.name!r} has caches: name the dimensions that no run gives in dims, not in shapes")
        self._dims = dict(settings.dims or {})
        self._caches: dict[str, DeviceArray] = {}
        self._grown: dict[Key, Grown] = {}
        self._brings: dict[tuple[Shape, ...], int] = {}
        self._first_rows = FIRST_ROWS.of(self._planned_for)
        self._latest: Grown | None = None
        self._is_clean = True
        self.host_us = 0.0
        """What the host took in the latest run before its inputs went to the device: what follows from the length."""

    def _run(
        self, inputs: Mapping[str, Given], timeout_s: float | None, there: bool
    ) -> dict[str, Array] | dict[str, DeviceArray]:
        timeout_ns = timeout_in_ns(timeout_s)
        with self._lock:
            called = time.perf_counter_ns()
            ready = self._ready(inputs)
            self.host_us = (time.perf_counter_ns() - called) / 1e3
            growing = [name for name in self.outputs if name in ready.grown.offsets]
            if there and growing:
                raise UsageError(
                    f"{self.name!r}: the output {growing[0]!r} grows with the caches, and of its memory a part alone "
                    "is meant; take it with out='host'"
                )
            first = self.timings.first_run_us == 0.0
            started = time.perf_counter_ns()
            self._is_clean = False
            outputs: dict[str, Any]
            if there:
                outputs = dict(ready.executable.run_there(ready.arrays, timeout_ns))
            else:
                outputs = self._cut(ready, ready.executable.run(ready.arrays, timeout_ns))
            self._is_clean = True
            self.length += ready.grown.rows
            if first:
                self.timings.first_run_us = (time.perf_counter_ns() - started) / 1e3
            return outputs

    def measure(self, inputs: Mapping[str, Given]) -> tuple[dict[str, Array], Timing]:
        """One inference with GPU timestamps, after which the caches are as long as before."""
        with self._lock:
            started = time.perf_counter_ns()
            ready = self._ready(inputs)
            self._is_clean = False
            outputs, timing = ready.executable.profile(ready.arrays)
            call_us = (time.perf_counter_ns() - started) / 1e3
            return self._cut(ready, outputs), dataclasses.replace(timing, call_us=call_us, called_ns=started)

    def _start(self, inputs: Mapping[str, Given], deadline: Deadline, there: bool) -> Future[Any]:
        """Each run adds its rows behind those of the runs before it, so that ``inputs`` that grow are as long as that
        makes them; what only that run can know is raised by its future."""
        given = own_copies(self._checked(inputs))
        return self._flights.add(Job(lambda left_s: self._run(given, left_s, there), deadline), deadline)

    def _await_flights(self) -> None:
        """Nothing to wait for: a run ends before its thread gives the lock back, and the next one needs it to begin."""

    @property
    def is_full(self) -> bool:
        """Whether another run like the latest one has no room."""
        latest = self._latest
        return latest is not None and latest.rows > 0 and self.length + latest.rows > self.capacity

    def rewind(self, length: int = 0) -> None:
        """Forget all rows of the caches behind the first ``length``; UsageError for more than there are."""
        with self._lock:
            self._check_open()
            checked_count("length", length, "it is a number of rows, 0 or more", 0)
            if length > self.length:
                raise UsageError(f"{self.name!r}: there are {self.length} rows, which cannot be rewound to {length}")
            self.length = length
            if length:
                self._clean()
            else:
                self._caches.clear()
                self._is_clean = True

    def rows(self) -> dict[str, Array]:
        """The caches on the host, by the outputs that they are: the rows that are there."""
        with self._lock:
            self._check_open()
            return {
                pair.present: cut(self._caches[pair.past].numpy(), {pair.axis: 0} if pair.appends else {}, self.length)
                for pair in self.pairs
                if pair.past in self._caches
            }

    def restore(self, pasts: Mapping[str, Given]) -> None:
        """Write the caches, by the inputs that they are: all of them, with one number of rows; InputError for
        others."""
        with self._lock:
            self._check_open()
            is_dict = isinstance(pasts, Mapping)
            if not is_dict or set(pasts) != {pair.past for pair in self.pairs}:
                wanted = ", ".join(pair.past for pair in self.pairs)
                given = (", ".join(map(str, pasts)) or "none") if is_dict else f"a {type(pasts).__name__} for a dict"
                raise InputError(f"{self.name!r} has the caches {wanted}, and was given {given}")
            arrays = {name: given_array(array, f"cache {name!r} of {self.name!r}") for name, array in pasts.items()}
            lengths = {
                arrays[pair.past].shape[pair.axis] for pair in self.pairs if pair.appends and arrays[pair.past].ndim
            }
            for name, array in arrays.items():
                spec = self._specs[name]
                fits = array.ndim == len(spec.shape) and all(
                    isinstance(want, str) or want == got for want, got in zip(spec.shape, array.shape, strict=True)
                )
                if not fits or array.dtype.newbyteorder("=") != spec.dtype.numpy:
                    given = f"{shape_str(array.shape)} of {array.dtype}"
                    raise InputError(f"cache {name!r} of {self.name!r} is {spec}, and was given as {given}")
            if len(lengths) > 1 or max(lengths, default=0) > self.capacity:
                raise InputError(
                    f"{self.name!r}: caches of {', '.join(map(str, sorted(lengths)))} rows; all have as many rows, "
                    f"and {self.capacity} at most"
                )
            length = max(lengths, default=0)
            held = step_of(length, self._first_rows, self.capacity)

            def full(pair: CachePair) -> Shape:
                shape = arrays[pair.past].shape
                return tuple(held if pair.appends and axis == pair.axis else n for axis, n in enumerate(shape))

            self._caches = {pair.past: placed(padded(arrays[pair.past], full(pair)), self._live) for pair in self.pairs}
            self.length = length
            self._is_clean = True

    def explain(self) -> Table:
        """Which route each node takes and why, and what of the caches is planned."""
        table, held = super().explain(), self._held()
        more = f"; planned again at twice as many, up to {self.capacity}" if held < self.capacity else ""
        return dataclasses.replace(table, title=f"{table.title}; {self._latest}{more}")

    def caches_table(self) -> Table:
        """A row for each cache: input, output, axis, rows, bytes."""
        rows = [
            (pair.past, pair.present, pair.axis, self.length if pair.appends else "", self._caches[pair.past].nbytes)
            for pair in self.pairs
            if pair.past in self._caches
        ]
        columns = [Column(name) for name in ("input", "output", "axis", "rows", "bytes")]
        return Table(str(self._latest or "no run yet"), columns, rows)

    def close(self) -> None:
        """Release the device memory; the session refuses further runs. Closing twice is fine."""
        self._flights.close()  # before it is closed, so that runs which were submitted begin
        super().close()
        with self._lock:
            self._caches.clear()

    def _cut(self, ready: _Prepared, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs without rows that are not meant, as they are behind the rows of the past."""
        offsets = ready.grown.offsets
        return {
            name: cut(outputs[name], offsets[name], self.length) if name in offsets else outputs[name]
            for name in self.outputs
        }

    def _ready(self, inputs: Mapping[str, Given]) -> _Prepared:
        arrays = self._checked(inputs)
        # A size that grows counts from the length on, and is told from others by its sign.
        key: list[tuple[int, ...]] = []
        for name, spec in self.inputs.items():
            shape, growing = arrays[name].shape, [grows(dim, self._bounds) for dim in spec.shape]
            if any(grow and n < self.length for grow, n in zip(growing, shape, strict=True)):
                raise InputError(
                    f"input {name!r} of {self.name!r} has shape {shape_str(shape)}; it grows with the caches, which "
                    f"have {self.length} rows: give it all rows, or rewind the session"
                )
            key.append(tuple(self.length - n - 1 if grow else n for grow, n in zip(growing, shape, strict=True)))
        base = tuple(key)
        rows = self._brings.get(base)
        grown = None if rows is None else self._grown.get(self._key(base, rows))
        if grown is None:
            shapes = {name: array.shape for name, array in arrays.items()}
            assert self._graph is not None
            grown = grown_graph(
                self._graph, OPS, self.pairs, self._bounds, shapes, self._dims, self.length, self._rows_for
            )
            rows = self._brings[base] = grown.rows
            self._grown[self._key(base, rows)] = grown
        full_key = self._key(base, grown.rows)
        if grown.rows and self.length > grown.most:
            raise LimitError(
                f"{self.name!r}: {self.length} rows of the caches are taken and the run brings {grown.rows}, "
                f"{self.length + grown.rows} in all, and the bound is {self.capacity}; load with a larger one, or "
                "rewind the session"
            )
        executable = self._kept(full_key, lambda: self._plan(grown, full_key))
        for old in self._grown.keys() - self._executables.keys():  # of plans that went
            del self._grown[old]
        self._allocate(executable.plan)
        if not self._is_clean:
            self._clean()
        for name in grown.offsets:
            if name in arrays:
                arrays[name] = padded(np.asarray(arrays[name]), grown.graph.inputs[name].dims)
        self._latest = grown
        arrays |= grown.host_inputs(self.length, OPS)
        arrays |= self._caches
        for check in executable.plan.checks:
            check.run({name: np.asarray(array) for name, array in arrays.items() if name in check.reads.values()})
        return _Prepared(grown, executable, arrays)

    def _plan(self, grown: Grown, key: Key) -> Planned:
        # That of one row, such as a token, runs most, and the caches that it is for double.
        options = self.options if grown.rows == 1 else self._options(key)
        return plan(grown.graph, self._planned_for, options, None, self._weights.regions, grown.caches)

    def _held(self) -> int:
        """The rows that the caches have memory for, 0 where none is there."""
        return max(
            (self._caches[p.past].shape[p.axis] for p in self.pairs if p.appends and p.past in self._caches), default=0
        )

    def _rows_for(self, rows: int) -> int:
        """How many rows the caches have in a run that brings so many: never fewer than they have."""
        return max(self._held(), step_of(self.length + rows, self._first_rows, self.capacity))

    def _key(self, base: tuple[Shape, ...], rows: int) -> Key:
        return (*base, (self._rows_for(rows),)), ()

    def _allocate(self, plan: Plan) -> None:
        """Make the caches of a plan, with the rows of those that are there; InputError where these have other shapes
        but for being shorter."""
        axes = {pair.past: pair.axis for pair in self.pairs if pair.appends}
        for name in plan.caches:
            spec = plan.inputs[name][0]
            there = self._caches.get(name)
            if there is not None and there.shape == spec.dims:
                continue
            axis = axes.get(name, 0)
            if there is not None and (
                name not in axes
                or there.shape[axis] > spec.dims[axis]
                or _beside(there.shape, axis) != _beside(spec.dims, axis)
            ):
                raise InputError(
                    f"{self.name!r}: the cache {name!r} is {shape_str(there.shape)}, and this run wants "
                    f"{shape_str(spec.dims)}; rewind the session to 0 first"
                )
            with self._live.using(f"allocating the cache {name!r} of {self.name!r}"):
                buffer = self._live.handle.buffer(max(_WORD_BYTES, align(spec.nbytes, _WORD_BYTES)), "device")
                recording = self._live.handle.recording()
                recording.fill(buffer, 0, buffer.nbytes, 0)
                if there is not None:
                    outer, old = math.prod(spec.dims[:axis]), there.nbytes
                    each, apart = old // max(1, outer), spec.nbytes // max(1, outer)
                    recording.barrier(["compute", "transfer"], ["transfer"])
                    for i in range(outer if each else 0):
                        at = there.offset + i * each
                        recording.copy(there.storage.buffer, at, buffer, i * apart, each)
                    recording.barrier(["transfer"], ["compute", "transfer"])
                recording.end()
                recording.run()
            self._caches[name] = DeviceArray(Storage(buffer, self._live), spec.dims, spec.dtype)

    def _clean(self) -> None:
        """Put zeros behind the rows that are meant: what a run left there must not be read."""
        for pair in self.pairs:
            cache = self._caches.get(pair.past)
            if cache is None or not pair.appends:
                continue
            outer, rows = int(np.prod(cache.shape[: pair.axis])), cache.shape[pair.axis]
            row_bytes = cache.nbytes // (outer * rows)
            if row_bytes % _WORD_BYTES:
                kept = cut(cache.numpy(), {pair.axis: 0}, self.length)
                self._caches[pair.past] = placed(padded(kept, cache.shape), self._live)
                continue
            size = (rows - self.length) * row_bytes
            with self._live.using(f"clearing the cache {pair.past!r} of {self.name!r}"):
                recording = self._live.handle.recording()
                recording.barrier(["compute", "transfer"], ["transfer"])
                for i in range(outer if size else 0):
                    recording.fill(cache.storage.buffer, cache.offset + (i * rows + self.length) * row_bytes, size, 0)
                recording.barrier(["transfer"], ["compute", "transfer"])
                recording.end()
                recording.run()
        self._is_clean = True


def _beside(shape: Shape, axis: int) -> Shape:
    """The other dimensions."""
    return (*shape[:axis], *shape[axis + 1 :])


def open_cached(graph: Graph, device: str | int, settings: Settings) -> CachedSession:
    """A session of these settings whose caches stay on the device."""
    return CachedSession(graph, device, settings)
