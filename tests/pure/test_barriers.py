"""Barriers: one exactly where two commands conflict, none where they do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_kit import SPANS, launch

from vkconv.plan.commands import Barrier, Copy, Region, with_barriers


def hazards(commands):
    return [c.hazard for c in with_barriers(commands) if isinstance(c, Barrier)]


@pytest.mark.parametrize(
    ("second", "hazard"),
    [
        (launch("n", reads=[(4, 4)]), ["RAW"]),
        (launch("n", writes=[(7, 4)]), ["WAW"]),
        (launch("n", writes=[(20, 4)]), ["WAR"]),
        (launch("n", reads=[(20, 4)]), []),
        (launch("n", reads=[(8, 4)], writes=[(12, 4)]), []),
        (launch("n", reads=[(4, 4)], buffer="other"), []),
    ],
)
def test_hazard_between_two_launches(second, hazard):
    first = launch("m", reads=[(20, 4)], writes=[(4, 4)])
    assert hazards([first, second]) == hazard


def test_a_barrier_clears_what_came_before_it():
    chain = [launch("a", writes=[(0, 4)]), launch("b", reads=[(0, 4)], writes=[(4, 4)]), launch("c", reads=[(0, 4)])]
    assert hazards(chain) == ["RAW"]


def test_copies_take_part():
    up = Copy("upload x", Region("upload", 0, 16), Region("a", 0, 16))
    down = Copy("download y", Region("a", 16, 16), Region("download", 0, 16))
    assert hazards([up, launch("n", reads=[(0, 16)], writes=[(16, 16)]), down]) == ["RAW", "RAW"]


def test_a_barrier_says_between_whom():
    (barrier,) = [
        c for c in with_barriers([launch("m", writes=[(0, 4)]), launch("n", reads=[(0, 4)])]) if isinstance(c, Barrier)
    ]
    assert (barrier.before, barrier.after, barrier.region) == ("m", "n", Region("a", 0, 4))


@given(st.lists(st.tuples(SPANS, SPANS), max_size=20))
def test_every_conflicting_pair_has_a_barrier_between(spans):
    ordered = list(with_barriers(launch(f"n{i}", r, w) for i, (r, w) in enumerate(spans)))
    epoch, seen = 0, []
    for command in ordered:
        if isinstance(command, Barrier):
            epoch += 1
            continue
        for earlier_epoch, earlier in seen:
            conflict = any(
                (a != "r" or b != "r") and region.overlaps(other)
                for region, a in command.binds
                for other, b in earlier.binds
            )
            assert not (conflict and earlier_epoch == epoch)
        seen.append((epoch, command))
