"""In which order the dimensions of a tensor lie, beside the order that kernels take.

Layouts are named by letters, any order of them: N images, C channels, D, H and W, with G, groups, apart or not; of
weights K output channels, C input channels of a group, Z, Y and X, and G.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from vkconv.core import Array, GraphError, did_you_mean
from vkconv.graph.ir import AttrValue

_GROUPS = "G"
# An op and its attributes.
Rewrite = tuple[str, Mapping[str, AttrValue]]


@dataclasses.dataclass(frozen=True)
class Order:
    """The layout of a kind of tensor that kernels take, as ``letters``, of which ``grouped`` counts the groups too, and
    others that are usual."""

    letters: str
    grouped: str
    usual: tuple[str, ...]

    def layout(self, op: str, name: str, given: str) -> "Layout":
        """The layout of that name. GraphError for letters that are not those of the tensor."""
        known = sorted(self.letters), sorted(self.letters + _GROUPS)
        if sorted(given) not in known:
            raise GraphError(
                f"{op}: {name} is {given!r}{did_you_mean(given, (self.letters, *self.usual))}; it is the letters "
                f"{', '.join(self.letters)} in any order, with G where groups are apart: {', '.join(self.usual)}"
            )
        return Layout(self, given)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the dimensions of an `Order` lie."""

    order: Order
    letters: str

    @property
    def is_first(self) -> bool:
        return self.letters == self.order.letters

    @property
    def is_apart(self) -> bool:
        return _GROUPS in self.letters

    @cached_property
    def full(self) -> str:
        """The letters in the order that kernels take, groups ahead of what they are groups of."""
        before = _GROUPS + self.order.grouped if self.is_apart else self.order.grouped
        return self.order.letters.replace(self.order.grouped, before)

    @cached_property
    def perm(self) -> tuple[int, ...]:
        """Dimension i of the full order is dimension perm[i] here."""
        return tuple(map(self.letters.index, self.full))

    def groups(self, shape: Sequence[int]) -> int:
        """The groups of a tensor here that has them apart."""
        return shape[self.letters.index(_GROUPS)]

    def first(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape, of what lies so, that kernels take."""
        there = [shape[p] for p in self.perm]
        if self.is_apart:
            at = self.full.index(_GROUPS)
            there[at : at + 2] = [there[at] * there[at + 1]]
        return tuple(there)

    def here(self, shape: Sequence[int], groups: int) -> tuple[int, ...]:
        """The shape here of what kernels make with that shape, in so many groups."""
        dims = self._split(shape, groups)
        return tuple(dims[self.full.index(letter)] for letter in self.letters)

    def _split(self, shape: Sequence[int], groups: int) -> list[int]:
        dims = list(shape)
        if self.is_apart:
            at = self.full.index(_GROUPS)
            reduced = dims[at] == 1  # all channels are: no groups of them stay
            dims[at : at + 1] = [1, 1] if reduced else [groups, dims[at] // groups]
        return dims

    def to_first(self, array: Array) -> Array:
        """The array, which lies so, as the reference takes it."""
        return np.transpose(array, self.perm).reshape(self.first(array.shape))

    def to_here(self, array: Any, groups: int) -> Any:
        """What the reference makes, as it lies here."""
        return np.transpose(np.reshape(array, self._split(array.shape, groups)), np.argsort(self.perm))

    def steps_to_first(self, shape: Sequence[int]) -> list[Rewrite]:
        """The ops, with attributes, that bring a tensor of this shape here into the order of kernels, one on the other.
        Without groups apart they need no shape."""
        merge: list[Rewrite] = [("reshape", {"shape": self.first(shape)})] if self.is_apart else []
        return [("transpose", {"perm": self.perm}), *merge]

    def steps_to_here(self, shape: Sequence[int]) -> list[Rewrite]:
        """The same from the order of kernels back."""
        part: list[Rewrite] = [("reshape", {"shape": tuple(shape[p] for p in self.perm)})] if self.is_apart else []
        back = tuple(sorted(range(len(self.perm)), key=self.perm.__getitem__))
        return [*part, ("transpose", {"perm": back})]

    def moves(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape here lies otherwise in memory than kernels take it."""
        order = [p for p in self.perm if shape[p] != 1]
        return order != sorted(order) and 0 not in shape
