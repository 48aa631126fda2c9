"""Tiles for GPUs of few registers: short k-tiles, k-tiles in a loop, small invocations. No shape is a whole tile."""

import pytest
from route_kit import draw

from vkconv.check import check_call
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

CONV = ("64x64x8", "64x32x8", "32x64x4", "32x32x4", "64x64x16loop", "64x32x16loop", "32x64x16loop", "32x32x16loop")
SHARED = ("32x32x8", "64x64x16loop", "64x64x8loop", "32x32x16loop", "32x32x8loop")
PRODUCT = ("shared_64x64x8", "shared_32x32x8", "shared_64x64x16loop", "shared_32x32x16loop", "register_4x4")
# A CPU driver takes no larger ones.
GRADIENT = tuple(f"gemm_32x32x{k_tile}_4x4" for k_tile in ("8", "4", "16loop", "8loop", "4loop"))
INTEGER = ("32x64x8_2x4", "32x32x8_2x4", "16x64x8", "16x32x8")
ALL = {
    ("conv2d:x=2x10x7x13,w=70x5x3x3,p=1,b=70,g=2,act=tanh", "implicit_gemm", "linear=0"): CONV,
    ("conv2d:x=1x3x9x31,w=37x3x5x3,s=2,p=1,dtype=f16", "implicit_gemm", "split_k=3"): CONV,
    ("conv_transpose2d:x=2x5x7x19,w=5x37x3x3,s=2,p=1,b=37,op=1", "transposed_phases", ""): CONV,
    ("conv_reduce:x=3x13x5x7,w=35x13x1x1,b=35,op=max", "fused_partials", ""): CONV,
    ("matmul:a=3x67x37,b=37x71,bias=71", "shared", ""): SHARED,
    ("matmul:a=36x68,b=44x36,ta=1,tb=1,alpha=0.5,dtype=bf16", "shared", ""): SHARED,
    ("gemm_reduce:a=2x67x19,b=19x71,bias=71,axis=m", "fused_partials", ""): SHARED,
    ("conv2d:x=1x8x9x13,w=37x8x3x3,p=1,b=37", "im2col_gemm", ""): PRODUCT,
    ("conv2d_backward_weight:x=3x7x9x11,dy=3x37x9x11,w_shape=37x7x3x3,p=1", "two_stage", "split_k=3"): GRADIENT,
    ("conv2d_backward_weight:x=3x40x4x7,dy=3x37x4x7,w_shape=37x40x1x1", "two_stage", "split_k=2"): GRADIENT,
    ("conv_integer:x=1x9x5x37:u8,w=37x9x3x3:i8,x_zero=scalar:u8,p=1", "gemm", ""): INTEGER,
    ("matmul_integer:a=67x33:u8,b=33x71:i8,a_zero=scalar:u8", "shared", ""): INTEGER,
}


@pytest.mark.parametrize(("case", "tiles"), ALL.items(), ids=["-".join(case) for case in ALL])
def test_a_tile_agrees_with_the_reference(case, tiles, device):
    text, route, more = case
    call, (name, _, value) = parse_call(text, OPS), more.partition("=")
    inputs = draw(call, "integers")
    for tile in tiles:
        params = {"tile": tile} | ({name: int(value)} if name else {})
        ran, checked = check_call(call, inputs, device=device, route=route, params=params)
        assert ran.route == route and ran.params["tile"] == tile
        assert checked.ok, f"{tile}: {checked.problem}"
