"""matmul_nbits on the device: every size of each route's tiles, and drawn calls."""

import pytest
from hypothesis import strategies as st
from route_kit import draw as inputs_of
from route_kit import drawn_agree

from vkconv.check import check_call
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu
NBITS = OPS["matmul_nbits"]
CALLS = (
    "matmul_nbits:a=9x131,b=70x9x8:u8,scale=70x9,zero=70x5:u8,bias=70",
    "matmul_nbits:a=3x516,b=37x17x16:u8,scale=37x17,act=relu",
    "matmul_nbits:a=1x100,b=130x7x16:u8,scale=130x7,zero=130x7:u8,bits=8",
)
SIZES = {
    "skinny": (
        {"rows": 1, "columns": 1, "lanes": 8, "local": 64},
        {"rows": 2, "columns": 4, "lanes": 64, "local": 128},
        {"rows": 8, "columns": 2, "lanes": 32, "local": 256},
        {"rows": 4, "columns": 1, "lanes": 128, "local": 64},
    ),
    "shared": tuple({"tile": tile} for tile in ("64x64", "32x32", "32x64", "16x64", "64x32")),
    "register": ({"rows": 16, "local": 8}, {"rows": 1, "local": 128}),
}


@pytest.mark.parametrize("text", CALLS)
@pytest.mark.parametrize(("route", "params"), [(r, p) for r, sizes in SIZES.items() for p in sizes], ids=str)
def test_every_size_is_right(text, route, params, device):
    call = parse_call(text, OPS)
    ran, checked = check_call(call, inputs_of(call, "normals"), device=device, route=route, params=params)
    assert ran.route == route and checked.ok, checked.problem


@st.composite
def products(draw):
    """Legal calls: blocks cut off by the depth, zero points of whole and of part bytes."""
    bits, block = draw(st.sampled_from((2, 4, 8))), draw(st.sampled_from((16, 32, 64)))
    m, n, k = draw(st.integers(1, 20)), draw(st.integers(1, 70)), draw(st.integers(1, 200))
    blocks = -(-k // block)
    text = f"matmul_nbits:a={m}x{k},b={n}x{blocks}x{block * bits // 8}:u8,scale={n}x{blocks},bits={bits}"
    zero = f",zero={n}x{-(-blocks * bits // 8)}:u8" if draw(st.booleans()) else ""
    return parse_call(text + zero + (f",bias={n}" if draw(st.booleans()) else ""), OPS)


@pytest.mark.parametrize("route", [route.name for route in NBITS.routes])
def test_drawn_calls_agree_with_the_reference(route, device):
    drawn_agree(products(), route, device, examples=12, least=8, exact=lambda call: True)
