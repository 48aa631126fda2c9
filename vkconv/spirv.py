"""SPIR-V modules as instructions."""

import struct
from collections.abc import Iterator, Sequence

from vkconv.core import ShaderError

HEADER_WORDS = 5

Instruction = tuple[int, tuple[int, ...]]
"""An opcode and the words after it."""


def words_of(code: bytes) -> tuple[int, ...]:
    """A module as 32-bit words."""
    return struct.unpack(f"<{len(code) // 4}I", code)


def instructions(words: Sequence[int], name: str) -> Iterator[Instruction]:
    """Every instruction of a module. ShaderError, with ``name``, where a word begins none."""
    at = HEADER_WORDS
    while at < len(words):
        count, op = words[at] >> 16, words[at] & 0xFFFF
        if not 0 < count <= len(words) - at:
            raise ShaderError(f"shader {name}: word {at} of its SPIR-V, {words[at]:#010x}, begins no instruction")
        yield op, tuple(words[at + 1 : at + count])
        at += count
