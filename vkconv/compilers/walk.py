"""How often each block of a kernel runs in one invocation: its control flow as Python, without the data."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from vkconv.compilers.blocks import Kernel, Op
from vkconv.compilers.control import (
    ANY_ALL,
    BINARY,
    COMPARISONS,
    CONSTRUCT,
    COPY,
    EXTENDED,
    EXTRACT,
    LOGICAL,
    SELECT,
    SHUFFLE,
    UNARY,
    Control,
    Counted,
    count_trips,
    signed,
)
from vkconv.core import ShaderError

Place = Mapping[int, tuple[int, ...]]
"""Where an invocation stands: components of SPIR-V's built-ins by their numbers."""

_MOST_STEPS = 5_000_000


class Walk:
    """The way of one invocation through a kernel. ``blocks_run`` gives how often each block runs; ``guesses`` are the
    blocks whose branch hangs on data."""

    def __init__(self, kernel: Kernel, control: Control, name: str) -> None:
        self.kernel, self.control, self.name = kernel, control, name
        self.guesses = frozenset(
            number
            for number, block in enumerate(kernel.blocks)
            if block.last[0] in (Op.BRANCH_CONDITIONAL, Op.SWITCH) and block.last[1][0] in control.unknown
        )
        self._run = _compiled("\n".join(_Writer(self).lines()), name)

    def blocks_run(self, push: Sequence[int], place: Place) -> list[int]:
        """How often each block runs, by number. ``push`` are the push constants as words. ShaderError where it does not
        come to an end."""
        counts = [0] * len(self.kernel.blocks)
        if not self._run(counts, push, place, _MOST_STEPS):
            raise ShaderError(
                f"{self.name}: an invocation was not through after {_MOST_STEPS} blocks; its loops are not counted"
            )
        return counts


@functools.lru_cache(maxsize=512)
def _compiled(source: str, name: str) -> Callable[..., bool]:
    scope: dict[str, object] = {"signed": signed, "trips": count_trips, "quotient": _quotient}
    exec(compile(source, f"<the way through {name}>", "exec"), scope)
    run = scope["run"]
    assert callable(run)
    return run


def _quotient(a: int, b: int) -> int:
    """Rounded towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


class _Writer:
    """Python for a walk: a dispatch loop over the blocks that several paths come to; others stand in line."""

    def __init__(self, walk: Walk) -> None:
        self.kernel, self.control, self.guesses = walk.kernel, walk.control, walk.guesses
        self.alone = {head: one for head, one in self.control.counted.items() if one.alone}
        self.exits = {one.exit: one for one in self.alone.values()}

    def lines(self) -> Iterator[str]:
        yield "def run(c, push, place, left):"
        yield "    m = 1; b = 0"
        yield "    while left > 0:"
        yield "        left -= 1"
        states = [
            n for n, before in enumerate(self.kernel.before) if n == 0 or len(before) != 1 or n in self.kernel.loops
        ]
        yield from self._dispatch(states, 2)
        yield "    return False"

    def _dispatch(self, states: Sequence[int], depth: int) -> Iterator[str]:
        if len(states) == 1:
            yield from self._block(states[0], depth)
            return
        middle = len(states) // 2
        yield "    " * depth + f"if b < {states[middle]}:"
        yield from self._dispatch(states[:middle], depth + 1)
        yield "    " * depth + "else:"
        yield from self._dispatch(states[middle:], depth + 1)

    def _block(self, number: int, depth: int) -> Iterator[str]:
        pad, block = "    " * depth, self.kernel.blocks[number]
        if number in self.alone:
            yield f"{pad}k{number} = c[:]; m{number} = m"
        yield f"{pad}c[{number}] += m"
        for op, words in block.body:
            if len(words) > 1 and words[1] in self.control.needed and words[1] in self.kernel.defined:
                yield f"{pad}v{words[1]} = {self._value(op, words)}"
        op, words = block.last
        if op == Op.BRANCH:
            yield from self._go(number, words[0], depth)
        elif op in (Op.BRANCH_CONDITIONAL, Op.SWITCH) and number in self.guesses:
            yield from self._go(number, self._shorter(number), depth)
        elif number in self.exits:
            yield from self._counted_exit(self.exits[number], depth)
        elif op == Op.BRANCH_CONDITIONAL:
            yield f"{pad}if {self._operand(words[0])}:"
            yield from self._go(number, words[1], depth + 1)
            yield f"{pad}else:"
            yield from self._go(number, words[2], depth + 1)
        elif op == Op.SWITCH:
            for value, label in zip(words[2::2], words[3::2], strict=True):
                yield f"{pad}if {self._operand(words[0])} == {value}:"
                yield from self._go(number, label, depth + 1)
            yield from self._go(number, words[1], depth)
        else:
            yield f"{pad}return True"

    def _counted_exit(self, one: Counted, depth: int) -> Iterator[str]:
        """Take one turn for all: what ran up to here runs as often again, what follows so often at once."""
        pad, head, words = "    " * depth, one.loop.head, self.kernel.blocks[one.exit].last[1]
        inside, outside = words[1:3] if self.kernel.number[words[1]] in one.loop.blocks else (words[2], words[1])
        first = f"v{one.counter}" + (f" + {one.step}" if self._tests_update(one) else "")
        yield f"{pad}t{head} = trips({one.op}, {first}, {self._operand(one.bound)}, {one.step})"
        blocks = sorted(one.loop.blocks)
        yield f"{pad}for i in {blocks!r}: c[i] += (c[i] - k{head}[i]) * t{head}"
        goes_back = self.kernel.number[inside] == head
        yield f"{pad}if t{head}{' and False' if goes_back else ''}:"
        yield f"{pad}    m = m{head} * t{head}"
        yield from self._go(one.exit, inside, depth + 1)
        yield from self._leave(one, outside, depth)

    def _leave(self, one: Counted, outside: int, depth: int) -> Iterator[str]:
        pad, head = "    " * depth, one.loop.head
        yield f"{pad}m = m{head}"
        for counter, step in one.counters.items():
            if counter in self.control.needed:
                yield f"{pad}v{counter} = (v{counter} + {step} * t{head}) & 0xFFFFFFFF"
        for update, counter in one.after.items():
            if update in self.control.needed:
                yield f"{pad}v{update} = (v{counter} + {one.counters[counter]}) & 0xFFFFFFFF"
        yield from self._go(one.exit, outside, depth, leaving=True)

    def _tests_update(self, one: Counted) -> bool:
        id_ = self.kernel.blocks[one.exit].last[1][0]
        while id_ in self.kernel.defined and self.kernel.defined[id_][1][0] == 168:
            id_ = self.kernel.defined[id_][1][1][2]
        words = self.kernel.defined[id_][1][1]
        return one.counter not in words[2:4]

    def _go(self, number: int, label: int, depth: int, leaving: bool = False) -> Iterator[str]:
        pad, to, source = "    " * depth, self.kernel.number[label], self.kernel.blocks[number].label
        if to in self.alone and number == self.alone[to].loop.latch and not leaving:
            one = self.alone[to]
            words = self.kernel.blocks[one.exit].last[1]
            outside = words[2] if self.kernel.number[words[1]] in one.loop.blocks else words[1]
            yield from self._leave(one, outside, depth)
            return
        moves = [
            (f"v{id_}", self._operand(of[source]))
            for id_, of in self.kernel.blocks[to].phis.items()
            if id_ in self.control.needed and id_ not in self.control.unknown
        ]
        if moves:
            yield f"{pad}{', '.join(left for left, _ in moves)} = {', '.join(right for _, right in moves)}"
        if to != 0 and len(self.kernel.before[to]) == 1 and to not in self.kernel.loops and depth < 60:
            yield from self._block(to, depth)
        else:
            yield f"{pad}b = {to}; continue"

    def _shorter(self, number: int) -> int:
        """Where a branch on data is taken to: to where paths meet or out of a loop if one way leads there at once, else
        into the block with less in it."""
        block = self.kernel.blocks[number]
        loops = self.kernel.around(number)
        merges = {block.merge, *(self.kernel.blocks[loop.head].merge for loop in loops)}
        latches = {self.kernel.blocks[loop.latch].label for loop in loops}

        def cost(label: int) -> tuple[bool, bool, int]:
            to = self.kernel.blocks[self.kernel.number[label]]
            leaves = any(self.kernel.number[label] not in loop.blocks for loop in loops[-1:])
            return (not leaves and label not in merges, label not in latches, len(to.body))

        return min(block.targets, key=cost)

    def _operand(self, id_: int, component: int = -1) -> str:
        """A value as Python, or a component of it."""
        if id_ in self.kernel.constants:
            words = self.kernel.constants[id_]
            scalars = self.kernel.scalars(self.kernel.type_of(id_))
            return str(words[max(component, 0)]) if scalars == 1 or component >= 0 else repr(words[:scalars])
        if id_ not in self.kernel.phis and id_ not in self.kernel.defined:
            raise ShaderError(f"the value {id_} decides the way through a kernel, and nothing there makes it")
        return f"v{id_}[{component}]" if component >= 0 else f"v{id_}"

    def _scalars(self, id_: int) -> int:
        """How many scalars a value has."""
        type_ = self.kernel.defined[id_][1][1][0] if id_ in self.kernel.defined else self.kernel.type_of(id_)
        return self.kernel.scalars(type_)

    def _value(self, op: int, words: tuple[int, ...]) -> str:
        operands, scalars = words[2:], self.kernel.scalars(words[0])
        if op == Op.LOAD:
            return self._loaded(words[1], scalars)
        if op == EXTRACT:
            return self._operand(operands[0], operands[1])
        if op in ANY_ALL:
            return ANY_ALL[op].format(self._operand(operands[0]))
        if op == CONSTRUCT:
            parts = [(id_, n) for id_ in operands for n in range(self._scalars(id_))]
            texts = [self._operand(id_, n if self._scalars(id_) > 1 else -1) for id_, n in parts]
            return f"({', '.join(texts)},)"
        if op == SHUFFLE:
            size = self._scalars(operands[0])
            taken = [(operands[0], n) if n < size else (operands[1], n - size) for n in operands[2:]]
            return f"({', '.join(self._operand(id_, n) for id_, n in taken)},)"
        if scalars == 1:
            return self._computed(op, words, -1)
        return f"({', '.join(self._computed(op, words, n) for n in range(scalars))},)"

    def _loaded(self, id_: int, scalars: int) -> str:
        source = self.control.source(id_)
        assert source is not None
        kind, which, component, path = source
        if kind == "push":
            return f"push[{' + '.join([str(which // 4), *map(self._operand, path)])}]"
        return f"place[{which}]" if component < 0 and scalars > 1 else f"place[{which}][{max(component, 0)}]"

    def _computed(self, op: int, words: tuple[int, ...], component: int) -> str:
        """What an instruction makes of its operands, or of a component of each."""
        operands = words[4:] if op == Op.EXT_INST else words[2:]
        plain = [self._operand(id_, component if self._scalars(id_) > 1 else -1) for id_ in operands]
        if op == SELECT:
            return f"{plain[1]} if {plain[0]} else {plain[2]}"
        table = EXTENDED if op == Op.EXT_INST else next(one for one in _TABLES if op in one)
        template = table[words[3] if op == Op.EXT_INST else op]
        text = template.format(*plain, **{f"s{n}": f"signed({one})" for n, one in enumerate(plain)})
        boolean = self.kernel.scalar(words[0])[0] == Op.TYPE_BOOL
        return f"({text})" if boolean or op == COPY else f"({text}) & 0xFFFFFFFF"


_TABLES = (COMPARISONS, LOGICAL, UNARY, BINARY)
