"""implicit_gemm with teams that divide k-tiles, and by four pixels at once: exact on integers, byte for byte again."""

import numpy as np
import pytest
from route_kit import draw

from vkconv.backend.runtime import select_device
from vkconv.check import expect, run_call
from vkconv.ops import OPS
from vkconv.ops.conv.tiles import SLICED_TILES
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu

# Tails on every side, groups, several images, sums of less than a k-tile and of several; planes of whole vec4 and not.
CALLS = (
    "conv2d:x=2x37x9x11,w=45x37x3x3,b=45,p=1,act=relu",
    "conv2d:x=3x290x3x4,w=70x145x1x1,b=70,g=2",
    "conv2d:x=1x131x7x7,w=33x131x1x1",
    "conv2d:x=2x20x10x6,w=34x20x1x1,residual=2x34x10x6,act=relu",
    "conv2d:x=2x20x10x6,w=34x20x1x1,b=34,dtype=f16",
)


def _exact(text, params, device):
    call = parse_call(text, OPS)
    arrays = draw(call, "integers")
    ran = run_call(call, arrays, device=device, route="implicit_gemm", params=params, replays=2)
    (first,), (again,) = ran.outputs
    np.testing.assert_array_equal(first, expect(call, arrays).outputs[0])
    assert first.tobytes() == again.tobytes()


def _legal(text, device):
    (route,) = (route for route in OPS["conv2d"].routes if route.name == "implicit_gemm")
    return route.params(parse_call(text, OPS), select_device(device)[1])


@pytest.mark.parametrize("text", CALLS)
@pytest.mark.parametrize("tile", SLICED_TILES)
def test_teams_that_divide_k_tiles_are_exact(tile, text, device):
    _exact(text, {"tile": tile, "split_k": 3 if "3x3," in text else 1}, device)


@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize("tile", SLICED_TILES)
def test_teams_in_slices_of_strided_groups_are_exact(tile, linear, device):
    text = "conv2d:x=2x30x11x9,w=38x15x3x3,b=38,g=2,s=2x1,p=1,act=relu"
    _exact(text, {"tile": tile, "linear": linear, "split_k": 2}, device)


@pytest.mark.parametrize("tile", ["32x32x16", "32x32x4", "128x64x8", "64x32x16b2", "16x32x64t4"])
@pytest.mark.parametrize("text", [text for text in CALLS if "3x3," not in text and "7x7" not in text])
def test_four_pixels_at_once_are_exact(tile, text, device):
    assert _legal(text, device)["vec4_columns"]
    _exact(text, {"tile": tile, "vec4_columns": 1}, device)


@pytest.mark.parametrize("tile", SLICED_TILES)
def test_teams_in_slices_by_four_pixels_are_exact(tile, device):
    _exact("conv2d:x=2x290x6x6,w=70x290x1x1,b=70", {"tile": tile, "vec4_columns": 1, "split_k": 3}, device)


def test_planes_that_are_no_whole_vec4_are_loaded_pixel_by_pixel(device):
    _exact("conv2d:x=1x131x7x7,w=33x131x1x1", {"vec4_columns": 1}, device)
    assert "vec4_columns" not in _legal("conv2d:x=1x4x8x8,w=4x4x1x1,s=2", device)
