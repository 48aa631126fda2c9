"""Tables of FlatBuffers, read field by field from bytes that may be damaged: what leads out of them is a ModelError.

Source of the layout: https://flatbuffers.dev/internals/
"""

import dataclasses
import struct
from collections.abc import Sequence
from typing import Literal

import numpy as np

from vkconv.core import MAX_NODES, ModelError

_MAX_NAME = 4_096
# Elements of all lists and tables together; those of the largest networks have a hundredth.
_MAX_ELEMENTS = 256 * MAX_NODES
AGAIN = "export or copy it again"
_DAMAGED = f"the file is damaged or truncated, {AGAIN}"
Kind = Literal["b", "B", "i", "I", "q", "Q", "d", "?"]
"""Of a number, as `struct` names it."""


class Budget:
    """How many elements of lists may still be read of a file, however many tables point at the same ones."""

    def __init__(self) -> None:
        self._elements = _MAX_ELEMENTS

    def take(self, count: int) -> None:
        self._elements -= count
        if self._elements < 0:
            raise ModelError(f"lists more than {_MAX_ELEMENTS} values; {_DAMAGED}")


class Bytes:
    """What a FlatBuffer lies in: ``data`` from byte 0 on. ``what`` it is goes into messages."""

    def __init__(self, data: memoryview, what: str, budget: Budget) -> None:
        self.data, self.what, self.budget = data, what, budget

    def number(self, kind: str, at: int) -> int | float:
        try:
            if at >= 0:
                found: int | float = struct.unpack_from(f"<{kind}", self.data, at)[0]
                return found
        except struct.error:
            pass
        raise self.damaged(f"something in it lies at byte {at} of {len(self.data)}")

    def size(self, at: int) -> int:
        return int(self.number("I", at))

    def room(self, at: int, count: int, each_bytes: int, what: str) -> None:
        """ModelError unless so many elements lie there."""
        if at < 0 or at + count * each_bytes > len(self.data):
            raise self.damaged(f"{count} {what} would end at byte {at + count * each_bytes} of {len(self.data)}")

    def damaged(self, problem: str) -> ModelError:
        return ModelError(f"{self.what}: {problem}; {_DAMAGED}")

    @property
    def root(self) -> "Table":
        return Table(self, self.size(0))


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """The table at a byte. Its fields are read by their slots: places in the schema, of which a union takes two."""

    bytes: Bytes
    at: int

    def _field(self, slot: int) -> int | None:
        """Where a field lies, None where the table does not have it."""
        vtable = self.at - int(self.bytes.number("i", self.at))
        length = int(self.bytes.number("H", vtable))
        if 4 + 2 * slot + 2 > length:
            return None
        offset = int(self.bytes.number("H", vtable + 4 + 2 * slot))
        if offset == 0:
            return None
        if offset < 4:
            raise self.bytes.damaged(f"a field lies at byte {offset} of its table")
        return self.at + offset

    def _pointed(self, slot: int) -> int | None:
        at = self._field(slot)
        return None if at is None else at + self.bytes.size(at)

    def number(self, slot: int, kind: Kind, default: int = 0) -> int:
        at = self._field(slot)
        return default if at is None else int(self.bytes.number(kind, at))

    def real(self, slot: int) -> float:
        at = self._field(slot)
        return 0.0 if at is None else float(self.bytes.number("d", at))

    def table(self, slot: int) -> "Table | None":
        at = self._pointed(slot)
        return None if at is None else Table(self.bytes, at)

    def _vector(self, slot: int, each_bytes: int, what: str) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        at = self._pointed(slot)
        if at is None:
            return 0, 0
        count = self.bytes.size(at)
        self.bytes.room(at + 4, count, each_bytes, what)
        return at + 4, count

    def tables(self, slot: int, what: str, most: int = 1 << 31) -> "Sequence[Table]":
        """A vector of tables; ModelError where it has more than ``most``."""
        at, count = self._vector(slot, 4, what)
        if count > most:
            raise ModelError(f"{self.bytes.what} has {count} {what}, vkconv takes {most}; simplify the model")
        self.bytes.budget.take(count)
        offsets = self._array(at, count, "<u4")
        return [Table(self.bytes, at + 4 * i + int(offset)) for i, offset in enumerate(offsets)]

    def ints(self, slot: int, kind: Literal["<i4", "<u4", "<i8", "<u8", "u1"], what: str) -> tuple[int, ...]:
        return tuple(int(v) for v in self._numbers(slot, kind, what))

    def reals(self, slot: int) -> tuple[float, ...]:
        return tuple(float(v) for v in self._numbers(slot, "<f8", "numbers"))

    def _numbers(self, slot: int, kind: str, what: str) -> "np.ndarray[tuple[int], np.dtype[np.generic]]":
        at, count = self._vector(slot, np.dtype(kind).itemsize, what)
        self.bytes.budget.take(count)
        return self._array(at, count, kind)

    def _array(self, at: int, count: int, kind: str) -> "np.ndarray[tuple[int], np.dtype[np.generic]]":
        return np.frombuffer(self.bytes.data, kind, count, at if count else 0)

    def raw(self, slot: int, what: str) -> memoryview:
        """A vector of bytes, as they lie there."""
        at, count = self._vector(slot, 1, what)
        return self.bytes.data[at : at + count]

    def text(self, slot: int) -> str:
        at, count = self._vector(slot, 1, "characters")
        if count > _MAX_NAME:
            raise self.bytes.damaged(f"a name has {count} characters, at most {_MAX_NAME} can be")
        self.bytes.budget.take(count // 32)
        try:
            return bytes(self.bytes.data[at : at + count]).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.bytes.damaged(f"a name is no UTF-8 ({error})") from None
