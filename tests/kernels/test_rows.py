"""Rows moved by slot, against NumPy's own indexing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.rows import gather_rows, gather_rows_reference, scatter_rows, scatter_rows_reference
from pipeline.machine.memory import aligned_empty


@st.composite
def moves(draw):
    num_slots, num_words = (
        draw(st.integers(0, 40)),
        draw(st.one_of(st.integers(1, 70), st.sampled_from([8, 16, 56, 64]))),
    )
    at = draw(st.lists(st.integers(0, num_slots - 1), unique=True, max_size=num_slots)) if num_slots else []
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Aligned or not, of whole vectors or not: streamed, or copied word by word.
    offset = draw(st.sampled_from([0, 0, 1, 4]))
    slab, rows = (aligned_empty(n * num_words + offset, np.uint32)[offset:] for n in (num_slots, len(at)))
    slab[:], rows[:] = (rng.integers(0, 2**32, len(words), np.uint32) for words in (slab, rows))
    return slab.reshape(num_slots, num_words), np.array(at, np.int32), rows.reshape(len(at), num_words)


@settings(deadline=None, max_examples=60)
@given(moves())
def test_gathered_rows_match_the_reference(move):
    slab, at, rows = move
    expected = rows.copy()
    gather_rows(slab, at, rows)
    gather_rows_reference(slab, at, expected)
    np.testing.assert_array_equal(rows, expected)


@settings(deadline=None, max_examples=60)
@given(moves())
def test_scattered_rows_touch_no_other_slot(move):
    slab, at, rows = move
    expected = slab.copy()
    scatter_rows(slab, at, rows)
    scatter_rows_reference(expected, at, rows)
    np.testing.assert_array_equal(slab, expected)
