"""Offsets of buffers in the arena."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl.compiler.run.plan import Interval, live_bytes, place

ALIGNMENTS = (1, 16, 64, 128)


def aligned(nbytes, alignment):
    return -(-nbytes // alignment) * alignment


def lives_together(a, b):
    return a.first <= b.last and b.first <= a.last


def peak(intervals, alignment):
    """The most bytes that are alive at once."""
    return max((sum(aligned(i.nbytes, alignment) for i in intervals if i.first <= launch <= i.last) for launch in range(31)), default=0)


def offsets(alignment, *lives):
    """(offset of each (nbytes, first, last), size of the arena)."""
    intervals = [Interval(k, *life) for k, life in enumerate(lives)]
    (size,) = place(intervals, alignment, 1 << 40)
    return [i.offset for i in intervals], size


interval = st.builds(
    lambda nbytes, first, length: (nbytes, first, first + length),
    st.one_of(st.integers(1, 40), st.integers(1, 5000)),
    st.integers(0, 20),
    st.integers(0, 10),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(interval, max_size=25), st.sampled_from(ALIGNMENTS))
def test_what_is_alive_together_lies_apart(lives, alignment):
    intervals = [Interval(k, *life) for k, life in enumerate(lives)]
    size = sum(place(intervals, alignment, 1 << 40))
    for i in intervals:
        assert i.offset >= 0 and i.offset % alignment == 0
        assert i.offset + i.nbytes <= size
    for a, b in itertools.combinations(intervals, 2):
        if lives_together(a, b):
            assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset, (a, b)
    assert peak(intervals, alignment) <= size <= sum(aligned(i.nbytes, alignment) for i in intervals)


@settings(max_examples=100, deadline=None)
@given(st.lists(interval, min_size=1, max_size=15), st.randoms(use_true_random=False))
def test_offsets_do_not_depend_on_handles_or_on_the_order_of_equals(lives, random):
    """The order in which intervals are given only matters among those of one size that begin together."""
    distinct = list({(nbytes, first): (nbytes, first, last) for nbytes, first, last in lives}.values())
    shuffled = random.sample(distinct, len(distinct))
    before, after = offsets(64, *distinct), offsets(64, *shuffled)
    assert dict(zip(distinct, before[0], strict=True)) == dict(zip(shuffled, after[0], strict=True))
    assert before[1] == after[1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 20)), min_size=1, max_size=25))
def test_one_after_another_all_lie_at_the_beginning(chain):
    lives = [(nbytes, 2 * k, 2 * k + 1) for k, (nbytes, _) in enumerate(chain)]
    places, size = offsets(64, *lives)
    assert set(places) == {0} and size == aligned(max(nbytes for nbytes, _ in chain), 64)


def test_none():
    assert place([], 64, 1000) == []


def test_the_last_launch_of_one_and_the_first_of_another_are_together():
    """Lifetimes are inclusive: a kernel's operand and its result are two buffers."""
    assert offsets(64, (64, 0, 1), (64, 1, 2)) == ([0, 64], 128)
    assert offsets(64, (64, 0, 1), (64, 2, 3)) == ([0, 0], 64)


def test_a_chain_alternates_between_two_places():
    assert offsets(64, *((100, k, k + 1) for k in range(6))) == ([0, 128, 0, 128, 0, 128], 256)


def test_the_largest_come_first():
    """The largest lies at the beginning, whenever it lives, so that the small ones fill what is left before and after it."""
    assert offsets(16, (32, 0, 1), (96, 1, 2), (64, 0, 0)) == ([96, 0, 0], 128)


def test_a_gap_between_two_that_live_on_is_used():
    """The last goes where the second was."""
    places, size = offsets(16, (96, 0, 9), (64, 0, 4), (48, 0, 9), (32, 5, 9))
    assert places == [0, 96, 160, 96] and size == 208


def test_a_gap_is_used_where_it_is_large_enough():
    """Of the first's 96 bytes, the third leaves 32 free."""
    before = (96, 0, 4), (80, 0, 9), (64, 5, 9)
    assert offsets(16, *before, (32, 5, 9)) == ([0, 96, 0, 64], 176)


def test_the_order_with_the_smallest_arena():
    """Largest first, the last of 48 bytes would go to the end, where the arena has 224 bytes: it does not fit beside the third."""
    assert offsets(16, (96, 0, 4), (80, 0, 9), (64, 5, 9), (48, 5, 9)) == ([80, 0, 80, 144], 192)


@settings(max_examples=100, deadline=None)
@given(st.lists(interval, max_size=25), st.sampled_from(ALIGNMENTS))
def test_live_bytes_are_the_peak(lives, alignment):
    intervals = [Interval(k, *life) for k, life in enumerate(lives)]
    assert live_bytes(intervals, alignment) == peak(intervals, alignment)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_the_next_begins_at_a_multiple_of_the_alignment(alignment):
    (first, second), size = offsets(alignment, (10, 0, 1), (3, 0, 1))
    assert (first, second) == (0, aligned(10, alignment)) and size == second + aligned(3, alignment)


@settings(max_examples=200, deadline=None)
@given(st.lists(interval, max_size=25), st.sampled_from(ALIGNMENTS), st.integers(100, 6000))
def test_parts_where_no_buffer_is_as_large_as_all(lives, alignment, limit):
    intervals = [Interval(k, *life) for k, life in enumerate(lives)]
    sizes = place(intervals, alignment, limit)
    for i in intervals:
        assert i.offset % alignment == 0 and i.offset + i.nbytes <= sizes[i.part] and 0 <= i.part < len(sizes)
        assert sizes[i.part] <= max(limit, *(other.nbytes for other in intervals if other.part == i.part), 0)
    for a, b in itertools.combinations(intervals, 2):
        if lives_together(a, b) and a.part == b.part:
            assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset, (a, b)


def test_a_part_is_filled_before_the_next():
    intervals = [Interval(k, nbytes, 0, 0) for k, nbytes in enumerate((64, 48, 32, 16))]
    assert place(intervals, 16, 96) == [96, 64]
    assert [(i.part, i.offset) for i in intervals] == [(0, 0), (1, 0), (0, 64), (1, 48)]
