"""Running single calls: the smallest graph around a call, for tests and tools that hold a route to its reference."""

import dataclasses
from collections.abc import Mapping

from vkconv.core import Array
from vkconv.graph import Graph, Node
from vkconv.plan.planner import Options
from vkconv.route import Call, Params
from vkconv.session import Session

# Operands that are weights where a model has the op.
WEIGHTS = ("w", "b", "bias")


@dataclasses.dataclass(frozen=True)
class Ran:
    """What running a call gave: the route that was dispatched, its parameters, the outputs of each replay in order."""

    route: str
    params: Params
    outputs: tuple[tuple[Array, ...], ...]


def call_graph(call: Call, constants: Mapping[str, Array] | None = None) -> Graph:
    """A graph of one node named ``call``; operands in ``constants`` are constants, the others inputs."""
    constants = constants or {}
    present = {name: spec for name, spec in call.operands.items() if spec is not None}
    node = Node(
        "call", call.op, tuple(n if n in present else "" for n in call.operands), tuple(call.outputs), dict(call.attrs)
    )
    inputs = {name: spec for name, spec in present.items() if name not in constants}
    return Graph(inputs, tuple(call.outputs), (node,), dict(constants), call.op)


def held_constant(arrays: Mapping[str, Array], names: tuple[str, ...] = WEIGHTS) -> dict[str, Array]:
    """The operands to hold constant: those in ``names``, but none where that leaves nothing to compute from."""
    held = {name: arrays[name] for name in names if name in arrays}
    return {} if len(held) == len(arrays) else held


def forcing(route: str | None, params: Params | None = None) -> Options:
    """Options for a `call_graph`: this route with these parameters, and no passes, so that it runs as it is written."""
    return Options(
        routes={"node:call": route} if route else {}, params={"node:call": params} if params else {}, passes=False
    )


def run_call(
    call: Call,
    arrays: Mapping[str, Array],
    *,
    device: str | int = "auto",
    route: str | None = None,
    params: Params | None = None,
    replays: int = 1,
    constant: tuple[str, ...] = WEIGHTS,
) -> Ran:
    """Run one call on a device, over memory filled with NaN bits, ``replays`` times from the same recording.

    ``route`` and ``params`` force a route and set its parameters. Operands named in ``constant`` are loaded (and
    prepacked) once, as a model's weights are. Passes are off: the call runs as it is written. Raises what
    `vkconv.load` raises.
    """
    held = held_constant(arrays, constant)
    inputs = {name: array for name, array in arrays.items() if name not in held}
    with Session(call_graph(call, held), device, options=forcing(route, params), poison=True) as session:
        outputs = [session.run(inputs) for _ in range(replays)]
        used = session.plan.nodes[0]
    return Ran(used.route, used.params, tuple(tuple(o[name] for name in call.outputs) for o in outputs))
