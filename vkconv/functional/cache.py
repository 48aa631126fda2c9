"""Runs one call, and keeps the sessions of the latest distinct ones, as many as their memory allows."""

import atexit
import dataclasses
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from vkconv.backend.arrays import DeviceArray, check_device, check_out
from vkconv.backend.executable import Weights
from vkconv.backend.runtime import checked_selector, open_device, own_lock
from vkconv.backend.storage import Storage
from vkconv.call import Call
from vkconv.core import Array, DType, GraphError, InputError, UsageError, VkconvError
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.plan.single import call_graph, forcing, held_constant
from vkconv.route import Params
from vkconv.session import Session

# What sessions may take where nobody set it: a share of the device's memory, but no more than this.
_MOST_BYTES = 1 << 30
_SHARE_OF_HEAP = 1 / 8
# Drivers may bound the number of allocations of a process, some to 4096: sessions leave most of them to others.
_SHARE_OF_ALLOCATIONS = 1 / 4
_SESSION_BYTES = 1 << 16  # the least that a session counts: plan, commands and descriptor sets take host memory too


@dataclasses.dataclass(frozen=True, eq=False)
class _Kept:
    """A session, what it takes, the arrays that it has packed, each with what its storage held then, and what they were
    packed to."""

    session: Session
    nbytes: int
    allocations: int
    packed: tuple[tuple[weakref.ref[Storage], int], ...]
    weights: Weights | None

    @property
    def is_stale(self) -> bool:
        return any((storage := held()) is None or storage.contents != contents for held, contents in self.packed)

    def forget(self, serial: int) -> None:
        """Close the session, as an array that it has packed is gone; where anyone is in the cache, the next call that
        makes a session does."""
        if _lock.acquire(blocking=False):
            try:
                if not _inside.depth:
                    with _inside:
                        for key in [key for key, kept in _sessions.items() if kept is self]:
                            _sessions.pop(key).session.close()
            finally:
                _lock.release()


_NOTHING = np.zeros(0)
_Key = tuple[object, ...]
# Calls that were checked, with their text, by what they were asked as; `repr` tells 1 from 1.0 and True.
_calls: dict[_Key, tuple[Call, str]] = {}
_MOST_CALLS = 1024
_sessions: OrderedDict[_Key, _Kept] = OrderedDict()
_lock = own_lock()
# What arrays were packed to, for the sessions of all shapes of the other operands.
_packed: weakref.WeakValueDictionary[_Key, Weights] = weakref.WeakValueDictionary()
# What storages held when an array in them was last given for a weight.
_met: weakref.WeakKeyDictionary[Storage, int] = weakref.WeakKeyDictionary()


class _Inside:
    """Held by whoever looks at the sessions: arrays may go at any allocation in there, and must leave them be."""

    depth = 0

    def __enter__(self) -> None:
        _lock.acquire()
        self.depth += 1

    def __exit__(self, *failed: object) -> None:
        self.depth -= 1
        _lock.release()


_inside = _Inside()
_most_bytes: int | None = None


def set_cache_bytes(nbytes: int | None) -> None:
    """Let the sessions that are kept take so many bytes of device and host-visible memory together; 0 keeps none, None
    is the default, an eighth of the device's memory and at most 1 GiB. UsageError for what is no number of bytes."""
    global _most_bytes
    if nbytes is not None and (isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0):
        raise UsageError(f"set_cache_bytes takes a number of bytes from 0 on, or None, not {nbytes!r}")
    with _inside:
        _most_bytes = nbytes
        _trim()


def run(
    op: str,
    arrays: Mapping[str, Array | DeviceArray],
    attrs: Mapping[str, AttrValue],
    route: str | None,
    device: str | int | None,
    params: Params | None = None,
    out: str = "host",
    policy: str = "",
) -> Array:
    """The one output of a call, from a session that is kept for the next."""
    (y,) = run_all(op, arrays, attrs, route, device, params, out, policy)
    return y


def run_all(
    op: str,
    arrays: Mapping[str, Array | DeviceArray],
    attrs: Mapping[str, AttrValue],
    route: str | None,
    device: str | int | None,
    params: Params | None = None,
    out: str = "host",
    policy: str = "",
) -> tuple[Array, ...]:
    """All outputs of a call, from a session that is kept for the next. Weights that are on the device are packed when
    they come a second time, since once may be a result on its way, such as that of a product; and not again as long as
    they are there. With ``out="device"`` outputs stay there, and stand for arrays of numpy. ``policy`` is that of
    `Options`."""
    check_out(out)
    call, text = _checked(op, arrays, attrs)
    there = {name: array for name, array in arrays.items() if isinstance(array, DeviceArray)}
    where = next((array.storage.live.index for array in there.values()), "auto") if device is None else device
    checked_selector(where)
    if route is not None and not isinstance(route, str):
        raise UsageError(f"route is {route!r}; it is the name of a route, or None")
    weights = [name for name in held_constant(dict.fromkeys(arrays, _NOTHING)) if name in there]
    with _inside:
        held = [name for name in weights if _came_before(there[name].storage)]
        packed = tuple((name, there[name].storage.contents, there[name].offset) for name in held)
        key = text, where, route, policy, tuple(sorted((params or {}).items())), packed
        kept = _sessions.pop(key, None)
        is_new = kept is None
        if kept is None:
            for stale in [key for key, one in _sessions.items() if one.is_stale]:
                _sessions.pop(stale).session.close()
            for name in held:
                check_device(there[name], open_device(where), f"{op}: {name}")
            constants = {name: there[name].numpy() for name in held}
            shared = _packed.setdefault(packed, Weights()) if packed else None
            # Calls of other shapes have the same pipelines.
            options = dataclasses.replace(forcing(route, params, policy), fixed_push=False)
            session = Session(call_graph(call, constants), where, options=options, weights=shared)
            kept = _keep(session, [there[name] for name in held], shared)
        try:
            given = {name: array for name, array in arrays.items() if name not in held}
            outputs: Any  # those on the device stand for arrays of numpy
            outputs = kept.session.run(given, out="device") if out == "device" else kept.session.run(given)
        except InputError:  # an array on another device, among others: nothing ran
            _sessions[key] = kept
            if is_new:
                _trim()
            raise
        except VkconvError:
            kept.session.close()  # a device that failed once does not come back
            raise
        _sessions[key] = kept
        if is_new:  # none takes more than it did
            _trim()
    return tuple(outputs[name] for name in call.outputs)


def _checked(op: str, arrays: Mapping[str, Array | DeviceArray], attrs: Mapping[str, AttrValue]) -> tuple[Call, str]:
    """The call with its text: the one of before for what looks alike, since checking takes as long as small kernels."""
    key = op, tuple((name, array.shape, array.dtype) for name, array in arrays.items()), repr(attrs)
    found = _calls.get(key)
    if found is None:
        specs: dict[str, TensorSpec | None] = {
            operand.name: None for operand in OPS[op].operands if not (operand.host or operand.variadic)
        }
        for name, array in arrays.items():
            try:
                specs[name] = TensorSpec(array.shape, DType.of(array.dtype))
            except GraphError as error:
                raise GraphError(f"{op}: {name}: {error}") from None
        call = OPS[op].call(specs, attrs)
        found = call, format_call(call, OPS)
        with _lock:
            while len(_calls) >= _MOST_CALLS:
                _calls.pop(next(iter(_calls)))
            _calls[key] = found
    return found


def _came_before(storage: Storage) -> bool:
    """Whether what the storage holds was given for a weight before."""
    before, _met[storage] = _met.get(storage), storage.contents
    return before == storage.contents


def _keep(session: Session, packed: list[DeviceArray], weights: Weights | None) -> _Kept:
    memory = session.plan.memory
    nbytes = max(_SESSION_BYTES, memory.device_bytes + memory.upload_bytes + memory.download_bytes)
    held = tuple((weakref.ref(array.storage), array.storage.contents) for array in packed)
    kept = _Kept(session, nbytes, len(session.plan.buffers), held, weights)
    for array in packed:
        array.storage.packers.add(kept)
    return kept


def _trim() -> None:
    """Close the sessions that were used least recently until the others are within their bounds."""
    if not _sessions:
        return
    device = next(reversed(_sessions.values())).session.device
    most_bytes = min(_MOST_BYTES, int(_SHARE_OF_HEAP * device.heap_bytes)) if _most_bytes is None else _most_bytes
    most_allocations = _SHARE_OF_ALLOCATIONS * device.limit("maxMemoryAllocationCount")
    nbytes = sum(kept.nbytes for kept in _sessions.values())
    allocations = sum(kept.allocations for kept in _sessions.values())
    while _sessions and (nbytes > most_bytes or allocations > most_allocations):
        kept = _sessions.popitem(last=False)[1]
        nbytes, allocations = nbytes - kept.nbytes, allocations - kept.allocations
        kept.session.close()


def clear_cache() -> None:
    """Close the sessions that are kept, and with them release their device memory."""
    with _inside:
        while _sessions:
            _sessions.popitem()[1].session.close()


atexit.register(clear_cache)
