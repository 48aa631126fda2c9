"""Calls of a ``.pte`` file as the rules of operators see them, and the values of the chain that they are in."""

import dataclasses
from bisect import bisect_left
from typing import Any

import numpy as np

from vkconv.core import MAX_NODES, Array, DType, ModelError
from vkconv.graph.aten.view import Builder, CallView, RefusedError, TensorType, Value
from vkconv.graph.pte.flatbuffer import AGAIN
from vkconv.graph.pte.values import OPEN, Call, Chain, Members, Move, Tensor

# Constants may be cast and laid out anew, but no model becomes so many times as large.
_GROWTH, _SPARE_BYTES = 16, 1 << 30
_MAX_MEMBERS = 64 * MAX_NODES
_STATE = (
    "it reads a value that nothing before it makes: a state that is kept between runs, which no copy_ writes; export "
    "the model with its state as inputs and outputs"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """A value of one run of a chain, by its number."""

    scope: int
    index: int


class Memory:
    """What lies where in the memory that a program plans: views of a tensor are other values at the same place."""

    def __init__(self) -> None:
        self._areas: dict[int, tuple[list[int], list[tuple[int, Ref | None]]]] = {}

    def write(self, place: tuple[int, int], nbytes: int, ref: Ref | None) -> None:
        """What was there is no more, also where it is only overlapped."""
        area, begin = place
        begins, held = self._areas.setdefault(area, ([], []))
        first = bisect_left(begins, begin)
        if first and held[first - 1][0] > begin:
            first -= 1
        last = bisect_left(begins, begin + nbytes)
        begins[first:last], held[first:last] = [begin], [(begin + nbytes, ref)]

    def at(self, place: tuple[int, int], nbytes: int) -> Ref | None:
        area, begin = place
        begins, held = self._areas.get(area, ([], []))
        i = bisect_left(begins, begin)
        if i < len(begins) and begins[i] == begin and held[i][0] == begin + nbytes:
            return held[i][1]
        return None


class Shared:
    """What all chains of a file share while its graph grows."""

    def __init__(self, file_bytes: int) -> None:
        self.builder = Builder()
        self._file_bytes, self._made_bytes, self._members, self.scopes = file_bytes, 0, 0, 0

    def constant(self, stem: str, array: Array, dtype: DType) -> str:
        """A constant, in order and aligned, cast where it is stored in another type."""
        made = np.require(array, dtype.numpy, ["C", "A"])
        if made is not array:
            self._made_bytes += made.nbytes
            most = _GROWTH * self._file_bytes + _SPARE_BYTES
            if self._made_bytes > most:
                raise ModelError(
                    f"its constants would be more than {most} bytes, in a file of {self._file_bytes}; the file is "
                    f"damaged, {AGAIN}"
                )
        return self.builder.constant(stem, made)

    def count(self, members: int) -> None:
        self._members += members
        if self._members > _MAX_MEMBERS:
            raise ModelError(f"its calls take lists of more than {_MAX_MEMBERS} members; the file is damaged, {AGAIN}")


class Scope:
    """One run of a chain: the program's, or of a delegate. ``sizes`` are values of known sizes, which calls make;
    ``states`` are tensors that the end of a run leaves to the next, by the input that each is."""

    def __init__(self, shared: Shared, chain: Chain) -> None:
        shared.scopes += 1
        self.shared, self.chain, self._number = shared, chain, shared.scopes
        self.builder, self.memory = shared.builder, Memory()
        self.sizes: dict[int, int] = {}
        self.states: dict[int, str] = {}
        self.read: set[int] = set(chain.outputs)
        made: set[int] = set()
        for step in chain.steps:
            args = (step.source,) if isinstance(step, Move) else step.args
            lists = [held.items for index in args if isinstance(held := chain.values[index], Members)]
            shared.count(len(args) + sum(map(len, lists)))
            self.read.update(args, *lists)
            made.update(step.made if isinstance(step, Call) else ())
        # What is written is no tensor but a size, whatever the file holds in its place.
        self._computed = {i for i in made if not isinstance(chain.values[i], Tensor | Members)}

    def ref(self, index: int) -> Ref:
        return Ref(self._number, index)

    def tensor(self, index: int, what: str) -> Tensor:
        held = self.chain.values[index]
        if not isinstance(held, Tensor):
            raise ModelError(f"{what} is value {index}, which is no tensor; the file is damaged, {AGAIN}")
        return held

    def given(self, index: int, nested: bool = False) -> Any:
        """A value as an argument: a tensor by its `Ref`."""
        if index < 0:
            return None
        if index >= len(self.chain.values):
            raise ModelError(
                f"a member of a list is value {index}, of {len(self.chain.values)}; it is damaged, {AGAIN}"
            )
        held = self.chain.values[index]
        if isinstance(held, Tensor):
            return self.ref(index)
        if held is OPEN or index in self._computed:
            return self.sizes.get(index, OPEN)
        if isinstance(held, Members | tuple):
            self.shared.count(len(held.items) if isinstance(held, Members) else len(held))
        if isinstance(held, Members):
            if nested:
                raise ModelError(f"a list is a member of a list; the file is damaged, {AGAIN}")
            return [self.given(item, nested=True) for item in held.items]
        return held

    def value(self, index: int) -> str:
        """The name of a tensor's value. RefusedError where there is none."""
        ref, tensor = self.ref(index), self.tensor(index, "what is read")
        held = self.builder.values.get(ref)
        if isinstance(held, str):
            return held
        dtype = _known(tensor)
        if tensor.missing:
            raise RefusedError(f"it reads a constant: {tensor.missing}")
        data = tensor.data if tensor.initial is None else tensor.initial
        if data is not None:
            made = self.shared.constant(f"constant_{index}", data, dtype)
        else:
            source = None if tensor.memory is None else self.memory.at(tensor.memory, _nbytes(tensor))
            if source is None or self.tensor(source.index, "a view").dtype is not dtype:
                raise RefusedError(_STATE)
            made, dims = self.value(source.index), tensor.dims
            if self.tensor(source.index, "a view").dims != dims:
                made = self.builder.emit(f"view_{index}", "reshape", made, shape=dims, allowzero=0 in dims)
        self.builder.values[ref] = made
        return made

    def write(self, index: int, value: str) -> None:
        """Something makes a tensor; "" where it is not made, since nothing reads it."""
        ref, tensor = self.ref(index), self.tensor(index, "what is made")
        if index in self.states and tensor.memory is not None:
            # What was seen there in another shape is no more.
            for other, held in enumerate(self.chain.values):
                if isinstance(held, Tensor) and held.memory == tensor.memory:
                    self.builder.values.pop(self.ref(other), None)
        if tensor.data is not None or tensor.missing or ref in self.builder.values:
            raise RefusedError("it changes a value that was there before; export the model with its state as outputs")
        if value:
            self.builder.values[ref] = value
        if tensor.memory is not None:
            self.memory.write(tensor.memory, _nbytes(tensor), ref if value else None)


def _nbytes(tensor: Tensor) -> int:
    count = 1
    for d in tensor.dims:
        count *= d
    return count * _known(tensor).nbytes


def _known(tensor: Tensor) -> DType:
    if tensor.dtype is None:
        raise RefusedError(f"it has {tensor.type_name}; vkconv has {', '.join(DType)}")
    return tensor.dtype


@dataclasses.dataclass
class PteView(CallView):
    """A call of a chain; ``operator`` is the name that its rule has."""

    scope: Scope
    call: Call
    operator: str
    name: str

    @property
    def builder(self) -> Builder:  # type: ignore[override]
        return self.scope.builder

    def arg(self, i: int, default: Any = None) -> Any:
        return self.scope.given(self.call.args[i]) if i < len(self.call.args) else default

    def option(self, name: str, i: int, default: Any = None) -> Any:
        return self.arg(i, default)

    def tensor_type(self, given: Any) -> TensorType | None:
        if not isinstance(given, Ref):
            return None
        tensor = self.scope.tensor(given.index, "an argument")
        return TensorType(tensor.dims, _known(tensor))

    @property
    def made(self) -> Any:
        types = tuple(self.tensor_type(self.scope.ref(index)) for index in self.call.made)
        return types if self.call.listed else types[0]

    def used(self) -> set[int]:
        return {i for i, index in enumerate(self.call.made) if index in self.scope.read}

    def int_of(self, value: Any) -> int:
        """Also of a whole number that the file holds as a float: ExecuTorch keeps one value for 1 and 1.0."""
        return super().int_of(int(value) if isinstance(value, float) and value.is_integer() else value)

    def value(self, given: Any) -> str:
        if not isinstance(given, Ref):
            self.refuse("it reads a value that is no tensor")
        return self.scope.value(given.index)

    def finish(self, value: Value) -> None:
        values = value if isinstance(value, tuple) else (value,)
        if len(values) != len(self.call.made):
            raise ModelError(
                f"{self.call.operator} makes {len(self.call.made)} values where {len(values)} are due; the file is "
                f"damaged, {AGAIN}"
            )
        for index, made in zip(self.call.made, values, strict=True):
            self.scope.write(index, made)
