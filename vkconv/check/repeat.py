"""Whether the same commands give the same bytes each time: races, uninitialised memory, a power state."""

import dataclasses
import hashlib
from collections.abc import Mapping

import numpy as np

from vkconv.call import Call
from vkconv.check.model import bound_of
from vkconv.check.pattern import Mask, pattern
from vkconv.core import Array, UsageError
from vkconv.device import Device
from vkconv.graph import Graph
from vkconv.ops import OPS
from vkconv.plan.bound import BoundNode, steered
from vkconv.plan.planner import Options
from vkconv.route import Params
from vkconv.session import Session


@dataclasses.dataclass(frozen=True)
class Repeated:
    """What replays of one node gave: how many ``distinct`` outputs in ``runs``; the first run that gave another than
    run 1; how many elements ever differed from run 1, and where; whether it is an ``origin``: it differed in a run in
    which all that it read was as in run 1. ``declared`` is what its route says: that its last bits may change."""

    node: str
    call: Call
    text: str
    route: str
    params: Params
    runs: int
    distinct: int
    first_run: int | None
    elements: int
    pattern: str
    origin: bool
    declared: bool

    @property
    def problem(self) -> str:
        """What is wrong; empty where all runs agree, the route says that they need not, or only its inputs differed."""
        if self.distinct == 1 or self.declared or not self.origin:
            return ""
        return (
            f"{self.distinct} different outputs in {self.runs} runs of the same commands on the same inputs, first in "
            f"run {self.first_run}: {self.pattern}"
        )


@dataclasses.dataclass(frozen=True)
class RepeatCheck:
    """Every node of a model over all runs, and outputs of the model as users run it, where values share memory, that
    changed although none of them did where every value has its own."""

    runs: int
    nodes: tuple[Repeated, ...]
    shared: tuple[str, ...]

    @property
    def first(self) -> Repeated | None:
        """The first node whose output changed by itself."""
        return next((node for node in self.nodes if node.problem), None)

    @property
    def problem(self) -> str:
        """What is wrong with the model, in one line; empty where nothing is."""
        if self.first is not None:
            return f"{self.first.node} ({self.first.text}, {self.first.route}): {self.first.problem}"
        if self.shared:
            return f"{', '.join(self.shared)} changes from run to run when values share memory, and only then"
        return ""


def repeat_model(
    graph: Graph,
    inputs: Mapping[str, Array],
    runs: int,
    *,
    device: str | int = "auto",
    options: Options | None = None,
    limits: Device | None = None,
) -> RepeatCheck:
    """Run a model ``runs`` times from one recording and compare every value with the one of the first run, byte by
    byte. Raises UsageError for fewer than two runs, and what `vkconv.load` and a run raise."""
    if runs < 2:
        raise UsageError(f"cannot compare {runs} runs: give 2 or more")
    options = dataclasses.replace(options or Options(), share_memory=False)
    graph, inputs = steered(graph, OPS, inputs)
    shapes = {name: array.shape for name, array in inputs.items()}
    with Session(graph, device, shapes=shapes, options=options, poison=True, limits=limits) as session:
        bound = bound_of(graph, shapes, session)
        session.run(inputs)
        planned = session.plan.nodes
        watched = [_Watched(node) for node, plan in zip(bound.nodes, planned, strict=True) if plan.choice]
        for node in watched:
            node.start(session)
        for run in range(2, runs + 1):
            session.run(inputs)
            changed: set[str] = set()
            for node in watched:
                changed |= node.look(session, run, changed)
    choices = {plan.name: plan for plan in planned}
    nodes = []
    for node in watched:
        plan = choices[node.node.name]
        assert plan.choice is not None
        nodes.append(
            Repeated(
                plan.name,
                plan.call,
                plan.text,
                plan.route,
                plan.params,
                runs,
                len(node.digests),
                node.first_run,
                sum(int(mask.sum()) for mask in node.differs.values()),
                "; ".join(f"{value}: {pattern(mask)}" for value, mask in node.differs.items() if mask.any()),
                node.origin,
                not plan.choice.route.deterministic,
            )
        )
    settled = all(node.distinct == 1 for node in nodes)
    return RepeatCheck(runs, tuple(nodes), _shared(graph, inputs, runs, device, options, limits) if settled else ())


def _shared(
    graph: Graph,
    inputs: Mapping[str, Array],
    runs: int,
    device: str | int,
    options: Options,
    limits: Device | None,
) -> tuple[str, ...]:
    """Outputs that change where values share memory."""
    options = dataclasses.replace(options, share_memory=True)
    shapes = {name: array.shape for name, array in inputs.items()}
    with Session(graph, device, shapes=shapes, options=options, poison=True, limits=limits) as session:
        first = session.run(inputs)
        changed = set()
        for _ in range(runs - 1):
            again = session.run(inputs)
            changed |= {name for name in first if again[name].tobytes() != first[name].tobytes()}
    return tuple(name for name in first if name in changed)


class _Watched:
    """What one node gave in the runs so far."""

    def __init__(self, node: BoundNode) -> None:
        self.node = node
        self.first: dict[str, Array] = {}
        self.differs: dict[str, Mask] = {}
        self.digests: set[bytes] = set()
        self.first_run: int | None = None
        self.origin = False

    def start(self, session: Session) -> None:
        self.first = {value: session.value(value) for value in self.node.writes.values()}
        self.differs = {value: np.zeros(array.shape, bool) for value, array in self.first.items()}
        self.digests = {_digest(self.first)}

    def look(self, session: Session, run: int, changed: set[str]) -> set[str]:
        """The values of this run that are not as in the first; ``changed`` are those of nodes before it."""
        now = {value: session.value(value) for value in self.first}
        self.digests.add(_digest(now))
        mine = {value for value, array in now.items() if array.tobytes() != self.first[value].tobytes()}
        for value in mine:
            self.differs[value] |= _bytes_differ(now[value], self.first[value])
        if mine:
            self.first_run = self.first_run or run
            self.origin |= not changed.intersection(self.node.reads.values())
        return mine


def _digest(arrays: Mapping[str, Array]) -> bytes:
    total = hashlib.blake2b(digest_size=16)
    for array in arrays.values():
        total.update(array.tobytes())
    return total.digest()


def _bytes_differ(a: Array, b: Array) -> Mask:
    """Elements whose bits differ: NaN equals itself, and -0 is not 0."""
    if a.size == 0:
        return np.zeros(a.shape, bool)
    bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(a.size, -1) for x in (a, b)]
    differ: Mask = (bits[0] != bits[1]).any(axis=1).reshape(a.shape)
    return differ
