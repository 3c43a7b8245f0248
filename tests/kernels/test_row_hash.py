"""The hash that shows whether two tables hold the same rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.row_hash import add_row_hashes, row_hash_reference

MASK = (1 << 128) - 1


def hash_of(rows, num_words=None, total=0):
    rows = np.asarray(rows, np.uint32)
    total = np.array([total >> 64, total & (2**64 - 1)], np.uint64)
    add_row_hashes(rows, rows.shape[1] if num_words is None else num_words, total)
    return int(total[0]) << 64 | int(total[1])


TABLES = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=width, max_size=width), min_size=1, max_size=8)
)


@settings(deadline=None, max_examples=60)
@given(TABLES, st.data())
def test_the_hash_is_the_sum_of_the_references(rows, data):
    num_words = data.draw(st.integers(0, len(rows[0])))
    total = data.draw(st.integers(0, MASK))
    expected = total + sum(row_hash_reference(row[:num_words]) for row in rows)
    assert hash_of(rows, num_words, total) == expected & MASK


def test_a_change_of_any_one_bit_changes_the_hash():
    rows = np.random.default_rng(0).integers(0, 2**32, (3, 9), np.uint32)
    seen = {hash_of(rows)}
    for u in range(3):
        for w in range(9):
            for bit in range(32):
                changed = rows.copy()
                changed[u, w] ^= np.uint32(1 << bit)
                seen.add(hash_of(changed))
    assert len(seen) == 1 + 3 * 9 * 32


def test_swapped_words_change_the_hash():
    row = list(range(1, 10))
    swapped = {tuple(row)}
    for a in range(9):
        for b in range(a):
            other = row.copy()
            other[a], other[b] = other[b], other[a]
            swapped.add(tuple(other))
    assert len({hash_of([other]) for other in swapped}) == 1 + 36
    # Words that change places between two rows, too.
    assert hash_of([[1, 2], [3, 4]]) != hash_of([[3, 2], [1, 4]])


def test_zeros_change_the_hash():
    assert hash_of([[0, 0]]) != 0
    assert hash_of([[0, 0]]) != hash_of([[0]])
    assert hash_of([[0], [0]]) != hash_of([[0]])


def test_the_low_half_carries_into_the_high_half():
    row = [1, 2, 3]
    low = row_hash_reference(row) & (2**64 - 1)
    assert low > 1
    for total in (2**64 - low, 2**64 - low - 1, 2**64 - 1, MASK):
        assert hash_of([row], total=total) == (total + row_hash_reference(row)) & MASK
