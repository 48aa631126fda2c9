"""What the routes of conv2d share: the push block and buffers of shaders/include/conv2d.glsl, and requirements."""

import dataclasses
import math

from vkconv.call import Call
from vkconv.core import shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.shapes import groups_str
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.windows import spanned
from vkconv.program import Argument
from vkconv.requirement import Requirement

_PUSH = ("n", "c_in", "h", "w", "c_out", "oh", "ow", "groups", "kh", "kw", "sh", "sw", "dh", "dw", "pt", "pl")


def push(call: Call, e: Epilogue) -> dict[str, Argument]:
    """The push block."""
    shapes = (*call.shape("x"), *call.shape("y")[1:], call["groups"], *call.shape("w")[2:])
    words = (*shapes, *call["stride"], *call["dilation"], *call["padding"][:2])
    return {**dict(zip(_PUSH, words, strict=True)), **e.push}


def buffers(e: Epilogue, weight: str, x: str = "x") -> dict[str, str | None]:
    """What a launch binds: the input, the weights, where its results go, and what finishes them."""
    return {"x": x, "weight": weight, "y": e.target, **e.buffers}


def is_matrix(call: Call) -> bool:
    """Whether the input is a matrix of channels by pixels as it lies."""
    return call.shape("w")[2:] == (1, 1) and call["stride"] == (1, 1) and not any(call["padding"])


def flattened(call: Call) -> Call:
    """The call as kernels by rows see it: the planes of a matrix are one long row each."""
    if not is_matrix(call):
        return call

    def row(planes: TensorSpec) -> TensorSpec:
        n, c, h, w = planes.dims
        return TensorSpec((n, c, 1, h * w), planes.dtype)

    x, y = row(call.specs["x"]), row(call.outputs["y"])
    return dataclasses.replace(call, operands={**call.operands, "x": x}, outputs={"y": y})


def span(call: Call, axis: int, outputs: int) -> int:
    """Inputs along an axis (0: h, 1: w) from the first to the last that so many neighbouring outputs touch."""
    return spanned(outputs, int(call["stride"][axis]), call.shape("w")[2 + axis], int(call["dilation"][axis]))


def _groups(call: Call) -> int:
    return int(call["groups"])


def _kernel(call: Call) -> tuple[int, ...]:
    return call.shape("w")[2:]


GROUPS_1 = Requirement.of("groups 1", _groups, lambda groups: groups == 1, groups_str)
GROUPED = Requirement.of("more than one group", _groups, lambda groups: groups > 1, groups_str)
ONE_CHANNEL_PER_GROUP = Requirement.of(
    "one input channel per group", lambda call: call.shape("w")[1], lambda n: n == 1, "{} channels per group".format
)
KERNEL_1X1 = Requirement.of("a 1x1 kernel", _kernel, lambda kernel: kernel == (1, 1), shape_str)
LARGER_THAN_1X1 = Requirement.of("a kernel larger than 1x1", _kernel, lambda kernel: kernel != (1, 1), shape_str)
NO_PADDING = Requirement.of("no padding", lambda call: call["padding"], lambda pads: not any(pads), shape_str)
STRIDE_1 = Requirement.of("stride 1", lambda call: call["stride"], lambda steps: steps == (1, 1), shape_str)
NO_DILATION = Requirement.of("no dilation", lambda call: call["dilation"], lambda steps: steps == (1, 1), shape_str)
# Taps that a shader unrolls at most.
_MOST_TAPS = 49
FEW_TAPS = Requirement.of(
    f"a kernel of at most {_MOST_TAPS} taps",
    lambda call: math.prod(_kernel(call)),
    lambda taps: taps <= _MOST_TAPS,
    "{} taps".format,
)
