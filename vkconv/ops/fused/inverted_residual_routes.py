"""The routes of inverted_residual: one launch of separable_conv2d's kernel that expands its input first, and each
convolution in turn."""

from collections.abc import Sequence

from vkconv.call import Call
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.fused.convolutions import InRow, Link
from vkconv.ops.fused.separable_routes import EXPANDING, depthwise_link, one_launch, pointwise_link
from vkconv.policy import Policy
from vkconv.route import Route


def _links(call: Call) -> Sequence[Link]:
    operands = {"x": call.operands["x"], "w": call.operands["we"], "b": call.operands.get("be")}
    attrs = {"act": call["expand"], "act_a": call["expand_a"], "act_b": call["expand_b"]}
    reads = {"x": "x", "w": "we", **({"b": "be"} if call.has("be") else {})}
    expand = Link("expand", CONV2D.call(operands, attrs), reads)
    depthwise = depthwise_link(call, expand.call.outputs["y"], expand.name)
    return expand, depthwise, pointwise_link(call, depthwise.call.outputs["y"], depthwise.name)


IN_ROW = InRow(_links)


RATE = Policy("fused.inverted_residual", float)

ROUTES: tuple[Route, ...] = (
    one_launch(
        EXPANDING,
        IN_ROW,
        RATE,
        "expanded channels of a tile of pixels and around it stay in shared memory, some at a time, where the "
        "depthwise convolution reads them and the product its result: neither is written or read; what lies at borders "
        "of tiles is expanded by each that touches it",
    ),
    IN_ROW.unfused("the three convolutions, with scratch between them, by their best routes: what fusing must beat"),
)
