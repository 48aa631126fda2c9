"""Calls of one op seen as calls of another, so that both share routes."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from vkconv.ops.core.requirements import FLOATS, ON_GPU
from vkconv.program import Dispatch, Program
from vkconv.route import Call, Need, Route

# These read the same of either call, and name the operands that the caller has.
_SAME: tuple[Need, ...] = (FLOATS, ON_GPU)


def renamed(program: Program, names: Mapping[str, str]) -> Program:
    """The program with its buffers under other names; those that are not in ``names`` keep theirs."""

    def steps(dispatches: Sequence[Dispatch]) -> tuple[Dispatch, ...]:
        return tuple(dispatch.renamed(names) for dispatch in dispatches)

    packed, scratch = ({names.get(k, k): v for k, v in sizes.items()} for sizes in (program.packed, program.scratch))
    elements = frozenset(names.get(name, name) for name in program.elements)
    return Program(steps(program.steps), steps(program.prepack), packed, scratch, elements)


@dataclasses.dataclass(frozen=True)
class View:
    """Calls of one op as calls of another: ``of`` gives that call, ``names`` what its operands and outputs are called
    here."""

    of: Callable[[Call], Call]
    names: Mapping[str, str]

    def need(self, need: Need) -> Need:
        """The need of the other op's route, for a call of this one."""
        if need in _SAME:
            return need
        return Need(
            need.text,
            lambda call, device: need.test(self.of(call), device),
            lambda call, device: need.actual(self.of(call), device),
        )

    def route(self, route: Route, name: str, why: str) -> Route:
        """The other op's route as one of this op, with what it needs to be right; what makes it fast is for this op to
        say."""
        return Route(
            name,
            lambda call, device, params: renamed(route.program(self.of(call), device, params), self.names),
            route.shaders,
            why,
            tuple(self.need(need) for need in route.must),
            source=route.source,
            params=lambda call, device: route.params(self.of(call), device),
        )
