"""What IREE takes for a gradient by the input."""

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.conv.conv2d.implicit_gemm import IMPLICIT_GEMM
from vkconv.ops.conv.conv2d.published import iree_slices
from vkconv.ops.conv.dgrad import as_conv
from vkconv.ops.core.published import Published, Rules
from vkconv.policy import Policy
from vkconv.route import may_take

_PASSED_THROUGH = Policy("published.iree_passed_through", int)


def _iree(call: Call, device: Device) -> Published:
    """The backward-data pipeline (iree#24055): swap, then convert."""
    if max(call["stride"]) == 1:
        how, flipped = "stride 1: a convolution by the flipped kernel", as_conv.as_flipped(call)
        if call.is_empty or not may_take(IMPLICIT_GEMM, flipped, device):
            return Published(("flipped_conv",), how)
        slices, why = iree_slices(flipped, device)
        inside = {"conv2d": IMPLICIT_GEMM.name, "conv2d/split_k": slices} if slices > 1 else {}
        return Published(("flipped_conv",), f"{how}; {why}", inside)
    if call.shape("w")[2:] == (1, 1) and not any(call["padding"]):
        return Published(("swap_1x1",), "one tap, a stride and no padding: the small product, then its scatter")
    passed, most = as_conv.dilation(call).passed_through, _PASSED_THROUGH.of(device)
    route = "gather_scatter_conv" if passed <= most else "fill_scatter_conv"
    return Published((route,), f"{passed} elements pass through, one launch gathers up to {most}")


PUBLISHED: Rules = {"iree": _iree}
