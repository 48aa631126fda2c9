"""The steps of a plan: what runs in which order, which values are the same bytes, and which the host casts.

Blocks are named by what they hold: ``value:V`` a value that inference computes, ``scratch:N:B`` a route's scratch.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from vkconv.device import Device
from vkconv.ops.core.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.inside import NO_HOMES, find_homes
from vkconv.plan.memory import Block, lower_bound
from vkconv.plan.narrowing import cast_inputs, cast_outputs
from vkconv.plan.order import step_levels, waves
from vkconv.plan.regions import WORD_BYTES, words
from vkconv.plan.textures import block_textures
from vkconv.plan.transfers import Staging, transfers
from vkconv.plan.updates import check_caches, check_updates
from vkconv.plan.weights import prepacks_at_load
from vkconv.policy import Policy
from vkconv.program import Program

Step = tuple[BoundNode, Program]

# What saves the copies of a network may take so many times the memory that must be alive at once with them. densenet121
# takes 1.056 times as much and saves 116 copies, the other light networks save all of theirs and take nothing more.
_MOST_MEMORY = 1.06
# The same of steps side by side, in times of what they take one after the other; 0: they always are.
OVERLAP_MEMORY = Policy("plan.overlap_memory", float)


class Steps:
    """The nodes with programs in the order in which they run, ``in_order``, and what becomes of values: which have the
    same bytes (`root`), lie in others (``homes``) or are cast by the host (``arriving``, ``leaving``), and while which
    steps each is alive (`blocks`). Takes what `lower` does."""

    def __init__(
        self,
        bound: BoundGraph,
        ops: Mapping[str, Op],
        device: Device,
        programs: Sequence[Program | None],
        share_memory: bool,
        in_place: bool,
        staging: Staging,
        caches: Collection[str],
    ) -> None:
        self.bound = bound
        self.device = device
        self.in_order = [(n, p) for n, p in zip(bound.nodes, programs, strict=True) if p is not None]
        self.textures = block_textures(self.in_order)
        self.share_memory = share_memory
        self.alignment = max(WORD_BYTES, device.limit("minStorageBufferOffsetAlignment"))
        self.alias = {
            next(iter(n.writes.values())): next(iter(n.reads.values()))
            for n, p in zip(bound.nodes, programs, strict=True)
            if p is None and ops[n.call.op].alias
        }
        # By what is updated in place, the value whose bytes it takes over.
        self.updated = {n.writes["y"]: n.reads["x"] for n, _ in self.in_order if n.call.attrs.get("in_place")}
        check_updates(bound, self.in_order, self.updated, self.same)
        self.caches = frozenset(caches)
        check_caches(bound, self.caches, set(map(self.root, self.updated)))
        # Nothing makes these, but a kernel may bind them: a reduction of nothing has a result.
        self.empty = [
            value
            for n, p in zip(bound.nodes, programs, strict=True)
            if p is None and not ops[n.call.op].alias
            for value in n.writes.values()
        ]
        # What the host reads, by name; the others are constants.
        self.computed = [
            name
            for name in dict.fromkeys(bound.outputs)
            if self.root(name) not in bound.constants and self.root(name) not in self.caches
        ]
        given = [name for name in bound.inputs if name not in self.caches]
        widening = self._castable() if share_memory else {}
        self.transfers = transfers(
            device, staging, self.nbytes(given), self.nbytes(self.computed), self.nbytes(widening)
        )
        if not share_memory:  # what a caller's array holds afterwards is no value of the run
            self.transfers = dataclasses.replace(self.transfers, imported=None)
        # By input that the host narrows and output that it widens, the step that would, which is taken out; none where
        # every value may be read.
        self.narrowing, self.widening = self._host_casts(widening) if share_memory else ({}, {})
        self.host_casts = {node.name for node, _ in (*self.narrowing.values(), *self.widening.values())}
        self.in_order = [(node, program) for node, program in self.in_order if node.name not in self.host_casts]
        # The values that inputs arrive as, and that outputs leave as.
        self.arriving = {x: self.narrowing[x][0].writes["y"] if x in self.narrowing else x for x in bound.inputs}
        self.leaving = {y: self.widening[y][0].reads["x"] if y in self.widening else y for y in bound.outputs}
        self.homes = NO_HOMES
        self.without_homes: list[Block] = []
        # The first and the last step that may run beside each; none where they run in the order of the nodes.
        self.waves: list[tuple[int, int]] = []
        if share_memory:
            self._overlap()
        if in_place:
            self._find_homes()

    @property
    def _stays(self) -> set[str]:
        """The values that are read or written otherwise than as the casts of the host would have it."""
        return {*self.caches, *self.updated.values(), *(name.removeprefix("value:") for name in self.textures)}

    def _castable(self) -> dict[str, BoundNode]:
        """By output, the cast that the host could make of it. What nothing computes leaves as it came."""
        given = {value for value in self.bound.specs if self.root(value) in {*self.bound.inputs, *self.bound.constants}}
        return cast_outputs(self.bound, [node for node, _ in self.in_order], {*self._stays, *self.updated, *given})

    def _host_casts(self, widening: Mapping[str, BoundNode]) -> tuple[dict[str, Step], dict[str, Step]]:
        """By input and by output, the steps that the host does while it copies, of outputs some of those."""
        bound, steps = self.bound, {node.name: (node, program) for node, program in self.in_order}
        # A cast that only steps of nothing read, such as of no regions, has no place where it would arrive.
        read = {self.root(value) for node, _ in self.in_order for value in node.reads.values()}
        narrowing = cast_inputs(bound, [node for node, _ in self.in_order], self._stays)
        narrowing = {x: node for x, node in narrowing.items() if node.writes["y"] in read}
        # What kernels read does not lie in memory of the host, where a cast puts what they do not read.
        users = bound.users() if self.transfers.far_outputs else {}
        widening = {y: node for y, node in widening.items() if len(users.get(node.reads["x"], ())) <= 1}
        how = self.transfers
        by_name = (
            {value: steps[node.name] for value, node in found.items()} if done else dict[str, Step]()
            for found, done in ((narrowing, how.narrowed), (widening, how.widened))
        )
        return next(by_name), next(by_name)

    def _overlap(self) -> None:
        """Let steps that do not wait for each other run side by side, in memory of their own, unless much more of it
        would have to be alive at once."""
        most, in_turn = OVERLAP_MEMORY.of(self.device), self.in_order
        levels = step_levels(
            [[self.same(value) for value in node.reads.values()] for node, _ in in_turn],
            [node.writes.values() for node, _ in in_turn],
            [self.piece(node.name) for node, _ in in_turn],
        )
        if not most or len(set(levels)) == len(levels):
            return
        least_bytes = lower_bound(self.blocks(), self.alignment)
        self.in_order = [step for _, step in sorted(zip(levels, in_turn, strict=True), key=lambda pair: pair[0])]
        self.waves = waves(sorted(levels))
        if lower_bound(self.blocks(), self.alignment) > most * least_bytes:
            self.in_order, self.waves = in_turn, []

    def _find_homes(self) -> None:
        """Let values lie inside others, unless much more memory would have to be alive at once; pieces of a batch
        always do."""
        pieces = self.bound.pieces
        cut, joints = ([pieces.value], pieces.joints) if pieces else ([], frozenset())
        self.homes = least = find_homes(self.in_order, self.bound.specs, self.root, self.alignment, cut, joints)
        self.without_homes = self.blocks()
        least_bytes = lower_bound(self.without_homes, self.alignment)
        self.homes = find_homes(self.in_order, self.bound.specs, self.root, self.alignment, cut)
        if lower_bound(self.blocks(), self.alignment) > _MOST_MEMORY * least_bytes:
            self.homes = least
        self.in_order = [(node, self.homes.steps(node, program)) for node, program in self.in_order]

    def piece(self, node: str) -> int:
        """The piece of an input that a node stands with: the last, unless it needs less."""
        pieces = self.bound.pieces
        return pieces.of.get(node, pieces.count - 1) if pieces else 0

    def same(self, value: str) -> str:
        """The value that this one is by another name or shape, through alias nodes."""
        while value in self.alias:
            value = self.alias[value]
        return value

    def root(self, value: str) -> str:
        """The value whose bytes this one has, through alias nodes and those that update in place."""
        value = self.same(value)
        while value in self.updated:
            value = self.same(self.updated[value])
        return value

    def nbytes(self, names: Iterable[str]) -> int:
        """What values take, in whole words."""
        return sum(words(self.bound.specs[name].nbytes) for name in names)

    def blocks(self) -> list[Block]:
        """Values from the step that makes them, or the first that lies in them, to the last that reads them or those;
        scratch for its own step."""
        bound, end = self.bound, len(self.in_order)
        first = dict.fromkeys([*self.arriving.values(), *self.empty], -1)
        last: dict[str, int] = {}
        scratch: list[Block] = []
        for index, (node, program) in enumerate(self.in_order):
            for value in node.reads.values():
                last[self.homes.home(self.root(value))[0]] = index
            for value in node.writes.values():
                home = self.homes.home(self.root(value))[0]
                first[home] = min(first.get(home, index), index)
                last[home] = max(last.get(home, index), index)
            own = dict(program.scratch)
            if program.prepack and not prepacks_at_load(node, program, bound.constants):
                own |= program.packed
            scratch += [Block(f"scratch:{node.name}:{b}", words(size), index, index) for b, size in own.items()]
        for value in self.leaving.values():
            last[self.homes.home(self.root(value))[0]] = end
        if not self.share_memory:  # every value may be read, also one of which only values without elements are made
            for value in bound.inputs:
                if bound.specs[value].size:
                    last.setdefault(self.homes.home(value)[0], end)
        values = [
            Block(f"value:{value}", words(bound.specs[value].nbytes), start, last[value])
            for value, start in first.items()
            if value in last
        ]
        if self.waves:
            at = {-1: (-1, -1), end: (end, end)} | dict(enumerate(self.waves))
            return [Block(b.name, b.nbytes, at[b.first][0], at[b.last][1]) for b in values + scratch]
        if self.share_memory:
            return values + scratch
        return [Block(b.name, b.nbytes, -1, end) for b in values + scratch]
