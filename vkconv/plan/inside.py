"""Values that lie inside others: what makes a part of a concat writes it where the concat wants it, and a slice or a
part of a split that is whole and in a row is read where it lies. Neither is copied then.

A value has a home: another value and the byte where it begins there. Homes are nested; nothing else is written there.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.plan.bound import BoundNode
from vkconv.program import Program

# Kernels may read and write values as vec4.
ALIGNMENT_BYTES = 16
_WORD_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Homes:
    """``of`` has, by value, the one that it lies in and its first byte there; ``copies`` has, by node, the buffers
    whose copies are not needed."""

    of: Mapping[str, tuple[str, int]]
    copies: Mapping[str, frozenset[str]]

    def home(self, value: str) -> tuple[str, int]:
        """The value that has memory of its own in which a value lies, and its first byte there."""
        offset = 0
        while value in self.of:
            value, more = self.of[value]
            offset += more
        return value, offset

    def steps(self, node: BoundNode, program: Program) -> Program:
        """The program without the copies that are not needed."""
        unneeded = self.copies.get(node.name, frozenset())
        if not unneeded:
            return program
        kept = (s for s in program.steps if not unneeded.intersection(bind.buffer for bind in s.binds))
        return dataclasses.replace(program, steps=tuple(kept))


NO_HOMES = Homes({}, {})


def home_alignment(device: Device) -> int:
    """Bytes of which the place of a value in its home is a multiple."""
    return math.lcm(device.limit("minStorageBufferOffsetAlignment"), ALIGNMENT_BYTES)


def find_homes(
    steps: Sequence[tuple[BoundNode, Program]],
    specs: Mapping[str, TensorSpec],
    root: Callable[[str], str],
    alignment: int,
    given: Collection[str] = (),
    only: Collection[str] | None = None,
) -> Homes:
    """Homes of the values of a graph, as far as each begins at a multiple of ``alignment`` bytes. ``root`` is the value
    whose bytes another one is. What no node makes, inputs and constants, stays where it is, but that slices of those in
    ``given`` lie inside them. With ``only``, the homes that nodes of these names give."""
    finder = _Finder(specs, root, math.lcm(alignment, ALIGNMENT_BYTES))
    finder.made.update(given)
    for node, _ in steps:
        if only is None or node.name in only:
            finder.look_at(node)
        finder.made.update(node.writes.values())
    return Homes(finder.homes, {name: frozenset(buffers) for name, buffers in finder.copies.items()})


class _Finder:
    def __init__(self, specs: Mapping[str, TensorSpec], root: Callable[[str], str], alignment: int) -> None:
        self.homes: dict[str, tuple[str, int]] = {}
        self.copies: dict[str, set[str]] = {}
        self.made: set[str] = set()
        self._specs = specs
        self._root = root
        self._alignment = alignment

    def look_at(self, node: BoundNode) -> None:
        call = node.call
        if call.op == "concat" and math.prod(call.shape("y")[: call["axis"]]) == 1:
            offset = 0
            for operand, value in node.reads.items():
                self._settle(node, operand, self._root(value), node.writes["y"], offset)
                offset += self._specs[value].nbytes
        elif call.op == "split" and math.prod(call.shape("x")[: call["axis"]]) == 1:
            self._lie_in_x(node, 0)
        elif call.op == "slice" and (first := _first_of_row(node)) is not None:
            self._lie_in_x(node, first * self._specs[node.reads["x"]].dtype.nbytes)

    def _lie_in_x(self, node: BoundNode, offset: int) -> None:
        x = self._root(node.reads["x"])
        if x in self.made:
            for output, value in node.writes.items():
                self._settle(node, output, value, x, offset)
                offset += self._specs[value].nbytes

    def _settle(self, node: BoundNode, buffer: str, value: str, home: str, offset: int) -> None:
        """Let a value lie in another one, if it may."""
        spec = self._specs[value]
        is_new = value in self.made or value in node.writes.values()
        whole = spec.nbytes % _WORD_BYTES == 0 and spec.size > 0 and offset % self._alignment == 0
        if is_new and whole and value not in self.homes:
            self.homes[value] = (home, offset)
            self.copies.setdefault(node.name, set()).add(buffer)


def _first_of_row(node: BoundNode) -> int | None:
    """The first element of a slice that takes elements in a row, None where it takes others."""
    x, y = node.call.shape("x"), node.call.shape("y")
    starts, steps = [0] * len(x), [1] * len(x)
    for start, axis, step in zip(node.call["starts"], node.call["axes"], node.call["steps"], strict=True):
        starts[axis], steps[axis] = start, step
    cut = [axis for axis in range(len(x)) if x[axis] != y[axis]]
    if any(steps[axis] != 1 for axis in cut) or (cut and math.prod(y[: cut[-1]]) != 1):
        return None
    if any(steps[axis] < 0 for axis in range(len(x))):
        return None
    return sum(start * math.prod(x[axis + 1 :]) for axis, start in enumerate(starts))
