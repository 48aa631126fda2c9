"""Modules of bf16 cooperative matrices, rewritten from those of f16: no glslang from PyPI knows GL_EXT_bfloat16.

In a bf16 shader whatever has 16 bits is moved as integers, and a matrix is the one thing of a float type that has, or
an element on its way between a matrix and bits (shaders/include/cooperative.glsl), so that the module becomes one of
SPV_KHR_bfloat16 by another type, other capabilities and the extension's name. Numbers are those of the SPIR-V registry:
SPV_KHR_bfloat16, revision 1.
"""

import struct
from collections.abc import Sequence

from vkconv.core import ShaderError
from vkconv.spirv import HEADER_WORDS, Instruction, instructions, words_of

# Changes whenever what is made changes: part of the digest of a bf16 shader.
REVISION = "bfloat16/2"

_EXTENSION, _CAPABILITY, _TYPE_FLOAT, _TYPE_VECTOR, _TYPE_POINTER, _TYPE_MATRIX = 10, 17, 22, 23, 32, 4456
_FUNCTION = 7  # the storage class of what an invocation has
_FLOAT16 = (9,)  # the capability that is to go, and those in its place: BFloat16TypeKHR, BFloat16CooperativeMatrixKHR
_BFLOAT16_CAPABILITIES = (5116,), (5118,)
_BFLOAT16 = 0  # the encoding of a float type: BFloat16KHR
# Where types have others among their operands: matrix, array, unsized array, struct, pointer, function.
_WITHIN = {
    24: slice(1, 2),
    28: slice(1, 2),
    29: slice(1, 2),
    30: slice(1, None),
    _TYPE_POINTER: slice(2, 3),
    33: slice(1, None),
}
# What an element may come from, or two: OpLoad, OpCompositeConstruct, OpCompositeExtract, OpBitcast.
_MOVES = {61, 80, 81, 124}
# And what it may not go into: conversions and arithmetic, by the place of their first operand, and OpExtInst.
_COMPUTES = dict.fromkeys((*range(109, 124), *range(126, 192)), 2) | {12: 4}
# What a matrix may come from: OpUndef, OpLoad, OpCooperativeMatrixLoadKHR.
_MAKES_MATRIX = {1, 61, 4457}
# Instructions that begin with no type of a result, where a number may look like one: what only describes the module,
# names, and types themselves.
_NO_RESULT = {3, 4, 5, 6, _EXTENSION, 14, 15, _CAPABILITY, 330, *range(19, 40), _TYPE_MATRIX}


def with_bfloat16(code: bytes, name: str) -> bytes:
    """The module with its 16-bit floats as bf16 in place of f16; as it is where it declares none.

    Raises ShaderError, with ``name``, for a module that does more with them than load matrices or put them together
    from bits, multiply these and add the product to sums of another type, or take their elements as bits: in
    SPV_KHR_bfloat16 the rest is not there or would mean something else.
    """
    words = words_of(code)
    known = list(instructions(words, name))
    if (_CAPABILITY, _FLOAT16) not in known:
        return code
    _check(known, name)
    made = list(words[:HEADER_WORDS])
    extended = False
    for op, operands in known:
        if op != _CAPABILITY and not extended:
            extended = True
            text = b"SPV_KHR_bfloat16\0".ljust(20, b"\0")
            _put(made, _EXTENSION, struct.unpack("<5I", text))
        if (op, operands) == (_CAPABILITY, _FLOAT16):
            for capability in _BFLOAT16_CAPABILITIES:
                _put(made, _CAPABILITY, capability)
        else:
            _put(made, op, (*operands, _BFLOAT16) if op == _TYPE_FLOAT and operands[1:] == (16,) else operands)
    return struct.pack(f"<{len(made)}I", *made)


def _put(words: list[int], op: int, operands: Sequence[int]) -> None:
    words += ((len(operands) + 1) << 16 | op, *operands)


def _check(module: Sequence[Instruction], name: str) -> None:
    floats = {operands[0] for op, operands in module if op == _TYPE_FLOAT and operands[1] == 16}
    matrices = {operands[0] for op, operands in module if op == _TYPE_MATRIX and operands[1] in floats}
    numbers = floats | {operands[0] for op, operands in module if op == _TYPE_VECTOR and operands[1] in floats}
    values = {operands[1] for op, operands in module if op in _MOVES and operands[0] in numbers}
    for op, operands in module:
        inside = op == _TYPE_POINTER and operands[1] == _FUNCTION
        within = operands[_WITHIN[op]] if op in _WITHIN and not inside else ()
        made = operands[:1] if op not in _NO_RESULT else ()
        used = operands[_COMPUTES[op] :] if op in _COMPUTES else ()
        of_numbers = numbers & {*within, *(made if op not in _MOVES else ())} or values & set(used)
        if of_numbers or (matrices & set(made) and op not in _MAKES_MATRIX):
            what = "matrices" if matrices & set(made) else "numbers"
            raise ShaderError(
                f"shader {name} makes {what} of 16-bit floats by instruction {op} of SPIR-V; bf16 there is only in "
                "cooperative matrices that are loaded or put together and multiplied: move bits, and compute in f32"
            )
