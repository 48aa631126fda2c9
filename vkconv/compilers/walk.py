"""How often each block of a kernel runs in one invocation: its control flow, followed without the data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vkconv.compilers.blocks import Kernel, Op
from vkconv.compilers.control import CONSTRUCT, EXTRACT, SHUFFLE, Control, Counted
from vkconv.compilers.integers import ANY_ALL, EXTENDED, MASK, SCALAR, count_trips
from vkconv.core import ShaderError

Place = Mapping[int, tuple[int, ...]]
"""Where an invocation stands: components of SPIR-V's built-ins by their numbers."""

Values = dict[int, Any]
"""Values that decide, by id: a word, a truth, or a tuple of these."""

_NOT = 168
_MOST_STEPS = 1_000_000


class Walk:
    """The way of one invocation through a kernel. ``guesses`` are the blocks whose branch hangs on data."""

    def __init__(self, kernel: Kernel, control: Control, name: str) -> None:
        self.kernel, self.control, self.name = kernel, control, name
        branching = (Op.BRANCH_CONDITIONAL, Op.SWITCH)
        self.guesses = frozenset(
            number
            for number, block in enumerate(kernel.blocks)
            if block.last[0] in branching and block.last[1][0] in control.unknown
        )
        self._alone = {head: one for head, one in control.counted.items() if one.alone}
        self._exits = {one.exit: one for one in self._alone.values()}
        self._constants = {id_: self._constant(id_) for id_ in kernel.constants}
        self._steps = [self._steps_of(number) for number in range(len(kernel.blocks))]
        self._moves = {
            (number, to): moves
            for number, block in enumerate(kernel.blocks)
            for to in {kernel.number[label] for label in block.targets}
            if (moves := self._moves_of(number, to))
        }

    def blocks_run(self, push: Sequence[int], place: Place) -> list[int]:
        """How often each block runs, by number. ``push`` are the push constants as words. ShaderError where it does not
        come to an end."""
        return self.run(push, place)[0]

    def run(self, push: Sequence[int], place: Place) -> tuple[list[int], int]:
        """The same, with how many blocks were walked for it."""
        run = _Run(self, push, place)
        try:
            for steps in range(1, _MOST_STEPS + 1):
                if run.step():
                    return run.counts, steps
        except KeyError as error:
            raise ShaderError(
                f"{self.name}: the value {error} decides the way through it, and nothing makes it"
            ) from None
        raise ShaderError(
            f"{self.name}: an invocation was not through after {_MOST_STEPS} blocks; its loops are not counted"
        )

    def _constant(self, id_: int) -> Any:
        words, scalars = self.kernel.constants[id_], self.kernel.scalars(self.kernel.type_of(id_))
        return words[0] if scalars == 1 else words[:scalars]

    def _scalars(self, id_: int) -> int:
        """How many scalars a value has."""
        type_ = self.kernel.defined[id_][1][1][0] if id_ in self.kernel.defined else self.kernel.type_of(id_)
        return self.kernel.scalars(type_)

    def _steps_of(self, number: int) -> "list[tuple[int, Callable[[_Run], Any]]]":
        """The values that decide and that a block makes, each with what computes it."""
        needed = self.control.needed
        return [
            (words[1], self._made(op, words))
            for op, words in self.kernel.blocks[number].body
            if len(words) > 1 and words[1] in needed and words[1] in self.kernel.defined
        ]

    def _moves_of(self, number: int, to: int) -> list[tuple[int, int]]:
        """The phis of the block after this one that decide, each with the value that it has from here."""
        label = self.kernel.blocks[number].label
        wanted = self.control.needed - self.control.unknown
        return [(id_, of[label]) for id_, of in self.kernel.blocks[to].phis.items() if id_ in wanted and label in of]

    def _made(self, op: int, words: tuple[int, ...]) -> "Callable[[_Run], Any]":
        operands, scalars = words[2:], self.kernel.scalars(words[0])
        if op == Op.LOAD:
            return self._loaded(words[1], scalars)
        if op == EXTRACT:
            source, component = operands[:2]
            return lambda run: run.values[source][component]
        if op in ANY_ALL:
            joined, of = ANY_ALL[op], operands[0]
            return lambda run: joined(run.values[of])
        if op in (CONSTRUCT, SHUFFLE):
            parts = self._parts(op, operands)
            return lambda run: tuple(run.values[id_] if n < 0 else run.values[id_][n] for id_, n in parts)
        function = EXTENDED[words[3]] if op == Op.EXT_INST else SCALAR[op]
        taken = operands[2:] if op == Op.EXT_INST else operands
        if scalars == 1:
            return lambda run: function(*[run.values[id_] for id_ in taken])
        wide = [self._scalars(id_) > 1 for id_ in taken]
        return lambda run: tuple(
            function(*[run.values[id_][n] if each else run.values[id_] for id_, each in zip(taken, wide, strict=True)])
            for n in range(scalars)
        )

    def _parts(self, op: int, operands: tuple[int, ...]) -> list[tuple[int, int]]:
        """The values and their components, -1 for a scalar, that a vector is made of."""
        if op == SHUFFLE:
            size = self._scalars(operands[0])
            return [(operands[0], n) if n < size else (operands[1], n - size) for n in operands[2:]]
        sizes = [(id_, self._scalars(id_)) for id_ in operands]
        return [(id_, n if size > 1 else -1) for id_, size in sizes for n in range(size)]

    def _loaded(self, id_: int, scalars: int) -> "Callable[[_Run], Any]":
        source = self.control.source(id_)
        assert source is not None
        kind, which, component, path = source
        if kind == "push":
            first = which // 4
            return lambda run: run.push[first + sum(run.values[index] for index in path)]
        if component < 0 and scalars > 1:
            return lambda run: run.place[which]
        return lambda run: run.place[which][max(component, 0)]

    def tests_update(self, one: Counted) -> bool:
        """Whether a counted loop tests its counter after it has grown."""
        id_ = self.kernel.blocks[one.exit].last[1][0]
        while self.kernel.defined[id_][1][0] == _NOT:
            id_ = self.kernel.defined[id_][1][1][2]
        return one.counter not in self.kernel.defined[id_][1][1][2:4]

    def shorter(self, number: int) -> int:
        """Where a branch on data is taken to, as a label: to where paths meet or out of a loop if one way leads there
        at once, else into the block with less in it."""
        block = self.kernel.blocks[number]
        loops = self.kernel.around(number)
        merges = {block.merge, *(self.kernel.blocks[loop.head].merge for loop in loops)}
        latches = {self.kernel.blocks[loop.latch].label for loop in loops}

        def cost(label: int) -> tuple[bool, bool, int]:
            to = self.kernel.number[label]
            leaves = any(to not in loop.blocks for loop in loops[-1:])
            return (not leaves and label not in merges, label not in latches, len(self.kernel.blocks[to].body))

        return min(block.targets, key=cost)


class _Run:
    """One invocation on its way. ``times`` is how often what runs now stands for: in loops of which one turn stands for
    all, as often as these go on."""

    def __init__(self, walk: Walk, push: Sequence[int], place: Place) -> None:
        self.walk, self.push, self.place = walk, push, place
        self.values: Values = dict(walk._constants)
        self.counts = [0] * len(walk.kernel.blocks)
        self.at, self.times = 0, 1
        self._entered: dict[int, tuple[int, list[int]]] = {}
        self._turns: dict[int, int] = {}

    def step(self) -> bool:
        """Run a block. True where the invocation ends."""
        walk, at = self.walk, self.at
        if at in walk._alone:
            self._entered[at] = self.times, self.counts[:]
        self.counts[at] += self.times
        for id_, made in walk._steps[at]:
            self.values[id_] = made(self)
        op, words = walk.kernel.blocks[at].last
        if op == Op.BRANCH:
            self._go(words[0])
        elif at in walk.guesses:
            self._go(walk.shorter(at))
        elif at in walk._exits:
            self._exit(walk._exits[at])
        elif op == Op.BRANCH_CONDITIONAL:
            self._go(words[1] if self.values[words[0]] else words[2])
        elif op == Op.SWITCH:
            cases = dict(zip(words[2::2], words[3::2], strict=True))
            self._go(cases.get(self.values[words[0]], words[1]))
        else:
            return True
        return False

    def _go(self, label: int) -> None:
        to = self.walk.kernel.number[label]
        one = self.walk._alone.get(to)
        if one and self.at == one.loop.latch:
            self._leave(one)
        else:
            self._move(self.at, to)

    def _move(self, number: int, to: int) -> None:
        moves = self.walk._moves.get((number, to), ())
        new = [self.values[value] for _, value in moves]
        for (phi, _), value in zip(moves, new, strict=True):
            self.values[phi] = value
        self.at = to

    def _exit(self, one: Counted) -> None:
        """Take one turn for all: what ran up to here runs as often again, what follows so often at once."""
        head, number = one.loop.head, self.walk.kernel.number
        times, before = self._entered[head]
        first = self.values[one.counter] + (one.step if self.walk.tests_update(one) else 0)
        turns = count_trips(one.op, first, self.values[one.bound], one.step)
        for block in one.loop.blocks:
            self.counts[block] += (self.counts[block] - before[block]) * turns
        self._turns[head] = turns
        inside = next(
            n for label in self.walk.kernel.blocks[one.exit].targets if (n := number[label]) in one.loop.blocks
        )
        if turns and inside != head:
            self.times = times * turns
            self._move(self.at, inside)
        else:
            self._leave(one)

    def _leave(self, one: Counted) -> None:
        """Go on after a loop whose turn has stood for all: with its counters where the last turn leaves them."""
        head, number = one.loop.head, self.walk.kernel.number
        self.times = self._entered[head][0]
        for counter, step in one.counters.items():
            if counter in self.values:
                self.values[counter] = (self.values[counter] + step * self._turns[head]) & MASK
        for update, counter in one.after.items():
            if counter in self.values:
                self.values[update] = (self.values[counter] + one.counters[counter]) & MASK
        targets = self.walk.kernel.blocks[one.exit].targets
        outside = next(n for label in targets if (n := number[label]) not in one.loop.blocks)
        self._move(one.exit, outside)
