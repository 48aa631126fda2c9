"""Modules whose push constants are constants of their own: where all that a launch pushes is known when its pipeline is
compiled, drivers divide by constants, and no address waits for a load.

Numbers are those of the SPIR-V registry.
"""

import dataclasses
import itertools
import struct
from collections.abc import Sequence

from vkconv.core import ShaderError
from vkconv.spirv import HEADER_WORDS, instructions, words_of

_NAMES, _MEMBER_DECORATE = (5, 6), 72
_TYPE_ARRAY, _TYPE_STRUCT, _TYPE_POINTER = 28, 30, 32
_CONSTANT, _COMPOSITE, _FUNCTION, _VARIABLE, _LOAD, _CHAIN = 43, 44, 54, 59, 61, 65
_PRIVATE, _PUSH_CONSTANT = 6, 9  # storage classes
_OFFSET = 35  # a decoration
_WORD_BYTES = 4
_BOUND = 3  # the word of the header that all ids are below


@dataclasses.dataclass(frozen=True)
class Unfixed:
    """A module without push constants, where words are still to be put in: each at a byte of the module, by its number
    among those that would be pushed."""

    code: bytes
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, code: bytes, name: str) -> "Unfixed":
        """What stands for a module. A word becomes a constant; an array that is reached by numbers that are none
        becomes a variable of the invocation, which begins with constants and is never written.

        Raises ShaderError, with ``name``, for push constants that are anything but words and arrays of words, or that
        the module does anything with but load words of them.
        """
        return _Fixing(words_of(code), name).made()

    def fixed(self, pushed: Sequence[int]) -> bytes:
        """The module with these words."""
        made = bytearray(self.code)
        for place, word in self.places:
            struct.pack_into("<I", made, place, pushed[word])
        return bytes(made)


class _Fixing:
    """How a module loses its push constants. Operands of an instruction are those of the registry: a type, a result,
    then what it takes."""

    def __init__(self, words: Sequence[int], name: str) -> None:
        self._header, self._name = words[:HEADER_WORDS], name
        self._known = list(instructions(words, name))
        self._ids = itertools.count(words[_BOUND])
        self._pointed = {o[0]: o[2] for op, o in self._known if op == _TYPE_POINTER}
        self._arrays = {o[0]: o[1:] for op, o in self._known if op == _TYPE_ARRAY}
        self._members = {o[0]: o[1:] for op, o in self._known if op == _TYPE_STRUCT}
        self._values = {o[1]: o[2] for op, o in self._known if op == _CONSTANT}
        self._bytes = {(o[0], o[1]): o[3] for op, o in self._known if op == _MEMBER_DECORATE and o[2] == _OFFSET}
        self._blocks = {o[1]: o[0] for op, o in self._known if op == _VARIABLE and o[2] == _PUSH_CONSTANT}
        self._variables: dict[int, tuple[int, int]] = {}
        self._made: list[int] = []
        self._places: list[tuple[int, int]] = []

    def made(self) -> Unfixed:
        """The module that is left."""
        chains = {o[1]: o for op, o in self._known if op == _CHAIN and o[2] in self._blocks}
        loads = {o[1]: o for op, o in self._known if op == _LOAD and o[2] in chains}
        self._check(chains)
        words = {number: word for number, chain in chains.items() if (word := self._word(chain)) is not None}
        gone = {*self._blocks, *words, *(number for number, load in loads.items() if load[2] in words)}
        functions = False
        for op, operands in self._known:
            if op == _FUNCTION and not functions:
                functions = True
                for number, load in loads.items():
                    if load[2] in words:
                        self._constant(number, load[0], words[load[2]])
                for number in chains.keys() - words.keys():
                    self._variable(chains[number])
            if op in _NAMES or (op in (_VARIABLE, _CHAIN, _LOAD) and operands[1] in gone):
                continue  # names of ids that go would be wrong
            if op == _CHAIN and operands[1] in chains:
                pointer, variable = self._variable(operands)
                operands = (pointer, operands[1], variable, operands[4])
            self._put(op, *operands)
        header = (*self._header[:_BOUND], next(self._ids), *self._header[_BOUND + 1 :])
        code = struct.pack(f"<{HEADER_WORDS + len(self._made)}I", *header, *self._made)
        return Unfixed(code, tuple((_WORD_BYTES * (HEADER_WORDS + at), word) for at, word in self._places))

    def _check(self, chains: dict[int, tuple[int, ...]]) -> None:
        whole = any(op == _LOAD and o[2] in self._blocks for op, o in self._known)
        further = any(op == _CHAIN and o[2] in chains for op, o in self._known)
        if whole or further or not all(len(o) == 4 + (self._member(o) in self._arrays) for o in chains.values()):
            raise ShaderError(f"shader {self._name}: its SPIR-V takes push constants that are no words")

    def _member(self, chain: Sequence[int]) -> int:
        """The type of the member that a pointer goes to."""
        return self._members[self._pointed[self._blocks[chain[2]]]][self._values[chain[3]]]

    def _first(self, chain: Sequence[int]) -> int:
        """The first word of that."""
        return self._bytes[self._pointed[self._blocks[chain[2]]], self._values[chain[3]]] // _WORD_BYTES

    def _word(self, chain: Sequence[int]) -> int | None:
        """The word that a pointer is at; None where that is no constant."""
        if not all(index in self._values for index in chain[4:]):
            return None
        return self._first(chain) + sum(self._values[index] for index in chain[4:])

    def _variable(self, chain: Sequence[int]) -> tuple[int, int]:
        """The array that a pointer goes into as a variable: the type of pointers to its words, and its number."""
        first = self._first(chain)
        if first not in self._variables:
            element, length = self._arrays[self._member(chain)]
            words = [next(self._ids) for _ in range(self._values[length])]
            for at, word in enumerate(words, first):
                self._constant(word, element, at)
            array, to_array, to_word, values, variable = (next(self._ids) for _ in range(5))
            self._put(_TYPE_ARRAY, array, element, length)
            self._put(_TYPE_POINTER, to_array, _PRIVATE, array)
            self._put(_TYPE_POINTER, to_word, _PRIVATE, element)
            self._put(_COMPOSITE, array, values, *words)
            self._put(_VARIABLE, to_array, variable, _PRIVATE, values)
            self._variables[first] = to_word, variable
        return self._variables[first]

    def _constant(self, number: int, type_: int, word: int) -> None:
        self._put(_CONSTANT, type_, number, 0)
        self._places.append((len(self._made) - 1, word))

    def _put(self, op: int, *operands: int) -> None:
        self._made += ((len(operands) + 1) << 16 | op, *operands)
