"""Running single calls: the smallest graph around a call, for tests and tools that hold a route to its reference."""

import dataclasses
from collections.abc import Mapping

from vkconv.core import Array
from vkconv.graph import Graph, Node
from vkconv.plan.planner import Options
from vkconv.route import Call, Params
from vkconv.session import Session


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


def run_call(
    call: Call,
    arrays: Mapping[str, Array],
    *,
    device: str | int = "auto",
    route: str | None = None,
    params: Params | None = None,
    replays: int = 1,
    constant: tuple[str, ...] = ("w", "b", "bias"),
) -> Ran:
    """Run one call on a device, over memory filled with NaN bits, ``replays`` times from the same recording.

    ``route`` and ``params`` force a route and set its parameters. Operands named in ``constant`` are loaded (and
    prepacked) once, as a model's weights are. Passes are off: the call runs as it is written. Raises what
    `vkconv.load` raises.
    """
    held = {name: arrays[name] for name in constant if name in arrays}
    if len(held) == len(arrays):
        held = {}  # with nothing left to compute from, the node would fold away
    options = Options(
        routes={"node:call": route} if route else {}, params={"node:call": params} if params else {}, passes=False
    )
    inputs = {name: array for name, array in arrays.items() if name not in held}
    with Session(call_graph(call, held), device, options=options, poison=True) as session:
        outputs = [session.run(inputs) for _ in range(replays)]
        used = session.plan.nodes[0]
    return Ran(used.route, used.params, tuple(tuple(o[name] for name in call.outputs) for o in outputs))
