"""The first launches by images: where a batch is streamed, they run on the images that have come while the next ones
are still on their way.

The pass makes several copies of the first nodes, each on a slice of the input, and joins what they make. Lowering
elides slices and concats, so that all is where it would be, and marks where a run needs more of the input.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from vkconv.call import HALVES, Call
from vkconv.cost import moving_us
from vkconv.device import Device, Target, target_of
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode, Pieces, fresh
from vkconv.plan.inside import home_alignment
from vkconv.plan.narrowing import cast_inputs
from vkconv.plan.per_image import of_images
from vkconv.plan.transfers import Staging, transfers
from vkconv.policy import Policy


class _Early(msgspec.Struct, frozen=True):
    """A row of the policy: into how many pieces at most (1: none), of inputs of how many bytes at least; the rate at
    which inputs get from the caller's array to kernels, of bytes as they arrive; the share of what memory bandwidth
    and arithmetic allow that first launches reach; and into how many parts the first node of the first piece is cut
    again, so that it waits for fewer images."""

    pieces: int
    from_bytes: int
    arriving_gbs: float
    roofline_share: float
    first_parts: int = 1

    def arriving_us(self, nbytes: int) -> float:
        """Until so many bytes have come."""
        return nbytes / 1e3 / self.arriving_gbs


EARLY = Policy("transfers.early", _Early)


def cut_early(
    graph: BoundGraph,
    ops: Mapping[str, Op],
    device: Device,
    staging: Staging,
    pieces: int | None,
    given: Collection[str],
    caches: Collection[str],
) -> tuple[BoundGraph, Mapping[str, str]]:
    """The graph whose first nodes are several, each of some of the images, where an input is streamed and that pays;
    and what there is to say of them. ``pieces`` is how many at most, None what the policy has. Nodes in ``given``, as
    ``node:NAME``, stay whole, for the caller names them; ``caches`` stay on the device."""
    row = EARLY.of(device)
    most = row.pieces if pieces is None else pieces
    nbytes = sum(spec.nbytes for name, spec in graph.inputs.items() if name not in caches)
    if most < 2 or not (how := transfers(device, staging, nbytes, 0)).streamed:
        return graph, {}
    casts = cast_inputs(graph, graph.nodes, caches) if how.narrowed else {}
    arriving = {x: casts[x].writes["y"] if x in casts else x for x in graph.inputs if x not in caches}
    best = None
    for x, value in arriving.items():
        images = next(iter(graph.specs[value].dims), 0)
        counts = [n for n in range(min(most, images), 1, -1) if images % n == 0]
        if pieces is None and graph.inputs[x].nbytes < row.from_bytes:
            continue
        for count in counts if pieces is None else counts[:1]:
            cutting = _Cutting(graph, ops, device, given, value, images, count, row.first_parts)
            gain_us = cutting.choose(row.arriving_us(graph.specs[value].nbytes), row.roofline_share)
            if cutting.chosen and gain_us > (best[0] if best else 0.0 if pieces is None else -math.inf):
                best = gain_us, x, cutting
    if best is None:
        return graph, {}
    _, x, cutting = best
    return cutting.cut(x, casts.get(x)), cutting.remarks


class _Cutting:
    """One cut of a graph: ``value`` is what an input arrives as."""

    def __init__(
        self,
        graph: BoundGraph,
        ops: Mapping[str, Op],
        device: Device,
        given: Collection[str],
        value: str,
        images: int,
        count: int,
        first_parts: int,
    ) -> None:
        self.graph, self.ops, self.given = graph, ops, given
        self.target = target_of(device)
        self.value, self.images, self.count = value, images, count
        self.part = images // count
        self._first_parts = first_parts
        self._alignment = home_alignment(device)
        self.specs = dict(graph.specs)
        self._taken = {*graph.specs, *(node.name for node in graph.nodes)}
        self.chosen: dict[str, BoundNode] = {}
        self.remarks: dict[str, str] = {}
        self._joints: set[str] = set()

    def choose(self, coming_us: float, share: float) -> float:
        """Take as many first nodes, which do with each image what they do with it alone, as are expected to save the
        most where the input takes so long to come; the time that they save."""
        held, spent_us = {self.value}, 0.0
        gains_us: list[float] = []
        for node in self.graph.nodes if self._fits(self.value, self.count) else ():
            if spent_us >= coming_us:
                break
            holds = {operand for operand, value in node.reads.items() if value in held}
            known = all(value in held or value in self.graph.constants for value in node.reads.values())
            fits = all(self._fits(written, self.count) for written in node.writes.values())
            apart = fits and f"node:{node.name}" not in self.given
            if not holds or not known or not apart or not self.ops[node.call.op].routes:
                continue
            if of_images(node.call, self.ops[node.call.op], holds, self.images, self.part) is None:
                continue
            self.chosen[node.name] = node
            held.update(node.writes.values())
            spent_us += roofline_us(node.call, self.ops[node.call.op], self.target, share)
            gains_us.append(self._gain_us(coming_us, spent_us))
        if not gains_us:
            return 0.0
        best = gains_us.index(max(gains_us))
        self.chosen = dict(itertools.islice(self.chosen.items(), best + 1))
        return gains_us[best]

    def _gain_us(self, coming_us: float, spent_us: float) -> float:
        """What is saved where all pieces take so long to come, and the chosen nodes so long to run whole: either the
        device is never idle once the first piece is there, or it is done with the others when the last one comes."""
        launches_us = (self.count - 1) * len(self.chosen) * self.target.value("launch_us")
        cut_us = spent_us + launches_us
        return coming_us + spent_us - max(coming_us / self.count + cut_us, coming_us + cut_us / self.count)

    def _fits(self, value: str, count: int) -> bool:
        """Whether each of so many pieces of a value may begin where it lies in the whole."""
        nbytes = self.graph.specs[value].nbytes
        return nbytes > 0 and nbytes % count == 0 and nbytes // count % self._alignment == 0

    def cut(self, x: str, cast: BoundNode | None) -> BoundGraph:
        """The graph with the chosen nodes in pieces; ``cast`` is what the host does of the input ``x``, if anything."""
        graph, finer = self.graph, self._finer()
        chosen = list(self.chosen.values())
        made = [] if cast is None else [(cast, 0)]
        parts, here, rest = dict[str, list[str]](), dict[str, str](), chosen
        if finer > 1:
            made += self._first_in_parts(finer, here)
            parts, rest = {value: [joined] for value, joined in here.items()}, chosen[1:]
        for piece in range(self.count):
            part = self._on_images(rest, piece * self.part, self.part, str(piece), here, parts)
            made += [(node, (piece + 1) * finer - 1) for node in part]
            here, rest = {}, chosen
        kept = [node for node in graph.nodes if node.name not in self.chosen and node is not cast]
        read = {value for node in kept for value in node.reads.values()} | {*graph.outputs}
        wholes = [
            self._joint(f"{node.name}/images", "concat", parts[value], {"axis": 0}, value)
            for node in chosen
            for value in node.writes.values()
            if value in read
        ]
        needs = {node.name: needed for node, needed in made}
        pieces = Pieces(x, self.value, self.count * finer, needs, frozenset(self._joints))
        everything = (*(node for node, _ in made), *wholes, *kept)
        return dataclasses.replace(graph, nodes=everything, specs=self.specs, pieces=pieces).pruned()

    def _finer(self) -> int:
        """Into how many parts the first node of the first piece is cut again."""
        finer, node = self._first_parts, next(iter(self.chosen.values()))
        if self.part % finer or not all(self._fits(v, self.count * finer) for v in (self.value, *node.writes.values())):
            return 1
        holds = [operand for operand, value in node.reads.items() if value == self.value]
        part = of_images(node.call, self.ops[node.call.op], holds, self.images, self.part // finer)
        return 1 if part is None else finer

    def _first_in_parts(self, finer: int, here: dict[str, str]) -> Iterator[tuple[BoundNode, int]]:
        """The first node of the first piece in so many parts, each with its number, and what joins them, which adds to
        what is ``here``."""
        first, images = next(iter(self.chosen.values())), self.part // finer
        parts: dict[str, list[str]] = {}
        for i in range(finer):
            for node in self._on_images([first], i * images, images, f"0.{i}", {}, parts):
                yield node, i
        for value, found in parts.items():
            here[value] = self._fresh(f"{value}/0")
            yield self._joint(f"{first.name}/images0", "concat", found, {"axis": 0}, here[value]), finer - 1

    def _on_images(
        self,
        nodes: Sequence[BoundNode],
        first: int,
        count: int,
        suffix: str,
        here: dict[str, str],
        parts: dict[str, list[str]],
    ) -> Iterator[BoundNode]:
        """The nodes on ``count`` images, a slice of the input first, which add their values to the ``parts`` of those
        that they stand for. ``here`` has what stands for a value on these images."""
        bounds: dict[str, AttrValue] = {"starts": (first,), "ends": (first + count,), "axes": (0,)}
        here[self.value] = self._fresh(f"{self.value}/{suffix}")
        yield self._joint(f"{self.value}/images{suffix}", "slice", [self.value], bounds, here[self.value])
        for node in nodes:
            holds = [operand for operand, value in node.reads.items() if value in here]
            call = of_images(node.call, self.ops[node.call.op], holds, self.images, count)
            assert call is not None
            reads = {operand: here.get(value, value) for operand, value in node.reads.items()}
            made = {output: self._fresh(f"{value}/{suffix}") for output, value in node.writes.items()}
            name = self._fresh(f"{node.name}/{suffix}")
            for output, value in node.writes.items():
                here[value] = made[output]
                parts.setdefault(value, []).append(made[output])
                self.specs[made[output]] = call.outputs[output]
            self.remarks[name] = f"images {first} to {first + count - 1} of {self.images}, as they come"
            yield BoundNode(name, call, reads, made)

    def _joint(self, stem: str, op: str, values: Sequence[str], attrs: Mapping[str, AttrValue], to: str) -> BoundNode:
        """A slice or concat around pieces, which makes the value ``to``."""
        names = ["x"] if len(values) == 1 and op == "slice" else [f"x{i}" for i in range(len(values))]
        reads = dict(zip(names, values, strict=True))
        operands: dict[str, TensorSpec | None] = {operand: self.specs[value] for operand, value in reads.items()}
        call = self.ops[op].call(operands, attrs)
        output, self.specs[to] = next(iter(call.outputs.items()))
        name = self._fresh(stem)
        self._joints.add(name)
        return BoundNode(name, call, reads, {output: to})

    def _fresh(self, stem: str) -> str:
        return fresh(stem, self._taken)


def roofline_us(call: Call, op: Op, target: Target, share: float) -> float:
    """Microseconds of a call whose launch reaches such a share of what bandwidth and arithmetic allow."""
    rate = target.value("fma_per_unit")
    if call.half in HALVES:
        rate = max(rate * target.value("f16_rate"), target.value("matrix_fma_per_unit"))
    arithmetic_us = op.flops(call) / 2 / (target.compute_units * rate * target.value("clock_mhz"))
    launch_us = target.value("launch_us")
    return launch_us + max(moving_us(op.compulsory_bytes(call), target, 0), arithmetic_us) / share
