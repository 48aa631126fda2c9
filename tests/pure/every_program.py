"""Every program that a shipped device file can come to: (case, route, inner routes, parameters) in each type."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

from vkconv.call import Call
from vkconv.core import VkconvError
from vkconv.device import Device, load_device, shipped_devices
from vkconv.ops import OPS
from vkconv.ops.core.base import Op
from vkconv.ops.core.calls import parse_call
from vkconv.route import Params, Route, inner_routes, judge
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
    return tuple(map(load_device, shipped_devices()))


def in_types(case: str, dtypes: tuple[str, ...] = ("", "f16", "bf16")) -> Iterator[tuple[str, Call]]:
    """A case as it is and with its floats in the other types, those of which something runs."""
    for dtype in dtypes:
        text = f"{case},dtype={dtype}" if dtype else case
        try:
            call = parse_call(text, OPS)
        except VkconvError:
            continue
        if not call.is_empty and (not dtype or call.half is not None):
            yield text, call


def cases(op: Op, dtypes: tuple[str, ...] = ("", "f16", "bf16")) -> Iterator[tuple[str, Call]]:
    """The op's cases, each in all types."""
    for case in op.cases:
        yield from in_types(case, dtypes)


def settings(route: Route, call: Call, device: Device, every: bool) -> Iterator[Params]:
    """The defaults with each inner route and, where ``every``, each parameter changed by itself."""
    for inner in inner_routes(route, call, device):
        yield inner
        legal = route.legal(call, device, inner) if every else {}
        calls = {key.rpartition("/")[0] for key in legal if "/" in key}
        for name, values in legal.items():
            if name not in inner and name not in calls:
                yield from ({**inner, name: value} for value in values[1:])


def ways(op: Op) -> Iterator[Way]:
    """Every choice of defaults that some shipped device has, in each type, once for all devices that store 16-bit
    elements alike; and every other value of a parameter, in the types by turns: of a case in one."""
    for turn, case in enumerate(op.cases):
        typed = list(in_types(case))
        for place, (text, call) in enumerate(typed):
            yield from _of_call(op, text, call, place == turn % len(typed))


def _of_call(op: Op, text: str, call: Call, every: bool) -> Iterator[Way]:
    seen = set()
    for device in devices():
        native = stores_natively(device)
        for route in op.routes:
            if not judge(route, call, device).allowed:
                continue
            legal = route.legal(call, device)
            had = (route.name, native, tuple(legal.items()))
            if had in seen:
                continue
            seen.add(had)
            for params in settings(route, call, device, every):
                key = (route.name, native, tuple(params.items() or ((name, v[0]) for name, v in legal.items())))
                if key not in seen:
                    seen.add(key)
                    yield Way(text, call, device, route, params)
