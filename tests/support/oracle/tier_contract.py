"""The contract of every tier. A new tier's test calls `check_tier`."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st


def made_rows(num_rows, num_words, seed=0):
    """Rows with distinct keys, none of them reserved, and random words after the key."""
    rows = np.random.default_rng(seed).integers(0, 2**32, (num_rows, num_words), np.uint32)
    rows[:, 0], rows[:, 1] = np.arange(num_rows), seed
    return rows


def check_tier(make_tier, num_rows, num_words, number_type, chunk_rows=1):
    """Check a tier. `make_tier()` returns an empty tier for `num_rows` rows, indexed by numbers of `number_type`.

    `chunk_rows`: rows per chunk if the tier is append-only and takes rows only from the start of a chunk, else 1.
    """
    rows = made_rows(num_rows, num_words)
    tier = make_tier()
    _check_empty_calls(tier, num_words, number_type)
    _fill(tier, rows, number_type, chunk_rows)
    _check_gather_in_any_order(tier, rows, number_type)
    _check_buffers_of_the_caller(tier, rows, number_type)
    _check_empty_calls(tier, num_words, number_type)
    _check_gather_in_any_order(tier, rows, number_type)
    tier.close()
    tier.close()


def gathered(tier, at, num_words, number_type):
    out_UW = np.full((len(at), num_words), 0xA5A5A5A5, np.uint32)
    tier.gather(np.array(at, number_type), out_UW)
    return out_UW


def _fill(tier, rows, number_type, chunk_rows):
    """Scatter all rows in three calls (one chunk, no rows, the rest). The caller's array is overwritten after each."""
    bounds = [0, min(chunk_rows, len(rows)), min(chunk_rows, len(rows)), len(rows)]
    for begin, end in pairwise(bounds):
        mine = rows[begin:end].copy()
        tier.scatter(np.arange(begin, end, dtype=number_type), mine)
        mine[:] = 0


def _check_gather_in_any_order(tier, rows, number_type):
    @settings(deadline=None, max_examples=25, database=None)
    @given(st.lists(st.integers(0, len(rows) - 1), unique=True))
    def check(at):
        np.testing.assert_array_equal(gathered(tier, at, rows.shape[1], number_type), rows[at])

    check()
    everything = np.random.default_rng(1).permutation(len(rows))
    np.testing.assert_array_equal(gathered(tier, everything, rows.shape[1], number_type), rows[everything])


def _check_buffers_of_the_caller(tier, rows, number_type):
    """Check that `gather` writes only the requested rows, and that they are copies."""
    around_UW = np.full((4, rows.shape[1]), 7, np.uint32)
    tier.gather(np.array([1, 0], number_type), around_UW[1:3])
    np.testing.assert_array_equal(around_UW[1:3], rows[[1, 0]])
    assert (around_UW[[0, 3]] == 7).all()
    around_UW[:] = 0
    np.testing.assert_array_equal(gathered(tier, [0, 1], rows.shape[1], number_type), rows[:2])


def _check_empty_calls(tier, num_words, number_type):
    none = np.empty(0, number_type)
    tier.gather(none, np.empty((0, num_words), np.uint32))
    tier.scatter(none, np.empty((0, num_words), np.uint32))
