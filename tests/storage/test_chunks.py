"""How stale each chunk is, against a plain list of positions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.storage.chunks import LEAST_GROWTH, Chunks


class Plain:
    """Positions of live rows, and nothing else."""

    def __init__(self, rows, multiple):
        self.rows, self.multiple, self.num, self.live = rows, multiple, 0, set()

    def add(self, num_rows):
        first = self.num * self.rows
        self.live |= set(range(first, first + num_rows))
        self.num += -(-num_rows // self.rows)
        return first

    def live_of(self, chunk):
        return len([p for p in self.live if p // self.rows == chunk])

    def sparse(self):
        return [c for c in range(self.num) if 0 < self.live_of(c) * self.multiple < self.rows]


STEPS = st.lists(st.one_of(st.integers(0, 30), st.lists(st.integers(0, 10_000), max_size=9)), max_size=25)
"""A number of rows that are added, or a choice of live ones that become stale."""


@settings(deadline=None, max_examples=150)
@given(STEPS, st.integers(1, 9), st.sampled_from([1.1, 2.0, 3.0]), st.data())
def test_a_count_of_stale_rows_is_not_what_counting_again_gives(steps, rows, multiple, data):
    chunks, plain = Chunks(rows, multiple), Plain(rows, multiple)
    for step in steps:
        if isinstance(step, int):
            assert chunks.add(step) == plain.add(step)
            assert chunks.tail == plain.num * rows
            continue
        line = sorted(plain.live)
        at = sorted({line[choice % len(line)] for choice in step}) if line else []
        plain.live -= set(at)
        expected = sum(plain.live_of(chunk) for chunk in plain.sparse())
        assert chunks.sparse_rows(np.array(at, np.int64)) == expected, "what would be due is not what becomes due"
        chunks.forget(np.array(at, np.int64))
        assert chunks.sparse_rows(np.empty(0, np.int64)) == expected
    assert [chunks.stale(c) for c in range(chunks.num)] == [rows - plain.live_of(c) for c in range(plain.num)]
    assert chunks.live().tolist() == [c for c in range(plain.num) if plain.live_of(c)]
    assert sorted(chunks.sparse().tolist()) == plain.sparse()
    live = [plain.live_of(chunk) for chunk in chunks.sparse().tolist()]
    assert live == sorted(live), "those that cost most to merge come first"
    assert chunks.present == chunks.growth == plain.num


def test_many_chunks_are_added_at_once_or_one_by_one():
    one, many = Chunks(3), Chunks(3)
    assert many.add(3 * 1000 - 1) == 0
    for _ in range(999):
        one.add(3)
    one.add(2)
    assert one.tail == many.tail == 3000
    assert [one.stale(c) for c in range(1000)] == [many.stale(c) for c in range(1000)] == [0] * 999 + [1]


def test_a_log_that_is_loaded_counts_what_was_there_before():
    """Chunks 0 and 2 were deleted; 1 and 3 are there."""
    chunks = Chunks(4)
    chunks.load(16, 2)
    chunks.begin_growth(7, 100)
    chunks.hold(1, 4)
    chunks.hold(3, 3)
    chunks.forget(np.array([5, 12, 13]))
    assert chunks.live().tolist() == [1, 3]
    assert [chunks.stale(c) for c in range(4)] == [4, 1, 4, 3]
    assert (chunks.present, chunks.growth, chunks.tail) == (2, 0, 16)
    assert chunks.sparse().tolist() == [3]
    assert chunks.add(5) == 16
    assert (chunks.present, chunks.growth, chunks.tail) == (4, 2, 24)


@pytest.mark.parametrize(
    ("growth", "live_rows", "room", "at_least", "allowance"),
    [
        (1.0, 400, 1000, 0, 100), (0.5, 400, 1000, 0, 50), (1.0, 400, 60, 0, 30), (1.0, 0, 1000, 0, LEAST_GROWTH),
        (1.0, 400, -50, 0, LEAST_GROWTH), (0.0, 4000, 1000, 0, LEAST_GROWTH), (1.0, 400, 60, 77, 77),
    ],
)  # fmt: skip
def test_more_may_be_written_than_the_share_or_the_room(growth, live_rows, room, at_least, allowance):
    chunks = Chunks(4, growth=growth)
    chunks.add(12)
    chunks.begin_growth(live_rows, room, at_least)
    assert (chunks.allowance, chunks.growth) == (allowance, 0)
