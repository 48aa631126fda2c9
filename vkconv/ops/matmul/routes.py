"""The routes of matmul, in the order in which they are tried."""

from vkconv.ops.matmul.coopmat import COOPERATIVE
from vkconv.ops.matmul.simt import REGISTER_F16, REGISTER_ROUTE, SHARED_F16, SHARED_ROUTE, SUBGROUP_ROUTE
from vkconv.ops.matmul.skinny import SKINNY_ROUTE
from vkconv.route import Route

ROUTES: tuple[Route, ...] = (
    COOPERATIVE,
    SKINNY_ROUTE,
    SHARED_F16,
    REGISTER_F16,
    SHARED_ROUTE,
    SUBGROUP_ROUTE,
    REGISTER_ROUTE,
)
