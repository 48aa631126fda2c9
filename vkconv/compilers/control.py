"""What decides the way through a kernel: the values that its branches hang on, and loops that count.

Only integers that come from constants, push constants and an invocation's place decide in `Control`. What is read from
buffers, or computed by floats, is unknown (`Control.unknown`): a branch on it is taken the shorter way.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from vkconv.compilers.blocks import Kernel, Loop, Op
from vkconv.compilers.integers import ANY_ALL, COMPARISONS, EXTENDED, SCALAR, count_trips, inverse, signed, swapped

_INPUT, _PUSH = 1, 9
SHUFFLE, CONSTRUCT, EXTRACT, COPY = 79, 80, 81, 83
_BITCAST = 124
_ADD, _SUB, _NOT = 128, 130, 168


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """A loop that counts: it goes on while ``counter <op> bound``, tested in the block ``exit``, and ``counter`` grows
    by ``step`` each time. ``trips`` is how often it goes on where only constants decide. ``alone`` says that nothing
    else in it hangs on how far it is, so that one turn stands for all; ``counters`` are all that count so in it,
    with their steps, and ``after`` their updates."""

    loop: Loop
    exit: int
    op: int
    counter: int
    bound: int
    step: int
    trips: int | None
    alone: bool
    counters: Mapping[int, int]
    after: Mapping[int, int]


class Control:
    """The values of a kernel that decide, and its counted loops by the number of their head."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._chains: dict[int, tuple[int, ...]] = {}
        self._known: dict[int, bool] = {}
        self.unknown = self._unknown()
        self.needed = self._needed()
        self.counted = {head: counted for head, loop in kernel.loops.items() if (counted := self._counted(loop))}

    def operands(self, id_: int) -> tuple[int, ...]:
        """The values that a value is made of."""
        if id_ in self.kernel.phis:
            return tuple(self.kernel.phis[id_][1].values())
        if id_ not in self.kernel.defined:
            return ()
        op, words = self.kernel.defined[id_][1]
        if op == Op.EXT_INST:
            return words[4:]
        if op == Op.LOAD:  # what it reads is no value of the kernel, but where in an array may be: see source
            source = self.source(id_)
            return source[3] if source else ()
        if op == SHUFFLE:
            return words[2:4]
        return words[2:3] if op == EXTRACT else words[2:]

    def source(self, id_: int) -> tuple[str, int, int, tuple[int, ...]] | None:
        """What a load reads: ``("push", byte offset, 0, indices)``, of words after that, or ``("input", built-in,
        component, ())``, with component -1 for all of them; None for anything else."""
        op, words = self.kernel.defined[id_][1]
        pointer = words[2]
        path: tuple[int, ...] = ()
        if pointer in self.kernel.defined:
            op, chain = self.kernel.defined[pointer][1]
            if op not in (Op.ACCESS_CHAIN, Op.IN_BOUNDS_ACCESS_CHAIN):
                return None
            pointer, path = chain[2], chain[3:]
        storage = self.kernel.variables.get(pointer, (0, 0))[1]
        constants = self.kernel.constants
        if storage == _INPUT and len(path) <= 1 and all(index in constants for index in path):
            return "input", self.kernel.built_ins.get(pointer, -1), constants[path[0]][0] if path else -1, ()
        if storage == _PUSH and path and path[0] in constants:
            # Arrays of push constants are of words.
            return "push", self.kernel.pushes[constants[path[0]][0]], 0, path[1:]
        return None

    def _unknown(self) -> frozenset[int]:
        every = [*self.kernel.phis, *self.kernel.defined]
        unknown = {id_ for id_ in self.kernel.defined if not self._computed(id_)}
        users: dict[int, list[int]] = {}
        for id_ in every:
            for operand in self.operands(id_):
                users.setdefault(operand, []).append(id_)
        todo = list(unknown)
        while todo:
            for user in users.get(todo.pop(), ()):
                if user not in unknown:
                    unknown.add(user)
                    todo.append(user)
        return frozenset(unknown)

    def _computed(self, id_: int) -> bool:
        """Whether a value follows from its operands by what is known here."""
        op, words = self.kernel.defined[id_][1]
        if op == Op.LOAD:
            return self.source(id_) is not None
        if op in (Op.ACCESS_CHAIN, Op.IN_BOUNDS_ACCESS_CHAIN):
            return True
        kind, bits = self.kernel.scalar(words[0])
        if kind == Op.TYPE_FLOAT or bits != 32:
            return False
        if op in (EXTRACT, CONSTRUCT, SHUFFLE) or op in ANY_ALL:
            return True
        if op == Op.EXT_INST:
            return words[3] in EXTENDED
        if op == _BITCAST or op in COMPARISONS:
            of = [self.kernel.defined[id_][1][1][0] for id_ in words[2:] if id_ in self.kernel.defined]
            of += [self.kernel.type_of(id_) for id_ in words[2:] if id_ not in self.kernel.defined]
            return all(
                self.kernel.scalar(type_) != (Op.TYPE_FLOAT, 32) and self.kernel.scalar(type_)[1] == 32 for type_ in of
            )
        return op in SCALAR

    def _needed(self) -> frozenset[int]:
        conditions = [
            block.last[1][0] for block in self.kernel.blocks if block.last[0] in (Op.BRANCH_CONDITIONAL, Op.SWITCH)
        ]
        return frozenset(self._closure(id_ for id_ in conditions if id_ not in self.unknown))

    def _closure(self, ids: Iterable[int]) -> set[int]:
        found: set[int] = set()
        todo = list(ids)
        while todo:
            id_ = todo.pop()
            if id_ not in found and (id_ in self.kernel.phis or id_ in self.kernel.defined):
                found.add(id_)
                todo += self.operands(id_)
        return found

    def _counted(self, loop: Loop) -> Counted | None:
        kernel = self.kernel
        moving = self._moving(loop)
        exits = [
            number
            for number in loop.blocks
            if any(kernel.number[label] not in loop.blocks for label in kernel.blocks[number].targets)
        ]
        inner = [one for one in kernel.loops.values() if one.head in loop.blocks and one.head != loop.head]
        for exit_ in exits:
            if exit_ not in kernel.dominators[loop.latch] or any(exit_ in one.blocks for one in inner):
                continue
            test = self._test(loop, exit_)
            if test is None:
                continue
            op, left, right = test
            counters = self._counters(loop)
            updates = {kernel.phis[phi][1][kernel.blocks[loop.latch].label]: phi for phi in counters}
            if right in counters or right in updates:
                op, left, right = swapped(op), right, left
            phi = updates.get(left, left)
            if phi not in counters or right in moving:
                continue
            start = kernel.phis[phi][1]
            entry = next((of for label, of in start.items() if label != kernel.blocks[loop.latch].label), 0)
            constants = kernel.constants
            trips = None
            if entry in constants and right in constants and len(start) == 2:
                first = constants[entry][0] + (counters[phi] if left in updates else 0)
                trips = count_trips(op, first, constants[right][0], counters[phi])
            alone = len(exits) == 1 and self._turns_alike(loop, exit_, moving, counters, updates)
            return Counted(loop, exit_, op, left, right, counters[phi], trips, alone, counters, updates)
        return None

    def _turns_alike(
        self, loop: Loop, exit_: int, moving: set[int], counters: Mapping[int, int], updates: Mapping[int, int]
    ) -> bool:
        """Whether of what moves in a loop only its counters, and the test of its exit, decide anything."""
        test = {self.kernel.blocks[exit_].last[1][0]}
        for id_ in list(test):
            while id_ in self.kernel.defined and self.kernel.defined[id_][1][0] == _NOT:
                id_ = self.kernel.defined[id_][1][1][2]
                test.add(id_)
        deciding = moving & self.needed
        used = {operand for id_ in self.needed - test for operand in self.operands(id_)}
        branches = [
            block.last[1][0]
            for number, block in enumerate(self.kernel.blocks)
            if number != exit_ and block.last[0] in (Op.BRANCH_CONDITIONAL, Op.SWITCH)
        ]
        return deciding <= test | set(counters) | set(updates) and test.isdisjoint(used) and test.isdisjoint(branches)

    def _moving(self, loop: Loop) -> set[int]:
        """Values inside a loop that may differ from one turn to the next."""
        inside = [
            *(id_ for id_, (number, _) in self.kernel.phis.items() if number in loop.blocks),
            *(id_ for id_, (number, _) in self.kernel.defined.items() if number in loop.blocks),
        ]
        moving = set(self.kernel.blocks[loop.head].phis)
        moving |= {id_ for id_ in inside if id_ in self.unknown}
        changed = True
        while changed:
            new = {id_ for id_ in inside if id_ not in moving and not moving.isdisjoint(self.operands(id_))}
            changed = bool(new)
            moving |= new
        return moving

    def _test(self, loop: Loop, exit_: int) -> tuple[int, int, int] | None:
        """The comparison that keeps in the loop at an exit: opcode, left, right."""
        op, words = self.kernel.blocks[exit_].last
        if op != Op.BRANCH_CONDITIONAL or words[0] in self.unknown:
            return None
        stays_if = self.kernel.number[words[1]] in loop.blocks
        id_ = words[0]
        while id_ in self.kernel.defined and self.kernel.defined[id_][1][0] == _NOT:
            id_, stays_if = self.kernel.defined[id_][1][1][2], not stays_if
        if id_ not in self.kernel.defined:
            return None
        op, words = self.kernel.defined[id_][1]
        if op not in COMPARISONS:
            return None
        return (op if stays_if else inverse(op)), words[2], words[3]

    def _counters(self, loop: Loop) -> dict[int, int]:
        """The phis at the head of a loop that grow by a constant each turn, with that."""
        latch = self.kernel.blocks[loop.latch].label
        found = {}
        for phi, of in self.kernel.blocks[loop.head].phis.items():
            update = of.get(latch, 0)
            if update not in self.kernel.defined:
                continue
            op, words = self.kernel.defined[update][1]
            if op not in (_ADD, _SUB) or phi in self.unknown:
                continue
            other = words[3] if words[2] == phi else words[2] if op == _ADD and words[3] == phi else 0
            if other in self.kernel.constants:
                step = signed(self.kernel.constants[other][0])
                found[phi] = step if op == _ADD else -step
        return found
