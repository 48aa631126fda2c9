"""The routes of inverted_residual: one launch of separable_conv2d's kernel that expands its input first, and each
convolution in turn."""

from collections.abc import Sequence

from vkconv.call import Call
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.core.requirements import FLOATS, ON_GPU
from vkconv.ops.fused.convolutions import InRow, Link
from vkconv.ops.fused.saved import pays
from vkconv.ops.fused.separable_routes import (
    BINDS,
    ENDS,
    EXPANDING,
    FEW_TAPS,
    HOLDS,
    by_rule,
    depthwise_link,
    estimated_us,
    pointwise_link,
    saving,
    separable,
    tile_params,
)
from vkconv.ops.fused.separable_tiles import TILES
from vkconv.ops.kernels.epilogue import finishing
from vkconv.ops.kernels.prepack import PACK_TILES
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
    Route(
        "one_launch",
        separable,
        finishing(EXPANDING, PACK_TILES),
        why="expanded channels of a tile of pixels and around it stay in shared memory, some at a time, where the "
        "depthwise convolution reads them and the product its result: neither is written or read; what lies at borders "
        "of tiles is expanded by each that touches it",
        must=(FLOATS, FEW_TAPS, HOLDS, BINDS, ENDS),
        prefer=(
            ON_GPU,
            pays(lambda call, device: saving(call, by_rule(call, device), IN_ROW.middle(call)), RATE),
        ),
        params=tile_params,
        estimated_us=estimated_us,
        note=lambda call, device, params: str(saving(call, TILES[params["tile"]], IN_ROW.middle(call))),
    ),
    IN_ROW.unfused("the three convolutions, with scratch between them, by their best routes: what fusing must beat"),
)
