"""8-bit integers without a device: definitions, and what is refused in words."""

import numpy as np
import pytest

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.quant.integer import TILES
from vkconv.route import choose

SCALES = "x_scale=scalar,w_scale=scalar,y_scale=scalar,w_zero=scalar:i8,y_zero=scalar:u8"
WIDE_ZERO = SCALES.replace("y_zero=scalar:u8", "y_zero=scalar:i32")
ROWS = "b_scale=scalar,b_zero=scalar:i8,y_scale=scalar,y_zero=scalar:u8"


def reference(text, **arrays):
    call = parse_call(text, OPS)
    given = {name: np.asarray(value) for name, value in arrays.items()}
    return [np.asarray(y) for y in OPS[call.op].reference(call, dict.fromkeys(call.operands) | given)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quantize_linear:x=3:i32,y_scale=scalar", "x is i32; it must be f32"),
        ("quantize_linear:x=3,y_scale=scalar:i32", "the scale is i32; it must be f32"),
        ("quantize_linear:x=3,y_scale=scalar,to=i32", "y would be i32; it is i8 or u8"),
        ("quantize_linear:x=3,y_scale=scalar,to=int9", "no element type"),
        ("quantize_linear:x=2x3,y_scale=3,y_zero=2:u8", "the zero point is 2, the scale 3; they have one shape"),
        ("quantize_linear:x=2x3,y_scale=2", "2 scales for 3 indices along axis 1"),
        ("quantize_linear:x=2x4,y_scale=2x2", "scales of blocks are not there"),
        ("quantize_linear:x=2x4,y_scale=4,axis=2", "axis 2 is outside"),
        ("dequantize_linear:x=3,x_scale=scalar", "x is f32; it is i8, u8 or i32"),
        ("dequantize_linear:x=3:u8,x_scale=scalar,x_zero=scalar:i8", "x is u8 and its zero point i8"),
        ("dynamic_quantize_linear:x=3:i32", "x is i32; it must be f32"),
        ("conv_integer:x=1x3x5x5,w=4x3x1x1:i8", "x is f32; it is i8 or u8"),
        ("conv_integer:x=1x3x5x5:u8,w=4x3x1x1:i8,x_zero=3:u8", "x_zero is 3; it is one number"),
        ("conv_integer:x=1x3x5x5:u8,w=4x3x1x1:i8,w_zero=3:i8", "w_zero is 3; it is one number or 4"),
        ("conv_integer:x=1x3x5x5:u8,w=4x3x1x1:i8,w_zero=4:u8", "w is i8 and its zero point u8"),
        ("conv_integer:x=1x3x5x5:u8,w=4x2x1x1:i8", "x has 3 channels, but w has 2 per group"),
        ("conv_integer:x=1x3x5:u8,w=4x3x1x1:i8", r"takes x \(N, C, H, W\)"),
        (f"qlinear_conv:x=1x3x5x5:u8,w=4x3x1x1:i8,x_zero=scalar:u8,{SCALES},b=4", "with 4 output channels it is 4:i32"),
        (
            f"qlinear_conv:x=1x3x5x5:u8,w=4x3x1x1:i8,x_zero=scalar:u8,{WIDE_ZERO}",
            "y is i32",
        ),
        ("matmul_integer:a=3:u8,b=3x4:i8", "operands of rank 2 or more"),
        ("matmul_integer:a=2x3:u8,b=4x5:i8", "sums over 3 elements"),
        ("matmul_integer:a=2x3:u8,b=3x5:i8,a_zero=3:u8", "it is one number or 2, one per row"),
        ("matmul_integer:a=2x3:u8,b=3x5:i8,b_zero=5x1:i8", "it is one number or 5, one per column"),
        (
            f"qlinear_matmul:a=4x2x3:u8,b=3x5:i8,a_scale=4x2x1,a_zero=4x2x1:u8,{ROWS}",
            "it is one number or 2, one per row",
        ),
        (
            f"qlinear_matmul:a=2x3:u8,b=3x5:i8,a_scale=scalar:i32,a_zero=scalar:u8,{ROWS}",
            "a_scale is i32; it must be f32",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(text, words):
    with pytest.raises(GraphError, match=words):
        parse_call(text, OPS)


def test_halves_round_to_even_and_ends_saturate():
    x = np.array([-1000, -0.5, 0.5, 1.5, 2.5, 126.5, 1e9, np.nan, np.inf, -np.inf])
    (y,) = reference("quantize_linear:x=10,y_scale=scalar,y_zero=scalar:i8", x=x, y_scale=1.0, y_zero=np.int8(1))
    np.testing.assert_array_equal(y, [-128, 1, 1, 3, 3, 127, 127, 1, 127, -128])


def test_sums_wrap_at_32_bits():
    x, w = np.full((1, 70000, 1, 1), 255, np.uint8), np.full((1, 70000, 1, 1), 255, np.uint8)
    (y,) = reference("conv_integer:x=1x70000x1x1:u8,w=1x70000x1x1:u8", x=x, w=w)
    assert y.dtype == np.int32 and int(y[0, 0, 0, 0]) == 70000 * 255 * 255 - 2**32
    a, b = x.reshape(1, -1), w.reshape(-1, 1)
    (y,) = reference("matmul_integer:a=1x70000:u8,b=70000x1:u8", a=a, b=b)
    assert int(y[0, 0]) == 70000 * 255 * 255 - 2**32


def test_padding_is_the_zero_point():
    x, w = np.full((1, 1, 2, 2), 7, np.uint8), np.ones((1, 1, 3, 3), np.int8)
    (y,) = reference("conv_integer:x=1x1x2x2:u8,w=1x1x3x3:i8,x_zero=scalar:u8,p=1", x=x, w=w, x_zero=np.uint8(7))
    assert not y.any()


def test_a_dynamic_range_has_0_in_it():
    y, scale, zero = reference("dynamic_quantize_linear:x=3", x=np.array([2.0, 4.0, 5.1], np.float32))
    assert zero == 0 and scale == np.float32(5.1) / np.float32(255)
    np.testing.assert_array_equal(y, [100, 200, 255])


def test_devices_take_the_route_that_they_have_instructions_for():
    layer = parse_call(f"qlinear_conv:x=1x64x56x56:u8,w=64x64x3x3:i8,x_zero=scalar:u8,{SCALES},p=1", OPS)
    first = parse_call(f"qlinear_conv:x=1x3x56x56:u8,w=64x3x3x3:i8,x_zero=scalar:u8,{SCALES},p=1", OPS)
    taken = {
        name: choose(OPS["qlinear_conv"].routes, layer, load_device(name))
        for name in ("h200", "mali-g57", "lavapipe", "mali-g610-panvk", "mali-g52-panvk")
    }
    assert {name: choice.route.name for name, choice in taken.items()} == {
        "h200": "dot",
        "mali-g57": "gemm",
        "lavapipe": "tile",
        "mali-g610-panvk": "dot",
        "mali-g52-panvk": "gemm",
    }
    slow = next(v for v in taken["mali-g52-panvk"].verdicts if v.route.name == "dot")
    assert slow.allowed and "PackedSignedAccelerated off" in str(slow)
    refused = next(v for v in taken["mali-g57"].verdicts if v.route.name == "dot")
    assert not refused.allowed and "integer dot products" in refused.refused_by
    assert choose(OPS["qlinear_conv"].routes, first, load_device("h200")).route.name == "tile"


def test_every_tile_loads_whole_columns():
    for tile in TILES.values():
        assert tile.local % tile.columns == 0 and tile.rows % tile.lane_rows == 0
        assert tile.local <= tile.depth * tile.columns, "sums of columns meet where a k-tile of them was"
