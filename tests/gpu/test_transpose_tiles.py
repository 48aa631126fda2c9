"""transpose by tiles and by strided copies: drawn shapes and orders, every tile, vec4 or not, every element form."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from route_kit import draw as inputs_of
from route_kit import takes

from vkconv.check import run_call
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.kernels.tiled import TILES

pytestmark = pytest.mark.gpu
SIDES = (1, 2, 3, 4, 5, 8, 17, 31, 32, 33, 36, 63, 64, 65, 68)


@st.composite
def transposes(draw, dtype):
    dims = draw(st.lists(st.sampled_from(SIDES), min_size=2, max_size=5))
    assume(math.prod(dims) < 200_000)
    perm = draw(st.permutations(range(len(dims))))
    return parse_call(f"transpose:x={'x'.join(map(str, dims))}:{dtype},perm={'x'.join(map(str, perm))}", OPS)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32"])
@pytest.mark.parametrize("route", ["tiles", "strided_copy"])
def test_drawn_transposes_move_every_element(route, dtype, device):
    done = []

    @settings(
        max_examples=40,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(transposes(dtype))
    def moves(call):
        assume(takes(call, route, device))
        x = inputs_of(call, "integers")
        want = np.transpose(x["x"], call["perm"])
        values = [{"tile": tile} for tile in TILES] if route == "tiles" else [{"vec4_run": 0}, {"vec4_run": 1}]
        for params in values:
            (y, *_), *_ = run_call(call, x, device=device, route=route, params=params).outputs
            np.testing.assert_array_equal(y, want, err_msg=f"{format_call(call, OPS)} {params}")
        done.append(call)

    moves()
    assert len(done) >= 10
