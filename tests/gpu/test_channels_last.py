"""Copies of an input with channels last, which convolutions by cooperative matrices read: all ways make the same."""

import dataclasses
import math

import numpy as np
import pytest
from dispatch_kit import launch

from vkconv.backend.runtime import open_device
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.channels_last import CHANNELS_LAST, CHANNELS_LAST_WORDS, ChannelsLast
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu
IN_WORDS = (
    "conv2d:x=2x24x6x8,w=8x24x3x3,p=1",
    "conv2d:x=3x67x8x9,w=8x67x3x3,p=2x1x0x3",
    "conv2d:x=2x20x2x6,w=12x5x2x2,p=0x1x3x0,g=4",
    "conv2d:x=1x3x4x5,w=8x3x3x3,s=2",
    "conv2d:x=2x9x1x4,w=8x9x1x3,p=0x7x0x5",
    "conv2d:x=5x33x16x14,w=8x33x5x3,s=3,d=2,p=1x0",
)
IN_PIXELS = (
    "conv2d:x=2x24x5x7,w=8x24x3x3,p=1",
    "conv2d:x=2x12x8x8,w=8x6x1x1,s=2x3,g=2",
    "conv2d:x=1x8x4x4,w=8x8x1x3,s=2",
)


def copied(call, x):
    """What the copy is, by numpy: [image][row][column][group][channels up to whole eights]."""
    copy = ChannelsLast(call)
    n, c, h, w = x.shape
    groups, channels = call["groups"], c // call["groups"]
    (rows, columns), (top, left) = copy.extents, call["padding"][:2]
    y, x_at = (
        np.arange(count) * step - pad for count, step, pad in zip((rows, columns), copy.steps, (top, left), strict=True)
    )
    inside = ((y >= 0) & (y < h))[:, None] & ((x_at >= 0) & (x_at < w))
    picked = x[:, :, np.clip(y, 0, h - 1)][:, :, :, np.clip(x_at, 0, w - 1)] * inside
    made = np.zeros((n, rows, columns, groups, copy.vectors // groups * 8), x.dtype)
    made[..., :channels] = picked.transpose(0, 2, 3, 1).reshape(n, rows, columns, groups, channels)
    return made.ravel()


@pytest.mark.parametrize(
    ("text", "shader"), [(t, CHANNELS_LAST_WORDS) for t in IN_WORDS] + [(t, CHANNELS_LAST) for t in IN_PIXELS]
)
def test_a_copy_with_channels_last_has_every_element_in_its_place(text, shader, device):
    call = parse_call(f"{text},dtype=f16", OPS)
    copy = ChannelsLast(call)
    facts = open_device(device).device
    step = copy.dispatch(facts)
    assert step.shader == shader
    step = dataclasses.replace(step, buffers=dict(zip(step.buffers, "xy", strict=True)))
    shape = call.shape("x")
    x = np.random.default_rng(5).integers(1, 1 << 16, shape, np.uint16)
    y = launch(device, {"x": 2 * math.prod(shape), "y": copy.nbytes}, step, x.ravel(), np.uint16)
    assert np.array_equal(y, copied(call, x))
