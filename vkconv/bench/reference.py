"""Seeded inputs of a call and what it must give for them, kept so that its routes share one reference."""

from collections import OrderedDict

import numpy as np

from vkconv.check import Expected, expect
from vkconv.core import Array, DType, UnsupportedError
from vkconv.ops import OPS
from vkconv.ops.calls import format_call
from vkconv.route import Call

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


def draw(call: Call, seed: int) -> dict[str, Array]:
    """Inputs of a call: normal floats, integers from 0 to 3, bools; UnsupportedError for bf16, which numpy lacks."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, spec in call.operands.items():
        if spec is None:
            continue
        if spec.dtype is DType.BF16:
            raise UnsupportedError(f"{call.op}: no inputs can be drawn in bf16")
        if spec.dtype.is_float:
            arrays[name] = rng.standard_normal(spec.dims, np.float32).astype(spec.dtype.numpy)
        else:
            arrays[name] = rng.integers(0, 2 if spec.dtype is DType.BOOL else 4, spec.dims).astype(spec.dtype.numpy)
    return arrays
