"""What is taken of memory, step by step: as one looks at every block, without looking at every block."""

import itertools
import time
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_kit import SPANS, blocks, launch

from vkconv.core import align
from vkconv.plan import memory
from vkconv.plan.commands import Barrier, with_barriers
from vkconv.plan.memory import Block, Place, _by_size, _placed, lay_out
from vkconv.plan.spans import ListedSpans, Spans, TimedSpans

pytestmark = [pytest.mark.long, pytest.mark.share(1)]

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=20)


@given(RANGES, st.integers(0, 60), st.integers(1, 9))
def test_a_set_of_ranges_holds_the_bytes_that_were_added(ranges, begin, length):
    spans, held = Spans(), set()
    for first, count in ranges:
        spans.add(first, first + count)
        held.update(range(first, first + count))
    pairs = list(zip(spans.begins, spans.ends, strict=True))
    assert {byte for first, end in pairs for byte in range(first, end)} == held
    assert all(end < next_first for (_, end), (next_first, _) in itertools.pairwise(pairs))
    assert spans.overlaps(begin, begin + length) == (not held.isdisjoint(range(begin, begin + length)))


LIVES = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)


@pytest.mark.parametrize("kind", [ListedSpans, TimedSpans])
@given(st.integers(13, 20), st.lists(st.tuples(LIVES, st.integers(0, 60), st.integers(1, 9)), max_size=20), LIVES)
def test_what_is_taken_in_some_steps_is_what_the_blocks_of_those_steps_took(kind, steps, taken, asked):
    spans, held = kind(steps), set()
    for (first, last), begin, length in taken:
        spans.add(first, last, begin, begin + length)
        if first <= asked[1] and asked[0] <= last:
            held.update(range(begin, begin + length))
    found = spans.taken(*asked)
    assert found == sorted(found)
    assert {byte for begin, end in found for byte in range(begin, end)} == held


@given(blocks(), st.booleans(), st.sampled_from([6000, 1 << 20]), st.sampled_from([0, 1000]))
def test_blocks_lie_where_a_look_at_all_of_them_puts_them(blocks, smallest, limit_bytes, most_listed):
    ordered = _by_size(blocks)
    with patch.object(memory, "_MOST_BLOCKS", most_listed):
        made = _placed(ordered, 16, limit_bytes, 0, smallest)
    assert made.places == looked_at_one_by_one(ordered, limit_bytes, smallest)


def looked_at_one_by_one(ordered, limit_bytes, smallest):
    places = {}
    for block in ordered:
        size, chunk = align(block.nbytes, 16), 0
        while True:
            others = [b for b in ordered if b.name in places and places[b.name].chunk == chunk]
            beside = [b for b in others if b.first <= block.last and block.first <= b.last]
            busy = sorted((places[b.name].offset, places[b.name].offset + align(b.nbytes, 16)) for b in beside)
            offset, gaps = 0, []
            for begin, end in busy:
                if offset + size <= begin:
                    gaps.append((begin - offset, offset) if smallest else (offset, offset))
                offset = max(offset, end)
            offset = min(gaps)[1] if gaps else offset
            if offset + block.nbytes <= limit_bytes:
                places[block.name] = Place(chunk, offset)
                break
            chunk += 1
    return places


@given(st.lists(st.tuples(SPANS, SPANS), max_size=30))
def test_a_barrier_names_the_first_of_the_commands_that_it_waits_for(spans):
    pending = []
    for command in with_barriers([launch(f"n{i}", r, w) for i, (r, w) in enumerate(spans)]):
        if isinstance(command, Barrier):
            wanted = command
            continue
        conflicts = [
            (region, node)
            for region, access in command.binds
            for other, earlier, node in pending
            if "w" in (access, earlier) and region.overlaps(other)
        ]
        if conflicts:
            assert (wanted.region, wanted.before, wanted.after) == (*conflicts[0], command.node)
            pending = []
        pending += [(region, access, command.node) for region, access in command.binds]


@pytest.mark.long
def test_the_most_nodes_that_a_file_may_have_are_laid_out_in_seconds():
    started = time.process_time()
    alive = [Block(f"b{i}", 64 + i % 3, 0, 1) for i in range(8000)]
    assert lay_out(alive, 64, 1 << 40).peak_bytes == lay_out(alive, 64, 1 << 40).lower_bound_bytes
    chain = [Block(f"c{i}", 64 + i % 97, i, i + 2) for i in range(8000)]
    lay_out(chain, 64, 1 << 40)
    apart = [launch(f"n{i}", reads=[(0, 8)], writes=[(16 * (i + 1), 8)]) for i in range(16_000)]
    assert len(list(with_barriers(apart))) == 16_000
    assert time.process_time() - started < 8  # 1.5 s; looking at every pair takes more than a minute
