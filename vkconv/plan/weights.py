"""Constants that stay on the device: what makes two of them the same, so that plans of one session share them.

A session whose graph has symbolic dimensions makes a plan for every input shape. What prepacking makes of a constant
depends on the constant's bytes and on the prepacking dispatches, seldom on the input shape: it is kept under a
key of exactly those, and a later plan that needs the same finds it there.
"""

import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence

import numpy as np

from vkconv.core import Array
from vkconv.plan.bound import BoundNode
from vkconv.plan.commands import Region
from vkconv.program import Dispatch, Program

# Identity of a constant as it lies on the device.
WeightKey = tuple[object, ...]
Resident = Mapping[WeightKey, Region]


class WeightKeys:
    """Keys of the constants of one plan: by name where nothing is shared (``by_content`` off), else by content. The
    nodes ``alike`` share what they pack in any case."""

    def __init__(self, constants: Mapping[str, Array], by_content: bool, alike: Container[str] = ()) -> None:
        self._constants = constants
        self._alike = alike
        self._by_content = by_content
        self._digests: dict[str, object] = {}

    def raw(self, value: str) -> WeightKey:
        """Key of a constant that steps read as it is."""
        return "weight", self._identity(value)

    def packed(self, node: BoundNode, program: Program, buffer: str) -> WeightKey:
        """Key of a buffer that prepacking makes of constants: which constants, and what is done to them."""
        if not self._by_content and node.name not in self._alike:
            return "packed", node.name, buffer
        read = sorted({b.buffer for d in program.prepack for b in d.binds if b.buffer in node.reads})
        operands = tuple((operand, self._identity(node.reads[operand])) for operand in read)
        size = program.packed[buffer], program.textures.get(buffer)
        return "packed", buffer, size, operands, tuple(map(_what, program.prepack))

    def _identity(self, value: str) -> object:
        if not self._by_content:
            return value
        if value not in self._digests:
            array = np.ascontiguousarray(self._constants[value])
            content = hashlib.blake2b(array.view(np.uint8).data if array.size else b"", digest_size=16)
            self._digests[value] = (array.dtype.str, array.shape, content.hexdigest())
        return self._digests[value]


def constants_of(node: BoundNode, dispatches: Sequence[Dispatch], constants: Mapping[str, Array]) -> list[str]:
    """Constants (by value name) that the dispatches bind."""
    bound = {bind.buffer for dispatch in dispatches for bind in dispatch.binds}
    return [value for operand, value in node.reads.items() if operand in bound and value in constants]


def prepacks_at_load(node: BoundNode, program: Program, constants: Mapping[str, Array]) -> bool:
    """True when everything that prepacking reads is constant, so that it runs once."""
    operands = {bind.buffer for dispatch in program.prepack for bind in dispatch.binds} & set(node.reads)
    return bool(program.prepack) and all(node.reads[operand] in constants for operand in operands)


def dispatched_at_run(node: BoundNode, program: Program, constants: Mapping[str, Array]) -> tuple[Dispatch, ...]:
    """What one inference dispatches for a node: its steps, and prepacking where that cannot be done at load."""
    return program.steps if prepacks_at_load(node, program, constants) else (*program.prepack, *program.steps)


def kept_blocks(
    steps: Sequence[tuple[BoundNode, Program]], constants: Mapping[str, Array], keys: WeightKeys
) -> Iterator[tuple[str, WeightKey, int]]:
    """Name, key and bytes of every block that stays on the device: ``weight:C`` as it is, ``packed:N:B`` prepacked."""
    seen: set[str] = set()
    for node, program in steps:
        for value in constants_of(node, dispatched_at_run(node, program, constants), constants):
            if value not in seen:
                seen.add(value)
                yield f"weight:{value}", keys.raw(value), constants[value].nbytes
        if prepacks_at_load(node, program, constants):
            for buffer, nbytes in program.packed.items():
                yield f"packed:{node.name}:{buffer}", keys.packed(node, program, buffer), nbytes


def _what(dispatch: Dispatch) -> tuple[object, ...]:
    return dispatch.shader, dispatch.binds, dispatch.groups, dispatch.spec_words, dispatch.push_bytes
