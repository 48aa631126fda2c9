"""Lowering: programs of chosen routes become commands on byte regions of a few buffers.

Buffer blocks are named by what they hold: ``value:V`` a value that inference computes, ``scratch:N:B`` a
route's scratch, ``weight:C`` a constant that steps read as it is, ``packed:N:B`` what prepacking made of
constants. Values and scratch share the activation chunks by lifetime; weights and packed stay.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from vkconv.core import Array
from vkconv.device import Device
from vkconv.ops.core.base import Op
from vkconv.plan.arriving import Early, find_ends
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.commands import Barrier, BufferKind, Command, Copy, Launch, Region, with_barriers
from vkconv.plan.inside import NO_HOMES, find_homes
from vkconv.plan.limits import check_launch, check_memory, check_program, max_allocation_bytes
from vkconv.plan.memory import Block, lay_out, lower_bound
from vkconv.plan.model import Memory, Plan, PlannedNode
from vkconv.plan.narrowing import Narrowed, cast_inputs
from vkconv.plan.order import side_by_side, step_levels, waves
from vkconv.plan.placing import packs_anew, place_weights, staged_constants, staged_regions
from vkconv.plan.planned import as_they_run
from vkconv.plan.regions import WORD_BYTES, Placed, bound_part, exact, extent, words
from vkconv.plan.textures import PlacedTextures, block_textures, without
from vkconv.plan.transfers import Staging, transfers
from vkconv.plan.updates import check_caches, check_updates
from vkconv.plan.weights import (
    Resident,
    prepacks_at_load,
)
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program

# What saves the copies of a network may take so many times the memory that must be alive at once with them. densenet121
# takes 1.056 times as much and saves 116 copies, the other light networks save all of theirs and take nothing more.
_MOST_MEMORY = 1.06
# The same of steps side by side, in times of what they take one after the other; 0: they always are.
OVERLAP_MEMORY = Policy("plan.overlap_memory", float)


def lower(
    bound: BoundGraph,
    ops: Mapping[str, Op],
    device: Device,
    planned: Sequence[PlannedNode],
    programs: Sequence[Program | None],
    share_memory: bool,
    resident: Resident | None = None,
    in_place: bool = True,
    staging: Staging = None,
    caches: Collection[str] = (),
) -> Plan:
    """The plan of a bound graph whose nodes have their programs (None for alias and empty nodes).

    ``resident`` says which constants earlier plans of the session left on the device (None: nobody shares them). With
    ``in_place`` values lie inside others where that saves a copy. ``staging`` is that of `transfers`. ``caches`` are
    inputs that stay on the device from run to run, updated in place: outputs in the same memory are none of the plan's.
    Raises LimitError naming the node where a dispatch, a binding or an allocation exceeds the device, GraphError for a
    node that writes over what another one reads.
    """
    for node, program in zip(planned, programs, strict=True):
        if program is not None:
            check_program(f"{bound.name}, {node.name} ({node.text})", node, program, device)
    return _Lowering(bound, ops, device, planned, programs, share_memory, resident, in_place, staging, caches).plan()


class _Lowering:
    def __init__(
        self,
        bound: BoundGraph,
        ops: Mapping[str, Op],
        device: Device,
        planned: Sequence[PlannedNode],
        programs: Sequence[Program | None],
        share_memory: bool,
        resident: Resident | None,
        in_place: bool,
        staging: Staging,
        caches: Collection[str],
    ) -> None:
        self.bound = bound
        self.planned = {node.name: node for node in planned}
        self.resident = resident
        self.device = device
        self.steps = [(n, p) for n, p in zip(bound.nodes, programs, strict=True) if p is not None]
        self.textures = block_textures(self.steps)
        self.share_memory = share_memory
        self.alignment = max(WORD_BYTES, device.limit("minStorageBufferOffsetAlignment"))
        self.alias = {
            next(iter(n.writes.values())): next(iter(n.reads.values()))
            for n, p in zip(bound.nodes, programs, strict=True)
            if p is None and ops[n.call.op].alias
        }
        # By what is updated in place, the value whose bytes it takes over.
        self.updated = {n.writes["y"]: n.reads["x"] for n, _ in self.steps if n.call.attrs.get("in_place")}
        check_updates(bound, self.steps, self.updated, self.same)
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
        self.transfers = transfers(device, staging, self._nbytes(given), self._nbytes(self.computed))
        if not share_memory:  # what a caller's array holds afterwards is no value of the run
            self.transfers = dataclasses.replace(self.transfers, imported=None)
        # By input that the host narrows, the step that would, which is taken out; none where every value may be read.
        self.narrowing: dict[str, tuple[BoundNode, Program]] = {}
        if self.transfers.narrowed and share_memory:
            textures = (name.removeprefix("value:") for name in self.textures)
            program_of = {node.name: program for node, program in self.steps}
            found = cast_inputs(bound, (n for n, _ in self.steps), {*self.caches, *self.updated.values(), *textures})
            self.narrowing = {x: (node, program_of[node.name]) for x, node in found.items()}
        casts = {node.name for node, _ in self.narrowing.values()}
        self.steps = [(node, program) for node, program in self.steps if node.name not in casts]
        # The values that inputs arrive as.
        self.arriving = {x: self.narrowing[x][0].writes["y"] if x in self.narrowing else x for x in bound.inputs}
        self.homes = NO_HOMES
        self.without_homes: list[Block] = []
        # The first and the last step that may run beside each; none where they run in the order of the nodes.
        self.waves: list[tuple[int, int]] = []
        if share_memory:
            self._overlap()
        if in_place:
            self._find_homes()

    def _overlap(self) -> None:
        """Let steps that do not wait for each other run side by side, in memory of their own, unless much more of it
        would have to be alive at once."""
        most, in_turn = OVERLAP_MEMORY.of(self.device), self.steps
        levels = step_levels(
            [[self.same(value) for value in node.reads.values()] for node, _ in in_turn],
            [node.writes.values() for node, _ in in_turn],
            [self._piece(node.name) for node, _ in in_turn],
        )
        if not most or len(set(levels)) == len(levels):
            return
        least_bytes = lower_bound(self._activation_blocks(), self.alignment)
        self.steps = [step for _, step in sorted(zip(levels, in_turn, strict=True), key=lambda pair: pair[0])]
        self.waves = waves(sorted(levels))
        if lower_bound(self._activation_blocks(), self.alignment) > most * least_bytes:
            self.steps, self.waves = in_turn, []

    def _find_homes(self) -> None:
        """Let values lie inside others, unless much more memory would have to be alive at once; pieces of a batch
        always do."""
        pieces = self.bound.pieces
        cut, joints = ([pieces.value], pieces.joints) if pieces else ([], frozenset())
        self.homes = least = find_homes(self.steps, self.bound.specs, self.root, self.alignment, cut, joints)
        self.without_homes = self._activation_blocks()
        least_bytes = lower_bound(self.without_homes, self.alignment)
        self.homes = find_homes(self.steps, self.bound.specs, self.root, self.alignment, cut)
        if lower_bound(self._activation_blocks(), self.alignment) > _MOST_MEMORY * least_bytes:
            self.homes = least
        self.steps = [(node, self.homes.steps(node, program)) for node, program in self.steps]

    def _piece(self, node: str) -> int:
        """The piece of an input that a node stands with: the last, unless it needs less."""
        pieces = self.bound.pieces
        return pieces.of.get(node, pieces.count - 1) if pieces else 0

    def _piece_of(self, command: Command) -> int:
        """That of a command; what comes in by copies comes first."""
        is_upload = isinstance(command, Copy) and command.source.buffer.startswith("input:")
        return 0 if is_upload else self._piece(command.node)

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

    def plan(self) -> Plan:
        bound = self.bound
        blocks = self._activation_blocks()
        own_textures = PlacedTextures("texture", blocks, self.textures)
        shared_inputs, shared_outputs = self._shared_with_host({block.name for block in blocks})
        apart = shared_inputs.keys() | shared_outputs.keys()
        in_buffers = without(blocks, self.textures)
        activations = self._layout("activations", [block for block in in_buffers if block.name not in apart])
        weights = place_weights(bound, self.steps, self.resident, self.textures, self.alignment, self._layout)
        regions = {
            **activations.regions,
            **own_textures.regions,
            **weights.regions,
            **shared_inputs,
            **shared_outputs,
        }
        for value in self.homes.of:
            home, offset = self.homes.home(value)
            if f"value:{home}" in regions:
                around = regions[f"value:{home}"]
                size = words(bound.specs[value].nbytes)
                regions[f"value:{value}"] = Region(around.buffer, around.offset + offset, size)
        stage = staged_regions("load", staged_constants(bound, self.steps, weights), self.alignment)
        inputs = {name: self._port("input", name) for name in bound.inputs}
        ports = {name: self._arrival(name) for name in bound.inputs}
        outputs = {
            name: shared_outputs.get(f"value:{self.root(name)}", self._port("output", name)) for name in self.computed
        }
        load: list[Command] = [
            Copy(f"load {name}", region, regions[f"weight:{name}"])
            for name, region in stage.items()
            if f"weight:{name}" in weights.fresh
        ]
        run: list[Command] = [
            Copy(f"upload {name}", exact(region, bound.specs[name]), exact(regions[f"value:{name}"], bound.specs[name]))
            for name, region in inputs.items()
            if name not in self.narrowing
            and f"value:{name}" in regions.keys() - shared_inputs.keys()
            and bound.specs[name].size
        ]
        for node, program in self.steps:
            early = prepacks_at_load(node, program, bound.constants)
            load_names = self._names(node, program, regions, stage if early else {})
            step_names = self._names(node, program, regions, {})
            if not early or packs_anew(node, program, weights):
                (load if early else run).extend(self._launch(node, d, load_names) for d in program.prepack)
            run.extend(self._launch(node, d, step_names) for d in program.steps)
        run += [
            Copy(
                f"download {name}",
                exact(regions[f"value:{self.root(name)}"], bound.specs[name]),
                exact(region, bound.specs[name]),
            )
            for name, region in outputs.items()
            if f"value:{self.root(name)}" not in shared_outputs and bound.specs[name].size
        ]
        load_bytes = extent(stage.values())
        port: BufferKind = "streamed" if self.transfers.streamed else "input"
        back: BufferKind = "streamed" if self.transfers.streamed_outputs else "output"
        uploads: dict[str, tuple[int, BufferKind]] = {
            region.buffer: (region.nbytes, port if f"value:{self.arriving[name]}" in shared_inputs else "upload")
            for name, region in ports.items()
            if name not in self.caches
        }
        caches: dict[str, tuple[int, BufferKind]] = {
            region.buffer: (region.nbytes, "device") for name, region in inputs.items() if name in self.caches
        }
        downloads: dict[str, tuple[int, BufferKind]] = {
            region.buffer: (region.nbytes, back if f"value:{self.root(name)}" in shared_outputs else "download")
            for name, region in outputs.items()
        }
        memory = Memory(
            activations_bytes=activations.layout.peak_bytes + own_textures.nbytes,
            lower_bound_bytes=self._lower_bound(blocks, apart),
            weights_bytes=weights.nbytes,
            load_bytes=load_bytes,
            upload_bytes=_host_bytes(uploads),
            download_bytes=_host_bytes(downloads),
            caches_bytes=sum(nbytes for nbytes, _ in caches.values()),
        )
        check_memory(bound.name, memory, self.device)
        buffers: dict[str, tuple[int, BufferKind]] = {**activations.buffers, **weights.buffers, **uploads, **downloads}
        buffers |= caches
        ordered = tuple(side_by_side(run, self._piece_of) if self.waves else with_barriers(run))
        return Plan(
            graph=bound.name,
            device=self.device,
            inputs={name: (bound.specs[name], region) for name, region in inputs.items()},
            outputs={name: (bound.specs[name], region) for name, region in outputs.items()},
            known={
                name: bound.constants[self.root(name)] for name in bound.outputs if self.root(name) in bound.constants
            },
            buffers=buffers | ({"load": (load_bytes, "upload")} if load_bytes else {}),
            stage=stage,
            weights=weights.placed,
            load=tuple(with_barriers(load)),
            run=ordered,
            nodes=as_they_run(
                self.planned.values(), self.steps, self.homes, {n.name for n, _ in self.narrowing.values()}
            ),
            values={
                value: (spec, regions[f"value:{self.root(value)}"])
                for value, spec in bound.specs.items()
                if f"value:{self.root(value)}" in regions
            },
            memory=memory,
            transfers=self.transfers,
            caches=tuple(name for name in bound.inputs if name in self.caches),
            textures={**own_textures.textures, **weights.textures},
            early=self._early(ordered, {name: region.buffer for name, region in ports.items()}),
            narrowed={
                x: self._narrowed(x, node, program, ports[x], regions) for x, (node, program) in self.narrowing.items()
            },
        )

    def _early(self, run: Sequence[Command | Barrier], ports: Mapping[str, str]) -> Early | None:
        """How the run begins before an input that came in pieces is there; None where it cannot."""
        pieces = self.bound.pieces
        if pieces is None or not self.transfers.streamed or pieces.x in self.caches:
            return None
        others = {port for name, port in ports.items() if name != pieces.x and name not in self.caches}
        nbytes = self.bound.specs[self.arriving[pieces.x]].nbytes
        ends = find_ends(run, ports[pieces.x], others, nbytes, pieces.count)
        return Early(pieces.x, pieces.count, nbytes, ends) if ends else None

    def _narrowed(
        self, x: str, node: BoundNode, program: Program, port: Region, regions: Mapping[str, Region]
    ) -> Narrowed:
        """How an input comes that the host narrows: from its port, or from an array of the device in that place."""
        y = node.writes["y"]
        spec, target = self.bound.specs[y], regions[f"value:{y}"]
        names = self._names(node, program, {**regions, f"value:{x}": self._port("input", x)}, {})
        upload = None if target == port else Copy(f"upload {x}", exact(port, spec), exact(target, spec))
        return Narrowed(spec, port, upload, tuple(self._launch(node, d, names) for d in program.steps))

    def _lower_bound(self, planned: Sequence[Block], apart: Collection[str]) -> int:
        """The most bytes alive at one step, as planned or with no value inside another, whichever is less."""
        ways = filter(None, (planned, self.without_homes))
        bounds = (lower_bound([block for block in way if block.name not in apart], self.alignment) for way in ways)
        return min(bounds, default=0)

    def _port(self, side: str, name: str) -> Region:
        """Where the host writes an input or reads an output."""
        return Region(f"{side}:{name}", 0, words(self.bound.specs[name].nbytes))

    def _arrival(self, name: str) -> Region:
        """Where the host writes an input, narrowed or as it is."""
        if name not in self.narrowing:
            return self._port("input", name)
        return Region(f"narrowed:{name}", 0, words(self.bound.specs[self.arriving[name]].nbytes))

    def _nbytes(self, names: Iterable[str]) -> int:
        return sum(words(self.bound.specs[name].nbytes) for name in names)

    def _shared_with_host(self, blocks: Collection[str]) -> tuple[dict[str, Region], dict[str, Region]]:
        """The blocks of inputs and of outputs that lie where the host writes and reads them.

        An output that is an input, or a part of a larger value, is copied: the one lies in memory that may be slow to
        read, the other would take its whole home out of the memory that is shared by lifetime.
        """
        specs, inputs, outputs = self.bound.specs, dict[str, Region](), dict[str, Region]()
        # Memory that the user gave is not to be written over.
        copied = {self.root(value) for value in self.updated} - self.caches
        for name, value in self.arriving.items():
            own = name in self.caches or (self.transfers.ports and name not in copied)
            if own and f"value:{value}" in blocks and specs[name].size:
                inputs[f"value:{value}"] = self._arrival(name)
        # What kernels read stays in memory of the device.
        reads = {self.root(value) for node, _ in self.steps for value in node.reads.values()}
        near = {self.homes.home(value)[0] for value in reads} if self.transfers.far_outputs else set[str]()
        for name in self.computed if self.transfers.output_ports else ():
            root = self.root(name)
            if f"value:{root}" in blocks and specs[name].size and root not in self.bound.inputs and root not in near:
                outputs.setdefault(f"value:{root}", self._port("output", name))
        return inputs, outputs

    def _activation_blocks(self) -> list[Block]:
        """Values from the step that makes them, or the first that lies in them, to the last that reads them or those;
        scratch for its own step."""
        bound, end = self.bound, len(self.steps)
        first = dict.fromkeys([*self.arriving.values(), *self.empty], -1)
        last: dict[str, int] = {}
        scratch: list[Block] = []
        for index, (node, program) in enumerate(self.steps):
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
        for value in bound.outputs:
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

    def _layout(self, prefix: str, blocks: Sequence[Block], first_chunk: int = 0) -> "Placed":
        layout = lay_out(blocks, self.alignment, max_allocation_bytes(self.device))
        return Placed(prefix, layout, blocks, first_chunk)

    def _names(
        self, node: BoundNode, program: Program, regions: Mapping[str, Region], stage: Mapping[str, Region]
    ) -> Callable[[str], Region]:
        """From a buffer name in a program to its region; ``stage`` holds constants while they are loaded."""

        def region(buffer: str) -> Region:
            if buffer in program.packed or buffer in program.scratch:
                held = f"packed:{node.name}:{buffer}"
                return regions[held] if held in regions else regions[f"scratch:{node.name}:{buffer}"]
            value = node.reads[buffer] if buffer in node.reads else node.writes[buffer]
            root = self.root(value)
            if root in self.bound.constants:
                return stage[root] if root in stage else regions[f"weight:{root}"]
            return regions[f"value:{root}"]

        return region

    def _launch(self, node: BoundNode, dispatch: Dispatch, names: Callable[[str], Region]) -> Launch:
        launch = Launch(
            node.name,
            dispatch.shader,
            tuple((bound_part(names(bind.buffer), bind), bind.access) for bind in dispatch.binds),
            dispatch.groups,
            dispatch.spec_words,
            dispatch.push_bytes,
            self.device.required_subgroup_size(dispatch.shader.subgroups),
            dispatch.shared_bytes,
            dispatch.pushes,
        )
        check_launch(f"{self.bound.name}, {node}", launch, self.device, self.planned[node.name])
        return launch


def staged_bytes(array: Array) -> bytes:
    """A constant's bytes as they lie in the load buffer: C order, native byte order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).tobytes()


def _host_bytes(ports: Mapping[str, tuple[int, BufferKind]]) -> int:
    """What ports take; streamed ones lie in staging and on the device."""
    return sum(nbytes * (2 if kind == "streamed" else 1) for nbytes, kind in ports.values())
