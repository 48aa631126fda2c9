"""Routes of conv2d with products in f16."""

import math

from vkconv.call import Call
from vkconv.ops.conv.common import GROUPED, GROUPS_1, LARGER_THAN_1X1
from vkconv.ops.conv.conv2d.implicit_gemm import IMPLICIT_GEMM
from vkconv.ops.conv.conv2d.routes import NARROW_GROUPS, POINTWISE_ROUTE, ROUTES
from vkconv.ops.conv.tiles import TILES
from vkconv.ops.kernels.f16_accumulation import LONGEST_CHAIN, in_half, links
from vkconv.route import Route

_BY_NAME = {route.name: route for route in ROUTES}


def _most(call: Call, chain: int) -> int:
    """The longest chain of a call: one of so many products, or all that there are."""
    return min(chain, math.prod(call.shape("w")[1:]))


def _rows(call: Call) -> int:
    """Rows of taps that make a chain."""
    return links(call.shape("w")[3])


HALF_ROUTES: tuple[Route, ...] = (
    in_half(
        _BY_NAME["depthwise"], lambda call: math.prod(call.shape("w")[2:]), "conv2d_depthwise", whole=("columns", 2)
    ),
    in_half(
        _BY_NAME["direct_tile"],
        lambda call: _most(call, call.shape("w")[3] * _rows(call)),
        "conv2d_tile",
        lambda call, params: _rows(call),
        whole=("channels", 4),
        drops=(GROUPS_1,),
        prefer=(GROUPED, LARGER_THAN_1X1, NARROW_GROUPS),
    ),
    in_half(
        IMPLICIT_GEMM,
        lambda call: _most(call, LONGEST_CHAIN),
        "conv2d_gemm",
        lambda call, params: links(TILES[params["tile"]].depth),
    ),
    in_half(
        POINTWISE_ROUTE,
        lambda call: _most(call, LONGEST_CHAIN),
        "conv2d_pointwise",
        lambda call, params: links(1),
        whole=("channels", 4),
    ),
)
