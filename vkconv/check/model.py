"""A whole model held to its reference, node by node, so that the first one that goes wrong is found.

Every node is checked twice. *Alone*, it computes from reference inputs: what is wrong then is wrong with its kernel.
*In the run*, what it left is compared with the reference of what it really read there: what is wrong only then comes
from elsewhere, from memory that another node overwrites or does not wait for. The *accumulated* error, against the
reference of the whole model from its inputs on, has no derived tolerance: it is shown, and judged by nobody.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np

from vkconv.call import Call
from vkconv.check.calls import Checked, Expected, compare, compare_output, expect, run_call
from vkconv.check.reference import References
from vkconv.core import Array, GraphError, InputError, Shape, VkconvError
from vkconv.device import Device
from vkconv.graph import Graph
from vkconv.ops import OPS
from vkconv.ops.core.tolerance import Tolerance
from vkconv.plan.bound import BoundGraph, BoundNode, bind, steered
from vkconv.plan.model import PlannedNode
from vkconv.plan.planner import Options, rewritten
from vkconv.route import Params
from vkconv.session import Session

Cause = Literal["", "alone", "in the run", "refused"]


@dataclasses.dataclass(frozen=True)
class NodeCheck:
    """One node of a model: how far it is from its reference ``alone`` and in ``run``, and how far what it left is from
    the reference of the whole model (``accumulated``). ``arrays`` are the inputs that show what is wrong: the
    reference's where it is wrong alone, else those that it read."""

    node: str
    call: Call
    text: str
    route: str
    params: Params
    constant: tuple[str, ...]
    alone: Checked
    run: Checked
    accumulated: Checked
    arrays: Mapping[str, Array] = dataclasses.field(repr=False)
    refused: str = ""

    @property
    def cause(self) -> Cause:
        """Where the node is wrong; empty where it is right."""
        return "refused" if self.refused else "alone" if not self.alone.ok else "in the run" if not self.run.ok else ""

    @property
    def problem(self) -> str:
        """What is wrong, where, and what that means; empty where the node is right."""
        if self.refused:
            return self.refused
        if not self.alone.ok:
            return f"wrong alone, from reference inputs: {_with_pattern(self.alone)}"
        if not self.run.ok:
            return (
                "right alone, wrong in the run, given what it read there: another node overwrites its values, or it "
                f"does not wait for one: {_with_pattern(self.run)}"
            )
        return ""


@dataclasses.dataclass(frozen=True)
class ModelCheck:
    """The nodes that were checked, in order, and the outputs of the run as users have it, where values share memory,
    that differ from those of the checked one, where every value has its own."""

    graph: str
    device: Device
    nodes: tuple[NodeCheck, ...]
    shared: tuple[str, ...]
    complete: bool

    @property
    def first(self) -> NodeCheck | None:
        """The first node that is wrong."""
        return next((node for node in self.nodes if node.cause), None)

    @property
    def problem(self) -> str:
        """What is wrong with the model, in one line; empty where nothing is."""
        wrong = sum(bool(node.cause) for node in self.nodes)
        if self.first is not None:
            others = f"; {wrong - 1} nodes after it are wrong too" if wrong > 1 else ""
            return f"{self.first.node} ({self.first.text}, {self.first.route}): {self.first.problem}{others}"
        if self.shared:
            return (
                f"every node is right, but {', '.join(self.shared)} differs when values share memory: a value is "
                "overwritten before it was read"
            )
        return ""


def bound_of(graph: Graph, shapes: Mapping[str, Shape], session: Session) -> BoundGraph:
    """The graph whose nodes the session's plan has, with its constants and what each node reads and writes."""
    return rewritten(bind(graph, OPS, shapes), session.plan.device, session.options)[0]


def check_model(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    device: str | int = "auto",
    options: Options | None = None,
    limits: Device | None = None,
    stop_at_first: bool = False,
    keep_arrays: bool = False,
    seen: Callable[[NodeCheck, int], None] = lambda node, count: None,
) -> ModelCheck:
    """Check every node of a model on a device, in order, over memory filled with NaN bits.

    ``inputs`` are arrays that fit the model; ``limits`` plans with those of another device; ``stop_at_first`` ends
    with the first node that is wrong; the arrays of nodes that are right are kept with ``keep_arrays`` only; ``seen``
    is called with each node and how many there are. Raises what `vkconv.load` and a run raise.
    """
    options = dataclasses.replace(options or Options(), share_memory=False)
    graph, inputs = steered(graph, OPS, inputs)
    shapes = {name: array.shape for name, array in inputs.items()}
    with Session(graph, device, shapes=shapes, options=options, poison=True, limits=limits) as session:
        bound = bound_of(graph, shapes, session)
        outputs = session.run(inputs)
        planned = session.plan
        checker = _Checker(bound, inputs, session, device, limits, options)
        nodes: list[NodeCheck] = []
        for found in checker.nodes(planned.nodes):
            nodes.append(found if keep_arrays or found.cause else dataclasses.replace(found, arrays={}))
            seen(found, len(planned.nodes))
            if stop_at_first and found.cause:
                break
    complete = not (stop_at_first and nodes and nodes[-1].cause)
    shared: list[str] = []
    if complete:
        options = dataclasses.replace(options, share_memory=True)
        with Session(graph, device, shapes=shapes, options=options, poison=True, limits=limits) as session:
            again = session.run(inputs)
            repeatable = all(n.choice is None or n.choice.route.deterministic for n in session.plan.nodes)
        shared = [n for n in outputs if repeatable and again[n].tobytes() != outputs[n].tobytes()]
    return ModelCheck(graph.name, planned.device, tuple(nodes), tuple(shared), complete)


class _Checker:
    def __init__(
        self,
        bound: BoundGraph,
        inputs: Mapping[str, Array],
        session: Session,
        device: str | int,
        limits: Device | None,
        options: Options,
    ) -> None:
        self.bound = bound
        self.session = session
        self.device = device
        self.limits = limits
        self.options = options
        self.references = References(bound, inputs)
        self.known = self.references.known

    def nodes(self, planned: tuple[PlannedNode, ...]) -> Iterator[NodeCheck]:
        for node, plan in zip(self.bound.nodes, planned, strict=True):
            try:
                yield self._check(node, plan)
            except (GraphError, IndexError, ValueError) as error:
                raise InputError(f"{node} ({plan.text}): its reference refuses what it is given: {error}") from None
            self.references.forget(node)

    def _alone(
        self,
        call: Call,
        plan: PlannedNode,
        arrays: Mapping[str, Array],
        constant: tuple[str, ...],
        wanted: Expected,
    ) -> tuple[str, Checked]:
        """Why a node cannot run by itself, and what its outputs there come to."""
        try:
            ran = run_call(
                call,
                arrays,
                device=self.device,
                route=plan.route,
                params=plan.params,
                constant=constant,
                limits=self.limits,
                quirks=self.options.quirks,
                fixed_push=self.options.fixed_push,
            )
        except VkconvError as error:  # it ran in the model: alone, it may exceed a limit that constants do not
            return f"cannot run alone: {error}", Checked(None, None, 0.0, "did not run")
        return "", compare(call, ran.outputs[0], wanted)

    def _check(self, node: BoundNode, plan: PlannedNode) -> NodeCheck:
        call = node.call
        arrays, constant = self.references.read_by(node)
        wanted = self.references.advance(node, plan.route if plan.choice else None)
        if wanted is None:
            return self._not_run(node, plan, arrays, constant)
        left = [self.session.value(value) for value in node.writes.values()]
        refused, alone = "", compare(call, left, wanted)
        if arrays:  # what reads nothing is a constant alone, which the host makes where it is small
            refused, alone = self._alone(call, plan, arrays, constant, wanted)
        read = {o: self.known[v] if v in self.known else self.session.value(v) for o, v in node.reads.items()}
        same = all(read[operand].tobytes() == arrays[operand].tobytes() for operand in arrays)
        run = compare(call, left, wanted if same else expect(call, read, plan.route))
        return NodeCheck(
            node.name,
            call,
            plan.text,
            plan.route,
            plan.params,
            constant,
            alone,
            run,
            compare(call, left, wanted),
            arrays if not alone.ok else read,
            refused,
        )

    def _not_run(
        self, node: BoundNode, plan: PlannedNode, arrays: Mapping[str, Array], constant: tuple[str, ...]
    ) -> NodeCheck:
        """A node of which nothing runs: its output is its input's bytes, or has no element."""
        call = node.call
        checks = []
        for name, value in node.writes.items():
            spec = call.outputs[name]
            if spec.size and call.operands:
                source = next(iter(node.reads.values()))
                read = self.known[source] if source in self.known else self.session.value(source)
                left = self.session.value(value) if value not in self.known else self.known[value]
                exact = Tolerance(0.0, np.zeros(spec.dims), 0.0)
                checks.append(compare_output(name, left, read.reshape(spec.dims), exact))
        run = checks[0] if checks else Checked(0.0, 0.0, 0.0)
        return NodeCheck(
            node.name,
            call,
            plan.text,
            plan.route,
            {},
            constant,
            Checked(0.0, 0.0, 0.0),
            run,
            Checked(0.0, 0.0, 0.0),
            arrays,
        )


def _with_pattern(checked: Checked) -> str:
    return f"{checked.problem} ({checked.pattern})" if checked.pattern else checked.problem
