"""What a plan does, command by command, and the barriers that follow from what commands read and write."""

import dataclasses
import struct
from collections.abc import Iterable, Iterator
from typing import Literal

from vkconv.kernel import Access, Shader
from vkconv.plan.spans import Spans

BufferKind = Literal["device", "upload", "download", "input", "output", "streamed"]
"""Device-local; staging that the host writes, or reads; memory of the device that the host writes, or reads, too;
device-local, and filled from staging of its own by the queue that copies."""
Stage = Literal["compute", "transfer"]


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """A byte range of a named buffer of the plan."""

    buffer: str
    offset: int
    nbytes: int

    def overlaps(self, other: "Region") -> bool:
        return (
            self.buffer == other.buffer
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
        )


PipelineKey = tuple[str, tuple[int, ...], int, int, int, tuple[int, ...] | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """One dispatch with its bindings resolved to regions."""

    node: str
    shader: Shader
    binds: tuple[tuple[Region, Access], ...]
    groups: tuple[int, int, int]
    spec_words: tuple[int, ...]
    push: bytes
    subgroup_size: int = 0
    """What the pipeline asks for; 0: the driver's choice."""
    shared_bytes: int = 0
    pushes: bool = False
    """Whether it pushes, whatever is known when its pipeline is compiled (`Dispatch.pushes`,
    `vkconv.plan.fixing`)."""
    fixed: tuple[int, ...] | None = None
    """Words that its pipeline has in place of the shader's push constants; None: they are pushed."""

    stage: Stage = "compute"

    @property
    def accesses(self) -> tuple[tuple[Region, Access], ...]:
        return self.binds

    @property
    def pipeline(self) -> PipelineKey:
        """What launches have in common that share a pipeline."""
        return self.shader.key, self.spec_words, len(self.binds), len(self.push), self.subgroup_size, self.fixed

    @property
    def push_words(self) -> tuple[int, ...]:
        """What it pushes, or its pipeline has in place of that, as 32-bit words."""
        return struct.unpack(f"<{len(self.push) // 4}I", self.push) if self.fixed is None else self.fixed


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """A buffer to buffer copy; ``node`` names what it is for (``upload x``, ``download y``)."""

    node: str
    source: Region
    target: Region

    stage: Stage = "transfer"

    @property
    def accesses(self) -> tuple[tuple[Region, Access], ...]:
        return (self.source, "r"), (self.target, "w")


Command = Launch | Copy


@dataclasses.dataclass(frozen=True, slots=True)
class Barrier:
    """A memory barrier that the next command needs: ``hazard`` (RAW, WAR or WAW) on ``region``, between the
    named commands. It orders all earlier commands before all later ones."""

    hazard: str
    region: Region
    before: str
    after: str


def with_barriers(commands: Iterable[Command]) -> Iterator[Command | Barrier]:
    """The commands with a barrier before each one that conflicts with a command since the last barrier.

    Two accesses conflict when their regions overlap and at least one writes: read after write, write after
    read (also on reused scratch), write after write. This is the only place that decides it.
    """
    pending = _Pending()
    for command in commands:
        conflict = pending.first_conflict(command)
        if conflict is not None:
            yield conflict
            pending = _Pending()
        yield command
        pending.add(command)


class _Pending:
    """What the commands since the last barrier access."""

    def __init__(self) -> None:
        self._accesses: list[tuple[Region, Access, str]] = []
        # By buffer: what they write, and what they access at all.
        self._written: dict[str, Spans] = {}
        self._touched: dict[str, Spans] = {}

    def add(self, command: Command) -> None:
        for region, access in command.accesses:
            self._accesses.append((region, access, command.node))
            for spans in (self._touched,) if access == "r" else (self._touched, self._written):
                if region.nbytes:
                    spans.setdefault(region.buffer, Spans()).add(region.offset, region.offset + region.nbytes)

    def first_conflict(self, command: Command) -> Barrier | None:
        for region, access in command.accesses:
            # Commands without a barrier between them may be thousands: they are looked at one by one only where one
            # of them does conflict.
            spans = (self._written if access == "r" else self._touched).get(region.buffer)
            if spans is None or not spans.overlaps(region.offset, region.offset + region.nbytes):
                continue
            for earlier, earlier_access, node in self._accesses:
                if (access != "r" or earlier_access != "r") and region.overlaps(earlier):
                    hazard = "WAR" if earlier_access == "r" else "RAW" if access != "w" else "WAW"
                    return Barrier(hazard, region, node, command.node)
        return None
