"""What the tests of vkconv.functional share."""

import numpy as np

from vkconv.check import compare, expect
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call


def drawn(*shapes, seed=3):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def holds(text, arrays, y):
    """The result agrees with the reference of the call."""
    call = parse_call(text, OPS)
    assert y.dtype == next(iter(call.outputs.values())).dtype.numpy and y.flags.c_contiguous
    present = [name for name, spec in call.operands.items() if spec]
    assert compare(call, [y], expect(call, dict(zip(present, arrays, strict=True)))).problem == ""
