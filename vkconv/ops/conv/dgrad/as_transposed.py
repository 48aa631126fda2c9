"""conv2d_backward_data as the transposed convolution that it is: dy is what that takes, dx what it makes."""

from vkconv.call import Call
from vkconv.ops.core.views import View


def remainders(call: Call) -> tuple[int, int]:
    """Rows and columns at the end of the padded x that no window covers: less than the stride."""
    t, left, b, r = call["padding"]
    lists = (call.shape("dx")[2:], (t + b, left + r), call.shape("w")[2:], call["stride"], call["dilation"])
    h, w = ((x + pads - d * (k - 1) - 1) % s for x, pads, k, s, d in zip(*lists, strict=True))
    return h, w


def as_transposed(call: Call) -> Call:
    """The call of conv_transpose2d; w lies as that takes it."""
    attrs = {name: value for name, value in call.attrs.items() if name != "x_shape"}
    attrs |= {"output_padding": remainders(call), "output_shape": ()}
    operands = {"x": call.operands["dy"], **{name: call.operands.get(name) for name in ("w", "b", "slope")}}
    return Call("conv_transpose2d", operands, {"y": call.outputs["dx"]}, attrs)


TRANSPOSED = View(as_transposed, {"x": "dy", "y": "dx"})
