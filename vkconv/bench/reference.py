"""Seeded inputs of a call and what it must give for them, kept so that its routes share one reference."""

import threading
from collections import OrderedDict
from concurrent.futures import Future

from vkconv.call import Call
from vkconv.check import Expected, expect
from vkconv.check.inputs import draw
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call

# References are kept for the routes of a call that come next, not for ever: the last ones within these bytes.
_KEEP_BYTES = 1 << 30
_kept: OrderedDict[tuple[str, int], Future[Expected]] = OrderedDict()
_lock = threading.Lock()


def expected(call: Call, seed: int) -> Expected:
    """Seeded inputs and reference outputs of a call; kept for a while, so that its routes share one reference. One
    thread computes it, and others that want it meanwhile wait."""
    key = (format_call(call, OPS), seed)
    with _lock:
        known = _kept.get(key)
        made = _kept.setdefault(key, known or Future())
        _kept.move_to_end(key)
    if known is None:
        try:
            made.set_result(expect(call, draw(call, seed)))
        except BaseException as error:
            with _lock:
                _kept.pop(key, None)
            made.set_exception(error)
            raise
        with _lock:
            done = [name for name, one in _kept.items() if one.done()]
            nbytes = sum(_kept[name].result().nbytes for name in done)
            for name in done[:-1]:
                if nbytes <= _KEEP_BYTES:
                    break
                nbytes -= _kept.pop(name).result().nbytes
    return made.result()
