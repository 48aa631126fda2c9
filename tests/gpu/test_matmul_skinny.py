"""matmul of few rows or columns: every size of a workgroup's lanes, both ways the large operand may lie, odd lines."""

import numpy as np
import pytest
from hypothesis import strategies as st
from route_kit import draw as inputs_of
from route_kit import drawn_agree, right

from vkconv.backend.runtime import select_device
from vkconv.check import expect
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu
# By fours along k or along the columns, and element by element; the last ones cut the turns of the loop.
CALLS = (
    "matmul:a=3x260,b=70x260,tb=1,bias=70,act=relu",
    "matmul:a=1x515,b=515x68",
    "matmul:a=5x67,b=67x37,residual=5x37",
    "matmul:a=9x131,b=43x131,ta=0,tb=1,alpha=0.5",
    "matmul:a=301x129,b=129x2,bias=2",
    "matmul:a=2x3x2x36,b=3x36x20",
)
# Rows, lanes along the columns, lanes.
SIZES = ((1, 1, 64), (1, 4, 512), (2, 16, 64), (4, 2, 256), (4, 32, 128), (8, 1, 512), (8, 8, 128))


@st.composite
def products(draw):
    """Legal calls of which one side is short: transposes, batches on either side or both, k of no whole turns."""
    few, many, k = draw(st.integers(1, 9)), draw(st.sampled_from((1, 4, 31, 64, 130))), draw(st.integers(1, 300))
    m, n = draw(st.permutations((few, many)))
    ta, tb = draw(st.booleans()), draw(st.booleans())
    lead_a, lead_b = draw(st.sampled_from((((), ()), ((3,), ()), ((2, 1), (3,)), ((3,), (3,)))))
    a, b = (*lead_a, *((k, m) if ta else (m, k))), (*lead_b, *((n, k) if tb else (k, n)))
    text = f"matmul:a={'x'.join(map(str, a))},b={'x'.join(map(str, b))},ta={int(ta)},tb={int(tb)}"
    return parse_call(text + (f",bias={n}" if draw(st.booleans()) else ""), OPS)


def test_drawn_calls_agree_with_the_reference(device):
    drawn_agree(products(), "skinny", device, examples=24, least=24, exact=lambda call: True)


@pytest.mark.parametrize("dtype", ["f32", pytest.param("f16", marks=pytest.mark.drivers)])
@pytest.mark.parametrize("text", CALLS)
def test_every_size_gives_whole_numbers_to_the_bit(text, dtype, device):
    call = parse_call(f"{text},dtype={dtype}", OPS)
    arrays = inputs_of(call, "integers")
    wanted = expect(call, arrays).outputs[0]
    (skinny,) = (route for route in OPS["matmul"].routes if route.name == "skinny")
    legal = skinny.params(call, select_device(device)[1])["local"]
    for rows, lanes, local in SIZES:
        for swap in (0, 1):
            params = {"rows": rows, "lanes": lanes, "local": local if local in legal else 64, "swap": swap}
            np.testing.assert_array_equal(right(call, arrays, "skinny", device, params), wanted, err_msg=str(params))


@pytest.mark.parametrize("text", ["matmul:a=3x70,b=70x36", "matmul:a=3x72,b=35x72,tb=1"])
def test_what_is_no_number_stays_in_its_row_and_column(text, device):
    """Steps past the end of k and rows past the last one are read from elsewhere and must not count."""
    call = parse_call(text, OPS)
    arrays = inputs_of(call, "integers")
    arrays["a"][1, :] = np.nan
    arrays["b"][0, 0] = np.inf
    y = right(call, arrays, "skinny", device)
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]][:, 1:]).all() and not np.isfinite(y[:, 0]).any()
