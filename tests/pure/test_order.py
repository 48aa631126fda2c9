"""Commands side by side: as few barriers as commands that wait for each other, and every conflict in its order."""

import itertools

import pytest
from graph_kit import f32, make_graph
from hypothesis import given
from hypothesis import strategies as st
from memory_kit import SPANS, launch

from vkconv.device import load_device
from vkconv.plan.commands import Barrier, with_barriers
from vkconv.plan.order import levels, side_by_side, step_levels, waves
from vkconv.plan.planner import Options, plan
from vkconv.plan.steps import OVERLAP_MEMORY

pytestmark = [pytest.mark.long, pytest.mark.share(1)]

H200, LAVAPIPE = load_device("h200"), load_device("lavapipe")
DRAWN = st.lists(st.tuples(SPANS, SPANS), max_size=20).map(
    lambda spans: [launch(f"n{i}", r, w) for i, (r, w) in enumerate(spans)]
)


def conflict(one, other):
    return any((a != "r" or b != "r") and region.overlaps(part) for region, a in one.binds for part, b in other.binds)


@given(DRAWN)
def test_a_level_is_one_more_than_the_highest_before_it(commands):
    found = list(levels(commands))
    for i, command in enumerate(commands):
        before = [found[j] for j in range(i) if conflict(commands[j], command)]
        assert found[i] == 1 + max(before, default=0)


@given(DRAWN)
def test_conflicts_keep_their_order_behind_a_barrier(commands):
    ordered = side_by_side(commands)
    assert sorted(c.node for c in ordered if not isinstance(c, Barrier)) == sorted(c.node for c in commands)
    place = {command.node: i for i, command in enumerate(ordered) if not isinstance(command, Barrier)}
    for one, other in itertools.combinations(commands, 2):
        if conflict(one, other):
            between = ordered[place[one.node] : place[other.node]]
            assert between and any(isinstance(command, Barrier) for command in between)


@given(DRAWN)
def test_there_are_as_few_barriers_as_can_be(commands):
    barriers = sum(isinstance(command, Barrier) for command in side_by_side(commands))
    assert barriers == max(levels(commands), default=1) - 1


def test_an_order_that_needs_no_more_barriers_stays():
    commands = [launch("a", writes=[(0, 4)]), launch("b", reads=[(0, 4)]), launch("c", writes=[(20, 4)])]
    assert side_by_side(commands) == list(with_barriers(commands))


def test_steps_wait_for_what_makes_their_values():
    reads = [["x"], ["a"], ["x"], ["b", "c"], ["x"]]
    assert step_levels(reads, [["a"], ["b"], ["c"], ["d"], ["e"]]) == [0, 1, 0, 2, 0]
    assert waves([0, 0, 0, 1, 2]) == [(0, 2), (0, 2), (0, 2), (3, 3), (4, 4)]


BRANCHES = make_graph(
    {"x": (1, 4, 6, 6)},
    [
        ("conv2d", "x w3", "a", {"padding": (1,)}),
        ("conv2d", "a w3", "b", {"padding": (1,)}),
        ("conv2d", "x w1", "c"),
        ("pool2d", "x", "d", {"kind": "max", "kernel": (3, 3), "padding": (1,)}),
        ("conv2d", "d w1", "e"),
        ("concat", "b c e", "y", {"axis": 1}),
    ],
    "y",
    {"w3": f32(4, 4, 3, 3, seed=1), "w1": f32(4, 4, 1, 1, seed=2)},
)


def planned(device, most, monkeypatch, **options):
    monkeypatch.setattr(OVERLAP_MEMORY, "of", lambda device: most)
    return plan(BRANCHES, device, Options(**options)).plan


def barriers(made):
    return sum(isinstance(command, Barrier) for command in made.run)


def test_branches_run_side_by_side_in_memory_of_their_own(monkeypatch):
    in_turn, beside = (planned(H200, most, monkeypatch) for most in (0.0, 4.0))
    assert barriers(beside) < barriers(in_turn)
    assert sorted(n.name for n in beside.nodes) == sorted(n.name for n in in_turn.nodes)
    commands = [command for command in beside.run if not isinstance(command, Barrier)]
    assert barriers(beside) == max(levels(commands)) - 1
    assert in_turn.memory.activations_bytes <= beside.memory.activations_bytes


def test_memory_bounds_what_runs_side_by_side(monkeypatch):
    in_turn, bounded = (planned(H200, most, monkeypatch) for most in (0.0, 0.5))
    assert bounded.run == in_turn.run and bounded.memory == in_turn.memory


def test_a_cpu_driver_runs_one_after_the_other():
    assert OVERLAP_MEMORY.of(LAVAPIPE) == 0 < OVERLAP_MEMORY.of(H200)
