"""All that a route may be run with: combinations of its parameters, and of the routes of its inner calls. Sweeps check
them, tuning times them."""

from collections.abc import Collection, Iterator
from typing import Any

from vkconv.call import Call
from vkconv.device import Device
from vkconv.route import Params, Route


def every_setting(route: Route, call: Call, device: Device, names: Collection[str] | None = None) -> Iterator[Params]:
    """Every combination of legal values of the parameters, the defaults first; of those in ``names`` alone, where
    given, the others at their defaults."""

    def settle(given: dict[str, Any]) -> Iterator[Params]:
        legal = route.legal(call, device, given)
        free = [name for name in legal if name not in given and (names is None or name in names)]
        if not free:
            yield route.resolve(call, device, given)
        for value in legal[free[0]] if free else ():
            yield from settle({**given, free[0]: value})

    yield from settle({})


def inner_routes(route: Route, call: Call, device: Device) -> Iterator[Params]:
    """The routes that each inner call may take, one inner call changed at a time: nothing first, then each other route
    as the parameters that ask for it."""
    yield {}
    legal = route.legal(call, device)
    for name, sub in route.subs(call, device, route.own({}, call, device)).items():
        for value in legal[name]:
            (inner,) = (one for one in sub.routes if one.name == value)
            below = ({f"{name}/{key}": v for key, v in way.items()} for way in inner_routes(inner, sub.call, device))
            yield from ({name: value, **way} for way in below if way or value != legal[name][0])
