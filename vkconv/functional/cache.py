"""Runs one call, and keeps the sessions of the last few distinct ones."""

import atexit
import threading
from collections import OrderedDict
from collections.abc import Mapping

from vkconv.core import Array, DType, UsageError, VkconvError
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.plan.single import call_graph, forcing
from vkconv.route import Params
from vkconv.session import Session

MAX_SESSIONS = 16
_sessions: OrderedDict[tuple[str, str | int, str | None, tuple[tuple[str, int | str], ...]], Session] = OrderedDict()
_lock = threading.RLock()


def run(
    op: str,
    arrays: Mapping[str, Array],
    attrs: Mapping[str, AttrValue],
    route: str | None,
    device: str | int | None,
    params: Params | None = None,
) -> Array:
    """The one output of a call, from a session that is kept for the next."""
    (y,) = run_all(op, arrays, attrs, route, device, params)
    return y


def run_all(
    op: str,
    arrays: Mapping[str, Array],
    attrs: Mapping[str, AttrValue],
    route: str | None,
    device: str | int | None,
    params: Params | None = None,
) -> tuple[Array, ...]:
    """All outputs of a call, from a session that is kept for the next."""
    specs: dict[str, TensorSpec | None] = {
        operand.name: None for operand in OPS[op].operands if not (operand.host or operand.variadic)
    }
    for name, array in arrays.items():
        specs[name] = TensorSpec(array.shape, DType.of(array.dtype))
    call = OPS[op].call(specs, attrs)
    where = "auto" if device is None else device
    if not isinstance(where, str | int):
        raise UsageError(f"device is {device!r}; it is an index, a name or a part of one, or None")
    key = format_call(call, OPS), where, route, tuple(sorted((params or {}).items()))
    with _lock:
        session = _sessions.pop(key, None)
        if session is None:
            session = Session(call_graph(call), where, options=forcing(route, params))
        try:
            outputs = session.run(arrays)
        except VkconvError:
            session.close()  # a device that failed once does not come back
            raise
        _sessions[key] = session
        while len(_sessions) > MAX_SESSIONS:
            _sessions.popitem(last=False)[1].close()
    return tuple(outputs[name] for name in call.outputs)


def clear_cache() -> None:
    """Close the sessions that are kept, and with them release their device memory."""
    with _lock:
        while _sessions:
            _sessions.popitem()[1].close()


atexit.register(clear_cache)
