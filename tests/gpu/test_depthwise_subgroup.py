"""subgroup_depthwise by vectors of four, two and one: rows of every length, windows that begin and end inside a vector,
residuals and activations that end them."""

import dataclasses
from types import SimpleNamespace

import pytest
from route_kit import draw, expect, right

from vkconv.backend.runtime import open_device
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d import depthwise_subgroup
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu
ENDS = ("b=6,act=hard_swish", "residual={y},act=relu")


def text_of(width, kernel, stride, left, end):
    """Six channels of five rows, padded at the left and by one at the right."""
    columns = (width + left + 1 - kernel) // stride + 1
    rows = (5 + 2 - kernel) // stride + 1
    window = f"w=6x1x{kernel}x{kernel},s={stride}x{stride},p=1x{left}x1x1,g=6"
    return f"conv2d:x=2x6x5x{width},{window},{end.format(y=f'2x6x{rows}x{columns}')}"


@pytest.mark.parametrize("width", [7, 12, 14, 20])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1)])
def test_vectors_of_rows_agree_with_the_reference(width, kernel, stride, device):
    for left, end in ((0, ENDS[0]), (1, ENDS[1]), (3, ENDS[0])):
        call = parse_call(text_of(width, kernel, stride, left, end), OPS)
        for rows, columns in ((1, 8), (3, 16)):
            right(call, draw(call, "normals"), "subgroup_depthwise", device, {"rows": rows, "columns": columns})


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("size", ["7x7", "6x5", "2x3", "20x14"])
def test_blocks_of_several_planes_in_a_subgroup_agree(size, lanes, device, monkeypatch):
    """As GPUs have it: planes of fewer blocks than lanes, two outputs of an input channel, and lanes beyond the end."""
    facts = open_device(device).device
    blocks = depthwise_subgroup._BLOCKS.of(facts)
    packed = SimpleNamespace(of=lambda device: dataclasses.replace(blocks, packed=True), said=str)
    monkeypatch.setattr(depthwise_subgroup, "_BLOCKS", packed)
    call = parse_call(f"conv2d:x=3x5x{size},w=10x1x3x3,b=10,act=relu,p=1x1x1x1,g=5", OPS)
    for rows, columns in ((1, 2), (4, 4), (7, 1)):
        params = {"rows": rows, "columns": columns, "local": lanes * facts.subgroup_size}
        right(call, draw(call, "normals"), "subgroup_depthwise", device, params)


def test_whole_numbers_are_exact(device):
    call = parse_call("conv2d:x=1x5x11x28,w=10x1x3x3,b=10,p=1x1x1x1,g=5", OPS)
    arrays = draw(call, "integers")
    y = right(call, arrays, "subgroup_depthwise", device)
    assert y.tobytes() == expect(call, arrays).outputs[0].astype(y.dtype).tobytes()
