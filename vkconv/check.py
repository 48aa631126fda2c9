"""Running single calls, for tests and tools that hold a route to its reference."""

import dataclasses
from collections.abc import Mapping

from vkconv.core import Array
from vkconv.plan.single import WEIGHTS, call_graph, forcing, held_constant
from vkconv.route import Call, Params
from vkconv.session import Session


@dataclasses.dataclass(frozen=True)
class Ran:
    """What running a call gave: the route that was dispatched, its parameters, the outputs of each replay in order."""

    route: str
    params: Params
    outputs: tuple[tuple[Array, ...], ...]


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
