"""Memory layout: nothing alive at the same step overlaps, and the peak stays near the lower bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_kit import blocks

from vkconv.core import LimitError, align
from vkconv.plan.memory import Block, lay_out, lower_bound


@given(blocks(), st.sampled_from([16, 64, 256]))
def test_blocks_alive_together_never_overlap(blocks, alignment):
    layout = lay_out(blocks, alignment, 1 << 20)
    for i, one in enumerate(blocks):
        place = layout.places[one.name]
        assert place.offset % alignment == 0
        assert place.offset + one.nbytes <= layout.chunk_bytes[place.chunk]
        for other in blocks[:i]:
            there = layout.places[other.name]
            if one.first <= other.last and other.first <= one.last and place.chunk == there.chunk:
                assert place.offset + one.nbytes <= there.offset or there.offset + other.nbytes <= place.offset


@given(blocks())
def test_peak_is_never_below_the_lower_bound(blocks):
    layout = lay_out(blocks, 16, 1 << 20)
    assert layout.peak_bytes >= layout.lower_bound_bytes
    assert layout.lower_bound_bytes >= max(align(b.nbytes, 16) for b in blocks)


@given(blocks())
def test_no_chunk_exceeds_its_limit(blocks):
    layout = lay_out(blocks, 16, 6000)
    assert all(align(size, 16) <= align(6000, 16) for size in layout.chunk_bytes)


def test_a_chain_takes_two_buffers():
    chain = [Block(f"v{i}", 1024, i, i + 1) for i in range(10)]
    layout = lay_out(chain, 256, 1 << 20)
    assert layout.peak_bytes == layout.lower_bound_bytes == 2048


def test_lower_bound_counts_what_is_alive_at_one_step():
    assert lower_bound([Block("a", 100, 0, 2), Block("b", 50, 1, 1), Block("c", 70, 2, 3)], 1) == 170


def test_a_block_over_the_limit_names_both_numbers():
    with pytest.raises(LimitError, match=r"'big'.*5000 bytes.*4096 bytes"):
        lay_out([Block("big", 5000, 0, 0)], 16, 4096)
