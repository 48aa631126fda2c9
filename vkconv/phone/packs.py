"""Packs of calls, and of models: what a player needs to find the first wrong node by itself."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.call import Call
from vkconv.check import Expected
from vkconv.check.calls import as_stored
from vkconv.check.model import NodeCheck
from vkconv.check.reference import References, reference_outputs
from vkconv.core import Array, GraphError, InputError, LimitError
from vkconv.device import Device
from vkconv.graph import Graph
from vkconv.ops import OPS
from vkconv.plan.bound import BoundGraph, BoundNode, bind, steered
from vkconv.plan.model import PlannedNode
from vkconv.plan.pack import NodePack, PackFolder, Wanted
from vkconv.plan.planner import Options, Planned, plan, rewritten
from vkconv.plan.single import call_graph, forcing, held_constant, node_of
from vkconv.route import Params, label


def wanted_of(call: Call, expected: Expected) -> dict[str, Wanted]:
    """What each output of a call must be, as packs have it: the same comparison as `vkconv.check.compare` makes."""
    made = {}
    for (name, spec), reference, allowed in zip(call.outputs.items(), expected.outputs, expected.allowed, strict=True):
        target = np.asarray(reference).astype(np.float64).reshape(spec.dims)
        either = np.zeros(target.shape, bool) if allowed.may_overflow is None else allowed.may_overflow
        made[name] = Wanted(
            as_stored(target, spec.dtype.numpy, either),
            np.broadcast_to(allowed.absolute, target.shape),
            float(allowed.relative),
            float(allowed.floor),
            allowed.may_overflow,
        )
    return made


def label_of(text: str, route: str, params: Params) -> str:
    """A call on a route as one text: ``matmul:a=4x8,b=8x4 by shared local=64``."""
    return f"{text} by {label(route, params)}"


def call_plan(folder: PackFolder, call: Call, planned: Planned, expected: Expected, label: str) -> str:
    """Write the plan of one call, made with these arrays' shapes; the name of its file."""
    node = node_of(planned.plan)
    return folder.plan(
        Planned(planned.plan, held(planned, expected.arrays)),
        {name: expected.arrays[name] for name in planned.plan.inputs},
        wanted_of(call, expected),
        label=label,
        changes=node.choice is not None and not node.choice.route.deterministic,
        repeats=True,
    )


def held(planned: Planned, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of the constants that a plan stages."""
    return {name: arrays[name] for name in planned.plan.stage}


def plan_call(
    call: Call,
    arrays: Mapping[str, Array],
    device: Device,
    route: str,
    params: Params,
    constant: Sequence[str] | None = None,
    fixed_push: bool | None = None,
) -> Planned:
    """The plan of a call on a route, as `vkconv.check.run_call` has it: operands in ``constant`` are weights,
    ``fixed_push`` is that of the planner's options."""
    fixed = held_constant(arrays) if constant is None else held_constant(arrays, tuple(constant))
    # Staged, since the player's memory is of three kinds.
    options = dataclasses.replace(forcing(route, params), staging=True, fixed_push=fixed_push)
    return plan(call_graph(call, fixed), device, options)


@dataclasses.dataclass(frozen=True)
class PackedNode:
    """A node of a packed model: what `vkconv.check.model.NodeCheck` says of it before it ran. ``refused``: why it
    cannot run alone."""

    node: str
    call: Call
    text: str
    route: str
    params: Params
    constant: tuple[str, ...]
    arrays: Mapping[str, Array] = dataclasses.field(repr=False)
    refused: str = ""

    def check(self, alone: object, run: object, accumulated: object) -> NodeCheck:
        """The node with what became of it."""
        return NodeCheck(
            self.node,
            self.call,
            self.text,
            self.route,
            self.params,
            self.constant,
            alone,  # type: ignore[arg-type]
            run,  # type: ignore[arg-type]
            accumulated,  # type: ignore[arg-type]
            self.arrays,
            self.refused,
        )


@dataclasses.dataclass(frozen=True)
class PackedModel:
    """A model in a folder: its plan's file, the device that it is planned for, and its nodes that the player checks."""

    plan: str
    graph: str
    device: Device
    nodes: tuple[PackedNode, ...]
    dispatches: int


def model_plan(
    folder: PackFolder,
    graph: Graph,
    inputs: Mapping[str, Array],
    device: Device,
    options: Options | None = None,
    label: str = "",
) -> PackedModel:
    """Write a model: as users run it, where values share memory; where each value has its own, for the player to look
    at all of them; and each node alone, with its reference inputs and what it must give.

    Raises what `vkconv.plan.planner.plan` raises, ShaderError, and InputError where a reference refuses its values.
    """
    options = dataclasses.replace(options or Options(), staging=True)  # the player's memory is of three kinds
    graph, inputs = steered(graph, OPS, inputs)
    shapes = {name: array.shape for name, array in inputs.items()}
    name = label or graph.name
    shared = plan(graph, device, dataclasses.replace(options, share_memory=True), shapes)
    changes = any(n.choice is not None and not n.choice.route.deterministic for n in shared.plan.nodes)
    shown = {o: Wanted(_wide(array), None) for o, array in reference_outputs(graph, inputs).items()}
    stored = _stored(inputs, shared)
    as_run = folder.plan(shared, stored, shown, label=f"{name}, values sharing memory", changes=changes)
    apart_options = dataclasses.replace(options, share_memory=False)
    apart = plan(graph, device, apart_options, shapes)
    bound = rewritten(bind(graph, OPS, shapes), apart.plan.device, apart_options)[0]
    nodes = _Nodes(folder, bound, inputs, device, options.fixed_push)
    packs = [pack for node, entry in zip(bound.nodes, apart.plan.nodes, strict=True) for pack in nodes.add(node, entry)]
    seen = [value for value, (spec, _) in apart.plan.values.items() if spec.size]
    whole = folder.plan(apart, stored, shown, label=name, changes=changes, shared=as_run, values=seen, nodes=packs)
    count = sum(node.dispatches for node in shared.plan.nodes)
    return PackedModel(whole, graph.name, apart.plan.device, tuple(nodes.packed), count)


class _Nodes:
    """The nodes of a model, one after the other, each written alone."""

    def __init__(
        self,
        folder: PackFolder,
        bound: BoundGraph,
        inputs: Mapping[str, Array],
        device: Device,
        fixed_push: bool | None,
    ) -> None:
        self.folder, self.device, self.fixed_push = folder, device, fixed_push
        self.references = References(bound, inputs)
        self.packed: list[PackedNode] = []

    def add(self, node: BoundNode, entry: PlannedNode) -> list[NodePack]:
        """The node's pack; none where nothing runs for it, or it cannot run alone."""
        arrays, constant = self.references.read_by(node)
        try:
            wanted = self.references.advance(node, entry.route if entry.choice else None)
        except (GraphError, IndexError, ValueError) as error:
            raise InputError(f"{node} ({entry.text}): its reference refuses what it is given: {error}") from None
        self.references.forget(node)
        if wanted is None:
            return []
        found = PackedNode(node.name, node.call, entry.text, entry.route, entry.params, constant, arrays)
        try:
            alone = plan_call(node.call, arrays, self.device, entry.route, entry.params, constant, self.fixed_push)
        except LimitError as error:  # it ran in the model: alone, it may exceed a limit that constants do not
            self.packed.append(dataclasses.replace(found, refused=f"cannot run alone: {error}"))
            return []
        self.packed.append(found)
        file = call_plan(self.folder, node.call, alone, wanted, label_of(entry.text, entry.route, entry.params))
        reads = [node.reads[o] for o, (spec, _) in alone.plan.inputs.items() if spec.size]
        writes = [node.writes[o] for o, (spec, _) in alone.plan.outputs.items() if spec.size]
        known = self.references.known
        return [NodePack(node.name, file, reads, [None if value in known else value for value in writes])]


def _wide(array: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return array.astype(np.float64)


def _stored(inputs: Mapping[str, Array], planned: Planned) -> dict[str, Array]:
    """Inputs in the types that a plan takes them in."""
    places = planned.plan.inputs
    return {name: inputs[name].astype(spec.dtype.numpy, copy=False) for name, (spec, _) in places.items()}
