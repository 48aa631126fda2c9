"""Plans as a folder that a small player runs without vkconv: SPIR-V, commands, weights, inputs, what must come out.

docs/format.md states the format, native/player plays it. Nothing here needs Vulkan: the device may be a file.
"""

import dataclasses
import hashlib
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vkconv.compiler import pipeline_spirv
from vkconv.core import Array, UsageError, atomic_write
from vkconv.graph.ir import TensorSpec
from vkconv.plan.commands import Barrier, Command, Launch, PipelineKey, Region
from vkconv.plan.lowering import staged_bytes
from vkconv.plan.planner import Planned
from vkconv.spirv import capabilities

INDEX = "index.txt"
FILES = "files"
_PLAN_HEADER, INDEX_HEADER = "vkconv-pack 2", "vkconv-packs 2"
_NAMED_DIGITS = 32


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What an output must be: its reference, f64 of the output's shape; the error ``allowed`` of every element, or of
    each; what relative errors are relative to, by ``relative`` and ``floor`` of the tolerance; where the element may
    also be infinite or no number. Without ``allowed``, errors are shown and judged by nobody."""

    reference: npt.NDArray[np.float64]
    allowed: npt.NDArray[np.float64] | None
    relative: float = 0.0
    floor: float = 0.0
    overflow: npt.NDArray[np.bool_] | None = None


@dataclasses.dataclass(frozen=True)
class NodePack:
    """A node of a model, and the plan of it alone: the values that it reads and writes in the model, in the order of
    that plan's inputs and outputs; None for what is the node's own, a constant."""

    name: str
    plan: str
    reads: Sequence[str | None]
    writes: Sequence[str | None]


class PackFolder:
    """A folder of packs. Every file but the index is named by the SHA-256 of what it holds, so equal ones are there
    once. Each is whole or not there, and the index comes last.

    Raises UsageError for a folder with something else in it, and OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            strange = sorted(entry.name for entry in path.iterdir() if entry.name not in (INDEX, FILES, "got"))
            if strange:
                raise UsageError(
                    f"{path} holds {', '.join(strange[:3])}, which is no part of a pack: name a new folder"
                )
            (path / INDEX).unlink(missing_ok=True)
            shutil.rmtree(path / FILES, ignore_errors=True)
        self._packs: list[tuple[str, str]] = []

    def put(self, data: bytes, suffix: str) -> str:
        """Keep bytes as a file; its name in the folder."""
        name = f"{FILES}/{hashlib.sha256(data).hexdigest()[:_NAMED_DIGITS]}.{suffix}"
        if not (self.path / name).exists():
            with atomic_write(self.path / name) as file:
                file.write(data)
        return name

    def plan(
        self,
        planned: Planned,
        inputs: Mapping[str, Array],
        wanted: Mapping[str, Wanted],
        *,
        label: str,
        changes: bool = False,
        repeats: bool = False,
        shared: str = "",
        values: Sequence[str] = (),
        nodes: Sequence[NodePack] = (),
    ) -> str:
        """Write a plan with its inputs and what its outputs must be; the name of its file.

        ``changes``: its last bits may change from run to run; ``repeats``: its dispatches overwrite nothing that they
        read. Of a model, ``shared`` is the plan of it whose values share memory, ``values`` those that can be looked
        at. Raises ShaderError for a shader that does not compile.
        """
        lines = _Writer(self, planned).lines(inputs, wanted, values, nodes)
        words = [name for name, said in (("changes", changes), ("repeats", repeats)) if said]
        words += [f"shared {shared}"] if shared else []
        text = "\n".join([_PLAN_HEADER, f"label # {_text(label)}", *words, *lines, "end", ""])
        return self.put(text.encode(), "plan")

    def add(self, plan: str, label: str) -> int:
        """Have the player play a plan; its place in the index."""
        self._packs.append((plan, label))
        return len(self._packs) - 1

    def close(self) -> None:
        """Write the index: the folder is whole now."""
        lines = [f"pack {plan} # {_text(label)}" for plan, label in self._packs]
        with atomic_write(self.path / INDEX) as file:
            file.write("\n".join([INDEX_HEADER, *lines, "end", ""]).encode())

    def __len__(self) -> int:
        return len(self._packs)


class _Writer:
    def __init__(self, folder: PackFolder, planned: Planned) -> None:
        self.plan, self.constants, self.folder = planned.plan, planned.constants, folder
        self._buffers = {name: number for number, name in enumerate([*planned.plan.buffers, *planned.plan.textures])}
        self._pipelines: dict[PipelineKey, int] = {}
        self._capabilities: dict[str, None] = {}

    def lines(
        self,
        inputs: Mapping[str, Array],
        wanted: Mapping[str, Wanted],
        values: Sequence[str],
        nodes: Sequence[NodePack],
    ) -> Iterator[str]:
        plan = self.plan
        if plan.transfers.ports or plan.transfers.output_ports:
            raise ValueError(f"{plan.graph} is planned without staging, whose memory the player does not have")
        buffers = [
            f"buffer {self._buffers[name]} {kind} {size} # {_text(name)}" for name, (size, kind) in plan.buffers.items()
        ]
        for name, planned in plan.textures.items():
            number, extent = self._buffers[name], " ".join(map(str, dataclasses.astuple(planned.texture)))
            buffers.append(f"buffer {number} device {planned.nbytes} # {_text(name)}")
            buffers.append(f"texture {number} {planned.format} {extent}")
        pipelines = list(self._shaders())
        alignment = plan.device.limit("minStorageBufferOffsetAlignment")
        yield from (f"needs {limit} {value}" for limit, value in _needs(self._launches(), alignment))
        yield from (f"capability {name}" for name in self._capabilities)
        yield from buffers
        yield from pipelines
        for name, (spec, region) in plan.inputs.items():
            if not spec.size:
                continue
            file = self.folder.put(np.ascontiguousarray(inputs[name]).tobytes(), "bin")
            yield f"input {self._at(region)} {file} {_elements(spec)} # {_text(name)}"
        computed = [(name, *place) for name, place in plan.outputs.items() if place[0].size]
        for number, (name, spec, region) in enumerate(computed):
            yield f"output {self._at(region)} {_elements(spec)} # {_text(name)}"
            if name in wanted:
                yield f"check {number} {self._wanted(wanted[name])}"
        if plan.stage:
            yield self._staged()
        places = {name: 1 + number for number, name in enumerate(values)}
        for name in values:
            spec, region = plan.values[name]
            yield f"value {self._at(region)} {_elements(spec)} # {_text(name)}"
        for node in nodes:
            numbers = [[places.get(value or "", 0) for value in side] for side in (node.reads, node.writes)]
            sides = " ".join(" ".join(map(str, (len(side), *side))) for side in numbers)
            yield f"node {node.plan} {sides} # {_text(node.name)}"
        for phase, commands in (("load", plan.load), ("run", plan.run)):
            yield phase
            yield from map(self._command, commands)

    def _launches(self) -> list[Launch]:
        return [command for command in (*self.plan.load, *self.plan.run) if isinstance(command, Launch)]

    def _shaders(self) -> Iterator[str]:
        for launch in self._launches():
            key = launch.pipeline
            if key in self._pipelines:
                continue
            number = self._pipelines[key] = len(self._pipelines)
            code = pipeline_spirv(launch.shader, launch.fixed)
            self._capabilities |= dict.fromkeys(capabilities(code, launch.shader.key))
            name = self.folder.put(code, "spv")
            spec = " ".join(map(str, (len(launch.spec_words), *launch.spec_words)))
            yield f"pipeline {number} {name} {len(launch.binds)} {len(launch.push)} {spec} # {launch.shader.key}"
            if set(kinds := launch.shader.interface.kinds) > {"b"}:
                yield f"bindings {number} {kinds}"
            if launch.subgroup_size:
                yield f"subgroup {number} {launch.subgroup_size}"

    def _wanted(self, wanted: Wanted) -> str:
        reference = self.folder.put(np.ascontiguousarray(wanted.reference, np.float64).tobytes(), "bin")
        if wanted.allowed is None:
            return f"{reference} shown 0 0"
        allowed = np.ascontiguousarray(wanted.allowed, np.float64)
        same = allowed.size == 0 or bool((allowed == allowed.flat[0]).all())
        how = (
            f"all {float(allowed.flat[0]) if allowed.size else 0.0!r}"
            if same
            else f"each {self.folder.put(allowed.tobytes(), 'bin')}"
        )
        line = f"{reference} {how} {wanted.relative!r} {wanted.floor!r}"
        if wanted.overflow is not None and wanted.overflow.any():
            line += f" {self.folder.put(wanted.overflow.astype(np.uint8).tobytes(), 'bin')}"
        return line

    def _staged(self) -> str:
        """All constants as they lie in the load buffer."""
        stage = self.plan.stage
        blob = bytearray(max(region.offset + region.nbytes for region in stage.values()))
        for name, region in stage.items():
            data = staged_bytes(self.constants[name])
            blob[region.offset : region.offset + len(data)] = data
        buffer = next(iter(stage.values())).buffer
        return f"weights {self._at(Region(buffer, 0, len(blob)))} {self.folder.put(bytes(blob), 'bin')}"

    def _command(self, command: Command | Barrier) -> str:
        if isinstance(command, Barrier):
            return f"barrier # {command.hazard} {_text(command.before)} -> {_text(command.after)}"
        if isinstance(command, Launch):
            groups = " ".join(map(str, command.groups))
            binds = " ".join(self._at(region) for region, _ in command.binds)
            number = self._pipelines[command.pipeline]
            return f"dispatch {number} {groups} {command.push.hex() or '-'} {binds} # {_text(command.node)}"
        return f"copy {self._at(command.source)} {self._at(command.target)} # {_text(command.node)}"

    def _at(self, region: Region) -> str:
        return f"{self._buffers[region.buffer]} {region.offset} {region.nbytes}"


def _needs(launches: list[Launch], alignment: int) -> Iterator[tuple[str, int]]:
    """The limits that a device must have to run it."""
    yield "minStorageBufferOffsetAlignment", alignment
    yield "maxPerStageDescriptorStorageBuffers", max((len(_in_buffers(c)) for c in launches), default=0)
    yield "maxComputeWorkGroupInvocations", max((math.prod(c.spec_words[:3]) for c in launches), default=0)
    yield "maxComputeSharedMemorySize", max((c.shared_bytes for c in launches), default=0)
    yield "maxPushConstantsSize", max((len(c.push) for c in launches), default=0)
    yield "maxStorageBufferRange", max((region.nbytes for c in launches for region in _in_buffers(c)), default=0)


def _in_buffers(launch: Launch) -> list[Region]:
    """What it binds of buffers; the player holds textures to the limits by itself."""
    bindings = launch.shader.interface.bindings
    return [region for (region, _), b in zip(launch.binds, bindings, strict=True) if b.kind == "buffer"]


def _elements(spec: TensorSpec) -> str:
    return f"{spec.dtype} {'x'.join(map(str, spec.dims)) or 'scalar'}"


def _text(name: str) -> str:
    """A name as a comment on one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
