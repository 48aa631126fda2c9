"""SPIR-V modules as instructions."""

import struct
from collections.abc import Iterator, Sequence

from vkconv.core import ShaderError

HEADER_WORDS = 5
_MAGIC = b"\x03\x02\x23\x07"
_OP_CAPABILITY = 17
# Capabilities by number, as the SPIR-V registry has them: those of compute that shaders here use, or may come to.
CAPABILITIES = {
    1: "Shader",
    9: "Float16",
    10: "Float64",
    11: "Int64",
    22: "Int16",
    39: "Int8",
    61: "GroupNonUniform",
    62: "GroupNonUniformVote",
    63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot",
    65: "GroupNonUniformShuffle",
    66: "GroupNonUniformShuffleRelative",
    67: "GroupNonUniformClustered",
    68: "GroupNonUniformQuad",
    4433: "StorageBuffer16BitAccess",
    4448: "StorageBuffer8BitAccess",
    4467: "SignedZeroInfNanPreserve",
    5116: "BFloat16TypeKHR",
    5118: "BFloat16CooperativeMatrixKHR",
    5345: "VulkanMemoryModel",
    6018: "DotProductInput4x8BitPacked",
    6019: "DotProduct",
    6022: "CooperativeMatrixKHR",
    6033: "AtomicFloat32AddEXT",
}

Instruction = tuple[int, tuple[int, ...]]
"""An opcode and the words after it."""


def is_spirv(code: bytes) -> bool:
    """True for whole 32-bit little-endian words that begin with a SPIR-V header."""
    return len(code) > 4 * HEADER_WORDS and len(code) % 4 == 0 and code.startswith(_MAGIC)


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


def capabilities(code: bytes, name: str) -> list[str]:
    """The capabilities that a module declares, by their names, those without one here as ``Capability`` and the number.
    ShaderError, with ``name``, for what is no module."""
    found = []
    for op, operands in instructions(words_of(code), name):
        if op == _OP_CAPABILITY:
            if not operands:
                raise ShaderError(f"shader {name}: an OpCapability of its SPIR-V names none")
            found.append(CAPABILITIES.get(operands[0], f"Capability{operands[0]}"))
    return found
