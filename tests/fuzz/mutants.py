"""Damage: from the bytes of a seed to bytes that a loader must refuse, or take for another legal file."""

import random
import re

# What replaces a word of a text: the edges of every number format, wrong types, names that mean something.
WORDS = (
    *("0", "1", "-1", "2", "3", "7", "31", "32", "33", "255", "65535", "65536", "2147483647", "2147483648"),
    *("-2147483648", "4294967295", "4294967296", "9223372036854775807", "-9223372036854775808"),
    *("9223372036854775808", "18446744073709551616", "1" + "0" * 300, "9" * 4400, "1e300", "1e999", "0.5", "-0.0"),
    *('{"float":1e300}', '{"float":"nan"}', '{"float":-1.5}', '{"float":["inf"]}', '""', '"n"', '"f16"', '"i64"'),
    *('"bool"', '"bf16"', '"\\u0000"', '"\\ud800"', '"../../x"', "true", "false", "null", "NaN", "Infinity"),
    *("[]", "[1]", "[-1,0]", "[1,1,1,1]", "[0,9223372036854775807]", '[""]', "{}", '{"a":1}', "[[[[[[[[1]]]]]]]]"),
    *("x", "=", ",", ":", "'", '"', "#", "conv", "dtype=bf16", "²", "८", "\x00", "\r", "\x1c"),
    *("[" * 20_000, '{"a":' * 20_000),  # deeper than any stack
)
_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|\[[^\[\]{}]*\]|[A-Za-z_]\w*')
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)


def mutant(data: bytes, rng: random.Random) -> bytes:
    """The data with one to four pieces of damage."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        data = rng.choice(_DAMAGE)(data, rng)
    return data


def _word(data: bytes, rng: random.Random) -> bytes:
    """Another word where one stands: an extreme, one of its own words, or none."""
    at = _some_word(data, rng)
    if at is None:
        return _flip(data, rng)
    own = _some_word(data, rng) or at
    new = rng.choice((rng.choice(WORDS).encode(), rng.choice(WORDS).encode(), own.group(), b""))
    return data[: at.start()] + new + data[at.end() :]


def _some_word(data: bytes, rng: random.Random) -> re.Match[bytes] | None:
    """The first word from some place on: to list all words of a long file takes longer than to load it."""
    return _WORD.search(data, rng.randrange(len(data) + 1)) or _WORD.search(data)


def _flip(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 3) if damaged else 0):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


def _number(data: bytes, rng: random.Random) -> bytes:
    """Another binary number of one to eight bytes, or a varint."""
    value, at = rng.choice(_NUMBERS), rng.randrange(len(data) + 1)
    size = rng.choice((1, 2, 4, 8))
    new = (value % (1 << 8 * size)).to_bytes(size, "little")
    if rng.random() < 0.3:
        new = b"\xff" * 9 + b"\x01" if value > 2**62 else bytes([value & 0x7F | 0x80, value >> 7 & 0x7F])
    return data[:at] + new + data[at + len(new) :]


def _piece(data: bytes, rng: random.Random) -> bytes:
    """A piece moved, doubled or dropped."""
    begin, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    end = min(end, begin + rng.choice((1, 4, 16, 64, 256)))
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(3)
    rest = data[:begin] + data[end:] if kind != 1 else data
    return rest if kind == 2 else rest[:at] + data[begin:end] + rest[at:]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


_DAMAGE = (_word, _word, _word, _flip, _number, _piece, _cut)
