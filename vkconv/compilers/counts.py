"""What an invocation of a launch does on average: the mix of each block times how often it runs.

Static counts of a compiler have the body of a loop once. They are weighed by the SPIR-V's own dynamic count of the same
kind of work over its static one, where loops of a constant count stand as often as they run: compilers unroll these.
"""

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from vkconv.compilers.blocks import Kernel, Loop, read_kernel, specialize
from vkconv.compilers.control import Control, Counted
from vkconv.compilers.mix import Kind, Mix, mixes_of
from vkconv.compilers.pipelines import Pipeline
from vkconv.compilers.walk import Place, Walk
from vkconv.plan.commands import Launch

# Invocations that stand for all: so many workgroups, evenly spread, and so many of each.
_GROUPS, _LANES = 16, 4
# Fewer where the way is long: no more blocks than these are walked, but by as many invocations at least.
_MOST_BLOCKS, _LEAST_PLACES = 100_000, 8
# Built-ins of SPIR-V by their numbers.
_NUM_GROUPS, _GROUP_SIZE, _GROUP, _LOCAL, _GLOBAL, _LOCAL_INDEX = 24, 25, 26, 27, 28, 29
_SUBGROUP_SIZE, _NUM_SUBGROUPS, _SUBGROUP, _LANE = 36, 38, 40, 41


@dataclasses.dataclass(frozen=True)
class Counts:
    """An invocation of a launch, on average over some that stand for all. ``each_run`` is how often each block runs,
    ``guesses`` how many of the kernel's branches hang on data and are counted the shorter way."""

    mixes: tuple[Mix, ...]
    each_run: tuple[float, ...]
    constant_loops: tuple[Counted, ...]
    open_loops: tuple[Loop, ...]
    guesses: int

    @functools.cached_property
    def dynamic(self) -> Mix:
        """What it does."""
        return _weighed(self.mixes, self.each_run)

    def static(self, loops: int | None = None) -> Mix:
        """What code has, of which a compiler says that it has so many loops: loops of a constant count are unrolled,
        but for the largest of them where there are more loops than the others; None: not told, all are unrolled."""
        spare = max(0, (loops or 0) - self.loops_left)
        sizes = {one: (one.trips or 0) * self._size(one) for one in self.constant_loops}
        rolled = sorted(self.constant_loops, key=lambda one: -sizes[one])[:spare]
        times = [1.0] * len(self.mixes)
        for one in self.constant_loops:
            if one not in rolled:
                for block in one.loop.blocks:
                    times[block] *= max(one.trips or 0, 1)
        # A block that never runs, since the call does not need it, is still code.
        return _weighed(self.mixes, times)

    @property
    def loops_left(self) -> int:
        """How many loops code has where those of a constant count are unrolled, with what is in them."""
        around = [[one for one in self.constant_loops if open_.head in one.loop.blocks] for open_ in self.open_loops]
        return sum(math.prod(max(one.trips or 0, 1) for one in loops) for loops in around)

    def weight(self, kind: Kind, loops: int | None = None) -> float:
        """How often the code of a kind runs, on average over that code; of all instructions where it has none."""
        static, dynamic = self.static(loops), self.dynamic
        if static.get(kind):
            return dynamic.get(kind, 0.0) / static[kind]
        return dynamic.get(Kind.ALL, 0.0) / static[Kind.ALL] if static.get(Kind.ALL) else 1.0

    def _size(self, one: Counted) -> float:
        return sum(self.mixes[block].get(Kind.ALL, 0.0) for block in one.loop.blocks)


def count(launch: Launch, pipeline: Pipeline, subgroup_size: int) -> Counts:
    """What an invocation of a launch does that pushes its numbers. ShaderError where its kernel cannot be read, or does
    not end."""
    assert launch.fixed is None, "it is code that pushes whose counts weigh a compiler's"
    kernel, control, walk, mixes = _read(pipeline.code, pipeline.words, pipeline.shader.key)
    push = launch.push_words
    places = list(places_of(launch.groups, pipeline.local, subgroup_size))
    _, steps = walk.run(push, places[len(places) // 2])
    wanted = min(len(places), max(_LEAST_PLACES, _MOST_BLOCKS // steps))
    places = [places[number * len(places) // wanted] for number in range(wanted)]
    total = [0.0] * len(kernel.blocks)
    for place in places:
        for number, times in enumerate(walk.blocks_run(push, place)):
            total[number] += times
    constant = tuple(one for one in control.counted.values() if one.trips is not None)
    each = tuple(times / len(places) for times in total)
    heads = {one.loop.head for one in constant}
    open_loops = tuple(loop for head, loop in kernel.loops.items() if head not in heads)
    return Counts(mixes, each, constant, open_loops, len(walk.guesses))


@functools.lru_cache(maxsize=256)
def _read(code: bytes, words: tuple[int, ...], name: str) -> tuple[Kernel, Control, Walk, tuple[Mix, ...]]:
    kernel = read_kernel(specialize(code, words, name), name)
    control = Control(kernel)
    return kernel, control, Walk(kernel, control, name), mixes_of(kernel)


def _weighed(mixes: tuple[Mix, ...], times: tuple[float, ...] | list[float]) -> Mix:
    total: defaultdict[Kind, float] = defaultdict(float)
    for mix, often in zip(mixes, times, strict=True):
        for kind, number in mix.items():
            total[kind] += number * often
    return dict(total)


def places_of(groups: tuple[int, ...], local: tuple[int, ...], subgroup_size: int) -> Iterator[Place]:
    """Invocations that stand for all of a launch: every one where they are few."""
    lanes, every = math.prod(local), math.prod(groups)
    for number, group in enumerate(_spread(every, _GROUPS, 0)):
        for lane in _spread(lanes, _LANES, number):
            yield _place(groups, local, group, lane, subgroup_size)


def _spread(count: int, most: int, turn: int) -> list[int]:
    """At most so many numbers below ``count``, one of each equal part of them; another of it at each turn."""
    if count <= most:
        return list(range(count))
    # Steps of the golden ratio come to all places of a part evenly.
    offsets = [((part + turn * most + 1) * 0.6180339887498949) % 1.0 for part in range(most)]
    return [min(int((part + offset) * count / most), count - 1) for part, offset in enumerate(offsets)]


def _place(
    groups: tuple[int, ...], local: tuple[int, ...], group: int, lane: int, size: int
) -> Mapping[int, tuple[int, ...]]:
    at, inside = _unravel(group, groups), _unravel(lane, local)
    return {
        _NUM_GROUPS: tuple(groups),
        _GROUP_SIZE: tuple(local),
        _GROUP: at,
        _LOCAL: inside,
        _GLOBAL: tuple(a * n + b for a, n, b in zip(at, local, inside, strict=True)),
        _LOCAL_INDEX: (lane,),
        _SUBGROUP_SIZE: (size,),
        _NUM_SUBGROUPS: (-(-math.prod(local) // size),),
        _SUBGROUP: (lane // size,),
        _LANE: (lane % size,),
    }


def _unravel(index: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    x, y, _ = dims
    return index % x, index // x % y, index // (x * y)
