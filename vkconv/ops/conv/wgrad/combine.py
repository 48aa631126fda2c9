"""The second pass of a convolution's gradient by its weights: split-K slices to dw, in a fixed order."""

import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.base import linear_groups
from vkconv.program import Dispatch

COMBINE = Shader(shaders.wgrad.BACKWARD_WEIGHT_COMBINE)
# Elements of a workgroup, and lanes of each element where there are many slices. Lanes that meet in shared memory are
# slow on a CPU driver.
_ELEMENTS, _LANES, _MANY_SLICES = {"cpu": 8}, {"cpu": 1}, 16
_GPU_ELEMENTS, _GPU_LANES = 64, 8


def combine(call: Call, slices: int, device: Device, by_taps: bool = False) -> Dispatch:
    """Sums slices, which lie as dw or with ``by_taps`` as [output channel][tap][input channel]; with none, writes what
    atomics then add to."""
    p, has_add = WeightGradient.of(call), call.has("add")
    lanes = _LANES.get(device.kind, _GPU_LANES) if slices >= _MANY_SLICES else 1
    elements = _ELEMENTS.get(device.kind, _GPU_ELEMENTS) // min(lanes, 4)
    return Dispatch(
        COMBINE,
        buffers={"parts": "parts" if slices else None, "add": "add" if has_add else None, "dw": "dw"},
        groups=linear_groups(ceil_div(p.size, elements), 1, device),
        local=(lanes * elements, 1, 1),
        push={
            "total": p.size,
            "part_count": slices,
            "taps": math.prod(p.kernel),
            "channels": p.channels,
            "scale": float(call["scale"]) if slices else 1.0,
            "beta": float(call["beta"]),
        },
        constants={"HAS_ADD": has_add, "LANES": lanes, "ELEMENTS": elements, "BY_TAPS": by_taps},
        shared_bytes=4 * lanes * elements,
        loop_iterations=slices,
    )
