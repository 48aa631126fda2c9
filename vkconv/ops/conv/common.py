"""What the routes of conv2d share: the push block and buffers of shaders/include/conv2d.glsl, and requirements."""

import math

from vkconv.call import Call
from vkconv.core import shape_str
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.windows import spanned
from vkconv.program import Argument
from vkconv.route import Requirement

_PUSH = ("n", "c_in", "h", "w", "c_out", "oh", "ow", "groups", "kh", "kw", "sh", "sw", "dh", "dw", "pt", "pl")


def push(call: Call, e: Epilogue) -> dict[str, Argument]:
    """The push block."""
    shapes = (*call.shape("x"), *call.shape("y")[1:], call["groups"], *call.shape("w")[2:])
    words = (*shapes, *call["stride"], *call["dilation"], *call["padding"][:2])
    return {**dict(zip(_PUSH, words, strict=True)), **e.push}


def buffers(e: Epilogue, weight: str, x: str = "x") -> dict[str, str | None]:
    """What a launch binds: the input, the weights, where its results go, and what finishes them."""
    return {"x": x, "weight": weight, "y": e.target, **e.buffers}


def span(call: Call, axis: int, outputs: int) -> int:
    """Inputs along an axis (0: h, 1: w) from the first to the last that so many neighbouring outputs touch."""
    return spanned(outputs, int(call["stride"][axis]), call.shape("w")[2 + axis], int(call["dilation"][axis]))


GROUPS_1 = Requirement(
    "groups 1", lambda call, device: call["groups"] == 1, lambda call, device: f"{call['groups']} groups"
)
ONE_CHANNEL_PER_GROUP = Requirement(
    "one input channel per group",
    lambda call, device: call.shape("w")[1] == 1,
    lambda call, device: f"{call.shape('w')[1]} channels per group",
)
GROUPED = Requirement(
    "more than one group", lambda call, device: call["groups"] > 1, lambda call, device: f"{call['groups']} groups"
)
KERNEL_1X1 = Requirement(
    "a 1x1 kernel",
    lambda call, device: call.shape("w")[2:] == (1, 1),
    lambda call, device: shape_str(call.shape("w")[2:]),
)
NO_PADDING = Requirement(
    "no padding", lambda call, device: not any(call["padding"]), lambda call, device: shape_str(call["padding"])
)
LARGER_THAN_1X1 = Requirement(
    "a kernel larger than 1x1",
    lambda call, device: call.shape("w")[2:] != (1, 1),
    lambda call, device: shape_str(call.shape("w")[2:]),
)
KERNEL_3X3 = Requirement(
    "a 3x3 kernel",
    lambda call, device: call.shape("w")[2:] == (3, 3),
    lambda call, device: shape_str(call.shape("w")[2:]),
)
STRIDE_1 = Requirement(
    "stride 1", lambda call, device: call["stride"] == (1, 1), lambda call, device: shape_str(call["stride"])
)
NO_DILATION = Requirement(
    "no dilation", lambda call, device: call["dilation"] == (1, 1), lambda call, device: shape_str(call["dilation"])
)
# Taps that a shader unrolls at most.
_MOST_TAPS = 49
FEW_TAPS = Requirement(
    f"a kernel of at most {_MOST_TAPS} taps",
    lambda call, device: math.prod(call.shape("w")[2:]) <= _MOST_TAPS,
    lambda call, device: f"{math.prod(call.shape('w')[2:])} taps",
)
