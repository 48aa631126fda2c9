"""The routes of conv2d, in the order in which they are tried."""

from vkconv.ops.conv.conv2d import direct
from vkconv.ops.conv.conv2d.block_diagonal import BLOCK_DIAGONAL
from vkconv.ops.conv.conv2d.coopmat import COOPERATIVE
from vkconv.ops.conv.conv2d.coopmat_fragment import COOPERATIVE_FRAGMENT
from vkconv.ops.conv.conv2d.depthwise import DEPTHWISE_F16, DEPTHWISE_ROUTE
from vkconv.ops.conv.conv2d.depthwise_planes import DEPTHWISE_PLANES
from vkconv.ops.conv.conv2d.depthwise_subgroup import SUBGROUP_DEPTHWISE
from vkconv.ops.conv.conv2d.fully_connected import FULLY_CONNECTED
from vkconv.ops.conv.conv2d.im2col import IM2COL_GEMM
from vkconv.ops.conv.conv2d.implicit_gemm import IMPLICIT_GEMM, IMPLICIT_GEMM_F16
from vkconv.ops.conv.conv2d.patch import SHARED_PATCH
from vkconv.ops.conv.conv2d.space_to_depth import SPACE_TO_DEPTH
from vkconv.ops.conv.conv2d.subgroup import SUBGROUP_TILE
from vkconv.ops.conv.conv2d.textures import TEXTURE_DEPTHWISE, TEXTURE_POINTWISE, TEXTURE_TILE
from vkconv.ops.conv.conv2d.winograd import WINOGRAD
from vkconv.ops.conv.conv2d.winograd_cooperative import WINOGRAD_COOPERATIVE
from vkconv.route import Route

ROUTES: tuple[Route, ...] = (
    FULLY_CONNECTED,
    BLOCK_DIAGONAL,
    SPACE_TO_DEPTH,
    WINOGRAD_COOPERATIVE,
    COOPERATIVE_FRAGMENT,
    COOPERATIVE,
    DEPTHWISE_F16,
    direct.DIRECT_TILE_F16,
    IMPLICIT_GEMM_F16,
    direct.POINTWISE_F16,
    TEXTURE_POINTWISE,
    TEXTURE_DEPTHWISE,
    TEXTURE_TILE,
    IM2COL_GEMM,
    WINOGRAD,
    DEPTHWISE_PLANES,
    SUBGROUP_DEPTHWISE,
    DEPTHWISE_ROUTE,
    SHARED_PATCH,
    SUBGROUP_TILE,
    direct.GROUPED_TILE,
    direct.POINTWISE_VEC4_ROUTE,
    IMPLICIT_GEMM,
    direct.POINTWISE_ROUTE,
    direct.DIRECT_TILE,
    direct.DIRECT_ROUTE,
)
