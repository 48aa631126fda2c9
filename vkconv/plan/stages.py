"""Stages of a graph: where a shape depends on values that only a run on the device finds out, the graph is cut, so that
what follows is planned once they are known."""

import dataclasses
from collections.abc import Mapping, Sequence

from vkconv.core import Array
from vkconv.graph.ir import Graph, Node, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import host_operands, value_inputs
from vkconv.plan.control import CONTROL, steers
from vkconv.table import Column, Table


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """Nodes that are planned together. ``inputs`` are values of the graph's user and of earlier stages, ``steered_by``
    those of the latter that shapes here depend on, ``outputs`` what later stages and the user read."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steered_by: tuple[str, ...]

    @property
    def control(self) -> Node | None:
        """The node of control flow that it is, alone."""
        return self.nodes[0] if self.nodes and self.nodes[0].op in CONTROL else None


def cut_stages(graph: Graph, ops: Mapping[str, Op]) -> tuple[Stage, ...]:
    """The stages of a graph in order, as few as can be: one where every shape follows from shapes, constants and the
    inputs that steer it. Nodes keep their order within a stage; one of control flow is a stage of its own."""
    stage_of, steering = _places(graph, ops)
    numbers = sorted(set(stage_of.values()))
    if not numbers or numbers == [(0, "")]:
        return (Stage(graph.nodes, tuple(graph.inputs), graph.outputs, ()),)
    groups = [tuple(node for node in graph.nodes if stage_of[node.name] == number) for number in numbers]
    made = [{value for node in nodes for value in node.outputs if value} for nodes in groups]
    read = [{value for node in nodes for value in node.inputs if value} - graph.constants.keys() for nodes in groups]
    order = {
        name: i for i, name in enumerate((*graph.inputs, *(v for nodes in groups for n in nodes for v in n.outputs)))
    }
    # Inputs that nobody reads, and outputs that nobody makes, are the first stage's.
    passed = {value for value in graph.outputs if not any(value in values for values in made)}
    unread = graph.inputs.keys() - set().union(*read)
    stages = []
    for i, number in enumerate(numbers):
        given = (read[i] - made[i]) | (unread | (passed & graph.inputs.keys()) if i == 0 else set())
        later = set(graph.outputs).union(*read[i + 1 :])
        outputs = [value for value in graph.outputs if value in passed] if i == 0 else []
        outputs += sorted(made[i] & later, key=order.__getitem__)
        inputs, steered_by = (sorted(values, key=order.__getitem__) for values in (given, steering.get(number, set())))
        stages.append(Stage(groups[i], tuple(inputs), tuple(outputs), tuple(steered_by)))
    return tuple(stages)


def is_staged(stages: Sequence[Stage]) -> bool:
    """Whether a graph of these stages cannot be planned as a whole."""
    return len(stages) > 1 or stages[0].control is not None


def stage_graph(graph: Graph, stage: Stage, inputs: Mapping[str, TensorSpec]) -> Graph:
    """The graph of a stage, ``inputs`` being what it is given."""
    used = {value for node in stage.nodes for value in node.inputs} | set(stage.outputs)
    return graph.replace(
        inputs=inputs,
        outputs=stage.outputs,
        nodes=stage.nodes,
        constants={name: array for name, array in graph.constants.items() if name in used},
        declared={name: declared for name, declared in graph.declared.items() if name in stage.outputs},
    )


def stage_table(
    name: str, stages: Sequence[Stage], dispatches: Sequence[int] = (), found: Sequence[Sequence[Array]] = ()
) -> Table:
    """A row per stage: its nodes, its launches where they are planned, and what steers it, with the values that a run
    ``found``."""
    rows = []
    for i, stage in enumerate(stages):
        values = found[i] if i < len(found) and found[i] else ()
        known = [f"{value} = {array.tolist()}" for value, array in zip(stage.steered_by, values, strict=False)]
        launches = dispatches[i] if i < len(dispatches) else ""
        rows.append((i, len(stage.nodes), launches, ", ".join(known or stage.steered_by)))
    columns = [Column("stage"), Column("nodes"), Column("dispatches"), Column("read back before it")]
    what = "what runs depends" if any(stage.control for stage in stages) else "sizes depend"
    return Table(f"{name} in {len(rows)} stages: {what} on values", columns, rows)


# A stage by its number, and the name of the node of control flow that it is: behind the others of that number.
_Place = tuple[int, str]


def _places(graph: Graph, ops: Mapping[str, Op]) -> tuple[dict[str, _Place], dict[_Place, set[str]]]:
    """The stage of each node by its name, and the values that steer each stage."""
    steady = {*graph.constants, *value_inputs(graph, ops)}
    stage_of: dict[str, _Place] = {}
    place = dict.fromkeys((*graph.inputs, *graph.constants), 0)
    steering: dict[_Place, set[str]] = {}
    for node in graph.nodes:
        op, inputs = ops.get(node.op), [value for value in node.inputs if value]
        if node.op in CONTROL:  # alone, between what comes before it and what reads it
            stage = max((place[value] for value in inputs), default=0)
            stage_of[node.name] = stage, node.name
            steering[stage, node.name] = {value for value in steers(node) if value not in graph.constants}
            place |= dict.fromkeys(node.outputs, stage + 1)
            continue
        host = host_operands(node, op) if op else set()
        stage = max((place[value] + (value in host and value not in steady) for value in inputs), default=0)
        for value in host - steady:
            steering.setdefault((stage, ""), set()).add(value)
        follows = op is not None and (op.fold_from_specs is not None or all(value in steady for value in inputs))
        for value in node.outputs:
            place[value] = stage
            if follows and not (op and op.counts):
                steady.add(value)
        stage_of[node.name] = stage, ""
    return stage_of, steering
