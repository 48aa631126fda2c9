"""SPIR-V operations on 32-bit integers and truths: by opcode, on words (unsigned) and on their signed values."""

from collections.abc import Callable, Mapping
from typing import Any

MASK = 0xFFFFFFFF

Operation = Callable[..., Any]


def signed(word: int) -> int:
    """A word as a signed integer."""
    return word - (1 << 32) if word & 1 << 31 else word


def _words(operation: Operation) -> Operation:
    """An operation on words, whose result is one."""
    return lambda *words: operation(*words) & MASK


def _signed(operation: Operation) -> Operation:
    """An operation on signed integers, whose result is a word."""
    return lambda *words: operation(*map(signed, words)) & MASK


def _quotient(a: int, b: int) -> int:
    """Rounded towards zero; 0 where SPIR-V leaves it undefined."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0


ARITHMETIC: Mapping[int, Operation] = {
    83: _words(lambda a: a),
    124: _words(lambda a: a),
    126: _words(lambda a: -a),
    128: _words(lambda a, b: a + b),
    130: _words(lambda a, b: a - b),
    132: _words(lambda a, b: a * b),
    134: _words(lambda a, b: a // b if b else 0),
    135: _signed(_quotient),
    137: _words(lambda a, b: a % b if b else 0),
    138: _signed(lambda a, b: a - b * _quotient(a, b)),
    139: _signed(lambda a, b: a % b if b else 0),
    194: _words(lambda a, b: a >> (b & 31)),
    195: lambda a, b: (signed(a) >> (b & 31)) & MASK,
    196: _words(lambda a, b: a << (b & 31)),
    197: _words(lambda a, b: a | b),
    198: _words(lambda a, b: a ^ b),
    199: _words(lambda a, b: a & b),
    200: _words(lambda a: ~a),
}
COMPARISONS: Mapping[int, Operation] = {
    170: lambda a, b: a == b,
    171: lambda a, b: a != b,
    172: lambda a, b: a > b,
    173: lambda a, b: signed(a) > signed(b),
    174: lambda a, b: a >= b,
    175: lambda a, b: signed(a) >= signed(b),
    176: lambda a, b: a < b,
    177: lambda a, b: signed(a) < signed(b),
    178: lambda a, b: a <= b,
    179: lambda a, b: signed(a) <= signed(b),
}
LOGICAL: Mapping[int, Operation] = {
    164: lambda a, b: bool(a) == bool(b),
    165: lambda a, b: bool(a) != bool(b),
    166: lambda a, b: a or b,
    167: lambda a, b: a and b,
    168: lambda a: not a,
    169: lambda condition, yes, no: yes if condition else no,
}
SCALAR: Mapping[int, Operation] = {**ARITHMETIC, **COMPARISONS, **LOGICAL}
ANY_ALL: Mapping[int, Operation] = {154: any, 155: all}
# GLSL.std.450: functions of integers.
EXTENDED: Mapping[int, Operation] = {
    5: _signed(abs),
    38: _words(min),
    39: _signed(min),
    41: _words(max),
    42: _signed(max),
    44: _words(lambda x, least, most: min(max(x, least), most)),
    45: _signed(lambda x, least, most: min(max(x, least), most)),
    73: _words(lambda a: (a & -a).bit_length() - 1),
    75: _words(lambda a: a.bit_length() - 1),
}
_INVERSE = {170: 171, 171: 170, 172: 178, 173: 179, 174: 176, 175: 177, 176: 174, 177: 175, 178: 172, 179: 173}
_SWAPPED = {170: 170, 171: 171, 172: 176, 173: 177, 174: 178, 175: 179, 176: 172, 177: 173, 178: 174, 179: 175}
_OF_SIGNED = frozenset({173, 175, 177, 179})


def inverse(comparison: int) -> int:
    """The opcode that holds where this one does not."""
    return _INVERSE[comparison]


def swapped(comparison: int) -> int:
    """The opcode that says the same of the operands the other way round."""
    return _SWAPPED[comparison]


def count_trips(op: int, first: int, bound: int, step: int) -> int:
    """How often ``value <op> bound`` holds for values from ``first`` on, each ``step`` further, before it fails. 0
    where it would hold for ever."""
    if op in _OF_SIGNED:
        first, bound = signed(first & MASK), signed(bound & MASK)
    distance = bound - first
    match op:
        case 176 | 177:  # less
            return max(0, -(-distance // step)) if step > 0 else 0
        case 178 | 179:  # less or equal
            return max(0, distance // step + 1) if step > 0 else 0
        case 172 | 173:  # greater
            return max(0, -(-distance // step)) if step < 0 and distance < 0 else 0
        case 174 | 175:  # greater or equal
            return max(0, distance // step + 1) if step < 0 and distance <= 0 else 0
        case 171:
            return max(0, distance // step) if step and distance % step == 0 else 0
        case _:
            return int(distance == 0)
