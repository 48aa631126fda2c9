"""The second pass of a convolution's gradient by its weights: parts of the sum to dw, in a fixed order."""

import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad.problem import Problem
from vkconv.ops.core.base import linear_groups
from vkconv.program import Dispatch, positional, read, write

COMBINE = Shader(shaders.wgrad.BACKWARD_WEIGHT_COMBINE)
# Of a workgroup that adds the parts: elements, and lanes for each where there are many parts. A CPU driver has no use
# for lanes that meet in shared memory.
_ELEMENTS, _LANES, _MANY_PARTS = {"cpu": 8}, {"cpu": 1}, 16
_GPU_ELEMENTS, _GPU_LANES = 64, 8


def combine(call: Call, parts: int, device: Device, by_taps: bool = False) -> Dispatch:
    """Parts, which lie as dw or with ``by_taps`` have the input channels of a tap side by side, to dw; with none, what
    atomics then add to."""
    p, has_add = Problem.of(call), call.has("add")
    lanes = _LANES.get(device.kind, _GPU_LANES) if parts >= _MANY_PARTS else 1
    elements = _ELEMENTS.get(device.kind, _GPU_ELEMENTS) // min(lanes, 4)
    return positional(
        COMBINE,
        (*read("parts" if parts else None, "add" if has_add else None), *write("dw")),
        linear_groups(ceil_div(p.size, elements), 1, device),
        (lanes * elements, 1, 1),
        (p.size, parts, math.prod(p.kernel), p.channels, float(call["scale"]) if parts else 1.0, float(call["beta"])),
        (has_add, lanes, elements, by_taps),
        4 * lanes * elements,
        parts,
    )
