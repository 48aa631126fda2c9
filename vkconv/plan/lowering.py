"""Lowering: programs of chosen routes become commands on byte regions of a few buffers.

Buffer blocks are named by what they hold: ``value:V`` a value that inference computes, ``scratch:N:B`` a
route's scratch, ``weight:C`` a constant that steps read as it is, ``packed:N:B`` what prepacking made of
constants. Values and scratch share the activation chunks by lifetime; weights and packed stay.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from vkconv.core import Array, align
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.base import Op
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.commands import BufferKind, Command, Copy, Launch, Region, with_barriers
from vkconv.plan.limits import check_dispatch, check_launch, check_memory, max_allocation_bytes
from vkconv.plan.memory import Block, Layout, lay_out
from vkconv.plan.model import Memory, Plan, PlannedNode
from vkconv.shader import Dispatch, Program

# Bindings are whole words, and no binding may be empty.
_WORD_BYTES = 4


def lower(
    bound: BoundGraph,
    ops: Mapping[str, Op],
    device: Device,
    planned: Sequence[PlannedNode],
    programs: Sequence[Program | None],
    share_memory: bool,
) -> Plan:
    """The plan of a bound graph whose nodes have their programs (None for alias and empty nodes).

    Raises LimitError naming the node where a dispatch, a binding or an allocation exceeds the device.
    """
    for node, program in zip(planned, programs, strict=True):
        for dispatch in (*program.prepack, *program.steps) if program else ():
            check_dispatch(f"{bound.name}, {node.name} ({node.text})", dispatch, device)
    return _Lowering(bound, ops, device, programs, share_memory).plan(tuple(planned))


class _Lowering:
    def __init__(
        self,
        bound: BoundGraph,
        ops: Mapping[str, Op],
        device: Device,
        programs: Sequence[Program | None],
        share_memory: bool,
    ) -> None:
        self.bound = bound
        self.device = device
        self.steps = [(n, p) for n, p in zip(bound.nodes, programs, strict=True) if p is not None]
        self.share_memory = share_memory
        self.alignment = max(_WORD_BYTES, device.limit("minStorageBufferOffsetAlignment"))
        self.alias = {
            next(iter(n.writes.values())): next(iter(n.reads.values()))
            for n, p in zip(bound.nodes, programs, strict=True)
            if p is None and ops[n.call.op].alias
        }
        # Nothing makes these, but a kernel may bind them: a reduction of nothing has a result.
        self.empty = [
            value
            for n, p in zip(bound.nodes, programs, strict=True)
            if p is None and not ops[n.call.op].alias
            for value in n.writes.values()
        ]

    def root(self, value: str) -> str:
        """The value whose bytes this one is, through alias nodes."""
        while value in self.alias:
            value = self.alias[value]
        return value

    def plan(self, planned: tuple[PlannedNode, ...]) -> Plan:
        bound = self.bound
        activations = self._layout("activations", self._activation_blocks())
        weights = self._layout("weights", self._weight_blocks())
        regions = {**activations.regions, **weights.regions}
        stage = self._host_regions("load", self._staged_constants())
        inputs = self._host_regions("upload", bound.inputs)
        computed = [name for name in dict.fromkeys(bound.outputs) if self.root(name) not in bound.constants]
        outputs = self._host_regions("download", {name: bound.specs[name] for name in computed})
        load: list[Command] = [
            Copy(f"load {name}", region, regions[f"weight:{name}"])
            for name, region in stage.items()
            if f"weight:{name}" in regions
        ]
        run: list[Command] = [
            Copy(
                f"upload {name}", _exact(region, bound.specs[name]), _exact(regions[f"value:{name}"], bound.specs[name])
            )
            for name, region in inputs.items()
            if f"value:{name}" in regions and bound.specs[name].size
        ]
        for node, program in self.steps:
            early = _prepacks_at_load(node, program, bound.constants)
            load_names = self._names(node, program, regions, stage if early else {})
            step_names = self._names(node, program, regions, {})
            (load if early else run).extend(self._launch(node, d, load_names) for d in program.prepack)
            run.extend(self._launch(node, d, step_names) for d in program.steps)
        run += [
            Copy(
                f"download {name}",
                _exact(regions[f"value:{self.root(name)}"], bound.specs[name]),
                _exact(region, bound.specs[name]),
            )
            for name, region in outputs.items()
            if bound.specs[name].size
        ]
        host: dict[str, tuple[int, BufferKind]] = {
            "load": (_extent(stage.values()), "upload"),
            "upload": (_extent(inputs.values()), "upload"),
            "download": (_extent(outputs.values()), "download"),
        }
        memory = Memory(
            activations_bytes=activations.layout.peak_bytes,
            lower_bound_bytes=activations.layout.lower_bound_bytes,
            weights_bytes=weights.layout.peak_bytes,
            load_bytes=host["load"][0],
            upload_bytes=host["upload"][0],
            download_bytes=host["download"][0],
        )
        check_memory(bound.name, memory, self.device)
        device_buffers: dict[str, tuple[int, BufferKind]] = {**activations.buffers, **weights.buffers}
        return Plan(
            graph=bound.name,
            device=self.device,
            inputs={name: (bound.specs[name], region) for name, region in inputs.items()},
            outputs={name: (bound.specs[name], region) for name, region in outputs.items()},
            known={name: bound.constants[self.root(name)] for name in bound.outputs if name not in outputs},
            buffers=device_buffers | {name: (size, kind) for name, (size, kind) in host.items() if size},
            stage=stage,
            load=tuple(with_barriers(load)),
            run=tuple(with_barriers(run)),
            nodes=planned,
            values={
                value: (spec, regions[f"value:{self.root(value)}"])
                for value, spec in bound.specs.items()
                if f"value:{self.root(value)}" in regions
            },
            memory=memory,
        )

    def _activation_blocks(self) -> list[Block]:
        """Values from the step that makes them to the last that reads them, scratch for its own step."""
        bound, end = self.bound, len(self.steps)
        first = dict.fromkeys([*bound.inputs, *self.empty], -1)
        last: dict[str, int] = {}
        scratch: list[Block] = []
        for index, (node, program) in enumerate(self.steps):
            for value in node.reads.values():
                last[self.root(value)] = index
            for value in node.writes.values():
                first[value] = index
                last.setdefault(value, index)
            own = dict(program.scratch)
            if program.prepack and not _prepacks_at_load(node, program, bound.constants):
                own |= program.packed
            scratch += [Block(f"scratch:{node.name}:{b}", _words(size), index, index) for b, size in own.items()]
        for value in bound.outputs:
            last[self.root(value)] = end
        values = [
            Block(f"value:{value}", _words(bound.specs[value].nbytes), start, last[value])
            for value, start in first.items()
            if value in last
        ]
        if self.share_memory:
            return values + scratch
        return [Block(b.name, b.nbytes, -1, end) for b in values + scratch]

    def _weight_blocks(self) -> list[Block]:
        blocks = {
            value: Block(f"weight:{value}", _words(self.bound.constants[value].nbytes), 0, 0)
            for node, program in self.steps
            for value in _constants_of(node, program.steps, self.bound.constants)
        }
        packed = [
            Block(f"packed:{node.name}:{buffer}", _words(size), 0, 0)
            for node, program in self.steps
            if _prepacks_at_load(node, program, self.bound.constants)
            for buffer, size in program.packed.items()
        ]
        return [*blocks.values(), *packed]

    def _staged_constants(self) -> dict[str, TensorSpec]:
        """Constants that steps or prepacking read: the host writes them once, into the load buffer."""
        return {
            value: self.bound.specs[value]
            for node, program in self.steps
            for value in _constants_of(node, (*program.prepack, *program.steps), self.bound.constants)
        }

    def _layout(self, prefix: str, blocks: Sequence[Block]) -> "_Placed":
        return _Placed(prefix, lay_out(blocks, self.alignment, max_allocation_bytes(self.device)), blocks)

    def _host_regions(self, buffer: str, specs: Mapping[str, TensorSpec]) -> dict[str, Region]:
        regions: dict[str, Region] = {}
        offset = 0
        for name, spec in specs.items():
            regions[name] = Region(buffer, offset, _words(spec.nbytes))
            offset = align(offset + _words(spec.nbytes), self.alignment)
        return regions

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
            tuple((names(bind.buffer), bind.access) for bind in dispatch.binds),
            dispatch.groups,
            dispatch.spec_words,
            dispatch.push_bytes,
        )
        check_launch(f"{self.bound.name}, {node}", launch, self.device)
        return launch


class _Placed:
    """A layout with its blocks as regions of named buffers."""

    def __init__(self, prefix: str, layout: Layout, blocks: Iterable[Block]) -> None:
        self.layout = layout
        self.buffers: dict[str, tuple[int, BufferKind]] = {
            f"{prefix}:{index}": (nbytes, "device") for index, nbytes in enumerate(layout.chunk_bytes)
        }
        self.regions = {
            block.name: Region(f"{prefix}:{place.chunk}", place.offset, block.nbytes)
            for block in blocks
            for place in (layout.places[block.name],)
        }


def _constants_of(node: BoundNode, dispatches: Iterable[Dispatch], constants: Mapping[str, Array]) -> list[str]:
    """Constants (by value name) that the dispatches bind."""
    bound = {bind.buffer for dispatch in dispatches for bind in dispatch.binds}
    return [value for operand, value in node.reads.items() if operand in bound and value in constants]


def _prepacks_at_load(node: BoundNode, program: Program, constants: Mapping[str, Array]) -> bool:
    """True when everything that prepacking reads is constant, so that it runs once."""
    operands = {bind.buffer for dispatch in program.prepack for bind in dispatch.binds} & set(node.reads)
    return bool(program.prepack) and all(node.reads[operand] in constants for operand in operands)


def _words(nbytes: int) -> int:
    return max(_WORD_BYTES, align(nbytes, _WORD_BYTES))


def _extent(regions: Iterable[Region]) -> int:
    return max((region.offset + region.nbytes for region in regions), default=0)


def _exact(region: Region, spec: TensorSpec) -> Region:
    """The part of a region that a copy moves: whole words of the value."""
    return Region(region.buffer, region.offset, _words(spec.nbytes))


def staged_bytes(array: Array) -> bytes:
    """A constant's bytes as they lie in the load buffer: C order, native byte order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).tobytes()
