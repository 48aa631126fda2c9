"""Every program that a device of each driver, or in `make exhaustive` any shipped one, can come to: (case, route, inner
routes, parameters) in each type."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

from shipped import share, tried_devices

from vkconv.call import Call
from vkconv.combinations import inner_routes
from vkconv.core import VkconvError
from vkconv.device import Device, load_device
from vkconv.ops import OPS
from vkconv.ops.core.base import Op
from vkconv.ops.core.calls import parse_call
from vkconv.route import Params, Route, judge
from vkconv.storage import stores_natively


class Way(NamedTuple):
    """A route with parameters for a case on a device: what `Route.build` makes a program of."""

    text: str
    call: Call
    device: Device
    route: Route
    params: Params

    def __str__(self) -> str:
        given = " ".join(f"{name}={value}" for name, value in self.params.items())
        return f"{self.text} on {self.device.name} by {self.route.name} {given}".rstrip()


@functools.cache
def devices() -> tuple[Device, ...]:
    return tuple(map(load_device, tried_devices()))


def cases(op: Op, dtypes: tuple[str, ...] = ("", "f16", "bf16")) -> Iterator[tuple[str, Call]]:
    """The op's cases as they are and with their floats in the other types, those of which something runs."""
    for case in op.cases:
        for dtype in dtypes:
            text = f"{case},dtype={dtype}" if dtype else case
            try:
                call = parse_call(text, OPS)
            except VkconvError:
                continue
            if not call.is_empty and (not dtype or call.half is not None):
                yield text, call


def settings(route: Route, call: Call, device: Device, tried: set[object]) -> Iterator[Params]:
    """The defaults with each inner route, and each parameter changed by itself. With inner routes that are not the
    first, and of inner calls, parameters are changed for the first case that has them: with others they are changed
    where the cases of their own op are looked at."""
    for i, inner in enumerate(inner_routes(route, call, device)):
        yield inner
        legal = route.legal(call, device, inner)
        calls = {key.rpartition("/")[0] for key in legal if "/" in key}
        for name, values in legal.items():
            if name not in inner and name not in calls:
                for value in values[1:]:
                    key = (route.name, call.half, stores_natively(device), tuple(inner.items()), name, value)
                    if (i == 0 and "/" not in name) or key not in tried:
                        tried.add(key)
                        given = {**inner, name: value}
                        if name.rpartition("/")[2] != "block" or _goes_with(route, call, device, given):
                            yield given


def _goes_with(route: Route, call: Call, device: Device, given: Params) -> bool:
    """Whether the inner routes take the call that a parameter makes another one."""
    legal = route.legal(call, device, given)
    return all(value in legal.get(name, ()) for name, value in given.items())


def ways(op: Op, dtypes: tuple[str, ...] = ("", "f16", "bf16"), nth: int = 1) -> Iterator[Way]:
    """Every choice of defaults that some shipped device has, and every other value of a parameter, once for all devices
    that store 16-bit elements alike; in `make test` every ``nth`` device for each case, other ones for the next."""
    tried = set[object]()
    for turn, (text, call) in enumerate(cases(op, dtypes)):
        seen = set()
        for device in share(nth, devices(), turn):
            native = stores_natively(device)
            for route in op.routes:
                if not judge(route, call, device).allowed:
                    continue
                legal = route.legal(call, device)
                had = (route.name, native, tuple(legal.items()))
                if had in seen:
                    continue
                seen.add(had)
                for params in settings(route, call, device, tried):
                    key = (route.name, native, tuple(params.items() or ((name, v[0]) for name, v in legal.items())))
                    if key not in seen:
                        seen.add(key)
                        yield Way(text, call, device, route, params)
