"""The second pass of a convolution's gradient by its weights: split-K slices to dw, in a fixed order."""

import dataclasses
import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.base import over_workgroups
from vkconv.ops.kernels.launch_costs import LaunchCosts
from vkconv.policy import Policy
from vkconv.program import Dispatch

COMBINE = Shader(shaders.wgrad.BACKWARD_WEIGHT_COMBINE)


@dataclasses.dataclass(frozen=True, slots=True)
class _Combining:
    """Elements of a workgroup, and lanes of each from so ``many`` slices on."""

    elements: int
    lanes: int
    many: int


_SIZES = Policy("wgrad.combine", _Combining)
COMBINING = Policy("wgrad.combine_costs", LaunchCosts)
"""What the launch costs."""


def plus(sums: str, added: str, factor: float, target: str, size: int, device: Device) -> Dispatch:
    """The launch that writes ``sums``, of f32, plus ``factor`` times the operand ``added``."""
    elements = _SIZES.of(device).elements
    return Dispatch(
        COMBINE,
        {"slices": sums, "add": added, "dw": target},
        *over_workgroups(ceil_div(size, elements), elements, device),
        push={"total": size, "slice_count": 1, "taps": 1, "channels": 1, "scale": 1.0, "beta": factor},
        constants={"HAS_ADD": True, "LANES": 1, "ELEMENTS": elements, "BY_TAPS": False},
        shared_bytes=4 * elements,
        loop_iterations=1,
    )


def combine(call: Call, slices: int, device: Device, by_taps: bool = False) -> Dispatch:
    """Sums slices, which lie as dw or with ``by_taps`` as [output channel][tap][input channel]; with none, writes what
    atomics then add to."""
    p, has_add = WeightGradient.of(call), call.has("add")
    combining = _SIZES.of(device)
    lanes = combining.lanes if slices >= combining.many else 1
    elements = combining.elements // min(lanes, 4)
    return Dispatch(
        COMBINE,
        {"slices": "slices" if slices else None, "add": "add" if has_add else None, "dw": "dw"},
        *over_workgroups(ceil_div(p.size, elements), lanes * elements, device),
        push={
            "total": p.size,
            "slice_count": slices,
            "taps": math.prod(p.kernel),
            "channels": p.channels,
            "scale": float(call["scale"]) if slices else 1.0,
            "beta": float(call["beta"]),
        },
        constants={"HAS_ADD": has_add, "LANES": lanes, "ELEMENTS": elements, "BY_TAPS": by_taps},
        shared_bytes=4 * lanes * elements,
        loop_iterations=slices,
    )
