"""Calls of one op seen as calls of another, so that both share routes."""

import dataclasses
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.device.facts import Device
from vkconv.ops.core.requirements import FLOATS, ON_GPU
from vkconv.program import Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

# These read the same of either call, and name the operands that the caller has.
_SAME: tuple[Requirement, ...] = (FLOATS, ON_GPU)


def _program(route: Route, call: Call, device: Device, params: Params) -> Program:
    made = route.program(call, device, params)
    assert isinstance(made, Program)
    return made


@dataclasses.dataclass(frozen=True)
class View:
    """Calls of one op as calls of another: ``of`` gives that call, ``names`` what its operands and outputs are called
    here."""

    of: Callable[[Call], Call]
    names: Mapping[str, str]

    def need(self, need: Requirement) -> Requirement:
        """The need of the other op's route, for a call of this one."""
        if need in _SAME:
            return need
        return Requirement(
            need.text,
            lambda call, device: need.test(self.of(call), device),
            lambda call, device: need.actual(self.of(call), device),
        )

    def route(self, route: Route, name: str, why: str) -> Route:
        """The other op's route as one of this op, with what it needs to be right; what makes it fast is for this op to
        say."""
        return Route(
            name,
            lambda call, device, params: _program(route, self.of(call), device, params).renamed(self.names),
            route.shaders,
            why,
            tuple(self.need(need) for need in route.must),
            source=route.source,
            params=lambda call, device: route.params(self.of(call), device),
            estimated_us=lambda call, device, params: route.estimated_us(self.of(call), device, params),
        )
