"""matmul_nbits: what a call may be, and which route a device takes."""

import numpy as np
import pytest

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import choose

NBITS = OPS["matmul_nbits"]


def test_a_weight_by_hand():
    """Two blocks of 16: the low four bits first, the second block's zero point in the high half of its byte."""
    call = parse_call("matmul_nbits:a=1x20,b=1x2x8:u8,scale=1x2,zero=1x1:u8", OPS)
    b = np.zeros((1, 2, 8), np.uint8)
    b[0, 0, 0], b[0, 1, 1] = 0x5A, 0xC3  # weights 0 and 1 are 10 and 5, 18 and 19 are 3 and 12
    a = np.zeros((1, 20))
    arrays = {"a": a, "b": b, "scale": np.array([[0.5, 2.0]]), "zero": np.array([[0x72]], np.uint8)}
    wanted = {0: (10 - 2) * 0.5, 1: (5 - 2) * 0.5, 2: -2 * 0.5, 17: -7 * 2.0, 18: (3 - 7) * 2.0, 19: (12 - 7) * 2.0}
    for at, weight in wanted.items():
        a[:] = 0
        a[0, at] = 1
        assert NBITS.reference(call, arrays)[0].item() == weight


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=1x32,b=3x2x8:u8,scale=3x2,bits=3", "bits=3; it is one of 2, 4, 8"),
        ("a=1x48,b=3x2x12:u8,scale=3x2", "24 weights of 4 bits in a block; blocks are of a power of two, 16 or more"),
        ("a=1x33,b=3x2x8:u8,scale=3x2", "sums over 33 elements, 3 blocks of 16"),
        ("a=1x32,b=3x2x8:u8,scale=3x3", "the scale is 3x3"),
        ("a=1x32,b=3x2x8:u8,scale=3x2,zero=3x2:u8", "the zero points are 3x2:u8|they are 3x1:u8"),
        ("a=1x32,b=3x2x8:u8,scale=3x2,bias=2", "the bias is 2; with 3 columns it is 3"),
        ("a=1x32,b=3x2x8:i8,scale=3x2", "it is u8, columns x blocks x bytes"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(GraphError, match=words):
        parse_call(f"matmul_nbits:{text}", OPS)


@pytest.mark.parametrize(
    ("device", "rows", "route"),
    [
        ("mali-g715", 1, "skinny"),
        ("mali-g715", 9, "shared"),
        ("h200", 8, "skinny"),
        ("h200", 512, "unpacked"),
        ("lavapipe", 7, "register"),
        ("lavapipe", 8, "unpacked"),
    ],
)
def test_the_route_follows_the_rows(device, rows, route):
    call = parse_call(f"matmul_nbits:a={rows}x2048,b=2048x64x16:u8,scale=2048x64", OPS)
    assert choose(NBITS.routes, call, load_device(device)).route.name == route
