"""What chooses the default parameters of routes on a device: a cost model, and the rows and numbers that rules read."""

import dataclasses
from collections import Counter
from typing import Any

from vkconv.call import Call
from vkconv.core import DType
from vkconv.device import Device
from vkconv.device.reads import Watch, watching
from vkconv.ops.core.base import Op, defaults
from vkconv.ops.core.calls import typed_cases
from vkconv.policy import row_of
from vkconv.route import Route, may_take

_MOST_CALLS = 6  # of a route: what more of them read is nearly always the same


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """Of a route its own parameters that have several legal values, whether a cost model estimates what they take, and
    by name the policies and the numbers of the target that their defaults rest on; ``by_call`` is that of the route."""

    parameters: tuple[str, ...] = ()
    by_cost: bool = False
    by_call: str = ""
    policies: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    def __or__(self, other: "Chosen") -> "Chosen":
        joined = (dict.fromkeys((*a, *b)) for a, b in zip(self._names, other._names, strict=True))
        parameters, policies, numbers = map(tuple, joined)
        by_cost, by_call = self.by_cost or other.by_cost, self.by_call or other.by_call
        return Chosen(parameters, by_cost, by_call, policies, numbers)

    @property
    def _names(self) -> tuple[tuple[str, ...], ...]:
        return self.parameters, self.policies, self.numbers

    def said(self, device: Device) -> str:
        """``cost; conv2d.gemm_costs (fitted), kernels.enough (assumed)``: with what rows of the device rest on."""
        rows = ", ".join(f"{name} ({basis})" for name, basis in self._bases(device).items())
        return "; ".join(filter(None, ("cost" if self.by_cost else "rule", self.by_call, rows)))

    def data(self, device: Device) -> dict[str, Any]:
        """The same as JSON data, with the parameters."""
        by = {"cost": self.by_cost, "by_call": self.by_call, "policies": self._bases(device)}
        return {"parameters": list(self.parameters), **by}

    def _bases(self, device: Device) -> dict[str, str]:
        return {name: row_of(name, device).basis for name in self.policies}


def chosen_by(op: Op, device: Device) -> dict[str, Chosen]:
    """By route what chooses its parameters, over the first of the op's cases, as they are written and in f16, that it
    may take on the device."""
    found, looked_at = dict[str, Chosen](), Counter[str]()
    for call in typed_cases(op, (DType.F16,)):
        for route in () if call.is_empty else op.routes:
            if looked_at[route.name] < _MOST_CALLS and may_take(route, call, device):
                found[route.name] = found.get(route.name, Chosen()) | _chosen(route, call, device)
                looked_at[route.name] += 1
    return found


def _chosen(route: Route, call: Call, device: Device) -> Chosen:
    device = dataclasses.replace(device)  # of which nothing is kept, so that all is read
    with watching(Watch()) as watch:
        legal = route.own_legal(call, device)
    names = {kind: tuple(s.name for s in watch.found.values() if s.kind == kind) for kind in ("policy", "number")}
    by_cost = route.estimated_us(route.seen(call), device, defaults(legal)) is not None
    several = tuple(name for name, values in legal.items() if len(values) > 1)
    return Chosen(several, by_cost, route.by_call, names["policy"], names["number"]) if several else Chosen()
