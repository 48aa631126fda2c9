"""Shaders and dispatches as data: what is compiled, what is bound, what is launched. No Vulkan here."""

import dataclasses
import struct
from collections.abc import Mapping
from typing import Literal

from vkconv.core import DType

Access = Literal["r", "w", "rw"]
Word = int | float | bool

_MAX_F32 = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True, slots=True)
class Shader:
    """One compiled variant of ``shaders/<stem>.comp``: its element type and its preprocessor defines."""

    stem: str
    dtype: DType = DType.F32
    defines: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """File-safe name of the variant, unique among variants: ``reduce.f32.OP_max``."""
        return ".".join([self.stem, self.dtype, *(f"{k}_{v}" if v else k for k, v in self.defines)])


@dataclasses.dataclass(frozen=True, slots=True)
class Bind:
    """One storage buffer binding: which buffer of the program, and how the shader uses it."""

    buffer: str
    access: Access


def read(*buffers: str) -> tuple[Bind, ...]:
    """Bindings that the shader only reads."""
    return tuple(Bind(b, "r") for b in buffers)


def write(*buffers: str) -> tuple[Bind, ...]:
    """Bindings that the shader only writes."""
    return tuple(Bind(b, "w") for b in buffers)


@dataclasses.dataclass(frozen=True, slots=True)
class Dispatch:
    """One launch. ``binds`` in binding order (set 0); ``local`` becomes specialization constants 0 to 2 and
    ``spec`` those from 3 on; ``push`` is the push-constant block, in order. Ints and bools travel as 32-bit
    integers, floats as f32. ``loop_iterations`` is the most that one invocation makes, all its loops together,
    where that grows with the shapes."""

    shader: Shader
    binds: tuple[Bind, ...]
    groups: tuple[int, int, int]
    local: tuple[int, int, int]
    push: tuple[Word, ...] = ()
    spec: tuple[Word, ...] = ()
    shared_bytes: int = 0
    loop_iterations: int = 0

    @property
    def spec_words(self) -> tuple[int, ...]:
        """All specialization constants as u32 bits, constant_id order."""
        return tuple(word_bits(w) for w in (*self.local, *self.spec))

    @property
    def push_bytes(self) -> bytes:
        return b"".join(struct.pack("<I", word_bits(w)) for w in self.push)


def word_bits(value: Word) -> int:
    """The u32 bits of an int (two's complement), bool or float (f32); ValueError, saying what fits, past these."""
    if isinstance(value, float):
        try:
            return int(struct.unpack("<I", struct.pack("<f", value))[0])
        except OverflowError:
            raise ValueError(f"the number {value}, and shaders take f32, at most {_MAX_F32}") from None
    if not -(1 << 31) <= value < 1 << 32:
        raise ValueError(f"the number {value}, and shaders take 32 bits, {-(1 << 31)} to {(1 << 32) - 1}")
    return int(value) & 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Program:
    """What a route runs for one call.

    ``steps`` run at every inference; ``prepack`` runs once, when its operands are constants. Buffer names are
    the call's operand and output names, plus ``packed`` (made by prepack, kept with the session) and
    ``scratch`` (contents undefined before and after), each name to bytes. ``elements`` are those of them that hold
    elements of the call as they are, no sums: in calls of 16-bit floats they have 16 bits too (vkconv/storage.py).
    """

    steps: tuple[Dispatch, ...]
    prepack: tuple[Dispatch, ...] = ()
    packed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scratch: Mapping[str, int] = dataclasses.field(default_factory=dict)
    elements: frozenset[str] = frozenset()
