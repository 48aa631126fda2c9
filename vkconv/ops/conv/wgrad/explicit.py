"""The gradient by one tap as a matrix product of each image and group, and the sum over images.

The product is a launch, not an inner matmul: its results are f32 slices, which no matmul of 16-bit floats writes.
"""

import math

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.ops.conv.wgrad.combine import combine
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.requirements import loop_iterations, within_scratch
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.coopmat import TILES
from vkconv.ops.kernels.coopmat_gemm import PRODUCT_TO_F32, cooperative_params, cooperative_product
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.gemm import GemmProblem
from vkconv.ops.kernels.products import params as product_params
from vkconv.ops.kernels.products import product
from vkconv.program import Dispatch, Program
from vkconv.route import Legal, Params, Requirement


def _gemm(call: Call) -> GemmProblem:
    """dy (C_out / groups, pixels) by x (pixels, C_in / groups) of each image and group."""
    p = WeightGradient.of(call)
    plane = math.prod(p.out)
    each = ((p.n, p.c_out * plane, p.c_in * plane), (p.groups, p.rows * plane, p.channels * plane))
    batch = tuple(row for row in each if row[0] > 1)
    return GemmProblem(p.rows, p.channels, plane, (plane, 1), (1, plane), (p.channels, 1), batch)


_OPERANDS, _TO_SCRATCH = ("dy", "x"), Epilogue(target="slices")


def build(call: Call, device: Device, params: Params) -> Program:
    """Products in f32."""
    return _summed(call, device, product(params["tile"], _gemm(call), _OPERANDS, _TO_SCRATCH, device))


def build_cooperative(call: Call, device: Device, params: Params) -> Program:
    """Products of 16-bit floats by cooperative matrices."""
    tile = TILES[params["tile"]]
    made = cooperative_product(_gemm(call), _OPERANDS, _TO_SCRATCH, tile, device, PRODUCT_TO_F32)
    return _summed(call, device, made)


def _summed(call: Call, device: Device, made: Dispatch) -> Program:
    images = WeightGradient.of(call).n
    return Program((made, combine(call, images, device)), scratch={"slices": _scratch_bytes(call, device)})


def params(call: Call, device: Device) -> Legal:
    """The tile of the product."""
    return product_params(_gemm(call), device, element_of(call))


def params_cooperative(call: Call, device: Device) -> Legal:
    """The tile of the product."""
    return cooperative_params(_gemm(call), device)


def note(call: Call, device: Device, params: Params) -> str:
    """Images and scratch."""
    return f"{WeightGradient.of(call).n} images; {bytes_str(_scratch_bytes(call, device))} scratch"


def _scratch_bytes(call: Call, device: Device) -> int:
    p = WeightGradient.of(call)
    return 4 * p.size * p.n


def _iterations(call: Call, device: Device) -> int:
    g = _gemm(call)
    return max(g.k, g.batches)


MUST = (
    Requirement.of("at least one image to multiply", WeightGradient.of, lambda p: p.n > 0, lambda p: "an empty batch"),
    within_scratch(_scratch_bytes, "a slice of each image"),
    loop_iterations(_iterations),
)
_LEAST_SIDE, _LEAST_PIXELS = 32, 64
FILLS_MATRICES = Requirement.of(
    f"at least {_LEAST_SIDE} channels of a group, in and out, and images of {_LEAST_PIXELS} pixels",
    _gemm,
    lambda g: g.least_side >= _LEAST_SIDE and g.k >= _LEAST_PIXELS,
    lambda g: f"{g.n} in, {g.m} out, {g.k} pixels",
)
