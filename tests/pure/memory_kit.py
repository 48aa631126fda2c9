"""Drawn blocks and launches, for the tests of memory and barriers."""

from hypothesis import strategies as st

from vkconv.kernel import Shader
from vkconv.plan.commands import Launch, Region
from vkconv.plan.memory import Block

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=2)
LIFE = st.tuples(st.integers(-1, 20), st.integers(0, 8))


@st.composite
def blocks(draw):
    lives = draw(st.lists(st.tuples(st.integers(1, 5000), LIFE), min_size=1, max_size=40))
    return [Block(f"b{i}", size, first, first + length) for i, (size, (first, length)) in enumerate(lives)]


def launch(name, reads=(), writes=(), buffer="a"):
    binds = [(Region(buffer, o, n), "r") for o, n in reads] + [(Region(buffer, o, n), "w") for o, n in writes]
    return Launch(name, Shader("s"), tuple(binds), (1, 1, 1), (), b"")
