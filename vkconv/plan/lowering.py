"""Lowering: programs of chosen routes become commands on byte regions of a few buffers.

Buffer blocks are named by what they hold: ``value:V`` a value that inference computes, ``scratch:N:B`` a
route's scratch, ``weight:C`` a constant that steps read as it is, ``packed:N:B`` what prepacking made of
constants. Values and scratch share the activation chunks by lifetime; weights and packed stay.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from vkconv.core import Array
from vkconv.device import Device
from vkconv.ops.core.base import Op
from vkconv.plan.arriving import Early, find_ends
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.commands import Barrier, Command, Copy, Launch, Region, with_barriers
from vkconv.plan.host_ports import HostPorts
from vkconv.plan.limits import check_launch, check_memory, check_program, max_allocation_bytes
from vkconv.plan.memory import Block, lay_out, lower_bound
from vkconv.plan.model import Memory, Plan, PlannedNode
from vkconv.plan.narrowing import Narrowed, Widened
from vkconv.plan.order import side_by_side
from vkconv.plan.placing import packs_anew, place_weights, staged_constants, staged_regions
from vkconv.plan.planned import as_they_run
from vkconv.plan.regions import Placed, bound_part, exact, extent, words
from vkconv.plan.steps import Steps
from vkconv.plan.textures import PlacedTextures, without
from vkconv.plan.transfers import Staging
from vkconv.plan.weights import Resident, prepacks_at_load
from vkconv.program import Dispatch, Program


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
    steps = Steps(bound, ops, device, programs, share_memory, in_place, staging, caches)
    return _Lowering(steps, planned, resident).plan()


class _Lowering:
    def __init__(self, steps: Steps, planned: Sequence[PlannedNode], resident: Resident | None) -> None:
        self.steps, self.bound, self.device = steps, steps.bound, steps.device
        self.planned = {node.name: node for node in planned}
        self.resident = resident

    def plan(self) -> Plan:
        bound, steps = self.bound, self.steps
        blocks = steps.blocks()
        own_textures = PlacedTextures("texture", blocks, steps.textures)
        host = HostPorts(steps, {block.name for block in blocks})
        apart = host.inputs_there.keys() | host.outputs_there.keys()
        in_buffers = without(blocks, steps.textures)
        activations = self._layout("activations", [block for block in in_buffers if block.name not in apart])
        weights = place_weights(bound, steps.in_order, self.resident, steps.textures, steps.alignment, self._layout)
        regions = {
            **activations.regions,
            **own_textures.regions,
            **weights.regions,
            **host.inputs_there,
            **host.outputs_there,
        }
        for value in steps.homes.of:
            home, offset = steps.homes.home(value)
            if f"value:{home}" in regions:
                around = regions[f"value:{home}"]
                size = words(bound.specs[value].nbytes)
                regions[f"value:{value}"] = Region(around.buffer, around.offset + offset, size)
        stage = staged_regions("load", staged_constants(bound, steps.in_order, weights), steps.alignment)
        downloads = {
            name: self._copy("download", name, regions[host.leaves[name]], port, steps.leaving[name])
            for name, port in host.departures.items()
            if host.leaves[name] not in host.outputs_there and bound.specs[name].size
        }
        load: list[Command] = [
            Copy(f"load {name}", region, regions[f"weight:{name}"])
            for name, region in stage.items()
            if f"weight:{name}" in weights.fresh
        ]
        run: list[Command] = [
            self._copy("upload", name, region, regions[f"value:{name}"], name)
            for name, region in host.inputs.items()
            if name not in steps.narrowing
            and f"value:{name}" in regions.keys() - host.inputs_there.keys()
            and bound.specs[name].size
        ]
        for node, program in steps.in_order:
            early = prepacks_at_load(node, program, bound.constants)
            load_names = self._names(node, program, regions, stage if early else {})
            step_names = self._names(node, program, regions, {})
            if not early or packs_anew(node, program, weights):
                (load if early else run).extend(self._launch(node, d, load_names) for d in program.prepack)
            run.extend(self._launch(node, d, step_names) for d in program.steps)
        run += downloads.values()
        load_bytes = extent(stage.values())
        memory = Memory(
            activations_bytes=activations.layout.peak_bytes + own_textures.nbytes,
            lower_bound_bytes=self._lower_bound(blocks, apart),
            weights_bytes=weights.nbytes,
            load_bytes=load_bytes,
            upload_bytes=host.upload_bytes,
            download_bytes=host.download_bytes,
            caches_bytes=host.caches_bytes,
        )
        check_memory(bound.name, memory, self.device)
        buffers = {**activations.buffers, **weights.buffers, **host.buffers}
        ordered = tuple(side_by_side(run, self._piece_of) if steps.waves else with_barriers(run))
        return Plan(
            graph=bound.name,
            device=self.device,
            inputs={name: (bound.specs[name], region) for name, region in host.inputs.items()},
            outputs={name: (bound.specs[name], region) for name, region in host.outputs.items()},
            known={
                name: bound.constants[steps.root(name)] for name in bound.outputs if steps.root(name) in bound.constants
            },
            buffers=buffers | ({"load": (load_bytes, "upload")} if load_bytes else {}),
            stage=stage,
            weights=weights.placed,
            load=tuple(with_barriers(load)),
            run=ordered,
            nodes=as_they_run(self.planned.values(), steps.in_order, steps.homes, steps.host_casts),
            values={
                value: (spec, regions[f"value:{steps.root(value)}"])
                for value, spec in bound.specs.items()
                if f"value:{steps.root(value)}" in regions
            },
            memory=memory,
            transfers=steps.transfers,
            caches=tuple(name for name in bound.inputs if name in steps.caches),
            textures={**own_textures.textures, **weights.textures},
            early=self._early(ordered, {name: region.buffer for name, region in host.arrivals.items()}),
            narrowed={
                x: self._narrowed(x, node, program, host, regions) for x, (node, program) in steps.narrowing.items()
            },
            widened={
                y: self._widened(y, node, program, host, downloads.get(y), regions)
                for y, (node, program) in steps.widening.items()
            },
        )

    def _piece_of(self, command: Command) -> int:
        """The piece of an input that a command stands with; what comes in by copies comes first."""
        is_upload = isinstance(command, Copy) and command.source.buffer.startswith("input:")
        return 0 if is_upload else self.steps.piece(command.node)

    def _early(self, run: Sequence[Command | Barrier], ports: Mapping[str, str]) -> Early | None:
        """How the run begins before an input that came in pieces is there; None where it cannot."""
        pieces = self.bound.pieces
        if pieces is None or not self.steps.transfers.streamed or pieces.x in self.steps.caches:
            return None
        others = {port for name, port in ports.items() if name != pieces.x and name not in self.steps.caches}
        nbytes = self.bound.specs[self.steps.arriving[pieces.x]].nbytes
        ends = find_ends(run, ports[pieces.x], others, nbytes, pieces.count)
        return Early(pieces.x, pieces.count, nbytes, ends) if ends else None

    def _narrowed(
        self, x: str, node: BoundNode, program: Program, host: HostPorts, regions: Mapping[str, Region]
    ) -> Narrowed:
        """How an input comes that the host narrows: from its port, or from an array of the device in that place."""
        y, port = node.writes["y"], host.arrivals[x]
        spec, target = self.bound.specs[y], regions[f"value:{y}"]
        names = self._names(node, program, {**regions, f"value:{x}": host.inputs[x]}, {})
        upload = None if target == port else self._copy("upload", x, port, target, y)
        return Narrowed(spec, port, upload, tuple(self._launch(node, d, names) for d in program.steps))

    def _widened(
        self,
        y: str,
        node: BoundNode,
        program: Program,
        host: HostPorts,
        download: Copy | None,
        regions: Mapping[str, Region],
    ) -> Widened:
        """How an output leaves that the host widens: by its port, or to an array of the device."""
        names = self._names(node, program, {**regions, f"value:{y}": host.outputs[y]}, {})
        spec = self.bound.specs[node.reads["x"]]
        return Widened(spec, host.departures[y], download, tuple(self._launch(node, d, names) for d in program.steps))

    def _copy(self, way: str, name: str, source: Region, target: Region, value: str) -> Copy:
        """An input or an output on its way, as the value that it arrives or leaves as."""
        spec = self.bound.specs[value]
        return Copy(f"{way} {name}", exact(source, spec), exact(target, spec))

    def _lower_bound(self, planned: Sequence[Block], apart: Collection[str]) -> int:
        """The most bytes alive at one step, as planned or with no value inside another, whichever is less."""
        ways = filter(None, (planned, self.steps.without_homes))
        bounds = (
            lower_bound([block for block in way if block.name not in apart], self.steps.alignment) for way in ways
        )
        return min(bounds, default=0)

    def _layout(self, prefix: str, blocks: Sequence[Block], first_chunk: int = 0) -> "Placed":
        layout = lay_out(blocks, self.steps.alignment, max_allocation_bytes(self.device))
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
            root = self.steps.root(value)
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
