"""A plan as a folder that a small player runs without vkconv: SPIR-V, commands, weights, inputs, expected outputs.

docs/testing_devices.md states the format, examples/device_pack/player.cpp plays it. Nothing here needs Vulkan: the
device may be a file.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from vkconv.compiler import spirv
from vkconv.core import Array, atomic_write
from vkconv.graph.ir import TensorSpec
from vkconv.plan.commands import Barrier, Command, Launch, Region
from vkconv.plan.lowering import staged_bytes
from vkconv.plan.planner import Planned

PLAN = "plan.txt"
_HEADER = "vkconv-pack 1"
_WEIGHTS = "weights.bin"


def pack(planned: Planned, folder: Path, inputs: Mapping[str, Array], expected: Mapping[str, Array]) -> list[str]:
    """Write a plan with its inputs and expected outputs; returns the lines of plan.txt.

    Each file is whole or not there, and plan.txt comes last. Raises ShaderError for a shader that does not compile
    and OSError.
    """
    writer = _Writer(planned, folder)
    lines = list(writer.lines(inputs, expected))
    writer.put(PLAN, "".join(f"{line}\n" for line in lines).encode())
    return lines


class _Writer:
    def __init__(self, planned: Planned, folder: Path) -> None:
        self.plan, self.constants, self.folder = planned.plan, planned.constants, folder
        self._buffers = {name: number for number, name in enumerate(planned.plan.buffers)}
        self._pipelines: dict[tuple[str, tuple[int, ...], int, int, int], int] = {}

    def lines(self, inputs: Mapping[str, Array], expected: Mapping[str, Array]) -> Iterator[str]:
        plan = self.plan
        yield _HEADER
        yield f"# {_text(plan.graph)} for {_text(plan.device.name)}"
        for limit, value in _needs(self._launches(), plan.device.limit("minStorageBufferOffsetAlignment")):
            yield f"needs {limit} {value}"
        for name, (size, kind) in plan.buffers.items():
            yield f"buffer {self._buffers[name]} {kind} {size} # {name}"
        yield from self._shaders()
        yield from self._values("input", plan.inputs, inputs)
        yield from self._values("expected", plan.outputs, expected)
        if plan.stage:
            yield self._staged()
        for phase, commands in (("load", plan.load), ("run", plan.run)):
            yield phase
            yield from map(self._command, commands)
        yield "end"

    def put(self, name: str, data: bytes) -> str:
        with atomic_write(self.folder / name) as file:
            file.write(data)
        return name

    def _launches(self) -> list[Launch]:
        return [command for command in (*self.plan.load, *self.plan.run) if isinstance(command, Launch)]

    def _shaders(self) -> Iterator[str]:
        for launch in self._launches():
            key = _pipeline(launch)
            if key in self._pipelines:
                continue
            number = self._pipelines[key] = len(self._pipelines)
            code = spirv(launch.shader)
            name = self.put(f"shaders/{hashlib.sha256(code).hexdigest()[:16]}.spv", code)
            spec = " ".join(map(str, (len(launch.spec_words), *launch.spec_words)))
            yield f"pipeline {number} {name} {len(launch.binds)} {len(launch.push)} {spec} # {launch.shader.key}"
            if launch.subgroup_size:
                yield f"subgroup {number} {launch.subgroup_size}"

    def _values(
        self, kind: str, places: Mapping[str, tuple[TensorSpec, Region]], arrays: Mapping[str, Array]
    ) -> Iterator[str]:
        for number, (name, (spec, region)) in enumerate(places.items()):
            array = np.ascontiguousarray(arrays[name])
            file = self.put(f"{kind}_{number}.bin", array.tobytes())
            dims = "x".join(map(str, spec.dims)) or "scalar"
            yield f"{kind} {self._at(region)} {file} {spec.dtype} {dims} # {_text(name)}"

    def _staged(self) -> str:
        """All constants as they lie in the load buffer."""
        stage = self.plan.stage
        blob = bytearray(max(region.offset + region.nbytes for region in stage.values()))
        for name, region in stage.items():
            data = staged_bytes(self.constants[name])
            blob[region.offset : region.offset + len(data)] = data
        buffer = next(iter(stage.values())).buffer
        return f"weights {self._at(Region(buffer, 0, len(blob)))} {self.put(_WEIGHTS, bytes(blob))}"

    def _command(self, command: Command | Barrier) -> str:
        if isinstance(command, Barrier):
            return f"barrier # {command.hazard} {_text(command.before)} -> {_text(command.after)}"
        if isinstance(command, Launch):
            groups = " ".join(map(str, command.groups))
            binds = " ".join(self._at(region) for region, _ in command.binds)
            number = self._pipelines[_pipeline(command)]
            return f"dispatch {number} {groups} {command.push.hex() or '-'} {binds} # {_text(command.node)}"
        return f"copy {self._at(command.source)} {self._at(command.target)} # {_text(command.node)}"

    def _at(self, region: Region) -> str:
        return f"{self._buffers[region.buffer]} {region.offset} {region.nbytes}"


def _pipeline(launch: Launch) -> tuple[str, tuple[int, ...], int, int, int]:
    return launch.shader.key, launch.spec_words, len(launch.binds), len(launch.push), launch.subgroup_size


def _needs(launches: list[Launch], alignment: int) -> Iterator[tuple[str, int]]:
    """The limits that a device must have to run it."""
    yield "minStorageBufferOffsetAlignment", alignment
    yield "maxPerStageDescriptorStorageBuffers", max((len(c.binds) for c in launches), default=0)
    yield "maxComputeWorkGroupInvocations", max((math.prod(c.spec_words[:3]) for c in launches), default=0)
    yield "maxPushConstantsSize", max((len(c.push) for c in launches), default=0)
    yield "maxStorageBufferRange", max((region.nbytes for c in launches for region, _ in c.binds), default=0)


def _text(name: str) -> str:
    """A name as a comment on one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
