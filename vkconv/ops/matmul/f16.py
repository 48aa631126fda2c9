"""Routes of matmul with products in f16."""

from vkconv.ops.kernels.f16_accumulation import LONGEST_CHAIN, in_half, links
from vkconv.ops.kernels.gemm import SHARED_TILES, layout
from vkconv.ops.matmul.simt import ROUTES
from vkconv.route import Route

_BY_NAME = {route.name: route for route in ROUTES}

HALF_ROUTES: tuple[Route, ...] = (
    in_half(
        _BY_NAME["shared"],
        lambda call: min(layout(call).k, LONGEST_CHAIN),
        "matmul_shared",
        lambda call, params: links(SHARED_TILES[params["tile"]].depth),
    ),
    in_half(
        _BY_NAME["register"],
        lambda call: min(layout(call).k, LONGEST_CHAIN),
        "matmul_register",
        lambda call, params: links(1),
        whole=("columns", 2),
    ),
)
