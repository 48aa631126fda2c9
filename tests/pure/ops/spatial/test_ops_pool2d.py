"""pool2d without a device: shapes, errors and hand-computed values, many of them ONNX's corner cases."""

import numpy as np
import pytest

from vkconv.core import GraphError, UsageError
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.spatial.pool2d import POOL2D

OPS = {"pool2d": POOL2D}


def pool(text, x):
    call = parse_call(text, OPS)
    return POOL2D.reference(call, {"x": np.asarray(x, np.float64).reshape(call.shape("x"))})[0]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("pool2d:x=1x1x7x7,kind=max,k=2,s=2", (1, 1, 3, 3)),
        ("pool2d:x=1x1x7x7,kind=max,k=2,s=2,ceil=1", (1, 1, 4, 4)),
        # The third window would begin at 5 = 4 + 1, beyond the input and the padding before it.
        ("pool2d:x=1x1x4x4,kind=max,k=2,s=3,p=1,ceil=1", (1, 1, 2, 2)),
        ("pool2d:x=1x1x2x2,kind=max,k=2,s=3,p=0x0x1x1,ceil=1", (1, 1, 1, 1)),
        ("pool2d:x=1x1x7x8,kind=avg,k=3,s=2,auto=same_upper", (1, 1, 4, 4)),
        ("pool2d:x=1x1x7x8,kind=avg,k=3x2,d=2x3", (1, 1, 3, 5)),
    ],
)
def test_shapes(text, shape):
    call = parse_call(text, OPS)
    assert call.shape("y") == shape
    assert parse_call(format_call(call, OPS), OPS) == call


def test_maximum_ignores_padding_and_keeps_nan():
    y = pool("pool2d:x=1x1x1x5,kind=max,k=1x3,p=0x1", [-5, -2, np.nan, -4, -3])
    np.testing.assert_array_equal(y.ravel(), [-2, np.nan, np.nan, np.nan, -3])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", [1.5, 3, 4.5]),
        ("cip=1", [1, 3, 3]),
        ("ceil=1,s=1x4,cip=1", [1, 3]),
        ("ceil=1,s=1x3,p=0x0x0x1", [2, 4.5]),
        ("ceil=1,s=1x3,p=0x0x0x1,cip=1", [2, 3]),
    ],
)
def test_average_divides_by_the_right_count(options, expected):
    fields = {"s": "1x2", "p": "0x1"} | dict(part.split("=") for part in options.split(",") if part)
    text = "pool2d:x=1x1x1x5,kind=avg,k=1x3," + ",".join(f"{k}={v}" for k, v in fields.items())
    np.testing.assert_allclose(pool(text, [1, 2, 3, 4, 5]).ravel(), expected)


def test_average_past_the_padding():
    # Six columns, windows of 4 with stride 4: the second covers columns 4 and 5 and two beyond everything.
    text = "pool2d:x=1x1x1x6,kind=avg,k=1x4,s=1x4,ceil=1"
    np.testing.assert_allclose(pool(text + ",cip=1", [1, 2, 3, 4, 5, 6]).ravel(), [2.5, 5.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool2d:x=1x1x4x4,kind=min,k=2", "kind is 'min'; it is one of avg, max, lp"),
        ("pool2d:x=1x1x4x4,kind=max,k=2,s=0", "stride"),
        ("pool2d:x=1x1x4x4,kind=max,k=0", "kernel"),
        ("pool2d:x=1x1x4x4,kind=max,k=5", "along h a kernel of 5"),
        ("pool2d:x=1x1x4x4,kind=max,k=2,p=2", "the padding is 2, but a window spans 2"),
        ("pool2d:x=1x1x4x0,kind=max,k=1", "0 elements along w"),
        ("pool2d:x=1x4x4,kind=max,k=1", r"x \(N, C, H, W\)"),
        ("pool2d:x=1x1x4x4,kind=max,k=1,dtype=i32", "float dtype"),
        ("pool2d:x=1x1x4x4,kind=max", "needs the attribute 'kernel'"),
    ],
)
def test_illegal_calls_name_their_values(text, message):
    with pytest.raises(GraphError, match=message):
        parse_call(text, OPS)


def test_unknown_attribute_suggests():
    with pytest.raises(UsageError, match="did you mean 'stride'"):
        parse_call("pool2d:x=1x1x4x4,kind=max,k=2,strde=2", OPS)
