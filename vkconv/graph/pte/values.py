"""What a ``.pte`` file holds, as plain data: a chain of calls on numbered values, of the program or of a delegate."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from vkconv.core import Array, DType, ModelError, shape_str, short
from vkconv.graph.pte.flatbuffer import AGAIN, Budget, Table


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """``dtype`` is None for a type that vkconv does not have, which ``type_name`` names. ``data`` is a constant's, in
    the order of its indices. ``memory`` is where the program keeps it, as (area, byte): values without a maker are
    what lies there, seen in another shape. ``missing`` says of a constant why it is not there. ``initial`` are what a
    tensor of the program's memory begins with."""

    dims: tuple[int, ...]
    dtype: DType | None
    type_name: str
    data: Array | None = None
    memory: tuple[int, int] | None = None
    missing: str = ""
    initial: Array | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Members:
    """A list of values by their numbers, -1 for none."""

    items: tuple[int, ...]


class Open:
    """A size that is known when the program runs."""


OPEN: Final = Open()
Held = Tensor | Members | Open | bool | int | float | str | tuple[int, ...] | tuple[float, ...] | None


Kind = Literal["int", "bool", "double", "string", "ints", "doubles", "bools", "members"]
# What both schemas hold in the same way, each under a number of its own.
_PLAIN: Mapping[Kind, Callable[[Table], Held]] = {
    "int": lambda held: held.number(0, "q"),
    "bool": lambda held: bool(held.number(0, "B")),
    "double": lambda held: held.real(0),
    "string": lambda held: held.text(0),
    "ints": lambda held: held.ints(0, "<i8", "members"),
    "doubles": lambda held: held.reals(0),
    "bools": lambda held: tuple(v != 0 for v in held.ints(0, "u1", "members")),
    "members": lambda held: Members(held.ints(0, "<i4", "members")),
}


def plain(held: Table, kind: Kind) -> Held:
    """The value of that kind in a table."""
    return _PLAIN[kind](held)


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator by its name in the file; values by their numbers. ``listed`` says that what it makes is a
    list, also where that has one member."""

    operator: str
    args: tuple[int, ...]
    made: tuple[int, ...]
    listed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """One value becomes another."""

    source: int
    target: int


@dataclasses.dataclass(frozen=True, slots=True)
class Delegated:
    """A call of a backend: its inputs and then its outputs, and its graph, None where it is not Vulkan's."""

    backend: str
    args: tuple[int, ...]
    graph: "Chain | None"


Step = Call | Move | Delegated


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """``facts`` are what else the file says: compile options of the delegate, names of other methods."""

    values: tuple[Held, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)


OUTSIDE = "its data are in a file of their own (.ptd); export the program without external constants"


def numbers(found: Sequence[int], count: int, what: str) -> tuple[int, ...]:
    """Numbers of values, of which there are ``count``."""
    for index in found:
        if not 0 <= index < count:
            raise ModelError(f"{what} is value {index}, of {count}; the file is damaged, {AGAIN}")
    return tuple(found)


def call_of(
    operator: str, args: tuple[int, ...], values: Sequence[Held], budget: Budget, *, written_twice: bool = False
) -> Call:
    """A call whose arguments end with what it makes; ``written_twice``: also as arguments before it that it writes."""
    if not args:
        raise ModelError(f"a call of {short(operator)} has no result; the file is damaged, {AGAIN}")
    last, rest = args[-1], args[:-1]
    held = values[last]
    listed = isinstance(held, Members)
    made = numbers(held.items, len(values), "a result") if isinstance(held, Members) else (last,)
    budget.take(len(made))
    while written_twice and rest and (rest[-1] == last or rest[-1] in made):
        rest = rest[:-1]
    return Call(operator, rest, made, listed)


def elements(raw: memoryview, shape: tuple[int, ...], dtype: DType, what: str) -> Array:
    """A constant from where it begins in the file, read-only."""
    due = math.prod(shape) * dtype.nbytes
    if len(raw) < due:
        raise ModelError(
            f"{what} of shape {shape_str(shape)} takes {due} bytes, of which {len(raw)} are there; {AGAIN}"
        )
    stored = np.frombuffer(raw[:due], np.uint8 if dtype is DType.BOOL else dtype.numpy)
    if dtype is DType.BOOL:
        if stored.size and int(stored.max()) > 1:
            raise ModelError(f"{what} is bool and holds bytes other than 0 and 1; the file is damaged, {AGAIN}")
        stored = stored.view(np.bool_)
    array: Array = stored.reshape(shape)
    return array
