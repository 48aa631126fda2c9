"""Routes that are no first choice where the compiler of a phone's GPU spilled them (vkconv/device/compiled)."""

import pytest

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import choose


def chosen(text, device):
    call = parse_call(text, OPS)
    return choose(OPS[call.op].routes, call, load_device(device)).route.name


@pytest.mark.parametrize("device", ["mali-g610-panvk", "mali-g715", "raspberry-pi-5"])
def test_a_lane_holds_a_row_of_as_many_elements_as_stayed_in_registers(device):
    assert chosen("softmax:x=65536x40,axis=1", device) == "one_lane"
    # 49 elements spilled, and more were not compiled by that GPU for all of these.
    assert {chosen(f"softmax:x=65536x{n},axis=1,dtype=f16", device) for n in (49, 53, 61)} == {"serial"}


@pytest.mark.parametrize(
    ("device", "kept"), [("mali-g610-panvk", {16, 64}), ("raspberry-pi-5", set()), ("adreno-740", {16, 32, 64})]
)
@pytest.mark.parametrize("more", ["", ",mask=8x3x49x49", ",dtype=f16"])
def test_flash_attention_is_for_heads_whose_tile_stays_in_registers(device, kept, more):
    """Only the tile of 4x4 was compiled for each; one of more queries and keys needs more registers."""
    heads = {n: f"q=8x3x49x{n},k=8x3x49x{n},v=8x3x49x{n}" for n in (16, 32, 64)}
    assert {n for n, text in heads.items() if chosen(f"attention:{text}{more}", device) == "flash"} == kept


def test_a_separable_convolution_whose_tiles_all_spill_is_not_fused():
    text = "separable_conv2d:x=1x32x320x320,wd=32x1x3x3,w=48x32x1x1,bd=32,b=48,s=2,p=1,act=hard_swish"
    assert chosen(text, "raspberry-pi-5") == "unfused"
    assert chosen(text, "mali-g610-panvk") == "one_launch"
