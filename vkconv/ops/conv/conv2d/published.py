"""What ExecuTorch takes for a convolution (add_conv2d_node of its Vulkan backend, executorch#20190)."""

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.published import Published, Rules
from vkconv.policy import Policy

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


PUBLISHED: Rules = {"executorch": _executorch}
