"""Blocks of subgroup_depthwise."""

import pytest

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.depthwise_subgroup import SUBGROUP_DEPTHWISE
from vkconv.ops.core.calls import parse_call


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_row_of_a_block_is_a_vector_where_planes_are_one_row(dtype):
    call = parse_call(f"conv2d:x=16x512x22x22,w=512x1x1x1,g=512,dtype={dtype}", OPS)
    assert SUBGROUP_DEPTHWISE.params(call, load_device("h100"))["columns"][0] == 4
