"""The routes of conv2d, in the order in which they are tried."""

from vkconv.ops.conv.conv2d.coopmat import COOPERATIVE
from vkconv.ops.conv.conv2d.coopmat_fragment import COOPERATIVE_HELD
from vkconv.ops.conv.conv2d.depthwise import DEPTHWISE_F16, DEPTHWISE_ROUTE
from vkconv.ops.conv.conv2d.direct import (
    DIRECT_ROUTE,
    DIRECT_TILE,
    DIRECT_TILE_F16,
    GROUPED_TILE,
    POINTWISE_F16,
    POINTWISE_ROUTE,
)
from vkconv.ops.conv.conv2d.im2col import IM2COL_GEMM
from vkconv.ops.conv.conv2d.implicit_gemm import IMPLICIT_GEMM, IMPLICIT_GEMM_F16
from vkconv.ops.conv.conv2d.subgroup import SUBGROUP_TILE
from vkconv.ops.conv.conv2d.winograd import WINOGRAD
from vkconv.route import Route

ROUTES: tuple[Route, ...] = (
    COOPERATIVE_HELD,
    COOPERATIVE,
    DEPTHWISE_F16,
    DIRECT_TILE_F16,
    IMPLICIT_GEMM_F16,
    POINTWISE_F16,
    IM2COL_GEMM,
    WINOGRAD,
    DEPTHWISE_ROUTE,
    SUBGROUP_TILE,
    GROUPED_TILE,
    IMPLICIT_GEMM,
    POINTWISE_ROUTE,
    DIRECT_TILE,
    DIRECT_ROUTE,
)
