"""What IREE takes for a matrix product."""

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.published import Published, Rules
from vkconv.ops.kernels.coopmat import EIGHT
from vkconv.ops.kernels.gemm import VEC4
from vkconv.ops.matmul.bands import by_bands
from vkconv.ops.matmul.coopmat import COOPERATIVE
from vkconv.ops.matmul.routes import ROUTES
from vkconv.ops.matmul.simt import SHARED_ROUTE
from vkconv.route import choose, may_take


def _iree(call: Call, device: Device) -> Published | None:
    """SetSplitReductionSizes as of iree#24293 for products: slices of the sum, or the whole sum by the route that takes
    the call without its rule."""
    if call.is_empty:
        return None
    on_units = may_take(COOPERATIVE, call, device)
    slices, why = by_bands(call, device, EIGHT if on_units else VEC4)
    if slices > 1:
        return Published((COOPERATIVE.name if on_units else SHARED_ROUTE.name,), why, {"split_k": slices})
    route = choose(ROUTES, call, device).route
    return Published((route.name,), why, {"split_k": 1} if route in (COOPERATIVE, SHARED_ROUTE) else {})


PUBLISHED: Rules = {"iree": _iree}
