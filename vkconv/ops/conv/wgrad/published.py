"""What IREE and composable_kernel take for a gradient by the weights."""

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.conv.wgrad.policy import IREE, OCCUPANCY
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.published import Published, Rules


def _iree(call: Call, device: Device) -> Published:
    """SetSplitReductionSizes as of iree#24293: one box of the sum to a workgroup's partial result, or the whole sum."""
    p = WeightGradient.of(call)
    split, why = IREE.default(p, device)
    if split.count(p) > 1:
        return Published(("split_multi",), why, {"policy": IREE.name})
    return Published(("direct",), why)


def _ck(call: Call, device: Device) -> Published:
    """Explicit GEMM for one tap, else split-K by occupancy in f32 partial results (composable_kernel#2947, #3378,
    capped as of #3656). With one slice its one-stage kernel stores the sum as direct does."""
    p = WeightGradient.of(call)
    if p.pointwise:
        return Published(("explicit_cooperative", "explicit_gemm"), "one tap, stride 1, no padding: an explicit GEMM")
    split, why = OCCUPANCY.default(p, device)
    if split.count(p) > 1:
        return Published(("two_stage",), why, {"policy": OCCUPANCY.name})
    return Published(("direct",), f"one slice is stored as it is: {why}")


PUBLISHED: Rules = {"iree": _iree, "ck": _ck}
