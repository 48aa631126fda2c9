"""Single calls as graphs: the smallest graph around a call, and the options that keep it as it is written."""

from collections.abc import Mapping

import numpy as np

from vkconv.call import Call
from vkconv.core import Array
from vkconv.graph.ir import Graph, Node
from vkconv.plan.model import Plan, PlannedNode
from vkconv.plan.planner import Options
from vkconv.route import Params

# Operands that are weights where a model has the op.
WEIGHTS = (
    *("w", "b", "bias", "slope"),
    *("wd", "bd", "we", "be", "w1", "b1", "w2", "b2"),
    *(f"{name}_{what}" for name in ("x", "w", "a", "b", "y") for what in ("scale", "zero")),
)

# What the node of the call is named.
CALL_NODE = "call"


def call_graph(call: Call, constants: Mapping[str, Array] | None = None) -> Graph:
    """A graph of one node, `node_of` its plan; operands in ``constants`` are constants, the others inputs."""
    constants = constants or {}
    present = {name: spec for name, spec in call.operands.items() if spec is not None}
    reads = tuple(name if name in present else "" for name in call.operands)
    node = Node(CALL_NODE, call.op, reads, tuple(call.outputs), dict(call.attrs))
    inputs = {name: spec for name, spec in present.items() if name not in constants}
    return Graph(inputs, tuple(call.outputs), (node,), dict(constants), call.op)


def node_of(plan: Plan) -> PlannedNode:
    """The call's own node in the plan of a `call_graph`, which may have casts around it."""
    return next(node for node in plan.nodes if node.name == CALL_NODE)


def graph_of_shapes(call: Call) -> Graph:
    """A `call_graph` to plan before there are arrays: its weights are constants, zeros that take no memory."""
    zeros = {
        name: np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.dims)
        for name, spec in call.operands.items()
        if spec is not None
    }
    return call_graph(call, held_constant(zeros))


def held_constant(arrays: Mapping[str, Array], names: tuple[str, ...] = WEIGHTS) -> dict[str, Array]:
    """The operands to hold constant: those in ``names``, but none where that leaves nothing to compute from."""
    held = {name: arrays[name] for name in names if name in arrays}
    return {} if len(held) == len(arrays) else held


def forcing(route: str | None, params: Params | None = None, policy: str = "") -> Options:
    """Options for a `call_graph`: this route with these parameters, or what a system's published rules take, and no
    passes, so that it runs as it is written."""
    routes = {} if route is None else {"node:call": route}
    return Options(routes=routes, params={"node:call": params} if params else {}, policy=policy, passes=False)
