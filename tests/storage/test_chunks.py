"""Chunks of the log against plain lists: how stale each is, and its ordinal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.sharded_tables import SOME, TABLES

from pipeline.storage.chunks import MIN_GROWTH, Chunks, Ordinals, max_chunks
from pipeline.storage.shards import Shards


class Plain:
    """Positions of live rows, and nothing else."""

    def __init__(self, rows, multiple, shards):
        self.rows, self.multiple, self.shards, self.live = rows, multiple, shards, set()
        self.chunks = {shard: [] for shard in range(shards.num)}

    def add(self, num_rows, shard):
        at, own = [], self.chunks[shard]
        for first in range(0, num_rows, self.rows):
            own.append(len(own) * self.shards.num + shard)
            at += range(own[-1] * self.rows, own[-1] * self.rows + min(self.rows, num_rows - first))
        self.live |= set(at)
        return at

    @property
    def numbers(self):
        return sorted(chunk for own in self.chunks.values() for chunk in own)

    def live_of(self, chunk):
        return len([p for p in self.live if p // self.rows == chunk])

    def sparse(self):
        return [c for c in self.numbers if 0 < self.live_of(c) * self.multiple < self.rows]

    def merged(self):
        """Chunks that the rows of sparse ones take, of which each has rows of one shard."""
        live = [sum(self.live_of(c) for c in self.sparse() if c in own) for own in self.chunks.values()]
        return sum(-(-count // self.rows) for count in live)


STEPS = st.lists(
    st.one_of(st.tuples(st.integers(0, 30), st.integers(0, 5)), st.lists(st.integers(0, 10_000), max_size=9)),
    max_size=25,
)
"""A number of rows that are added, and in which shard, or a choice of live ones that become stale."""


@settings(deadline=None, max_examples=150)
@given(STEPS, st.integers(1, 9), st.sampled_from([1.1, 2.0, 3.0]), st.sampled_from(TABLES), st.data())
def test_counts_of_stale_rows_agree_with_a_recount(steps, rows, multiple, shards, data):
    chunks, plain = Chunks(rows, multiple, shards=shards), Plain(rows, multiple, shards)
    for step in steps:
        if isinstance(step, tuple):
            shard = shards.owned[step[1] % len(shards.owned)]
            assert chunks.add(step[0], shard).tolist() == plain.add(step[0], shard)
            assert chunks.tails == tuple(len(own) * rows for own in plain.chunks.values())
            continue
        line = sorted(plain.live)
        at = sorted({line[choice % len(line)] for choice in step}) if line else []
        plain.live -= set(at)
        expected = plain.merged()
        assert chunks.merged(np.array(at, np.int64)) == expected, "what would be due is not what becomes due"
        chunks.forget(np.array(at, np.int64))
        assert chunks.merged(np.empty(0, np.int64)) == expected
    assert [chunks.stale(c) for c in plain.numbers] == [rows - plain.live_of(c) for c in plain.numbers]
    assert chunks.live().tolist() == [c for c in plain.numbers if plain.live_of(c)]
    assert chunks.live_rows == len(plain.live)
    assert sorted(chunks.sparse().tolist()) == plain.sparse()
    live = [plain.live_of(chunk) for chunk in chunks.sparse().tolist()]
    assert live == sorted(live), "those that cost most to merge come first"
    assert chunks.present == chunks.growth == chunks.num == len(plain.numbers)


@given(st.integers(0, 30), st.integers(1, 9), st.integers(1, 4))
def test_the_max_number_of_chunks_is_reached_and_never_exceeded(num_rows, rows, num_owned):
    def spread(left, shards):
        if shards == 1:
            return -(-left // rows)
        return max(-(-mine // rows) + spread(left - mine, shards - 1) for mine in {*range(min(left, 1) + 1), left})

    assert max_chunks(num_rows, rows, num_owned) == spread(num_rows, num_owned)


def test_many_chunks_at_once_equal_one_by_one():
    one, many = Chunks(3), Chunks(3)
    assert many.add(3 * 1000 - 1).tolist() == list(range(3 * 1000 - 1))
    for _ in range(999):
        one.add(3)
    one.add(2)
    assert one.tails == many.tails == (3000,)
    assert [one.stale(c) for c in range(1000)] == [many.stale(c) for c in range(1000)] == [0] * 999 + [1]


def test_a_loaded_log_counts_only_its_remaining_chunks():
    """Chunks 0 and 2 were deleted; 1 and 3 are there."""
    chunks = Chunks(4)
    chunks.load((16,), [1, 3])
    chunks.begin_growth(7, 100)
    chunks.hold(1, 4)
    chunks.hold(3, 3)
    chunks.forget(np.array([5, 12, 13]))
    assert chunks.live().tolist() == [1, 3]
    assert [chunks.stale(c) for c in range(4)] == [4, 1, 4, 3]
    assert (chunks.present, chunks.growth, chunks.tails) == (2, 0, (16,))
    assert chunks.sparse().tolist() == [3]
    assert chunks.add(5).tolist() == [16, 17, 18, 19, 20]
    assert (chunks.present, chunks.growth, chunks.tails) == (4, 2, (24,))


def test_loading_leaves_out_shards_of_other_processes():
    """Of four shards the second and the fourth, in chunks of 4: one chunk was given out in the former, two in the
    latter, and more in the others."""
    chunks = Chunks(4, shards=SOME)
    chunks.load((400, 4, 80, 8), [1, 3, 7])
    for chunk in (1, 3, 7):
        chunks.hold(chunk, 4)
    assert (chunks.num, chunks.tails, chunks.live().tolist()) == (3, (0, 4, 0, 8), [1, 3, 7])
    assert chunks.add(2, shard=1).tolist() == [20, 21]
    assert chunks.add(5, shard=3).tolist() == [44, 45, 46, 47, 60]


@pytest.mark.parametrize(
    ("growth", "live_rows", "room", "at_least", "allowance"),
    [
        (1.0, 400, 1000, 0, 100), (0.5, 400, 1000, 0, 50), (1.0, 400, 60, 0, 30), (1.0, 0, 1000, 0, MIN_GROWTH),
        (1.0, 400, -50, 0, MIN_GROWTH), (0.0, 4000, 1000, 0, MIN_GROWTH), (1.0, 400, 60, 77, 77),
    ],
)  # fmt: skip
def test_growth_is_limited_by_its_share_and_half_the_room(growth, live_rows, room, at_least, allowance):
    chunks = Chunks(4, growth=growth)
    chunks.add(12)
    chunks.begin_growth(live_rows, room, at_least)
    assert (chunks.allowance, chunks.growth) == (allowance, 0)


def test_a_block_may_always_begin_a_chunk_of_every_owned_shard():
    assert Chunks(4, shards=Shards.all(16)).allowance == 16 * MIN_GROWTH
    assert Chunks(4, shards=SOME).allowance == 2 * MIN_GROWTH


ROWS = 4


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 2**32)), max_size=12))
def test_chunks_on_disk_have_distinct_bounded_ordinals(rounds):
    ordinals, held, most = Ordinals(), {}, 32
    next_chunk = 0
    for num, seed in rounds:
        rng = np.random.default_rng(seed)
        new = next_chunk + 3 * rng.permutation(num)
        next_chunk += 3 * num
        ordinals.add(new)
        assert len(ordinals) == len(held) + num
        most = max(most, len(ordinals))
        at = (np.array([*held, *new], np.int64)[:, None] * ROWS + np.arange(ROWS)).ravel()
        short = ordinals.short(at, ROWS)
        np.testing.assert_array_equal(ordinals.long(short, ROWS), at)
        before = {chunk: short[ROWS * n] // ROWS for n, chunk in enumerate([*held, *new.tolist()])}
        assert all(before[chunk] == ordinal for chunk, ordinal in held.items()), "an ordinal changed"
        assert len({*before.values()}) == len(before)
        assert all(0 <= ordinal < 2 * most for ordinal in before.values())
        held = {chunk: ordinal for chunk, ordinal in before.items() if rng.random() < 0.5}
        ordinals.keep(held.keys())
        assert len(ordinals) == len(held)
