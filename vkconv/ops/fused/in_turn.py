"""A product or convolution and the reduction of its result as two calls: run in turn, or asked what they would take."""

from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.by_images import BY_IMAGES
from vkconv.ops.core.base import Op
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.reduce.op import REDUCE
from vkconv.program import Composite, Inner
from vkconv.route import Params, Requirement, Route, Sub, choose

# The route that runs the two steps in turn.
UNFUSED = "unfused"


def taken_alone(first: Op, what: str, product: Callable[[Call], Call]) -> Callable[[str], Requirement]:
    """The requirement that the op of the first step alone would take a route, the one whose tiles are reduced. Routes
    of a call ask one after the other: the op chooses once."""
    last: tuple[Call, Device, str] | None = None

    def taken(call: Call, device: Device) -> str:
        nonlocal last
        asked = last
        if asked is None or asked[0] is not call or asked[1] is not device:
            asked = last = call, device, choose(first.routes, product(call), device).route.name
        return asked[2]

    def by(route: str) -> Requirement:
        return Requirement(
            f"a {what} that {first.name} would compute by its route {route}",
            lambda call, device: taken(call, device) == route,
            taken,
        )

    return by


def reduce_call(call: Call, full: TensorSpec, axes: tuple[int, ...]) -> Call:
    """The second step: the reduction of the first one's result."""
    return REDUCE.call({"x": full}, {"op": call["op"], "axes": axes, "keepdims": call["keepdims"]})


# What the second step runs must repeat.
REDUCE_ROUTES = tuple(route for route in REDUCE.routes if route.deterministic)


def in_turn(first: Op, steps: Callable[[Call], tuple[Call, Call]], why: str) -> Route:
    """The route that runs a product into scratch, in the call's own type, and reduces that."""
    products = tuple(route for route in first.routes if route.f16_depth is None and route.name != BY_IMAGES)

    def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
        product, reduction = steps(call)
        return {first.name: Sub(product, products), "reduce": Sub(reduction, REDUCE_ROUTES)}

    def program(call: Call, device: Device, params: Params) -> Composite:
        made = Inner(first.name, {"y": "full"}), Inner("reduce", {"x": "full"})
        return Composite(made, scratch={"full": steps(call)[0].outputs["y"].nbytes}, elements=frozenset({"full"}))

    def note(call: Call, device: Device, params: Params) -> str:
        return f"{bytes_str(steps(call)[0].outputs['y'].nbytes)} of scratch between the two"

    shaders = dict.fromkeys(s for route in (*products, *REDUCE_ROUTES) for s in route.shaders)
    return Route(UNFUSED, program, tuple(shaders), why, must=(FLOATS,), inner=inner, note=note)
