"""What other systems take for a convolution: ExecuTorch by add_conv2d_node of its Vulkan backend (executorch#20190),
IREE by SetSplitReductionSizes (iree#23524 for batches that come first, iree#24293)."""

import math

from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.conv.common import is_matrix
from vkconv.ops.conv.conv2d.coopmat import COOPERATIVE
from vkconv.ops.conv.conv2d.implicit_gemm import IMPLICIT_GEMM
from vkconv.ops.conv.conv2d.routes import ROUTES
from vkconv.ops.core.published import Published, Rules
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.kernels.epilogue import SPLIT_K_SLICES
from vkconv.ops.kernels.split_k import has_low_parallelism
from vkconv.ops.kernels.split_rules import Sum, bands, matmul_bands
from vkconv.policy import Policy
from vkconv.route import choose, may_take

_IM2COL = Policy("published.executorch_im2col", int)
_DIRECT = ("direct_tile", "grouped", "direct")


def _executorch(call: Call, device: Device) -> Published | None:
    images, groups = call.shape("x")[0], call["groups"]
    c_out, of_group, *kernel = call.shape("w")
    if images != 1:
        return None  # it refuses several images
    if c_out == groups and of_group == 1:
        return Published(("depthwise", *_DIRECT), "a channel of its own for each group")
    if kernel == [1, 1]:
        return Published(("pointwise", *_DIRECT), "one tap")
    least = _IM2COL.of(device)
    if groups == 1 and call["dilation"] == (1, 1) and c_out >= least:
        return Published(("im2col_gemm",), f"{c_out} output channels, at least {least} ({_IM2COL.said(device)})")
    return Published(_DIRECT, f"groups, dilation, or {c_out} output channels of {least} ({_IM2COL.said(device)})")


def iree_slices(call: Call, device: Device) -> tuple[int, str]:
    """Slices of the sum by IREE's bands, of those that routes have and that the scratch holds, and why. Its batch comes
    first and its channels last; one tap at each pixel is a matrix product to it."""
    (c_out, of_group, *kernel), groups = call.shape("w"), int(call["groups"])
    low, rows = has_low_parallelism(device), c_out // groups
    pixels = math.prod(call.shape("y")[2:])
    if is_matrix(call):
        tiles, why = matmul_bands(call.shape("y")[0] * pixels, rows, (of_group,), groups, low)
        wanted = ceil_div(of_group, tiles[0]) if tiles else 1
    else:
        reduction = (*kernel, of_group)
        tiles, why = bands(Sum(rows * pixels, call.outputs["y"].size, reduction, batch_first=True), low)
        wanted = math.prod(map(ceil_div, reduction, tiles)) if tiles else 1
    most = min(wanted, scratch_budget(device) // max(4 * call.outputs["y"].size, 1))
    slices = max(count for count in SPLIT_K_SLICES if count <= max(most, 1))
    return slices, why if slices == wanted else f"{why}; {slices} of {wanted} slices"


def _iree(call: Call, device: Device) -> Published | None:
    """Slices of the sum, or the whole sum by the route that takes the call without its rule."""
    if call.is_empty:
        return None
    slices, why = iree_slices(call, device)
    if slices > 1:
        route = COOPERATIVE if may_take(COOPERATIVE, call, device) else IMPLICIT_GEMM
        return Published((route.name,), why, {"split_k": slices})
    route = choose(ROUTES, call, device).route
    return Published((route.name,), why, {"split_k": 1} if route in (COOPERATIVE, IMPLICIT_GEMM) else {})


PUBLISHED: Rules = {"executorch": _executorch, "iree": _iree}
