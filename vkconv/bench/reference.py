"""Seeded inputs of a call and what it must give for them, kept so that its routes share one reference."""

from collections import OrderedDict

from vkconv.call import Call
from vkconv.check import Expected, expect
from vkconv.check.inputs import draw
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call

# References are kept for the routes of a call that come next, not for ever: the last ones within these bytes.
_KEEP_BYTES = 1 << 30
_kept: OrderedDict[tuple[str, int], Expected] = OrderedDict()


def expected(call: Call, seed: int) -> Expected:
    """Seeded inputs and reference outputs of a call; kept for a while, so that its routes share one reference."""
    key = (format_call(call, OPS), seed)
    made = _kept.pop(key, None) or expect(call, draw(call, seed))
    _kept[key] = made
    while len(_kept) > 1 and sum(e.nbytes for e in _kept.values()) > _KEEP_BYTES:
        _kept.popitem(last=False)
    return made
