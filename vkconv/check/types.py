"""Which nodes of a model 16-bit floats do not suffice for: those that leave their tolerance, or the finite numbers."""

import dataclasses
from collections.abc import Mapping

from vkconv.check.model import check_model
from vkconv.core import Array, DType
from vkconv.device import Device
from vkconv.graph import Graph
from vkconv.ops import OPS
from vkconv.plan.bound import bind, steered
from vkconv.plan.planner import Options, rewritten

# A node that is kept in f32 may hand on numbers that the next ones cannot hold.
_MOST_ROUNDS = 8


def nodes_for_f32(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    device: str | int = "auto",
    options: Options | None = None,
    limits: Device | None = None,
    dtype: DType = DType.F16,
) -> tuple[dict[str, DType | str], int]:
    """What `Options.dtypes` has to be, with ``dtype`` for all other floats, so that every node is right within its
    tolerance and makes finite numbers, for these inputs; and how many nodes there are.

    ``options`` are the model's other options; types that it asks for stay. Infinities that a model makes on purpose
    keep their nodes in f32, too. Raises what `check_model` raises.
    """
    options = options or Options()
    kept: dict[str, DType | str] = dict(options.dtypes)
    names: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        typed = dataclasses.replace(options, dtype=dtype, dtypes=kept)
        found = check_model(graph, inputs, device=device, options=typed, limits=limits)
        if not names:
            plain = dataclasses.replace(options, dtype=None, dtypes={}, io_dtype=None)
            written, given = steered(graph, OPS, inputs)
            bound = bind(written, OPS, {name: array.shape for name, array in given.items()})
            names = {node.name for node in rewritten(bound, found.device, plain)[0].nodes}
        unfit = [node.node for node in found.nodes if node.cause or node.run.inf or node.run.nan]
        new = {f"node:{name}" for name in unfit if name in names} - kept.keys()
        if not new:
            break
        kept |= dict.fromkeys(sorted(new), DType.F32)
    return kept, len(names)
