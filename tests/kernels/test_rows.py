"""Rows moved by slot, against NumPy's own indexing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.rows import gather_rows, gather_rows_reference, scatter_rows, scatter_rows_reference


@st.composite
def moves(draw):
    num_slots, num_words = draw(st.integers(0, 40)), draw(st.integers(1, 70))
    at = draw(st.lists(st.integers(0, num_slots - 1), unique=True, max_size=num_slots)) if num_slots else []
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    slab = rng.integers(0, 2**32, (num_slots, num_words), np.uint32)
    rows = rng.integers(0, 2**32, (len(at), num_words), np.uint32)
    return slab, np.array(at, np.int32), rows


@settings(deadline=None, max_examples=60)
@given(moves())
def test_gathered_rows_differ_from_the_reference(move):
    slab, at, rows = move
    expected = rows.copy()
    gather_rows(slab, at, rows)
    gather_rows_reference(slab, at, expected)
    np.testing.assert_array_equal(rows, expected)


@settings(deadline=None, max_examples=60)
@given(moves())
def test_scattered_rows_differ_from_the_reference_or_touch_other_slots(move):
    slab, at, rows = move
    expected = slab.copy()
    scatter_rows(slab, at, rows)
    scatter_rows_reference(expected, at, rows)
    np.testing.assert_array_equal(slab, expected)
