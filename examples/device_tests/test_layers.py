"""The calls of the network, on every route that the device may be given."""

import numpy as np
import pytest

from vkconv.testing import calls

LAYERS = (
    "conv2d:x=1x1x49x40,w=24x1x10x4,b=24,s=2,p=4x1x4x1,act=relu",
    "conv2d:x=1x24x24x20,w=24x1x3x3,b=24,g=24,p=1",
    "conv2d:x=1x24x24x20,w=32x24x1x1,b=32,act=relu",
    "matmul:a=1x32,b=32x12",
)


@pytest.mark.parametrize(("call", "route"), calls(*LAYERS, routes="all"))
def test_layer(vk_call, call, route):
    ran = vk_call(call, route=route)
    assert ran.route == route
    ran.assert_close()


@pytest.mark.parametrize(("call", "route"), calls(*LAYERS))
def test_layer_repeats(vk_call, call, route):
    vk_call(call, route=route).assert_deterministic(20)


def test_against_a_reference_of_our_own(vk_call):
    x = np.linspace(-4, 4, 120, dtype=np.float32).reshape(5, 24)
    vk_call("relu:x=5x24", {"x": x}).assert_close(np.where(x > 0, x, 0))


@pytest.mark.vk_quirk("adreno-im2col-band")
def test_the_band_that_drifts_on_adreno(vk_call):
    vk_call("conv2d:x=1x48x64x64,w=176x48x3x3,p=1", route="im2col_gemm").assert_deterministic(200)
