"""The routes of prologue_conv2d: implicit GEMM that finishes its input as it loads it, and the two steps in turn."""

import math
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.by_images import BY_IMAGES
from vkconv.ops.conv.common import KERNEL_1X1
from vkconv.ops.conv.conv2d.implicit_gemm import GEMM, implicit_gemm, params_by_rule
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.conv.tiles import FITS_SMALLEST
from vkconv.ops.core.requirements import FLOATS, ON_GPU
from vkconv.ops.fused.in_turn import UNFUSED, taken_alone
from vkconv.ops.kernels.epilogue import finishing
from vkconv.ops.kernels.prepack import PACK_TILES
from vkconv.ops.kernels.prologue import FORM, Prologue, binds_prologue, bound_buffers, with_prologue
from vkconv.ops.pointwise.chain import CHAIN
from vkconv.policy import Policy
from vkconv.program import Composite, Inner, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub

CONV_ATTRS = tuple(attr.name for attr in CONV2D.attrs)  # its own too
_SCALED = "scaled"


def convolution_of(call: Call) -> Call:
    """The conv2d of what the scale, shift and activation before it leave."""
    operands = {operand.name: call.operands.get(operand.name) for operand in CONV2D.operands}
    return CONV2D.call(operands, {name: call[name] for name in CONV_ATTRS})


def each_image(call: Call) -> bool:
    """Whether each image has scales of its own."""
    return call.operands["scale"].size != call.shape("x")[1]  # type: ignore[union-attr]


def before(call: Call) -> Call:
    """What comes before the convolution as a call of its own: a chain of elementwise operations."""
    x, scale, shift = (call.operands.get(name) for name in ("x", "scale", "shift"))
    assert x is not None and scale is not None
    n, c = x.dims[:2]
    operands = {"x0": x, "x1": TensorSpec((n if each_image(call) else 1, c, 1, 1), scale.dtype)}
    if shift is not None:
        operands["x2"] = TensorSpec((1, c, 1, 1), shift.dtype)
    act = (str(call["before"]),) if call["before"] != "none" else ()
    steps = ("mul_x1", *(("add_x2",) if shift is not None else ()), *act)
    return CHAIN.call(operands, {"steps": "/".join(steps), "numbers": ()})


def _params(call: Call, device: Device) -> Legal:
    return params_by_rule(convolution_of(call), device, FORM)


def _fused(call: Call, device: Device, params: Params) -> Program:
    prologue = Prologue("scale", "shift" if call.has("shift") else None, str(call["before"]), each_image(call))
    return implicit_gemm(convolution_of(call), device, params, prologue=prologue)


_BINDS = Requirement(
    "storage buffers for input, weights, what is per channel, output, scale, shift and residual",
    binds_prologue,
    lambda call, device: (
        f"{bound_buffers(call)} buffers, and it allows {device.limit('maxPerStageDescriptorStorageBuffers')}"
    ),
)
TAKEN = Policy("fused.prologue", bool)
_PAYS = Requirement(
    "a device on which a launch less pays for the registers that it takes",
    lambda call, device: TAKEN.of(device),
    lambda call, device: "it pays" if TAKEN.of(device) else "not known to pay there",
)
_KERNEL_1X1 = Requirement(
    KERNEL_1X1.text,
    lambda call, device: KERNEL_1X1.test(convolution_of(call), device),
    lambda call, device: KERNEL_1X1.actual(convolution_of(call), device),
)


def _inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    products = tuple(route for route in CONV2D.routes if route.rounds_as_f32 and route.name != BY_IMAGES)
    return {"chain": Sub(before(call), CHAIN.routes), "conv2d": Sub(convolution_of(call), products)}


def _in_turn(call: Call, device: Device, params: Params) -> Composite:
    shift = {"x2": "shift"} if call.has("shift") else {}
    steps = Inner("chain", {"x0": "x", "x1": "scale", **shift, "y": _SCALED}), Inner("conv2d", {"x": _SCALED})
    nbytes = 4 * math.prod(call.shape("x"))
    return Composite(steps, scratch={_SCALED: nbytes}, elements=frozenset({_SCALED}))


ROUTES: tuple[Route, ...] = (
    Route(
        "fused_gemm",
        _fused,
        finishing(with_prologue(GEMM), PACK_TILES),
        why="conv2d's route implicit_gemm, which scales, shifts and activates elements of the input as it loads them: "
        "they are neither written nor read once more, and a launch less runs; taps of larger kernels would do it again",
        must=(FLOATS, *FITS_SMALLEST, _BINDS),
        prefer=(ON_GPU, _PAYS, _KERNEL_1X1, taken_alone(CONV2D, "convolution", convolution_of)("implicit_gemm")),
        params=_params,
    ),
    Route(
        UNFUSED,
        _in_turn,
        tuple(dict.fromkeys(s for op in (CHAIN, CONV2D) for route in op.routes for s in route.shaders)),
        why="what comes before into scratch, then the convolution by its own best route: what fusing must beat",
        must=(FLOATS,),
        inner=_inner,
        note=lambda call, device, params: f"{bytes_str(call.operands['x'].nbytes)} of scratch between the two",  # type: ignore[union-attr]
    ),
)
