"""Values of inputs that a node refuses: indices outside the axis that they pick from. A GPU would not notice, so that
the host looks at them before each run; at constant ones it looked when the graph was bound."""

import dataclasses
from collections.abc import Container, Mapping

from vkconv.call import Call
from vkconv.core import Array, GraphError, InputError
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph


@dataclasses.dataclass(frozen=True)
class InputCheck:
    """A call that refuses values, ``where`` it stands, and the inputs of the graph that its operands are."""

    where: str
    op: Op
    call: Call
    reads: Mapping[str, str]

    def run(self, inputs: Mapping[str, Array]) -> None:
        """InputError for values that the call refuses."""
        check = self.op.check_constants
        assert check is not None
        try:
            check(self.call, {name: inputs[value].reshape(self.call.shape(name)) for name, value in self.reads.items()})
        except GraphError as error:
            given = ", ".join(map(repr, self.reads.values()))
            raise InputError(f"{self.where}: {error}; give other values for the input {given}") from None


def input_checks(bound: BoundGraph, ops: Mapping[str, Op], caches: Container[str] = ()) -> tuple[InputCheck, ...]:
    """What there is to look at in the integer inputs of a graph, also where nodes give them another shape first.
    ``caches`` stay on the device, and are not looked at."""
    source = {name: name for name, spec in bound.inputs.items() if not spec.dtype.is_float and name not in caches}
    checks: list[InputCheck] = []
    for node in bound.nodes:
        op, values = ops[node.call.op], [*node.reads.values(), *node.writes.values()]
        if op.alias and values[0] in source and len({bound.specs[value].dtype for value in values}) == 1:
            source |= dict.fromkeys(node.writes.values(), source[values[0]])
        reads = {operand: source[value] for operand, value in node.reads.items() if value in source}
        if op.check_constants is not None and reads:
            checks.append(InputCheck(f"graph {bound.name!r}, {node}", op, node.call, reads))
    return tuple(checks)
