"""A product or convolution and the reduction of its result as two calls: run in turn, or asked what they would take."""

from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.by_images import BY_IMAGES
from vkconv.ops.core.base import Op
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.fused.addends import ADDED, SUMMING, sum_calls, summed
from vkconv.ops.fused.definition import OUTPUTS, functions, is_single
from vkconv.ops.reduce.op import REDUCE
from vkconv.program import Composite, Inner
from vkconv.requirement import Requirement
from vkconv.route import Params, Route, Sub, choose

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


Steps = tuple[Call, Mapping[str, Call]]


def reduce_calls(call: Call, full: TensorSpec, axes: tuple[int, ...]) -> Mapping[str, Call]:
    """The second step, by output: the reduction of the first one's result, or both of them."""

    def reduction(function: str) -> Call:
        return REDUCE.call({"x": full}, {"op": function, "axes": axes, "keepdims": call["keepdims"]})

    return {name: reduction(function) for name, function in zip(OUTPUTS, functions(call), strict=False)}


# What the second step runs must repeat.
REDUCE_ROUTES = tuple(route for route in REDUCE.routes if route.deterministic and route.takes_halves)


# What the inner call of a reduction is called, by its output.
_INNER = {"y": "reduce", "also": "reduce_also"}


def repeating(first: Op) -> tuple[Route, ...]:
    """The routes of the first step, without those that one has to ask for, and those that cut by images themselves."""
    return tuple(route for route in first.routes if route.rounds_as_f32 and route.name != BY_IMAGES)


def in_turn(first: Op, steps: Callable[[Call], Steps], why: str) -> Route:
    """The route that runs a product into scratch, or an output where it is one, in the call's own type, and reduces
    that. What is added and is not one residual as large as the product is made one before."""
    products = repeating(first)

    def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
        product, reductions = steps(call)
        reducing = {_INNER[name]: Sub(reduction, REDUCE_ROUTES) for name, reduction in reductions.items()}
        return {**sum_calls(call, product), first.name: Sub(product, products), **reducing}

    def program(call: Call, device: Device, params: Params) -> Composite:
        product, reductions = steps(call)
        full = "product" if call["product"] else "full"
        made = [Inner(_INNER[name], {"x": full, "y": name}) for name in reductions]
        scratch = {} if call["product"] else {full: product.outputs["y"].nbytes}
        before = summed(call, product, device)
        if before:
            scratch[ADDED] = 4 * product.outputs["y"].size
        step = Inner(first.name, {"y": full, **({"residual": ADDED} if before else {})})
        return Composite((*before, step, *made), scratch=scratch, elements=frozenset(scratch))

    def note(call: Call, device: Device, params: Params) -> str:
        if call["product"]:
            return "the product is read again"
        launches = "two" if is_single(call) else "three"
        return f"{bytes_str(steps(call)[0].outputs['y'].nbytes)} of scratch between the {launches}"

    shaders = dict.fromkeys((*SUMMING, *(s for route in (*products, *REDUCE_ROUTES) for s in route.shaders)))
    return Route(UNFUSED, program, tuple(shaders), why, must=(FLOATS,), inner=inner, note=note)
